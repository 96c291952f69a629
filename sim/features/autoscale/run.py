"""Nodes that are rented when jobs wait or features lack room, and given back when idle (`autoscale`).

Looked at whenever policies decide. Jobs that wait are gone through in the order of arrival: what is free, or on its
way, is set aside for them; for a job that this does not cover nodes are ordered, of the groups in the order in which
the scenario names them, if so many can be had that it could run. For a job that a limit or quota holds back nothing is
ordered, and no node is kept. Features come first: nodes are ordered for the room that they lack. No node is given back
while a job waits that may run on it, or a feature lacks room that it may give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from simpy.events import Event

from equipoise.policies.observation import Bools, Floats
from equipoise.policies.quotas.limits import Quota
from equipoise.sim.clock import FAULTS
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.features.autoscale.section import Autoscale, autoscale_of
from equipoise.sim.world.feature import FeatureRun, WorldParts

_NEAR = 1e-9


@dataclass
class Pool:
    """One group that scales: its nodes, those that are on their way, and when it last ordered (s)."""

    spec: Autoscale
    nodes: range
    gpus: int  # of a node
    coming: set[int] = field(default_factory=set)
    ordered_s: float = -math.inf

    def ready_s(self, now_s: float) -> float:
        """When it may order again; it goes on at the instant at which it has ordered."""
        return now_s if self.ordered_s == now_s else self.ordered_s + self.spec.cool_down


class NodeRenting(FeatureRun):
    """Rents and returns nodes; looks at what waits after each decision of a policy.

    A unit is the nodes of one group that the same jobs may use, by partitions, flavors and pins; unit (nodes,).
    """

    def __init__(self, parts: WorldParts) -> None:
        self.clock, self.cluster, self.roster, self.nodes = parts.clock, parts.cluster, parts.roster, parts.nodes
        self._lacks = parts.lacks
        self.pools = list(_pools(self.cluster))
        self._idle_since_s = np.full(len(self.cluster.nodes), math.inf)
        self._timer: Event | None = None
        self._make_units()

    def begin(self) -> None:
        """Return all nodes but the fewest that stay."""
        self.nodes.scaled = {node for pool in self.pools for node in pool.nodes}
        for pool in self.pools:
            there = [node for node in pool.nodes if node not in self.nodes.reclaimed_nodes]
            for node in set(pool.nodes) - set(there[: pool.spec.min]):
                self.nodes.released(node)

    def _make_units(self) -> None:
        """Number the units, in the order in which they are used: what does not scale, then by pool."""
        cluster, may_use = self.cluster, self.roster.demand.claims.queues.nodes
        scaling = np.full(len(cluster.nodes), -1)
        for k, pool in enumerate(self.pools):
            scaling[pool.nodes] = k
        group = np.repeat(np.arange(len(cluster.spec.groups)), [g.count for g in cluster.spec.groups])
        by = np.vstack((scaling, group, may_use)) if may_use.shape[1] else np.vstack((scaling, group))
        _, first, unit = np.unique(by, axis=1, return_index=True, return_inverse=True)
        self.unit = unit.reshape(-1)  # NumPy 2.0.0 gives it a further axis
        self._unit_model = cluster.node_model[first]
        self._unit_claims = may_use[:, first] if may_use.shape[1] else may_use  # (claims, units); (claims, 0): all

    def brings_nodes(self) -> bool:
        """Whether nodes are on their way, or may be ordered at a later time."""
        return any(pool.coming for pool in self.pools) or self._timer is not None

    def decided(self) -> None:
        """Order nodes that waiting jobs need, return idle ones, and plan the next look."""
        now_s = self.clock.now
        for pool in self.pools:
            self._order(pool, pool.spec.min - len(self._there(pool)) - len(pool.coming))
        kept, later_s = self._serve(now_s)
        quota = self._quota() if self.roster.waiting else None
        if quota is not None:
            later_s = min(later_s, self._rent(now_s, kept, quota))
        later_s = min(later_s, self._give_back(now_s, quota))
        self.clock.cancel(self._timer)
        self._timer = self.clock.at(later_s, self._on_timer, FAULTS) if later_s < math.inf else None

    def _on_timer(self, _: Event) -> None:
        self._timer = None
        self.decided()

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
        """Order up to `count` nodes; returns how many were ordered."""
        return self._send_for(pool, self._to_be_had(pool)[: max(0, count)])

    def _send_for(self, pool: Pool, chosen: list[int]) -> int:
        """Order these nodes of a pool; returns how many."""
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
        """Order nodes for features that lack room: (GPUs on their way for them (units,), when to look again)."""
        kept, later_s = np.zeros(len(self._unit_model)), math.inf
        coming = {id(pool): len(pool.coming) for pool in self.pools}
        for wanted in self._lacks():
            lack = wanted.count
            for pool in self.pools:
                each = pool.gpus // wanted.gpus * math.floor(1.0 / wanted.share + _NEAR)
                if lack <= 0 or not each or not wanted.allowed[self.cluster.nodes.first_gpu[pool.nodes[0]]]:
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
                first = coming[id(pool)]
                np.add.at(kept, self.unit[sorted(pool.coming)[first : first + taken]], pool.gpus)
        return kept, later_s

    def _quota(self) -> Quota:
        """What the running jobs use of each limit."""
        queues, columns = self.roster.demand.claims.queues, self.roster.columns
        quota = Quota.unused(queues, int(self.cluster.node_model.max()) + 1)
        for row, held in self.cluster.holding.items() if len(queues.parent) else ():
            if row >= 0:
                share = min(1.0, float(columns["gpu_share_requested"][row]))
                models, counts = np.unique(self.cluster.gpus.model[held.gpu], return_counts=True)
                quota.book(
                    int(columns["claim"][row]), dict(zip(models.tolist(), (counts * share).tolist(), strict=True))
                )
        return quota

    def _allowed(self, row: int, need: float, quota: Quota) -> Bools:
        """The units on which no limit holds a job with so many GPUs back, (units,)."""
        claim = int(self.roster.columns["claim"][row])
        if claim < 0:
            return np.ones(len(self._unit_model), dtype=np.bool_)
        within: Bools = np.array(quota.room(claim))[self._unit_model] >= need - _NEAR
        return within

    def _rent(self, now_s: float, kept: Floats, quota: Quota) -> float:
        """Order nodes for waiting jobs; returns when the next of them will have waited for long enough (s).

        kept (units,): GPUs on their way that are for others.
        """
        found, later_s = [(pool, self._to_be_had(pool)) for pool in self.pools], math.inf
        open_pools = [(pool, len(nodes)) for pool, nodes in found if nodes]
        free, columns = np.maximum(self._free() - kept, 0.0), self.roster.columns
        stuck = not self.roster.running and not any(pool.coming for pool in self.pools)
        for row in self.roster.waiting.rows.tolist() if open_pools else ():
            most, least = self._needs(row)
            allowed = self._allowed(row, least, quota)
            sets = [within for units in self._units_for(row) if (within := [unit for unit in units if allowed[unit]])]
            if not sets:
                continue
            quota.book(int(columns["claim"][row]), {int(self._unit_model[sets[0][0]]): least})
            queued_s = float(columns["queued_since_s"][row])
            units = {unit for of in sets for unit in of}
            usable = [pool for pool, _ in open_pools if units.intersection(self.unit[pool.nodes].tolist())]
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

    def _may_use(self, row: int) -> Bools:
        """The units that a job may use, (units,)."""
        wanted, claim = (int(self.roster.columns[name][row]) for name in ("gpu_types", "claim"))
        allowed: Bools = np.ones(len(self._unit_model), dtype=np.bool_)
        if wanted >= 0:
            allowed = (wanted >> self._unit_model & 1) == 1
        return allowed & self._unit_claims[claim] if self._unit_claims.shape[1] else allowed

    def _units_for(self, row: int) -> list[list[int]]:
        """Sets of units of which a job may use any one, tried in order: one of each GPU model where it needs one."""
        allowed = np.flatnonzero(self._may_use(row)).tolist()
        if not self.roster.columns["one_gpu_model"][row]:
            return [allowed]
        models = [int(self._unit_model[unit]) for unit in allowed]
        return [[u for u, of in zip(allowed, models, strict=True) if of == model] for model in dict.fromkeys(models)]

    def _rent_for(self, need: float, sets: list[list[int]], ready: list[Pool], free: Floats, now_s: float) -> bool:
        """Order the GPUs that one job lacks; False when they are not available."""
        for units in sets:
            found = [(pool, [node for node in self._to_be_had(pool) if self.unit[node] in units]) for pool in ready]
            could = sum(len(nodes) * pool.gpus for pool, nodes in found)
            if not could or free[units].sum() + could < need - _NEAR:
                continue
            for pool, nodes in found:
                lacks = need - float(free[units].sum())
                chosen = nodes[: math.ceil(lacks / pool.gpus - _NEAR)] if lacks > _NEAR else []
                if self._send_for(pool, chosen):
                    np.add.at(free, self.unit[chosen], pool.gpus)
                    pool.ordered_s = now_s
            return _take(free, units, need)
        return False

    def _free(self) -> Floats:
        """GPUs that are free or on their way, by unit, (units,)."""
        cluster, free = self.cluster, np.zeros(len(self._unit_model))
        np.add.at(free, self.unit, np.where(cluster.up, cluster.nodes.gpus_free, 0))
        for pool in self.pools:
            np.add.at(free, self.unit[sorted(pool.coming)], pool.gpus)
        return free

    # -- fewer nodes ---------------------------------------------------------------------------------------

    def _give_back(self, now_s: float, quota: Quota | None) -> float:
        """Return nodes that were idle for long enough; returns the time of the next possible return (s)."""
        since_s, held, later_s = self._idle_since_s, self.cluster.held_gpus(), math.inf
        idle = self.cluster.up & (held == 0)
        since_s[~idle] = math.inf
        since_s[idle] = np.minimum(since_s[idle], now_s)
        rows, columns = self.roster.waiting.rows, self.roster.columns
        by = np.stack([columns[name][rows] for name in ("gpu_types", "claim", "gpus_requested")])
        alike = np.unique(by, axis=1, return_index=True)[1]
        wanted = np.zeros(len(self._unit_model), dtype=np.bool_)
        for row in rows[alike].tolist():
            allowed = self._allowed(row, self._needs(row)[1], quota) if quota is not None else True
            wanted |= self._may_use(row) & allowed
        for pool in self.pools:
            if wanted[self.unit[pool.nodes]].any() or self._lacking(pool):
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
        """Whether a feature lacks room that the nodes of a pool could give."""
        first = int(self.cluster.nodes.first_gpu[pool.nodes[0]])
        return any(lack.count > 0 and bool(lack.allowed[first]) and pool.gpus >= lack.gpus for lack in self._lacks())


def _pools(cluster: Cluster) -> Iterator[Pool]:
    first = 0
    for group in cluster.spec.groups:
        spec = autoscale_of(group)
        if spec is not None:
            yield Pool(spec, range(first, first + group.count), group.gpus)
        first += group.count


def _take(free: Floats, units: list[int], need: float) -> bool:
    """Reserve GPUs of these units, if there are enough."""
    if not units or free[units].sum() < need - _NEAR:
        return False
    for unit in units:
        taken = min(float(free[unit]), need)
        free[unit] -= taken
        need -= taken
    return True


RUN = NodeRenting
