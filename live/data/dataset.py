"""A data set of file shards on a store, read through the node's cache.

    data = ShardDataset("s3://bucket/train", cache="/local/cache", cache_bytes=200e9, decode=decode)
    loader = DataLoader(data, batch_sampler=runtime.sampler(data))

Samples are numbered shard by shard in the index's order. A rank reads the shards that it owns one after the other,
and the next ones are fetched while it does.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data

from equipoise.live.data.cache import NodeCache, Pin
from equipoise.live.data.fetch import Fetcher, Source
from equipoise.live.data.formats import Read, Sample, ShardError, open_shard
from equipoise.live.data.index import digest, read_index
from equipoise.live.rules import follow, optional, real, whole
from equipoise.policies.observation import Ints

_OPEN_MOST = 4  # shards whose tables of contents a process caches
_POLL_S = 0.02
_RULES = {
    "cache_bytes": real(lambda v: 1 <= v < float("inf"), "a finite number of at least 1"),
    "prefetch": whole(0),
    "connections": whole(1, 64),
    "retries": whole(0, 20),
    "stalled_s": real(lambda v: 0 < v < float("inf"), "a finite number above 0"),
    "decode": optional((lambda f: f if callable(f) else int("no"), "a function that takes a sample")),
}


class ShardDataset(torch.utils.data.Dataset):  # type: ignore[misc]
    """The samples of the shards that an index lists (`python -m equipoise.live.data.index ROOT` makes it)."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        cache: str | os.PathLike[str],
        cache_bytes: float,
        decode: Callable[[Sample], Any] | None = None,
        prefetch: int = 2,
        connections: int = 1,
        retries: int = 4,
        stalled_s: float = 60.0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`root`: a folder with an index, or the index file, on any store that fsspec reads. It may differ by rank.

        cache, cache_bytes   folder on a local disk, shared by all processes of the node, and its limit
        decode               makes a sample from its raw parts (`live.data.formats`); default: the parts
        prefetch             shards to fetch ahead
        connections          shards that a rank fetches concurrently
        retries              attempts after a failed one; stalled_s: longest wait without any bytes
        storage_options      for fsspec: credentials, endpoints

        Raises ValueError for an option that is not allowed, ShardError for an index or store that cannot be read.
        """
        self.cache_bytes, self.prefetch, self.connections = cache_bytes, prefetch, connections
        self.retries, self.stalled_s, self.decode = retries, stalled_s, decode
        follow(_RULES, self)
        options = dict(storage_options or {})
        self.shards = read_index(os.fspath(root), options)
        self.digest = digest(self.shards)
        self.sizes: Ints = np.array([shard.samples for shard in self.shards], dtype=np.int64)
        self._ends = np.cumsum(self.sizes)
        self.source = Source(NodeCache(Path(cache), int(self.cache_bytes)), self.shards, options, self.retries)
        self.fetcher: Fetcher | None = None  # of the training process `_of`
        self._of = 0
        self._waited_s = multiprocessing.RawValue("d", 0.0)  # shared with its loader's worker processes
        self._open: OrderedDict[int, Read] = OrderedDict()
        self._read: tuple[int, Pin] | None = None  # locked, if nothing is fetched ahead

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker process has none of the threads and open files of this one.
        return {**self.__dict__, "fetcher": None, "_open": OrderedDict(), "_read": None}

    def __getitem__(self, index: int) -> Any:
        """One sample, after waiting for its shard. Raises ShardError if the shard cannot be fetched or read."""
        (number,) = self.shards_of(np.array([index]))
        path = self._path(number)
        if number not in self._open:
            shard = self.shards[number]
            read, samples = open_shard(path, shard.url)
            if samples != shard.samples:
                raise ShardError(
                    f"{shard.url}: has {samples} samples, the index lists {shard.samples}; make the index again"
                )
            self._open[number] = read
            if len(self._open) > _OPEN_MOST:
                self._open.popitem(last=False)
        sample = self._open[number](index - int(self._ends[number] - self.sizes[number]))
        return sample if self.decode is None else self.decode(sample)

    def shards_of(self, indices: Ints) -> list[int]:
        """The numbers of the shards that hold these samples."""
        numbers: list[int] = np.searchsorted(self._ends, indices, side="right").tolist()
        return numbers

    def start(self) -> Fetcher:
        """Start fetching ahead in this process."""
        if self.fetcher is None:
            self.fetcher, self._of = Fetcher(self.source, self.connections, self.stalled_s), os.getpid()
        return self.fetcher

    def stop(self) -> None:
        """Stop fetching ahead, and release all files."""
        if self.fetcher is not None:
            self.fetcher.close()
        self.fetcher, self._of = None, 0

    def take_waited_s(self) -> float:
        """Seconds that this rank's loader has waited for shards since the last call, over all its processes."""
        waited_s, self._waited_s.value = self._waited_s.value, 0.0
        return float(waited_s)

    def _path(self, number: int) -> Path:
        began_s = time.perf_counter()
        if self.fetcher is not None and self._of == os.getpid():
            path = self.fetcher.wait(number).path
        elif self._of:
            path = self._fetched_by_trainer(number)
        else:
            path = self._fetched_here(number)
        self._waited_s.value += time.perf_counter() - began_s
        return path

    def _fetched_by_trainer(self, number: int) -> Path:
        """In a loader's worker process: wait for the training process, which fetches and locks the drawn shards."""
        path, asked_s = self.source.cache.path(self.source.keys[number]), time.time()
        while not path.exists():
            if (why := self.source.error(number)) is not None:
                raise ShardError(why)
            if time.time() - max(asked_s, self.source.progress_s(number)) > self.stalled_s:
                raise ShardError(f"{self.shards[number].url}: no bytes received for {self.stalled_s:g} s")
            time.sleep(_POLL_S)
        return path

    def _fetched_here(self, number: int) -> Path:
        """Without a training job: fetch the shard now, and release the previous one."""
        if self._read is None or self._read[0] != number:
            if self._read is not None:
                self._read[1].release()
            while (pin := self.source.pin(number)) is None:
                got = self.source.fetch(number, lambda: True)
                if got is not None:
                    pin = got[0]
                    break
                time.sleep(_POLL_S)
            self._read = (number, pin)
        return self._read[1].path
