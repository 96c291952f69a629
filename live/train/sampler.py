"""A batch sampler whose share of the global batch may change between rounds, with every sample once per epoch.

A round is one global batch. A loader may draw rounds ahead of training (worker processes, prefetching); a change
therefore names the first round it holds for, and is applied by every rank when it draws that round.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.live.train.change import RoundChange
from equipoise.live.train.epoch_split import EpochSplit, block_owners, few_samples, rounds_in
from equipoise.policies.observation import Ints
from equipoise.policies.physics import deal


@dataclass(slots=True)  # made in every round: not frozen, which takes three times as long
class Round:
    """The samples drawn for one round."""

    number: int
    epoch: int
    samples: tuple[int, ...]  # of every rank
    indices: Ints  # dataset indices of this rank
    last: bool  # of its epoch
    rate: float = 1.0  # factor on the script's learning rate
    stand_in: int = 0  # the one that is read, without weight, by a rank that has none

    @property
    def read(self) -> Ints:
        """Dataset indices that this rank reads."""
        return self.indices if len(self.indices) else np.array([self.stand_in], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Files:
    """Data in files, which are its shards; samples are numbered file by file."""

    sizes: Ints  # samples of each
    digest: str  # another one for other files


class ShareSampler:
    """Yields this rank's part of every global batch, as lists of dataset indices, one epoch per iteration.

    Use as `DataLoader(dataset, batch_sampler=sampler)`. A rank whose share is zero draws one index that
    carries no weight, because every rank must take part in every exchange.

    Raises ValueError when the dataset is empty or the batch is smaller than one micro-batch.
    """

    def __init__(
        self,
        samples: int,
        *,
        rank: int,
        ranks: int,
        global_batch: int,
        micro_batch: int = 1,
        shards: int = 64,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        files: Files | None = None,
    ) -> None:
        """`files`: the data files, which are the shards; None: the samples are cut into `shards`."""
        if samples < 1:
            raise ValueError("the dataset is empty")
        if global_batch < max(1, micro_batch):
            raise ValueError(f"global_batch {global_batch} is less than one micro-batch of {micro_batch}")
        self.samples, self.global_batch, self.micro_batch = samples, global_batch, micro_batch
        self.shards, self.shuffle, self.seed = min(shards, samples), shuffle, seed
        self._files = files
        if files is not None:
            self.shards = len(files.sizes)
        if drop_last and samples < global_batch:
            raise ValueError(f"drop_last: leaves nothing of {samples} samples, the global batch is {global_batch}")
        self.drop_last, self._given_batch = drop_last, global_batch
        self.rate = 1.0  # factor on the script's learning rate
        self.epoch = -1
        self.drawn = 0  # rounds drawn since the start
        self.trained = 0  # rounds finished since the start
        self.refused: list[str] = []  # moves that came too late
        self._next_id = 0
        self._begun_at = 0  # rounds trained when the running epoch began
        self._pending: list[RoundChange] = []
        self._rounds: deque[Round] = deque()  # drawn and not yet safe, oldest first
        self._before: dict[int, tuple[int, EpochSplit]] = {}  # (epoch, deal) before each of those was drawn
        self._resume = False
        self._ahead = 0  # rounds that the loader draws ahead, seen at the first step of an epoch
        self._drawn_by = 0  # the thread that drew last
        self._stand_in = -1  # the last sample that was drawn, if any
        self._demand, self._samples = np.empty(0, dtype=np.int64), ()  # the last one, as an array and a tuple
        self.before_draw: Callable[[], None] | None = None  # called once
        self.watch: Callable[[], None] = lambda: None  # called whenever rounds were dealt or trained
        self.set_world(rank, ranks)
        self.deal: EpochSplit | None = None

    def set_world(self, rank: int, ranks: int) -> None:
        """Set rank and number of ranks, with equal shares and blocks of shards."""
        self.rank, self.ranks = rank, ranks
        equal = np.ones(ranks, dtype=np.int64)
        self.shares: Ints = deal(self.global_batch, equal, self.micro_batch)
        self.owner = block_owners(self.shards, ranks)
        self._pending.clear()

    @property
    def _least(self) -> int:
        """Samples of the smallest round."""
        return self.global_batch if self.drop_last else 1

    @property
    def resumes(self) -> bool:
        """Whether the next iteration continues an epoch."""
        return self._resume

    def checksum(self) -> float:
        """Checksum of what was read since the last call, equal on all ranks; NaN: nothing that could differ."""
        return math.nan

    def preview(self) -> EpochSplit | None:
        """A read-only split like the first epoch's; None if there is none."""
        return self.whole_deal(0)

    # -- drawing -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        left = self.deal.left if self._resume and self.deal is not None else self.samples
        few = few_samples(self.shares, self.micro_batch)
        return rounds_in(left, self.global_batch, few, self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        if self._resume and self.deal is not None:
            self._resume = False
        else:
            self.begin_epoch(self.epoch + 1)
        deal = self.deal
        while deal is self.deal and deal is not None and deal.left >= self._least:
            drawn = self._draw(deal)
            yield drawn.read.tolist()

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, as after a checkpoint; call it on every rank.

        Without it epochs count up from 0. An epoch that a checkpoint left unfinished is finished first.
        """
        if not self._resume:
            self.epoch = epoch - 1

    def begin_epoch(self, epoch: int) -> None:
        """Begin a whole epoch; the rest of an unfinished one is dropped (a script may stop an epoch early)."""
        missed = self.drawn - self.trained
        if self.deal is not None and self.deal.left == 0 and missed:
            warnings.warn(
                f"the last {missed} batches of an epoch were read without runtime.step(): if they were trained on, the "
                "adapter does not know",
                stacklevel=3,
            )
        self.epoch, self.drawn, self._begun_at, self._ahead = epoch, self.trained, self.trained, 0
        self._forget_rounds(self.trained)
        self.deal = self.whole_deal(epoch)
        self._next_id = self.deal.next_id
        self.watch()

    def _sequence(self, epoch: int) -> Ints:
        """The order of the files in an epoch."""
        if not self.shuffle:
            return np.arange(self.shards, dtype=np.int64)
        return np.random.default_rng((self.seed, epoch, 1)).permutation(self.shards).astype(np.int64)

    def whole_deal(self, epoch: int) -> EpochSplit:
        """A new split of all samples of an epoch."""
        sizes, sequence = (None, None) if self._files is None else (self._files.sizes, self._sequence(epoch))
        return EpochSplit.whole(
            self._order(epoch), self.shards, self.owner, self.ranks, self._next_id, sizes=sizes, sequence=sequence
        )

    def deal_of(self, data: Mapping[str, Any], epoch: int) -> EpochSplit:
        """The split of an epoch from a checkpoint's plain data."""
        return EpochSplit.from_data(data, self._order(epoch))

    def _order(self, epoch: int) -> Ints:
        """The order of the samples in an epoch; where they lie in files, file by file."""
        if self._files is None:
            if not self.shuffle:
                return np.arange(self.samples, dtype=np.int64)
            return np.random.default_rng((self.seed, epoch)).permutation(self.samples).astype(np.int64)
        ends, rng = np.cumsum(self._files.sizes), np.random.default_rng((self.seed, epoch))
        files = [np.arange(ends[k] - self._files.sizes[k], ends[k]) for k in self._sequence(epoch).tolist()]
        return np.concatenate([rng.permutation(f) if self.shuffle else f for f in files]).astype(np.int64)

    def _draw(self, deal: EpochSplit) -> Round:
        if self.before_draw is not None:
            self.before_draw()
            self.before_draw = None
        while self._pending and self._pending[0].round <= self.drawn:
            self._apply(self._pending.pop(0), deal)
        demand = deal.demand(self.shares, self.micro_batch, merge=not self.drop_last)
        self._drawn_by = threading.get_ident()
        self._before[self.drawn] = (self.epoch, deal.copy())
        indices = deal.draw(demand, self.rank)
        if demand is not self._demand:
            self._demand, self._samples = demand, tuple(demand.tolist())
        new = Round(
            self.drawn,
            self.epoch,
            self._samples,
            indices,
            deal.left < self._least,
            self.rate,
            -1 if len(indices) else deal.any_sample() if self._stand_in < 0 else self._stand_in,
        )
        if self._files is not None and len(indices):
            self._stand_in = int(indices[-1])  # of a file that is here
        self._next_id = max(self._next_id, deal.next_id)
        self._rounds.append(new)
        self.drawn += 1
        self.watch()
        return new

    def _apply(self, change: RoundChange, deal: EpochSplit) -> None:
        if change.shares is not None:
            self.shares = np.array(change.shares, dtype=np.int64)
        if change.global_batch is not None:
            self.global_batch = change.global_batch
        if change.learning_rate is not None:
            self.rate = change.learning_rate
        shard_of = {p.id: p.shard for queue in deal.queues() for p in queue} if change.moves else {}
        for piece, rank in change.moves:
            problem = deal.move(piece, rank)
            if problem:
                self.refused.append(f"piece {piece} to rank {rank}: {problem}")
            else:
                self.owner[shard_of[piece]] = rank
        if change.order is not None:
            deal.reorder({piece: place for place, piece in enumerate(change.order)})

    def schedule(self, change: RoundChange) -> None:
        """Apply `change` from its round on. It must not have been drawn on any rank."""
        if change.round < self.drawn:
            raise ValueError(f"round {change.round} is already drawn (next is {self.drawn})")
        self._pending.append(change)

    def _planned(self, name: str, now: Any) -> Any:
        """A value once every scheduled change holds."""
        planned = [getattr(change, name) for change in self._pending]
        return next((value for value in reversed(planned) if value is not None), now)

    def planned_batch(self) -> int:
        """Samples of a round once every scheduled change holds."""
        return int(self._planned("global_batch", self.global_batch))

    def planned_rate(self) -> float:
        """Factor on the learning rate once every scheduled change holds."""
        return float(self._planned("learning_rate", self.rate))

    def planned_shares(self) -> Ints:
        """Shares once every scheduled change holds."""
        return np.array(self._planned("shares", self.shares), dtype=np.int64)

    # -- training ------------------------------------------------------------------------------------------

    def current(self) -> Round | None:
        """The round being trained on, or None if none was drawn."""
        for drawn in self._rounds:
            if drawn.number == self.trained:
                return drawn
        return None

    def finish(self) -> None:
        """The current round is trained on. Raises RuntimeError when batches were drawn that no round followed."""
        ahead = self.drawn - self.trained
        if self._drawn_by == threading.get_ident() and ahead > self._ahead > 0:
            raise RuntimeError(
                f"{ahead - self._ahead} more batches were drawn than rounds trained: call runtime.step() once for each "
                "batch, also for one that is skipped, and leave sharding and resuming of batches to the sampler"
            )
        self._ahead = self._ahead or ahead
        self.trained += 1
        while self._rounds and self._rounds[0].number < self.trained:
            self._before.pop(self._rounds.popleft().number, None)
        self.watch()

    def to_read(self) -> list[Ints]:
        """Dataset indices that this rank reads in the rounds that were drawn and are not trained yet."""
        return [r.read for r in self._rounds]

    def resume(self, epoch: int, deal: EpochSplit | None, rounds: int) -> None:
        """Resume with split `deal` at round `rounds`; the next iteration continues the epoch."""
        self._forget_rounds(0)
        self.epoch, self.deal, self.drawn = epoch, deal, rounds
        self.trained = rounds
        self._ahead = 0
        self._resume = deal is not None and deal.left >= self._least
        self._next_id = max(self._next_id, deal.next_id if deal is not None else 0)
        self.watch()

    def state_dict(self) -> dict[str, Any]:
        """No position, which `runtime.state_dict()` holds: a StatefulDataLoader that asks skips no batches then."""
        return {"trained": self.trained}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises RuntimeError when only the loader resumes: its epoch would be trained on again."""
        if state.get("trained", 0) and not self.trained:
            raise RuntimeError("the loader's state alone is not enough: load runtime.state_dict() as well, before it")

    # -- in a checkpoint -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The state after the last trained round, as plain data, the same on every rank."""
        # As it was before the first round that was drawn and is not trained yet.
        epoch, deal = self._before.get(self.trained, (self.epoch, self.deal))
        return {
            **self._data(),
            "ranks": self.ranks,
            "round": self.trained,
            "epoch": epoch,
            "deal": None if deal is None else deal.to_data(),
            "shares": self.planned_shares().tolist(),
            "global_batch": self.planned_batch(),
            "given_batch": self._given_batch,
            "rate": self.planned_rate(),
            "owner": self.owner.tolist(),
        }

    def _data(self) -> dict[str, Any]:
        """The data that determines the order of an epoch."""
        files = {} if self._files is None else {"files": self._files.digest}
        return {"samples": self.samples, "shuffle": self.shuffle, "seed": self.seed, **files}

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state`, of any number of ranks: the next iteration is the rest of its epoch.

        Raises ValueError when it belongs to other data, RuntimeError when a batch was already drawn.
        """
        if self.drawn or self.trained:
            raise RuntimeError("load_state_dict() comes too late: a batch was drawn already")
        for name, mine in self._data().items():
            if state.get(name) != mine:
                raise ValueError(f"state: {name} of {state.get(name)} is not allowed, the job has {mine}")
        if state["given_batch"] == self._given_batch:  # else the script wants another one now
            self.global_batch, self.rate = state["global_batch"], state.get("rate", 1.0)
            self.set_world(self.rank, self.ranks)
        deal = state["deal"]
        if deal is not None:
            deal = self.deal_of(deal, state["epoch"])
            if state["ranks"] != self.ranks:
                deal = deal.for_workers(self.ranks)
        self.resume(state["epoch"], deal, state["round"])
        if state["ranks"] == self.ranks:
            if state["global_batch"] == self.global_batch:
                self.shares = np.array(state["shares"], dtype=np.int64)
            if len(state["owner"]) == len(self.owner):
                self.owner = np.array(state["owner"], dtype=np.int64)

    def _forget_rounds(self, first: int) -> None:
        while self._rounds and self._rounds[-1].number >= first:
            self._before.pop(self._rounds.pop().number, None)
