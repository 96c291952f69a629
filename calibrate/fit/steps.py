"""The training steps' part of a profile, and how well steps not used in a fit are predicted."""

from __future__ import annotations

import numpy as np

from equipoise.calibrate.fit.fits import fit_overlap, fit_step_time, leave_one_size_out
from equipoise.calibrate.fit.levels import LOW_QUANTILE, FitLine, LevelPrediction, Report, level, measured
from equipoise.calibrate.fit.robust import Floats, low_quantile, noise_cov
from equipoise.calibrate.samples import Sample, SampleSet
from equipoise.sim.hardware.profile import Measured, StepTime

OVERLAP = ("step_s", "exchange_s", "together_s")
LEAST_STEPS = 3
"""Timed steps that must remain when one batch size is left out."""


def step_part(samples: SampleSet, accelerator: str, report: Report) -> list[StepTime]:
    """alpha_c and beta_c of every workload, precision and framework that was timed over batch sizes."""
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for sample in samples.of("training"):
        kind = tuple(str(sample[name]) for name in ("workload", "precision", "framework"))
        groups.setdefault(kind, []).append(sample)
    steps = [_step(chosen, accelerator, report) for chosen in groups.values()]
    return [_with_overlap(step, samples, report) for step in steps if step is not None]


def _with_overlap(step: StepTime, samples: SampleSet, report: Report) -> StepTime:
    """With the exponent of its exchange's overlap, where steps were timed with and without one."""
    found = samples.of("overlap", workload=step.workload, precision=step.precision)
    chosen = [s for s in found if set(OVERLAP) <= s.columns.keys()]
    if not chosen:
        return step
    alone, exchange, together = (np.concatenate([s.columns[name] for s in chosen]) for name in OVERLAP)
    name = f"{step.workload} step, {step.precision}, overlap"
    try:
        fit = fit_overlap(alone, exchange, together)
    except ValueError as reason:
        report.missing.append(f"{name}: {reason}")
        return step
    report.lines.append(FitLine(name, fit.gamma, "1", fit.residual_cov))
    source = f"{chosen[0]['backend']}, {chosen[0]['ranks']} ranks"
    return step.model_copy(update={"overlap": measured(fit.gamma, source, "fitted")})


def _step(chosen: list[Sample], accelerator: str, report: Report) -> StepTime | None:
    workload, precision, framework = (str(chosen[0][k]) for k in ("workload", "precision", "framework"))
    batches, seconds = step_arrays(chosen)
    name = f"{workload} step, {precision}, {framework}"
    try:
        fit = fit_step_time(batches, seconds)
    except ValueError as reason:
        report.missing.append(f"{name}: {reason}")
        return None
    error = None
    counts = np.unique(batches, return_counts=True)[1]
    if len(counts) >= 3 and len(batches) - counts.max() >= LEAST_STEPS:
        error = leave_one_size_out(batches, seconds, fit_step_time).median_error()
        report.predictions.append(predict_largest(chosen))
    every = [(float(s["batch"]), v) for s in chosen for v in s.values]
    cov = noise_cov(fit.predict([b for b, _ in every]), np.array([v for _, v in every]))
    report.lines.append(FitLine(name, fit.per_unit_s, "s/sample", cov, error))
    source = f"{framework}, batches {', '.join(str(int(b)) for b in np.unique(batches))}"
    return StepTime.model_validate(
        {
            "workload": workload,
            "accelerator": accelerator,
            "precision": precision,
            "alpha_s": measured(fit.fixed_s, source, "fitted"),
            "beta_s": measured(fit.per_unit_s, source, "fitted"),
            "residual_cov": Measured(value=float(f"{cov:.4g}"), source=source, kind="fitted", n=fit.n),
        }
    )


def step_arrays(chosen: list[Sample]) -> tuple[Floats, Floats]:
    """(batch, seconds) of each round: the low quantile of its steps, which nothing interrupted."""
    batches = np.array([float(s["batch"]) for s in chosen])
    return batches, np.array([low_quantile(np.asarray(s.values), LOW_QUANTILE) for s in chosen])


def predict_largest(chosen: list[Sample]) -> LevelPrediction:
    """Predict the largest batch of a workload from a fit to the smaller ones, and compare."""
    batches, seconds = step_arrays(chosen)
    largest = batches.max()
    rest = fit_step_time(batches[batches < largest], seconds[batches < largest])
    truth = level(s for s in chosen if s["batch"] == largest)
    assert truth is not None
    return LevelPrediction(
        str(chosen[0]["workload"]),
        str(chosen[0]["precision"]),
        int(largest),
        str(chosen[0]["framework"]),
        rest.predict_interval(float(largest)),
        truth,
    )
