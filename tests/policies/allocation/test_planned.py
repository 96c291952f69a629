"""Whole schedules of few jobs: the options of each job, the GPUs there are, and what begins at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation import planned
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.elastic import scaling_columns, table_columns
from equipoise.policies.allocation.gangs import NO_ROWS
from equipoise.policies.allocation.schedules import Busy, Option, Schedule
from equipoise.policies.observation import Ints, Observation, Speeds
from tests.policies.allocation.test_borders import ranks, state
from tests.policies.stages.test_s4 import cluster

NAN, INF = math.nan, math.inf


def listed(*rows: tuple[int, int, int, float]) -> Speeds:
    """(job, model, GPUs, samples/s) without exchanges."""
    job, model, gpus, rate = zip(*rows, strict=True)
    return Speeds.of(job=job, gpu_model=model, gpus=gpus, samples_per_s=rate, exchange_s=[0.0] * len(rows))


def drafted(o: Observation) -> Draft:
    return Draft(o, np.ones(len(o.nodes)), order=np.arange(len(o.nodes)))


def both(o: Observation, model: list[int] | None = None) -> tuple[Any, Any, Any]:
    """(nodes, scaling, table)."""
    nodes = state(o, model=model)
    return nodes, scaling_columns(o, o.jobs.sync_interval), table_columns(o, nodes)


# -- options ---------------------------------------------------------------------------------------------------


def options(o: Observation, offset: list[int], able: Ints, patient: list[int]) -> list[list[Option]]:
    nodes, scaling, table = both(o)
    rows, model = np.arange(len(o.jobs)), np.zeros(len(offset) - 1, dtype=np.int64)
    return planned._options(
        Draft(o),
        nodes,
        rows,
        np.array(offset),
        model,
        able,
        np.array(patient, dtype=np.int64),
        scaling,
        table,
    )


def test_a_job_of_fixed_size_stays_or_moves_at_the_cost_of_a_restart() -> None:
    """Its 120 s take 60 s where it runs and 40 s on the other model; the second job is not listed there."""
    jobs = [
        {"holds": [0, 1], "gpus_requested": 2, "service_s": 120.0},
        {"gpus_requested": 3, "service_s": NAN},
    ]
    jobs = [{"gpus_per_worker": 2, **job} for job in jobs]
    speeds = listed((0, 0, 2, 2.0), (0, 1, 2, 3.0), (1, 0, 3, 1.5))
    o = cluster([4, 4], jobs, models=[0, 1], speeds=speeds)
    waits = [Option(3, 3, 0, 2400.0), Option(3, 3, 1, INF)]
    stays, moves = Option(2, 2, 0, 60.0, True, True), Option(2, 2, 1, 70.0, False, True)
    assert options(o, [0, 2], NO_ROWS, []) == [[stays, moves], waits]
    stays, moves = Option(2, 2, 0, 60.0, True), Option(2, 2, 1, 70.0)
    assert options(o, [0, 2], NO_ROWS, [0]) == [[stays, moves, Option(2, 2, 0, 90.0)], waits]
    free = cluster([4, 4], [{**jobs[0], "restart_s": NAN}, jobs[1]], models=[0, 1], speeds=speeds)
    assert options(free, [0, 2], NO_ROWS, [0])[0] == [
        Option(2, 2, 1, 40.0), Option(2, 2, 0, 60.0, True), Option(2, 2, 0, 60.0)
    ]  # fmt: skip


ELASTIC = {
    "rigid": False, "gpus_per_worker": 2, "workers_min": 1, "workers_max": 3, "gpus_requested": 4,
    "service_s": 100.0,
}  # fmt: skip
RATES = [(0, 0, 2, 64 / 3.0), (0, 0, 4, 32.0), (0, 0, 6, 64 / 1.5)]  # steps of 3, 2 and 1.5 s


def test_a_job_that_may_change_its_size_has_each_size() -> None:
    """100 s with the two workers that it asks for, 150 s with one, 75 s with three; a change takes 30 s."""
    o = cluster([8], [{**ELASTIC, "holds": [0, 1]}], speeds=listed(*RATES))

    def found(able: list[int], patient: list[int]) -> list[Any]:
        own = options(o, [0, 2], np.array(able, dtype=np.int64), patient)[0]
        return [(k.workers, k.gpus, pytest.approx(k.time_s), k.stays, k.at_once) for k in own]

    one = (1, 2, pytest.approx(150.0), True, True)
    assert found([0], []) == [(3, 6, 105.0, False, True), (2, 4, 130.0, False, True), one]
    assert found([], []) == [one]
    assert found([], [0]) == [(1, 2, 150.0, True, False), (1, 2, 180.0, False, False)]
    waiting = cluster([8], [ELASTIC], speeds=listed(*RATES))
    own = options(waiting, [0], NO_ROWS, [])[0]
    assert [(k.workers, k.gpus, pytest.approx(k.time_s)) for k in own] == [
        (3, 6, 75.0),
        (2, 4, 100.0),
        (1, 2, 150.0),
    ]
    assert not any(k.stays or k.at_once for k in own)
    fixed = cluster([8], [{**ELASTIC, "workers_min": 2, "workers_max": 2}], speeds=listed(*RATES))
    assert [k.workers for k in options(fixed, [0], NO_ROWS, [])[0]] == [2]


def test_running_jobs_keep_the_sizes_that_they_have() -> None:
    jobs = [
        {**ELASTIC, "holds": [0, 1, 2, 3, 4, 5]},
        {**ELASTIC, "holds": [6, 7]},
        {**ELASTIC, "holds": [8, 9, 10, 11]},
    ]
    rates = [(job, model, gpus, rate) for job in range(3) for _, model, gpus, rate in RATES]
    o = cluster([12], jobs, speeds=listed(*rates))
    found = options(o, [0, 6, 8, 12], NO_ROWS, [])
    assert [[(k.workers, k.gpus, pytest.approx(k.time_s)) for k in own] for own in found] == [
        [(3, 6, 75.0)], [(1, 2, 150.0)], [(2, 4, 100.0)]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("here", "model", "times_s"), [(0, 1, [220.0, 230.0]), (1, 0, [212.0, 174.0]), (1, 1, [148.0, 140.0])]
)
def test_what_is_measured_where_a_job_runs_counts_elsewhere(
    here: int, model: int, times_s: list[float]
) -> None:
    """Exchanges of its three workers take 0.6 s in place of 0.2 or 0.5 s; the two it asks for take 1 + 0.4 s."""
    speeds = Speeds.of(
        job=[0] * 4, gpu_model=[0, 0, 1, 1], gpus=[2, 3, 2, 3], samples_per_s=[32.0, 64 / 1.5, 64.0, 80.0],
        exchange_s=[0.1, 0.2, 0.4, 0.5],
    )  # fmt: skip
    job = {"rigid": False, "gpus_per_worker": 1, "workers_max": 3, "gpus_requested": 2, "exchange_s": 0.6}
    o = cluster([4, 4], [job], models=[0, 1], speeds=speeds)
    nodes, scaling, table = both(o)
    nodes = replace(nodes, model_speed=np.array([NAN, 2.0]))
    found = planned._times_s(Draft(o), nodes, 0, 3, here, [2, 3], model, 140.0, scaling, table)
    assert found.tolist() == pytest.approx(times_s)


# -- what there is ---------------------------------------------------------------------------------------------


def test_gpus_that_others_hold_and_those_that_are_handed_out() -> None:
    """Job 0 is planned; job 1 holds GPUs of both models until an unknown time, job 2 two of the second for 70 s."""
    jobs = [{"holds": [0, 1, 2]}, {"holds": [3, 6], "service_s": NAN}, {"holds": [7, 8], "service_s": 70.0}]
    o = cluster([6, 5], [*jobs, {}], models=[0, 1])
    nodes, scaling, table = both(o, [0, 1])
    busy, capacity = planned._room(Draft(o), nodes, np.array([0]), scaling, table)
    assert busy == [Busy(INF, 1, 0), Busy(INF, 1, 1), Busy(70.0, 2, 1)]
    assert capacity == [6, 5]
    draft = Draft(o)
    draft.away[0] = True
    assert planned._room(draft, nodes, np.array([0]), scaling, table)[1] == [6, 5]
    alone = cluster([6, 5], jobs, models=[0, 1])
    draft = Draft(alone)
    draft.away[0] = True  # two of its GPUs are free, onto which nobody may grow
    assert planned._room(draft, nodes, np.array([0]), scaling, table)[1] == [4, 5]


# -- what begins -----------------------------------------------------------------------------------------------


def carried(
    o: Observation,
    rows: list[int],
    picked: list[Option],
    begin_s: list[float],
    model: list[int] | None = None,
) -> tuple[dict[int, list[int]], list[int]]:
    """({job: GPUs}, who is stopped); the first of the rows run."""
    draft, held = drafted(o), [np.flatnonzero(o.gpus.job == row) for row in rows if row in o.running]
    offset, gpu = np.cumsum([0, *map(len, held)]), np.concatenate([NO_ROWS, *held])
    planned._carry_out(draft, state(o, model=model), np.array(rows), offset, gpu, picked, begin_s)
    return {row: gpus.tolist() for row, (gpus, _) in draft.given.items()}, draft.stopped


def test_what_begins_now_is_booked_and_what_waits_is_stopped() -> None:
    jobs = [{"holds": [0, 1, 2, 3]}, {"holds": [4]}, {"holds": [6, 7]}, {}, {}]
    o = cluster([6, 4], jobs, models=[0, 1])
    picked = [
        Option(2, 2, 0, 9.0),
        Option(3, 3, 0, 9.0),
        Option(2, 2, 1, 9.0),
        Option(3, 3, 1, 9.0),
        Option(1, 1, 1, 9.0),
    ]
    given, stopped = carried(o, [0, 1, 2, 3, 4], picked, [0.0, 0.0, 7.0, 0.0, 5.0], [0, 1])
    assert (given, stopped) == ({0: [0, 1], 1: [4, 2, 3], 3: [6, 7, 8]}, [2])
    same = Option(4, 4, 0, 9.0)
    assert carried(o, [0], [same], [0.0], [0, 1]) == ({0: [0, 1, 2, 3]}, [])
    stays = Option(4, 4, 0, 9.0, stays=True)
    assert carried(o, [0], [stays], [0.0], [0, 1]) == ({}, [])


def test_a_job_that_moves_gives_all_back_and_waits_where_there_is_no_room() -> None:
    jobs = [{"holds": [0, 1, 2]}, {"holds": [4]}, {}]
    o = cluster([4, 4], jobs, models=[0, 1])
    there = Option(3, 3, 1, 9.0)
    assert carried(o, [0, 2], [there, Option(4, 4, 0, 9.0)], [0.0, 0.0], [0, 1]) == (
        {0: [5, 6, 7], 2: [0, 1, 2, 3]}, []
    )  # fmt: skip
    large = Option(4, 4, 1, 9.0)  # three are free there
    assert carried(o, [0, 2], [large, Option(2, 2, 0, 9.0)], [0.0, 0.0], [0, 1]) == ({2: [0, 1]}, [0])
    assert carried(o, [0, 2], [there, Option(2, 2, 0, 9.0)], [4.0, 0.0], [0, 1]) == ({2: [0, 1]}, [0])
    assert carried(o, [2], [large], [0.0], [0, 1]) == ({}, [])
    grown = Option(5, 5, 0, 9.0)  # one is free beside its three
    assert carried(o, [0], [grown], [0.0], [0, 1]) == ({}, [])


def test_running_jobs_come_first_and_of_them_those_that_grow_least() -> None:
    o = cluster([6], [{"holds": [0]}, {"holds": [1, 2]}, {}, {}])  # three are free
    four, three = Option(4, 4, 0, 9.0), Option(3, 3, 0, 9.0)
    assert carried(o, [0, 1], [four, three], [0.0, 0.0]) == ({1: [1, 2, 3]}, [])
    assert carried(o, [0, 2], [four, Option(1, 1, 0, 9.0)], [0.0, 0.0]) == ({0: [0, 3, 4, 5]}, [])
    last = [four, Option(5, 5, 0, 9.0), Option(1, 1, 0, 9.0)]
    assert carried(o, [0, 2, 3], last, [0.0, 0.0, 0.0]) == ({0: [0, 3, 4, 5]}, [])
    assert carried(o, [2, 3], [three, Option(2, 2, 0, 9.0)], [0.0, 0.0]) == ({3: [3, 4]}, [])


# -- the plan --------------------------------------------------------------------------------------------------


def plan(
    o: Observation, able: list[int], patient: list[int], margin: float, draft: Draft | None = None
) -> tuple[Schedule, Draft]:
    nodes, scaling, table = both(o)
    draft = draft or drafted(o)
    ranking = ranks(o, [1.0] * len(o.running), [1.0] * len(o.waiting))
    of = [np.array(rows, dtype=np.int64) for rows in (able, patient)]
    return planned.plan_jobs(draft, nodes, ranking, scaling, table, *of, margin), draft


@pytest.mark.parametrize(("margin", "grows"), [(0.49, True), (0.5, False), (0.6, False), (0.0, True)])
def test_running_jobs_change_only_where_that_saves_the_margin(margin: float, grows: bool) -> None:
    """150 s with one worker and 75 s with three."""
    job = {**ELASTIC, "holds": [0, 1], "restart_s": 0.0, "gpu_share_requested": 1.0}
    o = cluster([8], [job], speeds=listed((0, 0, 2, 16.0), (0, 0, 4, 24.0), (0, 0, 6, 32.0)))
    best, draft = plan(o, [0], [], margin)
    assert best.cost == pytest.approx(75.0 if grows else 150.0)
    assert {row: gpu.tolist() for row, (gpu, _) in draft.given.items()} == (
        {0: [0, 1, 2, 3, 4, 5]} if grows else {}
    )
    assert draft.touched(np.array([0])).tolist() == [True]


def test_there_are_too_many_jobs_or_none() -> None:
    run = {"gpu_share_requested": 1.0, "service_s": 50.0}
    six, seven = (cluster([9], [{**run, "holds": [0]}, *([run] * n)]) for n in (5, 6))
    best, draft = plan(six, [], [0], 0.0)
    assert best.begin_s == (0.0,) * 6
    assert sorted(draft.given) == [1, 2, 3, 4, 5]
    assert draft.touched(np.arange(6)).tolist() == [True] * 6
    with pytest.raises(TimeoutError, match="more than 6 jobs"):
        plan(seven, [], [0], 0.0)
    assert len(plan(seven, [], [], 0.0)[0].chosen) == 6  # who may not change does not count
    half = cluster(
        [9], [{**run, "holds": [0], "gpu_share_requested": 0.5}, {**run, "gpu_share_requested": 0.5}]
    )
    with pytest.raises(ValueError, match="no job may change or start"):
        plan(half, [], [0], 0.0)
    with pytest.raises(ValueError, match="no job may change or start"):
        plan(cluster([9], [{**run, "holds": [0]}]), [], [], 0.0)
    left = drafted(cluster([9], [{**run, "holds": [0]}]))
    left.leave(np.array([0]))
    with pytest.raises(ValueError, match="no job may change or start"):
        plan(left.observation, [], [0], 0.0, left)


def test_the_more_important_job_comes_first() -> None:
    run = {"gpu_share_requested": 1.0, "gpus_requested": 2}
    jobs = [{**run, "service_s": 40.0, "priority": NAN}, {**run, "service_s": 60.0, "priority": 1.6}]
    best, draft = plan(cluster([3], jobs), [], [], 0.0)
    assert (best.begin_s, best.cost) == ((60.0, 0.0), pytest.approx(100.0 + 96.0))
    assert sorted(draft.given) == [1]
    assert draft.touched(np.arange(2)).tolist() == [True, True]


def test_who_is_on_two_models_or_on_a_node_that_is_down_keeps_what_it_has() -> None:
    run = {"gpu_share_requested": 1.0, "service_s": 50.0}
    jobs = [{**run, "holds": [0, 3]}, {**run, "holds": [1]}, {**run, "holds": [6]}]
    o = cluster([3, 3, 2], jobs, models=[0, 1, 0], up=[True, True, False])
    nodes, scaling, table = both(o, [0, 1, 0])
    draft = drafted(o)
    best = planned.plan_jobs(
        draft, nodes, ranks(o, [1.0] * 3, []), scaling, table, NO_ROWS, np.array([0, 1, 2]), 0.0
    )
    assert best.chosen == (0,)
    assert draft.touched(np.arange(3)).tolist() == [False, True, False]
