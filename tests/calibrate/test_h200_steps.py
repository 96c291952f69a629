"""Steps on a real NVIDIA H200, composed from operations: each model from the two others, and larger ones.

The samples were measured before channels, biases and transposing copies were noted; `as_noted_now` adds these, of
the convolutional net and the transformer of `calibrate.measure.training`. What was counted together in both passes
stays so.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from equipoise.calibrate.fit.compose import MEASURED_PRIOR, CostPrior, UnitCosts, stacked
from equipoise.calibrate.fit.compose_fits import Step, operations_of, prior_of, step_model, steps_of, unit_costs
from equipoise.calibrate.measure.operations import TimedOperation, from_columns
from equipoise.calibrate.measure.training import SIZES, WORKLOADS
from equipoise.calibrate.samples import SampleSet, read_samples
from tests.bench.gpu.predicted import measured_s
from tests.calibrate.test_gpus import DATA, kept

SIZE = SIZES["cuda", False]
# Largest median error (%) of mlp, conv and transformer.
BOUNDS = {"fp32": (3.5, 9.0, 2.5), "tf32": (4.0, 5.0, 4.5), "bf16": (4.5, 7.5, 9.0)}


@cache
def samples() -> SampleSet:
    return read_samples(DATA / "h200" / "second.samples.jsonl.gz")


def as_noted_now(found: list[TimedOperation], workload: str, batch: int, precision: str) -> list[TimedOperation]:
    size = 2 if precision == "bf16" else 4
    first, scores = batch * SIZE.image**2 * SIZE.channels, batch * SIZE.sequence * SIZE.vocabulary
    now = []
    for o in found:
        if o.kind in ("batch_norm", "batch_norm_backward"):
            arrays = 3 if o.kind.endswith("backward") else 2  # twice the channels at a quarter of the pixels
            o = replace(o, n=SIZE.channels * round(first * arrays * size / o.moved_bytes))
        elif o.kind == "convolution":
            o = replace(o, moved_bytes=2 * size * o.m * o.n)
        elif o.kind == "convolution_weight":
            o = replace(o, moved_bytes=size * o.m * o.k)
        elif workload == "transformer" and o.kind == "softmax":
            now.append(TimedOperation("transposed", moved_bytes=8 * scores))
        elif workload == "transformer" and (o.kind, o.moved_bytes) == ("strided", 2 * size * scores):
            o = replace(o, kind="transposed", element_bytes=size)
        now.append(o)
    return now


@cache
def costs_and_steps(precision: str) -> tuple[UnitCosts, list[Step]]:
    costs = unit_costs(samples(), precision, "PyTorch")
    return costs, [
        replace(
            step,
            rows=costs.rows(
                as_noted_now(operations_of(samples(), step.samples[0]), step.workload, step.batch, precision)
            ),
        )
        for step in steps_of(samples(), costs, precision, "PyTorch")
    ]


def errors(steps: list[Step], others: list[Step], prior: CostPrior) -> list[float]:
    """Predicted over measured, less 1, per cent."""
    model = step_model(others, prior)
    return [100.0 * (float(model.predict(s.rows)) / s.seconds - 1.0) for s in steps]


def medians(precision: str, prior: CostPrior) -> list[float]:
    """Of the sizes of the errors of each model from the others."""
    _, steps = costs_and_steps(precision)
    return [
        statistics.median(
            map(abs, errors([s for s in steps if s.workload == name], [s for s in steps if s.workload != name], prior))
        )
        for name in WORKLOADS
    ]


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp32", marks=pytest.mark.long), "tf32"])
def test_each_model_from_the_steps_of_the_others(precision: str) -> None:
    costs, steps = costs_and_steps(precision)
    assert costs.overlapped
    assert len(steps) == (16 if precision == "fp32" else 18)
    prior = prior_of(samples(), costs, precision, "PyTorch")
    assert prior is MEASURED_PRIOR
    found = medians(precision, prior)
    assert all(f <= most for f, most in zip(found, BOUNDS[precision], strict=True)), found


@pytest.mark.parametrize("name", ["others", pytest.param("large", marks=pytest.mark.long)])
def test_large_transformers_from_their_operations(name: str) -> None:
    costs, steps = costs_and_steps("bf16")
    model = step_model(steps, MEASURED_PRIOR)
    for found in kept("h200", name):
        for recompute in (False, True):
            cases = [c for c in found["cases"] if c["recompute"] == recompute and "operations" in c and measured_s(c)]
            said = model.predict(stacked([costs.rows(from_columns(c["operations"])) for c in cases]))
            measured = np.array([measured_s(c) for c in cases], dtype=float)
            assert np.median(np.abs(said / measured - 1.0)) <= 0.05, (found["name"], recompute)


@pytest.mark.long
def test_half_and_twice_as_sure_of_the_factors_predicts_no_better() -> None:
    """Over three models and three precisions, and the larger ones; on the CPU other priors are used."""

    def worst(share: float) -> float:
        prior = CostPrior(MEASURED_PRIOR.centre, share * MEASURED_PRIOR.deviation)
        costs, steps = costs_and_steps("bf16")
        model = step_model(steps, prior)
        found = [m for precision in BOUNDS for m in medians(precision, prior)]
        for shape in kept("h200", "others"):
            for case in shape["cases"]:
                if "operations" in case:
                    said = float(model.predict(costs.rows(from_columns(case["operations"]))))
                    found.append(100.0 * abs(said / float(measured_s(case) or 0.0) - 1.0))
        return float(np.mean(found))

    assert worst(1.0) < min(worst(0.5), worst(2.0))
