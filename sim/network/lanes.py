"""Estimate of a transfer's time without the other transfers of its owner.

On each link the transfers of one owner share the owner's rate. A clock per (owner, link) runs at one over their
number; a transfer's time alone is what passes on the slowest of the clocks of its links.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from equipoise.policies.observation import Ints


@dataclass(slots=True)
class _Lane:
    count: int = 0
    passed_s: float = 0.0
    at_s: float = 0.0

    def read(self, now_s: float) -> float:
        """The clock now."""
        if self.count:
            self.passed_s += (now_s - self.at_s) / self.count
        self.at_s = now_s
        return self.passed_s


@dataclass(slots=True)
class Lanes:
    """The clocks of all owners."""

    _lanes: dict[tuple[int, int], _Lane] = field(default_factory=dict)

    def begin(self, owner: int, links: Ints, now_s: float) -> list[float]:
        """A transfer begins to flow; returns its clocks."""
        read = []
        for link in links.tolist():
            lane = self._lanes.setdefault((owner, link), _Lane())
            read.append(lane.read(now_s))
            lane.count += 1
        return read

    def end(self, owner: int, links: Ints, begun: list[float], now_s: float) -> float:
        """A transfer has ended, or was stopped; returns the seconds that it would have taken alone."""
        passed_s = []
        for link, before in zip(links.tolist(), begun, strict=True):
            lane = self._lanes[owner, link]
            passed_s.append(lane.read(now_s) - before)
            lane.count -= 1
            if not lane.count:
                del self._lanes[owner, link]  # so that sums stay small, and as exact as they can be
        return min(passed_s, default=0.0)
