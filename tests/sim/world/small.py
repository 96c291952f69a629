"""A world of a few jobs that a test moves on by itself."""

from __future__ import annotations

from typing import Any

from equipoise.policies.registry import make_policy
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.prices import make_prices
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.job.demand import make_demand
from equipoise.sim.network.topology import Topology
from equipoise.sim.world.world import SimWorld
from tests.scenarios import scenario

PROFILE = load_profile("catalogue")


def world_of(
    *jobs: dict[str, Any],
    nodes: Any = None,
    policy: str = "fifo",
    models: Any = None,
    timeline: bool = False,
    **sections: Any,
) -> SimWorld:
    """Jobs are j0, j1, ...; one node of four GPUs unless given."""
    listed = [{"name": f"j{k}"} | job for k, job in enumerate(jobs)]
    cluster = {"nodes": nodes or [{"name": "n", "gpus": 4}]}
    workload = {"jobs": listed, "models": models or {}}
    restart = {"initialisation": 0, "detection": 0, "checkpoint_write": 0}
    case = scenario(cluster=cluster, workload=workload, **({"restart": restart} | sections))
    topology = Topology(case.cluster, PROFILE)
    there = Cluster(case.cluster, PROFILE, topology)
    return SimWorld(
        case,
        make_demand(case, None, there),
        there,
        topology,
        make_policy(policy),
        0,
        prices=make_prices(case, PROFILE),
        timeline=timeline,
    )


def to(world: SimWorld, time_s: float) -> None:
    """Let everything happen that happens before a time, at which nothing else does."""
    world.clock.run(until=world.clock.until(time_s))
