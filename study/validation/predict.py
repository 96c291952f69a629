"""Fits on some rows and predictions of others: steps (against a constant rate of model FLOP), and memory peaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.sim.llm.fit import PRIORS, FittedStack, Prior, fit, left_out_residuals, predict
from equipoise.sim.llm.fit_memory import fit_memory
from equipoise.sim.llm.memory import counts, peaks
from equipoise.sim.llm.memory_stack import MemoryStack
from equipoise.sim.llm.stack import Floats
from equipoise.study.validation.rows import Row, labels, left_out_groups, seconds, stacked
from equipoise.study.validation.score import Score, judge, rank_correlation, regret, spread_of
from equipoise.study.validation.splits import bucket

KEEPS_SCORES = {**PRIORS, "score_bytes": Prior(8.0, 1.0, 40.0, "stack")}
"""Constants of a stack without fused attention, which writes and reads its scores."""

PARTS = 12
"""Number of parts in which keys are left out."""


@dataclass(frozen=True)
class Prediction:
    """A fit to rows, and the interval from leaving out its families in turn."""

    fitted: FittedStack
    spread: tuple[float, float]


def learn(rows: Sequence[Row], priors: Mapping[str, Prior] = PRIORS, by: str = "family") -> Prediction:
    """Fits two rows or more; the interval comes from leaving out `by`: families, or keys. Raises ValueError."""
    q, measured, marks = stacked(rows), seconds(rows), labels(rows)
    groups = left_out_groups(rows) if by == "family" else [r.key for r in rows]
    parts = groups if by == "family" else [str(bucket(key, 0, PARTS)) for key in groups]
    fitted = fit(q, measured, marks, priors)
    left = left_out_residuals(q, measured, marks, parts, fitted, priors)
    return Prediction(fitted, spread_of(left, groups))


def predicted(fitted: FittedStack, rows: Sequence[Row]) -> Floats:
    """Predicted steps of rows [s]."""
    return predict(fitted, stacked(rows), labels(rows))


def constant_rate(known: Sequence[Row], asked: Sequence[Row]) -> Floats:
    """Steps [s] at the median model FLOP/s per accelerator of the known rows of one accelerator and precision."""
    rates: dict[object, list[float]] = defaultdict(list)
    for row in known:
        rate = _flop(row) / row.seconds
        for kind in (_kind(row), None):
            rates[kind].append(rate)
    return np.array([_flop(row) / np.median(rates.get(_kind(row), rates[None])) for row in asked])


def _kind(row: Row) -> tuple[str, bool]:
    return row.plan.accelerator.name, row.plan.layout.precision == "fp8"


def _flop(row: Row) -> float:
    la = row.plan.layout
    return row.plan.shape.train_flop_per_token() * la.global_batch * row.plan.shape.sequence / la.gpus


def score(
    known: Sequence[Row],
    asked: Sequence[Row],
    priors: Mapping[str, Prior] = PRIORS,
    by: str = "family",
    learned: Prediction | None = None,
) -> Score:
    """The score of predicting `asked` from `known`, or by what was `learned` of them; rows were divided `by` family or
    key."""
    learned = learned or learn(known, priors, by)
    guess, measured = predicted(learned.fitted, asked), seconds(asked)
    return judge(
        [row.key for row in asked],
        guess,
        constant_rate(known, asked),
        measured,
        learned.spread,
        rank_correlation(asked, guess, measured),
        regret(asked, guess, measured),
    )


def fit_rows(
    rows: Sequence[Row], prior: MemoryStack, stage: int | None = None, fixed: Sequence[str] = ()
) -> MemoryStack:
    """The constants of rows; `stage` and `fixed` as in `fit_memory`."""
    return fit_memory([r.plan for r in rows], measured_peaks(rows), prior, stage, fixed)


def measured_peaks(rows: Sequence[Row]) -> Floats:
    """Measured peaks, shape (rows,) [bytes]."""
    return np.array([r.memory_bytes for r in rows])


def memory_score(
    known: Sequence[Row], asked: Sequence[Row], prior: MemoryStack, stage: int | None = None, fixed: Sequence[str] = ()
) -> Score:
    """The score of predicting the peaks of `asked` from `known`, against the median peak of `known`."""
    stack = fit_rows(known, prior, stage, fixed)
    truth = measured_peaks(asked)
    guess = peaks([counts(r.plan, stack) for r in asked], stack, stage)
    median = np.full(len(asked), np.median(measured_peaks(known)))
    left, families = _left_out(known, prior, stage, fixed)
    return judge([r.key for r in asked], guess, median, truth, spread_of(left, families))


def _left_out(
    rows: Sequence[Row], prior: MemoryStack, stage: int | None, fixed: Sequence[str]
) -> tuple[Floats, list[str]]:
    """log(measured / predicted) of every row by a fit without its group, and the groups."""
    names = left_out_groups(rows)
    residuals = np.zeros(len(rows))
    for name in sorted(set(names)):
        rest = [r for r, other in zip(rows, names, strict=True) if other != name]
        stack = fit_rows(rest, prior, stage, fixed)
        for index, row in enumerate(rows):
            if names[index] == name:
                residuals[index] = np.log(row.memory_bytes / peaks([counts(row.plan, stack)], stack, stage)[0])
    return residuals, names
