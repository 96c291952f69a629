"""The integer programme of sizes: what its solver prints stays away from results."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import equipoise
from equipoise.policies.allocation import planned
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.elastic import _free_by, scaling_columns, table_columns
from equipoise.policies.allocation.gangs import NO_ROWS
from equipoise.policies.allocation.ranking import node_state
from equipoise.policies.allocation.schedules import Busy, Option, best_schedule
from equipoise.policies.allocation.sizes import best_sizes
from equipoise.policies.observation import JobState, Speeds
from equipoise.policies.registry import make_stage
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


def listed(job, work_s):
    """Speeds of a job of batch 64 that takes so long for the local work of a step with so many GPUs."""
    rates = [64.0 / seconds for seconds in work_s.values()]
    zeros = [0] * len(rates)
    return Speeds.of(
        job=[job] * len(rates), gpu_model=zeros, gpus=list(work_s), samples_per_s=rates, exchange_s=zeros
    )


def both_columns(o, nodes):
    return scaling_columns(o, o.jobs.sync_interval), table_columns(o, nodes)
