"""The step of a model that was never timed, as constants that a scenario can name.

A user's function describes one training step; its operations at several batch sizes are noted (PyTorch, on
any device) and costed with what the samples say of this machine.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from equipoise.calibrate.fit.accelerator import BYTES
from equipoise.calibrate.fit.compose import StepModel, UnitCosts
from equipoise.calibrate.fit.compose_fits import prior_of, step_model, steps_of, unit_costs
from equipoise.calibrate.fit.levels import FitLine, Report, measured
from equipoise.calibrate.fit.robust import Floats, affine, estimate
from equipoise.calibrate.measure.operations import PRODUCTS, TimedOperation, trace
from equipoise.calibrate.samples import SamplesError, SampleSet
from equipoise.sim.hardware.profile import Measured, StepTime

MakeStep = Callable[[int], Callable[[], object]]
"""make(batch) returns a function that runs one training step of `batch` samples."""


def load_make(text: str) -> tuple[str, MakeStep]:
    """(name, function) from "NAME=FILE.py:FUNCTION". Raises SamplesError, one line."""
    name, equals, place = text.partition("=")
    file, _, function = place.rpartition(":")
    if not (name and equals and file and function):
        raise SamplesError(f"--compose {text}: must be NAME=FILE.py:FUNCTION")
    if not Path(file).is_file():
        raise SamplesError(f"--compose {text}: there is no file {file}")
    spec = importlib.util.spec_from_file_location("equipoise_composed", file)
    if spec is None or spec.loader is None:
        raise SamplesError(f"--compose {text}: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SamplesError(f"--compose {text}: {file} fails: {_one_line(error)}") from error
    make = getattr(module, function, None)
    if not callable(make):
        raise SamplesError(f"--compose {text}: {file} has no function {function}")
    return name, make


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def composed_steps(
    samples: SampleSet, name: str, make: MakeStep, accelerator: str, report: Report
) -> Iterator[StepTime]:
    """The model's step in every precision that was measured and that it computes in.

    Raises SamplesError when the function fails or nothing was measured that it needs.
    """
    if importlib.util.find_spec("torch") is None:
        raise SamplesError(f"composing {name}: needs PyTorch to trace the step")
    timed = samples.of("training")
    batches = sorted({int(s["batch"]) for s in timed})
    pairs = list(dict.fromkeys((str(s["precision"]), str(s["framework"])) for s in timed))
    if len(batches) < 2:
        raise SamplesError(f"composing {name}: the samples hold no training steps of several batch sizes")
    noted = {batch: _noted(name, make, batch) for batch in batches}
    size = _main_element_bytes(noted[batches[-1]])
    reasons = [f"its products have elements of {size} bytes, in which no steps were timed"]
    found = False
    for precision, framework in pairs:
        if size is not None and BYTES.get(precision) != size:
            continue
        try:
            costs = unit_costs(samples, precision, framework)
            rows = [costs.rows(noted[b]) for b in batches]
            model = _model(samples, costs, precision, framework)
        except ValueError as reason:
            reasons.append(str(reason))
            continue
        found = True
        yield _constants(name, precision, accelerator, batches, rows, model, framework, report)
    if not found:
        raise SamplesError(f"composing {name}: {reasons[-1]}")


def _noted(name: str, make: MakeStep, batch: int) -> list[TimedOperation]:
    try:
        step = make(batch)
        step()  # one-time work is not part of a step
        return trace(step)
    except Exception as error:
        raise SamplesError(f"composing {name}, batch {batch}: {_one_line(error)}") from error


def _main_element_bytes(operations: list[TimedOperation]) -> int | None:
    """Bytes of an element in most of the products' work; None without products."""
    work: dict[int, int] = {}
    for o in operations:
        if o.kind in PRODUCTS:
            work[o.element_bytes] = work.get(o.element_bytes, 0) + o.m * o.n * o.k * o.count
    return max(work, key=lambda size: work[size], default=None)


def _model(samples: SampleSet, costs: UnitCosts, precision: str, framework: str) -> StepModel:
    steps = steps_of(samples, costs, precision, framework)
    return step_model(steps, prior_of(samples, costs, precision, framework))


def _constants(
    name: str,
    precision: str,
    accelerator: str,
    batches: list[int],
    rows: list[Floats],
    model: StepModel,
    framework: str,
    report: Report,
) -> StepTime:
    """alpha_c and beta_c of the line through the composed steps; their spread is the factors'."""
    x = np.array(batches, dtype=np.float64)
    best = affine(x, np.array([model.predict(each) for each in rows]))
    draws = affine(x, np.stack([model.drawn(each) for each in rows], axis=1))
    alpha, beta = (estimate(float(best[k]), draws[:, k], len(model.residuals)) for k in (0, 1))
    source = f"composed from its operations; factors from {len(model.residuals)} timed steps, {framework}"
    report.lines.append(
        FitLine(f"{name} step, composed, {precision}", beta, "s/sample", model.residual_cov, remark=source)
    )
    spread = Measured(value=float(f"{model.residual_cov:.4g}"), source=source, kind="fitted", n=beta.n)
    return StepTime.model_validate(
        {
            "workload": name,
            "accelerator": accelerator,
            "precision": precision,
            "alpha_s": measured(alpha, source, "fitted"),
            "beta_s": measured(beta, source, "fitted"),
            "residual_cov": spread,
        }
    )
