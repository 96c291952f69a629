"""The integer programme of sizes: what its solver prints stays away from results."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import equipoise
from equipoise.policies.allocation import planned, sizes
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.elastic import _free_by, elastic_columns, scaling_columns, table_columns
from equipoise.policies.allocation.gangs import NO_ROWS
from equipoise.policies.allocation.ranking import node_state
from equipoise.policies.allocation.schedules import Busy, Option, best_schedule
from equipoise.policies.allocation.sizes import Choices, best_sizes
from equipoise.policies.observation import JobState, Nodes, Speeds, Stores
from equipoise.policies.registry import make_stage
from tests.policies.allocation.test_borders import ranks, state
from tests.policies.observations import Cluster
from tests.policies.stages.test_s4 import cluster


def test_what_the_solver_prints_does_not_reach_standard_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    c, solve = ctypes.CDLL(None), scipy.optimize.milp

    def chatty(*args: Any, **more: Any) -> Any:
        c.puts(b"a line of the solver")
        return solve(*args, **more)

    monkeypatch.setattr(scipy.optimize, "milp", chatty)
    one = np.ones(2, dtype=np.int64)
    rows, room = np.array([0, 1]), np.array([2])
    chosen = best_sizes(one, 0 * one, np.array([1.0, 2.0]), rows, np.zeros(2, dtype=np.bool_), room, 9, 10.0)
    c.puts(b"a line of ours")
    c.fflush(None)
    assert chosen.tolist() == [True, True]
    assert capfd.readouterr().out == "a line of ours\n"


@pytest.mark.parametrize(
    ("policy", "told"), [("s4(mode=optimal,time_limit_s=1e-9)", 1), ("s4(mode=optimal)", 0)]
)
def test_a_run_in_which_the_clock_decided_says_so(policy: str, told: int) -> None:
    kinds = [{"name": name, "gpus": 4, "accelerator": name} for name in ("a100_sxm_40gb", "t4")]
    job = {"gpus": 1, "duration": "10 min", "count": 12, "spacing": 1.0}
    found = equipoise.run(
        {"schema_version": 1, "name": "kinds", "cluster": {"nodes": kinds}, "workload": {"jobs": [job]}},
        policy=policy,
    )
    lines = [note for note in found.notes if note.startswith("not reproducible: ")]
    assert len(lines) == told
    assert all("decisions reached a limit of wall time (time_limit_s)" in line for line in lines)


@pytest.mark.parametrize("seed", range(20))
def test_when_so_many_gpus_are_free_is_what_ends_one_after_another(seed: int) -> None:
    """Against a plain walk over the GPUs: free now, freed by their job, or never (shared, down, shunned)."""
    rng = np.random.default_rng(seed)
    cluster = Cluster(rng, [4, 2, 3], [True, bool(seed % 2), True])
    for gpus in (1, 2, 2):
        cluster.add(JobState.RUNNING, rigid=True, gpus=gpus, share=1.0, per_worker=1, elastic=False)
    observation = cluster.observe()
    shunned = rng.random(len(observation.gpus)) < 0.2 if seed % 3 else None
    draft = Draft(observation, shunned=shunned)
    left_s = rng.uniform(1.0, 100.0, len(observation.jobs))
    ends = []
    for gpu, (job, node) in enumerate(zip(observation.gpus.job, observation.gpus.node, strict=True)):
        gone = job < -1 or not observation.nodes.up[node] or (shunned is not None and shunned[gpu])
        ends.append(np.inf if gone else 0.0 if job == -1 else float(left_s[job]))
    for gpus in range(1, len(ends) + 3):
        expected = sorted(ends)[gpus - 1] if gpus <= len(ends) else np.inf
        assert _free_by(draft, left_s, gpus) == expected


@pytest.mark.parametrize("name", ["search_limit", "time_limit_s"])
@pytest.mark.parametrize("stage", ["sia", "s4"])
def test_a_limit_of_the_search_is_above_0(stage: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be above 0"):
        make_stage(stage, {name: 0})


def test_the_search_looks_first_at_the_jobs_of_least_time_over_weight():
    """Times of 8, 12, 3 and 11 s on one GPU: Smith's order is the best, and 24 placements show it."""
    own = [[Option(1, 1, 0, time_s)] for time_s in (8.0, 12.0, 3.0, 11.0)]
    weight = np.array([3.0, 6.0, 5.0, 1.0])
    assert best_schedule(own, weight, [], [1], 24).begin_s == (15.0, 3.0, 0.0, 23.0)
    with pytest.raises(TimeoutError):
        best_schedule(own, weight, [], [1], 23)


