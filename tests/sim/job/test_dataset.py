"""Shards, their owners and what is left of an epoch, by hand; transfers only take note of what is asked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.sim.job.dataset import ConservationError, JobData, place_shards


class Asked:
    """What was asked of the network."""

    def __init__(self) -> None:
        self.started: list[tuple[list[int], int, float]] = []
        self.cancelled = 0
        self.arrive: list[Any] = []

    def start(self, sources: list[int], target: int, size_bytes: float, arrived: Any, owner: int) -> Any:
        self.started.append((list(sources), target, size_bytes))
        self.arrive.append(arrived)
        return type("Transfer", (), {"size_bytes": size_bytes})()

    def cancel(self, transfer: Any) -> None:
        self.cancelled += 1


def data(
    workers: tuple[int, ...] = (0, 1), free: tuple[float, ...] = (100.0, 100.0, 5.0), **keys: Any
) -> JobData:
    """Shards of 4, 4 and 2 samples of 10 bytes on nodes 0, 1 and 2; workers on nodes 0 and 1."""
    asked: Any = Asked()
    made = JobData(np.array([4, 4, 2]), 10.0, [[0], [1], [2]], asked, np.array(free), **keys)
    made.assign(workers)
    return made


def pieces(made: JobData) -> list[list[tuple[int, int, int]]]:
    return [[(p.shard, p.cursor, p.end) for p in queue] for queue in made.queues]


def test_who_owns_what() -> None:
    """A shard goes to a worker on a node that has it, who owns least of them; others to who owns least."""
    made = data()
    assert pieces(made) == [[(0, 0, 4), (2, 0, 2)], [(1, 0, 4)]]
    assert (made.owned, made.left, made.size, made.owner) == ([6, 4], 10, 10, [0, 1, 0])
    three = data((1, 1, 2))
    assert pieces(three) == [[(1, 0, 4)], [(0, 0, 4)], [(2, 0, 2)]]
    assert place_shards(4, [5, 7, 9], np.array([1.0, 1.0, 2.0]), 2) == [[5, 7], [7, 9], [9, 5], [9, 5]]
    assert place_shards(1, [5], np.ones(1), 3) == [[5]]


def test_what_is_read_is_noted_and_the_next_epoch_begins_whole() -> None:
    made = data()
    seconds = np.ones(2)
    made.prepare(np.array([5, 2]), seconds)
    assert made.transfers.started == [([2], 0, 20.0)]  # type: ignore[attr-defined]
    made.transfers.arrive[0]()  # type: ignore[attr-defined]
    made.consume(np.array([5, 2]))
    assert (made.owned, made.left) == ([1, 2], 3)
    assert made.ledger == [(0, 0, 4)]
    found = made.snapshot()
    assert (found.epoch, found.pieces) == (0, ((2, 1, 2, 0), (1, 2, 4, 1)))
    assert found.ledger == ((0, 0, 4), (2, 0, 1), (1, 0, 2))
    with pytest.raises(ValueError, match="4 samples are asked for, 3 are left"):
        made.prepare(np.array([4, 0]), seconds)
    made.prepare(np.array([1, 2]), seconds)
    made.consume(np.array([1, 2]))
    made.next_epoch()
    assert (made.epoch, made.left, made.ledger) == (1, 10, [])
    made.restore(found, [0, 1])
    assert (made.epoch, made.left) == (0, 3)
    assert pieces(made) == [[(2, 1, 2)], [(1, 2, 4)]]
    made.ledger.append((0, 0, 1))
    with pytest.raises(ConservationError, match="epoch 0: shard 0 continues at 0, not 1"):
        made.next_epoch()
    missing = data()
    missing.ledger = [(0, 0, 4), (1, 0, 4), (2, 0, 1)]
    with pytest.raises(ConservationError, match="samples are missing"):
        missing.next_epoch()


def test_a_worker_reads_what_it_owns_over_its_paths() -> None:
    """Of six samples two come over a path of 5 bytes/s: 20 bytes in 4 s."""
    made = data()
    assert made.reading_samples_per_s(
        lambda source, target: 5.0 if (source, target) == (2, 0) else 1e9
    ).tolist() == [
        1.5,
        math.inf,
    ]
    assert [made.is_ready(0, piece) for piece in made.queues[0]] == [True, False]
    free = data()
    free.bytes_per_sample = 0.0
    assert free.is_ready(0, free.queues[0][1])
    assert free.reading_samples_per_s(lambda *_: 1.0).tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("prefetch", [1, 2, 0])
def test_so_many_pieces_are_fetched_ahead(prefetch: int) -> None:
    """Worker 0 needs two of the four samples that its node has; what comes then is on other nodes."""
    asked: Any = Asked()
    made = JobData(np.array([4, 3, 2]), 10.0, [[0], [1], [2]], asked, np.full(3, 100.0), prefetch=prefetch)
    made.assign([0])
    made.prepare(np.array([2]), np.ones(1))
    assert asked.started == [([1], 0, 30.0), ([2], 0, 20.0)][:prefetch]
    made.prepare(np.array([5]), np.ones(1))
    assert len(asked.started) == min(2, 1 + prefetch)


def test_a_piece_moves_where_there_is_room() -> None:
    made = data(free=(100.0, 20.0, 5.0))
    piece = made.queues[0][1]
    assert made.move(99, 1) is not None
    assert made.move(piece.id, 1) is None
    assert (made.owned, made.owner) == ([4, 6], [0, 1, 1])
    assert made.transfers.started == [([2], 1, 20.0)]  # type: ignore[attr-defined]
    assert made.homes[2] == [2]
    made.transfers.arrive[0]()  # type: ignore[attr-defined]
    assert made.homes[2] == [1]
    assert made.storage_free_bytes.tolist() == [100, 0, 25]
    full = data(free=(100.0, 19.9, 5.0))
    assert full.move(full.queues[0][1].id, 1) == "node 1 has no room for it"
    assert full.owned == [6, 4]
