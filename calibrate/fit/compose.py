"""A training step of any model, composed from the cost of its operations on this machine.

Products have the time of fitted products, other operations the time of memory traffic of their size
(Williams et al. 2009, applied by operation and summed, as in Calculon, Isaev et al. 2023, section 3). The
framework is described by six factors, fitted to the steps of some models; they carry over to models that
were never timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from equipoise.calibrate.fit.gemm import GemmFit
from equipoise.calibrate.fit.pieces import CollectiveFit
from equipoise.calibrate.fit.robust import Estimate, Floats, estimate, noise_cov
from equipoise.calibrate.measure.operations import BATCH_NORM_CHANNELS, PRODUCTS, Kind, TimedOperation

FACTORS = ("product", "convolution", "attention", "memory", "function", "overhead")
ATTENTION: tuple[Kind, ...] = ("attention", "attention_backward")
FACTOR_OF: Mapping[Kind, Kind] = {
    **dict.fromkeys(("product_input", "product_weight"), "product"),
    **dict.fromkeys(("convolution_input", "convolution_weight"), "convolution"),
    "attention_backward": "attention",
    **dict.fromkeys(("cast", "mixed", "strided", "transposed", "list", "update", "sum"), "memory"),
    **dict.fromkeys(("norm", "norm_backward", "batch_norm", "batch_norm_backward"), "function"),
    **dict.fromkeys(("softmax", "softmax_backward"), "function"),
}
"""The factor used for a kind of operation without a separate one."""

# Before any step is seen, the factors' logarithms are normal with these centres and deviations: how far a
# framework lies from isolated kernels. With gradients an operation's overhead is several times a bare call's.
PRIOR_CENTRE = np.log([1.0, 1.0, 1.0, 1.0, 1.0, 3.0])
PRIOR = np.array([0.15, 0.4, 0.4, 0.25, 0.4, 0.7])
STEP_NOISE = 0.03
"""Expected relative error of a composed step; weighs the steps against PRIOR."""

SMS = 132
"""Of the GPUs that this is for, about: more channels than that are normalised one after the other."""
REPLICATES = 60


@dataclass(frozen=True)
class UnitCosts:
    """Costs of single operations on a device.

    `products` by kind and bytes of an element, at least those of kind "product", which stand in for the others.
    `moves` predict seconds from bytes moved, launch included, by kind; at least "memory" and "function", which
    stand in for what was not measured. `overhead_s` is the host's time for one operation, `load_s` that of a
    load from memory. `overlapped`: the host queues while the device works (GPU); otherwise one after the other.
    """

    products: Mapping[tuple[Kind, int], GemmFit]
    moves: Mapping[Kind, CollectiveFit]
    overhead_s: float
    overlapped: bool
    load_s: float = 0.0

    def totals(self, operations: Iterable[TimedOperation]) -> Floats:
        """Seconds of a step by FACTORS, each at factor 1; shape (6,).

        Raises ValueError for products of an element size that was not measured.
        """
        totals = np.zeros(len(FACTORS))
        groups: dict[tuple[Kind, int], list[TimedOperation]] = {}
        for o in operations:
            groups.setdefault((o.kind, o.element_bytes if o.kind in PRODUCTS else 0), []).append(o)
        for (kind, size), chosen in groups.items():
            count = np.array([o.count for o in chosen], dtype=np.float64)
            seconds = self._products_s(chosen, kind, size) if size else self._moves_s(chosen, kind)
            totals[FACTORS.index(self._factor(kind))] += float(seconds @ count)
            totals[5] += self.overhead_s * count.sum()
        return totals

    def _factor(self, kind: Kind) -> str:
        """Timed by itself, batch normalisation goes with convolutions: nets without them say nothing of it."""
        return "convolution" if kind.startswith("batch_norm") and kind in self.moves else FACTOR_OF.get(kind, kind)

    def rows(self, operations: Sequence[TimedOperation]) -> Floats:
        """Lower bounds of a step's time, one per operation: rows of FACTORS; shape (rows, 6).

        A device that works while the host queues begins an operation when the host has come to it and all before
        it are done, so that a step is the longest of: the host up to an operation, the device from there on. Equal
        operations are taken as one after the other where the first of them stands.
        """
        if not self.overlapped:
            return self.totals(operations)[None]
        each = np.array([self.totals([o]) for o in operations]).reshape(-1, len(FACTORS))
        rows = np.zeros((len(each) + 1, len(FACTORS)))
        rows[:-1, :5] = np.cumsum(each[::-1, :5], axis=0)[::-1]
        rows[1:, 5] = np.cumsum(each[:, 5])
        rows[:-1, 5] += self.overhead_s
        return rows

    def _moves_s(self, chosen: Sequence[TimedOperation], kind: Kind) -> Floats:
        """By traffic, or by the loads that one thread waits for in turn."""
        moved = np.array([o.moved_bytes for o in chosen], dtype=np.float64)
        in_turn = self.load_s * np.array([o.k for o in chosen], dtype=np.float64)
        fit = self.moves.get(kind)
        if fit is None:
            return np.maximum(self.moves[FACTOR_OF.get(kind, kind)].predict(moved), in_turn)
        if kind.startswith("batch_norm"):  # a block of threads for each channel: few of them leave SMs idle
            channels = np.array([min(o.n or BATCH_NORM_CHANNELS, SMS) for o in chosen])
            by_channel = fit.predict(moved * BATCH_NORM_CHANNELS / channels)
            return np.maximum(by_channel, self.moves["memory"].predict(moved))
        if kind == "transposed":  # timed with elements of four bytes, each in a sector of its own
            moved *= 4.0 / np.array([o.element_bytes for o in chosen])
        return np.maximum(fit.predict(moved), in_turn)

    def _products_s(self, chosen: Sequence[TimedOperation], kind: Kind, size: int) -> Floats:
        m, n, k = (np.array([getattr(o, name) for o in chosen]) for name in ("m", "n", "k"))
        fit = self.products.get((kind, size))
        if fit is not None and kind in ATTENTION:  # one kernel: scores and their use are not told apart
            return fit.predict(m, np.maximum(n, k), np.minimum(n, k))
        if self.overlapped and any(o.moved_bytes for o in chosen):  # a bias by a kernel of its own
            moved = np.array([o.moved_bytes for o in chosen], dtype=np.float64)
            alone = self._products_s([replace(o, moved_bytes=0) for o in chosen], kind, size)
            return alone + np.where(moved > 0.0, self.moves["memory"].predict(moved), 0.0)
        fit = fit or self.products.get(("product", size))
        if fit is None:
            known = ", ".join(str(s) for kind, s in sorted(self.products) if kind == "product") or "none"
            raise ValueError(f"no products of {size}-byte elements were measured; known: {known}")
        return fit.predict(m, n, k)


@dataclass(frozen=True)
class StepModel:
    """Fitted factors: predicts a step from its `UnitCosts.rows`.

    `replicates` (draws, 6) are the factors' uncertainty; `residual_cov` the spread of the fitted steps.
    """

    factors: Floats
    replicates: Floats
    residuals: Floats

    @property
    def residual_cov(self) -> float:
        """Coefficient of variation of measured over composed steps."""
        return noise_cov(np.ones_like(self.residuals), 1.0 + self.residuals)

    def predict(self, rows: Floats) -> Floats:
        """Seconds of each step, from its rows (..., rows, 6)."""
        return _step_s(rows, self.factors)

    def drawn(self, rows: Floats) -> Floats:
        """Seconds of one step under each draw of the factors."""
        return np.asarray((rows @ self.replicates.T).max(axis=0))

    def predict_interval(self, rows: Floats) -> Estimate:
        """Seconds of one step with a 95 % interval: uncertain factors, and residuals like those of the fit."""
        spread = np.random.default_rng(1).choice(self.residuals, len(self.replicates))
        return estimate(float(self.predict(rows)), self.drawn(rows) * (1.0 + spread), len(self.residuals))


def stacked(steps: Sequence[Floats]) -> Floats:
    """Rows of several steps as one array, filled up with zeros, which are never the longest."""
    found = np.zeros((len(steps), max((len(rows) for rows in steps), default=0), len(FACTORS)))
    for step, rows in zip(found, steps, strict=True):
        step[: len(rows)] = rows
    return found


def _step_s(rows: Floats, factors: Floats) -> Floats:
    return np.asarray((rows @ factors).max(axis=-1))


@dataclass(frozen=True)
class CostPrior:
    """Prior of the factors: centres and deviations of their logarithms."""

    centre: Floats
    deviation: Floats

    def with_convolutions(self, ratios: npt.ArrayLike) -> CostPrior:
        """The prior centred on measured over predicted times of single convolutions, with their spread."""
        logs = np.log(np.asarray(ratios, dtype=np.float64))
        if not len(logs):
            return self
        centre, deviation = self.centre.copy(), self.deviation.copy()
        centre[1] = np.median(logs)
        deviation[1] = min(max(float(np.std(logs)), LEAST_DEVIATION), self.deviation[1])
        return CostPrior(centre, deviation)


DEFAULT_PRIOR = CostPrior(PRIOR_CENTRE, PRIOR)
MEASURED_PRIOR = CostPrior(np.zeros(len(FACTORS)), np.array([0.1, 0.15, 0.15, 0.1, 0.15, 0.2]))
"""Prior if single operations of every kind, and the host's time for one, were timed through the framework."""
LEAST_DEVIATION = 0.1


