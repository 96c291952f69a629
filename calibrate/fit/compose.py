"""A training step of any model, composed from what its operations cost on this machine.

Products cost what the fitted products cost, other operations what memory traffic of their size costs
(Williams et al. 2009, applied by operation and summed, as in Calculon, Isaev et al. 2023, section 3). What a
framework adds to that is six factors, fitted to the steps of some models; they carry over to models that
were never timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from equipoise.calibrate.fit.gemm import GemmFit
from equipoise.calibrate.fit.pieces import CollectiveFit
from equipoise.calibrate.fit.robust import Estimate, Floats, estimate, noise_cov
from equipoise.calibrate.measure.operations import PRODUCTS, Kind, Operation
from equipoise.policies.physics import overlapped_each

FACTORS = ("product", "convolution", "attention", "memory", "function", "overhead")
ATTENTION: tuple[Kind, ...] = ("attention", "attention_backward")
FACTOR_OF: Mapping[Kind, Kind] = {
    **dict.fromkeys(("product_input", "product_weight"), "product"),
    **dict.fromkeys(("convolution_input", "convolution_weight"), "convolution"),
    "attention_backward": "attention",
    **dict.fromkeys(("cast", "mixed", "strided", "list", "update", "sum"), "memory"),
    **dict.fromkeys(("norm", "norm_backward", "batch_norm", "batch_norm_backward"), "function"),
    **dict.fromkeys(("softmax", "softmax_backward"), "function"),
}
"""The factor of a kind of operation that has none of its own."""

# Before any step is seen, the factors' logarithms are normal with these centres and deviations: how far a
# framework lies from isolated kernels. With gradients an operation's overhead is several times a bare call's.
PRIOR_CENTRE = np.log([1.0, 1.0, 1.0, 1.0, 1.0, 3.0])
PRIOR = np.array([0.15, 0.4, 0.4, 0.25, 0.4, 0.7])
STEP_NOISE = 0.03
"""Relative error that a composed step is expected to have anyway; weighs the steps against PRIOR."""

OVERLAP_POWER = 8.0
"""Sharpness of "the longer of host and device" where the two overlap."""

REPLICATES = 60


@dataclass(frozen=True)
class UnitCosts:
    """What single operations cost on a device.

    `products` by kind and bytes of an element, at least those of kind "product", which stand in for the others.
    `moves` predict seconds from bytes moved, launch included, by kind; at least "memory" and "function", which
    stand in for what was not measured. `overhead_s` is the host's time for one operation, `load_s` that of a
    load from memory. `overlapped`: the host queues while the device works (GPU), so that a step takes the longer
    of the two; otherwise their sum.
    """

    products: Mapping[tuple[Kind, int], GemmFit]
    moves: Mapping[Kind, CollectiveFit]
    overhead_s: float
    overlapped: bool
    load_s: float = 0.0

    def totals(self, operations: Iterable[Operation]) -> Floats:
        """Seconds of a step by FACTORS, each at factor 1; shape (6,).

        Raises ValueError for products of an element size that was not measured.
        """
        totals = np.zeros(len(FACTORS))
        groups: dict[tuple[Kind, int], list[Operation]] = {}
        for o in operations:
            groups.setdefault((o.kind, o.element_bytes if o.kind in PRODUCTS else 0), []).append(o)
        for (kind, size), chosen in groups.items():
            count = np.array([o.count for o in chosen], dtype=np.float64)
            seconds = self._products_s(chosen, kind, size) if size else self._moves_s(chosen, kind)
            totals[FACTORS.index(FACTOR_OF.get(kind, kind))] += float(seconds @ count)
            totals[5] += self.overhead_s * count.sum()
        return totals

    def _moves_s(self, chosen: Sequence[Operation], kind: Kind) -> Floats:
        """By traffic, or by the loads that one thread waits for in turn."""
        fit = self.moves.get(kind) or self.moves[FACTOR_OF.get(kind, kind)]
        in_turn = self.load_s * np.array([o.k for o in chosen], dtype=np.float64)
        return np.maximum(fit.predict([o.moved_bytes for o in chosen]), in_turn)

    def _products_s(self, chosen: Sequence[Operation], kind: Kind, size: int) -> Floats:
        m, n, k = (np.array([getattr(o, name) for o in chosen]) for name in ("m", "n", "k"))
        fit = self.products.get((kind, size))
        if fit is not None and kind in ATTENTION:  # one kernel: scores and their use are not told apart
            return fit.predict(m, np.maximum(n, k), np.minimum(n, k))
        fit = fit or self.products.get(("product", size))
        if fit is None:
            known = ", ".join(str(s) for kind, s in sorted(self.products) if kind == "product") or "none"
            raise ValueError(f"no products of {size}-byte elements were measured; known: {known}")
        return fit.predict(m, n, k)


@dataclass(frozen=True)
class StepModel:
    """Fitted factors: predicts a step from its `UnitCosts.totals`.

    `replicates` (draws, 6) are the factors' uncertainty; `residual_cov` the spread of the fitted steps.
    """

    factors: Floats
    replicates: Floats
    residuals: Floats
    overlapped: bool

    @property
    def residual_cov(self) -> float:
        """Coefficient of variation of measured over composed steps."""
        return noise_cov(np.ones_like(self.residuals), 1.0 + self.residuals)

    def predict(self, totals: Floats) -> Floats:
        """Seconds for each row of totals (..., 6)."""
        return _step_s(totals, self.factors, self.overlapped)

    def predict_interval(self, totals: Floats) -> Estimate:
        """Seconds of one step with a 95 % interval: uncertain factors, and residuals like those of the fit."""
        draws = _step_s(totals, self.replicates, self.overlapped)
        spread = np.random.default_rng(1).choice(self.residuals, len(draws))
        return estimate(float(self.predict(totals)), draws * (1.0 + spread), len(self.residuals))


def _step_s(totals: Floats, factors: Floats, overlapped: bool) -> Floats:
    device, host = (totals[..., :5] * factors[..., :5]).sum(-1), totals[..., 5] * factors[..., 5]
    if not overlapped:
        return np.asarray(device + host)
    return overlapped_each(device, host, OVERLAP_POWER)


@dataclass(frozen=True)
class Prior:
    """What is known of the factors before any step is seen: centres and deviations of their logarithms."""

    centre: Floats
    deviation: Floats

    def with_convolutions(self, ratios: npt.ArrayLike) -> Prior:
        """Centred on measured over predicted times of single convolutions, as sure as these agree."""
        logs = np.log(np.asarray(ratios, dtype=np.float64))
        if not len(logs):
            return self
        centre, deviation = self.centre.copy(), self.deviation.copy()
        centre[1] = np.median(logs)
        deviation[1] = min(max(float(np.std(logs)), LEAST_DEVIATION), self.deviation[1])
        return Prior(centre, deviation)


DEFAULT_PRIOR = Prior(PRIOR_CENTRE, PRIOR)
MEASURED_PRIOR = Prior(np.zeros(len(FACTORS)), np.array([0.1, 0.15, 0.15, 0.1, 0.15, 0.2]))
"""Where single operations of every kind, and the host's time for one, were timed through the framework."""
LEAST_DEVIATION = 0.1


