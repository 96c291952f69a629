"""S313 for asynchronous workers: each has its own interval between two pushes of its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.policies.contract import Memory, Plan
from equipoise.policies.kernels.dataflow import match_sorted
from equipoise.policies.kernels.sync import best_interval, next_interval, sync_coefficient
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.stages.groups import WorkersByJob
from equipoise.policies.stages.intervals import longest_useful, step_deviation

_ROUND = 4
"""Fewest pushes of each worker between two instants at which all have pushed, because its last push is early."""


def do_not_wait(observation: Observation, groups: WorkersByJob) -> Bools:
    """Jobs (rows of `groups`) with asynchronous workers, once a push was measured."""
    alone: Bools = np.logical_or.reduceat(np.isfinite(observation.workers.push_s), groups.first[:-1])
    return alone


def push_intervals(
    observation: Observation,
    groups: WorkersByJob,
    plan: Plan,
    memory: Memory,
    acts: Bools,
    alpha: Floats,
    beta: Floats,
    eta: float,
    longest: int,
    hysteresis: float,
    alike: bool,
) -> tuple[Ints, Ints, dict[str, Any]]:
    """(local steps between the pushes of each worker, steps of each job's rounds, new memory).

    Each worker follows its own K = alpha * V_i/V_ref - beta * d_i, with its own push and step times; `alike`: all
    workers of a job follow the least. longest > 0: the interval of least (step + push / h) * (1 + drift * (h - 1)).
    alpha, beta and `acts` (whether an interval may change) are by job.
    """
    workers, jobs = observation.workers, observation.jobs
    push_s, step_s, planned = workers.push_s.copy(), workers.step_s.copy(), plan.pushes(observation)
    each, counts = np.arange(len(workers) + 1), plan.weights(observation) > 0.0
    h = planned.astype(np.float64)
    if "push_id" in memory and len(memory["push_id"]):
        at = match_sorted(memory["push_id"], workers.id)
        kept = np.where(at >= 0, memory["push_h"][at], h)
        h = np.where(np.abs(kept - planned) < 1.0, kept, h)  # else it was changed from outside
    drift = jobs.drift[workers.job]
    spread = groups.spread(acts)
    if longest:
        new, gain = best_interval(
            each,
            step_s,
            step_deviation(observation),
            push_s,
            np.ones(len(workers)),
            np.where(spread, drift, np.nan),
            np.zeros(len(workers)),
            planned.copy(),
            longest,
        )
        if alike:
            new = groups.spread(np.maximum.reduceat(new, groups.first[:-1]))
        new = np.where(gain > hysteresis, new, planned)
        h = new.astype(np.float64)
    else:
        k = sync_coefficient(each, h, push_s, step_s, counts, groups.spread(alpha), groups.spread(beta))
        if alike:
            least = np.fmin.reduceat(k, groups.first[:-1])
            k = np.where(np.isnan(k), k, groups.spread(least))
        bound = longest_useful(step_s, push_s, np.ones(len(h)), drift)
        if alike:
            bound = groups.spread(np.fmax.reduceat(bound, groups.first[:-1]))
        h, new = next_interval(h, planned.copy(), np.where(spread, k, np.nan), bound, eta)
    most, now = np.maximum.reduceat(new, groups.first[:-1]), plan.intervals(observation)[groups.rows]
    rounds = np.where(most > 1, np.maximum(now, _ROUND * most), now)
    return new, rounds, {"push_id": workers.id, "push_h": h}
