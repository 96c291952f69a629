"""Fits the memory model on some rows and predicts the peaks of others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.sim.llm.fit_memory import fit_memory
from equipoise.sim.llm.interval import spread
from equipoise.sim.llm.memory import MemoryStack, counts, peaks
from equipoise.sim.llm.stack import Floats
from equipoise.study.validation.rows import Row, left_out_groups
from equipoise.study.validation.score import Score, judge


def fit_rows(
    rows: Sequence[Row], prior: MemoryStack, stage: int | None = None, fixed: Sequence[str] = ()
) -> MemoryStack:
    """The constants of rows; `stage` and `fixed` as in `fit_memory`."""
    return fit_memory([r.plan for r in rows], measured_peaks(rows), prior, stage, fixed)


def measured_peaks(rows: Sequence[Row]) -> Floats:
    """Measured peaks, shape (rows,) [bytes]."""
    return np.array([r.memory_bytes for r in rows])


def memory_score(
    known: Sequence[Row],
    asked: Sequence[Row],
    prior: MemoryStack,
    stage: int | None = None,
    fixed: Sequence[str] = (),
) -> Score:
    """The score of predicting the peaks of `asked` from `known`, beside the median peak of `known`."""
    stack = fit_rows(known, prior, stage, fixed)
    truth = measured_peaks(asked)
    guess = peaks([counts(r.plan) for r in asked], stack, stage)
    median = np.full(len(asked), np.median(measured_peaks(known)))
    left, families = _left_out(known, prior, stage, fixed)
    return judge([r.key for r in asked], guess, median, truth, spread(left, families))


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
                residuals[index] = np.log(row.memory_bytes / peaks([counts(row.plan)], stack, stage)[0])
    return residuals, names
