"""A small linear programme: the primal simplex method (Dantzig 1947) on a dense dictionary.

For programmes of some hundred rows that are solved thousands of times, where calling an external solver costs more
than solving.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.observation import Floats, Ints

_ZERO = 1e-11
_STALLED = 64  # pivots without gain, after which the first column that gains enters (Bland 1977), not the best


@jit_in_place
def _entering(d: Floats, label: Ints, rows: int, columns: int, first: bool) -> int:
    """The column of highest gain, or the one of the lowest label with a gain; -1: none gains."""
    best, most = -1, _ZERO
    for j in range(columns):
        if d[rows, j] > _ZERO and (best < 0 or (label[j] < label[best] if first else d[rows, j] > most)):
            best, most = j, d[rows, j]
    return best


@jit_in_place
def _leaving(d: Floats, label: Ints, rows: int, columns: int, j: int) -> int:
    """The row whose bound is met first; of equals the one of the lowest label; -1: none."""
    best, least = -1, np.inf
    for i in range(rows):
        if d[i, j] > _ZERO:
            ratio = d[i, columns] / d[i, j]
            if ratio < least - 1e-15 or (ratio <= least and label[columns + i] < label[columns + best]):
                best, least = i, ratio
    return best


@jit_in_place
def _pivot(d: Floats, rows: int, columns: int, r: int, c: int, line: Floats) -> None:
    """Exchange the variable of row r with that of column c; line (columns + 1,) is scratch.

    Most of a row is 0, but updating whole rows takes less than half the time of updating nonzeros only.
    """
    scale = 1.0 / d[r, c]
    for j in range(columns + 1):
        line[j] = d[r, j] * scale
    line[c] = scale
    for i in range(rows + 1):
        factor = d[i, c]
        if i == r or factor == 0.0:
            continue
        d[i, c] = 0.0
        for j in range(columns + 1):
            d[i, j] -= factor * line[j]
    for j in range(columns + 1):
        d[r, j] = line[j]


@jit_in_place
def maximise(d: Floats, label: Ints, line: Floats, x: Floats, pivots: int) -> int:
    """Write the x >= 0 that maximises c x with A x <= b, b >= 0; d is ((A, b), (c, 0)) and is overwritten.

    d (rows + 1, columns + 1); label (columns + rows,) and line (columns + 1,) are scratch; x (columns,). Returns
    the pivots made, or -1 when there is no largest value or more than `pivots` would be needed.
    """
    rows, columns, stalled = d.shape[0] - 1, d.shape[1] - 1, 0
    for k in range(label.size):
        label[k] = k
    for count in range(pivots):
        c = _entering(d, label, rows, columns, stalled > _STALLED)
        if c < 0:
            for j in range(columns):
                x[j] = 0.0
            for i in range(rows):
                if label[columns + i] < columns:
                    x[label[columns + i]] = d[i, columns]
            return count
        r = _leaving(d, label, rows, columns, c)
        if r < 0:
            return -1
        before = d[rows, columns]
        _pivot(d, rows, columns, r, c, line)
        label[c], label[columns + r] = label[columns + r], label[c]
        stalled = stalled + 1 if d[rows, columns] >= before - 1e-15 * abs(before) else 0
    return -1
