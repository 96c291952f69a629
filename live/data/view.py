"""Rank 0's view of the data: stores of the shards, contents of the caches, and throughput of the paths.

The columns are the same as in the simulator; a store is a node without GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.live.data.index import Shard
from equipoise.live.data.plane import BITS, HEAD, OF_STORE, unpacked
from equipoise.live.train.epoch_split import LivePiece
from equipoise.policies.observation import Bools, Floats, Ints, Paths
from equipoise.policies.paths import PathSpeeds
from equipoise.policies.physics import response_s_per_sample, sustainable


class DataView:
    """The ranks' reports on their data. A host keeps its number; rows of nodes are hosts, then stores."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self.size_bytes: Floats = np.array([s.size_bytes for s in shards], dtype=np.float64)
        self.samples: Floats = np.array([s.samples for s in shards], dtype=np.float64)
        self.store: Ints = np.array([s.store for s in shards], dtype=np.int64)
        self.stores = 1 + int(self.store.max())
        self.speeds = PathSpeeds()
        self.waited_s: Floats = np.empty(0)  # by rank, in the last window
        self._come_bytes: Floats = np.empty(0)  # by rank, of shards being fetched
        self._hosts: list[str] = []  # by rank
        self._held: dict[str, Bools] = {}  # by host
        self._on_its_way: list[Bools] = []  # by rank
        self._numbers: dict[str, int] = {}

    @property
    def length(self) -> int:
        """Length of a rank's report."""
        return HEAD + self.stores * OF_STORE + 2 * -(-len(self.store) // BITS)

    def update(self, reports: Floats, hosts: Sequence[str]) -> None:
        """Take in the reports of a window; reports (ranks, length), hosts by rank."""
        count, bits = len(self.store), -(-len(self.store) // BITS)
        self._hosts, self.waited_s, self._come_bytes = list(hosts), reports[:, 0].copy(), reports[:, 1].copy()
        self._held = {host: np.zeros(count, dtype=np.bool_) for host in hosts}
        self._on_its_way, under_way = [], set[tuple[int, int]]()
        for host, report in zip(hosts, reports, strict=True):
            number = self._numbers.setdefault(host, len(self._numbers))
            end = HEAD + self.stores * OF_STORE
            for store, (size_bytes, alone_s, delay_s, fetches) in enumerate(report[HEAD:end].reshape(-1, OF_STORE)):
                self.speeds.finished(store, number, size_bytes, alone_s, delay_s, int(fetches))
            self._held[host] |= unpacked(report[end : end + bits], count)
            self._on_its_way.append(unpacked(report[end + bits :], count))
            under_way |= {(int(store), number) for store in self.store[self._on_its_way[-1]]}
        self.speeds.close(under_way)

    def blank(self) -> DataView:
        """A view of the same shards without any reports."""
        return DataView(self._shards)

    def made_up(self, ranks: int) -> Floats:
        """Made-up reports for compiling a policy: the last rank's paths are the slowest."""
        reports = np.zeros((ranks, self.length))
        for rank, report in enumerate(reports):
            by_store = report[HEAD : HEAD + self.stores * OF_STORE].reshape(-1, OF_STORE)
            by_store[:] = (self.size_bytes.mean(), 1.0 + 10.0 * rank, 0.01, 1.0)
        return reports

    def path(self, store: int, host: str) -> tuple[float, float]:
        """Recent (bytes/s, delay in s), NaN if unknown; decays towards the fastest path of the store."""
        number = self._numbers.get(host, -1)
        fastest = self.speeds.fastest(store)
        return self.speeds.at(store, number, *fastest) if fastest is not None else (math.nan, math.nan)

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
        """Whether a shard is in the cache of the rank's node."""
        return rank < len(self._hosts) and bool(self._held[self._hosts[rank]][shard])

    def is_on_its_way(self, rank: int, shard: int) -> bool:
        """Whether the rank is fetching the shard, which then stays with this rank."""
        return rank < len(self._on_its_way) and bool(self._on_its_way[rank][shard])

    def left_bytes(self, rank: int, piece: LivePiece) -> float:
        """Bytes of a piece; for a piece to be fetched, the bytes of its whole file."""
        size = float(self.size_bytes[piece.shard])
        return size * piece.left / self.samples[piece.shard] if self.is_local(rank, piece.shard) else size

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

    def taking_samples_per_s(self, rank: int, host: str, queues: Sequence[Sequence[LivePiece]]) -> float:
        """Rate at which a rank would read shards of other ranks, fetched whole; infinite if all are here."""
        pieces = [p for other, queue in enumerate(queues) if other != rank for p in queue]
        rates = [self.path(store, host)[0] for store in range(self.stores)]
        away = [p.shard for p in pieces if not self.is_local(rank, p.shard)]
        needed_s = math.fsum(float(self.size_bytes[k]) / rates[self.store[k]] for k in away)
        return sum(p.left for p in pieces) / needed_s if needed_s > 0.0 or math.isnan(needed_s) else math.inf

    def arrivals_s(self, rank: int, host: str, queue: Sequence[LivePiece]) -> Floats:
        """Seconds until each piece of a rank's queue can be read, one fetched after the other.

        NaN from the first one on whose path is not known.
        """
        paths = [self.path(store, host) for store in range(self.stores)]
        fetch_s = np.zeros(len(queue))
        for k, piece in enumerate(queue):
            if not self.is_local(rank, piece.shard):
                rate, delay_s = paths[self.store[piece.shard]]
                begun = self.is_on_its_way(rank, piece.shard)
                come_bytes = float(self._come_bytes[rank]) if begun else 0.0
                fetch_s[k] = delay_s * (not begun) + (self.size_bytes[piece.shard] - come_bytes) / rate
        return np.maximum(np.cumsum(fetch_s), 0.0)

    def worker_columns(
        self, samples: Floats, busy_s: Floats, stall_s: Floats, rounds: int, supply: Floats
    ) -> dict[str, Any]:
        """Columns of workers that depend on their waits; (ranks,) each, sums over `rounds` rounds.

        `busy_s` is the total, `stall_s` the wait for the loader: waiting for shards is taken out
        of the time of a step, as in a simulation. `supply`: `reading_samples_per_s`.
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
