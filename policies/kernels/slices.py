"""MIG: the slices of a GPU that are closest to the planned shares of its workers."""

from __future__ import annotations

import numpy as np

from equipoise.policies.kernels.jit import jit
from equipoise.policies.observation import Floats, Ints

SEVENTHS = np.array([1, 2, 3, 4, 7])
"""Compute slices of each profile, `1g` to `7g`: NVIDIA MIG User Guide, profiles of A100, H100 and H200."""
EIGHTHS = np.array([1, 2, 4, 4, 8])
"""Memory slices of each of them."""
ROUNDING = 0.005
"""Tolerance, as a part of a GPU, for a share to match a profile."""


def is_slice(share: float) -> bool:
    """Whether a share is that of a MIG profile, to half a percent of the GPU."""
    return bool((np.abs(share - SEVENTHS / 7.0) <= ROUNDING).any())


def slices_of(shares: Floats) -> tuple[int, int]:
    """(compute, memory) slices that workers with these shares of one GPU hold, by profile."""
    row = np.searchsorted(SEVENTHS / 7.0, shares - ROUNDING)
    return int(SEVENTHS[row].sum()), int(EIGHTHS[row].sum())


def fit_together(shares: Floats) -> bool:
    """Whether one GPU can be cut this way: within 7 compute and 8 memory slices; profiles as `3g` take more memory."""
    compute, memory = slices_of(shares)
    return compute <= 7 and memory <= 8


def share_left(shares: Floats) -> float:
    """Free share of a GPU with these slices: the largest such that every profile up to it still fits."""
    compute, memory = slices_of(shares)
    left = 7 - compute
    too_large = SEVENTHS[8 - memory < EIGHTHS]
    return float(max(0, min(left, int(too_large.min()) - 1 if len(too_large) else 7))) / 7.0


@jit
def nearest_slices(
    wanted: Floats, least_memory: Floats, compute: int, memory: int, sevenths: Ints, eighths: Ints
) -> Ints:
    """Profile (row of `sevenths` and `eighths`) of each worker of one GPU; all -1 where none fit together.

    Least sum of (ln slice - ln wanted share)^2 within `compute` and `memory` slices, of 7 and 8, each with at least
    `least_memory` (0..1) of the memory. Exact: dynamic programme over used slices, worker by worker. Of equals the
    one that gives an earlier worker the smaller slice.
    """
    n, profiles = wanted.size, sevenths.size
    cost = np.full((n + 1, 8, 9), np.inf)
    choice = np.full((n + 1, 8, 9), -1)
    cost[n] = 0.0
    for i in range(n - 1, -1, -1):
        for c in range(8):
            for m in range(9):
                for p in range(profiles):
                    if sevenths[p] > c or eighths[p] > m or eighths[p] < 8.0 * least_memory[i] - 1e-9:
                        continue
                    far = np.log(sevenths[p] / 7.0) - np.log(wanted[i])
                    total = far * far + cost[i + 1, c - sevenths[p], m - eighths[p]]
                    if total < cost[i, c, m] - 1e-12:
                        cost[i, c, m], choice[i, c, m] = total, p
    found = np.full(n, -1)
    c, m = compute, memory
    for i in range(n):
        p = choice[i, c, m]
        if p < 0:
            return np.full(n, -1)
        found[i] = p
        c -= sevenths[p]
        m -= eighths[p]
    return found
