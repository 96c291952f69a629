"""Transfers between nodes, when they begin, move elsewhere and end; and what they would take without each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.sim.clock import Clock
from equipoise.sim.network.network import Network
from equipoise.sim.network.topology import Topology
from equipoise.sim.network.transfers import Transfer, Transfers
from equipoise.sim.scenario.model import ClusterSpec


class Site:
    """Four nodes with disks of 500 MB/s and interfaces of 1 GB/s."""

    def __init__(self, latency_s: float = 0.0) -> None:
        spec = {
            "nodes": [{"name": "n", "count": 4, "nic": 1e9, "storage_rate": 5e8}],
            "topology": {"kind": "star", "latency": latency_s},
        }
        self.topology = Topology(ClusterSpec.model_validate(spec))
        self.clock = Clock()
        self.network = Network(self.clock, self.topology.capacity_bytes_per_s)
        self.up = np.ones(4, dtype=bool)
        self.told: list[Any] = []
        self.transfers = Transfers(
            self.clock,
            self.network,
            self.topology,
            self.up,
            lambda links, delta: self._tell(len(links), delta),
            lambda transfer: self._tell("ended", transfer.source),
        )

    def _tell(self, *what: Any) -> None:
        self.told.append((self.clock.now, *what))

    def send(self, sources: list[int], target: int, size_bytes: float, owner: int = 0) -> Transfer:
        return self.transfers.start(sources, target, size_bytes, lambda: self._tell("arrived"), owner)

    def turn(self, node: int, up: bool, at_s: float) -> None:
        def change(_: Any) -> None:
            self.up[node] = up
            self.transfers.node_changed(node)

        self.clock.at(at_s, change)


def test_a_transfer_flows_after_its_latency_and_tells_of_its_end_once() -> None:
    site = Site(0.25)
    site.clock.run(until=2.0)
    sent = site.send([3, 1], 0, 1e9, owner=6)
    assert (sent.source, sent.asked_s, sent.flow, sent.alone_s, site.told) == (3, 2.0, -1, 0.0, [])
    site.clock.run(until=3.0)
    assert (sent.begin_s, site.transfers.active[sent.flow]) == (2.25, sent)
    site.clock.run()
    assert site.told == [(2.25, 3, 1), (4.25, 3, -1), (4.25, "ended", 3), (4.25, "arrived")]
    assert (sent.alone_s, sent.flow, sent.done.processed) == (2.0, -1, True)
    assert (site.transfers.moved_bytes, site.transfers.active) == (1e9, {})
    site.send([1], 1, 3e9)  # its own disk alone, at once
    assert site.told[4:] == [(4.25, 1, 1)]
    site.clock.run()
    assert site.clock.now == 4.25 + 6.0
    assert site.transfers.moved_bytes == 4e9


def test_the_first_source_that_is_up_sends_and_where_none_is_the_transfer_waits() -> None:
    site = Site()
    site.up[[1, 2]] = False
    assert site.send([1, 3, 0], 2, 5e8).source == 3
    waiting = site.send([2, 1], 0, 5e8)
    assert (waiting.source, site.transfers.waiting) == (-1, [waiting])
    site.turn(0, True, 4.0)
    site.turn(1, True, 5.0)
    site.clock.run()
    assert (waiting.source, site.transfers.waiting, site.clock.now) == (1, [], 6.0)


def test_a_transfer_from_a_node_that_goes_down_starts_again_elsewhere() -> None:
    site = Site()
    sent, other = site.send([1, 2], 0, 1e9), site.send([3], 3, 1e9)
    site.turn(1, False, 1.0)
    site.turn(1, True, 1.5)  # it does not go back
    site.clock.run()
    assert (sent.source, other.source) == (2, 3)
    assert [what for what in site.told if what[1] == "ended"] == [(2.0, "ended", 3), (3.0, "ended", 2)]
    assert [what for what in site.told if what[1] == 3] == [(0.0, 3, 1), (1.0, 3, -1), (1.0, 3, 1), (3.0, 3, -1)]
    assert site.transfers.moved_bytes == 2e9


def test_a_transfer_that_is_stopped_never_arrives_wherever_it_was() -> None:
    site = Site(0.25)
    early, flowing = site.send([1], 0, 1e9), site.send([2], 0, 1e9)
    site.up[3] = False
    waiting, stays = site.send([3], 0, 1e9), site.send([3], 1, 1e9)
    site.transfers.cancel(early)
    site.transfers.cancel(waiting)
    assert site.transfers.waiting == [stays]
    site.clock.run(until=1.25)
    site.transfers.cancel(flowing)
    site.transfers.cancel(flowing)
    site.clock.run()
    assert site.told == [(0.25, 3, 1), (1.25, 3, -1)]
    assert (site.transfers.moved_bytes, site.transfers.active, flowing.flow) == (0.0, {}, -1)
    assert flowing.alone_s == 1.0
