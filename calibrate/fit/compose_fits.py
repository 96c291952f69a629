"""Composed steps in a profile's report: each model's steps from its operations and the other models' steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.calibrate.fit.accelerator import BYTES, gemm_samples
from equipoise.calibrate.fit.compose import (
    DEFAULT_PRIOR,
    MEASURED_PRIOR,
    CostPrior,
    StepModel,
    UnitCosts,
    fit_step_model,
    stacked,
)
from equipoise.calibrate.fit.gemm import GemmFit, fit_gemm_efficiency
from equipoise.calibrate.fit.levels import LOW_QUANTILE, FitLine, LevelPrediction, Report, by_parameters, level
from equipoise.calibrate.fit.pieces import CollectiveFit, fit_collective
from equipoise.calibrate.fit.robust import Floats, low_quantile
from equipoise.calibrate.measure.operations import KINDS, PRODUCTS, Kind, TimedOperation, from_columns
from equipoise.calibrate.samples import Sample, SampleSet

MEASURED_AS: dict[Kind, str] = {"memory": "add", "function": "exp"}
"""The operation that stands for a kind whose name it does not have."""
ALONE: dict[Kind, tuple[str, str, float]] = {
    "product": ("gemm", "forward", 1.0),
    "product_input": ("gemm", "input", 1.0),
    "product_weight": ("gemm", "weight", 1.0),
    "convolution": ("convolution", "forward", 1.0),
    "convolution_input": ("convolution", "input", 1.0),
    "convolution_weight": ("convolution", "weight", 1.0),
    "attention": ("attention", "forward", 2.0),
    "attention_backward": ("attention", "backward", 5.0),
}
"""What is timed by itself on a GPU: the samples' kind, their part, and the products in one of them."""
SECTORS = (32 + 4) / (4 + 4)
"""A GPU reads 32 bytes at least, of which a transposing copy uses the 4 of one element, and writes these."""
LEAST_WORKLOADS = 3  # two to fit, one to predict


@dataclass(frozen=True)
class Step:
    """One timed step: its workload, batch, rows of operations' cost by factor, measured seconds."""

    workload: str
    batch: int
    rows: Floats
    seconds: float
    samples: tuple[Sample, ...]


def unit_costs(samples: SampleSet, precision: str, framework: str) -> UnitCosts:
    """Costs of single operations, for steps in a precision through a framework.

    Raises ValueError, one line, when the samples do not hold products and memory traffic.
    """
    products: dict[tuple[Kind, int], GemmFit] = {}
    for name in _product_precisions(precision):
        m, n, k, seconds = gemm_samples(samples, name, framework)
        products |= _fitted("product", name, m, n, k, seconds)
    if not products:
        raise ValueError(f"composed steps, {precision}: fewer than 6 shapes of products were measured")
    for kind, (single, part, count) in ALONE.items():
        for name in _product_precisions(precision):
            chosen = samples.of(single, precision=name, part=part)
            m, n, k = (np.array([float(s[axis]) for s in chosen]) for axis in ("m", "n", "k"))
            products |= _fitted(kind, name, m, n, k, _seconds(chosen) / count)
    moves = {kind: _moved(samples, MEASURED_AS.get(kind, kind), precision) for kind in KINDS if kind not in PRODUCTS}
    copies = [*samples.of("copy"), *samples.of("triad")]  # kernels past the framework
    strided = samples.of("elementwise", operation="strided", precision="fp32")
    moves["transposed"] = moves["transposed"] or _by_bytes(strided, SECTORS)
    for kind in MEASURED_AS:
        moves[kind] = moves[kind] or _by_bytes(copies)
    if moves["memory"] is None or moves["function"] is None:
        raise ValueError("composed steps: fewer than 3 sizes of memory traffic were measured")
    launches = level(samples.of("launch_pipelined"))
    dispatch = level(samples.of("dispatch", precision=precision, framework=framework))
    overhead = dispatch or launches
    loads = samples.of("load_latency")
    load = level(s for s in loads if s["bytes"] == max(s["bytes"] for s in loads))
    return UnitCosts(
        products,
        {kind: fit for kind, fit in moves.items() if fit is not None},
        overhead.value if overhead else float(moves["memory"].predict([0.0])[0]),
        overlapped=launches is not None,
        load_s=load.value if load else 0.0,
    )


