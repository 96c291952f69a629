"""Shards, their owners and what is left of an epoch, by hand; transfers only take note of what is asked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.sim.cluster.cache import NodeCaches
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


def data(workers: tuple[int, ...] = (0, 1), free: tuple[float, ...] = (100.0, 100.0, 5.0), **keys: Any) -> JobData:
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
    with pytest.raises(ValueError, match="4 samples are requested, 3 are left"):
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
    assert made.reading_samples_per_s(lambda source, target: 5.0 if (source, target) == (2, 0) else 1e9).tolist() == [
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


def made_of(
    sizes: list[int], homes: list[list[int]], workers: tuple[int, ...], free: float = 1000.0, **keys: Any
) -> tuple[JobData, Any]:
    """Samples of 10 bytes, and what is asked of the network."""
    asked: Any = Asked()
    made = JobData(np.array(sizes), 10.0, homes, asked, np.full(3, free), **keys)
    made.assign(workers)
    return made, asked


def test_a_shard_without_samples_is_nobodys_work_and_still_has_an_owner() -> None:
    made, _ = made_of([4, 0, 6, 3], [[0], [0], [1], [2, 1]], (0, 1, 1))
    assert pieces(made) == [[(0, 0, 4)], [(2, 0, 6)], [(3, 0, 3)]]
    assert made.owner == [0, 0, 1, 2]


def test_what_is_unread_is_dealt_in_order_to_who_owns_least() -> None:
    made, _ = made_of([4, 5, 6, 4], [[2], [9], [9], [9]], (0, 1, 2))
    made.assign((0, 1, 2), [(3, 0, 4), (1, 2, 5), (2, 1, 2)])
    assert pieces(made) == [[(1, 2, 5)], [(2, 1, 2)], [(3, 0, 4)]]
    assert (made.owned, made.owner) == ([3, 1, 4], [2, 0, 1, 2])
    made.assign((0, 1, 2), [(1, 2, 5)])
    assert made.owner == [2, 0, 2, 0]


def test_a_dry_worker_takes_the_end_of_what_another_reads() -> None:
    made, asked = made_of([10, 4], [[0], [1]], (0, 1))
    made.prepare(np.array([3, 6]), np.ones(2))
    assert pieces(made) == [[(0, 0, 8)], [(1, 0, 4), (0, 8, 10)]]
    assert (made.owned, asked.started) == ([8, 6], [([0], 1, 20.0)])
    made.consume(np.array([3, 6]))
    assert (made.owned, made.ledger) == ([5, 0], [(1, 0, 4), (0, 8, 10)])
    made.prepare(np.array([2, 3]), np.ones(2))
    assert pieces(made) == [[(0, 3, 5)], [(0, 5, 8)]]
    assert [piece.id for queue in made.queues for piece in queue] == [0, 3]
    made.consume(np.array([2, 3]))
    made.next_epoch()
    assert (pieces(made), made.owned) == ([[(0, 0, 10)], [(1, 0, 4)]], [10, 4])


def test_a_dry_worker_takes_all_that_another_has_left_of_a_piece() -> None:
    made, _ = made_of([10, 4], [[0], [1]], (0, 1))
    made.prepare(np.array([3, 4]), np.ones(2))
    made.consume(np.array([3, 4]))
    made.prepare(np.array([0, 7]), np.ones(2))
    assert pieces(made) == [[], [(0, 3, 10)]]
    assert (made.owned, made.ledger) == ([0, 7], [(1, 0, 4), (0, 0, 3)])
    made.consume(np.array([0, 7]))
    made.next_epoch()
    assert made.left == 14


def test_a_dry_worker_takes_whole_pieces_that_nobody_has_started() -> None:
    made, _ = made_of([3, 2, 5], [[0], [0], [1]], (0, 1))
    made.prepare(np.array([3, 6]), np.ones(2))
    assert pieces(made) == [[(0, 0, 3)], [(2, 0, 5), (1, 0, 2)]]
    assert made.owned == [3, 7]
    assert [piece.id for queue in made.queues for piece in queue] == [0, 2, 1]


def test_a_piece_that_is_given_on_is_fetched_by_who_has_it_now() -> None:
    made, asked = made_of([3, 2, 5], [[0], [2], [1]], (0, 1))
    piece = made.queues[0][1]
    made.prepare(np.array([3, 5]), np.ones(2))
    assert asked.started == [([2], 0, 20.0)]
    made.consume(np.array([3, 5]))
    made.prepare(np.array([0, 1]), np.ones(2))
    assert (asked.cancelled, asked.started[1:]) == (1, [([2], 1, 20.0)])
    asked.arrive[0]()
    assert not made.is_ready(1, piece)
    assert piece.transfer is not None
    asked.arrive[1]()
    assert (made.is_ready(1, piece), piece.transfer) == (True, None)
    made.prepare(np.array([0, 2]), np.ones(2))
    assert len(asked.started) == 2


def test_just_what_is_left_may_be_asked_for() -> None:
    made, _ = made_of([3, 2], [[0], [1]], (0, 1))
    made.prepare(np.array([3, 2]), np.ones(2))
    made.consume(np.array([3, 2]))
    assert (made.left, made.ledger) == (0, [(0, 0, 3), (1, 0, 2)])


def test_a_node_keeps_whole_shards_that_it_has_fetched() -> None:
    """45 bytes on node 1: the shard of 40 goes when that of 30 comes."""
    caches = NodeCaches([0.0, 45.0, 30.0])
    made, asked = made_of([4, 3], [[0], [0]], (1,), caches=caches, job=7)
    made.prepare(np.array([4]), np.ones(1))
    assert asked.started == [([0], 1, 40.0), ([0], 1, 30.0)]
    asked.arrive[0]()
    assert (caches.holds(1, (7, 0)), caches.holds(1, (7, 1))) == (True, False)
    asked.arrive[1]()
    assert (caches.holds(1, (7, 0)), caches.holds(1, (7, 1))) == (False, True)
    for amount in (4, 3):
        made.prepare(np.array([amount]), np.ones(1))
        made.consume(np.array([amount]))
    made.next_epoch()
    assert [made.at_hand(0, piece) for piece in made.queues[0]] == [False, True]
    assert [made.is_ready(0, piece) for piece in made.queues[0]] == [False, False]
    assert made.reading_samples_per_s(lambda *_: 8.0).tolist() == [7 / 5]
    made.prepare(np.array([4]), np.ones(1))
    assert asked.started[2:] == [([0], 1, 40.0)]
    assert [made.is_ready(0, piece) for piece in made.queues[0]] == [False, True]


def test_a_part_of_a_shard_is_not_kept() -> None:
    caches = NodeCaches([0.0, 100.0, 30.0])
    made, asked = made_of([10], [[0]], (1, 2), caches=caches, job=7)
    made.prepare(np.array([3, 3]), np.ones(2))
    assert asked.started == [([0], 1, 100.0), ([0], 2, 30.0)]
    for arrived in asked.arrive:
        arrived()
    assert [caches.holds(node, (7, 0)) for node in (1, 2)] == [True, False]


def test_pieces_of_several_nodes_come_one_after_the_other() -> None:
    """40 bytes at 8 a second and 60 at 5: 17 s for 15 samples."""
    paths = {(0, 1): 8.0, (2, 1): 5.0}
    made, _ = made_of([4, 6, 5], [[0], [2], [1]], (1,))
    assert made.reading_samples_per_s(lambda source, node: paths[source, node]).tolist() == [15 / 17]
    same, _ = made_of([4, 6, 5], [[0], [0], [1]], (1,))
    assert same.reading_samples_per_s(lambda source, node: paths[source, node]).tolist() == [1.2]


def test_a_piece_moves_to_its_own_worker_to_be_stored_there() -> None:
    made, asked = made_of([3, 2, 5], [[0], [2], [1]], (0, 1))
    piece = made.queues[0][1]
    made.prepare(np.array([3, 0]), np.ones(2))
    assert made.move(piece.id, 0) is None
    assert (made.owned, pieces(made)[0], made.owner[1]) == ([5, 5], [(0, 0, 3), (1, 0, 2)], 0)
    assert (asked.cancelled, asked.started) == (1, [([2], 0, 20.0), ([2], 0, 20.0)])
    assert made.move(made.queues[0][0].id, 1) == "its owner has started it meanwhile"
    assert made.move(99, 1) == "it has been read meanwhile"


def test_a_piece_moves_at_once_to_where_it_is_stored_or_has_no_size() -> None:
    made, asked = made_of([3, 4], [[0, 1], [1]], (0, 1), free=0.0)
    assert pieces(made) == [[(0, 0, 3)], [(1, 0, 4)]]
    assert made.move(made.queues[0][0].id, 1) is None
    assert (made.owned, asked.started, made.homes) == ([0, 7], [], [[0, 1], [1]])
    made.bytes_per_sample = 0.0
    assert made.move(made.queues[1][0].id, 0) is None
    assert (made.owned, asked.started, made.owner) == ([4, 3], [], [1, 0])


def test_pieces_that_nobody_has_started_are_put_in_order() -> None:
    made, _ = made_of([3, 2, 5, 4], [[0]] * 4, (0,))
    made.mark_started(np.array([3]))
    assert [piece.started for piece in made.queues[0]] == [True, False, False, False]
    made.reorder({3: 0, 1: 1})
    assert [piece.id for piece in made.queues[0]] == [0, 3, 1, 2]
    made.mark_started(np.array([4]))
    assert [piece.started for piece in made.queues[0]] == [True, True, False, False]


def test_what_is_on_its_way_stops_when_a_job_goes_back_to_a_checkpoint_or_ends() -> None:
    made, asked = made_of([3, 2, 5], [[0], [2], [1]], (0, 1))
    saved = made.snapshot()
    made.prepare(np.array([3, 5]), np.ones(2))
    made.restore(saved, [1, 0])
    assert asked.cancelled == 1
    assert pieces(made) == [[(2, 0, 5)], [(0, 0, 3), (1, 0, 2)]]
    made.prepare(np.array([5, 3]), np.ones(2))
    made.release()
    made.release()
    assert asked.cancelled == 2


def test_a_shard_that_is_read_twice_or_with_a_gap_is_an_error() -> None:
    for ledger, text in (
        ([(0, 0, 3), (1, 1, 2)], "epoch 2: shard 1 continues at 1, not 0"),
        ([(0, 0, 2), (0, 2, 3), (1, 0, 1)], "epoch 2: samples are missing"),
        ([(1, 0, 2), (0, 0, 2), (0, 1, 3)], "epoch 2: shard 0 continues at 1, not 2"),
    ):
        made, _ = made_of([3, 2], [[0], [1]], (0, 1))
        made.epoch, made.ledger = 2, ledger
        with pytest.raises(ConservationError, match=text):
            made.next_epoch()
