"""The assignment of an epoch's samples to workers: queues of shards, each sample once under any shares.

Every rank keeps the whole split and draws for all ranks, so no messages are needed to agree on it: equal
inputs, applied at equal rounds, give equal splits. The rules are those of `policies.shards`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Self

import numpy as np

from equipoise.policies.observation import Ints
from equipoise.policies.physics import deal
from equipoise.policies.shards import next_batch, reordered, take_from, why_not_moved


@dataclass(frozen=True, slots=True)
class LivePiece:
    """Positions [begin, end) of the epoch's order; the unread rest of shard `shard`."""

    id: int
    shard: int
    begin: int
    end: int

    @property
    def left(self) -> int:
        """Unread samples."""
        return self.end - self.begin


def block_owners(shards: int, workers: int) -> Ints:
    """Owner of every shard when each worker gets a block of shards, as equal as possible."""
    per_worker = deal(shards, np.ones(workers, dtype=np.int64))
    return np.repeat(np.arange(workers, dtype=np.int64), per_worker)


def few_samples(shares: Ints, unit: int) -> int:
    """Samples of which each worker with a share gets one micro-batch; with fewer, one of several has none."""
    workers = int(np.count_nonzero(shares))
    return workers * unit if workers > 1 else 0


def rounds_in(samples: int, batch: int, few: int, drop_last: bool) -> int:
    """Rounds of an epoch; a rest of fewer than `few` samples is part of the one before."""
    rounds, rest = divmod(samples, batch)
    return rounds + (rest > 0 and not drop_last and (rest >= few or not rounds))


