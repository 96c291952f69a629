"""S2: several jobs in one decision, and the borders of what it decides."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.policies.contract import Plan
from equipoise.policies.observation import Paths
from equipoise.policies.stages.groups import group_workers, links_of
from equipoise.policies.stages.s2 import (
    Tasks,
    _deal_holds,
    _late_ones,
    _needs,
    _one_path_each,
    _order_by_rank,
)
from tests.policies.observations import change, one_job, together, with_dead_nodes
from tests.policies.stages.borders.test_s1 import as_read
from tests.policies.stages.test_s2 import BOTH, refine, remote


def two_jobs(small=(3.0, 2.0)):
    """A job of two workers whose step of 7.5 s could be one of 6, and one of three whose 20 s could be 10."""
    return together(
        one_job(list(small), batch=30, shards_each=3), one_job([4.0, 1.0, 1.0], batch=60, shards_each=2)
    )


EAGER = pytest.mark.parametrize(
    "stage", [Tasks(damping=1.0), Tasks(mode="optimal")], ids=["formula", "optimal"]
)


@EAGER
def test_each_job_is_dealt_anew_and_the_one_that_gains_most_is_told_of(stage):
    plan, _, values = refine(stage, two_jobs())
    assert plan.samples_per_step.tolist() == [18, 12, 40, 10, 10]
    assert plan.reasons[-1].text == "deals batches anew"
    assert [values[name] for name in ("s221_known_jobs", "s222_job", "s223_jobs")] == [2, 1, 2]
    told = [
        values[f"s22{name}"] for name in ("1_fastest_samples_per_s", "2_largest_share", "3_gain", "3_step_s")
    ]
    assert told == pytest.approx([4.0, 2 / 3, 0.5, 10.0])


@EAGER
def test_a_job_that_gains_nothing_keeps_what_was_planned(stage):
    even = two_jobs((2.0, 2.0))
    plan, _, values = refine(stage, even, plan=Plan(samples_per_step=np.array([14, 16, 20, 20, 20])))
    assert plan.samples_per_step.tolist() == [14, 16, 40, 10, 10]
    assert (values["s223_jobs"], values["s221_known_jobs"]) == (1, 2)
    plan, _, values = refine(stage, one_job([2.0, 2.0], batch=30, shards_each=1))
    assert plan.reasons[-1].text == "the deal in force is as good"
    assert (values["s223_gain"], values["s223_jobs"], values["s221_known_jobs"]) == (0.0, 0, 1)
    cramped = one_job([3.0, 2.0], batch=30, shards_each=1, samples_max=[14, 15])
    assert refine(stage, cramped)[2]["s223_gain"] == 0.0


@EAGER
def test_a_job_on_a_dead_node_or_of_unknown_speed_or_without_a_batch_is_not_dealt_anew(stage):
    unknown = np.array([1 / 3, 0.5, np.nan, 1.0, 1.0])
    for seen in (
        with_dead_nodes(two_jobs(), [3]),
        change(two_jobs(), "workers", response_s_per_sample=unknown),
        change(two_jobs(), "jobs", global_batch=[30, 0]),
    ):
        plan, _, values = refine(stage, seen)
        assert plan.samples_per_step.tolist() == [18, 12, 20, 20, 20]
        assert (values["s221_known_jobs"], values["s222_job"], values["s223_jobs"]) == (1, 0, 1)
        assert (values["s223_gain"], values["s223_step_s"]) == pytest.approx((0.2, 6.0))
    plan, _, values = refine(stage, change(two_jobs(), "workers", response_s_per_sample=np.nan))
    assert plan.reasons[-1].text == "no job's speeds are all known"
    assert (values["s221_known_jobs"], values["s223_jobs"]) == (0, 0)


@pytest.mark.parametrize(
    ("columns", "fastest"),
    [
        ({}, 4.0), ({"response_s_per_sample": [0.125, 1.0]}, 4.0),
        ({"response_s_per_sample": [0.125, 1.0], "capacity_samples_per_s": [0.0, 1.0]}, 8.0),
        ({"response_s_per_sample": [0.125, 1.0], "capacity_samples_per_s": [np.nan, 1.0]}, 8.0),
        ({"input_samples_per_s": [2.5, 3.0]}, 2.5),
    ],
)  # fmt: skip
def test_a_worker_sustains_its_capacity_or_else_its_response_and_no_more_than_its_input(columns, fastest):
    seen = change(one_job([4.0, 1.0], batch=20, shards_each=1), "workers", **columns)
    assert refine(Tasks(), seen)[2]["s221_fastest_samples_per_s"] == pytest.approx(fastest)


def test_a_gain_of_just_epsilon_is_not_taken():
    seen = one_job([4.0, 1.0, 1.0], batch=60, shards_each=1)  # from 20 s to 10 s
    assert refine(Tasks(mode="optimal", epsilon=0.5), seen)[0].samples_per_step is None
    assert refine(Tasks(mode="optimal", epsilon=0.49), seen)[0].samples_per_step is not None


def moved_shares(target, share=None, *, samples=None, **options):
    """The shares of two jobs of two and three workers, after a decision with these targets."""
    seen = two_jobs()
    if samples is not None:
        seen = change(seen, "workers", samples_per_step=samples)
    memory = (
        {} if share is None else {"id": seen.workers.id, "gpu": seen.workers.gpu, "share": np.array(share)}
    )
    stage = Tasks(**{"damping": 0.25, "epsilon": 0.1, **options})
    return stage._move_shares(seen, group_workers(seen), np.array(target), memory)["share"]


def test_s222_shares_go_a_part_of_the_way_from_those_remembered_or_else_in_force():
    apart = [0.45, 0.55, 0.5, 0.3, 0.2]
    assert moved_shares(apart) == pytest.approx([0.4875, 0.5125, 0.375, 0.325, 0.3])
    known = moved_shares(
        apart, [0.25, 0.75, 0.5, 0.4, 0.3]
    )  # those of the second are no shares: the sum is 1.2
    assert known == pytest.approx([0.3, 0.7, 0.375, 0.325, 0.3])
    for off, first in ((5e-7, 0.3), (3e-6, 0.4875)):
        assert moved_shares(apart, [0.25, 0.75 + off, 0.2, 0.4, 0.4])[0] == pytest.approx(first)


def test_s222_a_job_all_of_whose_shares_are_near_gets_the_target():
    near = [0.26, 0.74, 0.5, 0.3, 0.2]
    assert moved_shares(near, [0.25, 0.75, 0.5, 0.3, 0.2])[:2].tolist() == [0.26, 0.74]
    one = [0.26, 0.74, 0.5, 0.31, 0.19]
    assert moved_shares(one, [0.25, 0.75, 0.5, 0.4, 0.1])[2:] == pytest.approx([0.5, 0.3775, 0.1225])
    bound = moved_shares([1.0, 0.5, 0.5, 0.3, 0.2], [0.5, 0.5, 0.5, 0.3, 0.2], epsilon=0.5)
    assert bound[0] == 0.625, "just at epsilon is not near"


def test_s222_a_job_without_a_target_keeps_its_shares_and_one_without_work_starts_from_none():
    gone = [np.nan, np.nan, 0.5, 0.3, 0.2]
    assert moved_shares(gone, [0.25, 0.75, 0.5, 0.3, 0.2])[:2].tolist() == [0.25, 0.75]
    idle = moved_shares([0.6, 0.4, 0.5, 0.3, 0.2], samples=[0, 0, 1, 0, 0])
    assert idle == pytest.approx([0.15, 0.1, 0.875, 0.075, 0.05])


def test_a_deal_holds_if_it_is_the_whole_batch_within_memory():
    groups, samples, most = group_workers(two_jobs()), np.array([3, 4, 5, 6, 7]), np.array([3, 9, 9, 6, 9])
    for batch, holds in (([7, 18], [True, True]), ([6, 19], [False, False]), ([8, 17], [False, False])):
        assert _deal_holds(groups, samples, most, np.array(batch)).tolist() == holds
    assert _deal_holds(groups, samples, np.array([3, 3, 9, 9, 9]), np.array([7, 18])).tolist() == [
        False,
        True,
    ]


def test_a_shard_is_needed_later_where_its_owner_waits_for_slower_ones():
    """Steps of 2 and 5 s, and of 4, 0 and unknown; two shards have no owner."""
    seen = change(two_jobs(), "workers", step_s=[2.0, 5.0, 4.0, 0.0, np.nan])
    seen = change(
        seen, "shards", worker=[0, 1, 0, -1, 1, 2, 2, 3, 3, 4, 4, -1], needed_in_s=np.arange(3.0, 15.0)
    )
    needed = [7.5, 4.0, 12.5, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0]
    assert _needs(seen, group_workers(seen)).tolist() == needed


def test_a_shard_that_comes_just_in_time_is_not_late():
    """Three of 1 MB from node 2 at 1 MB/s, one after the other."""
    seen = remote()
    need_s = np.full(12, 1.0)
    need_s[2:4] = 1.5, 2.25
    late = _late_ones(seen, group_workers(seen), np.array([1, 2, 3]), need_s, links_of(seen))
    assert late[0].tolist() == [2, 3]
    assert late[1] == pytest.approx([0.5, 0.75])
    assert late[2][:, 0].tolist() == [1e6, 2e6]
    assert late[3] == pytest.approx(2 / 3)


def test_who_fetches_from_one_node_or_equally_fast_ones_has_one_path():
    speed, owner = [50.0, 100.0, 51.0, 200.0], np.array([1, 0, 1, 0])
    for speeds, source, one in (
        (speed, [4, 3, 5, 3], True), (speed, [4, 3, 5, 2], False), (speed, [3, 2, 3, 4], False),
        ([100.0, 100.0, 105.0, 105.0], [4, 3, 5, 2], True), ([106.0, 100.0, 100.0, 106.0], [4, 3, 5, 2], False),
    ):  # fmt: skip
        assert _one_path_each(np.array(speeds), np.array(source), owner) is one


def test_s212_each_worker_orders_its_own_queue():
    seen = one_job([1.0, 1.0], shards_each=4)
    seen = change(seen, "shards", needed_in_s=[0.0, 10.0, 20.0, 30.0, 5.0, 15.0, 25.0, 35.0])
    assert _order_by_rank(seen, np.array([3, 1, 6, 5])).tolist() == [0, 4, 3, 6, 2, 5, 1, 7]
    assert _order_by_rank(seen, np.array([6, 1, 5, 3])).tolist() == [0, 4, 1, 6, 2, 5, 3, 7]
    assert _order_by_rank(seen, np.array([6, 5])).tolist() == [4, 6, 5, 7]
    assert _order_by_rank(seen, np.array([1, 5, 3, 6])) is None
    assert _order_by_rank(
        change(seen, "shards", worker=[0] * 4 + [1, 1, 1, -1]), np.array([6, 5])
    ).tolist() == [4, 6, 5]


def test_s212_priorities_a_hundredth_apart_are_alike():
    """S = 1 - size / 8 MB: 0.866 and 0.874 of two of the shards are alike; 0.8625 and 0.87375 are not."""
    for sizes, order in (([1.072, 1.008, 8.0], None), ([1.1, 1.01, 8.0], [0, 2, 1, 3])):
        seen = remote(np.array([1.0, *sizes, *[1.0] * 8]) * 1e6)
        plan, _, values = refine(Tasks(priority_alpha=0.0), change(seen, "shards", id=np.arange(70, 82)))
        assert (None if plan.fetch_order is None else plan.fetch_order.tolist()) == order
        assert values["s212_critical"] == (71 if order is None else 72)
    alike = change(seen, "shards", bytes=np.full(12, 3e6), needed_in_s=[0.0, 9.0, 9.0, 9.0] + [0.0] * 8)
    assert refine(Tasks(priority_alpha=0.0), alike)[2]["s212_critical"] == 0 + 1


def test_s212_the_largest_shard_is_that_of_the_own_job():
    """Needed in 10 s after 1 s: U = 0.1; S = 1 - 1 / 4, whatever another job fetches: P = 0.295."""
    small = remote(np.array([1e6, 1e6, 4e6, 4e6] + [1e6] * 8))
    both = together(remote(np.full(12, 64e6), rate=1e9), small)
    values = refine(Tasks(), both)[2]
    assert values["s212_waiting"] == 6
    assert (values["s212_critical"], values["s212_priority"]) == (13, pytest.approx(0.295))


def from_two_nodes(late):
    """Two shards of worker 0, the larger needed first and from the faster node: they take 8 and 16 s, then 1 s."""
    seen = one_job([1.0] * 3, shards_each=3, stored_on=[0, 1, 2] + [1] * 3 + [2] * 3, shard_samples=10)
    seen.paths = Paths.of(source=[1, 2], target=[0, 0], bytes_per_s=[1e6, 0.5e6], latency_s=[0.0, 0.0])
    seen = change(seen, "shards", bytes=[1e6, 8e6, 1e6] + [1e6] * 6, needed_in_s=[0.0, *late] + [90.0] * 6)
    return change(seen, "workers", capacity_samples_per_s=[1.0] * 3)


def test_s212_paths_stay_mixed_only_where_more_than_half_comes_late():
    small_first = Tasks(priority_alpha=0.0)
    for needed, waits, order in (
        ([50.0, 60.0], 0, [0, 2, 1]), ([5.0, 60.0], 1, [0, 2, 1]), ([1.0, 1.5], 2, None),
    ):  # fmt: skip
        plan, _, values = refine(small_first, from_two_nodes(needed))
        assert values["s213_late"] == waits
        assert values["s212_reordered"] == (order is not None)
        assert (None if plan.fetch_order is None else plan.fetch_order.tolist()) == order
    assert (
        refine(replace(small_first, frozen=as_read("S212")), from_two_nodes([50.0, 60.0]))[0].fetch_order
        is None
    )


def test_s212_paths_are_told_apart_by_their_speed_not_by_the_size_of_the_shards():
    seen = change(from_two_nodes([0.5, 0.75]), "shards", bytes=[1e6, 1.03e6, 1e6] + [1e6] * 6)
    assert refine(Tasks(priority_alpha=0.0), seen)[0].fetch_order is None
    seen.paths = Paths.of(source=[1, 2], target=[0, 0], bytes_per_s=[1e6, 1e6])
    assert refine(Tasks(priority_alpha=0.0), seen)[0].fetch_order.tolist() == [0, 2, 1]
    for frozen in ("S211", "S213", "S221"):
        plan = refine(Tasks(priority_alpha=0.0, frozen=frozen), from_two_nodes([50.0, 60.0]))[0]
        assert plan.fetch_order.tolist() == [0, 2, 1]


@BOTH
def test_s213_the_first_worker_may_have_a_late_shard(stage):
    seen = one_job(
        [1.0] * 3,
        shards_each=4,
        shard_samples=10,
        nic_bytes_per_s=2e4,
        stored_on=[0] * 4 + [1] * 4 + [2, 0, 0, 0],
    )
    seen = change(seen, "workers", capacity_samples_per_s=[1.0] * 3)
    assert refine(stage, seen)[0].moves.worker.tolist() == [0]


def test_frozen_sub_steps_of_data_look_at_no_measured_path_and_move_nothing():
    seen = remote()
    seen.paths = Paths.of(source=[2], target=[0], bytes_per_s=[5e5], latency_s=[0.25])
    assert refine(Tasks(frozen=as_read("S211")), seen)[2]["s211_fetch_s"] == pytest.approx(1.0)
    plan, _, values = refine(Tasks(frozen=as_read("S213")), remote(rate=2e4))
    assert plan.moves is None
    assert (values["s213_late"], values["s213_moved"]) == (3, 0)
    plan, _, values = refine(Tasks(), remote(rate=2e4))
    assert plan.reasons[-1].text == "moves late shards"
    plan, _, values = refine(Tasks(), change(remote(), "shards", local=[True] * 12))
    names = ("s211_fetch_s", "s212_waiting", "s212_reordered", "s213_late", "s213_moved")
    assert [values[name] for name in names] == [0, 0, 0, 0, 0]


def two_late(room=5e6, *, on=3, late=2e4):
    """Workers 0 and 1 miss one shard of 1 MB each, of node 3; workers 2 and 3 are on node 2, which is near."""
    stored = [0, on, 1, on] + [2] * 4
    seen = one_job([1.0] * 4, shards_each=2, shard_samples=10, stored_on=stored, nic_bytes_per_s=late)
    seen = change(
        seen,
        "workers",
        node=[0, 1, 2, 2],
        capacity_samples_per_s=[1.0] * 4,
        samples_owned=[40.0, 40.0, 15.0, 18.0],
    )
    seen = change(
        seen,
        "shards",
        local=[True, False, True, False] + [True] * 4,
        needed_in_s=[0.0, 9.0, 0.0, 11.0] + [0.0, 9.0] * 2,
    )
    if on == 3:
        seen.paths = Paths.of(source=[3], target=[2], bytes_per_s=[1e7])
    return change(seen, "nodes", storage_free_bytes=[1e9, 1e9, room, 1e9])


@BOTH
@pytest.mark.parametrize(("room", "moved"), [(5e6, 2), (2e6, 2), (1.9e6, 1), (1e6, 1), (0.9e6, 0)])
def test_s213_a_node_takes_as_many_late_shards_as_it_has_room_for(stage, room, moved):
    plan = refine(stage, two_late(room))[0]
    assert (0 if plan.moves is None else len(plan.moves.shard)) == moved


@BOTH
def test_s213_what_a_node_stores_already_needs_no_room(stage):
    moves = refine(stage, two_late(0.0, on=2))[0].moves
    assert sorted(zip(moves.shard.tolist(), moves.worker.tolist(), strict=True)) == [(1, 2), (3, 3)]


@BOTH
def test_s213_shards_go_to_workers_of_their_own_job(stage):
    alone = refine(stage, remote(rate=2e4))[0].moves
    both = refine(stage, together(remote(rate=2e4), remote(rate=2e4)))[0].moves
    assert both.shard.tolist() == [*alone.shard, *(12 + alone.shard)]
    assert both.worker.tolist() == [*alone.worker, *(3 + alone.worker)]
    assert refine(stage, with_dead_nodes(remote(rate=2e4), [1]))[0].moves is None


@BOTH
def test_s213_an_owner_that_computes_slowly_gives_a_shard_away_for_longer(stage):
    """It owns 40 samples at 2 a second, and the shard is 32 s late: 52 s; another has 35, or 45, and 10 to do."""
    seen = one_job(
        [2.0, 1.0, 1.0],
        batch=72,
        samples=[24] * 3,
        shards_each=2,
        stored_on=[0, 2, 1, 1, 2, 2],
        nic_bytes_per_s=2e4,
    )
    seen = change(seen, "shards", samples=[10] * 6, needed_in_s=[0.0, 9.0, 0.0, 9.0, 0.0, 9.0])
    seen = change(seen, "workers", capacity_samples_per_s=[50.0, 1.0, 1.0], samples_owned=[40.0, 99.0, 35.0])
    assert refine(stage, seen)[0].moves.worker.tolist() == [2]
    late = change(seen, "workers", samples_owned=[40.0, 99.0, 45.0])
    assert refine(stage, late)[0].moves is None
