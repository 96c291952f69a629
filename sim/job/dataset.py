"""A job's dataset: shards, their owners and nodes, with every sample read exactly once per epoch.

`policies.shards` decides which worker reads which samples. A piece that is not stored on the worker's node is fetched
whole, one piece ahead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from equipoise.policies.observation import Floats, Ints
from equipoise.policies.physics import deal
from equipoise.policies.shards import reordered, take_from, why_not_moved
from equipoise.sim.cluster.cache import NodeCaches
from equipoise.sim.network.transfers import Transfer, Transfers


class ConservationError(AssertionError):
    """A sample was trained twice or never in one epoch: a bug of the simulator, never of a scenario."""


@dataclass(slots=True, eq=False)
class Piece:
    """Samples [cursor, end) of a shard are unread; [begin, cursor) are read and not yet in the ledger."""

    id: int
    shard: int
    begin: int
    cursor: int
    end: int
    started: bool = False
    fetched: bool = False
    transfer: Transfer | None = None

    @property
    def left(self) -> int:
        """Unread samples."""
        return self.end - self.cursor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Cursors of a checkpoint: pieces as (shard, cursor, end, owner), and what the epoch has trained."""

    epoch: int
    pieces: tuple[tuple[int, int, int, int], ...]
    ledger: tuple[tuple[int, int, int], ...]


