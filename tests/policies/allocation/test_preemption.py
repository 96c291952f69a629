"""Starting jobs in place of others at the borders: who gives way, who is spared, what is left for the next."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation import preemption
from equipoise.policies.allocation.gangs import (
    NO_GRANTS,
    NO_ROWS,
    NO_VALUES,
    SHARED,
    frozen,
    new_failures,
    new_grants,
    request_columns,
    room_columns,
    working,
)
from equipoise.policies.allocation.preemption import patient_bars, remaining_bars, start_with_preemption
from equipoise.policies.kernels.placement import ANY
from equipoise.policies.observation import Gpus, Nodes, Observation, Workers
from tests.policies.stages.test_s4 import cluster

NAN, INF = math.nan, math.inf
Found = tuple[list[int], dict[int, list[int]], bool]


def holds(*each: list[int], **more: Any) -> list[dict[str, Any]]:
    return [{"holds": gpus, **more} for gpus in each]


def waits(*gpus: int) -> list[dict[str, Any]]:
    return [{"gpus_requested": n} for n in gpus]


def found(
    o: Observation, key: list[float], bar: list[float], standing: list[float] | None = None,
    of_running: list[float] | None = None,
) -> Found:  # fmt: skip
    """(who is stopped, GPUs of each that starts, whether more might start)."""
    stopped, (job, offset, gpu, _), more = start_with_preemption(
        o, o.waiting, frozen(np.array(key)), frozen(np.array(standing)) if standing else NO_VALUES, ANY, o.running,
        np.array(bar), np.array(of_running) if of_running else NO_VALUES, o.gpus.job, request_columns(o),
        room_columns(o),
    )  # fmt: skip
    starts = {row: sorted(gpu[offset[k] : offset[k + 1]].tolist()) for k, row in enumerate(job.tolist())}
    return stopped.tolist(), starts, bool(more)


# Of six GPUs job 0 holds two, job 1 one and job 2 three: with bars of 9, 8 and 7 they give way in this order.
HELD, BARS = holds([0, 1], [2], [3, 4, 5]), [9.0, 8.0, 7.0]


@pytest.mark.parametrize(
    ("gpus", "stopped", "taken"),
    [
        (1, [0], [0]), (2, [0], [0, 1]),
        (3, [0, 1], [0, 1, 2]), (4, [0, 2], [0, 1, 3, 4]), (5, [0, 2], [0, 1, 3, 4, 5]),
        (6, [0, 1, 2], [0, 1, 2, 3, 4, 5]), (7, [], []),
    ],
)  # fmt: skip
def test_those_with_the_highest_bars_give_way_and_who_is_not_needed_is_spared(
    gpus: int, stopped: list[int], taken: list[int]
) -> None:
    o = cluster([6], [*HELD, *waits(gpus)])
    assert found(o, [3.0], BARS) == (stopped, {3: taken} if taken else {}, True)


def test_of_those_stopped_in_vain_the_lowest_bars_are_spared_first() -> None:
    o = cluster([6], [*holds([0], [1], [2, 3, 4, 5]), *waits(4)])
    assert found(o, [3.0], BARS)[:2] == ([2], {3: [2, 3, 4, 5]})
    o = cluster([9], [*holds([0, 1], [2, 3], [4], [5, 6, 7]), *waits(7)])  # GPU 8 is free
    assert found(o, [3.0], [9.0, 8.0, 7.5, 7.0])[:2] == ([0, 1, 3], {4: [0, 1, 2, 3, 5, 6, 7]})


@pytest.mark.parametrize(("key", "stopped"), [(6.9, [0, 2]), (7.0, []), (7.5, []), (9.0, []), (9.5, [])])
def test_only_those_with_a_bar_above_the_key_give_way(key: float, stopped: list[int]) -> None:
    o = cluster([6], [*HELD, *waits(4)])
    assert found(o, [key], BARS) == (stopped, {3: [0, 1, 3, 4]} if stopped else {}, key < 9.0)


def test_who_cannot_start_stops_nobody_and_the_next_finds_all_as_it_was() -> None:
    o = cluster([7], [*HELD, *waits(5, 2, 3)])  # GPU 6 is free
    assert found(o, [7.5, 8.5, 1.0], BARS) == ([0, 2], {4: [0, 1], 5: [3, 4, 5]}, True)
    # Job 0 has been stopped for the first of them already.
    o = cluster([6], [*HELD, *waits(2, 2, 1)])
    assert found(o, [8.5, 8.5, 7.5], BARS) == ([0, 1], {3: [0, 1], 5: [2]}, True)


def test_what_is_free_is_taken_before_anybody_gives_way() -> None:
    o = cluster([8], [*HELD, *waits(2, 1)])
    assert found(o, [1.0, 9.5], BARS) == ([], {3: [6, 7]}, False)
    assert found(o, [9.5, 1.0], BARS) == ([0], {3: [6, 7], 4: [0]}, True)
    assert found(o, [9.5, 9.5], BARS) == ([], {3: [6, 7]}, False)
    assert found(cluster([9], [*HELD, *waits(2)]), [9.0], BARS) == ([], {3: [6, 7]}, True)


def test_what_is_left_of_those_that_gave_way_is_for_who_failed_before() -> None:
    """The first may stop nobody; the second stops job 2 of three GPUs, and the third wants what the first did."""
    o = cluster([4], [*holds([0, 1, 2], [3]), *waits(2, 1, 2)])
    assert found(o, [9.5, 1.0, 9.5], [9.0, 0.5]) == ([0], {3: [0], 4: [1, 2]}, False)
    assert found(o, [9.5, 9.5, 9.5], [9.0, 0.5]) == ([], {}, False)


def test_whether_jobs_behind_might_start() -> None:
    assert found(cluster([4], [*holds([0, 1, 2]), *waits(1)]), [5.0], [9.0])[2]
    assert not found(cluster([4], [*holds([0, 1, 2]), *waits(1)]), [9.0], [9.0])[2]
    assert found(cluster([5], [*holds([0, 1, 2]), *waits(1)]), [9.0], [9.0])[2]
    nothing = found(cluster([3], [*holds([0, 1, 2]), *waits(1)]), [9.0], [9.0])
    assert nothing == ([], {}, False)
    part = cluster([1], [{"gpu_share_requested": 0.5}])
    assert found(part, [9.0], []) == ([], {0: [0]}, True)
    none = cluster([3], holds([0]))
    done = start_with_preemption(
        none, none.waiting, NO_VALUES, NO_VALUES, ANY, none.running, np.array([9.0]), NO_VALUES, none.gpus.job,
        request_columns(none), room_columns(none),
    )  # fmt: skip
    assert done[0] is NO_ROWS
    assert done[1] is NO_GRANTS
    assert not done[2]


def test_who_holds_nothing_that_is_up_is_of_no_use() -> None:
    jobs = [*holds([], [3, 4], [0, 1]), *waits(2)]
    o = cluster([3, 2], jobs, up=[True, False])  # GPU 2 is free
    assert found(o, [1.0], [9.0, 8.0, 7.0])[:2] == ([2], {3: [0, 1]})
    assert found(cluster([3, 2], [*jobs, *waits(4)], up=[True, False]), [8.5, 1.0], [9.0, 8.0, 7.0])[:2] == (
        [],
        {},
    )


@pytest.mark.parametrize(
    ("standing", "stopped"), [(5.0, [0, 2]), (4.0, [0, 2]), (3.0, [2]), (2.1, [2]), (2.0, []), (1.0, [])]
)
def test_only_those_of_lower_standing_give_way(standing: float, stopped: list[int]) -> None:
    o = cluster([6], [*HELD, *waits(3)])
    expected = {(0, 2): {3: [3, 4, 5]}, (2,): {3: [3, 4, 5]}, (): {}}
    who, starts, _ = found(o, [3.0], BARS, [standing], [3.0, 7.0, 2.0])
    assert (who, starts) == ([2] if stopped else [], expected[tuple(stopped)])
    four = cluster([6], [*HELD, *waits(4)])
    assert found(four, [3.0], BARS, [standing], [3.0, 7.0, 2.0])[0] == (stopped if len(stopped) > 1 else [])


def test_a_job_of_higher_standing_may_start_where_the_same_demand_failed() -> None:
    o = cluster([6], [*HELD, *waits(2, 2)])
    assert found(o, [3.0, 3.0], BARS, [1.0, 4.0], [3.0, 7.0, 2.0])[:2] == ([0], {4: [0, 1]})
    # Who comes back to its own: those whose bar is not above any key are not looked at.
    assert found(o, [7.5, 8.5], BARS, [9.0, 9.0], [3.0, 7.0, 2.0])[:2] == ([0], {3: [0, 1]})


# -- who gives way ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bar", "space", "chosen", "more"),
    [
        ([5.0, 9.0, 3.0, 9.0, 7.0], 4, [3, 1, 4, 0], False), ([5.0, 9.0, 3.0, 9.0, 7.0], 3, [3, 1, 4], True),
        ([5.0, 9.0, 3.0, 9.0, 7.0], 1, [3], True), ([8.0, 4.0, 5.0], 2, [0, 2], True),
        ([4.0, 4.0, 5.0], 2, [2, 1], True), ([3.0, 2.0, 3.1], 2, [2], False), ([3.0], 2, [], False),
        ([6.0, 7.0, 8.0], 2, [2, 1], True), ([8.0, 7.0, 6.0], 2, [0, 1], True),
    ],
)  # fmt: skip
def test_the_highest_bars_above_the_least_key(
    bar: list[float], space: int, chosen: list[int], more: bool
) -> None:
    places = np.full(space, -7, dtype=np.int64)
    for key in ([3.0, 6.0], [6.0, 3.0], [3.0]):
        n, others = preemption._first_to_go(
            frozen(np.array(bar)), frozen(np.array(key)), places, np.empty(space)
        )
        assert (places[:n].tolist(), bool(others)) == (chosen, more)


def test_positions_by_descending_bar() -> None:
    assert preemption._by_bar(np.array([5.0, 9.0, 2.0, 9.0, 7.0])).tolist() == [3, 1, 4, 0, 2]
    service_s, restart_s = np.array([80.0, 50.0, NAN, 7.0]), np.array([30.0, 20.0, 5.0, NAN])
    assert remaining_bars(np.array([1, 0, 2, 3]), service_s, restart_s).tolist() == [30.0, 50.0, INF, INF]


def sharing() -> Observation:
    """Job 0 holds GPU 0, job 1 a quarter and job 2 half of GPU 1, and job 2 GPU 2; GPU 3 is free."""
    train = {"rigid": False, "workers_max": 4}
    o = cluster([4], [*holds([0], [1], [2], **train), {"gpus_requested": 1}])
    gpus = o.gpus.as_dict() | {"job": [0, SHARED, 2, -1], "share_free": [0.0, 0.25, 0.0, 1.0]}
    nodes = Nodes.of(**o.nodes.as_dict() | {"gpus_free": [1]})
    workers = Workers.of(
        job=[0, 1, 2, 2], index=[0, 0, 0, 1], gpu=[0, 1, 1, 2], node=[0] * 4, gpu_share=[1.0, 0.25, 0.5, 1.0]
    )
    return replace(o, gpus=Gpus.of(**gpus), nodes=nodes, workers=workers)


def test_what_those_that_share_gpus_would_give_up() -> None:
    o = sharing()
    rows, columns = preemption._victims(
        o, np.array([0, 1, 2]), np.array([6.0, 5.0, 8.0]), NO_VALUES, o.gpus.job
    )
    bar, standing, offset, gpu, share, stopped, tentative = columns
    assert (rows.tolist(), bar.tolist(), standing.tolist()) == ([2, 0, 1], [8.0, 6.0, 5.0], [])
    assert (offset.tolist(), gpu.tolist(), share.tolist()) == (
        [0, 2, 3, 4],
        [2, 1, 0, 1],
        [1.0, 0.5, 1.0, 0.25],
    )
    assert (stopped.tolist(), len(tentative)) == ([False] * 3, 3)
    rows, columns = preemption._victims(
        o, np.array([0, 2]), np.array([4.0, 4.0]), np.array([7.0, 9.0]), o.gpus.job
    )
    assert (rows.tolist(), columns[1].tolist(), columns[2].tolist()) == ([2, 0], [9.0, 7.0], [0, 2, 3])
    whole = cluster([4], holds([0, 3], [1]))
    rows, columns = preemption._victims(
        whole, np.array([0, 1]), np.array([4.0, 5.0]), NO_VALUES, whole.gpus.job
    )
    assert (rows.tolist(), columns[2].tolist(), columns[3].tolist()) == ([1, 0], [0, 1, 3], [1, 0, 3])
    assert columns[4].tolist() == [1.0] * 3
    assert preemption._victims(o, NO_ROWS, NO_VALUES, NO_VALUES, o.gpus.job) == (
        NO_ROWS,
        preemption.NO_VICTIMS,
    )
    assert [part.tolist() for part in preemption.NO_VICTIMS] == [[], [], [0], [], [], [], []]


def test_a_shared_gpu_is_free_when_all_that_share_it_give_way() -> None:
    o = sharing()
    o.jobs = o.jobs.replaced(gpus_requested=np.array([1, 1, 1, 3]))
    assert found(o, [1.0], [4.0, 6.0, 8.0])[:2] == ([1, 2], {3: [1, 2, 3]})
    assert found(o, [1.0], [4.0, 0.5, 8.0])[:2] == ([0, 2], {3: [0, 2, 3]})


def part(
    o: Observation, key: list[float], bar: list[float], first: int, some: bool, space: tuple[int, int]
) -> tuple[tuple[int, int, bool, bool], list[int]]:
    """((started, where space ran out, more, too few), GPUs)."""
    grants, n = new_grants(*space), len(o.running)
    _, victims = preemption._victims(o, o.running, np.array(bar), NO_VALUES, o.gpus.job)
    done = preemption._start_with_victims(
        o.waiting, first, frozen(np.array(key)), NO_VALUES, ANY, request_columns(o), working(room_columns(o)),
        victims, some, o.gpus.node, grants, new_failures(),
    )  # fmt: skip
    started, at, more, too_few = done
    assert n == len(victims[5])
    return (int(started), int(at), bool(more), bool(too_few)), grants[2][: grants[1][int(started)]].tolist()


def test_it_stops_where_space_runs_out_and_goes_on_from_there() -> None:
    o = cluster([9], [*holds([0, 1]), *waits(3, 2, 4)])
    key = [1.0, 5.0, 6.0]
    assert part(o, key, [9.0], 0, False, (3, 9)) == ((3, -1, True, False), [2, 3, 4, 5, 6, 0, 1, 7, 8])
    assert part(o, key, [9.0], 0, False, (3, 8)) == ((2, 2, True, False), [2, 3, 4, 5, 6])
    assert part(o, key, [9.0], 0, False, (3, 5)) == ((2, 2, True, False), [2, 3, 4, 5, 6])
    assert part(o, key, [9.0], 0, False, (3, 4)) == ((1, 1, True, False), [2, 3, 4])
    assert part(o, key, [9.0], 0, False, (2, 9)) == ((2, 2, True, False), [2, 3, 4, 5, 6])
    assert part(o, key, [9.0], 1, False, (2, 9)) == ((2, -1, True, False), [2, 3, 4, 5, 6, 7])


def test_where_some_are_not_enough_all_are_looked_at() -> None:
    """Two GPUs are held by those that are looked at; no other has a bar above the lowest of these."""
    o = cluster([5], [*holds([0], [1]), *waits(6)])
    assert part(o, [3.0], [9.0, 4.0], 0, True, (1, 9))[0] == (0, -1, True, True)
    assert part(o, [4.0], [9.0, 4.0], 0, True, (1, 9))[0] == (0, -1, True, False)
    six = cluster([5], [*holds([0], [1], [2, 3]), *waits(6)])
    assert part(six, [3.0], [9.0, 5.0, 4.0], 0, False, (1, 9))[0] == (0, -1, True, False)


def test_more_gpus_may_be_taken_than_there_was_space_for_at_first() -> None:
    o = cluster([90], [*holds(list(range(88))), *waits(89)])  # two are free; at first there is space for 66
    assert found(o, [1.0], [9.0]) == ([0], {1: list(range(89))}, True)


# -- how soon a job may be stopped again -----------------------------------------------------------------------


def test_a_job_that_has_worked_for_long_enough_since_its_start_may_be_stopped() -> None:
    """At 1000 s: job 0 began at 700 s, after 30 s of restart worked 270 s at 2 GPUs' width: 540 GPU-s of 900."""
    run = {"service_s": 800.0, "restart_s": 30.0, "started_s": 700.0, "attained_gpu_s": 900.0}
    jobs = [{**run, "holds": [0, 1, 2, 3], "gpu_share_requested": 0.5}]
    jobs.append(
        {**run, "holds": [4, 5], "gpu_share_requested": 3.0, "restart_s": -7.0, "attained_gpu_s": 600.0}
    )
    jobs.append({**run, "holds": [6], "gpu_share_requested": 1.0, "started_s": NAN, "restart_s": NAN})
    jobs.append({**run, "holds": [7], "gpu_share_requested": 1.0, "started_s": 1200.0, "service_s": NAN})

    def bars(run_s: float, growth: float) -> list[float]:
        o = cluster([8], jobs)
        return patient_bars(o, o.running, 0.5, 2.0, run_s, growth).tolist()

    # Job 1 has worked all its 600 GPU-s since its start, 2 since ever, 3 not yet.
    assert bars(270.0, 1.5) == [340.0, 400.0, 400.0, -INF]
    assert bars(0.5, 0.0) == [340.0, 400.0, 400.0, -INF]
    assert bars(270.1, 0.0) == [-INF, 400.0, 400.0, -INF]
    assert bars(300.0, 0.0) == [-INF, 400.0, 400.0, -INF]
    assert bars(300.1, 0.0) == [-INF, -INF, 400.0, -INF]
    assert bars(0.0, 1.501) == [-INF, 400.0, 400.0, -INF]
    assert bars(0.0, 0.0) == [340.0, 400.0, 400.0, INF]
