"""What nodes keep of the data they have fetched: whole shards, least recently used first to go."""

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
        """Read a shard: whether it is kept, and then it is the last to go."""
        held = self._held[node]
        if key not in held:
            return False
        held.move_to_end(key)
        return True

    def keep(self, node: int, key: Key, size_bytes: float) -> None:
        """Keep a shard, in place of those that were used longest ago; one larger than the cache is not kept."""
        if size_bytes > self.capacity_bytes[node] or self.use(node, key):
            return
        held = self._held[node]
        held[key] = size_bytes
        self._used_bytes[node] += size_bytes
        while self._used_bytes[node] > self.capacity_bytes[node]:
            self._used_bytes[node] -= held.popitem(last=False)[1]

    def clear(self, node: int) -> None:
        """A node has gone down, and has lost what it kept."""
        self._held[node].clear()
        self._used_bytes[node] = 0.0
