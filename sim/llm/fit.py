"""Fits a stack's constants to measured steps.

All constants are positive and fitted as logarithms. A constant may differ by a label of its row (the software
stack, the accelerator): its value is a common one times a factor per label, both held near their prior by weak
penalties, so that a label never seen gets the common value. The misfit is the soft-L1 loss of log(predicted /
measured) (Huber-like; Charbonnier et al. 1994), which a few odd rows do not dominate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from equipoise.sim.llm.quantities import Quantities
from equipoise.sim.llm.stack import Floats, Stack
from equipoise.sim.llm.step_time import step_times

Labels = Mapping[str, Sequence[str]]
"""Label of every row, by kind of label: {"stack": [...], "accelerator": [...]}."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior of a constant: its centre, its bounds, and the kind of label it may differ
    by."""

    centre: float
    low: float
    high: float
    by: str = ""
    weight: float = 0.05
    """Penalty per e-fold from the centre, in units of relative error of one row."""
    label_weight: float = 0.05
    """The same for a label's factor, from 1."""


PRIORS: dict[str, Prior] = {
    "matmul_efficiency": Prior(0.75, 0.3, 0.87, "accelerator"),
    "fp8_efficiency": Prior(0.60, 0.2, 0.80, "accelerator"),
    "matmul_overhead_s": Prior(10e-6, 1e-6, 200e-6, "stack"),
    "attention_efficiency": Prior(0.30, 0.03, 0.75, "stack+accelerator"),
    "score_bytes": Prior(0.02, 1e-3, 40.0, "stack"),
    "elementwise_bytes": Prior(20.0, 1.0, 120.0, "stack"),
    "accumulate_bytes": Prior(6.0, 1.0, 24.0, "stack"),
    "host_s_per_layer": Prior(0.3e-3, 1e-5, 20e-3, "stack"),
    "host_s_per_pass": Prior(1e-3, 1e-5, 50e-3, "stack"),
    "host_s_per_tensor_rank": Prior(0.1e-3, 1e-6, 20e-3, "stack"),
    "tensor_hop_s": Prior(10e-6, 1e-6, 500e-6, "stack"),
    "tensor_efficiency": Prior(0.8, 0.2, 1.0, "stack"),
    "tensor_latency_s": Prior(20e-6, 1e-6, 500e-6, "stack"),
    "send_efficiency": Prior(0.6, 0.1, 1.0, "stack"),
    "send_latency_s": Prior(100e-6, 1e-6, 5e-3, "stack"),
    "send_exposed": Prior(0.5, 0.05, 1.0, "stack"),
    "exchange_efficiency": Prior(0.7, 0.1, 1.0, "stack"),
    "exchange_latency_s": Prior(20e-6, 1e-6, 2e-3, "stack"),
    "overlap": Prior(2.0, 1.0, 8.0, "stack"),
    "bubble": Prior(1.05, 1.0, 2.0, "stack"),
    "shard_bytes": Prior(19.0, 1.0, 80.0, "stack"),
    "head_bytes": Prior(16.0, 2.0, 120.0, "stack"),
    "optimizer_bytes": Prior(32.0, 1.0, 80.0, "stack"),
    "step_s": Prior(10e-3, 1e-4, 200e-3, "stack"),
}
"""Centres are what such numbers usually are; bounds are physical where there is one (the highest product rates ever
seen are 0.87 of the peak on an A100, 0.81 on an H100; a link gives no more than its data sheet; a pipeline waits
for at least its ideal bubble)."""

STEP = 1e-5
FIT_STEPS, REFIT_STEPS = 60, 8
FLOOR, FLOOR_STARTS = "host_s_per_layer", (0.3e-3, 3e-3)
"""A floor that binds nowhere has no slope, so descents start below and above the layers' times; the best is
kept."""
SOFT = 0.10
"""Relative error up to which a row counts quadratically."""


@dataclass(frozen=True)
class FittedStack:
    """Fitted constants: `common` by constant, and factors by (constant, label)."""

    common: Mapping[str, float]
    factors: Mapping[tuple[str, str], float] = field(default_factory=dict)
    priors: Mapping[str, Prior] = field(default_factory=lambda: PRIORS)

    def value(self, constant: str, label: str = "") -> float:
        """A constant for a label; the common value where the label was not seen. Stays within its bounds."""
        prior = self.priors[constant]
        value = self.common[constant] * self.factors.get((constant, label), 1.0)
        return float(np.clip(value, prior.low, prior.high))

    def stack(self, labels: Mapping[str, str]) -> Stack:
        """The constants of one row's labels."""
        return Stack(**{name: self.value(name, labels.get(p.by, "")) for name, p in self.priors.items()})

    def stacks(self, labels: Labels, rows: int) -> Stack:
        """The constants of many rows, each an array of shape (rows,)."""
        out: dict[str, Floats | float] = {}
        for name, prior in self.priors.items():
            if prior.by in labels:
                known = {label: self.value(name, label) for label in set(labels[prior.by])}
                out[name] = np.array([known[label] for label in labels[prior.by]])
            else:
                out[name] = np.full(rows, self.value(name))
        return Stack(**out)


