"""Caches of fetched shards on nodes, with least-recently-used eviction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Key = tuple[int, int]
"""(job row, shard)."""


class NodeCaches:
    """One cache per node, shared by the jobs that run there; capacities in bytes, 0: nothing is kept."""

    def __init__(self, capacity_bytes: Sequence[float]) -> None:
        self.capacity_bytes = list(capacity_bytes)
        self._held: list[OrderedDict[Key, float]] = [OrderedDict() for _ in capacity_bytes]
        self._used_bytes = [0.0] * len(self._held)

    def holds(self, node: int, key: Key) -> bool:
        """Whether a node keeps a shard."""
        return key in self._held[node]

    def use(self, node: int, key: Key) -> bool:
        """Read a shard; returns whether it is cached, and marks it as most recently used."""
        held = self._held[node]
        if key not in held:
            return False
        held.move_to_end(key)
        return True

    def keep(self, node: int, key: Key, size_bytes: float) -> None:
        """Cache a shard, evicting the least recently used ones; a shard larger than the cache is not kept."""
        if size_bytes > self.capacity_bytes[node] or self.use(node, key):
            return
        held = self._held[node]
        held[key] = size_bytes
        self._used_bytes[node] += size_bytes
        while self._used_bytes[node] > self.capacity_bytes[node]:
            self._used_bytes[node] -= held.popitem(last=False)[1]

    def clear(self, node: int) -> None:
        """Empty the cache of a node that has gone down."""
        self._held[node].clear()
        self._used_bytes[node] = 0.0
