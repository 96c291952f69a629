"""S3: several jobs in one decision, and the borders of what it decides."""

import math

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, Moves, Plan
from equipoise.policies.registry import PolicyError, make_stage
from equipoise.policies.stages.groups import group_workers
from equipoise.policies.stages.guard import Verdict, guard_empty, guard_watch
from equipoise.policies.stages.s3 import (
    Synchronisation,
    _goodput,
    _owned_bytes,
    _planned_traffic,
    _slowest_rate,
    _undo,
    _with_rows,
)
from tests.policies.observations import change, one_job, shared_gpu, together, with_dead_nodes
from tests.policies.stages.borders.test_s1 import as_read
from tests.policies.stages.test_s3 import BOTH, refine, slow_exchange, two_jobs
from tests.policies.stages.test_settled_ratio import waits

NAN = np.nan


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "best"}, {"frozen": "S211"}, {"delay": 0.0}, {"delay": -0.5}, {"eta": 0.0}, {"eta": -0.5},
        {"interval_max": 0}, {"share_damping": 0.0}, {"share_damping": 1.5}, {"share_floor": 0.0},
        {"share_floor": 0.51}, {"slack": -0.5}, {"slack": 1.0}, {"power_least": 0.0}, {"power_least": 1.5},
        {"spread": -0.5}, {"hysteresis": -0.5}, {"share_band": -0.5}, {"noise": -0.5}, {"backoff_windows": -1},
    ],
)  # fmt: skip
def test_parameters_out_of_their_bounds_are_refused(wrong):
    with pytest.raises(PolicyError, match=r"^s3"):
        make_stage("s3", wrong)


def test_parameters_may_be_at_their_bounds_and_are_as_documented_else():
    for bounds in (
        {"interval_max": 1, "share_damping": 1.0, "share_floor": 0.5, "slack": 0.0, "power_least": 1.0},
        {
            "spread": 0.0,
            "hysteresis": 0.0,
            "share_band": 0.0,
            "noise": 0.0,
            "backoff_windows": 0,
            "delay": 0.5,
            "eta": 0.25,
        },
    ):
        assert make_stage("s3", bounds) == Synchronisation(**bounds)
    assert Synchronisation() == Synchronisation(
        mode="formula", delay=0.1, eta=0.5, spread=0.1, interval_max=64, hysteresis=0.02, share_damping=0.5,
        share_floor=0.1, share_band=0.02, noise=0.05, slack=0.02, power_least=1 / 3, backoff_windows=8,
    )  # fmt: skip


# -- S311 to S313 ------------------------------------------------------------------------------------------


def exchanging(**second):
    """Steps of 12 s with an exchange of 1.2 s, and of 24 s with one of 18 s each 5 steps: r = 0.1 and 0.15."""
    job = {"exchange_s": 18.0, "exchange_alone_s": 18.0, "sync_interval": 5, **second}
    return together(slow_exchange(1.2), one_job([2.0] * 2, job=job))


LEAST, MOST = 1 / 1.15 - 1.5, 1 / 1.1 - 1


def test_s313_each_job_has_its_own_interval():
    """5 * exp(0.5 * 0.63) = 6.85, and 1.05."""
    plan, memory, values = refine(Synchronisation(), exchanging())
    assert plan.sync_interval.tolist() == [1, 7]
    assert memory["interval"] == pytest.approx([math.exp(-0.5 * MOST), 5 * math.exp(-0.5 * LEAST)])
    assert memory["job"].tolist() == [0, 1]
    assert plan.reasons[-1].text == "changes intervals"
    told = [
        "s312_coefficient_min",
        "s312_coefficient_max",
        "s312_alpha_max",
        "s312_beta_min",
        "s313_interval_max",
    ]
    assert [values[name] for name in told] == pytest.approx([LEAST, MOST, 1.0, 1.0, 7])
    assert (values["s313_levels"], values["s313_changed"], values["s311_held"]) == (0, 1, 0)
    dead = refine(Synchronisation(), with_dead_nodes(exchanging(), [5]))[0]
    assert (dead.sync_interval, dead.reasons[-1].text) == (None, "intervals and shares stay")
    unknown = refine(Synchronisation(), change(exchanging(), "jobs", exchange_s=NAN))[2]
    assert np.isnan([unknown["s312_coefficient_min"], unknown["s312_coefficient_max"]]).all()


def test_s313_a_job_that_waits_begins_where_it_would_settle_unless_that_is_frozen():
    for frozen, begins in (("", [5]), ("S311", [5]), ("S313", [5]), ("S324", [5]), (as_read("S312"), None)):
        plan, _ = Synchronisation(delay=2.0, frozen=frozen).refine(waits(), UNCHANGED, {})
        assert (None if plan.sync_interval is None else plan.sync_interval.tolist()) == begins
        assert plan.reasons[-1].text == "no training job runs"


