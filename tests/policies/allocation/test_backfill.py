"""EASY backfill at its borders: when the head gets its turn, and who may start before it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation import backfill as module
from equipoise.policies.allocation.backfill import backfill
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.gangs import (
    NO_GRANTS,
    SHARED,
    frozen,
    new_failures,
    new_grants,
    request_columns,
    room_columns,
    working,
)
from equipoise.policies.kernels.placement import ANY
from equipoise.policies.observation import Gpus, Nodes, Observation
from tests.policies.stages.test_s4 import cluster

NAN, INF = math.nan, math.inf
NOW_S = 1000.0


def runs(gpus: list[int], left_s: float) -> dict[str, Any]:
    return {"holds": gpus, "service_s": left_s}


def waits(*gpus: int) -> list[dict[str, Any]]:
    return [{"gpus_requested": n} for n in gpus]


def filled(o: Observation, takes_s: list[float]) -> tuple[dict[int, list[int]], float]:
    """(GPUs of each waiting job that starts, by its place in the queue; when the first of them gets its turn).

    takes_s: of those behind the first.
    """
    every = np.full(len(o.jobs), NAN)
    every[o.waiting[1:]] = takes_s
    grants, reserved_s = backfill(
        o,
        frozen(o.waiting),
        frozen(every),
        ANY,
        o.running,
        Draft(o).holder,
        request_columns(o),
        room_columns(o),
    )
    job, offset, gpu, _ = grants
    places = np.searchsorted(o.waiting, job).tolist()
    return {k: gpu[offset[i] : offset[i + 1]].tolist() for i, k in enumerate(places)}, reserved_s


# Of 9 GPUs two are free now, four in 100 s, seven in 250 s, and all in 400 s.
STEPS = [runs([0, 1], 100.0), runs([2, 3, 4], 250.0), runs([5, 6], 400.0)]


@pytest.mark.parametrize(
    ("wanted", "reserved_s"), [(3, 1100.0), (4, 1100.0), (5, 1250.0), (7, 1250.0), (8, 1400.0), (9, 1400.0)]
)
def test_the_first_gets_its_turn_when_enough_have_ended(wanted: int, reserved_s: float) -> None:
    o = cluster([9], [*STEPS, *waits(wanted, 2)])
    assert filled(o, [reserved_s - NOW_S]) == ({1: [7, 8]}, reserved_s)  # ends just then
    late = reserved_s - NOW_S + 1e-6
    assert filled(o, [late]) == ({1: [7, 8]} if wanted == 5 else {}, reserved_s)  # two more than it needs
    one = cluster([9], [*STEPS, *waits(wanted, 1)])
    assert filled(one, [late]) == ({1: [7]} if wanted in (3, 5, 8) else {}, reserved_s)
    assert filled(one, [NAN]) == filled(one, [late])  # it might last as long


def test_what_is_too_large_for_all_gpus_keeps_nothing_free() -> None:
    found, reserved_s = filled(cluster([9], [*STEPS, *waits(10, 2)]), [1e9])
    assert found == {1: [7, 8]}
    assert math.isnan(reserved_s)


@pytest.mark.parametrize(("after_s", "same"), [(0.0, True), (1.0e-9, True), (1.2e-9, False), (3.0, False)])
def test_all_that_end_at_the_same_time_count(after_s: float, same: bool) -> None:
    """The first needs the four of job 0; those of job 1 as well, if they are free then, last for the other."""
    o = cluster([7], [runs([0, 1], 100.0), runs([2, 3, 4], 100.0 + after_s), *waits(4, 2)])
    assert filled(o, [5000.0]) == ({1: [5, 6]} if same else {}, 1100.0)


def test_times_are_the_same_as_the_first_of_them_not_as_each_other() -> None:
    jobs = [runs([0], 100.0), runs([1], 100.0 + 0.9e-9), runs([2], 100.0 + 1.8e-9)]
    assert filled(cluster([5], [*jobs, *waits(3, 1)]), [5000.0]) == ({1: [3]}, 1100.0)
    assert filled(cluster([5], [*jobs, *waits(3, 2)]), [5000.0]) == ({}, 1100.0)


def test_what_is_overdue_ends_now_and_what_is_unknown_last() -> None:
    jobs = [runs([0, 1, 2], NAN), runs([3], -50.0), runs([4], 70.0)]
    o = [cluster([6], [*jobs, *waits(wanted, 1)]) for wanted in (2, 3, 4)]
    assert filled(o[0], [0.5]) == ({}, 1000.0)
    assert filled(o[0], [0.0]) == ({1: [5]}, 1000.0)
    assert filled(o[0], [-7.0]) == ({1: [5]}, 1000.0)
    assert filled(o[1], [70.0]) == ({1: [5]}, 1070.0)
    assert filled(o[2], [9e9]) == ({1: [5]}, INF)
    assert filled(cluster([6], [*jobs, *waits(4, 1, 1)]), [INF, NAN]) == ({1: [5]}, INF)
    soon = cluster([3], [runs([0, 1], 0.5), *waits(3, 1)])
    assert filled(soon, [0.25]) == ({1: [2]}, 1000.5)


def shared(o: Observation, *gpus: int) -> Observation:
    """The same with some GPUs shared, and nothing of them left."""
    job, free = o.gpus.job.copy(), o.gpus.share_free.copy()
    job[list(gpus)], free[list(gpus)] = SHARED, 0.0
    count = np.bincount(o.gpus.node, free == 1.0, len(o.nodes))
    columns = o.gpus.as_dict() | {"job": job, "share_free": free}
    return replace(o, gpus=Gpus.of(**columns), nodes=Nodes.of(**o.nodes.as_dict() | {"gpus_free": count}))


def test_shared_gpus_come_free_after_all_others() -> None:
    """GPUs 1 and 4 are shared by jobs 1 and 2; node 1, with GPUs 3 and 4, is down. The last ends in 300 s."""
    jobs = [runs([0], 30.0), runs([], 300.0), runs([], 200.0)]
    o = {n: shared(cluster([3, 2], [*jobs, *waits(n, 1)], up=[True, False]), 1, 4) for n in (2, 3, 4)}
    assert filled(o[2], [30.0]) == ({1: [2]}, 1030.0)
    assert filled(o[2], [300.0]) == ({}, 1030.0)
    assert filled(o[3], [300.0]) == ({1: [2]}, 1300.0)
    assert filled(o[3], [300.5]) == ({}, 1300.0)
    assert math.isnan(filled(o[4], [300.0])[1])
    alone = shared(cluster([3], waits(3, 1)), 0, 2)
    assert filled(alone, [0.0]) == ({1: [1]}, 1000.0)  # nobody is known to run
    assert filled(alone, [0.5]) == ({}, 1000.0)


def test_who_ends_late_starts_while_the_first_still_fits() -> None:
    """Eight are free in 100 s, of which the first needs five: three may last, first come first served."""
    eight = cluster([8], [runs([0, 1, 2, 3], 100.0), *waits(5, 4, 2, 2, 1, 1)])
    found, reserved_s = filled(eight, [900.0, 900.0, 900.0, 900.0, 900.0])
    assert reserved_s == 1100.0
    assert found == {2: [4, 5], 4: [6]}  # the four of one would leave four, three others of two one too few
    # What is refused for its length may start when it is short.
    again, _ = filled(eight, [900.0, 900.0, 100.0, 900.0, 100.0])
    assert again == {2: [4, 5], 3: [6, 7]}
    short, _ = filled(eight, [900.0, 100.0, 900.0, 900.0, 900.0])
    assert short == {2: [4, 5], 3: [6, 7]}


def test_nobody_starts_on_what_is_not_free() -> None:
    o = cluster([6], [runs([0, 1, 2], 100.0), *waits(4, 4, 3, 1)])
    assert filled(o, [1.0, 1.0, 1.0]) == ({2: [3, 4, 5]}, 1100.0)
    full = cluster([3], [runs([0, 1, 2], 100.0), *waits(2, 1)])
    found, reserved_s = filled(full, [1.0])
    assert found == {}
    assert math.isnan(reserved_s)  # it was not even looked for


def test_nobody_is_behind_the_only_one() -> None:
    o = cluster([3], [runs([0, 1], 100.0), *waits(2)])
    one = backfill(
        o, frozen(o.waiting), o.jobs.service_s, ANY, o.running, Draft(o).holder, request_columns(o), room_columns(o)
    )  # fmt: skip
    assert one[0] is NO_GRANTS
    assert math.isnan(one[1])


def test_several_share_the_gpu_that_the_first_of_them_took() -> None:
    jobs = [
        runs([0, 1], 100.0),
        *waits(3),
        *({"gpu_share_requested": share} for share in (0.5, 0.25, 0.5, 0.25)),
    ]
    jobs = [{"gpu_share_requested": 1.0, **job} for job in jobs]
    o = cluster([3], jobs)
    assert filled(o, [9.0, 9.0, 9.0, 9.0]) == ({1: [2], 2: [2], 4: [2]}, 1100.0)
    assert filled(o, [9.0, 900.0, 9.0, 9.0]) == ({1: [2], 3: [2]}, 1100.0)


def partly(o: Observation, gpu: int, free: float) -> Observation:
    """The same with one GPU shared, and so much of it left."""
    o = shared(o, gpu)
    room = o.gpus.share_free.copy()
    room[gpu] = free
    return replace(o, gpus=Gpus.of(**o.gpus.as_dict() | {"share_free": room}))


def test_what_is_left_of_a_shared_gpu_is_used_where_no_other_is_free() -> None:
    jobs = [runs([0, 1], 100.0), *waits(3), {"gpu_share_requested": 0.5}, {"gpu_share_requested": 0.25}]
    jobs = [{"gpu_share_requested": 1.0, "gpus_requested": 1, **job} for job in jobs]
    assert filled(partly(cluster([3], jobs), 2, 0.25), [9.0, 9.0]) == ({2: [2]}, 1100.0)


def test_a_gang_of_shares_gets_its_turn_when_one_gpu_beside_what_is_left_is_free() -> None:
    jobs = [runs([0], 100.0), runs([1], 300.0), {"gpu_share_requested": 0.5, "gpus_requested": 2}, *waits(1)]
    jobs = [{"gpu_share_requested": 1.0, "gpus_requested": 1, **job} for job in jobs]
    o = partly(cluster([4], jobs), 2, 0.75)
    held = o.gpus.job.copy()
    held[3] = 1
    o = replace(o, gpus=Gpus.of(**o.gpus.as_dict() | {"job": held, "share_free": [0.0, 0.0, 0.75, 0.0]}))
    o = replace(o, nodes=Nodes.of(**o.nodes.as_dict() | {"gpus_free": [0]}))
    assert filled(o, [9.0]) == ({}, 1100.0)


def part(
    o: Observation, first: int, reserved_s: float, takes_s: float, jobs: int, gpus: int
) -> tuple[tuple[int, int, float], list[int], list[int], int]:
    """((started, where space ran out, reserved), jobs, GPUs, most that a node was seen to have left)."""
    room, later = working(room_columns(o)), working(room_columns(o))
    running, spare = module._by_end(o, o.running, Draft(o).holder), np.empty(len(o.gpus), dtype=np.int64)
    grants = new_grants(jobs, gpus)
    done = module._fill(
        frozen(o.waiting), first, reserved_s, ANY, NOW_S, frozen(np.full(len(o.jobs), takes_s)),
        request_columns(o), room, later, running, spare, grants, new_failures(),
    )  # fmt: skip
    n = int(done[0])
    return done, grants[0][:n].tolist(), grants[2][: grants[1][n]].tolist(), int(room[7][2, 0])


def test_it_stops_where_space_for_answers_runs_out_and_goes_on_from_there() -> None:
    """Waiting are jobs 1 (the first, of 6), 2 of 3, 3 of 2, 4 of 1 and 5 of 4 GPUs."""
    o = cluster([12], [runs([0, 1], 100.0), *waits(11, 3, 2, 1, 4)])
    assert part(o, 0, NAN, 9.0, 4, 10)[:3] == (
        (4, -1, 1100.0),
        [2, 3, 4, 5],
        [2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    )
    assert part(o, 0, NAN, 9.0, 4, 9)[:3] == ((3, 4, 1100.0), [2, 3, 4], [2, 3, 4, 5, 6, 7])
    assert part(o, 0, NAN, 9.0, 4, 5)[:3] == ((2, 3, 1100.0), [2, 3], [2, 3, 4, 5, 6])
    assert part(o, 0, NAN, 9.0, 4, 4)[:3] == ((1, 2, 1100.0), [2], [2, 3, 4])
    assert part(o, 0, NAN, 9.0, 2, 10)[:3] == ((2, 3, 1100.0), [2, 3], [2, 3, 4, 5, 6])
    # From there on by the time that was reserved before.
    assert part(o, 3, 1234.0, 234.0, 4, 10)[:3] == ((2, -1, 1234.0), [4, 5], [2, 3, 4, 5, 6])
    assert part(o, 1, 1234.0, 9.0, 1, 10)[:3] == ((1, 2, 1234.0), [2], [2, 3, 4])


@pytest.mark.parametrize(("jobs", "most"), [(9, 60), (15, 60), (16, 44), (31, 44), (32, 28), (40, 28)])
def test_what_nodes_have_left_is_looked_at_anew_after_each_sixteen(jobs: int, most: int) -> None:
    o = cluster([63], [runs([0, 1, 2], 100.0), *waits(62, *([1] * jobs))])
    assert part(o, 0, NAN, 9.0, 50, 60)[3] == most
