"""alpha-beta constants in pieces: how long a message of s bytes takes.

Libraries switch protocol with the size (latency-, then bandwidth-optimised), so one line does not do. The
sizes are cut into pieces by dynamic programming (Bellman 1961): least squared relative error plus a price per
piece (Schwarz 1978), each piece a line alpha + beta * s with alpha, beta >= 0 (Hockney 1994).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.calibrate.fit.robust import (
    MAD_TO_SIGMA,
    REPLICATES,
    Estimate,
    Floats,
    checked,
    estimate,
    low_quantile,
    noise_cov,
)

RELATIVE_NOISE_FLOOR = 0.01
"""Differences below this are not worth a piece of their own."""

PRICE_PER_PIECE = 5.0
"""In units of log(sizes): alpha, beta, and a knot, whose free place counts three (Zhang & Siegmund 2007)."""

BEYOND_WEIGHT = {2: 0.5, 3: 0.25}
"""By how many sizes the last piece rests on: the weight of the mean slope in extrapolating."""


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """One piece: from `from_bytes` to `to_bytes` a message takes alpha_s + beta_s_per_byte * size."""

    from_bytes: float
    to_bytes: float
    alpha_s: Estimate
    beta_s_per_byte: Estimate

    def at(self, size_bytes: float) -> float:
        """Seconds for a message of that size, by this piece's line."""
        return self.alpha_s.value + self.beta_s_per_byte.value * size_bytes


@dataclass(frozen=True)
class CollectiveFit:
    """Time by message size: lines inside the pieces, a straight bridge between two of them.

    `quantile` is the quantile of repeated measurements that the lines stand for; `typical` is the median of
    measured over predicted time, and `residual_cov` its spread: together the noise model on top of the lines.
    """

    pieces: tuple[AlphaBeta, ...]
    quantile: float
    typical: float
    residual_cov: float
    n: int
    last_sizes: int = 4  # distinct sizes in the last piece

    @property
    def beyond_s_per_byte(self) -> float:
        """Slope above the largest size that was measured.

        The last piece's, but where that rests on two or three sizes it is drawn towards the mean slope from
        the origin: right after a change of protocol, two sizes show a rate that larger ones do not keep.
        """
        last = self.pieces[-1]
        mean = last.at(last.to_bytes) / last.to_bytes
        slope, weight = last.beta_s_per_byte.value, BEYOND_WEIGHT.get(self.last_sizes, 0.0)
        return float(slope ** (1.0 - weight) * mean**weight)

    def predict(self, sizes_bytes: npt.ArrayLike) -> Floats:
        """Seconds at the fit's quantile for each size; below the smallest the first piece extrapolates."""
        sizes = np.asarray(sizes_bytes, dtype=np.float64)
        knots = [x for p in self.pieces for x in (p.from_bytes, p.to_bytes)]
        values = [p.at(x) for p in self.pieces for x in (p.from_bytes, p.to_bytes)]
        inside = np.interp(sizes, knots, values)
        first, last = self.pieces[0], self.pieces[-1]
        below = first.alpha_s.value + first.beta_s_per_byte.value * sizes
        above = last.at(last.to_bytes) + self.beyond_s_per_byte * (sizes - last.to_bytes)
        return np.where(sizes < knots[0], below, np.where(sizes > knots[-1], above, inside))


def by_size(sizes: Floats, times: Floats, quantile: float) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """(distinct sizes ascending, their `quantile` time, index of each sample's size)."""
    distinct, index = np.unique(sizes, return_inverse=True)
    levels = [low_quantile(times[index == k], quantile) for k in range(len(distinct))]
    return distinct, np.array(levels), index


def fit_collective(
    sizes_bytes: npt.ArrayLike, times_s: npt.ArrayLike, quantile: float = 0.5, seed: int = 0, intervals: bool = True
) -> CollectiveFit:
    """Fit alpha-beta pieces to measured message times (s) by size (bytes).

    `quantile` picks what repeated measurements of a size stand for: 0.5 their typical time, 0.1 the link
    without its neighbours' interruptions. Without `intervals`, which cost most of the time, each constant's
    interval is its value. Raises ValueError for fewer than 3 distinct sizes.
    """
    sizes, times = checked(sizes_bytes, times_s, 3, "collective fit")
    distinct, levels, index = by_size(sizes, times, quantile)
    if len(distinct) < 3:
        raise ValueError(f"collective fit: needs at least 3 distinct sizes, got {len(distinct)}")
    cuts = _segments(distinct, levels, _level_noise(distinct, levels, times, index))
    lines = [_line(distinct[i:j], levels[i:j]) for i, j in cuts]
    fitted = np.concatenate([_values(lines[k], distinct[i:j]) for k, (i, j) in enumerate(cuts)])
    spread = (
        _bootstrap(distinct, times, index, fitted, cuts, quantile, seed)
        if intervals
        else [np.empty((0, 2)) for _ in cuts]
    )
    counts = np.bincount(index)
    pieces = []
    for (i, j), line, draws in zip(cuts, lines, spread, strict=True):
        constants = (estimate(float(line[c]), draws[:, c], int(counts[i:j].sum())) for c in (0, 1))
        pieces.append(AlphaBeta(float(distinct[i]), float(distinct[j - 1]), *constants))
    typical = float(np.median(times / fitted[index]))
    cov, last_sizes = noise_cov(fitted[index], times), cuts[-1][1] - cuts[-1][0]
    return CollectiveFit(tuple(pieces), quantile, typical, cov, len(times), last_sizes)