def test_s313_the_interval_that_an_earlier_stage_plans_is_the_one_that_is_changed():
    plan, _, values = refine(Synchronisation(), exchanging(), plan=Plan(sync_interval=np.array([3, 15])))
    assert plan.sync_interval.tolist() == [2, 12], (
        "3 * exp(-0.5 * 0.634) = 2.18 and 15 * exp(-0.5 * 0.452) = 11.96"
    )
    assert values["s313_changed"] == 2
    assert values["s312_coefficient_min"] == pytest.approx(1 / 1.05 - 0.5)


@pytest.mark.parametrize(
    ("kept", "begins"), [([1.9, 5.9], [1.9, 5.9]), ([2.0, 4.0], [1.0, 5.0]), ([9.0, 4.1], [1.0, 4.1])]
)
def test_s313_an_interval_that_was_changed_from_outside_begins_anew(kept, begins):
    memory = {"job": np.array([0, 1]), "interval": np.array(kept)}
    frozen = Synchronisation(frozen=as_read("S312"))
    assert refine(frozen, exchanging(), memory)[1]["interval"].tolist() == begins


def test_s313_levels_exchange_far_less_often_than_near():
    """Of 3 exchanges each 4 steps one is of all: far_exchange_s counts at their own, longer interval."""
    both = {"far_every": 3, "far_exchange_s": 30.0, "near_exchange_s": 2.0, "sync_interval": 4}
    stay, _, values = refine(Synchronisation(frozen=as_read("S312")), exchanging(**both))
    assert stay.changes_nothing()
    assert [values[f"s313_{name}"] for name in ("interval_max", "levels", "changed")] == [12, 1, 0]
    assert values["s312_coefficient_min"] == -1.0, "30 s at 4 steps of 24 s: r = 0.31"
    gone = exchanging(**{**both, "near_exchange_s": NAN})
    plan, _, values = refine(Synchronisation(frozen=as_read("S312")), gone)
    assert plan.far_every.tolist() == [1, 1], "without near exchanges there is one level"
    assert [values[f"s313_{name}"] for name in ("interval_max", "levels", "changed")] == [4, 0, 1]
    plan = refine(Synchronisation(frozen=as_read("S313")), exchanging(**both))[0]
    assert plan.far_every.tolist() == [1, 1], "frozen there is one, too"


def test_s313_optimal_takes_what_gains_more_than_the_hysteresis():
    """A step and an exchange of 12 s, drift 0.25: (12 H + 12) (1 + (H - 1) / 4) / H is 24, 22.5, 24."""
    job = {"exchange_s": 12.0, "drift": 0.25, "gamma": 1.0}
    seen = one_job([2.0] * 2, batch=48, job=job)
    for hysteresis, longest, interval, gain in (
        (0.06, 9, 2, 0.0625),
        (0.0625, 9, 1, 0.0625),
        (0.0, 1, 1, 0.0),
    ):
        stage = Synchronisation(mode=as_read("optimal"), hysteresis=hysteresis, interval_max=longest)
        plan, memory, values = refine(stage, seen)
        assert plan.intervals(seen).tolist() == [interval]
        assert memory["interval"].tolist() == [interval]
        assert values["s313_gain"] == gain
    unknown = one_job([2.0] * 2, job={**job, "exchange_s": NAN, "sync_interval": 3})
    plan, memory, values = refine(Synchronisation(mode="optimal"), unknown)
    assert (plan.sync_interval, values["s313_gain"], memory["interval"].tolist()) == (None, 0.0, [3.0])


def test_s313_workers_that_push_by_themselves_do_so_each_7_steps_and_their_job_in_rounds_of_four():
    """A push of 24 s each 4 steps of 24 s: K is -1, h 4 * exp(0.5) = 6.6."""
    seen = change(exchanging(), "workers", push_s=[NAN] * 4 + [24.0] * 2, push_interval=[1] * 4 + [4] * 2)
    plan, _, values = refine(Synchronisation(), seen)
    assert plan.push_interval.tolist() == [1] * 4 + [7] * 2
    assert plan.sync_interval.tolist() == [1, 28]
    assert (values["s313_push_interval_max"], values["s313_changed"], values["s313_interval_max"]) == (
        7,
        1,
        28,
    )
    assert "s313_push_interval_max" not in refine(Synchronisation(), exchanging())[2]
    steady = change(seen, "workers", push_s=[NAN] * 4 + [24 * 4 * 0.0916] * 2)
    plan, _, values = refine(Synchronisation(), change(steady, "jobs", sync_interval=[1, 16]))
    assert (plan.push_interval, plan.sync_interval, values["s313_changed"]) == (None, None, 0)