def _fitted(
    kind: Kind, precision: str, m: Floats, n: Floats, k: Floats, seconds: Floats
) -> dict[tuple[Kind, int], GemmFit]:
    """The fit of products of a kind by it and its bytes of an element; none from too few shapes."""
    if len(np.unique(np.stack([m, n, k]), axis=1).T) < 6:
        return {}
    peak = float((2.0 * m * n * k / seconds).max())
    return {(kind, int(BYTES[precision])): fit_gemm_efficiency(m, n, k, seconds, peak, BYTES[precision])}


def _product_precisions(precision: str) -> tuple[str, ...]:
    """The precisions of the products in a step: under autocast some stay in single precision."""
    return (precision,) if precision in ("fp32", "tf32", "fp64") else (precision, "tf32")


def _moved(samples: SampleSet, operation: str, precision: str) -> CollectiveFit | None:
    """Seconds by bytes moved of the framework's operation; None where it was not measured."""
    found = samples.of("elementwise", operation=operation)
    same = [s for s in found if s.parameters.get("precision") == precision]
    return _by_bytes(same or [s for s in found if s.parameters.get("precision", "fp32") == "fp32"])


def _by_bytes(chosen: list[Sample], each: float = 1.0) -> CollectiveFit | None:
    """Seconds by bytes, of which it takes `each` times as many."""
    if len({s["bytes"] for s in chosen}) < 3:
        return None
    return fit_collective([float(s["bytes"]) / each for s in chosen], _seconds(chosen), intervals=False)


def _seconds(chosen: list[Sample]) -> Floats:
    return np.array([float(low_quantile(np.asarray(s.values), LOW_QUANTILE)) for s in chosen])


def operations_of(samples: SampleSet, sample: Sample) -> list[TimedOperation]:
    """The operations of a timed step. Raises ValueError when they were not recorded."""
    found = samples.of("operations", **sample.parameters)
    if not found:
        raise ValueError(f"{sample['workload']}, batch {sample['batch']}: its operations were not recorded")
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
        rows = costs.rows(operations_of(samples, chosen[0]))
        found.append(Step(workload, batch, rows, measured.value, tuple(chosen)))
    return found


def prior_of(samples: SampleSet, costs: UnitCosts, precision: str, framework: str) -> CostPrior:
    """Prior of the factors: narrow if single operations of all kinds were timed, else centred by convolutions."""
    if samples.of("dispatch", precision=precision, framework=framework):
        return MEASURED_PRIOR
    ratios = []
    for group in by_parameters(samples.of("convolution", precision=precision, framework=framework)).values():
        measured, first = level(group), group[0]
        m, n, k = (int(first[name]) for name in ("m", "n", "k"))
        size = int(BYTES[precision])
        # Forward, and the gradients of the input and of the weight.
        three = [TimedOperation("convolution", *shape, size) for shape in ((m, n, k), (m, k, n), (n, k, m))]
        assert measured is not None
        ratios.append(measured.value / costs.totals(three)[1])
    return DEFAULT_PRIOR.with_convolutions(ratios)


def step_model(steps: Sequence[Step], prior: CostPrior = DEFAULT_PRIOR) -> StepModel:
    """Fit the factors to these steps."""
    return fit_step_model(stacked([s.rows for s in steps]), np.array([s.seconds for s in steps]), prior)


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
                _each_from_the_others(steps, prior, report)
        except ValueError as reason:
            report.missing.append(str(reason))


def _each_from_the_others(steps: list[Step], prior: CostPrior, report: Report) -> None:
    for workload in dict.fromkeys(s.workload for s in steps):
        others = [s for s in steps if s.workload != workload]
        model = step_model(others, prior)
        fitted_on = "steps of " + " and ".join(dict.fromkeys(s.workload for s in others))
        found = [_prediction(model, s, fitted_on) for s in steps if s.workload == workload]
        report.predictions += found
        name = f"{workload} step from its operations, {found[0].precision}, {found[0].framework}"
        error = float(np.median([abs(p.error) for p in found]))
        report.lines.append(FitLine(name, None, "s", model.residual_cov, error, fitted_on))


def _prediction(model: StepModel, step: Step, fitted_on: str) -> LevelPrediction:
    measured, first = level(step.samples), step.samples[0]
    assert measured is not None
    return LevelPrediction(
        step.workload,
        str(first["precision"]),
        step.batch,
        str(first["framework"]),
        model.predict_interval(step.rows),
        measured,
        fitted_on,
    )