@dataclass(frozen=True)
class _Problem:
    """The unknowns: one log per constant, then one log factor per (constant, label)."""

    q: Quantities
    logs: Floats
    priors: Mapping[str, Prior]
    factors: tuple[tuple[str, str], ...]
    columns: Mapping[str, npt.NDArray[np.intp]]
    """By constant: the factor of every row, -1 where there is none; shape (rows,)."""

    def unpack(self, theta: Floats) -> FittedStack:
        """The constants and factors that a vector of logarithms stands for."""
        n = len(self.priors)
        common = dict(zip(self.priors, np.exp(theta[:n]).tolist(), strict=True))
        factors = dict(zip(self.factors, np.exp(theta[n:]).tolist(), strict=True))
        return FittedStack(common, factors, self.priors)

    def pack(self, fitted: FittedStack) -> Floats:
        """The vector of logarithms of constants and factors, within the bounds."""
        common = [np.log(fitted.common[name]) for name in self.priors]
        factors = [np.log(fitted.factors.get(f, 1.0)) for f in self.factors]
        low, high = self.bounds()
        return np.asarray(np.clip(np.array(common + factors), low + 1e-9, high - 1e-9))

    def bounds(self) -> tuple[Floats, Floats]:
        """Least and largest logarithms."""
        low = [np.log(p.low) for p in self.priors.values()] + [-3.0] * len(self.factors)
        high = [np.log(p.high) for p in self.priors.values()] + [3.0] * len(self.factors)
        return np.array(low), np.array(high)

    def penalty_weights(self) -> Floats:
        """Weights of the penalties for moving away from the start."""
        common = [p.weight for p in self.priors.values()]
        return np.array(common + [self.priors[name].label_weight for name, _ in self.factors])

    def row_logs(self, theta: Floats) -> dict[str, Floats]:
        """The logarithm of every constant of every row, unclipped."""
        padded = np.append(theta[len(self.priors) :], 0.0)
        return {name: theta[i] + padded[self.columns[name]] for i, name in enumerate(self.priors)}

    def constant(self, name: str, log: Floats) -> Floats:
        """A constant from its logarithm, within its bounds."""
        prior = self.priors[name]
        return np.asarray(np.clip(np.exp(log), prior.low, prior.high))

    def predicted(self, constants: Mapping[str, Floats]) -> Floats:
        """Logarithms of the predicted times, shape (rows,)."""
        return np.asarray(np.log(np.asarray(step_times(self.q, Stack(**constants)).total)))

    def residuals(self, theta: Floats) -> Floats:
        """Residuals of every row, and distances from the priors."""
        centres = np.zeros(len(theta))
        centres[: len(self.priors)] = [np.log(p.centre) for p in self.priors.values()]
        constants = {name: self.constant(name, log) for name, log in self.row_logs(theta).items()}
        misfit = self.predicted(constants) - self.logs
        return np.concatenate([misfit, self.penalty_weights() * (theta - centres)])

    def jacobian(self, theta: Floats) -> Floats:
        """Forward differences by constant, shared out to its common value and its factors."""
        logs, rows, n = self.row_logs(theta), len(self.logs), len(self.priors)
        constants = {name: self.constant(name, log) for name, log in logs.items()}
        base = self.predicted(constants)
        jacobian = np.zeros((rows + len(theta), len(theta)))
        for i, name in enumerate(self.priors):
            step = np.where(logs[name] < np.log(self.priors[name].high) - STEP, STEP, -STEP)
            moved = {**constants, name: self.constant(name, logs[name] + step)}
            slope = (self.predicted(moved) - base) / step
            jacobian[:rows, i] = slope
            with_factor = np.flatnonzero(self.columns[name] >= 0)
            jacobian[with_factor, n + self.columns[name][with_factor]] = slope[with_factor]
        jacobian[rows:, :] = np.diag(self.penalty_weights())
        return jacobian


def _problem(q: Quantities, measured_s: Floats, labels: Labels, priors: Mapping[str, Prior]) -> _Problem:
    factors: list[tuple[str, str]] = []
    columns = {}
    for name, prior in priors.items():
        column = np.full(len(measured_s), -1, dtype=np.intp)
        mine = labels.get(prior.by, ())
        if len(set(mine)) > 1:
            for label in sorted(set(mine)):
                column[[i for i, other in enumerate(mine) if other == label]] = len(factors)
                factors.append((name, label))
        columns[name] = column
    return _Problem(q, np.log(measured_s), priors, tuple(factors), columns)


def fit(
    q: Quantities,
    measured_s: Floats,
    labels: Labels,
    priors: Mapping[str, Prior] = PRIORS,
    start: FittedStack | None = None,
) -> FittedStack:
    """Constants that predict `measured_s`, shape (rows,), from `q`. Raises ValueError without a positive row.

    `labels` gives every row's label by kind; kinds that no prior names are ignored. `start` speeds up a refit.
    Deterministic.
    """
    measured = np.asarray(measured_s, dtype=np.float64)
    if measured.size == 0 or not np.all(np.isfinite(measured) & (measured > 0)):
        raise ValueError("measured: one positive, finite time per row and at least one row are needed")
    problem = _problem(q, measured, labels, priors)
    if start is not None:
        return _descend(problem, start, REFIT_STEPS)[0]
    centre = {name: p.centre for name, p in priors.items()}
    begins = [{**centre, FLOOR: value} for value in FLOOR_STARTS] if FLOOR in centre else [centre]
    found = [_descend(problem, FittedStack(begin, {}, priors), FIT_STEPS) for begin in begins]
    return min(found, key=lambda pair: pair[1])[0]


def _descend(problem: _Problem, begin: FittedStack, steps: int) -> tuple[FittedStack, float]:
    """The nearest minimum and its cost."""
    found = least_squares(
        problem.residuals,
        problem.pack(begin),
        problem.jacobian,
        bounds=problem.bounds(),
        loss="soft_l1",
        f_scale=SOFT,
        max_nfev=steps,
        ftol=1e-4,
        xtol=1e-4,
    )
    return problem.unpack(found.x), float(found.cost)


def predict(fitted: FittedStack, q: Quantities, labels: Labels) -> Floats:
    """Predicted step times, shape (rows,) [s]."""
    rows = len(q.tokens_per_step)
    return np.asarray(step_times(q, fitted.stacks(labels, rows)).total, dtype=np.float64)


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
