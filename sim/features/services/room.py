"""Search for room for a replica: on free GPUs, or on those of jobs to preempt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.features.services.section import Service, services_of
from equipoise.sim.job.paces import typical_speed
from equipoise.sim.scenario.model import Scenario


def free_room(spec: Service, allowed: Bools, cluster: Cluster) -> Ints | None:
    """Free GPUs of one node for a replica, on the node with the fewest other free GPUs; None: no node has room.

    allowed (gpus,): which of them the service may use.
    """
    gpus = cluster.gpus
    rows = np.flatnonzero(allowed & (gpus.share_free >= spec.share - 1e-9))
    node = gpus.node[rows]
    count = np.bincount(node, minlength=len(cluster.nodes))[node]
    if not (count >= spec.replicas.gpus).any():
        return None
    order = np.lexsort((rows, count, gpus.share_free[rows]))
    return _whole(spec, rows[order[count[order] >= spec.replicas.gpus]].tolist(), cluster)


def room_on(node: int, spec: Service, allowed: Bools, cluster: Cluster) -> Ints | None:
    """Free GPUs of this node for a replica; None: there are too few."""
    gpus = cluster.gpus
    rows = np.flatnonzero(allowed & (gpus.node == node) & (gpus.share_free >= spec.share - 1e-9))
    return _whole(spec, rows[np.lexsort((rows, gpus.share_free[rows]))].tolist(), cluster)


def _whole(spec: Service, rows: Sequence[int], cluster: Cluster) -> Ints | None:
    """The first GPUs of `rows` that make a replica of one node."""
    found: dict[int, list[int]] = {}
    for gpu in rows:
        chosen = found.setdefault(int(cluster.gpus.node[gpu]), [])
        chosen.append(gpu)
        if len(chosen) == spec.replicas.gpus:
            gpus = np.array(sorted(chosen), dtype=np.int64)
            if not cluster.any_mig or cluster.can_be_cut(gpus, np.full(len(gpus), spec.share)):
                return gpus
            chosen.pop()
    return None


def cheapest_victims(
    spec: Service, allowed: Bools, cluster: Cluster, priority: Floats, started_s: Floats
) -> tuple[int, list[int]] | None:
    """(node, rows of the jobs there that make room for a replica when they stop); None: nothing would help.

    priority, started_s (jobs,). On each node jobs of the lowest priority go first, then those started last. The
    node is the one whose most important victim matters least; then the one whose victims hold the fewest GPUs.
    """
    on: dict[int, list[int]] = {}
    for row, held in cluster.holding.items():
        for node in held.nodes.tolist() if row >= 0 else ():
            on.setdefault(node, []).append(row)
    best: tuple[float, float, int] | None = None
    chosen: list[int] = []
    for node in sorted(on):
        rows = sorted(on[node], key=lambda row: (priority[row], -started_s[row], -row))
        victims = _victims(spec, allowed, cluster, node, rows)
        if victims is None:
            continue
        weight = math.fsum(cluster.holding[row].weight for row in victims)
        cost = (float(max(priority[row] for row in victims)), weight, node)
        if best is None or cost < best:
            best, chosen = cost, victims
    return None if best is None else (best[2], chosen)


def _victims(spec: Service, allowed: Bools, cluster: Cluster, node: int, rows: Sequence[int]) -> list[int] | None:
    """The first of the jobs on a node that make room for a replica when they stop; None: all are not enough."""
    if not cluster.up[node]:
        return None
    first, count = int(cluster.nodes.first_gpu[node]), int(cluster.nodes.gpus[node])
    room = cluster.gpus.share_free[first : first + count].copy()
    room[~allowed[first : first + count]] = -1.0
    for k, row in enumerate(rows):
        held = cluster.holding[row]
        inside = (held.gpu >= first) & (held.gpu < first + count)
        room[held.gpu[inside] - first] += held.share[inside]
        if np.count_nonzero(room >= spec.share - 1e-9) >= spec.replicas.gpus:
            return list(rows[: k + 1])
    return None


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
