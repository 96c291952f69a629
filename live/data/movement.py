"""What the plan and a data set in files tell each other: files in order of need, and how fast they come.

Any data set with the members of `FileData` will do; `live.data.files` is one on fsspec. The columns that a policy sees
are those of the simulator; a store is a node without GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from equipoise.live.train.epoch_split import LivePiece
from equipoise.live.train.sampler import ShareSampler
from equipoise.policies.observation import Bools, Floats, Ints, Paths
from equipoise.policies.paths import PathSpeeds
from equipoise.policies.physics import response_s_per_sample, sustainable

_OF_STORE = 4  # numbers by store: bytes, seconds, delays, fetches
_COMING, _HERE = 1.0, 2.0


@dataclass(frozen=True)
class FileReport:
    """A rank's files since the last report."""

    waited_s: float  # for files, over all processes of its loader
    fetches: Sequence[tuple[int, float, float, float]]  # that ended: (store, bytes, s, s before the first byte)
    here: Bools  # by file
    coming: Bools  # by file, being fetched: these stay with this rank


@runtime_checkable
class FileData(Protocol):
    """A data set whose samples are numbered file by file; each rank fetches those that it reads."""

    sizes: Ints  # samples of each file
    size_bytes: Floats
    store: Ints  # number of the store of each file, from 0
    digest: str  # another one for other files
    prefetch: int  # files to want ahead

    def want(self, files: Sequence[int]) -> None:
        """Hold these files, in order of need; others need not be fetched any further, and may be deleted."""

    def report(self) -> FileReport:
        """The rank's files since the last call."""

    def close(self) -> None:
        """Stop fetching."""


class DataPlane:
    """Wants from a rank's data set what its sampler reads next, and reports to rank 0."""

    def __init__(self, data: FileData, sampler: ShareSampler) -> None:
        self.data, self._sampler, self._ends = data, sampler, np.cumsum(data.sizes)
        sampler.watch = self.refresh

    def refresh(self) -> None:
        """Tell the data set what is wanted, after rounds were drawn or trained, or files changed owner or order."""
        sampler = self._sampler
        if sampler.deal is None:
            return
        drawn = [self._ends.searchsorted(indices, side="right").tolist() for indices in sampler.to_read()]
        wanted = dict.fromkeys(number for part in drawn for number in part)
        queue = [piece.shard for piece in sampler.deal.queues()[sampler.rank]]
        ahead = [number for number in dict.fromkeys(queue) if number not in wanted]
        self.data.want([*wanted, *ahead[: max(self.data.prefetch, not wanted)]])

    def report(self) -> Floats:
        """This rank's report to rank 0: seconds waited, fetches by store, and the state of each file."""
        found = self.data.report()
        by_store = np.zeros((1 + int(self.data.store.max()), _OF_STORE))
        for store, *numbers in found.fetches:
            by_store[store] += (*numbers, 1.0)
        state = np.where(found.here, _HERE, np.where(found.coming, _COMING, 0.0))
        return np.concatenate([[found.waited_s], by_store.ravel(), state])

    def close(self) -> None:
        """Stop fetching."""
        self.data.close()
        self._sampler.watch = lambda: None


