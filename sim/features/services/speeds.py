"""GPUs that a service may use, and how fast its replicas are there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equipoise.policies.observation import Bools, Floats
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.features.services.section import Service, services_of
from equipoise.sim.job.paces import typical_speed
from equipoise.sim.scenario.model import Scenario


def allowed_gpus(spec: Service, cluster: Cluster) -> Bools:
    """Whether a service may use each GPU, (gpus,)."""
    groups = cluster.groups
    on = np.array([not spec.placement.on or bool({g.name, g.accelerator} & set(spec.placement.on)) for g in groups])
    allowed: Bools = on[cluster.gpus.node]
    return allowed


def reference(spec: Service, cluster: Cluster) -> str:
    """The accelerator that the stated times of a service are of."""
    if spec.batch_latency.of is not None:
        return spec.batch_latency.of
    allowed = allowed_gpus(spec, cluster)
    return cluster.gpu_models[int(cluster.gpus.model[int(np.argmax(allowed))])]


def speeds(spec: Service, scenario: Scenario, cluster: Cluster) -> Floats:
    """Speed of a service on each GPU model of the cluster, relative to the one that its times are of.

    As data sheets have it, see `typical_speed`; 1 where node groups have a `speed` of their own.
    """
    if any(group.speed != 1.0 for group in scenario.cluster.groups):
        return np.ones(len(cluster.gpu_models))
    base = cluster.profile.accelerator(reference(spec, cluster))
    return np.array([typical_speed(accelerator, base) for accelerator in cluster.accelerators])


def service_notes(scenario: Scenario, cluster: Cluster) -> Iterator[str]:
    """A note on each service whose times on some GPU model are estimated."""
    for spec in services_of(scenario):
        models = sorted(set(cluster.gpus.model[allowed_gpus(spec, cluster)].tolist()))
        found = speeds(spec, scenario, cluster)
        guessed = [k for k in models if found[k] != 1.0]
        if guessed:
            ratios = ", ".join(f"{cluster.gpu_models[k]} {found[k]:.2f}" for k in guessed)
            yield (
                f"service {spec.name}: its times are of {reference(spec, cluster)}; speeds on other GPUs are estimated "
                f"from data sheets ({ratios}): give a speed of each node group, or placement.on"
            )
