"""Gradients: their norm varies with the noise scale, a sick GPU spoils its worker's, and plans can leave it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_stage
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.record import Run
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.seeds import is_random
from tests.scenarios import model, scenario, simulate


@dataclass(frozen=True)
class LeaveOut(Stage):
    """Gives no weight to workers whose gradient norm is not finite, and suspects their GPUs; keeps the norms."""

    name: ClassVar[str] = "leave-out"
    kind: ClassVar[Kind] = "data"
    act: bool = True
    norms: list[list[float]] = field(default_factory=list)
    suspects: list[list[bool]] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        workers = observation.workers
        if not len(workers) or not workers.step_s[0] > 0:
            return plan, memory
        self.norms.append(workers.gradient_norm.tolist())
        self.suspects.append(observation.gpus.suspect.tolist())
        if not self.act:
            return plan, memory
        bad = ~np.isfinite(workers.gradient_norm)
        suspect = np.zeros(len(observation.gpus), dtype=np.bool_)
        suspect[workers.gpu[bad]] = True
        return plan.with_(gradient_weight=np.where(bad, 0.0, 1.0), suspect=suspect), memory


def case(events: list[dict[str, Any]] | None = None, **changes: Any) -> Scenario:
    """Four workers of 4 samples, 40 ms a step, 250 steps: 10 s."""
    keys = {"noise_scale": changes.pop("noise_scale", None)}
    return scenario(
        cluster={"nodes": [{"name": "n", "count": 4}]},
        workload={
            "models": {"m": model(**keys)},
            "jobs": [{"gpus": 4, "model": "m", "steps": 250, "global_batch": 16}],
        },
        decide={"every_steps": 10},
        faults={"events": events or []} | changes.pop("faults", {}),
        **changes,
    )


def both(spec: Scenario, stage: Stage, seed: int = 0) -> Run:
    policy = Policy("leave-out", (make_stage("fifo"), stage))
    fast = run(spec, policy=policy, seed=seed)
    oracle = run(spec, policy=policy, seed=seed, event_by_event=True)
    assert fast.jobs["completion_s"].tolist() == pytest.approx(oracle.jobs["completion_s"].tolist(), rel=1e-9)
    assert fast.jobs["useful_samples"].tolist() == pytest.approx(oracle.jobs["useful_samples"].tolist())
    return fast


SICK = [{"kind": "corrupt", "node": "n-2", "at": 2.0, "duration": 3.0}]


def test_an_undetected_corrupt_gradient_costs_all_progress_since_it_began() -> None:
    assert simulate(case()).jobs["completion_s"][0] == pytest.approx(10.0)
    assert both(case(SICK), LeaveOut(act=False)).jobs["completion_s"][0] == pytest.approx(13.0, abs=0.1)


def test_left_out_it_costs_what_was_seen_late_and_one_worker_s_samples() -> None:
    """Up to 0.4 s until the next look, and a quarter of the 2.6 s until it ends."""
    found = LeaveOut()
    made = both(case(SICK), found)
    assert 10.7 < made.jobs["completion_s"][0] < 11.3
    seen = np.isnan(np.array(found.norms))
    assert seen[:, 2].sum() > 5
    assert not seen[:, [0, 1, 3]].any()
    assert any(row == [False, False, True, False] for row in found.suspects)
    assert not any(found.suspects[-1]), "it is sound again"


def test_a_factor_shows_in_the_norm() -> None:
    found = LeaveOut(act=False)
    both(case([SICK[0] | {"factor": 8.0}]), found)
    ratio = np.array(found.norms)[:, 2] / np.array(found.norms)[:, 0]
    assert set(np.round(ratio, 9)) == {1.0, 8.0}


def test_the_norm_varies_with_the_noise_scale_and_less_over_many_steps() -> None:
    def spread(noise_scale: float | None, every: int) -> float:
        found = LeaveOut(act=False)
        spec = case(noise_scale=noise_scale).model_copy(
            update={"decide": case().decide.model_copy(update={"every_steps": every})}
        )
        both(spec, found)
        norms = np.array(found.norms)
        return float((norms / norms.mean(axis=1, keepdims=True)).std())

    assert spread(None, 5) == 0.0
    assert 0.0 < spread(1.0, 5) < 0.5 * spread(100.0, 5)
    assert spread(100.0, 50) < 0.6 * spread(100.0, 5)


def test_random_corruption_comes_with_its_rate() -> None:
    """400 steps of 40 ms on four GPUs: about one episode in 64 GPU-seconds at 60 per GPU-hour."""
    spec = case(faults={"corrupt_gradient": {"per_gpu_hour": 60.0, "duration": 1.0}})
    assert is_random(spec)
    late = [simulate(spec, seed=seed).jobs["completion_s"][0] - 10.0 for seed in range(20)]
    rare = case(faults={"corrupt_gradient": {"per_gpu_hour": 6.0, "duration": 1.0}})
    assert np.mean(late) == pytest.approx(0.7, abs=0.5)
    assert np.mean([simulate(rare, seed=seed).jobs["completion_s"][0] - 10.0 for seed in range(20)]) < np.mean(late)


def test_a_node_without_gpus_cannot_be_corrupt() -> None:
    event = {"kind": "corrupt", "node": "store-0", "at": 1.0, "duration": 1.0}
    cluster = {"nodes": [{"gpus": 1}, {"name": "store", "gpus": 0}]}
    with pytest.raises(InputError, match="'store-0' has no GPU that could be corrupt"):
        from_mapping(
            {"schema_version": 1, "name": "x", "cluster": cluster, "workload": {}, "faults": {"events": [event]}}
        )
