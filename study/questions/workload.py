"""A description of a job trace by classes of GPU count, and how well generated jobs reproduce its waits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from equipoise.policies.observation import Bools, Floats
from equipoise.policies.registry import make_policy
from equipoise.sim.run import drawn_jobs, redraws, run
from equipoise.sim.scenario.generate import Durations
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.traces.generate import mean_s
from equipoise.sim.traces.redraw import shifts
from equipoise.sim.traces.trace import Trace

QUANTILES = 401
"""Most quantiles of the durations of a class."""
BINS = 400
"""Most weights of the profile of arrivals."""
FEW = 20
"""A GPU count with fewer jobs shares a class with its neighbours."""


def fitted(trace: Trace) -> dict[str, Any]:
    """The section `workload.generate` for a trace: for each GPU count a class with its arrivals and durations."""
    length_s = max(float(trace.arrival_s.max()) * (1.0 + 1.0 / len(trace)), 1.0)
    every_s = length_s / max(1, min(BINS, int(length_s // 3600.0)))
    classes = []
    for low, high, rows in _by_gpus(trace):
        bins = (trace.arrival_s[rows] // every_s).astype(int)
        counts, number = np.unique(trace.gpus[rows], return_counts=True)
        classes.append(
            {
                "name": f"{low}-gpu" if low == high else f"{low}-to-{high}-gpu",
                "rate": f"{rows.sum() / length_s * 86400:.6g}/d",
                "arrivals": {"kind": "profile", "every": every_s, "weights": np.bincount(bins).tolist()},
                "duration": _durations(np.maximum(trace.duration_s[rows], 1e-3)),
                "gpus": dict(zip(counts.tolist(), number.tolist(), strict=True)),
                "exact": True,
            }
        )
    return {"length": length_s, "classes": classes}


def _by_gpus(trace: Trace) -> Iterator[tuple[int, int, Bools]]:
    """(fewest, most GPUs, rows) of each class, at least FEW jobs each."""
    counts, number = np.unique(trace.gpus, return_counts=True)
    first = held = 0
    for k, n in enumerate(number.tolist()):
        held += n
        if (held >= FEW and number[k + 1 :].sum() >= FEW) or k == len(counts) - 1:
            low, high = int(counts[first]), int(counts[k])
            yield low, high, (trace.gpus >= low) & (trace.gpus <= high)
            first, held = k + 1, 0


def _durations(duration_s: Floats) -> dict[str, Any]:
    """Quantiles, fewer for few jobs. The last one is chosen such that the mean duration is exact.

    Durations between the last two are drawn uniformly: up to the longest, long jobs would be too frequent.
    """
    shares = np.linspace(0.0, 1.0, min(QUANTILES, max(2, len(duration_s))))
    values = [float(f"{v:.6g}") for v in np.quantile(duration_s, shares)]
    low = float(f"{values[0] / 2:.6g}")

    def mean_with(last_s: float) -> float:
        """Mean duration (s) for this last quantile (s)."""
        return mean_s(Durations(kind="quantiles", values=[*values[:-1], last_s], low=low))

    wanted_s, least_s, most_s = float(duration_s.mean()), values[-2], values[-1]
    if mean_with(least_s) < wanted_s < mean_with(most_s):
        values[-1] = float(f"{brentq(lambda s: mean_with(s) - wanted_s, least_s, most_s, rtol=1e-7):.6g}")
    return {"kind": "quantiles", "values": values, "low": low}


@dataclass(frozen=True)
class Likeness:
    """One percentile of one quantity: in the trace, and its mean and spread over generated jobs of several seeds."""

    quantity: str
    percentile: int
    trace: float
    drawn: float
    spread: float = math.nan  # standard deviation over seeds


PERCENTILES = (50, 95)
ALIKE_S = 60.0
"""Offset (s) added to waits before taking ratios, so that short waits do not dominate."""


def likest(scenario: Scenario, trace: Trace, names: Sequence[str], draws: int, keep: int) -> list[int]:
    """Numbers of the orders under which jobs wait most like those of the trace, best first.

    The best one has the smallest ratio of its worst percentile of waiting under these policies: rejection, as in
    approximate Bayesian computation (Pritchard et al. 1999), with waits as the summary.
    """
    as_it_is = _without_redraw(scenario)

    def waits(of: Scenario, seed: int) -> Floats:
        """Logarithms of the percentiles of waiting under each policy, (policies x percentiles,)."""
        found = [run(of, policy=make_policy(name), seed=seed, trace=trace).summary() for name in names]
        return np.log([row[f"queueing_p{q}_s"] + ALIKE_S for row in found for q in PERCENTILES])

    own = waits(as_it_is, 0)
    far = [float(np.abs(waits(scenario, seed) - own).max()) for seed in range(draws)]
    return sorted(range(draws), key=lambda seed: (far[seed], seed))[:keep]


def _without_redraw(scenario: Scenario) -> Scenario:
    """The scenario with the jobs of its trace as they came."""
    assert scenario.workload.trace is not None
    bare = scenario.workload.trace.model_copy(update={"redraw": None})
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"trace": bare})})


def moved(scenario: Scenario, trace: Trace, seeds: int) -> float:
    """Share of sessions that begin more than a minute earlier or later than in the trace, mean over seeds."""
    spec = scenario.workload.trace.redraw if scenario.workload.trace is not None else None
    assert spec is not None
    away = [np.abs(shifts(trace, spec, seed)) > ALIKE_S for seed in range(seeds)]
    return float(np.mean([one.mean() for one in away]))


def compared(scenario: Scenario, trace: Trace, policies: Sequence[str], seeds: int) -> list[Likeness]:
    """Durations and waits of the trace and of the scenario's jobs on several seeds, under each policy."""
    as_it_is = _without_redraw(scenario) if redraws(scenario) else scenario
    given = trace if redraws(scenario) else None
    drawn = [drawn_jobs(scenario, seed, given) for seed in range(seeds)]
    durations = np.concatenate([jobs.duration_s for jobs in drawn if jobs is not None])
    found = [
        Likeness("duration", q, *(float(np.percentile(d, q)) for d in (trace.duration_s, durations)))
        for q in PERCENTILES
    ]
    for name in policies:
        policy = make_policy(name)
        one = run(as_it_is, policy=policy, trace=trace).summary()
        many = [run(scenario, policy=policy, seed=seed, trace=given).summary() for seed in range(seeds)]
        for q in PERCENTILES:
            values = [row[f"queueing_p{q}_s"] for row in many]
            spread = float(np.std(values, ddof=1)) if seeds > 1 else math.nan
            found.append(Likeness(f"wait under {name}", q, one[f"queueing_p{q}_s"], float(np.mean(values)), spread))
    return found
