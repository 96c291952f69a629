"""Fits the keys of a scenario's `noise` to the step times of data-parallel workers.

The logarithm of a time is the worker's constant level plus noise. Part of the noise is common to the workers of a
step, part of the rest lasts for some steps, and rare long steps are added.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from equipoise.base.numerals import strict_float, strict_int
from equipoise.calibrate.fit.csv_rows import CsvRows
from equipoise.calibrate.fit.robust import MAD_TO_SIGMA, Floats

T = TypeVar("T", int, float)

LEAST_STEPS, LEAST_WORKERS = 20, 2
LONG = 5.0
"""Spreads above a worker's level from which on a step is one of the rare long ones."""
LONG_LEAST = 1.5
"""And at least so many times the level."""
LAGS = np.array([1, 2, 3, 5, 8, 12, 20, 30, 50])
LASTING_STEPS = np.unique(np.geomspace(2, 200, 60).astype(int))


@dataclass(frozen=True)
class NoiseFit:
    """The keys of `noise`, and the level of every worker over their mean (workers,)."""

    step_cov: float
    lasting_share: float
    lasting_steps: int
    common_share: float
    tail_chance: float
    tail_factor: float
    gpu_cov: float
    levels: Floats

    def keys(self) -> dict[str, float]:
        """The section `noise` of a scenario."""
        names = ("step_cov", "lasting_share", "lasting_steps", "common_share")
        found = {name: float(f"{getattr(self, name):.4g}") for name in names} | {"lasting_steps": self.lasting_steps}
        if self.tail_chance > 0.0:
            found |= {name: float(f"{getattr(self, name):.4g}") for name in ("tail_chance", "tail_factor")}
        return found | {"gpu_cov": float(f"{min(self.gpu_cov, 1.0):.4g}")}


def fit_noise(times_s: npt.ArrayLike) -> NoiseFit:
    """Fits the step times (steps, workers), equal work for all, any unit. Raises ValueError with too few."""
    times = np.asarray(times_s, dtype=np.float64)
    if times.ndim != 2 or times.shape[0] < LEAST_STEPS or times.shape[1] < LEAST_WORKERS:
        raise ValueError(f"step noise: needs {LEAST_STEPS} steps of {LEAST_WORKERS} workers, got {times.shape}")
    if not (np.isfinite(times) & (times > 0)).all():
        raise ValueError("step noise: times must be above 0")
    logs = np.log(times)
    level = np.median(logs, axis=0)
    rest = logs - level
    spread = MAD_TO_SIGMA * np.median(np.abs(rest), axis=0)
    long = rest > np.maximum(LONG * spread, math.log(LONG_LEAST))
    chance = float(long.mean())
    factor = float(np.exp(rest[long]).mean()) if chance else 1.0
    body = np.where(long, 0.0, rest)
    sigma = float(np.sqrt(np.mean(body.var(axis=0))))
    common = _common(body)
    lasting, steps = _lasting(body - body.mean(axis=1, keepdims=True))
    levels = np.exp(level)
    levels = levels / levels.mean()
    return NoiseFit(
        math.sqrt(math.expm1(sigma**2)), lasting, steps, common, chance, factor, float(levels.std(ddof=1)), levels
    )


def _common(body: Floats) -> float:
    """Mean correlation of two workers in one step."""
    kept = body[:, body.std(axis=0) > 0]
    if kept.shape[1] < LEAST_WORKERS:
        return 0.0
    pairs: Floats = np.asarray(np.corrcoef(kept.T))[np.triu_indices(kept.shape[1], 1)]
    return float(np.clip(pairs.mean(), 0.0, 1.0))


def _lasting(own: Floats) -> tuple[float, int]:
    """(share, steps) whose autocorrelation share * (1 - lag / steps) is nearest to the mean one of the workers."""
    lags = LAGS[len(own) // 4 > LAGS]
    own = own[:, own.std(axis=0) > 0]
    if not own.shape[1] or not len(lags):
        return 0.0, 1
    centred = own - own.mean(axis=0)
    found = np.array([((centred[:-k] * centred[k:]).mean(axis=0) / centred.var(axis=0)).mean() for k in lags])
    shapes = np.maximum(0.0, 1.0 - lags / LASTING_STEPS[:, None])
    shares = np.clip((shapes @ found) / np.maximum((shapes**2).sum(axis=1), 1e-12), 0.0, 1.0)
    misses = ((shares[:, None] * shapes - found) ** 2).sum(axis=1)
    best = int(np.argmin(misses))
    return float(shares[best]), int(LASTING_STEPS[best])


def read_worker_times(path: Path) -> Floats:
    """Times (steps, workers) of a CSV with the columns worker, step and seconds, of steps that all workers have.

    Raises ValueError, `file:line: column: what is wrong`.
    """
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    rows = CsvRows(path)
    for name in ("worker", "step", "seconds"):
        if name not in rows.columns:
            raise ValueError(f"{path}:1: {name}: missing column; needed: worker, step, seconds")
    for line, row in rows:
        step, seconds = (_read(path, line, row, "step", strict_int), _read(path, line, row, "seconds", strict_float))
        if not 0.0 < seconds <= 1e12:
            raise ValueError(f"{path}:{line}: seconds: {row['seconds']} is not above 0 and at most 1e12")
        if row["worker"] in steps[step]:
            raise ValueError(f"{path}:{line}: step {step} of worker {row['worker']!r} is listed twice")
        steps[step][row["worker"]] = seconds
    workers = sorted({worker for found in steps.values() for worker in found})
    whole = [found for _, found in sorted(steps.items()) if len(found) == len(workers)]
    return np.array([[found[worker] for worker in workers] for found in whole]).reshape(-1, len(workers))


def _read(path: Path, line: int, row: dict[str, str], name: str, kind: Callable[[str], T]) -> T:
    try:
        return kind(row[name])
    except ValueError as error:
        raise ValueError(f"{path}:{line}: {name}: {error}") from None
