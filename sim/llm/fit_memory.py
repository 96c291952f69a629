"""Fits the constants of `MemoryStack` to measured peaks, as `fit` does those of the step time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from equipoise.sim.llm.memory import counts, peaks
from equipoise.sim.llm.memory_stack import FITTED, MemoryStack
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.stack import Floats

BOUNDS = {
    "gradient_bytes": (2.0, 6.5),
    "optimizer_bytes": (8.0, 16.5),
    "plain_bytes": (4.0, 40.0),
    "gathered_bytes": (1.0, 60.0),
    "inner_bytes": (1.0, 8.0),
    "score_bytes": (1e-3, 12.0),
    "head_bytes": (0.5, 100.0),
    "logit_bytes": (2.0, 40.0),
    "base_bytes": (5e7, 2e10),
}
WEIGHT = 0.05
"""Penalty per e-fold from the prior, in units of relative error of one row."""
SOFT = 0.015
"""Relative error up to which a row counts quadratically; chosen by families left out among fitted rows."""


def fit_memory(
    plans: Sequence[ShardingPlan],
    measured_bytes: Floats,
    prior: MemoryStack,
    stage: int | None = None,
    fixed: Sequence[str] = (),
) -> MemoryStack:
    """Constants that predict the measured peaks, shape (rows,); near `prior` where rows say little.

    `stage` is the pipeline stage whose peak was measured, None the fullest; constants named in `fixed` keep
    their prior, as what a software's documents say of its states. Raises ValueError without a positive, finite
    peak per plan and at least one plan.
    """
    measured = np.asarray(measured_bytes, dtype=np.float64)
    if measured.size == 0 or not np.all(np.isfinite(measured) & (measured > 0)):
        raise ValueError("measured: one positive, finite peak per plan and at least one plan are needed")
    counted, names = [counts(plan, prior) for plan in plans], FITTED
    low, high = (np.log([BOUNDS[name][i] for name in names]) for i in (0, 1))
    kept = np.isin(names, list(fixed))
    low, high = (np.where(kept, np.log(prior.vector()) + margin, ends) for margin, ends in ((-1e-6, low), (1e-6, high)))
    centre = np.clip(np.log(prior.vector()), low + 1e-9, high - 1e-9)

    def residuals(theta: Floats) -> Floats:
        """Residuals of every row, and distances from the start."""
        stack = prior.with_bytes(dict(zip(names, np.exp(theta).tolist(), strict=True)))
        return np.concatenate([np.log(peaks(counted, stack, stage) / measured), WEIGHT * (theta - centre)])

    found = least_squares(residuals, centre, bounds=(low, high), loss="soft_l1", f_scale=SOFT, max_nfev=100)
    return prior.with_bytes(dict(zip(names, np.exp(found.x).tolist(), strict=True)))