class DataView:
    """Rank 0's view: which rank has which file, and the throughput of the paths. Rows of nodes: hosts, then stores."""

    def __init__(self, size_bytes: Floats, samples: Ints, store: Ints) -> None:
        self.size_bytes, self.samples, self.store = size_bytes, samples, store
        self.stores = 1 + int(store.max())
        self.speeds = PathSpeeds()
        self.waited_s: Floats = np.empty(0)  # by rank, in the last window
        self._state: Floats = np.zeros((0, len(store)))  # (ranks, files)
        self._numbers: dict[str, int] = {}  # of hosts

    @property
    def length(self) -> int:
        """Length of a rank's report."""
        return 1 + self.stores * _OF_STORE + len(self.store)

    def update(self, reports: Floats, hosts: Sequence[str]) -> None:
        """Take in the reports of a window; reports (ranks, length), hosts by rank."""
        end = 1 + self.stores * _OF_STORE
        self.waited_s, self._state = reports[:, 0].copy(), reports[:, end:].copy()
        under_way = set[tuple[int, int]]()
        for host, report, state in zip(hosts, reports, self._state, strict=True):
            number = self._numbers.setdefault(host, len(self._numbers))
            for store, (size_bytes, took_s, delay_s, fetches) in enumerate(report[1:end].reshape(-1, _OF_STORE)):
                self.speeds.finished(store, number, size_bytes, took_s, delay_s, int(fetches))
            under_way |= {(int(store), number) for store in self.store[state == _COMING]}
        self.speeds.close(under_way)

    def blank(self) -> DataView:
        """A view of the same files without any reports."""
        return DataView(self.size_bytes, self.samples, self.store)

    def made_up(self, ranks: int) -> Floats:
        """Made-up reports for compiling a policy: the last rank's paths are the slowest."""
        reports = np.zeros((ranks, self.length))
        for rank, report in enumerate(reports):
            by_store = report[1 : 1 + self.stores * _OF_STORE].reshape(-1, _OF_STORE)
            by_store[:] = (self.size_bytes.mean(), 1.0 + 10.0 * rank, 0.01, 1.0)
        return reports

    def path(self, store: int, host: str) -> tuple[float, float]:
        """Recent (bytes/s, delay in s), NaN if unknown; decays towards the fastest path of the store."""
        fastest = self.speeds.fastest(store)
        known = self._numbers.get(host, -1)
        return self.speeds.at(store, known, *fastest) if fastest is not None else (math.nan, math.nan)

    def paths(self, hosts: Sequence[str]) -> Paths:
        """One row per store and host whose path is known."""
        found = [
            (len(hosts) + store, row, *self.path(store, host))
            for store in range(self.stores)
            for row, host in enumerate(hosts)
        ]
        known = [row for row in found if row[2] > 0.0]
        columns = zip(*known, strict=True) if known else ((), (), (), ())
        return Paths.of(**dict(zip(("source", "target", "bytes_per_s", "latency_s"), columns, strict=True)))

    def is_local(self, rank: int, shard: int) -> bool:
        """Whether the rank has the file."""
        return rank < len(self._state) and bool(self._state[rank, shard] == _HERE)

    def is_on_its_way(self, rank: int, shard: int) -> bool:
        """Whether the rank is fetching the file, which then stays with this rank."""
        return rank < len(self._state) and bool(self._state[rank, shard] == _COMING)

    def left_bytes(self, rank: int, piece: LivePiece) -> float:
        """Bytes of a piece; for a piece to be fetched, the bytes of its whole file."""
        size = float(self.size_bytes[piece.shard])
        return size * piece.left / float(self.samples[piece.shard]) if self.is_local(rank, piece.shard) else size

    def reading_samples_per_s(self, rank: int, host: str, queue: Sequence[LivePiece], part: float) -> float:
        """Rate at which a rank can read its remaining samples; infinite if all are here, or no path is known.

        `part`: the rank's share of the rest of the epoch, in samples. Those it does not own it will take from
        others, and fetch from the store that has most.
        """
        rates = [self.path(store, host)[0] for store in range(self.stores)]
        away = [p for p in queue if not self.is_local(rank, p.shard)]
        needed_s = math.fsum(float(self.size_bytes[p.shard]) / rates[self.store[p.shard]] for p in away)
        owned = sum(p.left for p in queue)
        lacking_bytes = max(0.0, part - owned) * float(self.size_bytes.sum() / self.samples.sum())
        needed_s += lacking_bytes / rates[int(np.bincount(self.store).argmax())]
        return max(part, owned) / needed_s if needed_s > 0.0 else math.inf

    def worker_columns(
        self, samples: Floats, busy_s: Floats, stall_s: Floats, rounds: int, supply: Floats
    ) -> dict[str, Any]:
        """Columns of workers that depend on their waits; (ranks,) each, sums over `rounds` rounds.

        `busy_s` is the total, `stall_s` the wait for the loader: waiting for files is taken out of the time of a
        step, as in a simulation. `supply`: `reading_samples_per_s`.
        """
        waited_s = self.waited_s if len(self.waited_s) == len(samples) else np.zeros(len(samples))
        stalled_s = np.fmin(np.nan_to_num(stall_s), waited_s)
        computing_s = busy_s - stalled_s
        with np.errstate(divide="ignore", invalid="ignore"):
            keeps_up = np.where(samples > 0, sustainable(samples / computing_s, supply), np.nan)
            return {
                "step_s": computing_s / rounds,
                "gradient_rate_per_s": rounds / computing_s,
                "capacity_samples_per_s": keeps_up,
                "input_samples_per_s": supply,
                "response_s_per_sample": response_s_per_sample(computing_s, stalled_s, samples, keeps_up),
            }
