"""Scenarios and traces of the benchmarks, made here from fixed seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.sim.scenario.model import Scenario
from equipoise.sim.traces.trace import Trace, make_trace


def scenario(**sections: Any) -> Scenario:
    """A scenario from plain dictionaries."""
    return Scenario.model_validate({"schema_version": 1, "name": "bench", "workload": {}} | sections)


def queueing_trace(jobs: int, gpus: int = 48, load: float = 0.8, together: float = 0.5) -> Trace:
    """Rigid jobs of 1 to 4 GPUs with heavy-tailed durations in bursts, as in shared research clusters.

    `together`: share of them that arrive with the one before.
    """
    rng = np.random.default_rng(20260101)
    size = rng.choice([1, 2, 4], p=[0.86, 0.06, 0.08], size=jobs)
    duration_s = np.maximum(1.0, np.round(rng.lognormal(8.0, 2.0, size=jobs)))
    gap_s = rng.exponential(1.0, size=jobs) * (rng.random(jobs) < 1.0 - together)
    gap_s *= (size * duration_s).sum() / (load * gpus * gap_s.sum())
    arrival_s = np.round(np.cumsum(gap_s))
    return make_trace(np.arange(jobs), arrival_s - arrival_s[0], size, duration_s, source="bench")


def large_trace(jobs: int, days: float, gpus: int = 100_000, load: float = 0.75) -> Trace:
    """Gangs of 1 to 1,024 GPUs that fill `load` of a large cluster over some days."""
    rng = np.random.default_rng(20260102)
    size = 2 ** rng.choice(11, p=np.array([20, 10, 10, 25, 12, 9, 6, 4, 2, 1, 1]) / 100, size=jobs)
    duration_s = np.maximum(60.0, rng.lognormal(8.5, 1.6, size=jobs))
    duration_s *= load * gpus * days * 86400 / (size * duration_s).sum()
    arrival_s = np.sort(rng.uniform(0, days * 86400, size=jobs))
    return make_trace(np.arange(jobs), arrival_s - arrival_s[0], size, duration_s, source="bench")
