"""Shards: ownership, the rule for a dry queue, transfers, and every sample exactly once per epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.sim.advance.waiting import awaited
from equipoise.sim.clock import Clock
from equipoise.sim.job.dataset import ConservationError, JobData
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.network.network import Network
from equipoise.sim.network.topology import Topology
from equipoise.sim.network.transfers import Transfer, Transfers
from equipoise.sim.run import run
from equipoise.sim.scenario.model import ClusterSpec


class Site:
    """A few nodes with a network, and a dataset on them."""

    def __init__(self, nodes: int, samples: list[int], homes: list[list[int]], size: float = 1e6) -> None:
        self.topology = Topology(ClusterSpec.model_validate({"nodes": [{"count": nodes, "nic": 1e9}]}))
        self.clock = Clock()
        self.network = Network(self.clock, self.topology.capacity_bytes_per_s)
        self.up = np.ones(nodes, dtype=bool)
        self.arrived: list[Transfer] = []
        transfers = Transfers(
            self.clock, self.network, self.topology, self.up, lambda _links, _delta: None, self.arrived.append
        )
        self.free = np.full(nodes, 1e12)
        self.data = JobData(np.array(samples), size, homes, transfers, self.free)

    def queues(self) -> list[list[tuple[int, int, int]]]:
        return [[(p.shard, p.cursor, p.end) for p in queue] for queue in self.data.queues]


def even(workers: int) -> np.ndarray:
    return np.ones(workers)


def test_a_dry_worker_takes_the_last_unstarted_shard_of_whoever_has_most_work_left() -> None:
    site = Site(3, [10] * 5, [[0], [0], [1], [1], [1]])
    site.data.assign([0, 1, 2])  # worker 2 stores nothing: it owns what others own more of
    site = Site(3, [10] * 6, [[0], [0], [0], [1], [1], [2]])
    site.data.assign([0, 1, 2])
    site.data.consume(np.array([0, 0, 10]))
    # Worker 1 has less left than worker 0 in samples, but is ten times as slow.
    site.data.prepare(np.array([5, 5, 5]), np.array([1.0, 10.0, 1.0]))
    assert site.queues() == [[(0, 0, 10), (1, 0, 10), (2, 0, 10)], [(3, 0, 10)], [(4, 0, 10)]]
    piece = site.data.queues[2][0]
    assert piece.transfer is not None
    assert not site.data.is_ready(2, piece)
    site.clock.run(until=1.0)
    assert site.data.is_ready(2, piece)
    assert site.arrived[0].size_bytes == 10e6


def test_a_sample_read_twice_or_never_is_found_out() -> None:
    site = Site(1, [10, 10], [[0], [0]])
    site.data.assign([0])
    site.data.consume(np.array([20]))
    site.data.ledger[0] = (0, 0, 9)
    with pytest.raises(ConservationError, match="samples are missing"):
        site.data.next_epoch()
    site.data.ledger[0] = (0, 1, 11)
    with pytest.raises(ConservationError, match="continues at 1"):
        site.data.next_epoch()


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_every_sample_exactly_once_whatever_happens(draw: st.DataObject) -> None:
    nodes = draw.draw(st.integers(1, 4))
    sizes = draw.draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    homes = [[draw.draw(st.integers(0, nodes - 1))] for _ in sizes]
    site = Site(nodes, sizes, homes)
    data, total = site.data, sum(sizes)
    data.assign([draw.draw(st.integers(0, nodes - 1)) for _ in range(draw.draw(st.integers(1, 4)))])
    saved = data.snapshot()
    for _ in range(draw.draw(st.integers(1, 30))):
        action = draw.draw(st.sampled_from(["read"] * 6 + ["move", "save", "crash", "regroup", "time", "order"]))
        workers = len(data.queues)
        if action == "read":
            if data.left == 0:
                data.next_epoch()  # raises unless the ledger covers the epoch exactly once
            batch = min(data.left, draw.draw(st.integers(1, 30)))
            cuts = sorted(draw.draw(st.lists(st.integers(0, batch), min_size=workers - 1, max_size=workers - 1)))
            demand = np.diff([0, *cuts, batch])
            data.prepare(demand, np.array([draw.draw(st.floats(0.1, 9)) for _ in range(workers)]))
            for worker, need in enumerate(demand.tolist()):
                for piece in awaited(data, worker, 0, need):
                    assert piece.transfer is not None
            data.consume(demand)
        elif action == "move":
            pieces = [p for queue in data.queues for p in queue]
            if pieces:
                data.move(draw.draw(st.sampled_from(pieces)).id, draw.draw(st.integers(0, workers - 1)))
        elif action == "save":
            saved = data.snapshot()
        elif action == "crash":
            data.release()
            data.restore(saved, [draw.draw(st.integers(0, nodes - 1)) for _ in range(draw.draw(st.integers(1, 4)))])
        elif action == "regroup":
            data.assign([draw.draw(st.integers(0, nodes - 1)) for _ in range(draw.draw(st.integers(1, 4)))])
        elif action == "order":
            data.reorder({p.id: -p.id for queue in data.queues for p in queue})
        else:
            site.clock.run(until=site.clock.now + 0.01)
        read = sum(end - begin for _, begin, end in data.ledger)
        unrecorded = sum(p.cursor - p.begin for queue in data.queues for p in queue)
        assert data.left + read + unrecorded == total
        assert data.left == sum(p.left for queue in data.queues for p in queue)
    assert (site.free >= 0).all()


def test_who_waits_for_taken_samples_gets_them_though_the_rest_goes_to_another() -> None:
    """Asynchronous workers take samples before these are there; giving the rest away must not stop the transfer."""
    model = {
        "fixed_time": 0.0071,
        "sample_time": 0.0117,
        "parameters": 2.1e8,
        "exchange": {"algorithm": "async-parameter-server", "alpha": 1.3e-5, "rate": 9e9},
    }
    data = {"samples": 52, "sample_size": 4e6, "shards": 10, "placement": {"kind": "even", "over": "cluster"}}
    training = {"gpus": 2, "model": "m", "epochs": 1, "global_batch": 11, "data": data}
    case = from_mapping(
        {
            "schema_version": 1,
            "name": "two workers",
            "cluster": {"nodes": [{"count": 2, "gpus": 1, "nic": 2e8}]},
            "workload": {"models": {"m": model}, "jobs": [training]},
        }
    )
    for event_by_event in (False, True):
        assert run(case, event_by_event=event_by_event).jobs["samples"].tolist() == [52]
