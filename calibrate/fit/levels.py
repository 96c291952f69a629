"""From samples to single numbers for a profile, and the report of what was fitted how well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from equipoise.calibrate.fit.robust import Estimate, Floats, fit_level
from equipoise.calibrate.samples import Sample
from equipoise.sim.hardware.profile import Measured

Convert = Callable[[Sample, Floats], Floats]

LOW_QUANTILE = 0.1


@dataclass(frozen=True)
class FitLine:
    """One line of the report: the fit, its number of samples, and its prediction error.

    `residual_cov` is the spread of measured over fitted; `held_out_error` the median relative error for sizes
    that the fit had not seen (None where there are too few).
    """

    name: str
    estimate: Estimate | None
    unit: str
    residual_cov: float | None = None
    held_out_error: float | None = None
    remark: str = ""


@dataclass
class Report:
    """The report of a fit: lines, predictions and missing parts."""

    lines: list[FitLine] = field(default_factory=list)
    predictions: list[LevelPrediction] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LevelPrediction:
    """A training step that was not used in the fit, predicted from smaller batches and measured."""

    workload: str
    precision: str
    batch: int
    framework: str
    predicted: Estimate
    measured: Estimate

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted.value / self.measured.value - 1.0


def slug(text: str) -> str:
    """A name for YAML keys: lower case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower().replace("(r)", "").replace("(tm)", "")).strip("_")


def measured(estimate: Estimate, source: str, kind: str = "measured") -> Measured:
    """The number for a profile, rounded to six digits."""
    value = float(f"{estimate.value:.6g}")
    low, high = (float(f"{v:.6g}") for v in (estimate.low, estimate.high))
    return Measured.model_validate(
        {
            "value": value,
            "low": min(low, value),
            "high": max(high, value),
            "n": estimate.n,
            "source": source,
            "kind": kind,
        }
    )


def level(samples: Iterable[Sample], convert: Convert | None = None) -> Estimate | None:
    """Typical value of samples of one quantity over their rounds; None without samples.

    Times count by their LOW_QUANTILE, the time without interruptions, then `convert` makes
    rates of them; other units count by their centre.
    """
    found = list(samples)
    if not found:
        return None
    values = np.concatenate([s.values for s in found])
    rounds = np.concatenate([np.full(len(s.values), s.round) for s in found])
    estimate = fit_level(values, rounds, LOW_QUANTILE if found[0].unit == "s" else None)
    if convert is None:
        return estimate
    return estimate.map(lambda seconds: float(convert(found[0], np.array(seconds))))


def rate(amount: str) -> Callable[[Sample, Floats], Floats]:
    """Converts seconds into a rate of the sample's parameter `amount`."""
    return lambda sample, seconds: np.asarray(float(sample[amount]) / seconds)


def gemm_rate(sample: Sample, seconds: Floats) -> Floats:
    """FLOP/s of a matrix product."""
    return np.asarray(2.0 * sample["m"] * sample["n"] * sample["k"] / seconds)


def by_parameters(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Samples grouped by parameters over rounds, in order of appearance."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(repr(sorted(sample.parameters.items())), []).append(sample)
    return groups


def level_number(found: list[Sample], source: str) -> Measured | None:
    """The typical value as a profile's number, None without samples."""
    estimate = level(found)
    return None if estimate is None else measured(estimate, source)


def best(found: list[Sample], convert: Convert, source: str) -> Measured | None:
    """The highest typical rate among several measurements (sizes, algorithms)."""
    levels = [(level(group, convert), group[0]) for group in by_parameters(found).values()]
    known = [(estimate, sample) for estimate, sample in levels if estimate is not None]
    if not known:
        return None
    estimate, sample = max(known, key=lambda pair: pair[0].value)
    shown = ", ".join(f"{k} {v}" for k, v in sample.parameters.items() if k not in ("flop", "precision"))
    return measured(estimate, f"{source} ({shown})" if shown else source)


def number_line(name: str, number: Measured, unit: str, **more: Any) -> FitLine:
    """A profile's number as a line of the report."""
    low = number.value if number.low is None else number.low
    high = number.value if number.high is None else number.high
    return FitLine(name, Estimate(number.value, low, high, number.n), unit, **more, remark=number.source)
