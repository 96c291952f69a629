"""Composed steps in a profile's report: each model's steps from its operations and the other models' steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.calibrate.fit.accelerator import BYTES, gemm_samples
from equipoise.calibrate.fit.compose import DEFAULT_PRIOR, Prior, StepModel, UnitCosts, fit_step_model
from equipoise.calibrate.fit.gemm import fit_gemm_efficiency
from equipoise.calibrate.fit.levels import LOW_QUANTILE, FitLine, Prediction, Report, by_parameters, level
from equipoise.calibrate.fit.pieces import CollectiveFit, fit_collective
from equipoise.calibrate.fit.robust import Floats, low_quantile
from equipoise.calibrate.measure.operations import Operation, from_columns
from equipoise.calibrate.samples import Sample, SampleSet

LEAST_WORKLOADS = 3  # two to fit, one to predict


@dataclass(frozen=True)
class Step:
    """One timed step: its workload, batch, operations' cost by factor, measured seconds."""

    workload: str
    batch: int
    totals: Floats
    seconds: float
    samples: tuple[Sample, ...]


def unit_costs(samples: SampleSet, precision: str, framework: str) -> UnitCosts:
    """What single operations cost, for steps in a precision through a framework.

    Raises ValueError, one line, when the samples do not hold products and memory traffic.
    """
    products = {}
    for name in _product_precisions(precision):
        m, n, k, seconds = gemm_samples(samples, name, framework)
        if len(np.unique(np.stack([m, n, k]), axis=1).T) < 6:
            continue
        peak = float((2.0 * m * n * k / seconds).max())
        products[int(BYTES[name])] = fit_gemm_efficiency(m, n, k, seconds, peak, BYTES[name])
    if not products:
        raise ValueError(f"composed steps, {precision}: fewer than 6 shapes of products were measured")
    launches = level(samples.of("launch_pipelined"))
    memory, function = _elementwise(samples, "add"), _elementwise(samples, "exp")
    overhead_s = launches.value if launches else float(memory.predict([0.0])[0])
    return UnitCosts(products, memory, function, overhead_s, overlapped=launches is not None)


def _product_precisions(precision: str) -> tuple[str, ...]:
    """The precisions of the products in a step: under autocast some stay in single precision."""
    return (precision,) if precision in ("fp32", "tf32", "fp64") else (precision, "tf32")


def _elementwise(samples: SampleSet, operation: str) -> CollectiveFit:
    """Seconds by bytes moved: of the framework's operation (CPU), else of the copy and triad kernels (GPU)."""
    chosen = samples.of("elementwise", operation=operation) or [*samples.of("copy"), *samples.of("triad")]
    if len({s["bytes"] for s in chosen}) < 3:
        raise ValueError("composed steps: fewer than 3 sizes of memory traffic were measured")
    sizes = [float(s["bytes"]) for s in chosen]
    seconds = [float(low_quantile(np.asarray(s.values), LOW_QUANTILE)) for s in chosen]
    return fit_collective(sizes, seconds, intervals=False)


def operations_of(samples: SampleSet, sample: Sample) -> list[Operation]:
    """The operations of a timed step. Raises ValueError when they were not noted."""
    found = samples.of("operations", **sample.parameters)
    if not found:
        raise ValueError(f"{sample['workload']}, batch {sample['batch']}: its operations were not noted")
    return from_columns(found[-1].columns)


def steps_of(samples: SampleSet, costs: UnitCosts, precision: str, framework: str) -> list[Step]:
    """All steps in one precision that were timed and whose operations are known."""
    groups: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples.of("training", precision=precision, framework=framework):
        groups.setdefault((str(sample["workload"]), int(sample["batch"])), []).append(sample)
    found = []
    for (workload, batch), chosen in groups.items():
        measured = level(chosen)
        assert measured is not None
        totals = costs.totals(operations_of(samples, chosen[0]))
        found.append(Step(workload, batch, totals, measured.value, tuple(chosen)))
    return found


def prior_of(samples: SampleSet, costs: UnitCosts, precision: str, framework: str) -> Prior:
    """What single convolutions say of the factor of convolutions, where some were timed."""
    ratios = []
    for group in by_parameters(samples.of("convolution", precision=precision, framework=framework)).values():
        measured, first = level(group), group[0]
        m, n, k = (int(first[name]) for name in ("m", "n", "k"))
        size = int(BYTES[precision])
        # Forward, and the gradients of the input and of the weight.
        three = [Operation("convolution", *shape, size) for shape in ((m, n, k), (m, k, n), (n, k, m))]
        assert measured is not None
        ratios.append(measured.value / costs.totals(three)[1])
    return DEFAULT_PRIOR.with_convolutions(ratios)


def step_model(steps: Sequence[Step], overlapped: bool, prior: Prior = DEFAULT_PRIOR) -> StepModel:
    """The factors from these steps."""
    totals, seconds = np.array([s.totals for s in steps]), np.array([s.seconds for s in steps])
    return fit_step_model(totals, seconds, overlapped, prior)


def composed_part(samples: SampleSet, report: Report) -> None:
    """Predict every model from the others' steps, and put predictions and errors into the report."""
    pairs = dict.fromkeys((str(s["precision"]), str(s["framework"])) for s in samples.of("training"))
    for precision, framework in pairs:
        if not samples.of("operations", precision=precision, framework=framework):
            continue
        try:
            costs = unit_costs(samples, precision, framework)
            steps = steps_of(samples, costs, precision, framework)
            if len({s.workload for s in steps}) >= LEAST_WORKLOADS:
                prior = prior_of(samples, costs, precision, framework)
                _each_from_the_others(steps, costs.overlapped, prior, report)
        except ValueError as reason:
            report.missing.append(str(reason))


def _each_from_the_others(steps: list[Step], overlapped: bool, prior: Prior, report: Report) -> None:
    for workload in dict.fromkeys(s.workload for s in steps):
        others = [s for s in steps if s.workload != workload]
        model = step_model(others, overlapped, prior)
        fitted_on = "steps of " + " and ".join(dict.fromkeys(s.workload for s in others))
        found = [_prediction(model, s, fitted_on) for s in steps if s.workload == workload]
        report.predictions += found
        name = f"{workload} step from its operations, {found[0].precision}, {found[0].framework}"
        error = float(np.median([abs(p.error) for p in found]))
        report.lines.append(FitLine(name, None, "s", model.residual_cov, error, fitted_on))


def _prediction(model: StepModel, step: Step, fitted_on: str) -> Prediction:
    measured, first = level(step.samples), step.samples[0]
    assert measured is not None
    return Prediction(
        step.workload, str(first["precision"]), step.batch, str(first["framework"]),
        model.predict_interval(step.totals), measured, fitted_on,
    )  # fmt: skip
