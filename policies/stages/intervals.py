"""S313 for waiting jobs, and for the intervals of two levels of the network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from equipoise.policies.contract import Memory, Plan
from equipoise.policies.kernels.dataflow import match_sorted
from equipoise.policies.kernels.sync import best_levels, next_interval
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.stages.groups import WorkersByJob

Coefficient = Callable[[Floats, Floats], Floats]
INTERVAL_MOST = 1000.0  # formula mode, where no drift bounds the interval


def settled_ratio(delay: float) -> float:
    """Ratio r of exchange to computing between two exchanges at which K = 1 / (1 + r) - r / delay is 0."""
    return 0.5 * (math.sqrt(1.0 + 4.0 * delay) - 1.0)


def first_intervals(observation: Observation, plan: Plan, delay: float) -> Plan:
    """`plan` with an interval for each training job that waits for its first start, by its estimates.

    Estimates are for the requested GPUs on the fastest GPU model; jobs without estimates keep their interval.
    """
    o, jobs, speeds = observation, observation.jobs, observation.speeds
    if not len(speeds) or not len(o.waiting):
        return plan
    known = (speeds.exchange_s >= 0.0) & (speeds.samples_per_s > 0.0)
    known &= (speeds.gpus == jobs.gpus_requested[speeds.job]) & (jobs.attained_gpu_s[speeds.job] == 0.0)
    known &= np.isin(speeds.job, o.waiting)
    if not known.any():
        return plan
    intervals = plan.intervals(o).copy()
    before = intervals.copy()
    for k in np.flatnonzero(known)[np.argsort(speeds.samples_per_s[known], kind="stable")].tolist():
        job = int(speeds.job[k])
        work_s = jobs.global_batch[job] / speeds.samples_per_s[k]
        bound = 1.0 + 0.1 / jobs.drift[job] if jobs.drift[job] > 0.0 else INTERVAL_MOST
        h = speeds.exchange_s[k] / (settled_ratio(delay) * work_s)
        intervals[job] = math.floor(min(max(h, 1.0), bound, INTERVAL_MOST) + 0.5)
    return plan if np.array_equal(intervals, before) else plan.with_(sync_interval=intervals)


def step_deviation(observation: Observation) -> Floats:
    """Standard deviation of each worker's local step; 0 where it is unknown."""
    return np.nan_to_num(observation.workers.step_cov) * observation.workers.step_s


def carried(memory: Memory, name: str, rows: Ints, else_: Ints) -> Floats:
    """The remembered value `name` of each job of `rows`, else the given default."""
    value = else_.astype(np.float64)
    if name in memory:
        at = match_sorted(memory["job"], rows)
        value[at >= 0] = memory[name][at[at >= 0]]
    return value


def level_intervals(
    observation: Observation,
    groups: WorkersByJob,
    memory: Memory,
    one: Ints,
    far_s: Floats,
    acts: Bools,
    coefficient: Coefficient,
    eta: float,
    longest: int,
    hysteresis: float,
) -> tuple[Ints, Ints, dict[str, Any]]:
    """(interval, exchanges per exchange of all workers) of each running job, and the new memory.

    Both follow their K as the one interval does, near workers' by `near_exchange_s`, all workers' by `far_s`;
    `coefficient` computes K from intervals and exchange times, and the drift bounds both together.
    longest > 0: those of least cost instead. Two levels are taken where their predicted time per useful step is
    shorter than with the interval `one` by more than `hysteresis`.
    """
    jobs, rows, step_s = observation.jobs, groups.rows, observation.workers.step_s.copy()
    near_s, drift, ratio = jobs.near_exchange_s[rows], jobs.drift[rows], jobs.far_ratio[rows]
    every, now = jobs.far_every[rows], jobs.sync_interval[rows]
    near_h = carried(memory, "near_interval", rows, np.where(every > 1, now, one))
    far_h = carried(memory, "far_interval", rows, np.where(every > 1, now * every, one))
    if not longest:
        k = np.where(acts, coefficient(near_h, near_s), np.nan)
        near_h, near = next_interval(near_h, np.rint(near_h).astype(np.int64), k, drift, eta, INTERVAL_MOST)
        k = np.where(acts, coefficient(far_h, far_s), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            left = ratio * drift / (1.0 - np.minimum(drift * (near - 1) / 0.1, 1.0) * (1.0 - ratio))
        far_h, _ = next_interval(far_h, np.rint(far_h).astype(np.int64), k, left, eta, INTERVAL_MOST)
        whole = np.maximum(1, np.floor(far_h / near + 1e-9)).astype(np.int64)
    else:
        near, whole = one.copy(), np.ones_like(one)
    std_s = step_deviation(observation) if longest else np.zeros_like(step_s)  # which takes long to reckon with
    near, whole, gain = best_levels(
        groups.first,
        step_s,
        std_s,
        near_s,
        far_s,
        np.nan_to_num(jobs.gamma[rows], nan=1.0),
        drift,
        ratio,
        near,
        whole,
        one,
        longest,
    )
    use = (whole > 1) & (gain > np.where(every > 1, 0.0, hysteresis))
    stay = ~acts & (every > 1)
    interval = np.where(stay, now, np.where(use & acts, near, one))
    state = {"near_interval": near_h, "far_interval": far_h}
    return interval, np.where(stay, every, np.where(use & acts, whole, 1)), state
