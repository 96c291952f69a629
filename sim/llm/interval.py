"""Intervals of predictions, from rows whose whole family was left out of the fit.

Residuals of fitted rows are too small: a model that met a family's other rows knows it. Leaving out one family at a
time and weighing families equally gives quantiles that held their share of rows of unseen families.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from equipoise.sim.llm.fit import PRIORS, FittedStack, Labels, Prior, fit, predict
from equipoise.sim.llm.quantities import Quantities
from equipoise.sim.llm.stack import Floats


def left_out_residuals(
    q: Quantities,
    measured_s: Floats,
    labels: Labels,
    families: Sequence[str],
    fitted: FittedStack,
    priors: Mapping[str, Prior] = PRIORS,
) -> Floats:
    """log(measured / predicted) of every row by a fit without its family, shape (rows,).

    `fitted` is the fit to all rows, from which the others start. Raises ValueError with fewer than two families.
    """
    names = np.array(families)
    if len(set(families)) < 2:
        raise ValueError("families: at least two are needed to leave one out")
    residuals = np.zeros(len(names))
    for name in sorted(set(families)):
        out, kept = np.flatnonzero(names == name).tolist(), np.flatnonzero(names != name).tolist()
        rest = fit(q.take(kept), measured_s[kept], chosen(labels, kept), priors, fitted)
        residuals[out] = np.log(measured_s[out] / predict(rest, q.take(out), chosen(labels, out)))
    return residuals


def chosen(labels: Labels, rows: Sequence[int]) -> dict[str, list[str]]:
    """The labels of these rows."""
    return {kind: [values[i] for i in rows] for kind, values in labels.items()}


def spread(residuals: Floats, families: Sequence[str], share: float = 0.90) -> tuple[float, float]:
    """Factors (low, high) by which a prediction is multiplied to hold `share` of measurements.

    Weighted quantiles of the residuals, every family of the same weight, and one family to come of unknown residual
    (conformal prediction: Vovk et al. 2005): with few families the ends are the largest residuals met. Raises
    ValueError without a row.
    """
    if len(residuals) == 0:
        raise ValueError("residuals: at least one row is needed")
    names, counts = np.unique(np.array(families), return_counts=True)
    weight = 1.0 / counts[np.searchsorted(names, np.array(families))]
    order = np.argsort(residuals)
    below = np.cumsum(weight[order]) - weight[order] / 2
    tail = (1 - share) / 2 - (1 + share) / 2 / len(names)
    low, high = np.interp([max(0.0, tail), min(1.0, 1 - tail)], below / weight.sum(), residuals[order])
    return float(np.exp(low)), float(np.exp(high))
