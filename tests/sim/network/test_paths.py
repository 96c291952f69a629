"""S211: what finished transfers say about the paths between nodes, in both time advances alike."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.policies.paths import PathSpeeds
from equipoise.sim.clock import Clock
from equipoise.sim.network.network import Network
from equipoise.sim.network.topology import Topology
from equipoise.sim.network.transfers import Transfer, Transfers
from equipoise.sim.scenario.model import ClusterSpec


class Site:
    """Nodes on a switch: disks of 500 MB/s, interfaces of 1 GB/s, 1 ms of latency."""

    def __init__(self, nodes: int = 4) -> None:
        spec = {
            "nodes": [{"count": nodes, "nic": 1e9, "storage_rate": 5e8}],
            "topology": {"kind": "star", "latency": 1e-3},
        }
        self.topology = Topology(ClusterSpec.model_validate(spec))
        self.clock = Clock()
        self.network = Network(self.clock, self.topology.capacity_bytes_per_s)
        self.arrived: list[Transfer] = []
        self.transfers = Transfers(
            self.clock,
            self.network,
            self.topology,
            np.ones(nodes, dtype=bool),
            lambda _links, _delta: None,
            self.arrived.append,
        )

    def send(self, source: int, target: int, size_bytes: float, owner: int) -> None:
        self.transfers.start([source], target, size_bytes, lambda: None, owner)

    def rates(self) -> dict[tuple[int, int], float]:
        self.clock.run()
        speeds = PathSpeeds()
        for t in self.arrived:
            speeds.finished(t.source, t.target, t.size_bytes, t.alone_s, t.begin_s - t.asked_s)
        speeds.close()
        return {(t.source, t.target): speeds.at(t.source, t.target, 5e8, 1e-3)[0] for t in self.arrived}


def test_a_lone_transfer_reaches_what_the_topology_promises_to_the_bit() -> None:
    site = Site()
    site.send(0, 1, 3e8, owner=0)
    assert site.rates() == {(0, 1): 5e8}


def test_one_s_own_transfers_beside_do_not_make_a_path_slow() -> None:
    site = Site()
    for target, size in ((1, 3e8), (2, 6e8), (3, 1e8)):
        site.send(0, target, size, owner=0)
    assert site.rates() == {(0, 1): 5e8, (0, 2): 5e8, (0, 3): 5e8}


def test_transfers_of_others_do() -> None:
    site = Site()
    for target, owner in ((1, 0), (2, 0), (3, 1)):
        site.send(0, target, 3e8, owner)
    found = site.rates()
    assert found[0, 1] == found[0, 2] == pytest.approx(5e8 * 2 / 3, rel=1e-5)
    assert found[0, 3] == pytest.approx(5e8 / 3, rel=1e-5)


def test_a_cancelled_transfer_leaves_its_lane() -> None:
    site = Site()
    site.send(0, 1, 3e8, owner=0)
    stopped = site.transfers.start([0], 2, 1e9, lambda: None, 0)
    site.clock.at(0.1, lambda _: site.transfers.cancel(stopped))
    assert site.rates() == {(0, 1): 5e8}
    assert not site.transfers.lanes._lanes


def test_an_estimate_fades_to_the_promise() -> None:
    speeds = PathSpeeds(half_life_windows=2.0)
    speeds.finished(0, 1, 1e8, 1.0, 0.25)
    speeds.close()
    assert speeds.at(0, 1, 9e8, 0.05) == (pytest.approx(1e8, rel=1e-5), pytest.approx(0.25, rel=1e-5))
    for _ in range(2):
        speeds.close()
    assert speeds.at(0, 1, 9e8, 0.05) == (pytest.approx(5e8, rel=1e-5), pytest.approx(0.15, rel=1e-5))
    assert speeds.at(1, 0, 9e8, 0.05) == (9e8, 0.05)
    speeds.finished(0, 1, 3e8, 1.0, 0.05)
    speeds.close()
    assert speeds.at(0, 1, 9e8, 0.05)[0] == pytest.approx(3e8, rel=1e-5)
    for _ in range(200):
        speeds.close()
    assert speeds.at(0, 1, 9e8, 0.05) == (9e8, 0.05)


def test_a_transfer_that_took_no_time_says_nothing() -> None:
    speeds = PathSpeeds()
    speeds.finished(0, 1, 0.0, 0.0, 0.0)
    speeds.finished(0, 1, 5.0, 0.0, 0.0)
    speeds.close()
    assert speeds.at(0, 1, 9e8, 0.0) == (9e8, 0.0)
    assert math.isfinite(speeds.at(0, 1, math.inf, 0.0)[1])
