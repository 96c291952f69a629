"""Shortest paths over the links of an explicit topology."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray


class Graph:
    """Directed links between nodes 0..nodes-1 and switches (any other number).

    A path has the fewest links; of those, the least latency; of those, the one listed first.
    """

    def __init__(self, ends: Sequence[tuple[int, int]], latency_s: Sequence[float], nodes: int) -> None:
        self._ends, self._latency_s, self._nodes = ends, latency_s, nodes
        self._out: dict[int, list[int]] = {}
        self._in: dict[int, list[int]] = {}
        for link, (source, target) in enumerate(ends):
            self._out.setdefault(source, []).append(link)
            self._in.setdefault(target, []).append(link)
        self._arrivals: dict[int, dict[int, int]] = {}  # per source: the link by which each place is reached

    def shortest(self, source: int, target: int) -> list[int] | None:
        """Links from `source` to `target`, or None."""
        if source not in self._arrivals:
            self._arrivals[source] = self._reach(source)
        by, path, place = self._arrivals[source], [], target
        while place != source:
            if place not in by:
                return None
            path.append(by[place])
            place = self._ends[by[place]][0]
        return path[::-1]

    def _reach(self, source: int) -> dict[int, int]:
        """Dijkstra over (links, latency, order of discovery)."""
        by: dict[int, int] = {}
        done: set[int] = set()
        queue: list[tuple[int, float, int, int, int]] = [(0, 0.0, 0, source, -1)]
        order = 0
        while queue:
            hops, latency_s, _, place, link = heappop(queue)
            if place in done:
                continue
            done.add(place)
            if link >= 0:
                by[place] = link
            if 0 <= place < self._nodes and place != source:
                continue  # nodes do not forward
            for onward in self._out.get(place, ()):
                order += 1
                heappush(
                    queue,
                    (hops + 1, latency_s + self._latency_s[onward], order, self._ends[onward][1], onward),
                )
        return by

    def unreachable(self) -> tuple[int, int] | None:
        """Some pair of nodes without a path, or None."""
        switches = self._nodes > 1
        return next(
            ((0, k) for k in range(1, self._nodes) if switches and self.shortest(0, k) is None),
            next(((k, 0) for k in range(1, self._nodes) if self.shortest(k, 0) is None), None),
        )

    def racks(self) -> NDArray[np.int64]:
        """Rack of every node, (nodes,): nodes whose first link leads to the same switch share one."""
        number: dict[int, int] = {}
        rack = np.zeros(self._nodes, dtype=np.int64)
        for node in range(self._nodes):
            links = self._out.get(node)
            first = self._ends[links[0]][1] if links else node
            rack[node] = number.setdefault(first, len(number))
        return rack