def dealt_anew(spread, frozen=""):
    """Steps of 18, 18, 30, 30 s, of which 6 s are fixed, and a new deal."""
    job = {"exchange_s": 500.0, "sync_interval": 4}
    seen = together(one_job([2.0, 2.0, 1.0, 1.0], fixed_s=6.0, job=job), one_job([2.0] * 2, job=job))
    plan = Plan(samples_per_step=np.array([32, 32, 16, 16, 48, 48]))
    return refine(Synchronisation(spread=spread, frozen=frozen), seen, plan=plan)


def test_s311_a_job_waits_for_its_new_deal_where_its_steps_are_wider_spread():
    plan, _, values = dealt_anew(0.25)
    assert values["s311_held"] == 0, "just as wide"
    assert plan.sync_interval.tolist() == [7, 7]
    plan, _, values = dealt_anew(0.24)
    assert values["s311_held"] == 1
    assert plan.sync_interval.tolist() == [4, 7]
    told = ["spread", "spread_after", "speed_per_s", "speed_after_per_s"]
    assert [values[f"s311_{name}"] for name in told] == pytest.approx([0.25, 0.0, 1 / 30, 1 / 24])
    plan, _, values = dealt_anew(0.24, as_read("S311"))
    assert (values["s311_held"], plan.sync_interval.tolist()) == (1, [7, 7]), "frozen, it does not wait"
    unknown = refine(Synchronisation(), change(exchanging(), "workers", step_s=NAN))[2]
    assert np.isnan([unknown[f"s311_{name}"] for name in told]).all()


def test_s311_counts_the_bytes_of_who_owns_most_before_and_after():
    o = one_job([1.0] * 3, shards_each=2, shard_bytes=[2e6, 3e6, 5e6, 7e6, 11e6, 13e6])
    away = Moves(np.array([4, 5]), np.array([2, 2]), np.array([0, 1]), np.array([0, 1]))
    assert _owned_bytes(o, UNCHANGED) == {"s311_most_bytes": 24e6, "s311_most_bytes_after": 24e6}
    assert _owned_bytes(o, Plan(moves=away)) == {"s311_most_bytes": 24e6, "s311_most_bytes_after": 25e6}


def test_planned_moves_use_the_busiest_interface_of_each_job():
    """0.5 GB from node 0 to 1 and to 2, 1 s each at 0.5 GB/s: 2 s of 8 for the sender's job."""
    o = together(
        one_job([1.0] * 2, shard_bytes=5e8, nic_bytes_per_s=[5e8, 1e9], window_s=8.0),
        one_job([1.0] * 2, nic_bytes_per_s=5e8),
    )
    moves = Moves(np.array([1, 2]), np.array([0, 0]), np.array([1, 2]), np.array([1, 2]))
    assert _planned_traffic(o, group_workers(o), Plan(moves=moves)).tolist() == [0.25, 0.125]
    o.window_s = 0.0
    assert _planned_traffic(o, group_workers(o), Plan(moves=moves)).tolist() == [1.0, 1.0]
    assert _planned_traffic(o, group_workers(o), UNCHANGED).tolist() == [0.0, 0.0]


def test_the_slowest_rate_is_of_the_longest_known_step():
    assert _slowest_rate(np.array([NAN, 5.0, 8.0])) == 0.125
    assert math.isnan(_slowest_rate(np.array([NAN, NAN])))


def test_a_plan_is_the_same_where_nothing_in_it_changes():
    planned, rows = np.array([3, 5, 7]), np.array([0, 2])
    assert _with_rows(UNCHANGED, "sync_interval", planned, rows, np.array([3, 7])) is UNCHANGED
    assert _with_rows(UNCHANGED, "sync_interval", planned, rows, np.array([3, 2])).sync_interval.tolist() == [
        3,
        5,
        2,
    ]


# -- S321 to S323 ------------------------------------------------------------------------------------------


def test_goodput_is_throughput_where_the_efficiency_is_not_known():
    o = change(exchanging(), "jobs", goodput_samples_per_s=[NAN, 5.0], throughput_samples_per_s=[3.0, 9.0])
    assert _goodput(o).tolist() == [3.0] * 4 + [5.0] * 2


def two_gpus(**second):
    given = {"goodput": [10.0, 5.0]}
    return together(two_jobs(kappa=3.0, **given), two_jobs(kappa=2.0, **given, **second))


@BOTH
def test_s322_each_gpu_has_its_own_shares(stage):
    one, two = (refine(stage, two_jobs(kappa=kappa))[0].gpu_share for kappa in (3.0, 2.0))
    plan, memory, values = refine(stage, two_gpus())
    assert plan.gpu_share == pytest.approx([*one, *two])
    assert plan.reasons[-1].text == "changes shares"
    assert [
        values[name] for name in ("s321_virtual_gpus", "s322_changed_gpus", "s323_kept", "s323_rolled_back")
    ] == [4, 2, 0, 0]
    assert memory["guard"]["id"].tolist() == [j << 20 for j in range(4)]
    assert memory["guard"]["group"].tolist() == [0, 0, 3, 3]
    assert memory["guard"]["undo"].tolist() == [0.5] * 4
    assert memory["guard"]["before"].tolist() == [10.0, 5.0, 10.0, 5.0]


