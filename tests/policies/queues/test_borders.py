"""What is left of limits, and who may use what, worked out by hand at the borders of each rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.contract import UNCHANGED, Allocation, AllocationStage, Memory, Plan, Policy
from equipoise.policies.observation import HELD, Gpus, Jobs, JobState, Nodes, Observation
from equipoise.policies.queues import limits
from equipoise.policies.queues.declared import (
    NODE_PREFERRED,
    NODE_REQUIRED,
    RACK_PREFERRED,
    RACK_REQUIRED,
    Queues,
)
from equipoise.policies.queues.fairshare import classic, fair_tree, level_shares, usage_now
from equipoise.policies.queues.feasible import breaches, may_start
from equipoise.policies.queues.limits import Quota
from equipoise.policies.queues.multifactor import priorities, stoppable
from equipoise.policies.queues.places import least_gpus, masks, of_one_model, place_job, start_on, wanted_gpus
from equipoise.policies.queues.profile import Profile, first_fit, node_classes, spread
from equipoise.policies.queues.within import Within, _held, _moved, _view, _without, within_queues
from equipoise.policies.registry import make_stage

QUEUES = Queues(
    names={"limit": ("all", "own", "cores")},
    claims=np.array([[0, 0, 0, 0, 0], [1, 0, 0, -1, 0]]),
    nodes=np.array([[True] * 4, [True, False, True, True]]),
    leaf=np.array([[1, 2], [1, -1]]), parent=np.array([-1, 0, -1]), gpus_max=np.array([4.0, 2.0, 6.0]),
    gpus_kept=np.array([0.0, 1.0, 0.0]), gpus_nominal=np.array([4.0, 1.0, 6.0]),
    jobs_max=np.array([np.inf, 3.0, np.inf]), models=np.array([-1, 0b01, -1]), resource=np.array([-1, -1, 0]),
    tres=np.array([[3.0, 0.0, 0.0], [2.0, 0.0, 0.0]]),
)  # fmt: skip
"""Claim 0 under `own` (GPUs of model 0; 1 kept of at most 2, three jobs), in `all`, and under `cores` (3 a job)."""


def site(queues: Queues = QUEUES, **columns: Any) -> Observation:
    """Nodes of 2 GPUs of model 0, 2 of model 1, none, and 1 of model 0, two in each rack.

    Jobs 0 (GPUs 0 and 2), 1 (a quarter of GPU 1) and 2 (GPU 3, of no claim) run, 3 and 4 wait.
    """
    jobs = {
        "id": range(5), "claim": [0, 1, -1, 0, 1], "state": [JobState.RUNNING] * 3 + [JobState.WAITING] * 2,
        "rigid": [True] * 5, "gpus_requested": [2, 1, 1, 1, 1], "gpus_held": [2, 1, 1, 0, 0],
        "gpu_share_requested": [1.0, 0.25, 1.0, 1.0, 1.0], "started_s": [10.0, 20.0, 30.0, np.nan, np.nan],
        "service_s": [50.0, 60.0, np.nan, 9.0, 9.0],
    }  # fmt: skip
    return Observation.of(
        100.0, jobs=Jobs.of(**jobs | columns), queues=queues, gpu_models=("a", "h"),
        nodes=Nodes.of(gpus=[2, 2, 0, 1], first_gpu=[0, 2, 4, 4], gpus_free=[0, 0, 0, 1], rack=[0, 0, 1, 1]),
        gpus=Gpus.of(
            node=[0, 0, 1, 1, 3], model=[0, 0, 1, 1, 0], job=[0, -2, 0, 2, -1], memory_bytes=[8.0] * 5,
            share_free=[0.0, 0.75, 0.0, 0.0, 1.0],
        ),
    )  # fmt: skip


def test_what_is_used_and_left_of_limits() -> None:
    o = site()
    assert limits.held_by_claim(o).tolist() == [[1.0, 1.0], [0.25, 0.0]]
    assert limits.held_by_claim(site(claim=[0, 1, 1, 0, 1])).tolist() == [[1.0, 1.0], [0.25, 1.0]]
    assert [limits.held_amounts(o, row) for row in (0, 1, 2)] == [{0: 1.0, 1: 1.0}, {0: 0.25}, {1: 1.0}]
    assert limits.amounts_of(o, np.array([0, 1, 3]), 0.5) == {0: 1.0, 1: 0.5}
    quota = Quota.now(o)
    # `own` counts 1 GPU of model 0 and a quarter, which is more than it keeps and counts above; job 0 has 3 cores.
    assert (quota.gpus, quota.jobs) == ([0.25, 1.25, 3.0], [2.0, 2.0, 1.0])
    assert [quota.left(k) for k in range(3)] == [3.75, 0.75, 3.0]
    assert [quota.left_jobs(k) for k in range(3)] == [math.inf, 1.0, math.inf]
    assert (quota.room(0), quota.room(0, 2)) == ([0.75, math.inf], [0.0, 0.0])  # two more would take 6 cores
    assert (quota.room(1), quota.room(1, 2)) == ([0.75, math.inf], [0.0, math.inf])
    assert [quota.broken(0, {0: gpus}) for gpus in (0.75, 0.76)] == [-1, 1]
    assert [quota.broken(0, {1: 99.0}), quota.broken(-1, {0: 99.0}), quota.broken(1, {0: 0.1}, 2)] == [
        -1,
        -1,
        1,
    ]
    assert quota.broken(0, {}, 2) == 1  # of three jobs two run
    assert [quota.first(0, 0.75), quota.first(0, 0.8), quota.first(1, 0.75)] == [-1, 1, -1]
    assert quota.allows(2, 0, 0.0, 1)  # just 3 cores are left
    assert not quota.allows(2, 0, 0.0, 2)
    assert quota.allows(1, 1, 0.0)  # no GPU at all
    quota.book(0, {0: -1.0}, -1)
    assert (quota.gpus, quota.jobs) == ([0.0, 0.25, 0.0], [1.0, 1.0, 0.0])
    assert [quota.left(1), quota.left(0)] == [1.75, 4.0]  # 0.75 of its own, and 1 of those above
    quota.book(-1, {0: 9.0})
    quota.book(1, {0: 1.5, 1: 7.0})
    assert (quota.gpus, quota.jobs) == ([0.75, 1.75, 0.0], [2.0, 2.0, 0.0])


def test_the_limit_that_stops_a_job_is_the_lowest_that_does() -> None:
    less = replace(QUEUES, gpus_max=np.array([0.5, 2.0, 6.0]), jobs_max=np.array([2.0, 9.0, 1.0]))
    quota = Quota.now(site(less))
    # 0.75 fit below, but count whole above, where a quarter of 0.5 is left.
    assert [quota.tightest(1, gpus, 0) for gpus in (0.25, 0.26, 0.75, 0.76)] == [1, 0, 0, 1]
    assert [quota.tightest(1, 0.1, 1), quota.tightest(1, 0.1, 0), quota.tightest(2, 0.0, 1)] == [0, 1, 2]
    assert [quota.broken(0, {0: 0.5}), quota.first(0, 0.5)] == [0, 0]
    cores = Quota.now(site(replace(QUEUES, gpus_max=np.array([4.0, 2.0, 5.0]))))
    assert [cores.broken(0, {}), cores.first(0, 0.1), cores.first(1, 0.1)] == [2, 2, -1]
    assert cores.room(0) == [0.0, 0.0]
    other = Quota.now(
        site(replace(QUEUES, models=np.array([-1, 0b10, -1])))
    )  # of model 1, of which 1 is used
    assert [other.broken(0, {0: 99.0}), other.broken(0, {1: 1.0}), other.broken(0, {1: 1.1})] == [-1, -1, 1]
    both = Queues(  # cores of an account in those of all: 3 are used in each, and the next job takes 3
        claims=QUEUES.claims, leaf=np.array([[1], [-1]]), parent=np.array([-1, 0]), gpus_max=np.array([5.0, 8.0]),
        gpus_kept=np.zeros(2), jobs_max=np.full(2, np.inf), models=np.full(2, -1), resource=np.array([0, 0]),
        tres=QUEUES.tres,
    )  # fmt: skip
    assert [Quota.now(site(both)).first(0, 0.1), Quota.now(site(both)).broken(0, {})] == [0, 0]
    jobs = Quota.unused(replace(QUEUES, jobs_max=np.array([np.inf, 0.0, np.inf])), 2)
    assert [jobs.room(1), jobs.left_jobs(1)] == [[0.0, math.inf], 0.0]


@pytest.mark.parametrize(
    ("most", "jobs", "resource", "said"),
    [
        (4.0, 9.0, -1, "4 GPUs"), (np.inf, 7.0, -1, "7 jobs"), (2.0, np.inf, 0, "2 CPUs"),
        (3.0 * 2**30, np.inf, 1, "3 GiB of memory"), (5.0, np.inf, 2, "5 nodes"),
    ],
)  # fmt: skip
def test_a_limit_in_words(most: float, jobs: float, resource: int, said: str) -> None:
    q = Queues(gpus_max=np.array([most]), jobs_max=np.array([jobs]), resource=np.array([resource]))
    assert limits.bound(q, 0) == said
    if resource < 0:
        assert limits.bound(replace(q, resource=np.empty(0, dtype=np.int64)), 0) == said


def test_which_nodes_a_job_may_use() -> None:
    o = site(gpu_types=[-1, -1, 0b10, 0b01, 0b11], together=[0, 0, 0, 0, NODE_REQUIRED])
    assert limits.node_model(o).tolist() == [0, 1, -1, 0]
    assert [np.flatnonzero(limits.allowed_nodes(o, row)).tolist() for row in range(5)] == [
        [0, 1, 2, 3], [0, 2, 3], [1], [0, 2, 3], [0, 2, 3],
    ]  # fmt: skip
    assert limits.restricted(o, np.arange(5)).tolist() == [False, True, True, True, True]
    plain = Queues()
    for together, alone in (
        (0, False),
        (RACK_PREFERRED, False),
        (RACK_REQUIRED, True),
        (NODE_REQUIRED, True),
    ):
        other = site(plain, claim=[-1] * 5, together=[together] * 5)
        assert limits.restricted(other, np.arange(1)).tolist() == [alone]
    # GPUs 0 and 2 are of one rack, 0 and 4 of two, 0 and 1 of one node.
    for together, well in ((0, "yyy"), (RACK_REQUIRED, "yny"), (NODE_REQUIRED, "nny")):
        other = site(plain, claim=[-1] * 5, together=[together] * 5)
        found = [limits.stands_well(other, 3, np.array(gpus)) for gpus in ([0, 2], [0, 4], [0, 1])]
        assert found == [each == "y" for each in well]
    assert not limits.stands_well(o, 1, np.array([2]))  # its claim may not use node 1
    assert limits.stands_well(site(together=[RACK_REQUIRED] * 5), 3, np.empty(0, dtype=np.int64))
    every = site(replace(QUEUES, nodes=np.empty((2, 0), dtype=np.bool_)))  # all claims may use all
    assert limits.allowed_nodes(every, 1).all()
    assert not limits.restricted(every, np.arange(5)).any()


def test_the_sets_of_nodes_that_are_tried() -> None:
    may = np.array([True, True, True, False])
    for together, expected in (
        (0, [[0, 1, 2]]), (RACK_PREFERRED, [[0, 1], [2], [0, 1, 2]]), (RACK_REQUIRED, [[0, 1], [2]]),
        (NODE_PREFERRED, [[0], [1], [2], [0, 1, 2]]), (NODE_REQUIRED, [[0], [1], [2]]),
    ):  # fmt: skip
        o = site(together=[together] * 5, one_gpu_model=[False, False, False, False, True])
        assert [np.flatnonzero(mask).tolist() for mask in masks(o, 3, may)] == expected
        assert of_one_model(o, 3, may) == [may]
        assert [np.flatnonzero(mask).tolist() for mask in of_one_model(o, 4, may)] == [[2], [0], [1]]


def test_sizes_at_which_a_job_starts() -> None:
    o = site(
        rigid=[True, True, False, False, False], gpus_requested=[5, 5, 5, 2, 40], gpus_per_worker=[2, 2, 2, 4, 4],
        workers_min=[1, 3, 1, 2, 2], workers_max=[2, 2, 9, 9, 8],
    )  # fmt: skip
    assert [least_gpus(o, row) for row in range(5)] == [2, 5, 2, 8, 8]
    assert [wanted_gpus(o, row) for row in range(5)] == [5, 5, 4, 8, 32]


def test_a_class_of_nodes_that_fills_up_later_is_not_counted_on() -> None:
    """One GPU of each class, the second from 10 s on: two from 10 s on, and in 5 s another job takes the first."""
    times_s, free = np.array([0.0, 5.0, 10.0, 0.0]), np.array([[1, 0], [0, 0], [1, 1], [0, 0]])
    least = np.empty(2, dtype=np.int64)
    for wanted, takes_s, expected in ((1, 5.0, 0), (1, 6.0, 2), (2, 1.0, 2), (3, 1.0, -1)):
        assert (
            first_fit(times_s, free, 3, np.array([True, True]), wanted, takes_s, math.inf, least) == expected
        )
    assert first_fit(times_s, free, 3, np.array([True, True]), 2, 1.0, 9.9, least) == -1


def test_a_job_is_put_on_what_is_free_of_its_nodes() -> None:
    o = site(gpu_share_requested=[1.0, 0.25, 1.0, 1.0, 0.75])
    draft = Draft(o)
    assert place_job(draft, 3, 1) is not None
    assert place_job(draft, 3, 2) is None
    assert place_job(draft, 3, 1, allowed=np.array([True, True, True, False])) is None
    assert place_job(draft, 4, 1).tolist() == [1]  # type: ignore[union-attr]  # three quarters are left there
    start_on(draft, 4, np.array([1]))
    assert draft.columns.room.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert place_job(draft, 4, 1).tolist() == [4]  # type: ignore[union-attr]


def rows_of(*entries: tuple[int, list[int]]) -> Allocation:
    return Allocation.of(list(entries))


def broken(o: Observation, *entries: tuple[int, list[int]], **more: Any) -> dict[int, str]:
    given = rows_of(*entries)
    return breaches(o, given.job, given.offset, given.gpu, given.share, **more)


def test_jobs_of_an_allocation_that_break_a_limit() -> None:
    o = site()
    limit = "breaks the limit own"
    assert broken(o, (3, [4])) == {3: limit}  # 1.25 of 2 are used
    assert broken(o, (0, []), (3, [4])) == {}  # what is given back counts before
    assert broken(o, (0, []), (3, [0]), (4, [4])) == {4: limit}  # 0.25 + 1 + 1
    assert broken(o, (3, [4]), (4, [0])) == {3: limit, 4: limit}
    assert list(broken(o, (3, [4]), (4, [0]), first=True)) == [3]
    assert broken(o, (1, [2])) == {1: "gets GPUs that it may not use"}  # node 1, which it may not
    assert broken(o, (0, [0, 2])) == {}  # as it is
    tight = site(replace(QUEUES, gpus_max=np.array([4.0, 1.0, 6.0])))
    assert broken(tight, (0, [0])) == {}  # more is used than may be, but it takes no more
    assert broken(tight, (0, [0, 1])) == {0: limit}
    assert broken(tight, (0, [0, 1]), (3, [])) == {0: limit}
    quota = Quota.now(o)
    broken(o, (0, []), (3, [4]), quota=quota)
    assert (quota.gpus, quota.jobs) == ([0.25, 1.25, 3.0], [2.0, 2.0, 1.0])
    quota = Quota.now(tight)
    broken(tight, (0, [0, 1]), quota=quota)  # what broke the limit keeps what it has
    assert (quota.gpus, quota.jobs) == ([0.25, 1.25, 3.0], [2.0, 2.0, 1.0])


def test_who_may_start() -> None:
    o = site(gpu_types=[-1, -1, -1, -1, 0b10], gpu_share_requested=[1.0, 0.25, 1.0, 0.75, 1.0])
    rows = np.array([3, 3, 4, 4, 2])
    assert (
        may_start(o, Quota.now(o), rows, np.array([1, 9, 1, 99, 99])).tolist() == [True] * 5
    )  # of model 1, all
    only = replace(QUEUES, models=np.array([-1, -1, -1]))  # `own` counts 2.25 of at most 3
    o = replace(o, queues=replace(only, gpus_max=np.array([4.0, 3.0, 6.0])))
    assert may_start(o, Quota.now(o), rows, np.array([1, 2, 1, 0, 9])).tolist() == [
        True,
        False,
        False,
        True,
        True,
    ]
    assert _held(o, Quota.now(o)).tolist() == [4]
    only_a = site(gpu_types=[0b01] * 5)  # of which 0.75 are left; of model 1 there would be room
    assert may_start(only_a, Quota.now(only_a), rows, np.array([1, 0, 1, 0, 9])).tolist() == [
        False,
        True,
    ] * 2 + [True]
    few = {"rigid": [False] * 5, "gpus_requested": [1] * 5, "gpus_per_worker": [2] * 5}
    for workers_min, held in ((0, []), (1, [3, 4])):
        some = site(gpu_types=[0b01] * 5, workers_min=[workers_min] * 5, **few)
        assert _held(some, Quota.unused(some.queues, 2)).tolist() == []
        assert _held(some, Quota.now(some)).tolist() == held
    several = site(QUEUES, **few | {"workers_min": [2] * 5, "gpu_types": [0b01] * 5})
    assert _held(several, Quota.unused(QUEUES, 2)).tolist() == [3, 4]  # 2 x 2 GPUs, of 2


def test_what_a_stage_that_knows_no_limits_sees_and_may_do() -> None:
    o, none = site(rigid=[False] * 5), np.empty(0, dtype=np.int64)
    assert _view(o, none, none) is o
    seen = _view(o, np.array([3]), none)
    assert seen.jobs.state.tolist() == [JobState.RUNNING] * 3 + [HELD, JobState.WAITING]
    assert (seen.waiting.tolist(), seen.held.tolist(), seen.jobs.rigid.tolist()) == ([4], [3], [False] * 5)
    seen = _view(o, none, np.array([1]))
    assert (seen.waiting.tolist(), seen.jobs.rigid.tolist()) == ([3, 4], [False, True, False, False, False])
    kept = _without(rows_of((3, [0, 1]), (4, [4])), {3: "why"})
    assert [kept.job.tolist(), kept.offset.tolist(), kept.gpu.tolist()] == [[4], [0, 1], [4]]


def test_who_got_gpus_that_it_may_not_use_is_put_on_others() -> None:
    o = site(replace(QUEUES, nodes=np.array([[True] * 4, [False, False, False, True]])))
    moved, homeless = _moved(o, rows_of((0, [0, 2]), (4, [0])))
    assert (moved.gpu.tolist(), homeless) == ([0, 2, 4], [])
    # Who had been given its new GPU gets another: both are where they may be.
    moved, homeless = _moved(o, rows_of((3, [4]), (4, [0]), (0, [])))
    assert (moved.gpu.tolist(), moved.offset.tolist(), homeless) == ([0, 4], [0, 1, 2, 2], [])
    moved, homeless = _moved(o, rows_of((3, [4]), (4, [0])))
    assert (moved.gpu.tolist()[1], homeless) == (4, [3])  # no other is free
    assert _moved(site(Queues(), claim=[-1] * 5), rows_of((4, [0])))[1] == []


@dataclass(frozen=True)
class Asks(AllocationStage):
    """Gives running job 0 what it is told to while it may, else starts the first waiting job on GPU 4."""

    name: ClassVar[str] = "asks"
    order: ClassVar[str] = "first"
    blocking: ClassVar[str] = "all"
    preemption: ClassVar[str] = "never"
    needs: ClassVar[frozenset[str]] = frozenset({"speeds"})

    grown: tuple[int, ...] = ()
    stubborn: tuple[int, ...] = ()
    saw: list[tuple[list[int], list[bool]]] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        o = observation
        self.saw.append((o.waiting.tolist(), o.jobs.rigid[:1].tolist()))
        if self.stubborn:
            return plan.with_(allocation=rows_of(*((row, [4]) for row in self.stubborn))), {"new": 1}
        if self.grown and not o.jobs.rigid[0]:
            return plan.with_(allocation=rows_of((0, list(self.grown)))), memory
        if not len(o.waiting):
            return plan, memory
        return plan.with_(allocation=rows_of((int(o.waiting[0]), [4]))), {"asked": 1}


def test_a_stage_is_asked_again_without_those_that_broke_a_limit() -> None:
    """Of model 0, 1.25 GPUs of 2 are used: neither job gets GPU 4, and then nobody is left that waits."""
    o = site(rigid=[False] * 5)
    stage = Asks()
    kept = Within(stage)
    assert kept.needs == {"speeds", "nodes", "gpus", "jobs", "workers"}
    plan, memory = kept.refine(o, UNCHANGED, {})
    assert [waiting for waiting, _ in stage.saw] == [[3, 4], [4], []]
    assert (plan.allocation, memory) == (None, {})
    assert plan.reasons[-1].text == "held 2 jobs at the limits of their queues"
    assert plan.reasons[-1].values["held"].tolist() == [3, 4]
    free = site(replace(QUEUES, gpus_max=np.array([4.0, 3.0, 6.0])))  # the first one breaks nothing
    plan, memory = kept.refine(free, UNCHANGED, {})
    assert plan.allocation is not None
    assert (plan.allocation.job.tolist(), plan.reasons, memory) == ([3], (), {"asked": 1})
    before = UNCHANGED.with_(allocation=rows_of((3, [4])))
    planned = replace(o, waiting=np.empty(0, dtype=np.int64))
    assert kept.refine(planned, before, {})[0] == before  # what stood there is not the stage's


class AsksForBoth(Asks):
    """Starts job 3 on GPU 4 and job 4 on GPU 0 while both wait."""

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        if observation.waiting.tolist() == [3, 4]:
            return plan.with_(allocation=rows_of((3, [4]), (4, [0]))), memory
        return super().refine(observation, plan, memory)


def test_a_job_that_finds_no_gpus_uses_nothing_of_a_limit() -> None:
    """Job 4 may use the node of GPU 4 alone, and gets it; of the limit, one of the two has room."""
    nodes = np.array([[True] * 4, [False, False, False, True]])
    o = site(replace(QUEUES, nodes=nodes, gpus_max=np.array([4.0, 3.0, 6.0])))
    plan, _ = Within(AsksForBoth()).refine(o, UNCHANGED, {})
    assert plan.allocation is not None
    assert (plan.allocation.job.tolist(), plan.allocation.gpu.tolist()) == ([4], [4])


def test_a_running_job_that_grows_beyond_a_limit_is_shown_as_one_that_cannot() -> None:
    o = site(rigid=[False] * 5, workers_max=[9] * 5)
    stage = Asks(grown=(0, 1, 2))
    plan, _ = Within(stage).refine(replace(o, waiting=np.empty(0, dtype=np.int64)), UNCHANGED, {})
    assert [rigid for _, rigid in stage.saw] == [[False], [True]]
    assert (plan.allocation, plan.reasons) == (None, ())


def test_after_eight_plans_that_break_a_limit_what_breaks_none_is_kept() -> None:
    every = replace(QUEUES, nodes=np.ones((2, 4), dtype=np.bool_))
    stage = Asks(stubborn=(3, 4))  # both GPU 4, which one may have by the limit
    free = replace(every, gpus_max=np.array([4.0, 2.25, 6.0]))
    plan, memory = Within(stage).refine(site(free), UNCHANGED, {"old": 1})
    assert len(stage.saw) == 8
    assert plan.allocation is not None
    assert (plan.allocation.job.tolist(), plan.allocation.gpu.tolist(), memory) == ([3], [4], {"new": 1})
    full = replace(every, gpus_max=np.array([4.0, 0.5, 6.0]), models=np.full(3, -1))
    plan, memory = Within(Asks(stubborn=(0, 4))).refine(site(full), UNCHANGED, {"old": 1})
    assert (plan.allocation, memory) == (
        None,
        {"old": 1},
    )  # a running job may not be moved for what does not start
    assert plan.reasons[-1].text == "every plan broke a limit: nothing is changed"


def test_only_what_hands_out_gpus_is_kept_within_limits() -> None:
    stages = (Asks(), make_stage("multifactor"), Within(Asks()), make_stage("s1"))
    kept = within_queues(Policy("p", stages)).stages
    assert isinstance(kept[0], Within)
    assert kept[1:] == stages[1:]


PARENT = np.array([-1, 0, 0, 1, 1])


def test_fair_shares_at_their_borders() -> None:
    share, usage = np.array([1.0, 1.0, 1.0, 0.5, 0.0]), np.array([0.0, 0.0, 0.25, 0.25, 0.0])
    assert level_shares(PARENT, share, usage).tolist() == [math.inf, 1.0, 1.0, 1.0, 0.0]
    assert level_shares(PARENT, np.full(5, 0.5), np.zeros(5)).tolist() == [math.inf] * 5
    # Nobody has used anything: 2^0, and 0 without shares.
    assert classic(PARENT, share, np.zeros(5)).tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert classic(PARENT, np.zeros(5), np.zeros(5)).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    # Half of the shares and of the usage each: U = 0.5 + (1 - 0.5) / 2; U of row 3 is 0.5 + (0.75 - 0.5) whole.
    assert classic(PARENT, share, usage).tolist() == pytest.approx([0.5, *[2**-1.5] * 3, 0.0])
    # Three leaves: rows 3 and 2 tie at level 1, 4 comes behind them.
    assert fair_tree(PARENT, share, usage).tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0, 1 / 3])


def test_usage_counts_what_jobs_of_a_claim_have_had_since() -> None:
    tree = Queues(
        claims=np.zeros((2, 5), dtype=np.int64), share_leaf=np.array([1, 2]), share_parent=np.array([-1, 0, 0]),
        share=np.ones(3), numbers={"half_life_s": 50.0},
    )  # fmt: skip
    o = site(tree, attained_gpu_s=[10.0, 20.0, 99.0, 1.0, 0.0])
    first = usage_now(o, {})
    assert first["usage"].tolist() == first["attained"].tolist() == [0.0, 11.0, 20.0]
    half = first | {"time_s": 50.0, "usage": np.array([0.0, 8.0, 4.0])}
    assert usage_now(o, half)["usage"].tolist() == [0.0, 4.0, 2.0]
    assert usage_now(o, half | {"attained": np.array([0.0, 12.0, 20.0])})["usage"].tolist() == [0.0, 4.0, 2.0]
    forever = replace(o, queues=replace(tree, numbers={}))
    later = usage_now(forever, half | {"attained": np.array([0.0, 10.0, 20.0])})
    assert (later["usage"].tolist(), later["time_s"]) == ([0.0, 9.0, 4.0], 100.0)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"age": 10.0, "max_age_s": 100.0}, [5.0, 10.0]),  # 50 s; 90 s before and 20 s now
        ({"age": 10.0}, [0.0, 0.0]),  # older jobs are never preferred
        ({"size": 10.0}, [2.0, 4.0]), ({"size": 10.0, "favour_small": 1.0}, [8.0, 6.0]),
        ({"partition": 10.0}, [5.0, 0.0]), ({"qos": 10.0}, [2.0, 0.0]),  # the second has no claim
        ({"size": 4.99999}, [0.0, 1.0]),  # rounded down
    ],
)  # fmt: skip
def test_each_factor_of_a_priority(numbers: dict[str, float], expected: list[float]) -> None:
    q = replace(
        QUEUES, partition_factor=np.array([0.5, 1.0]), qos_factor=np.array([0.25, 1.0]), numbers=numbers
    )
    o = site(
        q, claim=[0, 0, 0, 0, -1], queued_since_s=[0.0, 0.0, 0.0, 50.0, 80.0], waited_s=[0.0, 0.0, 0.0, 0.0, 90.0],
        gpus_requested=[2, 1, 1, 1, 2],
    )  # fmt: skip
    assert priorities(o, np.array([3, 4]), np.zeros(1)).tolist() == expected


def test_whom_a_job_may_stop_and_in_which_order() -> None:
    numbers = {"preempt_by": 2.0, "exempt_s": 70.0, "youngest_first": 0.0}
    q = replace(
        QUEUES, claims=np.zeros((3, 5), dtype=np.int64), tier=np.array([1, 2, 3]),
        spared=np.zeros(3, dtype=np.bool_), nodes=np.ones((3, 4), dtype=np.bool_),
        leaf=np.full((3, 1), -1), tres=np.zeros((3, 3)), numbers=numbers,
    )  # fmt: skip

    def found(queues: Queues, claim: list[int] | None = None, **columns: Any) -> list[int]:
        whole = {"gpu_share_requested": [1.0] * 5, "claim": claim or [0, 0, 1, 2, 1]}
        return stoppable(site(queues, **whole | columns), 3)

    assert found(q) == [1, 0, 2]  # of tier 1 those on fewer nodes first (none is known of job 1)
    assert found(replace(q, numbers=numbers | {"exempt_s": 70.1})) == [1, 0]
    assert found(replace(q, tier=np.array([1, 3, 3]))) == [1, 0]
    assert found(replace(q, spared=np.array([True, False, False]))) == [2]
    assert found(q, gpu_share_requested=[1.0, 0.99, 1.0, 1.0, 1.0]) == [0, 2]
    assert found(q, claim=[0, -1, 1, 2, 1]) == [0, 2]
    assert found(replace(q, numbers=numbers | {"youngest_first": 1.0})) == [2, 1, 0]
    by_qos = replace(
        q, claims=np.array([[0, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 2, 0]]),
        numbers=numbers | {"preempt_by": 1.0},
        preempts=np.array([[False] * 3, [False] * 3, [True, True, False]]), qos_priority=np.array([5.0, 1.0, 9.0]),
    )  # fmt: skip
    assert found(by_qos) == [2, 1, 0]
    assert found(replace(by_qos, qos_priority=np.empty(0))) == [1, 2, 0]
    assert (
        found(replace(by_qos, claims=by_qos.claims * np.array([1, 1, 1, 0, 1]) - np.array([0, 0, 0, 1, 0])))
        == []
    )


def test_the_profile_of_what_becomes_free() -> None:
    o = site(gpu_share_requested=[1.0, 1.0, 1.0, 1.0, 1.0])
    assert node_classes(o).tolist() == [1, 2, 0, 1]  # by model: none, then 0, which all may use alike, then 1
    apart = replace(QUEUES, nodes=np.array([[True] * 4, [True, True, True, False]]))
    assert len(set(node_classes(site(apart)).tolist())) == 4
    classes = np.array([0, 1, 1, 0])
    profile = Profile(Draft(o), np.array([0, 2]), classes, 2)
    # Now 1 of class 0; from 150 s on what job 0 holds (GPU 0, GPU 2); job 2 never ends.
    both = np.array([True, True])
    assert profile.earliest(both, 1, 1.0, 1e9) is not None
    for wanted, begin_s in ((1, 100.0), (2, 150.0), (3, 150.0), (4, math.inf), (5, None)):
        found = profile.earliest(both, wanted, 10.0, math.inf)
        assert (None if found is None else found[0]) == begin_s
    assert profile.earliest(both, 3, 10.0, 150.0) is not None
    assert profile.earliest(both, 3, 10.0, 149.9) is None
    found = profile.earliest(np.array([True, False]), 1, 60.0, math.inf)
    assert found is not None
    assert (found[0], found[1].tolist()) == (100.0, [1, 0])
    found = profile.earliest(np.array([True, False]), 2, 10.0, math.inf)
    assert found is not None
    assert (found[0], found[1].tolist()) == (150.0, [2, 0])
    profile.take(np.array([1, 0]), 120.0, 40.0)  # one GPU from 120 to 160 s
    assert [profile.earliest(both, n, 10.0, math.inf)[0] for n in (1, 2, 3)] == [100.0, 150.0, 160.0]  # type: ignore[index]
    assert profile.earliest(both, 1, 21.0, math.inf)[0] == 150.0  # type: ignore[index]
    assert profile.earliest(both, 1, 20.0, math.inf)[0] == 100.0  # type: ignore[index]
    assert spread(np.array([2, 5, 5]), 7).tolist() == [0, 5, 2]
    assert spread(np.array([2, 5, 5]), 11).tolist() == [1, 5, 5]
    late = Profile(Draft(site(service_s=[-5.0, 1.0, 1.0, 1.0, 1.0])), np.array([0]), classes, 1)
    assert late.earliest(both, 3, 1.0, math.inf)[0] == math.nextafter(100.0, math.inf)  # type: ignore[index]
