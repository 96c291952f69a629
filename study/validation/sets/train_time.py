"""MLPerf Training: time to train at larger scales from the smallest of the same submitter, round and accelerator.

Law: T = S + min(F, 2 S) with S = (T0 - F) rb^(c - 1) ((1 - f) rb / rn + f rn^g). rn and rb are the ratios of
accelerators and of global batch, F seconds that scale does not shorten (start, evaluation) but in short runs, c the
samples that a larger batch costs more (critical batch: McCandlish et al. 2018), f the part of a step that the
samples of an accelerator do not scale, and g how that grows with the number of accelerators. The four are fitted to
other benchmarks. Naive: linear scaling.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from equipoise.sim.llm.stack import Floats
from equipoise.study.validation.rows import Cells, read_rows
from equipoise.study.validation.score import Line, Score, judge, line, of_splits, spread_of
from equipoise.study.validation.splits import fitted_half

FILE = "throughput/mlperf_runs.csv.gz"
GROUP = ("round", "submitter", "benchmark", "accelerator_model")
START = np.array([0.1, -2.0, 0.0, 2.0])
"""c, logit of f, g, log of F: where the fit starts and what it is weakly held near."""
WEIGHT, SOFT = 0.05, 0.10
FIXED_MOST = 2.0
"""Upper bound of fixed over scaling seconds, since very short runs also start and evaluate faster."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A larger scale relative to the smallest of its group: seconds and ratios."""

    key: str
    benchmark: str
    accelerators: float
    batch: float
    first_s: float
    measured_s: float


def read(data: Path) -> list[Scaled]:
    """The larger scales of every group: medians of successful runs. Raises FileNotFoundError, KeyError."""
    runs: dict[tuple[str, ...], dict[tuple[float, str], list[tuple[float, float]]]] = defaultdict(dict)
    for group, scale, pair in read_rows(data / FILE, _run):
        runs[group].setdefault(scale, []).append(pair)
    return [found for group, scales in runs.items() for found in _scaled(group, scales)]


def _run(text: Cells) -> tuple[tuple[str, ...], tuple[float, str], tuple[float, float]] | None:
    """(group, (accelerators, system), (seconds, batch)) of a run that succeeded; an unknown batch is NaN."""
    if text["run_status"] != "success":
        return None
    batch = text.measured("global_batch_size") if text["global_batch_size"] else np.nan
    scale = (text.measured("total_accelerators"), text["system"])
    return tuple(text[name] for name in GROUP), scale, (text.measured("run_s"), batch)


def _scaled(group: tuple[str, ...], scales: dict[tuple[float, str], list[tuple[float, float]]]) -> list[Scaled]:
    smallest = min(n for n, _ in scales)
    first = np.array([pair for (n, _), pairs in scales.items() if n == smallest for pair in pairs])
    first_s, first_batch = float(np.median(first[:, 0])), float(np.median(first[:, 1]))
    out = []
    for (n, system), pairs in sorted(scales.items()):
        if n > smallest:
            seconds, batch = np.median(np.array(pairs), axis=0)
            ratio = batch / first_batch if np.isfinite(batch / first_batch) else 1.0
            key = " ".join([*group, system, f"{n:.0f}"])
            out.append(Scaled(key, group[2], n / smallest, float(ratio), first_s, float(seconds)))
    return out


def predict(constants: Floats, rows: Sequence[Scaled]) -> Floats:
    """Seconds to train, shape (rows,)."""
    c, f, g = constants[0], 1 / (1 + np.exp(-constants[1])), constants[2]
    rn, rb, first = (np.array([getattr(r, name) for r in rows]) for name in ("accelerators", "batch", "first_s"))
    fixed = np.minimum(np.exp(constants[3]), 0.9 * first)
    scaled = (first - fixed) * rb ** (c - 1) * ((1 - f) * rb / rn + f * rn**g)
    return np.asarray(scaled + np.minimum(fixed, FIXED_MOST * scaled))


def learn(rows: Sequence[Scaled]) -> Floats:
    """The law's four constants."""
    logs = np.log([r.measured_s for r in rows])

    def residuals(constants: Floats) -> Floats:
        """Misfit of every row, and distance from where it starts."""
        misfit = np.log(predict(constants, rows)) - logs
        return np.concatenate([misfit, WEIGHT * (constants - START)])

    return np.asarray(least_squares(residuals, START, loss="soft_l1", f_scale=SOFT).x)


def run(data: Path) -> list[Line]:
    """Half of the benchmarks give the law; it predicts the other half's larger scales."""
    rows = read(data)
    what = "MLPerf time to train: smallest scale, other benchmarks -> larger scales"
    return [line(what, 0.10, of_splits(lambda split: _score(rows, split)))]


def _score(rows: Sequence[Scaled], split: int) -> Score:
    known = [r for r in rows if fitted_half(r.benchmark, split)]
    asked = [r for r in rows if not fitted_half(r.benchmark, split)]
    if not known or not asked:
        raise ValueError("all benchmarks with two scales are on one side")
    guess = predict(learn(known), asked)
    naive = np.array([r.first_s / r.accelerators for r in asked])
    measured = np.array([r.measured_s for r in asked])
    return judge([r.key for r in asked], guess, naive, measured, _spread(known))


def _spread(known: Sequence[Scaled]) -> tuple[float, float]:
    """Factors that hold 90 % of benchmarks left out in turn."""
    names = [r.benchmark for r in known]
    residuals = np.zeros(len(known))
    for name in sorted(set(names)):
        out = np.array([n == name for n in names])
        inner = [r for r in known if r.benchmark == name]
        law = learn([r for r in known if r.benchmark != name])
        residuals[out] = np.log(np.array([r.measured_s for r in inner]) / predict(law, inner))
    return spread_of(residuals, names)