def test_s323_a_gpu_whose_last_change_is_watched_waits():
    seen = two_gpus()
    watched = guard_watch(guard_empty(), np.array([1 << 20]), np.array([5.0]), 95.0, np.array([0.5]))
    plan, memory, values = refine(Synchronisation(), seen, {"guard": watched})
    assert plan.gpu_share[[0, 2]].tolist() == [0.5, 0.5]
    assert plan.gpu_share[4] > 0.5
    assert (values["s322_changed_gpus"], values["s321_virtual_gpus"]) == (1, 4)
    assert memory["guard"]["id"].tolist() == [1 << 20, 2 << 20, 3 << 20]
    for frozen in ("S322", "S323"):
        plan, _, values = refine(Synchronisation(frozen=as_read(frozen)), seen)
        assert (plan.gpu_share, values["s322_changed_gpus"]) == (None, 0)


def test_s323_a_loss_is_rolled_back_and_blocked_for_as_many_windows():
    stage = Synchronisation(backoff_windows=3, noise=0.125)
    ids = np.array([0, 1 << 20])
    watched = guard_watch(
        guard_empty(), ids, np.array([20.0, 20.0]), 80.0, np.array([0.4, 0.6]), group=np.array([0, 0])
    )
    for time_s, goodput in ((90.0, [15.0, 19.5]), (100.0, [15.0, 19.5])):
        seen = two_jobs(goodput=goodput, time_s=time_s)
        plan, memory, values = refine(stage, seen, {"guard": watched})
        watched = memory["guard"]
    assert plan.gpu_share.tolist() == [0.4, 1.0, 0.6, 1.0]
    assert (values["s323_rolled_back"], values["s323_kept"], values["s322_changed_gpus"]) == (2, 0, 0)
    assert watched["blocked_until_s"].tolist() == [130.0, 130.0]


def test_s323_what_is_just_within_the_noise_is_kept():
    stage, ids = Synchronisation(noise=0.125), np.array([0, 1 << 20])
    watched = guard_watch(
        guard_empty(), ids, np.array([20.0, 20.0]), 80.0, np.array([0.4, 0.6]), group=np.array([0, 0])
    )
    for time_s in (90.0, 100.0):
        seen = two_jobs(goodput=[15.0, 20.0], time_s=time_s)
        _, memory, values = refine(stage, seen, {"guard": watched})
        watched = memory["guard"]
    assert (values["s323_rolled_back"], values["s323_kept"]) == (0, 2)


def test_s323_a_share_goes_back_where_free_and_held_parts_make_room_for_it():
    """0.25 are free: 0.5 and 0.25 could be 0.625 and 0.375, but not 0.75 and 0.375."""
    now, verdict = np.array([0.5, 0.25]), [np.array([], dtype=int), np.array([0, 1 << 20])]
    seen = shared_gpu(now, (1.0, 1.0))
    assert seen.gpus.share_free.tolist() == [0.25]
    share, rows = _undo(seen, now, Verdict(*verdict, np.array([0.625, 0.375])))
    assert (share.tolist(), rows.tolist()) == ([0.625, 0.375], [0, 1])
    share, rows = _undo(seen, now, Verdict(*verdict, np.array([0.75, 0.375])))
    assert (share.tolist(), rows.tolist()) == ([0.5, 0.25], [])
    share, rows = _undo(seen, now, Verdict(verdict[1], verdict[0], np.array([])))
    assert (share.tolist(), rows.tolist()) == ([0.5, 0.25], [])
    both = together(seen, shared_gpu([0.5, 0.375], (1.0, 1.0)))
    now = both.workers.gpu_share.copy()
    ids = np.array([0, 3 << 20])
    share, rows = _undo(both, now, Verdict(verdict[0], ids, np.array([0.875, 0.5])))
    assert (share.tolist(), rows.tolist()) == ([0.5, 0.25, 0.5, 0.5], [3])


def test_s321_frozen_every_part_of_a_gpu_counts_as_used_alike():
    """By R' = R * lambda: 0.5 and 0.25, normalised 2/3 and 1/3, half the way there 0.58."""
    seen = two_jobs(kappa=[3.0, 0.25])
    plain = refine(Synchronisation(), seen)[0].gpu_share[0]
    plan = refine(Synchronisation(frozen=as_read("S321")), seen)[0]
    assert plan.gpu_share[0] == pytest.approx(0.58)
    assert plain != pytest.approx(0.58, abs=0.02)
