"""The fits: pure functions, samples in, constants with intervals and residuals out.

Every fit minimises relative error robustly (`calibrate.fit.robust`), keeps the residual's coefficient of
variation as its noise, and raises ValueError, one clear line, for samples it cannot use. Nothing here touches
hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from equipoise.calibrate.fit.pieces import CollectiveFit, fit_collective
from equipoise.calibrate.fit.robust import (
    MAD_TO_SIGMA,
    TUKEY,
    Estimate,
    Floats,
    affine,
    bisquare_weights,
    checked,
    estimate,
    noise_cov,
    resample,
)
from equipoise.policies.physics import overlapped_each, speed_at


class Predictor(Protocol):
    """A fit that predicts a time (s) for each size."""

    def predict(self, sizes: npt.ArrayLike, /) -> Floats:
        """Seconds for each size."""


@dataclass(frozen=True, slots=True)
class LineFit:
    """time = fixed_s + per_unit_s * x, with the residual's coefficient of variation."""

    fixed_s: Estimate
    per_unit_s: Estimate
    residual_cov: float
    n: int
    replicates: Floats  # (REPLICATES, 2): bootstrap draws of the two constants

    def predict(self, x: npt.ArrayLike) -> Floats:
        """Seconds for each x."""
        return np.asarray(self.fixed_s.value + self.per_unit_s.value * np.asarray(x, dtype=np.float64))

    def predict_interval(self, x: float) -> Estimate:
        """Seconds at `x` with a 95 % interval that holds the constants' uncertainty only, not the noise."""
        draws = self.replicates[:, 0] + self.replicates[:, 1] * x
        return estimate(float(self.predict(x)), draws, self.n)


def _fit_line(x: Floats, y: Floats, seed: int) -> LineFit:
    constants = affine(x, y)
    prediction = constants[0] + constants[1] * x
    draws = affine(x, resample(prediction, y, 2, seed))
    fixed, slope = (estimate(float(constants[k]), draws[:, k], len(x)) for k in (0, 1))
    return LineFit(fixed, slope, noise_cov(prediction, y), len(x), draws)


def fit_step_time(samples: npt.ArrayLike, times_s: npt.ArrayLike, seed: int = 0) -> LineFit:
    """Time of one forward-backward pass: alpha_c + beta_c * samples (Qiao et al. 2021, Pollux, section 3.2).

    `fixed_s` is alpha_c (s), `per_unit_s` beta_c (s per sample). Raises ValueError for fewer than 2 distinct
    batch sizes.
    """
    x, y = checked(samples, times_s, 3, "step time fit")
    if len(np.unique(x)) < 2:
        raise ValueError("step time fit: needs at least 2 distinct batch sizes")
    return _fit_line(x, y, seed)


@dataclass(frozen=True, slots=True)
class ShareFit:
    """Speed on a fraction of a GPU, relative to all of it: `policies.physics.speed_at`."""

    kappa: Estimate
    full_rate: float
    residual_cov: float
    n: int

    def predict(self, share: npt.ArrayLike) -> Floats:
        """Relative speed for each share in (0, 1]; 1 at share 1."""
        each = np.vectorize(speed_at, otypes=[float])
        return np.asarray(each(np.asarray(share, dtype=np.float64), self.kappa.value))


KAPPA_LARGEST = 1e3
"""Beyond this the speed is proportional to the share within 0.1 %."""


def fit_share_curve(
    share: npt.ArrayLike, rate: npt.ArrayLike, full_rate: float | None = None, seed: int = 0
) -> ShareFit:
    """kappa of `policies.physics.speed_at` from throughput at several shares of one GPU.

    share in (0, 1]; rate in any unit (samples/s, FLOP/s). The time of a unit of work is then a + b / f with
    kappa = b / a (Amdahl 1967), so the fit is a line, robust and in relative error. It passes through
    `full_rate` at share 1, or through the rate measured there, and has one free number; with three or more
    rates at share 1 these are samples like the others. Raises ValueError without a rate at share 1, or
    without a share below 1.
    """
    f, r = checked(share, rate, 2, "share curve")
    if (f <= 0).any() or (f > 1).any():
        raise ValueError("share curve: shares must be above 0 and at most 1")
    whole = f == 1.0
    if full_rate is None and not whole.any():
        raise ValueError("share curve: needs a rate at share 1, or full_rate")
    if whole.all():
        raise ValueError("share curve: needs at least one share below 1")
    if full_rate is None and int(whole.sum()) >= 3:
        fixed, per_part = affine(1.0 / f, 1.0 / r)
        draws = affine(1.0 / f, resample(fixed + per_part / f, 1.0 / r, 2, seed))
        full, c = 1.0 / (fixed + per_part), per_part / (fixed + per_part)
        spread = draws[:, 1] / draws.sum(axis=1)
    else:
        full = float(np.median(r[whole])) if full_rate is None else full_rate
        x, relative = 1.0 / f[~whole] - 1.0, full / r[~whole]
        c = float(_slope_through_one(x, relative))
        spread = _slope_through_one(x, resample(1.0 + c * x, relative, 1, seed))
    kappa = estimate(_kappa(float(c)), np.array([_kappa(float(v)) for v in spread]), len(f))
    residual_cov = noise_cov(1.0 + c * (1.0 / f - 1.0), full / r)
    return ShareFit(kappa, float(full), residual_cov, len(f))


def _kappa(c: float) -> float:
    return min(c / (1.0 - c), KAPPA_LARGEST) if c < 1.0 else KAPPA_LARGEST


