"""Samples without indices: every rank reads the same stream and keeps its assigned samples, each sample once.

A round takes the next positions of the stream, cut among the ranks by their shares. How long a stream is shows
at its end only: each rank reads one global batch ahead, so that all see the end at the same round, without a
message. From a checkpoint the stream is read again up to where its epoch stood.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.live.train.checks import crc_of
from equipoise.live.train.epoch_split import EpochSplit, few_samples
from equipoise.live.train.sampler import ShareSampler
from equipoise.policies.observation import Ints

ENDLESS = 2**40  # samples that a stream of unknown length is said to have


def length_of(source: Any) -> int | None:
    """The declared length of a stream; None if it has none."""
    try:
        return len(source)
    except TypeError:
        return None


class Reader:
    """A stream of samples by position, read as far as requested."""

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self.checksums: dict[int, int] = {}  # of the first sample of each round
        self.rewind(0, 0)

    def rewind(self, epoch: int, position: int) -> None:
        """Read `epoch` from its beginning, and drop what stands before `position`."""
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
        self.end: int | None = None  # positions in all, once the end was seen
        self._read: Iterator[Any] | None = None  # opened when the first sample is asked for
        self._held: deque[Any] = deque()
        self.first = position  # of those held

    def reaches(self, position: int) -> bool:
        """Whether the stream has samples up to `position`; reads up to it."""
        if self._read is None:
            self._read = itertools.islice(self._source, self.first, None)
        while self.end is None and self.first + len(self._held) < position:
            try:
                self._held.append(next(self._read))
            except StopIteration:
                self.end = self.first + len(self._held)
        return self.first + len(self._held) >= position

    def take(self, positions: Sequence[int], upto: int, number: int) -> list[Any]:
        """The samples of round `number` at some positions; all before `upto` are let go."""
        self.reaches(max(positions) + 1)
        self.checksums[number] = crc_of(self._held[0])
        taken = [self._held[position - self.first] for position in positions]
        while self.first < upto and self._held:
            self._held.popleft()
            self.first += 1
        return taken


class StreamSplit(EpochSplit):
    """The rest of an epoch of a stream: positions from `at` on."""

    def __init__(self, reader: Reader, workers: int, length: int, batch: int, at: int = 0) -> None:
        """`length`: samples that the stream says it has; `batch`: samples of a round."""
        super().__init__(np.empty(0, dtype=np.int64), [()] * workers, 0)
        self._reader, self._length, self._batch, self.at = reader, length, batch, at
        self._few = 0  # samples too few for a round
        self._first = at  # a position of the round drawn last

    @property
    def left(self) -> int:
        """See `EpochSplit`; reads a round ahead, so it is exact where it is less than a round."""
        # A round, and a rest that would be too small for one.
        self._reader.reaches(self.at + self._batch + self._few)
        end = self._reader.end
        return max(self._batch, self._length - self.at) if end is None else end - self.at

    def demand(self, shares: Ints, unit: int, merge: bool = False) -> Ints:
        """See `EpochSplit`."""
        self._few = few_samples(shares, unit)
        return super().demand(shares, unit, merge)

    def any_sample(self) -> int:
        """See `EpochSplit`: one of the running round, which the reader holds."""
        return self._first

    def copy(self) -> StreamSplit:
        """See `EpochSplit`."""
        return self.for_workers(len(self._queues))

    def draw(self, demand: Ints, worker: int) -> Ints:
        """See `EpochSplit`: each worker takes the positions behind those of the workers before it."""
        begin = self.at + int(demand[:worker].sum())
        if demand.any():
            self._first, self.at = self.at, self.at + int(demand.sum())
        self.owned = np.full(len(demand), self.left // len(demand), dtype=np.int64)
        return np.arange(begin, begin + int(demand[worker]), dtype=np.int64)

    def to_data(self) -> dict[str, Any]:
        """See `EpochSplit`."""
        return {"at": self.at}

    def for_workers(self, workers: int) -> StreamSplit:
        """See `EpochSplit`."""
        return StreamSplit(self._reader, workers, self._length, self._batch, self.at)


class StreamSampler(ShareSampler):
    """Assigns the positions of a stream. There are no shards, so none can be moved or reordered."""

    def __init__(self, reader: Reader, length: int | None, **options: Any) -> None:
        self._reader = reader
        super().__init__(length or ENDLESS, **{**options, "shards": 1, "shuffle": False})
        self.shards = 0

    def checksum(self) -> float:
        """See `ShareSampler`: the first sample of each round, which has the same position on all ranks."""
        known = self._reader.checksums
        trained = [known.pop(number) for number in list(known) if number < self.trained]
        return float(sum(trained)) if trained else math.nan

    def preview(self) -> None:
        """See `ShareSampler`: reading a stream only to look at it could not be undone."""

    def whole_deal(self, epoch: int) -> EpochSplit:
        """See `ShareSampler`."""
        return self.deal_of({"at": 0}, epoch)

    def deal_of(self, data: Mapping[str, Any], epoch: int) -> EpochSplit:
        """See `ShareSampler`; the stream is read from there on."""
        self._reader.rewind(epoch, data["at"])
        return StreamSplit(self._reader, self.ranks, self.samples, self.global_batch, data["at"])


class StreamLoader:
    """Batches of this rank from a stream: iterate over it once per epoch, as over a DataLoader."""

    def __init__(self, reader: Reader, sampler: ShareSampler, collate: Callable[[list[Any]], Any]) -> None:
        self._reader, self._sampler, self._collate = reader, sampler, collate

    def __iter__(self) -> Iterator[Any]:
        rounds = iter(self._sampler)
        for positions in rounds:
            deal = self._sampler.deal
            assert isinstance(deal, StreamSplit)
            yield self._collate(self._reader.take(positions, deal.at, self._sampler.drawn - 1))
