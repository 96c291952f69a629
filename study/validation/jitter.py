"""Alibaba's per-worker mini-batch times: the mean wait of n workers at a barrier, from other stretches of time.

A worker's times in the fitted stretches stand for its times to come, as measured: with its own speed, its tail, and
with what it shares with others in a step. Stretches of `STRETCH` steps are divided by a hash. Naive: independent
normal jitter of the workers' common spread, which is what a coefficient of variation alone says.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from equipoise.sim.llm.interval import spread
from equipoise.sim.llm.stack import Floats
from equipoise.study.validation.rows import read_csv
from equipoise.study.validation.score import Line, Score, judge, line
from equipoise.study.validation.splits import SPLITS, fitted_half

PATTERN = "traces/alibaba2020_minibatch_job*.csv.gz"
STRETCH = 20
MOST_GROUPS = 60
"""Groups of workers of one size that are looked at, the first in order of their numbers."""


def read(data: Path) -> dict[str, Floats]:
    """Times (steps, workers) by job, of the steps that every worker has. Raises FileNotFoundError, KeyError."""
    files = sorted(data.glob(PATTERN))
    if not files:
        raise FileNotFoundError(2, "no such file", str(data / PATTERN))
    return {file.name.split(".")[0]: _times(file) for file in files}


def _times(file: Path) -> Floats:
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    workers = set()
    for text in read_csv(file):
        steps[int(text["time"])][text["worker"]] = float(text["batch_time_norm"])
        workers.add(text["worker"])
    order = sorted(workers, key=int)
    return np.array([[row[w] for w in order] for _, row in sorted(steps.items()) if len(row) == len(order)])


def wait(times: Floats, group: tuple[int, ...]) -> float:
    """Mean over steps of how long a worker of the group waits for the last, in the unit of the times."""
    part = times[:, group]
    return float((part.max(axis=1) - part.mean(axis=1)).mean())


def run(data: Path) -> list[Line]:
    """Some stretches of time predict the barrier waits in the others, for every number of workers from two."""
    jobs = read(data)
    return [
        line(
            "Alibaba: barrier wait of 2..n workers, other stretches", 0.08, [_score(jobs, s) for s in SPLITS]
        )
    ]


def _score(jobs: dict[str, Floats], split: int) -> Score:
    keys: list[str] = []
    columns: list[tuple[float, float, float]] = []
    residuals: list[float] = []
    for name, times in jobs.items():
        known = np.array([fitted_half(f"{name} {k // STRETCH}", split) for k in range(len(times))])
        halves = np.cumsum(known) % (2 * STRETCH) < STRETCH  # of the fitted stretches, for the interval
        for group in _groups(times.shape[1]):
            guess, truth = wait(times[known], group), wait(times[~known], group)
            columns.append((guess, _normal(times[known], len(group)), truth))
            keys.append(f"{name} {len(group)} workers {group}")
            inner = [wait(times[known & part], group) for part in (halves, ~halves)]
            residuals += [float(np.log(inner[0] / inner[1])), float(np.log(inner[1] / inner[0]))]
    guesses, naive, measured = np.array(columns).T
    return judge(
        keys,
        guesses,
        naive,
        measured,
        spread(np.array(residuals), [str(k // 2) for k in range(len(residuals))]),
    )


def _groups(workers: int) -> list[tuple[int, ...]]:
    return [g for n in range(2, workers + 1) for g in list(combinations(range(workers), n))[:MOST_GROUPS]]


def _normal(times: Floats, n: int) -> float:
    """Expected maximum of n normal times less their mean: spread x E[max of n standard normals] (Blom 1958)."""
    from scipy.stats import norm

    cov: npt.NDArray[np.float64] = times.std(axis=0) / times.mean(axis=0)
    return float(np.median(cov) * times.mean() * norm.ppf((n - 0.375) / (n + 0.25)))