class EpochSplit:
    """One epoch (or the rest of one): its order of dataset indices, and every worker's queue of pieces."""

    def __init__(
        self, order: Ints, queues: Sequence[Sequence[LivePiece]], next_id: int, begun: frozenset[int] = frozenset()
    ) -> None:
        self.order = order
        self._queues: list[tuple[LivePiece, ...]] = [tuple(queue) for queue in queues]
        self._begun = begun  # ids of partly read pieces, in addition to those whose cursor shows it
        self.next_id = next_id
        # Draws of equal shares of the same pieces: how many are still possible, and how many `_owned` lacks.
        self._owned: Ints = np.empty(0, dtype=np.int64)
        self._steady = self._late = self._begin = self._mine = 0  # `_mine`: the worker that draws
        self.owned = np.array([sum(p.left for p in queue) for queue in self._queues], dtype=np.int64)
        self._left = int(self.owned.sum())
        self._demand, self._batch = self.owned, self._left  # the last shares, and their sum
        self._recount()

    @property
    def owned(self) -> Ints:
        """Samples not drawn yet, of every worker."""
        if self._late:
            self._owned, self._late = self._owned - self._late * self._demand, 0
        return self._owned

    @owned.setter
    def owned(self, samples: Ints) -> None:
        self._owned, self._late, self._steady = samples, 0, 0

    @classmethod
    def whole(
        cls,
        order: Ints,
        shards: int,
        owners: Ints | None,
        workers: int,
        first_id: int = 0,
        *,
        sizes: Ints | None = None,
        sequence: Ints | None = None,
    ) -> EpochSplit:
        """A fresh epoch: `order` cut into `shards` nearly equal shards, shard k with `owners[k]`.

        The first shards are the larger ones. Without owners, workers get equal blocks of shards. `sizes` are the
        samples of each shard, if shards are files, and `sequence` is their order.
        """
        shards = max(1, min(shards, len(order)))
        sizes = deal(len(order), np.ones(shards, dtype=np.int64)) if sizes is None else sizes
        sequence = np.arange(shards) if sequence is None else sequence
        cuts = np.concatenate(([0], np.cumsum(sizes[sequence])))
        if owners is None or len(owners) != shards:
            owners = block_owners(shards, workers)
        queues: list[list[LivePiece]] = [[] for _ in range(workers)]
        for at, k in enumerate(sequence.tolist()):
            if sizes[k]:
                queues[owners[k]].append(LivePiece(first_id + k, k, int(cuts[at]), int(cuts[at + 1])))
        return cls(order, queues, first_id + shards)

    @property
    def left(self) -> int:
        """Samples not drawn yet."""
        return self._left

    def any_sample(self) -> int:
        """Any dataset index, as a stand-in for a rank without samples."""
        return int(self.order[0])

    def copy(self) -> EpochSplit:
        """An independent copy, which shares everything: lists and arrays are replaced, not changed."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def queues(self) -> list[tuple[LivePiece, ...]]:
        """Unread pieces of every worker, first to be read first."""
        self._settle()
        return list(self._queues)

    def begun(self, piece: LivePiece) -> bool:
        """Whether the piece is partly read: it may then be cut, but not moved."""
        return piece.id in self._begun

    # -- drawing -------------------------------------------------------------------------------------------

    def demand(self, shares: Ints, unit: int, merge: bool = False) -> Ints:
        """Samples that each worker takes next: its share, or its part of the rest when less than a batch is left.

        `merge`: a rest that would leave a worker without samples is added to the batch before it, and a worker with a
        share gets a micro-batch of `unit` at least, if there are as many.
        """
        if shares is not self._demand:
            self.owned = self.owned  # of the draws before
            self._demand, self._batch = shares, int(shares.sum())
        left, batch = self.left, self._batch
        if left >= batch + len(shares) * unit:  # as nearly always
            return shares
        merged = merge and batch < left < batch + few_samples(shares, unit)
        demand = deal(left, shares, unit) if merged else next_batch(left, shares, unit)
        for worker in np.flatnonzero((demand == 0) & (shares > 0)) if merge else ():
            demand = demand.copy() if demand is shares else demand
            most = int(np.argmax(demand))
            if demand[most] >= 2 * unit:
                demand[most] -= unit
                demand[worker] += unit
        return demand

    def draw(self, demand: Ints, worker: int) -> Ints:
        """Take `demand` for all workers; returns the dataset indices of `worker`."""
        same, mine = demand is self._demand, int(demand[worker])
        self._left -= self._batch if same else int(demand.sum())
        if same and not (self._steady and worker == self._mine):
            ahead = self.owned - self._behind  # left in the piece at the head of each queue
            self._steady, self._mine = int(((ahead - 1) // np.maximum(demand, 1)).min()), worker
            self._begin = self._queues[worker][0].end - int(ahead[worker]) if self._steady > 0 and mine else 0
        if same and self._steady > 0:
            self._steady, self._late, begin = self._steady - 1, self._late + 1, self._begin
            self._begin += mine
            return self.order[begin : begin + mine]
        return self._draw_across(demand, worker)

    def _draw_across(self, demand: Ints, worker: int) -> Ints:
        self._settle()
        for thief, need in enumerate(demand.tolist()):
            while self.owned[thief] < need:
                self._take_from_another(thief, need - int(self.owned[thief]), demand)
        taken = [self.order[:0]]
        for w, need in enumerate(demand.tolist()):
            queue = list(self._queues[w])
            while need > 0:
                head = queue.pop(0)
                some = min(need, head.left)
                if w == worker:
                    taken.append(self.order[head.begin : head.begin + some])
                need -= some
                if some < head.left:
                    queue.insert(0, LivePiece(head.id, head.shard, head.begin + some, head.end))
                    self._begun |= {head.id}
            self._queues[w] = tuple(queue)
        self.owned = self.owned - demand
        self._recount()
        return np.concatenate(taken)

    def _recount(self) -> None:
        """Samples of each queue behind its head: the head's cursor follows from `owned`."""
        self._steady = 0
        self._behind = np.array([sum(p.left for p in queue[1:]) for queue in self._queues], dtype=np.int64)

    def _settle(self) -> None:
        """Write the cursors that `owned` implies into the heads."""
        self._queues = list(self._queues)
        for w, queue in enumerate(self._queues):
            if queue:
                head, left = queue[0], int(self.owned[w] - self._behind[w])
                if left != head.left:
                    self._begun |= {head.id}
                    self._queues[w] = (LivePiece(head.id, head.shard, head.end - left, head.end), *queue[1:])

    def _take_from_another(self, taker: int, short: int, demand: Ints) -> None:
        # A round counts as a second: shares follow speed, and are known to every rank.
        pace = 1.0 / np.maximum(demand, 1)
        last = [queue[-1].left if queue else 0 for queue in self._queues]
        started = [bool(queue) and queue[-1].id in self._begun for queue in self._queues]
        taken = take_from(taker, short, self.owned.tolist(), demand.tolist(), pace, last, started)
        piece = self._queues[taken.source][-1]
        part = piece
        if taken.samples < piece.left:
            part = LivePiece(self.next_id, piece.shard, piece.end - taken.samples, piece.end)
            self.next_id += 1
        self._hand_over(taken.source, taker, piece, part)

    def _hand_over(self, source: int, target: int, piece: LivePiece, part: LivePiece) -> None:
        rest = LivePiece(piece.id, piece.shard, piece.begin, part.begin)
        self._queues, self.owned = list(self._queues), self.owned.copy()
        kept = tuple(p for p in self._queues[source] if p.id != piece.id)
        at = [p.id for p in self._queues[source]].index(piece.id)
        if rest.left > 0 and part.id != piece.id:
            kept = (*self._queues[source][:at], rest, *self._queues[source][at + 1 :])
        self._queues[source] = kept
        self._queues[target] = (*self._queues[target], part)
        self.owned[source] -= part.left
        self.owned[target] += part.left
        self._recount()

    # -- plans ---------------------------------------------------------------------------------------------

    def move(self, piece_id: int, target: int) -> str | None:
        """Give an unstarted piece to another worker; returns the reason if it cannot, or None."""
        self._settle()
        found = next(((w, p) for w, q in enumerate(self._queues) for p in q if p.id == piece_id), None)
        source, piece = found or (-1, None)
        refused = why_not_moved(piece, piece_id in self._begun)
        if piece is not None and refused is None and source != target:
            self._hand_over(source, target, piece, piece)
        return refused

    def reorder(self, rank: Mapping[int, int]) -> None:
        """Sort each queue's unstarted pieces by `rank[piece id]`; those without a rank come last."""
        self._settle()
        self._queues = [tuple(reordered(queue, self.begun, rank)) for queue in self._queues]
        self._recount()

    # -- as plain data -------------------------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """The split as plain data, without the epoch's order, which the reader knows."""
        queues = [[astuple(piece) for piece in queue] for queue in self.queues()]
        return {"queues": queues, "next_id": self.next_id, "begun": sorted(self._begun)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], order: Ints) -> Self:
        """The inverse of `to_data`."""
        queues = [[LivePiece(*piece) for piece in queue] for queue in data["queues"]]
        return cls(order, queues, data["next_id"], frozenset(data["begun"]))

    def for_workers(self, workers: int) -> EpochSplit:
        """The unread rest of the epoch, split among another number of workers; unstarted pieces stay whole."""
        queues: list[list[LivePiece]] = [[] for _ in range(workers)]
        held = np.zeros(workers, dtype=np.int64)
        for piece in sorted((p for queue in self.queues() for p in queue), key=lambda p: p.begin):
            owner = int(np.argmin(held))
            queues[owner].append(piece)
            held[owner] += piece.left
        return EpochSplit(self.order, queues, self.next_id)
