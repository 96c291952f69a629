"""Amounts over time in at most 1,024 equal buckets, for runs of unknown length.

A charge is an amount spread evenly over an interval. When one ends beyond the last bucket, neighbours are
merged in pairs and each bucket is twice as wide, so memory stays the same. Widths are powers of two.
"""

from __future__ import annotations

import math
from array import array

import numpy as np

from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.observation import Floats

BUCKETS = 1024
FIRST_WIDTH_S = 2.0**-10
_FLUSH_AT = 1 << 16
_FIELDS = 4


@jit_in_place
def spread(charges: Floats, width_s: float, totals: Floats) -> None:
    """Add charges (n, 4) of start_s, end_s, column, amount to totals (buckets, columns).

    Times count from the first edge. What an interval without length or beyond the last edge holds goes whole
    into one bucket; the last bucket of an interval takes what is left, so that sums are kept.
    """
    last = totals.shape[0] - 1
    for k in range(charges.shape[0]):
        start_s, end_s = charges[k, 0], charges[k, 1]
        column, amount = int(charges[k, 2]), charges[k, 3]
        first = min(last, int(start_s / width_s))
        final = min(last, math.ceil(end_s / width_s) - 1)
        if final <= first:
            totals[first, column] += amount
            continue
        per_s, given = amount / (end_s - start_s), 0.0
        for bucket in range(first, final):
            part = ((bucket + 1) * width_s - max(start_s, bucket * width_s)) * per_s
            totals[bucket, column] += part
            given += part
        totals[final, column] += amount - given


class Buckets:
    """Columns of amounts over time, from `origin_s` on."""

    def __init__(self, columns: int, origin_s: float) -> None:
        self.origin_s, self.width_s = origin_s, FIRST_WIDTH_S
        self.totals = np.zeros((BUCKETS, columns))
        self._buffer = array("d")

    def add(self, start_s: float, end_s: float, column: int, amount: float) -> None:
        """Charge `amount` evenly over an interval, not before the origin."""
        if amount == 0.0:
            return
        self._buffer.extend((start_s, end_s, column, amount))
        if len(self._buffer) >= _FLUSH_AT:
            self.flush()

    def grow(self, columns: int) -> None:
        """Extend to at least this many columns."""
        self.flush()
        missing = columns - self.totals.shape[1]
        if missing > 0:
            more = np.zeros((BUCKETS, max(missing, self.totals.shape[1])))
            self.totals = np.concatenate((self.totals, more), axis=1)

    def flush(self) -> None:
        """Spread the charges since the last call."""
        if not self._buffer:
            return
        charges = np.array(self._buffer).reshape(-1, _FIELDS)
        self._buffer = array("d")
        charges[:, :2] -= self.origin_s
        self.widen(float(charges[:, 1].max()))
        spread(charges, self.width_s, self.totals)

    def widen(self, span_s: float) -> None:
        """Merge pairs until the buckets reach `span_s` from the origin."""
        while span_s > BUCKETS * self.width_s:
            half = self.totals.reshape(BUCKETS // 2, 2, -1).sum(axis=1)
            self.totals = np.concatenate((half, np.zeros_like(half)))
            self.width_s *= 2.0

    def edges_s(self, end_s: float) -> tuple[Floats, Floats]:
        """(starts, ends) of the buckets up to `end_s`; all are equal but the last, which ends there."""
        count = min(BUCKETS, max(1, math.ceil((end_s - self.origin_s) / self.width_s)))
        start_s: Floats = np.arange(count, dtype=np.float64) * self.width_s + self.origin_s
        stop_s: Floats = np.minimum(start_s + self.width_s, max(end_s, self.origin_s))
        return start_s, stop_s
