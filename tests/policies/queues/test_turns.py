"""One decision of Kueue's admission and of Slurm's multifactor order, each step worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.contract import UNCHANGED
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation
from equipoise.policies.queues import kueue, multifactor
from equipoise.policies.queues.declared import ANY_PRIORITY, LOWER_OR_NEWER, LOWER_PRIORITY, NEVER, Queues
from equipoise.policies.queues.kueue import Kueue, _Head, _kinds, _unparked
from equipoise.policies.queues.limits import Quota
from equipoise.policies.queues.multifactor import Multifactor, _fits

W, R = JobState.WAITING, JobState.RUNNING
QUEUES = Queues(
    names={"limit": ("all", "qa", "qb", "users"), "queue": ("a", "b")},
    claims=np.array([[-1, -1, -1, -1, 0], [-1, -1, -1, -1, 1]]),
    nodes=np.ones((2, 1), dtype=np.bool_),
    leaf=np.array([[1, 3], [2, -1]]), parent=np.array([-1, 0, 0, -1]), gpus_max=np.array([8.0, 8.0, 8.0, 7.0]),
    gpus_kept=np.zeros(4), gpus_nominal=np.array([8.0, 4.0, 4.0, 7.0]), jobs_max=np.full(4, np.inf),
    models=np.full(4, -1), resource=np.full(4, -1), owner=np.array([-1, 0, 1, -1]),
    strict=np.array([False, True]), reclaim=np.array([ANY_PRIORITY, ANY_PRIORITY]),
    within=np.array([LOWER_PRIORITY, LOWER_OR_NEWER]), weight=np.array([2.0, 1.0]),
    borrows_below=np.array([-np.inf, 3.0]),
)  # fmt: skip
"""Queues a and b of 4 GPUs each in one cohort; jobs of queue a may have 7 in all."""


HOLDER = [0, 0, 0, 1, 1, 1, 2, -1]


def site(queues: Queues = QUEUES, holder: list[int] = HOLDER, **columns: Any) -> Observation:
    """Of 8 GPUs job 0 holds 0 to 2, job 1 holds 3 to 5 (both queue a), job 2 holds 6 (queue b).

    Jobs 3 (queue b, 4 GPUs), 4 (queue a) and 5 (of no queue) wait.
    """
    jobs = {
        "id": range(6), "claim": [0, 0, 1, 1, 0, -1], "state": [R, R, R, W, W, W], "rigid": [True] * 6,
        "gpus_requested": [3, 3, 1, 4, 1, 1], "gpus_held": [3, 3, 1, 0, 0, 0],
        "priority": [1.0, 2.0, 1.0, 1.0, 5.0, 1.0],
        "arrival_s": [0.0, 1.0, 7.0, 5.0, 8.0, 9.0], "started_s": [0.0, 1.0, 7.0, np.nan, np.nan, np.nan],
        "service_s": [50.0, 60.0, 70.0, 30.0, 30.0, 30.0],
    }  # fmt: skip
    return Observation.of(
        100.0, jobs=Jobs.of(**jobs | columns), queues=queues,
        nodes=Nodes.of(gpus=[8], first_gpu=[0], gpus_free=[holder.count(-1)]),
        gpus=Gpus.of(node=[0] * 8, job=holder, share_free=np.where(np.array(holder) < 0, 1.0, 0.0)),
    )  # fmt: skip


def turn(queues: Queues = QUEUES, **columns: Any) -> tuple[Any, dict[int, _Head]]:
    """(the turn, its nominated heads by row)."""
    made = kueue._Turn(site(queues, **columns), np.arange(6))
    heads = made.heads()
    for head in heads:
        made._nominate(head)
    return made, {head.row: head for head in heads}


def test_heads_of_queues_and_how_they_could_be_admitted() -> None:
    made, heads = turn()
    assert made.quota.gpus == [7.0, 6.0, 1.0, 6.0]
    found = {
        row: (head.queue, head.wanted, head.gpus, head.leaf, head.borrows, head.fits)
        for row, head in heads.items()
    }
    assert found == {
        3: (1, 4, 4.0, 2, True, False),
        4: (0, 1, 1.0, 1, True, True),
        5: (-1, 1, 1.0, -1, False, True),
    }
    assert [made._rank(heads[row]) for row in (3, 4, 5)] == [
        (1.0, -1.0, 5.0, 3), (1.0, -5.0, 8.0, 4), (0.0, -1.0, 9.0, 5),
    ]  # fmt: skip
    assert [made._share(1), made._share(1, 1.0), made._share(2), made._share(2, 4.0)] == [1.0, 1.5, 0.0, 1.0]
    fair, heads = turn(replace(QUEUES, numbers={"fair_sharing": 1.0}))
    assert fair._rank(heads[4]) == (1.5, -5.0, 8.0, 4)
    assert fair._rank(heads[5])[0] == 0.0
    full, heads = turn(replace(QUEUES, gpus_max=np.array([8.0, 8.0, 8.0, 6.0])))
    assert not heads[4].fits  # the limit beside the quota
    full._note(heads[4])
    assert full.limited == {4: 3}
    assert not turn(replace(QUEUES, gpus_max=np.array([7.0, 8.0, 8.0, 7.0])))[1][4].fits
    assert not turn(gpus_requested=[3, 3, 1, 3, 1, 1])[1][3].borrows  # 1 + 3 are its own
    half = turn(gpu_share_requested=[1.0, 1.0, 1.0, 0.25, 1.0, 1.0])[1][3]
    assert (half.wanted, half.gpus, half.borrows, half.fits) == (4, 1.0, False, False)


def test_equal_jobs_are_one_kind() -> None:
    o = site(claim=[0, 0, 0, 1, 1, -1], gpus_requested=[3, 3, 1, 4, 4, 1], priority=[1.0] * 6)
    memory = _kinds(o, {})
    assert memory["kind"].tolist() == [0, 0, 1, 2, 2, 3]
    assert _kinds(o, memory) is memory
    few = {"kind": memory["kind"][:2], "keys": memory["keys"][:1]}
    assert _kinds(o, few)["kind"].tolist() == [0, 0, 1, 2, 2, 3]
    made = kueue._Turn(o, memory["kind"])
    (first,) = [head for head in made.heads() if head.queue == 1]
    made._admitted(first)
    (second,) = [head for head in made.heads() if head.queue == 1]
    assert (first.row, second.row) == (3, 4)
    made._admitted(second)
    assert [head.queue for head in made.heads()] == [-1]
    assert _unparked({1: 5, 2: 6}, {5}) == {2: 6}


def test_what_is_set_aside_blocks_a_strict_queue_only() -> None:
    two = {"claim": [0, 0, 1, 1, 1, 0], "priority": [1.0, 1.0, 1.0, 2.0, 1.0, 1.0]}
    made, heads = turn(**two)
    made._set_aside(heads[3])
    assert [head.row for head in made.heads()] == [5]  # job 4 waits behind job 3 in the strict queue b
    made, heads = turn(replace(QUEUES, strict=np.array([False, False])), **two)
    made._set_aside(heads[3])
    assert [head.row for head in made.heads()] == [4, 5]


def test_whom_kueue_may_stop_in_order() -> None:
    made, heads = turn()
    # Queue a borrows 2 of its 6; in its own queue job 2 is newer and of the same priority.
    assert made._candidates(heads[3]) == [(0, 1), (1, 1), (2, 2)]
    assert turn(arrival_s=[0.0, 1.0, 5.0, 5.0, 8.0, 9.0])[0]._candidates(heads[3]) == [(0, 1), (1, 1)]
    assert turn(priority=[1.0, 2.0, 1.1, 1.0, 5.0, 1.0])[0]._candidates(heads[3]) == [(0, 1), (1, 1)]
    assert turn(priority=[1.0, 2.0, 0.9, 1.0, 5.0, 1.0])[0]._candidates(heads[3])[-1] == (2, 2)
    for reclaim, expected in (
        (NEVER, [(2, 2)]),
        (LOWER_PRIORITY, [(2, 2)]),
        (ANY_PRIORITY, [(0, 1), (1, 1), (2, 2)]),
    ):
        q = replace(QUEUES, reclaim=np.array([NEVER, reclaim]))
        assert turn(q)[0]._candidates(heads[3]) == expected
        assert turn(replace(q, within=np.array([NEVER, NEVER])))[0]._candidates(heads[3]) == expected[:-1]
    lower = {"priority": [1.0, 2.0, 1.0, 1.5, 5.0, 1.0]}
    some, head = turn(replace(QUEUES, reclaim=np.array([NEVER, LOWER_PRIORITY])), **lower)
    assert some._candidates(head[3]) == [(0, 1), (2, 2)]
    enough = replace(QUEUES, gpus_nominal=np.array([8.0, 6.0, 4.0, 7.0]))  # queue a borrows nothing
    assert turn(enough)[0]._candidates(heads[3]) == [(2, 2)]
    apart = replace(QUEUES, parent=np.array([-1, 0, -1, -1]))
    assert turn(apart)[0]._candidates(heads[3]) == [(2, 2)]
    later = turn(started_s=[0.0, 1.0, 7.0] + [np.nan] * 3, priority=[1.0, 1.0, 1.0, 1.0, 5.0, 1.0])[0]
    assert later._candidates(heads[3]) == [(1, 1), (0, 1), (2, 2)]  # the last to start first
    made.victims[0] = 9
    assert made._candidates(heads[3]) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("changed", "columns", "expected"),
    [
        # Job 0 is not below priority 1: b may not borrow then, and has to stop its own job, too, for 4 of its own.
        ({}, {}, [0, 2]),
        # Of priority 2 it stops job 0 of 1 and borrows the fifth GPU.
        ({}, {"priority": [1.0, 2.0, 1.0, 2.0, 5.0, 1.0]}, [0]),
        ({"borrows_below": np.array([-np.inf, 1.0])}, {"priority": [1.0, 2.0, 1.0, 2.0, 5.0, 1.0]}, [0, 2]),
        # It may not borrow at all.
        ({"borrows_below": np.full(2, -np.inf)}, {"priority": [1.0, 2.0, 1.0, 2.0, 5.0, 1.0]}, [0, 2]),
        ({"borrows_below": np.full(2, -np.inf), "within": np.full(2, NEVER)}, {}, []),
        # More than its own quota.
        ({"borrows_below": np.full(2, -np.inf)}, {"gpus_requested": [3, 3, 1, 5, 1, 1]}, []),
        ({}, {"gpus_requested": [3, 3, 1, 5, 1, 1], "priority": [1.0, 1.0, 1.0, 2.0, 5.0, 1.0]}, [1, 2]),
        # Nothing to reclaim: its own job leaves 2 GPUs.
        ({"reclaim": np.full(2, NEVER)}, {}, []),
        ({"reclaim": np.full(2, NEVER)}, {"gpus_requested": [3, 3, 1, 2, 1, 1]}, [2]),
        # Fair sharing: queue a borrows 8 times its weight, b would borrow 2; and where it may take back nothing.
        ({"numbers": {"fair_sharing": 1.0}, "weight": np.array([0.25, 1.0])},
         {"gpus_requested": [3, 3, 1, 5, 1, 1], "priority": [1.0, 1.0, 1.0, 2.0, 5.0, 1.0]}, [1, 2]),
        ({"numbers": {"fair_sharing": 1.0}, "weight": np.array([0.25, 1.0]), "reclaim": np.full(2, NEVER)},
         {"gpus_requested": [3, 3, 1, 5, 1, 1], "priority": [1.0, 1.0, 1.0, 2.0, 5.0, 1.0]}, []),
        # Three of its own: job 0 is enough.
        ({}, {"gpus_requested": [3, 3, 1, 3, 1, 1]}, [0]),
    ],
)  # fmt: skip
def test_as_few_are_stopped_as_are_needed(changed: Any, columns: Any, expected: list[int]) -> None:
    made, heads = turn(replace(QUEUES, **changed), **columns)
    before = list(made.quota.gpus)
    assert made._whom_to_stop(heads[3]) == expected
    assert made.quota.gpus == before


def test_nobody_is_stopped_for_who_has_no_quota() -> None:
    made, heads = turn()
    assert made._whom_to_stop(heads[5]) == []
    assert made._with_fewer(heads[3]) is None  # rigid, of one size


def test_with_fair_sharing_a_queue_keeps_no_less_than_the_one_that_takes() -> None:
    """Queue a borrows 2 of a weight of 2; b would borrow 1 with 4 GPUs more, nothing with 3."""
    fair = replace(QUEUES, numbers={"fair_sharing": 1.0})
    made, heads = turn(fair)
    assert not made._may_take(heads[3], 0, 1)  # nothing borrowed after it, and no more before
    assert not made._may_take(heads[3], 2, 2)  # b does not borrow
    made, heads = turn(fair, gpus_requested=[3, 3, 1, 3, 1, 1])
    assert made._may_take(heads[3], 0, 1)
    made, heads = turn(replace(fair, weight=np.ones(2)))
    assert made._may_take(heads[3], 0, 1)  # 2 before it
    made, heads = turn()
    assert made._may_take(heads[3], 0, 1)


@pytest.mark.parametrize(
    ("per", "fewest", "within", "expected"),
    [
        (1, 1, NEVER, (4, [])), (1, 4, NEVER, (4, [])), (1, 5, NEVER, (6, None)), (1, 6, NEVER, (6, None)),
        (2, 1, NEVER, (4, [])), (2, 2, NEVER, (4, [])), (2, 3, NEVER, (6, None)),
        (1, 1, LOWER_OR_NEWER, (5, [2])),
    ],
)  # fmt: skip
def test_a_head_is_made_as_much_smaller_as_it_must_be(
    per: int, fewest: int, within: int, expected: Any
) -> None:
    """Job 3 asks for 6; four are free, and five once job 2 has stopped."""
    q = replace(QUEUES, reclaim=np.full(2, NEVER), within=np.full(2, within))
    made, heads = turn(
        q, holder=[0, 0, 0, -1, -1, -1, 2, -1], state=[R, JobState.DONE, R, W, W, W],
        rigid=[True] * 3 + [False] * 3,
        gpus_requested=[3, 3, 1, 6, 1, 1], gpus_per_worker=[1, 1, 1, per, 1, 1],
        workers_min=[1, 1, 1, fewest, 1, 1], workers_max=[1, 1, 1, 6 // per, 1, 1],
    )  # fmt: skip
    head = heads[3]
    assert (head.wanted, head.fits) == (6, False)
    stopped = made._with_fewer(head)
    assert (head.wanted, head.gpus, stopped) == (expected[0], float(expected[0]), expected[1])


def test_flavors_of_a_queue_and_the_limits_that_count_for_them() -> None:
    """Of the flavors model 1 (2 GPUs) comes first, of which a user may have one; of model 0 there are 4."""
    q = Queues(
        names={"limit": ("h", "a", "user"), "queue": ("a",)}, claims=np.array([[-1, -1, -1, -1, 0]]),
        nodes=np.ones((1, 3), dtype=np.bool_), leaf=np.array([[0, 1, 2]]), parent=np.full(3, -1),
        gpus_max=np.array([2.0, 4.0, 1.0]), gpus_kept=np.zeros(3), gpus_nominal=np.array([2.0, 4.0, 1.0]),
        jobs_max=np.full(3, np.inf), models=np.array([0b10, 0b01, 0b10]), resource=np.full(3, -1),
        owner=np.array([0, 0, -1]), strict=np.array([False]), reclaim=np.array([NEVER]), within=np.array([NEVER]),
        weight=np.ones(1), borrows_below=np.array([-np.inf]),
    )  # fmt: skip
    sizes = [1, 2, 3, 5]
    o = Observation.of(
        9.0, queues=q, gpu_models=("a", "h"),
        nodes=Nodes.of(gpus=[4, 2, 0], first_gpu=[0, 4, 6], gpus_free=[4, 2, 0]),
        gpus=Gpus.of(node=[0] * 4 + [1] * 2, model=[0] * 4 + [1] * 2, job=[-1] * 6),
        jobs=Jobs.of(id=range(4), claim=[0] * 4, rigid=[True] * 4, gpus_requested=sizes),
    )  # fmt: skip
    slurm_turn = multifactor._Turn(o, Draft(o), Quota.now(o))
    for gpus, nodes in ((1.0, [True, True, True]), (1.5, [True, False, False]), (4.0, [True, False, False])):
        assert slurm_turn._nodes(0, 0, gpus).tolist() == nodes  # type: ignore[union-attr]
    assert slurm_turn._nodes(0, 3, 5.0) is None
    assert slurm_turn.limited == {3: 0}
    made = kueue._Turn(o, np.arange(4))
    for row, (size, leaf, fits) in enumerate(
        zip(sizes, (0, 1, 1, 0), (True, True, True, False), strict=True)
    ):
        head = _Head(row, row, 0, size, float(size))
        made._nominate(head)
        assert (head.leaf, head.fits, head.borrows) == (leaf, fits, size == 5)
    assert [made._nodes(head, leaf).tolist() for leaf in (-1, 0, 1)] == [
        [True, True, True], [False, True, False], [True, False, False],
    ]  # fmt: skip
    assert [made._counts(2, leaf) for leaf in (-1, 0, 1)] == [True, True, False]
    one, two = _Head(0, 0, 0, 1, 1.0, leaf=0), _Head(1, 1, 0, 2, 2.0, leaf=1)
    assert made._start(one)
    assert made._start(two)
    assert (made.draft.given[0][0].tolist(), made.draft.given[1][0].tolist()) == ([4], [0, 1])
    assert made.quota.gpus == [1.0, 2.0, 1.0]
    assert not made._start(_Head(2, 2, 0, 3, 3.0, leaf=1))
    for leaf, limit in ((0, {3: 0}), (1, {3: 1})):
        made.limited.clear()
        made._note(_Head(3, 3, 0, 5, 5.0, leaf=leaf))
        assert made.limited == limit


def test_one_cycle_of_kueue() -> None:
    """Who has no quota comes first (it borrows nothing) and takes the last GPU; then b stops what it needs."""
    equal = {"priority": [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]}
    plan, memory = Kueue().refine(site(**equal), UNCHANGED, {})
    assert plan.allocation is not None
    given = {int(job): len(plan.allocation.gpus_of(k)) for k, job in enumerate(plan.allocation.job)}
    assert given == {0: 0, 2: 0, 5: 1, 3: 4}
    reason = plan.reasons[-1]
    assert reason.text == "admitted 2 of 3 waiting jobs, stopped 2"
    assert (reason.values["stopped"].tolist(), reason.values["stopped_for"].tolist()) == ([0, 2], [3, 3])
    assert set(memory) == {"kind", "keys"}
    cycles = replace(QUEUES, numbers={"cycles": 1.0}, reclaim=np.full(2, NEVER), within=np.full(2, NEVER))
    plan, memory = Kueue().refine(site(cycles), UNCHANGED, {})
    # Job 3 lacks 3 GPUs of quota and is parked; job 4 counted on the GPU that is taken, and comes again.
    assert (memory["parked"], memory["ran"].tolist(), plan.told) == ({3: 0}, [0, 1, 2, 5], 2)
    assert (memory["told"], plan.revisit_s) == ({3: 3.0, 4: 0.0}, 100.0 + kueue.CYCLE_S)
    again, memory = Kueue().refine(site(cycles, state=[R, R, R, W, W, R]), UNCHANGED, memory)
    assert (again.told, memory["parked"], memory["told"], again.revisit_s) == (0, {3: 0}, {3: 3.0}, math.inf)
    assert memory["ran"].tolist() == [0, 1, 2, 4, 5]
    nobody = Kueue().refine(site(state=[R] * 6), UNCHANGED, {})[0]
    assert nobody.reasons[-1].text == "no job waits"


# -- Slurm -----------------------------------------------------------------------------------------------------

SLURM = Queues(
    names={"limit": ("x",)}, claims=np.array([[-1, -1, 0, -1, -1], [-1, -1, 1, -1, -1]]),
    nodes=np.array([[True, True], [False, True]]), leaf=np.full((2, 1), -1), tier=np.array([1, 2]),
    partition_factor=np.ones(2), qos_factor=np.zeros(2), share_leaf=np.array([0, 0]),
    share_parent=np.array([-1]), share=np.ones(1), numbers={"age": 10.0, "max_age_s": 100.0},
)  # fmt: skip


def two_nodes(queues: Queues = SLURM, running: int = 0, **columns: Any) -> Observation:
    """Nodes of 4 GPUs; job 0 holds `running` of the first until 150 s; the others wait."""
    n = len(columns["gpus_requested"])
    holder = np.full(8, -1)
    holder[:running] = 0
    jobs = {
        "id": range(n), "claim": [0] * n, "state": [R if running else W] + [W] * (n - 1), "rigid": [True] * n,
        "gpus_held": [running] + [0] * (n - 1), "service_s": [50.0] + [30.0] * (n - 1),
        "queued_since_s": [90.0] * n,
    }  # fmt: skip
    return Observation.of(
        100.0, jobs=Jobs.of(**jobs | columns), queues=queues,
        nodes=Nodes.of(gpus=[4, 4], first_gpu=[0, 4], gpus_free=[4 - running, 4]),
        gpus=Gpus.of(node=[0] * 4 + [1] * 4, job=holder, share_free=np.where(holder < 0, 1.0, 0.0)),
    )  # fmt: skip


def slurm(o: Observation, memory: Any = None) -> tuple[dict[int, list[int]], Any, Any]:
    plan, memory = Multifactor().refine(o, UNCHANGED, memory or {})
    given = plan.allocation
    found = {} if given is None else {int(j): given.gpus_of(k).tolist() for k, j in enumerate(given.job)}
    return found, plan, memory


def test_the_order_of_partitions_then_priority() -> None:
    """Tier 2 comes first, then who has waited longest; jobs of no claim are of tier 1."""
    o = two_nodes(
        gpus_requested=[4, 4, 4, 4], claim=[0, 1, 0, -1], queued_since_s=[90.0, 95.0, 50.0, 99.0]
    )  # fmt: skip
    given, plan, _ = slurm(o)
    assert plan.reasons[-1].values["order"].tolist() == [1, 2, 0, 3]
    assert plan.reasons[-1].values["priority"].tolist() == [0.0, 5.0, 1.0, 0.0]
    assert given == {1: [4, 5, 6, 7], 2: [0, 1, 2, 3]}
    assert plan.reasons[-1].text == "started 2 of 4 waiting jobs"
    none = replace(SLURM, tier=np.empty(0, dtype=np.int64))
    assert slurm(replace(o, queues=none))[1].reasons[-1].values["order"].tolist() == [2, 0, 1, 3]


BACKFILL = replace(SLURM, numbers={"depth": 9.0, "interval_s": 60.0, "window_s": 1000.0})


def test_backfill_plans_what_cannot_start_and_starts_what_delays_nobody() -> None:
    """Job 1 asks for 8, which are free at 150 s; job 2 is done by then, job 3 is not; no 6 are left for job 4."""
    o = two_nodes(BACKFILL, 2, gpus_requested=[2, 8, 3, 3, 6], service_s=[50.0, 30.0, 50.0, 51.0, 5.0])
    given, plan, memory = slurm(o)
    assert given == {2: [4, 5, 6]}
    values = plan.reasons[-1].values
    assert dict(zip(values["planned"].tolist(), values["planned_s"].tolist(), strict=True)) == {
        1: 150.0, 3: 180.0,
    }  # fmt: skip
    assert (memory["backfilled_s"], plan.revisit_s) == (100.0, math.inf)
    assert plan.reasons[-1].text == "started 1 of 4 waiting jobs, 2 planned for later"
    soon, plan, later = slurm(o, {**memory, "backfilled_s": 40.1})
    assert (soon, later["backfilled_s"]) == ({}, 40.1)
    assert plan.revisit_s == pytest.approx(100.1)
    assert list(slurm(o, {**memory, "backfilled_s": 40.0})[0]) == [2]
    short = replace(BACKFILL, numbers=BACKFILL.numbers | {"window_s": 50.0})
    planned = slurm(replace(o, queues=short))[1].reasons[-1].values["planned"].tolist()
    assert planned == [1]  # the others not within 50 s
    one = replace(BACKFILL, numbers=BACKFILL.numbers | {"depth": 1.0})
    assert slurm(replace(o, queues=one))[0] == {}


def test_limits_of_a_claim_by_gpu_model() -> None:
    """Under a limit of 2 GPUs the first job of 3 is passed over, and named with the limit."""
    q = replace(
        SLURM, leaf=np.array([[0], [-1]]), parent=np.array([-1]), gpus_max=np.array([2.0]), gpus_kept=np.zeros(1),
        gpus_nominal=np.array([2.0]), jobs_max=np.array([np.inf]), models=np.array([-1]), resource=np.array([-1]),
    )  # fmt: skip
    o = two_nodes(q, gpus_requested=[3, 2, 1], claim=[0, 0, 1])
    given, plan, _ = slurm(o)
    assert set(given) == {1, 2}
    values = plan.reasons[-1].values
    assert (values["held"].tolist(), values["limit"].tolist()) == ([0], [0])
    assert plan.reasons[-1].text == "started 2 of 3 waiting jobs, 1 at a limit"
    made = multifactor._Turn(o, Draft(o), Quota.now(o))
    assert made._nodes(0, 0, 2.0).tolist() == [True, True]  # type: ignore[union-attr]
    assert made._nodes(0, 0, 2.1) is None
    assert made._nodes(1, 2, 99.0).tolist() == [False, True]  # type: ignore[union-attr]


PREEMPTS = replace(
    SLURM,
    spared=np.zeros(2, dtype=np.bool_),
    numbers={"preempt_by": 2.0, "exempt_s": 0.0, "youngest_first": 0.0},
)


def test_who_finds_no_place_stops_as_few_as_it_needs() -> None:
    """Job 0 holds the first node and may be stopped for a job of the other partition, which needs node 1."""
    columns = {
        "gpus_requested": [4, 2, 4],
        "claim": [0, 0, 1],
        "started_s": [0.0, 0.0, np.nan],
        "state": [R, R, W],
    }
    o = two_nodes(PREEMPTS, 4, **columns | {"gpus_held": [4, 2, 0]})
    o.gpus = Gpus.of(
        **o.gpus.as_dict() | {"job": [0] * 4 + [1, 1, -1, -1], "share_free": [0.0] * 6 + [1.0, 1.0]}
    )
    o.nodes = Nodes.of(**o.nodes.as_dict() | {"gpus_free": [0, 2]})
    given, plan, _ = slurm(o)
    assert given == {1: [], 2: [4, 5, 6, 7]}
    assert plan.reasons[-1].values["stopped_for"].tolist() == [2]
    assert plan.reasons[-1].text == "started 1 of 1 waiting jobs, 1 stopped for others"
    assert slurm(replace(o, queues=replace(PREEMPTS, spared=np.array([True, False]))))[0] == {}
    assert slurm(replace(o, queues=replace(PREEMPTS, tier=np.array([2, 2]))))[0] == {}
    part = replace(o, jobs=o.jobs.replaced(gpu_share_requested=np.array([1.0, 1.0, 0.5])))
    assert slurm(part)[0] == {}  # a part of a GPU stops nobody
    free, every = np.array([1, 3]), np.ones(2, dtype=np.bool_)
    assert [_fits(o, 2, free, every, n) for n in (3, 4, 5)] == [True, True, False]
    assert not _fits(o, 2, free, np.array([True, False]), 2)
    dead = replace(o, nodes=Nodes.of(**o.nodes.as_dict() | {"up": [True, False]}))
    assert not _fits(dead, 2, free, every, 2)


def test_a_job_that_is_backfilled_takes_of_each_class_what_nobody_counts_on() -> None:
    classes = np.array([0, 1])

    def started(most: list[int], running: int = 0) -> Any:
        o = two_nodes(gpus_requested=[running or 4, 4], running=running, claim=[-1, -1])
        made = multifactor._Turn(o, Draft(o), Quota.now(o))
        done = made.start(1, np.array(most), classes)
        return made.draft.given[1][0].tolist() if done else done

    assert started([4, 0]) == [0, 1, 2, 3]
    assert started([1, 3]) == [0, 4, 5, 6]
    assert started([3, 2]) == [0, 1, 2, 4], "the emptiest class first"
    assert started([0, 4], 2) == [4, 5, 6, 7]
    assert started([3, 1], 2) is False, "of three only two are there"
    assert started([2, 2], 2) == [2, 3, 4, 5]


def test_a_job_of_unknown_duration_is_planned_to_run_for_ever() -> None:
    """Job 0 ends at 150 s; job 1 of 8 GPUs comes then; job 2 may not begin before it, job 3 of 50 s may."""
    o = two_nodes(BACKFILL, 2, gpus_requested=[2, 8, 3, 3], service_s=[50.0, 30.0, np.nan, 50.0])
    given, plan, _ = slurm(o)
    assert given == {3: [4, 5, 6]}
    values = plan.reasons[-1].values
    assert dict(zip(values["planned"].tolist(), values["planned_s"].tolist(), strict=True)) == {
        1: 150.0, 2: 180.0,
    }  # fmt: skip
    ends_never = two_nodes(BACKFILL, 2, gpus_requested=[2, 8, 3], service_s=[np.nan, 30.0, 50.0])
    given, plan, _ = slurm(ends_never)
    assert given == {2: [4, 5, 6]}
    assert plan.reasons[-1].values["planned"].tolist() == []
    negative = two_nodes(BACKFILL, 2, gpus_requested=[2, 8, 3], service_s=[50.0, -9.0, 51.0])
    assert slurm(negative)[0] == {2: [4, 5, 6]}, "what takes no time is in nobody's way"


def test_nobody_is_looked_at_where_all_ask_for_more_than_is_free() -> None:
    o = two_nodes(BACKFILL, 2, gpus_requested=[2, 8, 7, 6], service_s=[50.0, 30.0, 5.0, 50.0])
    given, plan, _ = slurm(o)
    assert (given, plan.reasons[-1].values["planned"].tolist()) == ({3: [4, 5, 6, 7, 2, 3]}, [1, 2])
    o = two_nodes(BACKFILL, 3, gpus_requested=[3, 8, 7, 6], service_s=[50.0, 30.0, 5.0, 50.0])
    given, plan, _ = slurm(o)
    assert (given, plan.reasons[-1].values["planned"].tolist()) == ({}, [])
