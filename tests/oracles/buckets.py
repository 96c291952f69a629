"""Spreading charges over buckets, the plain way."""

from __future__ import annotations

import math

import numpy as np


def naive_spread(charges: np.ndarray, width_s: float, buckets: int, columns: int) -> np.ndarray:
    """What `sim.ledger.buckets.spread` adds to empty totals: each charge by the overlap with each bucket."""
    totals = np.zeros((buckets, columns))
    for start_s, end_s, column, amount in charges.tolist():
        edges = [(k * width_s, (k + 1) * width_s if k + 1 < buckets else math.inf) for k in range(buckets)]
        for k, (low, high) in enumerate(edges):
            if end_s - start_s > 0.0:
                share = max(0.0, min(end_s, high) - max(start_s, low)) / (end_s - start_s)
            else:
                share = float(low <= start_s < high)
            totals[k, int(column)] += amount * share
    return totals