def fit_step_model(
    totals: Floats, steps_s: Floats, overlapped: bool, prior: Prior = DEFAULT_PRIOR, seed: int = 0
) -> StepModel:
    """Fit the six factors to measured steps.

    totals: (steps, 6) of `UnitCosts.totals`, steps_s: (steps,) seconds. Relative error, robust (soft L1),
    with a prior on the factors, so that one of which the steps say nothing stays at its centre.
    Replicates redraw residuals and prior centres (Bardsley et al. 2014). Raises ValueError for fewer than 3
    steps.
    """
    totals, steps_s = np.asarray(totals, dtype=np.float64), np.asarray(steps_s, dtype=np.float64)
    if len(steps_s) < 3 or totals.shape != (len(steps_s), len(FACTORS)):
        raise ValueError(f"step model: needs at least 3 steps with {len(FACTORS)} totals each")
    if not (steps_s > 0).all() or not np.isfinite(totals).all():
        raise ValueError("step model: times must be positive and totals finite")
    logs = _solve(totals, steps_s, overlapped, prior.centre, prior.deviation)
    residuals = steps_s / _step_s(totals, np.exp(logs), overlapped) - 1.0
    random = np.random.default_rng(seed)
    draws = []
    for _ in range(REPLICATES):
        again = steps_s / (1.0 + residuals) * (1.0 + random.choice(residuals, len(residuals)))
        centre = random.normal(prior.centre, prior.deviation)
        draws.append(_solve(totals, again, overlapped, centre, prior.deviation, logs))
    return StepModel(np.exp(logs), np.exp(np.array(draws)), residuals, overlapped)


def _solve(
    totals: Floats,
    steps_s: Floats,
    overlapped: bool,
    centre: Floats,
    deviation: Floats,
    start: Floats | None = None,
) -> Floats:
    """Logarithms of the factors."""

    def error(logs: Floats) -> Floats:
        """Weighted errors of the steps, then of the prior."""
        step = np.log(_step_s(totals, np.exp(logs), overlapped) / steps_s) / STEP_NOISE
        # Soft L1 on the steps alone: the prior is no sample that may be an outlier.
        return np.concatenate([_soft(step), (logs - centre) / deviation])

    begin = centre if start is None else start
    return np.asarray(least_squares(error, begin, bounds=(-7.0, 7.0), max_nfev=60).x)


def _soft(z: Floats) -> Floats:
    """r with r^2 = 2 (sqrt(1 + z^2) - 1), so that least squares minimise the soft L1 loss."""
    return np.asarray(np.sign(z) * np.sqrt(2.0 * (np.sqrt(1.0 + z * z) - 1.0)))