def test_what_a_job_still_takes_with_each_size():
    """Work of 3 s a step on two workers: 100.5 s left of the two that it asks for, and in proportion."""
    o = cluster([4], [{"rigid": False, "workers_max": 4, "gpus_requested": 2}], speeds=listed(0, {2: 3.0}))
    nodes = node_state(o, {}, 600.0)
    left_s = planned._times_s(Draft(o), nodes, 0, 0, 0, [1, 2, 4], 0, 100.5, *both_columns(o, nodes))
    assert left_s == pytest.approx([201.0, 100.5, 50.25])


def test_gpus_of_others_are_held_until_their_jobs_end():
    """Two jobs of two and of three workers of two GPUs each, as they ask for: what is left is what is estimated."""
    job = {"rigid": False, "gpus_per_worker": 2, "workers_max": 8}
    o = cluster(
        [10], [{**job, "gpus_requested": 4, "holds": [0, 1, 2, 3], "service_s": 100.0},
               {**job, "gpus_requested": 6, "holds": [4, 5, 6, 7, 8, 9], "service_s": 200.0}],
        speeds=listed(1, {6: 1.0}),
    )  # fmt: skip
    nodes = node_state(o, {}, 600.0)
    busy, capacity = planned._room(Draft(o), nodes, NO_ROWS, *both_columns(o, nodes))
    assert busy == [Busy(pytest.approx(100.0), 4, 0), Busy(pytest.approx(200.0), 6, 0)]
    assert capacity == [10]


@pytest.mark.parametrize("per_worker", [1, 0])
def test_what_of_others_is_of_one_gpu_each(per_worker):
    """A job of three workers of one GPU each that asks for one: a third of the time is left."""
    job = {"rigid": False, "gpus_requested": 1, "workers_max": 4, "holds": [0, 1, 2], "service_s": 90.0}
    job["gpus_per_worker"] = per_worker
    o = cluster([4], [job], speeds=listed(0, {1: 1.0}))
    nodes = node_state(o, {}, 600.0)
    busy, capacity = planned._room(Draft(o), nodes, NO_ROWS, *both_columns(o, nodes))
    assert busy == [Busy(pytest.approx(30.0), 3, 0)]
    assert capacity == [4]


# -- what is carried out -------------------------------------------------------------------------------------


def carried(o, rows, entries, picked, model=(0, 1), away=(), weight=None):
    """({job: GPUs}, who is stopped) of entries (row, GPUs, model, stays); the first of the rows run."""
    weight = np.ones(len(o.nodes)) if weight is None else np.array(weight)
    draft = Draft(o, weight, order=np.argsort(-weight, kind="stable"))
    draft.away[list(away)] = True
    nodes = state(o, model=list(model))
    elastic = elastic_columns(
        draft, nodes, np.array([row for row in rows if row in o.running], dtype=np.int64)
    )
    row, gpus, there, stays = (np.array(part) for part in zip(*entries, strict=True))
    c = Choices(
        np.array(rows), np.array([rows.index(k) for k in row]), gpus, gpus, there, stays, np.ones(len(row))
    )
    sizes._carry_out(draft, nodes, elastic, c, np.array(picked))
    return {row: gpu.tolist() for row, (gpu, _) in draft.given.items()}, draft.stopped


TRAINS = {"rigid": False, "workers_max": 9, "input_bytes": 0.0}
FIXED = {**TRAINS, "rigid": True}
PLACES = {0: [0, 1, 2, 3], 1: [4], 2: [6, 7]}
"""GPUs of jobs that run, on a node of six GPUs and on one of four of another model."""


def places(*more, **first):
    jobs = [
        {**TRAINS, "holds": PLACES[0]},
        {**TRAINS, "holds": PLACES[1]},
        {**FIXED, "holds": PLACES[2]} | first,
    ]
    return cluster([6, 4], [*jobs, *more], models=[0, 1])


def test_who_grows_takes_what_another_gives_back_whichever_comes_first():
    entries = [(1, 4, 0, False), (0, 2, 0, False), (2, 2, 1, True), (3, 2, 1, False), (3, 1, 0, False)]
    o = places(FIXED)
    assert carried(o, [1, 0, 2, 3], entries, [0, 1, 2, 3]) == ({0: [0, 1], 1: [4, 2, 3, 5], 3: [8, 9]}, [])
    # Job 0 keeps all: of three more only one is free, so that job 1 stays as it is.
    stays = [(1, 4, 0, False), (0, 4, 0, True), (2, 2, 1, True)]
    assert carried(o, [1, 0, 2, 3], stays, [0, 1, 2]) == ({}, [])