def _slope_through_one(x: Floats, y: Floats, highest: float = 1.0) -> Floats:
    """Robust relative-error slope c in [0, highest] of y = 1 + c x along the last axis."""
    xs = np.broadcast_to(x, y.shape)
    base = 1.0 / y**2
    c = np.clip((base * xs * (y - 1.0)).sum(-1) / np.maximum((base * xs * xs).sum(-1), 1e-300), 0.0, highest)
    for _ in range(40):
        prediction = 1.0 + c[..., None] * xs
        w = bisquare_weights(y / prediction - 1.0) / prediction**2
        new = np.clip((w * xs * (y - 1.0)).sum(-1) / np.maximum((w * xs * xs).sum(-1), 1e-300), 0.0, highest)
        done = bool(np.all(np.abs(new - c) <= 1e-12))
        c = new
        if done:
            break
    return np.asarray(c)


@dataclass(frozen=True, slots=True)
class SlopeFit:
    """slowdown = 1 + slope * x."""

    slope: Estimate
    residual_cov: float
    n: int

    def predict(self, x: npt.ArrayLike) -> Floats:
        """Slow-down factor for each x."""
        return np.asarray(1.0 + self.slope.value * np.asarray(x, dtype=np.float64))


def fit_interference(others_share: npt.ArrayLike, slowdown: npt.ArrayLike, seed: int = 0) -> SlopeFit:
    """iota of `slowdown = 1 + iota * sum of the co-located workers' shares`, as the simulator has it.

    others_share >= 0, of the device, kept busy; slowdown = time together / time alone. Raises ValueError when no
    sample has a neighbour.
    """
    x, y = checked(others_share, slowdown, 2, "interference fit")
    if not (x > 0).any():
        raise ValueError("interference fit: needs samples with a co-located neighbour")
    slope = float(_slope_through_one(x, y, np.inf))
    draws = _slope_through_one(x, resample(1.0 + slope * x, y, 1, seed), np.inf)
    return SlopeFit(estimate(slope, draws, len(x)), noise_cov(1.0 + slope * x, y), len(x))


@dataclass(frozen=True, slots=True)
class OverlapFit:
    """How much of a gradient exchange the backward pass hides: the exponent gamma >= 1."""

    gamma: Estimate
    residual_cov: float
    n: int

    def predict(self, step_s: npt.ArrayLike, exchange_s: npt.ArrayLike) -> Floats:
        """Seconds of a step with its exchange: `policies.physics.overlapped_s`."""
        return overlapped_each(step_s, exchange_s, self.gamma.value)


def fit_overlap(
    step_s: npt.ArrayLike, exchange_s: npt.ArrayLike, together_s: npt.ArrayLike, seed: int = 0
) -> OverlapFit:
    """gamma in [1, 10] of `policies.physics.overlapped_s` (Qiao et al. 2021, equation 11).

    step_s is a step without, exchange_s an exchange without compute, together_s a step with its exchange (s).
    """
    step, together = checked(step_s, together_s, 3, "overlap fit")
    exchange, _ = checked(exchange_s, together_s, 3, "overlap fit")

    grid = np.concatenate([[1.0], 1.0 + np.geomspace(1e-2, 9.0, 150)])
    log_predictions = np.log([overlapped_each(step, exchange, g) for g in grid])
    gamma = float(grid[_least_robust_error(log_predictions, together[None, :])[0]])
    prediction = overlapped_each(step, exchange, gamma)
    draws = grid[_least_robust_error(log_predictions, resample(prediction, together, 1, seed)[:200])]
    return OverlapFit(estimate(gamma, draws, len(step)), noise_cov(prediction, together), len(step))


def _least_robust_error(log_predictions: Floats, measured: Floats) -> npt.NDArray[np.intp]:
    """For each row of `measured` (rows, n) the row of `log_predictions` (candidates, n) that fits it best.

    Tukey's bisquare loss of log(measured / predicted), its scale from the least-absolute-error candidate.
    """
    best = np.empty(len(measured), dtype=np.intp)
    for row, logs in enumerate(np.log(measured)):
        residuals = logs - log_predictions
        start = residuals[np.abs(residuals).sum(1).argmin()]
        scale = TUKEY * max(MAD_TO_SIGMA * float(np.median(np.abs(start))), 1e-9)
        u = np.minimum((residuals / scale) ** 2, 1.0)
        best[row] = (1.0 - (1.0 - u) ** 3).sum(1).argmin()
    return best


@dataclass(frozen=True)
class HeldOut:
    """Errors of predictions for held-out sizes: parallel arrays, one row per sample."""

    size: Floats
    measured: Floats
    predicted: Floats

    @property
    def relative_error(self) -> Floats:
        """|predicted / measured - 1|."""
        return np.abs(self.predicted / self.measured - 1.0)

    def median_error(self, from_size: float = 0.0) -> float:
        """Median relative error over the samples of at least `from_size`."""
        return float(np.median(self.relative_error[self.size >= from_size]))


def collective_predictor(sizes_bytes: Floats, times_s: Floats) -> CollectiveFit:
    """`fit_collective` for predictions alone."""
    return fit_collective(sizes_bytes, times_s, intervals=False)


def leave_one_size_out(
    sizes: npt.ArrayLike, times_s: npt.ArrayLike, fit: Callable[[Floats, Floats], Predictor] = collective_predictor
) -> HeldOut:
    """Predict every size from a fit to all other sizes.

    `fit(sizes, times)` returns anything with `.predict(sizes)`. Raises what `fit` raises for the rest.
    """
    x, y = checked(sizes, times_s, 2, "leave one size out")
    predicted = np.empty_like(y)
    for size in np.unique(x):
        held = x == size
        predicted[held] = fit(x[~held], y[~held]).predict(np.array([size]))[0]
    return HeldOut(x, y, predicted)