def _values(line: Floats, sizes: Floats) -> Floats:
    return np.asarray(line[0] + line[1] * sizes)


def _line(sizes: Floats, levels: Floats) -> Floats:
    """(alpha, beta) >= 0 of least squared relative error; levels (n,) or (replicates, n)."""
    x, y = np.ones_like(levels) / levels, sizes / levels
    sxx, sxy, syy = (x * x).sum(-1), (x * y).sum(-1), (y * y).sum(-1)
    sx, sy = x.sum(-1), y.sum(-1)
    det = sxx * syy - sxy * sxy
    usable = det > 1e-14 * sxx * syy
    safe = np.where(usable, det, 1.0)
    alpha = np.where(usable, (syy * sx - sxy * sy) / safe, -1.0)
    beta = np.where(usable, (sxx * sy - sxy * sx) / safe, 0.0)
    through_origin = alpha < 0
    flat = (beta < 0) & ~through_origin
    alpha = np.where(through_origin, 0.0, np.where(flat, sx / sxx, alpha))
    beta = np.where(through_origin, sy / np.where(syy > 0, syy, 1.0), np.where(flat, 0.0, beta))
    return np.stack([alpha, beta], axis=-1)


def _level_noise(distinct: Floats, levels: Floats, times: Floats, index: npt.NDArray[np.intp]) -> float:
    """Relative standard error of one size's level: from repeats where there are any, else the floor."""
    counts = np.bincount(index, minlength=len(distinct))
    repeated = counts[index] >= 3
    if not repeated.any():
        return RELATIVE_NOISE_FLOOR
    centre = np.array([np.median(times[index == k]) for k in range(len(distinct))])
    relative = times[repeated] / centre[index[repeated]] - 1.0
    sigma = MAD_TO_SIGMA * np.median(np.abs(relative))
    return max(float(1.25 * sigma / math.sqrt(np.median(counts[counts >= 3]))), RELATIVE_NOISE_FLOOR)


def _segments(sizes: Floats, levels: Floats, sigma: float) -> list[tuple[int, int]]:
    """Half-open index ranges of the pieces, at least two sizes each; O(sizes^2) over prefix sums."""
    n = len(sizes)
    price = PRICE_PER_PIECE * math.log(n)
    sums = _prefix_sums(sizes, levels)
    best = np.concatenate([[0.0], np.full(n, np.inf)])
    previous = np.zeros(n + 1, dtype=int)
    for end in range(2, n + 1):
        starts = np.arange(end - 1)
        cost = best[starts] + _squared_errors(sums[:, end, None] - sums[:, starts]) / sigma**2 + price
        previous[end] = int(np.argmin(cost))
        best[end] = cost[previous[end]]
    cuts, end = [], n
    while end > 0:
        cuts.append((int(previous[end]), end))
        end = int(previous[end])
    return cuts[::-1]


def _prefix_sums(sizes: Floats, levels: Floats) -> Floats:
    x, y = 1.0 / levels, sizes / levels
    terms = np.stack([x * x, x * y, y * y, x, y, np.ones_like(x)])
    return np.concatenate([np.zeros((6, 1)), np.cumsum(terms, axis=1)], axis=1)


def _squared_errors(sums: Floats) -> Floats:
    """Least sum of squared relative errors of one line over each range of samples, from its six sums."""
    sxx, sxy, syy, sx, sy, n = sums
    det = sxx * syy - sxy * sxy
    usable = det > 1e-12 * sxx * syy
    safe = np.where(usable, det, 1.0)
    alpha = (syy * sx - sxy * sy) / safe
    beta = (sxx * sy - sxy * sx) / safe
    free = n - alpha * sx - beta * sy
    flat = n - sx * sx / sxx
    origin = n - sy * sy / np.where(syy > 0, syy, 1.0)
    allowed = np.where(alpha < 0, origin, np.where(beta < 0, flat, free))
    return np.asarray(np.maximum(np.where(usable, allowed, np.minimum(flat, origin)), 0.0))


def _bootstrap(
    distinct: Floats,
    times: Floats,
    index: npt.NDArray[np.intp],
    fitted: Floats,
    cuts: list[tuple[int, int]],
    quantile: float,
    seed: int,
) -> list[Floats]:
    """(REPLICATES, 2) constants for each piece, with the cuts held.

    Residuals are drawn within a piece, whose protocol and noise they share, and inflated for the two fitted
    constants; a piece with few samples borrows those of all pieces.
    """
    random = np.random.default_rng(seed)
    results = []
    everywhere = times / fitted[index]
    for i, j in cuts:
        rows = np.flatnonzero((index >= i) & (index < j))
        ratio = everywhere[rows] if len(rows) >= 8 else everywhere
        centre = np.median(ratio)
        inflated = centre + (ratio - centre) * math.sqrt(len(ratio) / max(len(ratio) - 2, 1))
        drawn = np.maximum(inflated[random.integers(0, len(ratio), size=(REPLICATES, len(rows)))], 1e-6)
        samples = fitted[index[rows]] * drawn
        levels = [low_quantile(samples[:, index[rows] == k], quantile) for k in range(i, j)]
        results.append(_line(distinct[i:j], np.stack(levels, axis=1)))
    return results
