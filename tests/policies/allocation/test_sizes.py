"""The integer programme of sizes: what its solver prints stays away from results."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import equipoise
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.elastic import _free_by
from equipoise.policies.allocation.sizes import best_sizes
from equipoise.policies.observation import JobState
from equipoise.policies.registry import make_stage
from tests.policies.observations import Cluster


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
