"""S211: measured transfer speeds between nodes; the same in the simulator and in a live training job.

For transfers that finished in a window: bytes over their duration without the owner's other transfers, and the delay
before the first byte. A measurement decays to the topology's rate with a half-life, so that a path that was slow
once is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

HALF_LIFE_WINDOWS = 8.0
_SAME = 2.0**-20  # a relative difference below this is rounding: paths that are alike stay alike


@dataclass(slots=True)
class _Sum:
    size_bytes: float = 0.0
    alone_s: float = 0.0
    delay_s: float = 0.0
    count: int = 0


@dataclass(slots=True)
class _Estimate:
    bytes_per_s: float
    delay_s: float
    window: int  # in which it was measured


@dataclass(slots=True)
class PathSpeeds:
    """Estimates by (source, target), one call of `close` per window."""

    half_life_windows: float = HALF_LIFE_WINDOWS
    _window: int = 0
    _fresh: dict[tuple[int, int], _Sum] = field(default_factory=dict)
    _known: dict[tuple[int, int], _Estimate] = field(default_factory=dict)

    def finished(
        self, source: int, target: int, size_bytes: float, alone_s: float, delay_s: float, count: int = 1
    ) -> None:
        """Record a finished transfer; alone_s: its duration after the first byte, less its owner's other transfers.

        A transfer of zero duration is ignored. `count`: number of transfers that the values sum.
        """
        if alone_s > 0.0 and size_bytes > 0.0:
            fresh = self._fresh.setdefault((source, target), _Sum())
            fresh.size_bytes += size_bytes
            fresh.alone_s += alone_s
            fresh.delay_s += delay_s
            fresh.count += count

    def close(self, under_way: Collection[tuple[int, int]] = ()) -> None:
        """End the window: its finished transfers become the estimates of their paths.

        Estimates of paths `under_way`, with an unfinished transfer, do not decay.
        """
        self._window += 1
        for path in under_way:
            if path in self._known:
                self._known[path].window = self._window
        for path, fresh in self._fresh.items():
            rate, delay_s = fresh.size_bytes / fresh.alone_s, fresh.delay_s / fresh.count
            self._known[path] = _Estimate(rounded(rate), rounded(delay_s), self._window)
        self._fresh.clear()

    def fastest(self, source: int) -> tuple[float, float] | None:
        """(bytes/s, delay in s) of the fastest measured path from a source; None without a measurement."""
        known = [e for (s, _), e in self._known.items() if s == source]
        best = max(known, key=lambda e: e.bytes_per_s, default=None)
        return None if best is None else (best.bytes_per_s, best.delay_s)

    def at(self, source: int, target: int, bytes_per_s: float, delay_s: float) -> tuple[float, float]:
        """(bytes/s, delay in s) of a path: the measurement, decayed to the topology's values given here.

        Never faster than the topology allows.
        """
        known = self._known.get((source, target))
        if known is None:
            return bytes_per_s, delay_s
        left = 0.5 ** ((self._window - known.window) / self.half_life_windows)
        rate = bytes_per_s + left * (known.bytes_per_s - bytes_per_s)
        delay = delay_s + left * (known.delay_s - delay_s)
        if rate >= bytes_per_s * (1.0 - 2.0 * _SAME):
            rate = bytes_per_s
        return rate, delay if delay > delay_s * (1.0 + 2.0 * _SAME) else delay_s


def rounded(value: float) -> float:
    """A measured value rounded to 20 bits, so that rounding of sums does not make equal values differ."""
    if not math.isfinite(value):
        return value
    fraction, exponent = math.frexp(value)
    return math.ldexp(round(fraction / _SAME) * _SAME, exponent)
