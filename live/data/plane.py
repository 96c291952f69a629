"""One rank's data movement: shards of its queue are fetched ahead, and the times are reported to rank 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from equipoise.live.data.dataset import ShardDataset
from equipoise.live.train.sampler import ShareSampler
from equipoise.policies.observation import Bools, Floats

HEAD = 2  # numbers before those by store: seconds waited, bytes received of the shards being fetched
BITS = 32  # shards packed in one number
OF_STORE = 4  # numbers by store: bytes, seconds, delays, fetches


class DataPlane:
    """Keeps a rank's fetcher in step with its sampler."""

    def __init__(self, data: ShardDataset, sampler: ShareSampler, ranks_here: Callable[[], int]) -> None:
        """`ranks_here`: ranks of the job on this node, which share the cache.

        Raises ValueError for a cache that cannot hold two shards of the largest size per rank.
        """
        self.data, self._sampler, self._ranks_here = data, sampler, ranks_here
        largest = max(data.shards, key=lambda shard: shard.size_bytes)
        if 2 * largest.size_bytes * ranks_here() > data.cache_bytes:
            raise ValueError(
                f"cache_bytes: {data.cache_bytes:.0f} is too small, {ranks_here()} ranks on this node need room "
                f"for two shards of the largest size each ({largest.size_bytes} bytes, {largest.url})"
            )
        self.stores = 1 + max(shard.store for shard in data.shards)
        self._fetcher = data.start()
        sampler.watch = self.refresh

    def refresh(self) -> None:
        """Update the fetcher after rounds were drawn or trained, or shards changed owner or order."""
        sampler, data = self._sampler, self.data
        if sampler.deal is None:
            return
        drawn = [dict.fromkeys(data.shards_of(indices)) for indices in sampler.to_read()]
        queue = [piece.shard for piece in sampler.deal.queues()[sampler.rank]]
        now = list(drawn[0]) if drawn else queue[:1]
        ahead = [number for part in drawn[1:] for number in part if number not in now]
        more = [number for number in dict.fromkeys(queue) if number not in now and number not in ahead]
        ranks = self._ranks_here()  # it waits for shards that another of these ranks is fetching
        later = set(queue) if ranks == 1 else None
        self._fetcher.want(now, ahead + more[: data.prefetch], int(data.cache_bytes / ranks), later)

    def report(self) -> Floats:
        """This rank's report to rank 0: `HEAD`, fetches by store, shards in the cache and being fetched."""
        by_store = np.zeros((self.stores, OF_STORE))
        for f in self._fetcher.take():
            by_store[f.store] += (f.size_bytes, f.alone_s, f.delay_s, 1.0)
        count, keys = len(self.data.shards), self.data.source.cache.keys()
        held = np.fromiter((key in keys for key in self.data.source.keys), dtype=np.bool_, count=count)
        on_its_way = np.zeros(count, dtype=np.bool_)
        on_its_way[self._fetcher.busy()] = True
        head = np.array([self.data.take_waited_s(), float(self.data.source.come_bytes())])
        return np.concatenate([head, by_store.ravel(), packed(held), packed(on_its_way)])

    def close(self) -> None:
        """Stop fetching."""
        self.data.stop()
        self._sampler.watch = lambda: None


def packed(flags: Bools) -> Floats:
    """Flags as whole numbers, 32 in each."""
    padded = np.zeros(-(-len(flags) // BITS) * BITS, dtype=np.bool_)
    padded[: len(flags)] = flags
    return np.packbits(padded).view("<u4").astype(np.float64)


def unpacked(numbers: Floats, count: int) -> Bools:
    """The inverse of `packed`."""
    raw = numbers.astype("<u4").view(np.uint8)
    return np.unpackbits(raw, count=count).astype(np.bool_)
