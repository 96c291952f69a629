"""S312's alpha and beta: weights of update speed and delay, adapted to recorded changes of the interval.

K = alpha * V - beta * d. Each change from the interval h0 to h1 is expected to make training 1 / (1 + r1) over
1 / (1 + r0) times as fast (P, as a logarithm). The outcome adapts both, within half and twice their defaults: beta
by the throughput gain (T), since a delay hidden behind computing counts less; alpha by the part of it lost to drift
(T - G, with the goodput gain G), since synchronising is then worth more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.policies.contract import Memory
from equipoise.policies.kernels.dataflow import match_sorted
from equipoise.policies.observation import Bools, Floats, Observation
from equipoise.policies.stages.groups import WorkersByJob

_KEPT = 0.8  # of the sums of earlier changes, when one is added
_BOUND = 2.0
_SUMS = ("predicted", "faster", "lost")
_SEEN = ("seen_interval", "seen_throughput", "seen_goodput")


def adapted(
    observation: Observation, groups: WorkersByJob, memory: Memory, noise: float
) -> tuple[Floats, Floats, dict[str, Any]]:
    """(alpha, beta) of each running job over their defaults, and the new memory.

    Least squares through the origin of T and T - G over P, regularised to the defaults by one expected outcome of
    size `noise` (relative). A window counts if only the interval has changed since the window before, and the
    outcome is, up to `noise`, between zero and twice the expected one: else it has another cause.
    """
    workers, jobs, rows = observation.workers, observation.jobs, groups.rows
    now = [
        jobs.sync_interval[rows].astype(np.float64),
        jobs.throughput_samples_per_s[rows],
        jobs.goodput_samples_per_s[rows],
    ]
    at = match_sorted(memory["rows"], rows) if "rows" in memory else np.full(len(rows), -1, dtype=np.int64)
    known = at >= 0
    seen = {name: np.full(len(rows), np.nan if name in _SEEN else 0.0) for name in (*_SEEN, *_SUMS)}
    for name, values in seen.items():
        if known.any():
            values[known] = memory[name][at[known]]
    before = [seen[name] for name in _SEEN]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = jobs.exchange_s[rows] / np.maximum.reduceat(workers.step_s, groups.first[:-1])
        predicted = np.log1p(ratio / before[0]) - np.log1p(ratio / now[0])
        faster, better = np.log(now[1] / before[1]), np.log(now[2] / before[2])
    counts = _as_before(observation, groups, memory) & (jobs.far_every[rows] == 1) & (before[0] != now[0])
    counts &= now[1] != before[1]  # else nothing was measured since
    counts &= ~np.logical_or.reduceat(np.isfinite(workers.push_s), groups.first[:-1])  # rounds are no intervals
    with np.errstate(invalid="ignore"):  # NaN compares as False
        counts &= np.abs(faster - predicted) <= np.abs(predicted) + noise
        counts &= np.abs(faster - better) <= np.abs(predicted) + noise
    for name, value in zip(_SUMS, (predicted, faster, faster - better), strict=True):
        seen[name] = np.where(
            counts, _KEPT * seen[name] + np.nan_to_num(value, posinf=0.0, neginf=0.0) * predicted, seen[name]
        )
    prior = max(noise, 1e-3) ** 2
    beta = (seen["faster"] + prior) / (seen["predicted"] + prior)
    alpha = 1.0 + seen["lost"] / (prior + seen["predicted"])
    state = {"rows": rows, "seen_id": workers.id, "seen_gpu": workers.gpu.copy(), **seen}
    state |= {"seen_deal": workers.samples_per_step.copy(), **dict(zip(_SEEN, now, strict=True))}
    return np.clip(alpha, 1.0 / _BOUND, _BOUND), np.clip(beta, 1.0 / _BOUND, _BOUND), state


def _as_before(observation: Observation, groups: WorkersByJob, memory: Memory) -> Bools:
    """Whether each job has the workers, GPUs and batch split of the last window."""
    workers = observation.workers
    if "seen_id" not in memory or not len(memory["seen_id"]):
        return np.zeros(len(groups.rows), dtype=np.bool_)
    at = match_sorted(memory["seen_id"], workers.id)
    same = (at >= 0) & (memory["seen_gpu"][at] == workers.gpu)
    same &= memory["seen_deal"][at] == workers.samples_per_step
    as_before: Bools = np.logical_and.reduceat(same, groups.first[:-1])
    return as_before
