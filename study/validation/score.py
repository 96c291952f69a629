"""Errors of predictions against measurements, and quality of the order of plans."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit
from scipy.stats import spearmanr

from equipoise.sim.llm.fit import spread
from equipoise.sim.llm.stack import Floats
from equipoise.study.validation.rows import LeftOutWarning, Row
from equipoise.study.validation.splits import SPLITS


@dataclass(frozen=True, slots=True)
class Points:
    """Held-out rows of one split: their keys, predictions with their interval, and measurements, all (rows,)."""

    keys: tuple[str, ...]
    predicted: Floats
    low: Floats
    high: Floats
    measured: Floats


@dataclass(frozen=True, slots=True)
class Score:
    """One split: absolute relative errors' median, the naive model's, share within the interval, ordering of plans.

    `spearman` is the median rank correlation over families of five or more held-out rows; `picked` the median of
    how much slower the plan picked among held-out plans of one model, batch and number of accelerators is than
    the best. NaN where no family or group is large enough.
    """

    rows: int
    error: float
    naive: float
    covered: float
    spearman: float = np.nan
    picked: float = np.nan
    points: Points | None = None
    p90: float = np.nan
    width: float = np.nan  # of the intervals: median of high / low


def judge(
    keys: Sequence[str],
    predicted: Floats,
    naive: Floats,
    measured: Floats,
    spread: tuple[float | Floats, float | Floats],
    spearman: float = np.nan,
    picked: float = np.nan,
) -> Score:
    """The score of predictions whose interval is [low, high] times them; `naive` are the plainest model's.

    Raises ValueError without a row, or where a measurement is not a number above 0.
    """
    wrong = [key for key, value in zip(keys, measured, strict=True) if not 0.0 < value < np.inf]
    if wrong or not len(keys):
        raise ValueError(f"row {wrong[0]!r}: measured is not above 0" if wrong else "no row is left to predict")
    low, high = (np.asarray(predicted * factor, dtype=np.float64) for factor in spread)
    inside = (measured >= low) & (measured <= high)
    return Score(
        len(measured),
        relative_error(predicted, measured),
        relative_error(naive, measured),
        float(inside.mean()) if np.isfinite(low).any() else np.nan,  # no interval was given
        spearman,
        picked,
        Points(tuple(keys), predicted, low, high, measured),
        float(np.quantile(np.abs(predicted / measured - 1), 0.9)),
        float(np.median(high / np.maximum(low, 1e-300))) if np.isfinite(low).any() else np.nan,
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a validation table: medians over the splits, the worst split's error, rows of the first."""

    what: str
    target: float
    rows: int
    median: float
    worst: float
    p90: float
    naive: float
    covered: float
    width: float
    spearman: float
    picked: float
    points: Points | None = None


def of_splits(make: Callable[[int], Score], splits: Iterable[int] = SPLITS) -> list[Score]:
    """The score of every split that leaves enough rows on both sides; a `LeftOutWarning` counts the others.

    Raises ValueError where none does.
    """
    scores, wrong = [], {}
    for split in splits:
        try:
            scores.append(make(split))
        except ValueError as error:
            wrong[split] = str(error)
    if not scores:
        raise ValueError(next(iter(wrong.values()), "no split was asked for"))
    if wrong:
        told = ", ".join(map(str, wrong))
        warnings.warn(f"splits left out: {told} ({next(iter(wrong.values()))})", LeftOutWarning, stacklevel=2)
    return scores


def line(what: str, target: float, scores: Sequence[Score]) -> Line:
    """The line of several splits; `target` is the median error asked for. Raises ValueError without a split."""
    if not scores:
        raise ValueError("no row is left to predict")

    def middle(name: str) -> float:
        """Median of the known values."""
        values = [getattr(s, name) for s in scores]
        kept = [v for v in values if np.isfinite(v)]
        return float(np.median(kept)) if kept else float("nan")

    errors = [s.error for s in scores]
    return Line(
        what,
        target,
        round(middle("rows")),
        middle("error"),
        max(errors),
        middle("p90"),
        middle("naive"),
        middle("covered"),
        middle("width"),
        middle("spearman"),
        middle("picked"),
        scores[0].points,
    )


FEW = 10
"""Families from which on quantiles alone are taken."""


def spread_of(residuals: Floats, families: Sequence[str], share: float = 0.90) -> tuple[float, float]:
    """Interval factors as `sim.llm.interval.spread`; of few families at least Student's t for a row of one to come.

    Of three degrees or more: with two or three families their quantile would be a multiple of all residuals.
    """
    low, high = spread(residuals, families, share)
    names, counts = np.unique(np.array(families), return_counts=True)
    if not 1 < len(names) < FEW:
        return low, high
    weight = 1.0 / counts[np.searchsorted(names, np.array(families))]
    mean = float(weight @ residuals) / len(names)
    squares = float(weight @ (residuals - mean) ** 2) / (len(names) - 1) * (1 + 1 / len(names))
    half = float(stdtrit(max(3, len(names) - 1), (1 + share) / 2)) * squares**0.5
    return min(low, float(np.exp(mean - half))), max(high, float(np.exp(mean + half)))


def spread_of_others(residuals: Floats, groups: Sequence[str]) -> tuple[Floats, Floats]:
    """Interval factors of every row from the residuals of the other groups; 1 where there are none."""
    names, low, high = np.array(groups), np.ones(len(groups)), np.ones(len(groups))
    for name in sorted(set(groups)):
        own = names == name
        if not own.all():
            low[own], high[own] = spread_of(residuals[~own], names[~own].tolist())
    return low, high


def relative_error(predicted: Floats, measured: Floats) -> float:
    """Median of |predicted / measured - 1|."""
    return float(np.median(np.abs(predicted / measured - 1)))


def rank_correlation(rows: Sequence[Row], predicted: Floats, measured: Floats, least: int = 5) -> float:
    """Median over families of Spearman's correlation of predicted and measured time per token."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.family].append(index)
    found = []
    for members in groups.values():
        times = np.array([measured[i] / _tokens(rows[i]) for i in members])
        guesses = np.array([predicted[i] / _tokens(rows[i]) for i in members])
        if len(members) >= least and np.ptp(times) > 0 and np.ptp(guesses) > 0:
            found.append(float(spearmanr(times, guesses).statistic))
    return float(np.median(found)) if found else float("nan")


def regret(rows: Sequence[Row], predicted: Floats, measured: Floats, least: int = 3) -> float:
    """Median over (model, batch, accelerators) of measured time of the plan predicted fastest / best, less 1."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        la = row.plan.layout
        groups[(row.plan.shape, row.plan.accelerator.name, la.precision, la.global_batch, la.gpus)].append(index)
    found = []
    for members in groups.values():
        if len({rows[i].plan.layout for i in members}) >= least:
            pick = min(members, key=lambda i: predicted[i])
            found.append(measured[pick] / min(measured[i] for i in members) - 1)
    return float(np.median(found)) if found else float("nan")


def _tokens(row: Row) -> float:
    la = row.plan.layout
    return la.global_batch * row.plan.shape.sequence / la.gpus
