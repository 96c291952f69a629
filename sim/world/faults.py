"""Faults, drawn from random streams named by node: the same for every policy and in every cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.random import Generator
from simpy.events import Event

from equipoise.policies.observation import Ints
from equipoise.sim.clock import FAULTS, Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.randomness import lognormal_parameters, stream
from equipoise.sim.scenario.faults import (
    CorruptGradient,
    Crash,
    FailSlow,
    FaultEvent,
    FaultsSpec,
    LinkDegrade,
    RackFailure,
    Spot,
)
from equipoise.sim.scenario.model import NodeGroup
from equipoise.sim.scenario.pools import Available
from equipoise.sim.world.nodes import NodeEvents


class LossRates:
    """Rates (1/s) at which single nodes and whole racks are lost; `node_per_s` (nodes,)."""

    def __init__(self, faults: FaultsSpec, cluster: Cluster) -> None:
        groups = cluster.spec.groups
        each = [_of_node(faults, group) for group in groups]
        self.node_per_s = np.repeat(each, [group.count for group in groups])
        self.rack = cluster.topology.rack
        self.rack_per_s = 0.0 if faults.rack is None else 1.0 / faults.rack.mtbf

    def mtbf_s(self, nodes: Ints) -> float:
        """Mean time between losses of any of these distinct nodes (s); racks of which they are part count once."""
        racks = np.unique(self.rack[nodes]).size if self.rack_per_s else 0
        per_s = float(self.node_per_s[nodes].sum()) + racks * self.rack_per_s
        return 1.0 / per_s if per_s > 0.0 else math.inf

    @property
    def worst_s(self) -> float:
        """Mean time between losses of the node that is lost most often (s)."""
        return self.mtbf_s(np.array([int(self.node_per_s.argmax())]))


def crash_mtbf_s(crash: Crash, group: NodeGroup) -> float:
    """Mean time between crashes of one of the group's nodes (s): by its own GPUs where GPUs are counted."""
    return crash.node_mtbf_s(max(group.gpus, 1))


def _of_node(faults: FaultsSpec, group: NodeGroup) -> float:
    rates = [0.0]
    if faults.crash is not None:
        rates.append(1.0 / crash_mtbf_s(faults.crash, group))
    if faults.spot is not None and faults.spot.group == group.name:
        rates.append(1.0 / faults.spot.mtbf)
    if group.available is not None:
        rates.append(group.available.loss_per_s(group.count))
    return math.fsum(rates)


HOUR_S = 3600.0
Change = Callable[[int, float], None]
"""A spell of this factor begins or ends on a node."""


