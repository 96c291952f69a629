"""Means, intervals and paired ratios over seeds.

Policies are compared on the same seeds (common random numbers), so differences between two of them are paired by
seed: the interval of a ratio is that of the paired log ratios, which is far narrower than the intervals of the two
means (Law 2015, Simulation Modeling and Analysis, section 11.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95


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
    from scipy.special import stdtrit  # takes a while to load, and a single run has no interval

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
    x, y = _pair(values, reference)
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
    x, y = _pair(values, reference)
    return mean_interval(x - y, confidence)


def _pair(values: ArrayLike, reference: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"{x.size} values cannot be paired with {y.size}")
    return x, y


def paired_effect(values: ArrayLike, reference: ArrayLike) -> float:
    """Cohen's d (1988) for pairs of positive (n,): mean of the log ratios over their spread; NaN without one.

    Raises ValueError when the lengths differ.
    """
    log = _log_ratios(values, reference)
    spread = float(log.std(ddof=1)) if log.size else 0.0
    return float(log.mean()) / spread if spread > 0.0 else math.nan


def paired_p(values: ArrayLike, reference: ArrayLike) -> float:
    """Two-sided p of a paired t-test (Student 1908) that two positive (n,) differ, on log ratios; NaN for one pair.

    Raises ValueError when the lengths differ.
    """
    log = _log_ratios(values, reference)
    if not log.size:
        return math.nan
    spread = float(log.std(ddof=1))
    if spread == 0.0:
        return 1.0 if log[0] == 0.0 else 0.0
    from scipy.special import stdtr

    return float(2.0 * stdtr(log.size - 1, -abs(float(log.mean())) / (spread / math.sqrt(log.size))))


def stratified_ratio(
    values: Sequence[ArrayLike], reference: Sequence[ArrayLike], exact: Sequence[bool], confidence: float = CONFIDENCE
) -> tuple[Interval, float, float]:
    """(ratio, p, effect) of positive pairs that come in groups (pairs,), each group counted once.

    The ratio is the geometric mean over the groups of their own geometric means. Its interval and two-sided p are
    of Student's t on the log ratios within groups, with the degrees of freedom of Welch (1947) and Satterthwaite
    (1946); the effect is Cohen's d, by the root of the mean variance within groups. exact: groups that are not
    random and have one pair. NaN where a value is not positive, or a group has no spread. Raises ValueError when
    lengths differ.
    """
    pairs = [_pair(x, y) for x, y in zip(values, reference, strict=True)]
    n = sum(x.size for x, _ in pairs)
    if not pairs or not all(x.size and (x > 0).all() and (y > 0).all() for x, y in pairs):
        return Interval(math.nan, math.nan, math.nan, n), math.nan, math.nan
    logs = [np.log(x / y) for x, y in pairs]
    mean = float(np.mean([log.mean() for log in logs]))
    free = [log for log, known in zip(logs, exact, strict=True) if not known]
    if not free or any(log.size < 2 for log in free):
        return Interval(math.exp(mean), math.nan, math.nan, n), math.nan, math.nan
    variance = np.array([log.var(ddof=1) for log in free])
    size = np.array([log.size for log in free], dtype=np.float64)
    parts = variance / size
    if not parts.any():
        return Interval(math.exp(mean), math.exp(mean), math.exp(mean), n), float(mean == 0.0), math.nan
    from scipy.special import stdtr, stdtrit

    error = math.sqrt(float(parts.sum())) / len(pairs)
    degrees = float(parts.sum()) ** 2 / float((parts**2 / (size - 1.0)).sum())
    half = float(stdtrit(degrees, 0.5 + 0.5 * confidence)) * error
    p = float(2.0 * stdtr(degrees, -abs(mean) / error))
    interval = Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n)
    return interval, p, mean / math.sqrt(float(variance.mean()))


def _log_ratios(values: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """Logarithms of the ratios of pairs (n,); none of fewer than two, or of pairs that are not all positive."""
    x, y = _pair(values, reference)
    if x.size < 2 or not ((x > 0).all() and (y > 0).all()):
        return np.empty(0)
    ratios: NDArray[np.float64] = np.log(x / y)
    return ratios


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """p values (n,) of a family of tests, adjusted for the family-wise error rate (Holm 1979).

    NaN (no test) stays NaN and is not counted.
    """
    raw = np.asarray(p, dtype=np.float64)
    if np.isnan(raw).any():
        known = raw.copy()
        known[~np.isnan(raw)] = holm(raw[~np.isnan(raw)])
        return known
    order = np.argsort(raw)
    stepped = np.maximum.accumulate(raw[order] * np.arange(raw.size, 0, -1))
    adjusted = np.empty(raw.size)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