def fit_step_model(rows: Floats, steps_s: Floats, prior: CostPrior = DEFAULT_PRIOR, seed: int = 0) -> StepModel:
    """Fit the six factors to measured steps.

    rows: (steps, rows, 6) of `UnitCosts.rows`, steps_s: (steps,) seconds. Relative error, robust (soft L1),
    with a prior on the factors, so that one of which the steps say nothing stays at its centre.
    Replicates redraw residuals and prior centres (Bardsley et al. 2014). Raises ValueError for fewer than 3
    steps.
    """
    rows, steps_s = np.asarray(rows, dtype=np.float64), np.asarray(steps_s, dtype=np.float64)
    if len(steps_s) < 3 or rows.ndim != 3 or rows.shape[::2] != (len(steps_s), len(FACTORS)):
        raise ValueError(f"step model: needs at least 3 steps with rows of {len(FACTORS)}")
    if not (steps_s > 0).all() or not np.isfinite(rows).all():
        raise ValueError("step model: times must be positive and rows finite")
    logs = _solve(rows, steps_s, prior.centre, prior.deviation)
    residuals = steps_s / _step_s(rows, np.exp(logs)) - 1.0
    random = np.random.default_rng(seed)
    draws = []
    for _ in range(REPLICATES):
        again = steps_s / (1.0 + residuals) * (1.0 + random.choice(residuals, len(residuals)))
        centre = random.normal(prior.centre, prior.deviation)
        draws.append(_solve(rows, again, centre, prior.deviation, logs))
    return StepModel(np.exp(logs), np.exp(np.array(draws)), residuals)


def _solve(rows: Floats, steps_s: Floats, centre: Floats, deviation: Floats, start: Floats | None = None) -> Floats:
    """Logarithms of the factors."""

    def error(logs: Floats) -> Floats:
        """Weighted errors of the steps, then of the prior."""
        step = np.log(_step_s(rows, np.exp(logs)) / steps_s) / STEP_NOISE
        # Soft L1 on the steps alone: the prior is no sample that may be an outlier.
        return np.concatenate([_soft(step), (logs - centre) / deviation])

    begin = centre if start is None else start
    return np.asarray(least_squares(error, begin, bounds=(-7.0, 7.0), max_nfev=60).x)


def _soft(z: Floats) -> Floats:
    """r with r^2 = 2 (sqrt(1 + z^2) - 1), so that least squares minimise the soft L1 loss."""
    return np.asarray(np.sign(z) * np.sqrt(2.0 * (np.sqrt(1.0 + z * z) - 1.0)))
