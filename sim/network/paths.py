"""Shortest paths over the links of an explicit topology."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray


class Graph:
    """Directed links between nodes 0..nodes-1 and switches (any other number); nodes forward nothing.

    `ends` are the (source, target) of each link, `latency_s` its latency. A path has the fewest links; of
    those the least latency; of those it is the one listed first.
    """

    def __init__(self, ends: Sequence[tuple[int, int]], latency_s: Sequence[float], nodes: int) -> None:
        self._ends, self._latency_s, self._nodes = ends, latency_s, nodes
        self._out: dict[int, list[int]] = {}
        self._into: dict[int, list[int]] = {}
        for link, (source, target) in enumerate(ends):
            self._out.setdefault(source, []).append(link)
            self._into.setdefault(target, []).append(link)
        self._arrivals: dict[int, dict[int, int]] = {}  # by source: the link by which a place is reached

    def named(self, place: int) -> bool:
        """Whether a link begins or ends there."""
        return place in self._out or place in self._into

    def shortest(self, source: int, target: int) -> list[int] | None:
        """Links from `source` to `target` in order, or None when there is no way."""
        if source not in self._arrivals:
            self._arrivals[source] = self._explore(source)
        by, path, place = self._arrivals[source], [], target
        while place != source:
            if place not in by:
                return None
            path.append(by[place])
            place = self._ends[by[place]][0]
        return path[::-1]

    def _explore(self, source: int) -> dict[int, int]:
        """Dijkstra's algorithm over (links, latency, order of discovery)."""
        by: dict[int, int] = {}
        queue: list[tuple[int, float, int, int, int]] = [(0, 0.0, 0, source, -1)]
        order = 0
        while queue:
            hops, latency_s, _, place, link = heappop(queue)
            if place in by or (place == source and link >= 0):
                continue
            if link >= 0:
                by[place] = link
            if place != source and place < self._nodes:
                continue
            for onward in self._out.get(place, ()):
                order += 1
                then_s = latency_s + self._latency_s[onward]
                heappush(queue, (hops + 1, then_s, order, self._ends[onward][1], onward))
        return by

    def disconnected(self) -> tuple[int, int] | None:
        """The first two nodes without a path from one to the other; None: all have one."""
        hub = next((end for pair in self._ends for end in pair if end >= self._nodes), None)
        if hub is not None:  # quick: everybody reaches one switch, and it reaches everybody
            nodes = set(range(self._nodes))
            if nodes <= self._reached(hub, self._out, 1) and nodes <= self._reached(hub, self._into, 0):
                return None
        for source in range(self._nodes):
            reached = self._reached(source, self._out, 1)
            for target in range(self._nodes):
                if target not in reached:
                    return source, target
        return None

    def _reached(self, start: int, links: dict[int, list[int]], end: int) -> set[int]:
        """Nodes and switches reached from `start` along `links`; `end` (0 or 1) selects their far end."""
        reached, waiting = {start}, [start]
        while waiting:
            place = waiting.pop()
            if place < self._nodes and place != start:
                continue
            for link in links.get(place, ()):
                there = self._ends[link][end]
                if there not in reached:
                    reached.add(there)
                    waiting.append(there)
        return reached

    def racks(self) -> NDArray[np.int64]:
        """Rack of each node (nodes,): nodes whose first link leads to the same place share one."""
        number: dict[int, int] = {}
        rack = np.zeros(self._nodes, dtype=np.int64)
        for node in range(self._nodes):
            links = self._out.get(node)
            place = self._ends[links[0]][1] if links else node
            rack[node] = number.setdefault(place, len(number))
        return rack
