"""How fast nodes were beside their hardware profile: `nodes.speed_ratio`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_stage
from equipoise.sim.run import run
from tests.scenarios import model, scenario


@dataclass(frozen=True)
class Look(Stage):
    """Writes down how fast nodes were; deals 3 and 7 samples in turn where there are two workers."""

    name: ClassVar[str] = "look"
    kind: ClassVar[Kind] = "tasks"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "workers"})
    deals: bool = False
    seen: list[Any] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        self.seen.append(observation.nodes.speed_ratio.copy())
        if self.deals and len(observation.workers) == 2:
            first = 3 if observation.workers.samples_per_step[0] == 7 else 7
            plan = plan.with_(samples_per_step=np.array([first, 10 - first]))
        return plan, memory


def seen(
    jobs: list[dict[str, Any]], groups: list[dict[str, Any]], *, deals: bool = False, **sections: Any
) -> list[Any]:
    """The column at every decision."""
    models = {"m": model(fixed_time=0.02, **sections.pop("model", {}))}
    workload = {"models": models, "jobs": [{"model": "m", "steps": 300, "global_batch": 10} | job for job in jobs]}
    case = scenario(cluster={"nodes": groups}, decide={"every_steps": 20}, workload=workload, **sections)
    stage = Look(deals=deals)
    run(case, policy=Policy("look", (make_stage("fifo"), stage)))
    return stage.seen


NODES = [{"name": "a", "gpus": 1}, {"name": "b", "gpus": 1, "speed": 0.5}, {"name": "c", "gpus": 1, "speed": 0.8}]


@pytest.mark.parametrize("deals", [False, True])
def test_what_ran_on_a_node_shows_its_speed_and_where_nothing_ran_nothing_is_known(deals: bool) -> None:
    first, *later = seen([{"gpus": 2}], NODES, deals=deals)
    assert np.isnan(first).all()
    assert len(later) >= 10
    for found in later:
        np.testing.assert_allclose(found, [1.0, 0.5, np.nan], rtol=1e-9)


def test_input_that_a_worker_waits_for_is_no_part_of_its_speed() -> None:
    nodes = [group | {"ingest": 20.0} for group in NODES]
    np.testing.assert_allclose(seen([{"gpus": 3}], nodes)[-1], [1.0, 0.5, 0.8], rtol=1e-9)


def test_the_mean_of_a_nodes_workers_counts_and_the_last_value_stays() -> None:
    nodes = [{"name": "a", "gpus": 2, "speed": 0.5}, {"name": "b", "gpus": 1}]
    jobs = [{"gpus": 2}, {"gpus": 1, "steps": 900}]
    found = seen(jobs, nodes, noise={"step_cov": 0.1})
    last = [ratios[0] for ratios in found[1:]]
    assert 0.4 < last[-1] < 0.6
    assert last[-1] == last[-5], "nothing has run there since"
    assert len(set(last[:5])) == 5


def test_a_node_that_becomes_slow_is_seen_when_it_is_measured_again() -> None:
    event = {"kind": "slow", "node": "a", "at": 20.0, "factor": 4.0, "duration": 1000.0}
    found = [ratios[0] for ratios in seen([{"gpus": 1, "steps": 600}], NODES, faults={"events": [event]})[1:]]
    assert found[0] == pytest.approx(1.0)
    assert found[-1] == pytest.approx(0.25)


def test_parts_of_gpus_tell_nothing() -> None:
    assert all(np.isnan(found).all() for found in seen([{"gpus": 1, "gpu_share": 0.5}], NODES))
