"""Search for room for a replica: on free GPUs, or on those of jobs to preempt."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.features.services.section import Service


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