def test_who_is_not_picked_stops():
    entries = [(0, 4, 0, True), (1, 1, 0, True), (2, 2, 1, True), (3, 3, 1, False)]
    assert carried(places(FIXED), [0, 1, 2, 3], entries, [0, 1, 3]) == ({3: [6, 7, 8]}, [2])
    assert carried(places(FIXED), [0, 1, 2, 3], entries, [2]) == ({}, [0, 1])


def test_who_goes_to_another_model_gives_all_back():
    entries = [(0, 2, 1, False), (1, 1, 0, True), (2, 2, 0, False), (0, 3, 1, False)]
    given, stopped = carried(places(), [0, 1, 2], entries, [0, 1, 2])
    # Job 2 has left its GPUs; the GPU that is free on the other node and those of job 0 are enough for it then.
    assert (given, stopped) == ({0: [6, 7], 2: [0, 1]}, [])
    given, stopped = carried(places(), [0, 1, 2], entries, [3, 1, 2])
    assert (given, stopped) == ({0: [6, 7, 8], 2: [0, 1]}, [])
    full = [(0, 4, 0, True), (1, 1, 0, True), (2, 2, 0, False)]
    assert carried(places(), [0, 1, 2], full, [0, 1, 2]) == ({}, [2])  # one is free there
    elastic = places(rigid=False)  # two workers or none
    assert carried(elastic, [0, 1, 2], full, [0, 1, 2]) == ({}, [])
    fixed = places(rigid=False, workers_min=2, workers_max=2)
    assert carried(fixed, [0, 1, 2], full, [0, 1, 2]) == ({}, [2])


def test_where_so_many_gpus_of_a_model_are_taken():
    """Nodes 0 and 2 are of one model; node 2 is worth most, node 1 is of another."""
    jobs = [{**TRAINS, "holds": [0], "memory_bytes": 0.0}, {**FIXED, "memory_bytes": 50e9}]
    memory = [80e9] * 3 + [80e9] * 3 + [40e9] * 4
    o = cluster([3, 3, 4], jobs, models=[0, 1, 0], gpu={"memory_bytes": memory})
    draft = Draft(o, np.array([1.0, 3.0, 2.0]), order=np.array([1, 2, 0]))
    nodes = state(o, model=[0, 1, 0])

    def found(row, gpus, model):
        return sizes.placed(draft, nodes, row, gpus, model).tolist()

    assert found(0, 3, 0) == [6, 7, 8]
    assert found(0, 5, 0) == [6, 7, 8, 9, 1]
    assert found(0, 7, 0) == []  # six are free
    assert found(0, 2, 1) == [3, 4]
    assert found(1, 2, 0) == [1, 2]  # the others have not the memory
    assert found(1, 3, 0) == []
    draft.away[2] = True
    assert found(0, 2, 0) == [1, 2]  # it runs, so that this is to grow
    assert found(0, 3, 0) == []
    draft.away[:] = [True, False, False]
    assert found(1, 2, 0) == [1, 2]  # it starts
    assert found(0, 5, 0) == []


def test_gpus_near_the_data_come_first_and_others_where_those_are_too_few():
    stores = Stores.of(job=[0], node=[0], ratio=[1.0])
    o = cluster([2, 3], [{"input_bytes": 1e12, "service_s": 100.0, "gpus_requested": 2}], stores=stores)
    o.nodes = Nodes.of(**o.nodes.as_dict() | {"nic_bytes_per_s": [1e9, 1e9]})
    draft = Draft(o, np.array([1.0, 2.0]), order=np.array([1, 0]))
    assert sizes.placed(draft, state(o), 0, 2, 0).tolist() == [0, 1]
    assert sizes.placed(draft, state(o), 0, 3, 0).tolist() == [0, 1, 2]


# -- what is chosen ------------------------------------------------------------------------------------------


