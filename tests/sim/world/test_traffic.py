"""What others use of a node's interface: without what the job itself exchanges and fetches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_stage
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.network.topology import Topology
from equipoise.sim.run import run
from equipoise.sim.world.observe import Traffic
from tests.scenarios import model, scenario


@dataclass(frozen=True)
class Look(Stage):
    """Writes down how much of the interfaces was used, and by others than each worker's job."""

    name: ClassVar[str] = "look"
    kind: ClassVar[Kind] = "data"
    seen: list[tuple[Any, ...]] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        workers = observation.workers
        busy = observation.nodes.nic_busy_ratio[workers.node]
        self.seen.append((workers.job.copy(), busy, workers.load_ratio.copy()))
        return plan, memory


def looked(jobs: list[dict[str, Any]], event_by_event: bool) -> list[tuple[Any, ...]]:
    """Jobs with a worker on each of two nodes, which fetch half of their data and exchange gradients."""
    cluster = {"nodes": [{"name": "n", "count": 2, "gpus": 1, "nic": 1e9}]}
    models = {"m": model(gradient=2e6, exchange={"alpha": 0.0, "rate": 1e9})}
    data = {"samples": 4000, "sample_size": 1e5, "shards": 16, "placement": {"kind": "nodes", "nodes": ["n-0"]}}
    common = {"gpus": 2, "gpu_share": 0.5, "model": "m", "steps": 300, "global_batch": 10, "data": data}
    workload = {"models": models, "jobs": [{**common, **j} for j in jobs]}
    case = scenario(cluster=cluster, decide={"every_steps": 20}, workload=workload)
    stage = Look()
    run(case, policy=Policy("look", (make_stage("fifo"), stage)), event_by_event=event_by_event)
    return [seen for seen in stage.seen if len(seen[0])]


@pytest.mark.parametrize("event_by_event", [False, True])
def test_alone_nothing_of_it_is_by_others(event_by_event: bool) -> None:
    seen = looked([{"name": "a"}], event_by_event)
    assert max(busy.max() for _, busy, _ in seen) > 0.01
    assert max(load.max() for _, _, load in seen) < 1e-9


@pytest.mark.parametrize("event_by_event", [False, True])
def test_of_two_jobs_each_sees_the_other_one(event_by_event: bool) -> None:
    seen = looked([{"name": "a"}, {"name": "b", "steps": 30}], event_by_event)
    both = [s for s in seen if len(set(s[0].tolist())) == 2]
    assert any(load.min() > 0.001 for _, _, load in both)
    for _, busy, load in both:
        assert (load <= busy + 1e-9).all()
    assert seen[-1][2].max() < 1e-9  # once it has gone
    assert (np.array([len(s[0]) for s in seen]) <= 4).all()


def test_before_the_first_look_nothing_was_used() -> None:
    case = scenario()
    profile = load_profile(case.cluster.hardware)
    traffic = Traffic(Cluster(case.cluster, profile, Topology(case.cluster, profile)))
    assert traffic.by_others(0, np.array([0, 1])).tolist() == [0.0, 0.0]
