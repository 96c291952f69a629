"""Alibaba's per-worker mini-batch times: the mean wait of n workers at a barrier, from other stretches of time.

Stretches of `STRETCH` steps are divided by a hash. The prediction draws steps of the simulator's noise, as `equipoise
calibrate fit-noise` fits it to the fitted stretches, at each worker's level. Naive: independent normal jitter of the
workers' common spread, which is what a coefficient of variation alone says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from equipoise.policies.kernels.jit import ZERO
from equipoise.sim.llm.stack import Floats
from equipoise.sim.randomness import noise_key, noise_space, step_noise, step_noise_row
from equipoise.study.validation.rows import Cells, read_rows
from equipoise.study.validation.score import Line, Score, judge, line, of_splits, spread_of
from equipoise.study.validation.splits import fitted_half

PATTERN = "traces/alibaba2020_minibatch_job*.csv.gz"
STRETCH = 20
DRAWN = 4000
"""Number of steps of the simulator's noise that represent future times."""
MOST_GROUPS = 60
"""Most groups of workers of one size, the first in order of their numbers."""


def read(data: Path) -> dict[str, Floats]:
    """Times (steps, workers) by job, of the steps that every worker has. Raises FileNotFoundError, KeyError."""
    files = sorted(data.glob(PATTERN))
    if not files:
        raise FileNotFoundError(2, "no such file", str(data / PATTERN))
    return {file.name.split(".")[0]: _times(file) for file in files}


def _times(file: Path) -> Floats:
    steps: dict[int, dict[int, float]] = defaultdict(dict)
    for step, worker, time in read_rows(file, _time):
        steps[step][worker] = time
    order = sorted({worker for row in steps.values() for worker in row})
    return np.array([[row[w] for w in order] for _, row in sorted(steps.items()) if len(row) == len(order)])


def _time(text: Cells) -> tuple[int, int, float]:
    return text.whole("time"), text.whole("worker"), text.measured("batch_time_norm")


def wait(times: Floats, group: tuple[int, ...]) -> float:
    """Mean over steps of how long a worker of the group waits for the last, in the unit of the times."""
    part = times[:, group]
    return float((part.max(axis=1) - part.mean(axis=1)).mean())


class JitterNoise(Protocol):
    """What calibration fits: the shares of a scenario's `noise`, and each worker's level over their mean."""

    levels: Floats

    def keys(self) -> dict[str, float]:
        """The section `noise`."""


def drawn(times: Floats, fit: Callable[[Floats], JitterNoise]) -> Floats:
    """Steps of the simulator's noise (DRAWN, workers) fitted to times (steps, workers), at the workers' levels."""
    found, workers = fit(times), times.shape[1]
    said = {name: value for name, value in found.keys().items() if name != "gpu_cov"}
    noise = step_noise(noise_key(0, "jitter"), said.pop("step_cov"), **said)  # type: ignore[arg-type]
    rows, space = np.ones((DRAWN, workers + workers % 2)), noise_space(workers)
    for step in range(DRAWN):
        step_noise_row(noise, step, ZERO, space, rows[step])
    return np.asarray(rows[:, :workers] * np.exp(np.median(np.log(times), axis=0)))


def run(data: Path, fit: Callable[[Floats], JitterNoise]) -> list[Line]:
    """Some stretches of time predict the barrier waits in the others, for every number of workers from two."""
    jobs = read(data)
    scores = of_splits(lambda split: _score(jobs, split, fit))
    return [line("Alibaba: barrier wait of the simulator's noise, stretches -> others", 0.08, scores)]


def _score(jobs: dict[str, Floats], split: int, fit: Callable[[Floats], JitterNoise]) -> Score:
    """The interval is that of halves of the fitted stretches, predicted from one another."""
    keys: list[str] = []
    columns: list[tuple[float, float, float]] = []
    residuals: list[float] = []
    whose: list[str] = []
    for name, times in jobs.items():
        known = np.array([fitted_half(f"{name} {k // STRETCH}", split) for k in range(len(times))])
        turn = known & (np.cumsum(known) % (2 * STRETCH) < STRETCH)
        expected = drawn(times[known], fit)
        pairs = [(drawn(times[a], fit), times[b]) for a, b in ((turn, known & ~turn), (known & ~turn, turn))]
        for group in _groups(times.shape[1]):
            guess, truth = wait(expected, group), wait(times[~known], group)
            columns.append((guess, _normal(times[known], len(group)), truth))
            keys.append(f"{name} {len(group)} workers {group}")
            residuals += [float(np.log(wait(b, group) / wait(a, group))) for a, b in pairs]
            whose += [keys[-1]] * len(pairs)
    guesses, naive, measured = np.array(columns).T
    return judge(keys, guesses, naive, measured, spread_of(np.array(residuals), whose))


def _groups(workers: int) -> list[tuple[int, ...]]:
    return [g for n in range(2, workers + 1) for g in list(combinations(range(workers), n))[:MOST_GROUPS]]


def _normal(times: Floats, n: int) -> float:
    """Expected maximum of n normal times less their mean: spread x E[max of n standard normals] (Blom 1958)."""
    from scipy.stats import norm

    cov: npt.NDArray[np.float64] = times.std(axis=0) / times.mean(axis=0)
    return float(np.median(cov) * times.mean() * norm.ppf((n - 0.375) / (n + 0.25)))
