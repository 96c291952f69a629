"""Writes of a scheduler, limited by a token bucket.

Kubernetes clients are held to a rate (`clientConnection.qps` and `burst` of Kueue's configuration): a start that is
decided takes effect when it is written, and its GPUs are taken meanwhile.
"""

from __future__ import annotations

import math


class Writes:
    """A bucket of `burst` writes, refilled at `per_s`, first come first served."""

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s, self.burst = per_s, burst
        self._last_s = -math.inf

    def take(self, now_s: float, count: int = 1) -> float:
        """Add `count` writes; returns the time of the last one (s)."""
        if not count:
            return now_s
        # As the generic cell rate algorithm has it: the time at which the bucket would be full again, and no later.
        self._last_s = max(self._last_s, now_s - self.burst / self.per_s) + count / self.per_s
        return self._last_s if self._last_s > now_s + 1e-9 else now_s