def test_the_choices_worth_most_that_there_is_room_for():
    """Three jobs: of four GPUs of model 0 and three of model 1 the second is worth most apart from the first."""
    index, gpus, model = np.array([0, 0, 1, 1, 2]), np.array([4, 2, 3, 3, 2]), np.array([0, 0, 0, 1, 0])
    worth, none = np.array([5.0, 4.0, 6.0, 3.0, 2.5]), np.zeros(3, dtype=np.bool_)

    def found(room, must=none, worth=worth):
        return np.flatnonzero(best_sizes(gpus, model, worth, index, must, np.array(room), 99, 60.0)).tolist()

    assert found([4, 3]) == [1, 3, 4]  # 9.5, against 8 by the first and the fourth
    assert found([4, 2]) == [1, 4]
    assert found([3, 0]) == [2]
    assert found([3, 0], np.array([False, False, True])) == [4]
    assert found([5, 3]) == [1, 2]
    assert found([1, 0]) == []
    with pytest.raises(ValueError, match="infeasible"):
        found([1, 0], np.array([True, False, False]))


RATES = Speeds.of(
    job=[0] * 3,
    gpu_model=[0] * 3,
    gpus=[2, 4, 6],
    samples_per_s=[64 / 3.0, 32.0, 64 / 1.5],
    exchange_s=[0.0] * 3,
)


def resized(
    o, *, blocked=False, fixed=(), patient=(), waits=True, a=(1.0,), waiting_a=(), touched=(), away=()
):
    """(how many it chose among, {job: GPUs}, who is stopped)."""
    draft, nodes = Draft(o, np.ones(len(o.nodes)), order=np.arange(len(o.nodes))), state(o)
    draft.leave(np.array(touched, dtype=np.int64))
    draft.away[list(away)] = True
    ranking = replace(ranks(o, list(a), list(waiting_a)), wanted=o.jobs.gpus_requested[o.waiting])
    of = [np.array(rows, dtype=np.int64) for rows in (fixed, patient)]
    n = sizes.resize_optimally(
        draft, nodes, ranking, *both_columns(o, nodes), np.full(len(o.running), blocked), *of, waits, 1000.0, 2.0,
        99, 60.0,
    )  # fmt: skip
    return n, {row: gpu.tolist() for row, (gpu, _) in draft.given.items()}, draft.stopped


def test_an_elastic_job_gets_the_size_at_which_it_is_quickest():
    """One, two and three workers of two GPUs each."""
    job = {
        "rigid": False, "gpus_per_worker": 2, "workers_max": 3, "gpus_requested": 4, "holds": [0, 1],
        "gpu_share_requested": 1.0,
    }  # fmt: skip
    o = cluster([7], [job], speeds=RATES)
    assert resized(o) == (3, {0: [0, 1, 2, 3, 4, 5]}, [])
    assert resized(o, waits=False) == (3, {}, [])  # what is free is for another
    assert resized(o, away=[0]) == (3, {}, [])
    assert resized(o, blocked=True) == resized(o, touched=[0]) == (0, {}, [])
    half = {**job, "gpu_share_requested": 0.5}
    assert resized(cluster([7], [half], speeds=RATES)) == (0, {}, [])


def test_who_may_be_stopped_gives_way_to_who_is_worth_more():
    jobs = [{"holds": [0, 1], "gpus_requested": 2, "gpu_share_requested": 1.0, "service_s": 500.0}]
    jobs.append({"gpus_requested": 2, "gpu_share_requested": 1.0, "service_s": 300.0})
    jobs.append({"gpus_requested": 2, "gpu_share_requested": 0.5, "service_s": 300.0})
    o = cluster([3], jobs)
    a = {"a": [2.0], "waiting_a": [5.0, 99.0]}
    assert resized(o, fixed=[0], patient=[0], **a) == (2, {1: [0, 1]}, [0])
    assert resized(o, fixed=[0], **a) == (2, {}, [])
    assert resized(o, **a) == (1, {}, [])  # one GPU is free
    assert resized(o, fixed=[0], patient=[0], a=[6.0], waiting_a=[5.0, 99.0]) == (2, {}, [])
    assert resized(o, fixed=[0], patient=[0], waits=False, **a) == (1, {}, [])


def listed(job, work_s):
    """Speeds of a job of batch 64 that takes so long for the local work of a step with so many GPUs."""
    rates = [64.0 / seconds for seconds in work_s.values()]
    zeros = [0] * len(rates)
    return Speeds.of(
        job=[job] * len(rates), gpu_model=zeros, gpus=list(work_s), samples_per_s=rates, exchange_s=zeros
    )


def both_columns(o, nodes):
    return scaling_columns(o, o.jobs.sync_interval), table_columns(o, nodes)
