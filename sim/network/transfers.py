"""Point-to-point transfers of data between nodes: a delay, then a flow over disk and network links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from simpy.events import Event

from equipoise.policies.observation import Bools, Ints
from equipoise.sim.clock import Clock
from equipoise.sim.network.network import Network
from equipoise.sim.network.topology import Topology


@dataclass(slots=True)
class _Lane:
    count: int = 0
    passed_s: float = 0.0
    at_s: float = 0.0

    def read(self, now_s: float) -> float:
        """The clock now."""
        if self.count:
            self.passed_s += (now_s - self.at_s) / self.count
        self.at_s = now_s
        return self.passed_s


@dataclass(slots=True)
class Lanes:
    """The clocks of all owners."""

    _lanes: dict[tuple[int, int], _Lane] = field(default_factory=dict)

    def begin(self, owner: int, links: Ints, now_s: float) -> list[float]:
        """A transfer begins to flow; returns its clocks."""
        read = []
        for link in links.tolist():
            lane = self._lanes.setdefault((owner, link), _Lane())
            read.append(lane.read(now_s))
            lane.count += 1
        return read

    def end(self, owner: int, links: Ints, begun: list[float], now_s: float) -> float:
        """A transfer has ended, or was stopped; returns the seconds that it would have taken alone."""
        passed_s = []
        for link, before in zip(links.tolist(), begun, strict=True):
            lane = self._lanes[owner, link]
            passed_s.append(lane.read(now_s) - before)
            lane.count -= 1
            if not lane.count:
                del self._lanes[owner, link]  # so that sums stay small, and as exact as they can be
        return min(passed_s, default=0.0)


NO_LINKS: Ints = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Transfer:
    """One transfer under way, or waiting for a node that holds the data to come back."""

    sources: list[int]
    target: int
    size_bytes: float
    arrived: Callable[[], None]
    done: Event
    source: int = -1
    flow: int = -1
    links: Ints = field(default_factory=lambda: NO_LINKS)
    begin: Event | None = None
    begin_s: float = 0.0  # when it began to flow
    owner: int = -1  # whose it is
    asked_s: float = 0.0  # when it was asked for
    alone_s: float = 0.0  # once it has arrived: its time without the owner's others
    lanes: list[float] = field(default_factory=list)


@dataclass
class Transfers:
    """Starts, watches and cancels transfers. `changed(links, +1 or -1)`: one begins or ends to use links.

    `ended(transfer)` is called for each that arrived.
    """

    clock: Clock
    network: Network
    topology: Topology
    node_up: Bools
    changed: Callable[[Ints, int], None]
    ended: Callable[[Transfer], None]
    waiting: list[Transfer] = field(default_factory=list)
    active: dict[int, Transfer] = field(default_factory=dict)
    moved_bytes: float = 0.0
    lanes: Lanes = field(default_factory=Lanes)

    def start(
        self, sources: Sequence[int], target: int, size_bytes: float, arrived: Callable[[], None], owner: int
    ) -> Transfer:
        """Send `size_bytes` from the first living source to `target`; `arrived()` and `done` tell the end."""
        transfer = Transfer(list(sources), target, size_bytes, arrived, Event(self.clock), owner=owner)
        transfer.asked_s = self.clock.now
        self._begin(transfer)
        return transfer

    def _begin(self, transfer: Transfer) -> None:
        transfer.source = next((s for s in transfer.sources if self.node_up[s]), -1)
        if transfer.source < 0:
            self.waiting.append(transfer)
            return
        transfer.links, latency_s = self.topology.read_route(transfer.source, transfer.target)

        def go(_: Event) -> None:
            """The delay is over: bytes flow."""
            transfer.begin, transfer.begin_s = None, self.clock.now
            transfer.flow = self.network.start(
                transfer.size_bytes,
                transfer.links,
                np.ones(len(transfer.links)),
                np.inf,
                lambda _flow: self._end(transfer),
            )
            self.active[transfer.flow] = transfer
            transfer.lanes = self.lanes.begin(transfer.owner, transfer.links, self.clock.now)
            self.changed(transfer.links, +1)

        if latency_s > 0.0:
            transfer.begin = self.clock.at(self.clock.now + latency_s, go)
        else:
            go(transfer.done)

    def _end(self, transfer: Transfer) -> None:
        self._leave(transfer)
        self.moved_bytes += transfer.size_bytes
        self.ended(transfer)
        transfer.arrived()
        transfer.done.succeed()

    def _leave(self, transfer: Transfer) -> None:
        """Remove a transfer from the flows."""
        del self.active[transfer.flow]
        transfer.flow = -1
        transfer.alone_s = self.lanes.end(transfer.owner, transfer.links, transfer.lanes, self.clock.now)
        self.changed(transfer.links, -1)

    def cancel(self, transfer: Transfer) -> None:
        """Stop a transfer; what has been sent so far is lost."""
        self.clock.cancel(transfer.begin)
        if transfer.flow >= 0:
            self.network.cancel(transfer.flow)
            self._leave(transfer)
        elif transfer in self.waiting:
            self.waiting.remove(transfer)

    def node_changed(self, node: int) -> None:
        """Restart transfers elsewhere after a node went down, and begin waiting ones after it came back."""
        affected = [t for t in self.active.values() if t.source == node and not self.node_up[node]]
        affected += [t for t in self.waiting if self.node_up[node] and node in t.sources]
        for transfer in affected:
            self.cancel(transfer)
            self._begin(transfer)
