"""Everything that goes wrong, from named random streams keyed by node: the same for every policy."""

from __future__ import annotations

import math

from numpy.random import Generator
from simpy.events import Event

from sim.clock import FAULTS
from sim.randomness import lognormal_parameters, stream
from sim.scenario import Crash, FailSlow, FaultEvent, LinkDegrade, RackFailure, Spot
from sim.topology import NIC_IN, NIC_OUT
from sim.world import SimWorld


class Faults:
    """Schedules the faults of a scenario on a world's clock."""

    def __init__(self, world: SimWorld) -> None:
        self.world, self.clock = world, world.clock
        self._slow: dict[int, list[float]] = {}  # factors of the episodes under way, by node
        self._weak: dict[int, list[float]] = {}
        self._down: dict[int, int] = {}  # causes that keep a node down
        faults, cluster = world.scenario.faults, world.cluster
        for node in range(len(cluster.nodes)):
            if faults.crash:
                self._next_crash(node, faults.crash, self._stream("crash", node))
            if faults.fail_slow:
                self._next_slow(node, faults.fail_slow, self._stream("slow", node))
            if faults.link:
                self._next_link(node, faults.link, self._stream("link", node))
            if faults.spot and cluster.group(node).name == faults.spot.group:
                self._next_spot(node, faults.spot, self._stream("spot", node))
        if faults.rack:
            for rack in sorted(set(cluster.nodes.rack.tolist())):
                self._next_rack(rack, faults.rack, self._stream("rack", rack))
        for event in faults.events:
            self._planned(event)

    def _stream(self, kind: str, key: int) -> Generator:
        return stream(self.world.seed, f"fault:{kind}:{key}")

    # -- what a fault does ---------------------------------------------------------------------------------

    def _take_down(self, node: int, *, saved: bool = False) -> None:
        self._down[node] = self._down.get(node, 0) + 1
        if self._down[node] == 1:
            self.world.happened("reclaim" if saved else "crash", node, 0.0)
        self.world.node_down(node, saved=saved)

    def _bring_up(self, node: int) -> None:
        self._down[node] -= 1
        if self._down[node] == 0:
            self.world.happened("repair", node, 0.0)
            self.world.node_up(node)

    def _begin_slow(self, node: int, factor: float) -> None:
        self._slow.setdefault(node, []).append(factor)
        self.world.happened("fail_slow", node, factor)
        self.world.set_slow(node, math.prod(self._slow[node]))

    def _end_slow(self, node: int, factor: float) -> None:
        self._slow[node].remove(factor)
        self.world.happened("fail_slow_end", node, factor)
        self.world.set_slow(node, math.prod(self._slow[node]))

    def _set_link(self, node: int) -> None:
        topology, factor = self.world.cluster.topology, math.prod(self._weak[node])
        for which in (NIC_OUT, NIC_IN):
            link = topology.link(node, which)
            self.world.engine.set_capacity(link, float(topology.capacity_bytes_per_s[link]) * factor)

    def _begin_link(self, node: int, factor: float) -> None:
        self._weak.setdefault(node, []).append(factor)
        self.world.happened("link_degraded", node, factor)
        self._set_link(node)

    def _end_link(self, node: int, factor: float) -> None:
        self._weak[node].remove(factor)
        self.world.happened("link_restored", node, factor)
        self._set_link(node)

    # -- when it happens -----------------------------------------------------------------------------------

    def _next_crash(self, node: int, spec: Crash, random: Generator) -> None:
        scale_s = spec.mtbf / math.gamma(1.0 + 1.0 / spec.shape)
        mu, sigma = lognormal_parameters(spec.repair_cov)
        at_s = self.clock.now + scale_s * float(random.weibull(spec.shape))
        repair_s = spec.repair * math.exp(mu + sigma * float(random.standard_normal()))

        def crash(_: Event) -> None:
            self._take_down(node)
            self.clock.at(self.clock.now + repair_s, repaired, FAULTS)

        def repaired(_: Event) -> None:
            self._bring_up(node)
            self._next_crash(node, spec, random)

        self.clock.at(at_s, crash, FAULTS)

    def _next_rack(self, rack: int, spec: RackFailure, random: Generator) -> None:
        nodes = [k for k, r in enumerate(self.world.cluster.nodes.rack.tolist()) if r == rack]
        at_s = self.clock.now + float(random.exponential(spec.mtbf))

        def fail(_: Event) -> None:
            for node in nodes:
                self._take_down(node)
            self.clock.at(self.clock.now + spec.repair, repaired, FAULTS)

        def repaired(_: Event) -> None:
            for node in nodes:
                self._bring_up(node)
            self._next_rack(rack, spec, random)

        self.clock.at(at_s, fail, FAULTS)

    def _next_spot(self, node: int, spec: Spot, random: Generator) -> None:
        at_s = self.clock.now + float(random.exponential(spec.mtbf))

        def reclaim(_: Event) -> None:
            self._take_down(node, saved=self._can_save(node, spec.notice))
            self.clock.at(self.clock.now + spec.away, back, FAULTS)

        def back(_: Event) -> None:
            self._bring_up(node)
            self._next_spot(node, spec, random)

        self.clock.at(at_s + spec.notice, reclaim, FAULTS)

    def _can_save(self, node: int, notice_s: float) -> bool:
        """Whether every job on the node can write a checkpoint within the notice."""
        jobs = [self.world.training.get(row) for row in self.world.cluster.jobs_on(node)]
        return all(job is None or job.save_s <= notice_s for job in jobs)

    def _next_slow(self, node: int, spec: FailSlow, random: Generator) -> None:
        at_s = self.clock.now + float(random.exponential(spec.mtbf))
        length_s = float(random.exponential(spec.duration))

        def begin(_: Event) -> None:
            self._begin_slow(node, spec.factor)
            self.clock.at(self.clock.now + length_s, end, FAULTS)

        def end(_: Event) -> None:
            self._end_slow(node, spec.factor)
            self._next_slow(node, spec, random)

        self.clock.at(at_s, begin, FAULTS)

    def _next_link(self, node: int, spec: LinkDegrade, random: Generator) -> None:
        at_s = self.clock.now + float(random.exponential(spec.mtbf))
        length_s = float(random.exponential(spec.duration))

        def begin(_: Event) -> None:
            self._begin_link(node, spec.factor)
            self.clock.at(self.clock.now + length_s, end, FAULTS)

        def end(_: Event) -> None:
            self._end_link(node, spec.factor)
            self._next_link(node, spec, random)

        self.clock.at(at_s, begin, FAULTS)

    def _planned(self, event: FaultEvent) -> None:
        node = self.world.cluster.nodes_named([event.node])[0]
        begin, end = {
            "crash": (lambda: self._take_down(node), lambda: self._bring_up(node)),
            "slow": (
                lambda: self._begin_slow(node, event.factor),
                lambda: self._end_slow(node, event.factor),
            ),
            "link": (
                lambda: self._begin_link(node, 1.0 / event.factor),
                lambda: self._end_link(node, 1.0 / event.factor),
            ),
        }[event.kind]
        self.clock.at(event.at, lambda _: begin(), FAULTS)
        self.clock.at(event.at + event.duration, lambda _: end(), FAULTS)