class Faults:
    """Schedules the faults of a scenario on a clock."""

    def __init__(self, faults: FaultsSpec, clock: Clock, cluster: Cluster, nodes: NodeEvents, seed: int) -> None:
        self.clock, self.cluster, self.nodes, self.seed = clock, cluster, nodes, seed
        self._slow: dict[int, list[float]] = {}  # factors of the episodes under way, by node
        self._weak: dict[int, list[float]] = {}
        self._down: dict[int, int] = {}  # causes that keep a node down
        self.gone: set[int] = set()  # nodes that a series of availability never gives back
        for node in range(len(cluster.nodes)):
            if faults.crash:
                self._next_crash(node, faults.crash, self._stream("crash", node))
            if faults.fail_slow:
                self._next_spell(node, faults.fail_slow, self._begin_slow, self._end_slow, self._stream("slow", node))
            if faults.link:
                self._next_spell(node, faults.link, self._begin_link, self._end_link, self._stream("link", node))
            if faults.spot and cluster.group(node).name == faults.spot.group:
                self._next_spot(node, faults.spot, self._stream("spot", node))
        if faults.corrupt_gradient:
            for gpu in range(len(cluster.gpus)):
                node = int(cluster.gpus.node[gpu])
                place = f":{gpu - int(cluster.nodes.first_gpu[node])}"
                self._next_corrupt(gpu, faults.corrupt_gradient, self._stream("corrupt", node, place))
        if faults.rack:
            for rack in sorted(set(cluster.nodes.rack.tolist())):
                members = np.flatnonzero(cluster.nodes.rack == rack).tolist()
                self._next_rack(members, faults.rack, self._stream("rack", members[0]))
        for event in faults.events:
            self._planned(event)
        first = 0
        for group in cluster.spec.groups:
            if group.available is not None:
                self._supply(group, range(first, first + group.count), group.available)
            first += group.count

    def _stream(self, kind: str, node: int, place: str = "") -> Generator:
        return stream(self.seed, f"fault:{kind}:{self.cluster.topology.node_names[node]}{place}")

    # -- what a fault does ---------------------------------------------------------------------------------

    def _take_down(self, node: int, *, saved: bool = False) -> None:
        self._down[node] = self._down.get(node, 0) + 1
        if self._down[node] == 1:
            self.nodes.happened("reclaim" if saved else "crash", node, 0.0)
        self.nodes.node_down(node, saved=saved)

    def _bring_up(self, node: int) -> None:
        self._down[node] -= 1
        if self._down[node] == 0:
            self.nodes.happened("repair", node, 0.0)
            self.nodes.node_up(node)

    def _begin_slow(self, node: int, factor: float) -> None:
        self._slow.setdefault(node, []).append(factor)
        self.nodes.happened("fail_slow", node, factor)
        self.nodes.set_slow(node, math.prod(self._slow[node]))

    def _end_slow(self, node: int, factor: float) -> None:
        self._slow[node].remove(factor)
        self.nodes.happened("fail_slow_end", node, factor)
        self.nodes.set_slow(node, math.prod(self._slow[node]))

    def _corrupt(self, gpu: int, factor: float) -> None:
        node = int(self.cluster.gpus.node[gpu])
        self.nodes.happened("corrupt_gradient_end" if factor == 1.0 else "corrupt_gradient", node, factor)
        self.nodes.set_corrupt(gpu, factor)

    def _begin_link(self, node: int, factor: float) -> None:
        self._weak.setdefault(node, []).append(factor)
        self.nodes.happened("link_degraded", node, factor)
        self.nodes.set_nics(node, math.prod(self._weak[node]))

    def _end_link(self, node: int, factor: float) -> None:
        self._weak[node].remove(factor)
        self.nodes.happened("link_restored", node, factor)
        self.nodes.set_nics(node, math.prod(self._weak[node]))

    # -- when it happens -----------------------------------------------------------------------------------

    def _plan(
        self,
        at_s: float,
        length_s: float,
        begin: Callable[[], None],
        end: Callable[[], None],
        again: Callable[[], None] | None = None,
    ) -> None:
        """Schedule a fault with its duration; then `again` plans the next of its kind."""

        def begins(_: Event) -> None:
            """Begin the fault and plan its end."""
            begin()
            self.clock.at(self.clock.now + length_s, ends, FAULTS)

        def ends(_: Event) -> None:
            """End the fault and plan the next one."""
            end()
            if again is not None:
                again()

        self.clock.at(at_s, begins, FAULTS)

    def _next_crash(self, node: int, spec: Crash, random: Generator) -> None:
        mtbf_s = crash_mtbf_s(spec, self.cluster.group(node))
        scale_s = mtbf_s / math.gamma(1.0 + 1.0 / spec.shape)
        mu, sigma = lognormal_parameters(spec.repair_cov)
        at_s = self.clock.now + scale_s * float(random.weibull(spec.shape))
        repair_s = spec.repair * math.exp(mu + sigma * float(random.standard_normal()))
        self._plan(
            at_s,
            repair_s,
            partial(self._take_down, node),
            partial(self._bring_up, node),
            partial(self._next_crash, node, spec, random),
        )

    def _next_rack(self, nodes: Sequence[int], spec: RackFailure, random: Generator) -> None:
        at_s = self.clock.now + float(random.exponential(spec.mtbf))

        def fail() -> None:
            """All nodes of the rack fail at once."""
            for node in nodes:
                self._take_down(node)

        def repair() -> None:
            """Bring all nodes of the rack back."""
            for node in nodes:
                self._bring_up(node)

        self._plan(at_s, spec.repair, fail, repair, partial(self._next_rack, nodes, spec, random))

    def _next_spot(self, node: int, spec: Spot, random: Generator) -> None:
        at_s = self.clock.now + float(random.exponential(spec.mtbf))

        self._plan(
            at_s + spec.notice,
            spec.away,
            partial(self._reclaim, node, spec.notice),
            partial(self._give_back, node),
            partial(self._next_spot, node, spec, random),
        )

    def _supply(self, group: NodeGroup, nodes: range, spec: Available) -> None:
        """Remove and return nodes of a group following a series of counts."""
        order = [nodes[k] for k in stream(self.seed, f"supply:{group.name}").permutation(len(nodes)).tolist()]
        changes = spec.changes()
        for node in order[changes[0][1] :]:
            self._down[node] = self._down.get(node, 0) + 1
            self.nodes.node_down(node, saved=True)
            self.nodes.reclaimed(node)

        def change(last: int, count: int, _: Event) -> None:
            """Change the number of available nodes from the old to the new count."""
            for node in order[count:last]:
                self._reclaim(node, spec.notice)
            for node in order[last:count]:
                self._give_back(node)

        for (_, last), (at_s, count) in pairwise(changes):
            self.clock.at(at_s, partial(change, last, count), FAULTS)
        ends_s, least = changes[-1]
        self.clock.at(ends_s, lambda _: self.gone.update(order[least:]), FAULTS)

    def _reclaim(self, node: int, notice_s: float) -> None:
        """The provider takes a node, after its notice."""
        self._take_down(node, saved=self.nodes.can_save(node, notice_s))
        self.nodes.reclaimed(node)

    def _give_back(self, node: int) -> None:
        """Make the node available again."""
        self.nodes.returned(node)
        self._bring_up(node)

    def _next_spell(
        self, node: int, spec: FailSlow | LinkDegrade, begin: Change, end: Change, random: Generator
    ) -> None:
        at_s = self.clock.now + float(random.exponential(spec.mtbf))
        length_s = float(random.exponential(spec.duration))
        self._plan(
            at_s,
            length_s,
            partial(begin, node, spec.factor),
            partial(end, node, spec.factor),
            partial(self._next_spell, node, spec, begin, end, random),
        )

    def _next_corrupt(self, gpu: int, spec: CorruptGradient, random: Generator) -> None:
        at_s = self.clock.now + float(random.exponential(HOUR_S / spec.per_gpu_hour))
        factor = math.nan if spec.factor is None else spec.factor
        self._plan(
            at_s,
            spec.duration,
            partial(self._corrupt, gpu, factor),
            partial(self._corrupt, gpu, 1.0),
            partial(self._next_corrupt, gpu, spec, random),
        )

    def _planned(self, event: FaultEvent) -> None:
        node = self.cluster.nodes_named([event.node])[0]
        gpu = int(self.cluster.nodes.first_gpu[node])
        factor = event.factor_or_default
        begin, end = {
            "crash": (lambda: self._take_down(node), lambda: self._bring_up(node)),
            "slow": (lambda: self._begin_slow(node, factor), lambda: self._end_slow(node, factor)),
            "corrupt": (lambda: self._corrupt(gpu, factor), lambda: self._corrupt(gpu, 1.0)),
            "link": (lambda: self._begin_link(node, factor), lambda: self._end_link(node, factor)),
        }[event.kind]
        self.clock.at(event.at, lambda _: begin(), FAULTS)
        self.clock.at(event.at + event.duration, lambda _: end(), FAULTS)
