"""Means, intervals and paired ratios over seeds.

Policies are compared on the same seeds (common random numbers), so what differs between two of them is
paired by seed: the interval of a ratio is that of the paired log ratios, which is far narrower than the
intervals of the two means (Law 2015, Simulation Modeling and Analysis, section 11.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval. `low` and `high` are NaN when one value gives no spread."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the length of the interval; NaN when there is none."""
        return 0.5 * (self.high - self.low)


def t_quantile(confidence: float, degrees: int) -> float:
    """Two-sided quantile of Student's t: P(|T| <= t) = confidence. Raises ValueError outside 0..1."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence}: allowed is between 0 and 1")
    return float(stdtrit(degrees, 0.5 + 0.5 * confidence))


def _around(mean: float, spread: NDArray[np.float64], confidence: float) -> Interval:
    """Interval of a mean whose `n` independent contributions scatter like `spread`."""
    n = spread.size
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    half = t_quantile(confidence, n - 1) * float(spread.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def mean_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Mean and Student-t interval of independent values (n,), any unit; NaN values make all NaN."""
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    return _around(float(x.mean()), x, confidence)


def paired_ratio(values: ArrayLike, reference: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Ratio of `values` to `reference`, paired by position; both (n,), same unit.

    All positive: geometric mean of the ratios, interval from the paired log ratios. Otherwise (shares may be
    0) the ratio of the means, with the linearised residuals of Cochran 1977, Sampling Techniques, section
    6.4; NaN when the reference's mean is not positive. Equal inputs give exactly 1.
    Raises ValueError when the lengths differ.
    """
    x, y = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"{x.size} values cannot be paired with {y.size}")
    if x.size == 0 or np.isnan(x).any() or np.isnan(y).any():
        return Interval(math.nan, math.nan, math.nan, x.size)
    if (x > 0).all() and (y > 0).all():
        log = _around(float(np.log(x / y).mean()), np.log(x / y), confidence)
        return Interval(math.exp(log.mean), math.exp(log.low), math.exp(log.high), x.size)
    if not y.mean() > 0:
        return Interval(math.nan, math.nan, math.nan, x.size)
    ratio = float(x.mean() / y.mean())
    return _around(ratio, (x - ratio * y) / y.mean(), confidence)


def paired_difference(values: ArrayLike, reference: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Mean of `values - reference`, paired by position, with its Student-t interval.

    Raises ValueError when the lengths differ.
    """
    x, y = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"{x.size} values cannot be paired with {y.size}")
    return mean_interval(x - y, confidence)


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[[NDArray[np.float64]], float],
    confidence: float = CONFIDENCE,
    *,
    resamples: int = _RESAMPLES,
    key: int = 0,
) -> Interval:
    """Percentile bootstrap (Efron 1979) of any statistic of independent values (n,).

    For statistics without a t interval, such as percentiles. The resampling is keyed by `key`, so equal
    inputs give equal intervals.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size < 2:
        return Interval(statistic(x) if x.size else math.nan, math.nan, math.nan, x.size)
    generator = np.random.Generator(np.random.Philox(key=key))
    drawn = np.array([statistic(x[generator.integers(0, x.size, x.size)]) for _ in range(resamples)])
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(drawn, [tail, 100.0 - tail])
    return Interval(statistic(x), float(low), float(high), x.size)
