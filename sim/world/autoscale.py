"""Nodes that are rented when jobs wait or services lack replicas, and given back when idle (`autoscale`).

Looked at whenever policies decide. Jobs that wait are gone through in the order of arrival: what is free, or on
its way, is set aside for them; for a job that this does not cover nodes are ordered, of the groups in the order in
which the scenario names them, if so many can be had that it could run. Services come first: nodes are ordered for
the replicas that their load and latency target ask for and that have no room. No node is given back while a job
waits that may run on its GPU model, or a service lacks a replica that may.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from simpy.events import Event

from equipoise.policies.observation import Floats
from equipoise.sim.clock import FAULTS, Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.scenario.model import NodeGroup
from equipoise.sim.scenario.pools import Autoscale
from equipoise.sim.world.nodes import NodeEvents
from equipoise.sim.world.roster import Roster
from equipoise.sim.world.services import ServingWorld

_NEAR = 1e-9


@dataclass
class Pool:
    """One group that scales: its nodes, those that are on their way, and when it last ordered (s)."""

    spec: Autoscale
    nodes: range
    model: int  # of its GPUs
    gpus: int  # of a node
    coming: set[int] = field(default_factory=set)
    ordered_s: float = -math.inf

    def ready_s(self, now_s: float) -> float:
        """When it may order again; it goes on at the instant at which it has ordered."""
        return now_s if self.ordered_s == now_s else self.ordered_s + self.spec.cool_down


class NodeAutoscaler:
    """Rents and returns nodes; `look()` is called after each decision of a policy."""

    def __init__(
        self, clock: Clock, cluster: Cluster, roster: Roster, nodes: NodeEvents, services: ServingWorld
    ) -> None:
        self.clock, self.cluster, self.roster, self.nodes = clock, cluster, roster, nodes
        self.services = services
        self.pools = list(_pools(cluster))
        self._idle_since_s = np.full(len(cluster.nodes), math.inf)
        self._timer: Event | None = None
        nodes.scaled = {node for pool in self.pools for node in pool.nodes}
        for pool in self.pools:
            there = [node for node in pool.nodes if node not in nodes.reclaimed_nodes]
            for node in set(pool.nodes) - set(there[: pool.spec.min]):
                nodes.released(node)

    @property
    def pending(self) -> bool:
        """Whether nodes are on their way, or may be ordered at a later time."""
        return any(pool.coming for pool in self.pools) or self._timer is not None

    def look(self) -> None:
        """Order nodes that waiting jobs need, return idle ones, and plan the next look."""
        now_s = self.clock.now
        for pool in self.pools:
            self._order(pool, pool.spec.min - len(self._there(pool)) - len(pool.coming))
        kept, later_s = self._serve(now_s)
        if self.roster.waiting:
            later_s = min(later_s, self._rent(now_s, kept))
        later_s = min(later_s, self._give_back(now_s))
        self.clock.cancel(self._timer)
        self._timer = self.clock.at(later_s, self._on_timer, FAULTS) if later_s < math.inf else None

    def _on_timer(self, _: Event) -> None:
        self._timer = None
        self.look()

    # -- more nodes ----------------------------------------------------------------------------------------

    def _there(self, pool: Pool) -> list[int]:
        """Nodes of a pool that are rented and can be had, up or not."""
        away = self.nodes.released_nodes | self.nodes.reclaimed_nodes
        return [node for node in pool.nodes if node not in away]

    def _to_be_had(self, pool: Pool) -> list[int]:
        """Nodes of a pool that could be ordered."""
        taken = pool.coming | self.nodes.reclaimed_nodes
        return [node for node in pool.nodes if node in self.nodes.released_nodes and node not in taken]

    def _order(self, pool: Pool, count: int) -> int:
        """Order up to so many nodes; returns how many."""
        chosen = self._to_be_had(pool)[: max(0, count)]
        for node in chosen:
            pool.coming.add(node)
            self.clock.at(self.clock.now + pool.spec.delay, partial(self._came, pool, node), FAULTS)
        return len(chosen)

    def _came(self, pool: Pool, node: int, _: Event) -> None:
        """Bring an ordered node up, unless the order was used otherwise meanwhile."""
        pool.coming.discard(node)
        if node not in self.nodes.reclaimed_nodes:
            self.nodes.happened("rented", node, 0.0)
            self.nodes.rented(node)
        self.nodes.event()

    def _serve(self, now_s: float) -> tuple[Floats, float]:
        """Order nodes for replicas that lack room: (GPUs on their way for them (models,), when to look again)."""
        kept, later_s = np.zeros(len(self.cluster.gpu_models)), math.inf
        coming = {id(pool): len(pool.coming) for pool in self.pools}
        for tenant in self.services.tenants:
            lack, spec = tenant.lack, tenant.spec
            for pool in self.pools:
                each = pool.gpus // spec.replicas.gpus * math.floor(1.0 / spec.share + _NEAR)
                if lack <= 0 or not each or not tenant.allowed[self.cluster.nodes.first_gpu[pool.nodes[0]]]:
                    continue
                nodes, at_s = math.ceil(lack / each), pool.ready_s(now_s)
                if at_s <= now_s and (ordered := self._order(pool, nodes - coming[id(pool)])):
                    coming[id(pool)] += ordered
                    pool.ordered_s = now_s
                elif at_s > now_s and nodes > coming[id(pool)]:
                    later_s = min(later_s, at_s)
                taken = min(nodes, coming[id(pool)])
                coming[id(pool)] -= taken
                lack -= taken * each
                kept[pool.model] += taken * pool.gpus
        return kept, later_s

    def _rent(self, now_s: float, kept: Floats) -> float:
        """Order nodes for waiting jobs; returns when the next of them will have waited for long enough (s).

        kept (models,): GPUs on their way that are for others.
        """
        found, later_s = [(pool, self._to_be_had(pool)) for pool in self.pools], math.inf
        open_pools = [(pool, len(nodes)) for pool, nodes in found if nodes]
        free, columns = np.maximum(self._free() - kept, 0.0), self.roster.columns
        stuck = not self.roster.running and not any(pool.coming for pool in self.pools)
        for row in self.roster.waiting.rows.tolist() if open_pools else ():
            sets = self._models_for(row)
            most, least = self._needs(row)
            queued_s = float(columns["queued_since_s"][row])
            usable = [pool for pool, _ in open_pools if pool.model in sets[-1]]
            ready_s = [max(queued_s + pool.spec.wait, pool.ready_s(now_s)) for pool in usable]
            ready = [pool for pool, at_s in zip(usable, ready_s, strict=True) if at_s <= now_s]
            if stuck and any(free[of].sum() >= most - _NEAR for of in sets):
                free[:] = 0.0  # it waits although nothing else runs: what is free is none that it can use
            stuck = False
            if not any(_take(free, of, most) for of in sets) and not any(
                self._rent_for(need, sets, ready, free, now_s) for need in dict.fromkeys((most, least))
            ):
                later_s = min([later_s, *(at_s for at_s in ready_s if at_s > now_s)])
            open_pools = [(pool, left) for pool, _ in open_pools if (left := len(self._to_be_had(pool)))]
            if not open_pools:
                break
        return later_s

    def _needs(self, row: int) -> tuple[float, float]:
        """GPUs that a job asks for, and with how many it could start."""
        columns = self.roster.columns
        share, most = float(columns["gpu_share_requested"][row]), float(columns["gpus_requested"][row])
        if columns["workers_min"][row] >= columns["workers_max"][row]:
            return most * share, most * share
        return most * share, min(most, float(columns["workers_min"][row] * columns["gpus_per_worker"][row])) * share

    def _models_for(self, row: int) -> list[list[int]]:
        """Sets of GPU models that a job may use, tried in order; the last has all of them."""
        wanted, models = int(self.roster.columns["gpu_types"][row]), range(len(self.cluster.gpu_models))
        allowed = [m for m in models if wanted < 0 or wanted >> m & 1]
        first = {pool.model: k for k, pool in reversed(list(enumerate(self.pools)))}
        allowed.sort(key=lambda m: first.get(m, -1))  # what does not scale is there anyway
        return [allowed] if not self.roster.columns["one_gpu_model"][row] else [*([m] for m in allowed)]

    def _rent_for(self, need: float, sets: list[list[int]], ready: list[Pool], free: Floats, now_s: float) -> bool:
        """Order the GPUs that one job lacks; False when they are not available."""
        for models in sets:
            pools = [pool for pool in ready if pool.model in models]
            could = sum(len(self._to_be_had(pool)) * pool.gpus for pool in pools)
            if not pools or free[models].sum() + could < need - _NEAR:
                continue
            for pool in pools:
                lacks = need - float(free[models].sum())
                if lacks > _NEAR and (count := self._order(pool, math.ceil(lacks / pool.gpus - _NEAR))):
                    free[pool.model] += count * pool.gpus
                    pool.ordered_s = now_s
            return _take(free, models, need)
        return False

    def _free(self) -> Floats:
        """GPUs that are free or on their way, by model, (models,)."""
        cluster, free = self.cluster, np.zeros(len(self.cluster.gpu_models))
        np.add.at(free, cluster.node_model, np.where(cluster.up, cluster.nodes.gpus_free, 0))
        for pool in self.pools:
            free[pool.model] += len(pool.coming) * pool.gpus
        return free

    # -- fewer nodes ---------------------------------------------------------------------------------------

    def _give_back(self, now_s: float) -> float:
        """Return nodes that were idle for long enough; returns the time of the next possible return (s)."""
        since_s, held, later_s = self._idle_since_s, self.cluster.held_gpus(), math.inf
        idle = self.cluster.up & (held == 0)
        since_s[~idle] = math.inf
        since_s[idle] = np.minimum(since_s[idle], now_s)
        waiting = self.roster.columns["gpu_types"][self.roster.waiting.rows]
        for pool in self.pools:
            if ((waiting < 0) | (waiting >> pool.model & 1 > 0)).any() or self._lacking(pool):
                continue
            spare = len(self._there(pool)) - pool.spec.min
            for node in reversed([node for node in pool.nodes if idle[node]]):
                if spare <= 0:
                    break
                spare -= 1
                at_s = float(since_s[node]) + pool.spec.idle
                if at_s > now_s:
                    later_s = min(later_s, at_s)
                    continue
                since_s[node] = math.inf
                self.nodes.happened("released", node, 0.0)
                self.nodes.released(node)
        return later_s

    def _lacking(self, pool: Pool) -> bool:
        """Whether a service lacks a replica that the nodes of a pool could hold."""
        first = int(self.cluster.nodes.first_gpu[pool.nodes[0]])
        return any(
            tenant.lack > 0 and bool(tenant.allowed[first]) and pool.gpus >= tenant.spec.replicas.gpus
            for tenant in self.services.tenants
        )


def _pools(cluster: Cluster) -> Iterator[Pool]:
    first = 0
    for group in cluster.spec.groups:
        if group.autoscale is not None:
            yield _pool(group, group.autoscale, first, cluster)
        first += group.count


def _pool(group: NodeGroup, spec: Autoscale, first: int, cluster: Cluster) -> Pool:
    return Pool(spec, range(first, first + group.count), cluster.node_model.item(first), group.gpus)


def _take(free: Floats, models: list[int], need: float) -> bool:
    """Reserve GPUs of these models, if there are enough."""
    if not models or free[models].sum() < need - _NEAR:
        return False
    for model in models:
        taken = min(float(free[model]), need)
        free[model] -= taken
        need -= taken
    return True