@dataclass
class JobData:
    """The dataset of one job. `homes[shard]` are the nodes that store it; `owner[shard]` its worker."""

    samples_of: Ints
    bytes_per_sample: float
    homes: list[list[int]]
    transfers: Transfers
    storage_free_bytes: Floats
    job: int = 0  # row, whose transfers these are
    caches: NodeCaches = field(default_factory=lambda: NodeCaches(()))
    prefetch: int = 1  # pieces that are fetched ahead
    epoch: int = 0
    owner: list[int] = field(default_factory=list)
    queues: list[deque[Piece]] = field(default_factory=list)
    owned: list[int] = field(default_factory=list)
    worker_node: list[int] = field(default_factory=list)
    ledger: list[tuple[int, int, int]] = field(default_factory=list)
    _next_id: int = 0

    @property
    def left(self) -> int:
        """Unread samples of this epoch."""
        return sum(self.owned)

    @property
    def size(self) -> int:
        """Samples of one epoch."""
        return int(self.samples_of.sum())

    # -- ownership -----------------------------------------------------------------------------------------

    def assign(self, worker_nodes: Sequence[int], unread: Iterable[tuple[int, int, int]] | None = None) -> None:
        """Give every unread piece an owner: a worker on a node that stores it, else the one that owns least.

        `unread` are (shard, cursor, end); None takes what is unread now, or a whole epoch before the first.
        """
        if unread is None:
            unread = self._unread() if self.queues else self._whole_epoch()
        pieces = sorted(unread)
        self._drop_transfers()
        self.worker_node = list(worker_nodes)
        n = len(self.worker_node)
        self.queues, self.owned = [deque() for _ in range(n)], [0] * n
        self.owner = [-1] * len(self.samples_of)
        local: dict[int, list[int]] = {}
        for worker, node in enumerate(self.worker_node):
            local.setdefault(node, []).append(worker)
        remote = []
        for shard, cursor, end in pieces:
            near = [w for node in self.homes[shard] for w in local.get(node, ())]
            if near:
                self._give(min(near, key=lambda w: (self.owned[w], w)), shard, cursor, end)
            else:
                remote.append((shard, cursor, end))
        for shard, cursor, end in remote:
            self._give(min(range(n), key=lambda w: (self.owned[w], w)), shard, cursor, end)
        for shard, owner in enumerate(self.owner):
            if owner < 0:  # read already in this epoch
                near = [w for node in self.homes[shard] for w in local.get(node, ())]
                self.owner[shard] = near[0] if near else shard % n

    def _give(self, worker: int, shard: int, cursor: int, end: int) -> None:
        piece = Piece(self._next_id, shard, cursor, cursor, end)
        self._next_id += 1
        self.queues[worker].append(piece)
        self.owned[worker] += end - cursor
        self.owner[shard] = worker

    def _whole_epoch(self) -> list[tuple[int, int, int]]:
        return [(shard, 0, int(size)) for shard, size in enumerate(self.samples_of) if size > 0]

    def _unread(self) -> list[tuple[int, int, int]]:
        for queue in self.queues:
            for piece in queue:
                self._record(piece)
        return [(p.shard, p.cursor, p.end) for queue in self.queues for p in queue]

    def _drop_transfers(self) -> None:
        for queue in self.queues:
            for piece in queue:
                if piece.transfer is not None:
                    self.transfers.cancel(piece.transfer)
                    piece.transfer = None

    def release(self) -> None:
        """Stop all transfers, because the job has no workers any more."""
        self._drop_transfers()

    # -- reading -------------------------------------------------------------------------------------------

    def prepare(self, demand: Ints, seconds_per_sample: Floats) -> None:
        """Make every worker's queue hold at least `demand` (samples); dry workers take from others.

        Raises ValueError when more is asked than is left.
        """
        if int(demand.sum()) > self.left:
            raise ValueError(f"{int(demand.sum())} samples are requested, {self.left} are left")
        for worker, need in enumerate(demand.tolist()):
            self._start(worker, need)
        for worker, need in enumerate(demand.tolist()):
            while self.owned[worker] < need:
                self._take_from_another(worker, need - self.owned[worker], demand, seconds_per_sample)
            self._start(worker, need)
            self._fetch_ahead(worker, need)

    def _start(self, worker: int, need: int) -> None:
        for piece in self.queues[worker]:
            if need <= 0:
                break
            piece.started = True
            need -= piece.left

    def _take_from_another(self, taker: int, short: int, demand: Ints, seconds_per_sample: Floats) -> None:
        last = [queue[-1].left if queue else 0 for queue in self.queues]
        started = [bool(queue) and queue[-1].started for queue in self.queues]
        taken = take_from(taker, short, self.owned, demand.tolist(), seconds_per_sample, last, started)
        piece = self._cut(taken.source, taken.samples)
        self.owned[taken.source] -= piece.left
        self.owned[taker] += piece.left
        self.queues[taker].append(piece)

    def _cut(self, source: int, wanted: int) -> Piece:
        """The last `wanted` samples of a worker's last piece."""
        last = self.queues[source][-1]
        if wanted == last.left:
            self.queues[source].pop()
            self._forget_transfer(last)
            self._record(last)
            return last
        rest = Piece(self._next_id, last.shard, last.end - wanted, last.end - wanted, last.end)
        self._next_id += 1
        last.end -= wanted
        return rest

    def _forget_transfer(self, piece: Piece) -> None:
        # Who has taken samples of it while it is on its way still waits for them: then it goes on.
        if piece.transfer is not None and piece.cursor == piece.begin:
            self.transfers.cancel(piece.transfer)
        piece.transfer, piece.fetched = None, False

    def _is_whole(self, piece: Piece) -> bool:
        return piece.left == int(self.samples_of[piece.shard])

    def at_hand(self, worker: int, piece: Piece) -> bool:
        """Whether the worker need not fetch the piece: it is ready, or cached on its node."""
        return self.is_ready(worker, piece) or self._is_kept(worker, piece)

    def _is_kept(self, worker: int, piece: Piece) -> bool:
        return bool(self.caches.capacity_bytes) and self.caches.holds(self.worker_node[worker], (self.job, piece.shard))

    def is_ready(self, worker: int, piece: Piece) -> bool:
        """Whether the worker can read the piece now."""
        stored = self.worker_node[worker] in self.homes[piece.shard]
        return piece.fetched or stored or self.bytes_per_sample == 0.0

    def _fetch_ahead(self, worker: int, need: int) -> None:
        """Fetch what the next `need` samples take, and `prefetch` pieces more."""
        more = self.prefetch
        for piece in self.queues[worker]:
            if need <= 0:
                if more == 0:
                    break
                more -= 1
            self._fetch(worker, piece)
            need -= piece.left

    def _fetch(self, worker: int, piece: Piece) -> None:
        if piece.transfer is not None or self.is_ready(worker, piece):
            return
        node, key, whole = self.worker_node[worker], (self.job, piece.shard), self._is_whole(piece)
        if self.caches.capacity_bytes and self.caches.use(node, key):
            piece.fetched = True
            return

        def arrived() -> None:
            """Mark the piece as present."""
            if whole and self.caches.capacity_bytes:
                self.caches.keep(node, key, transfer.size_bytes)
            if piece.transfer is transfer:  # it has not been given to another worker meanwhile
                piece.transfer, piece.fetched = None, True

        transfer = piece.transfer = self.transfers.start(
            self.homes[piece.shard], self.worker_node[worker], piece.left * self.bytes_per_sample, arrived, self.job
        )

    def reading_samples_per_s(self, bytes_per_s: Callable[[int, int], float]) -> Floats:
        """(workers,) that each can read of what it owns, over paths of `bytes_per_s(source, target)`.

        Infinite where all that it owns is on its node, whatever others of the job fetch meanwhile.
        """
        speed = np.full(len(self.queues), np.inf)
        for worker, queue in enumerate(self.queues if self.bytes_per_sample > 0.0 else ()):
            node, left = self.worker_node[worker], dict[int, int]()
            for piece in queue:
                home = self.homes[piece.shard]
                if node not in home and not self._is_kept(worker, piece):
                    left[home[0]] = left.get(home[0], 0) + piece.left
            if left:
                each_s = math.fsum(n * self.bytes_per_sample / bytes_per_s(home, node) for home, n in left.items())
                speed[worker] = self.owned[worker] / each_s
        return speed

    def mark_started(self, demand: Ints) -> None:
        """The running period reads the next `demand` samples of each worker."""
        for worker, need in enumerate(demand.tolist()):
            self._start(worker, need)

    def consume(self, amounts: Ints) -> None:
        """Read `amounts[i]` samples from the front of queue i."""
        for worker, amount in enumerate(amounts.tolist()):
            queue = self.queues[worker]
            self.owned[worker] -= amount
            while amount > 0:
                piece = queue[0]
                piece.started = True
                taken = min(amount, piece.left)
                piece.cursor += taken
                amount -= taken
                if piece.left == 0:
                    self._record(queue.popleft())

    def _record(self, piece: Piece) -> None:
        if piece.cursor > piece.begin:
            self.ledger.append((piece.shard, piece.begin, piece.cursor))
            piece.begin = piece.cursor

    def next_epoch(self) -> None:
        """Check that the epoch trained every sample exactly once, and begin the next with the same owners.

        Raises ConservationError otherwise.
        """
        expected, at = {shard: int(size) for shard, size in enumerate(self.samples_of)}, (-1, 0)
        for shard, begin, end in sorted(self.ledger):
            at = at if shard == at[0] else (shard, 0)
            if begin != at[1]:
                raise ConservationError(f"epoch {self.epoch}: shard {shard} continues at {begin}, not {at[1]}")
            at = (shard, end)
            expected[shard] -= end - begin
        if any(expected.values()):
            raise ConservationError(f"epoch {self.epoch}: samples are missing")
        self.epoch += 1
        self.ledger.clear()
        for shard, begin, end in self._whole_epoch():
            if end > 0:
                self._give(self.owner[shard], shard, begin, end)

    # -- checkpoints and plans -----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The cursors now."""
        unread = self._unread()
        owners = [w for w, queue in enumerate(self.queues) for _ in queue]
        pieces = tuple((*piece, owner) for piece, owner in zip(unread, owners, strict=True))
        return Snapshot(self.epoch, pieces, tuple(self.ledger))

    def restore(self, snapshot: Snapshot, worker_nodes: Sequence[int]) -> None:
        """Go back to a checkpoint, on new workers."""
        self.epoch, self.ledger = snapshot.epoch, list(snapshot.ledger)
        self.assign(worker_nodes, [(shard, cursor, end) for shard, cursor, end, _ in snapshot.pieces])

    def move(self, piece_id: int, target_worker: int) -> str | None:
        """Give an unstarted piece to another worker and store it on that worker's node.

        Returns why it was refused, or None.
        """
        found = next(((w, p) for w, q in enumerate(self.queues) for p in q if p.id == piece_id), None)
        source_worker, piece = found or (-1, None)
        refused = why_not_moved(piece, piece is not None and piece.started)
        if refused or piece is None:
            return refused
        node, moved_bytes = self.worker_node[target_worker], piece.left * self.bytes_per_sample
        stored = node in self.homes[piece.shard]
        if not stored and moved_bytes > self.storage_free_bytes[node]:
            return f"node {node} has no room for it"
        self._forget_transfer(piece)
        if source_worker != target_worker:
            self.queues[source_worker].remove(piece)
            self.owned[source_worker] -= piece.left
            self.owned[target_worker] += piece.left
            self.queues[target_worker].append(piece)
        self.owner[piece.shard] = target_worker
        if not stored and moved_bytes > 0.0:
            self._relocate(piece, node, moved_bytes)
        return None

    def _relocate(self, piece: Piece, node: int, moved_bytes: float) -> None:
        whole = self._is_whole(piece)
        source = self.homes[piece.shard][0]

        def arrived() -> None:
            """Mark the piece as present."""
            piece.transfer, piece.fetched = None, True
            if whole:
                self.homes[piece.shard][0] = node
                self.storage_free_bytes[source] += moved_bytes
                self.storage_free_bytes[node] -= moved_bytes

        piece.transfer = self.transfers.start(self.homes[piece.shard], node, moved_bytes, arrived, self.job)

    def reorder(self, rank: dict[int, int]) -> None:
        """Sort each queue's unstarted pieces by `rank[piece id]`; those without a rank stay last, in order."""
        self.queues = [deque(reordered(queue, lambda p: p.started, rank)) for queue in self.queues]


def place_shards(count: int, nodes: Sequence[int], weights: Floats, replicas: int) -> list[list[int]]:
    """Nodes that store each of `count` shards: node k gets a share proportional to weights[k].

    Replicas go to the following nodes.
    """
    first = np.repeat(np.arange(len(nodes)), deal(count, weights))
    copies = min(replicas, len(nodes))
    return [[int(nodes[(k + r) % len(nodes)]) for r in range(copies)] for k in first.tolist()]
