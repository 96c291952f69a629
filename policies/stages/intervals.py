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
_KEPT = 0.6  # weight of the stalls of earlier windows
_STALLED = 0.1  # part of the time between two steps, above which waiting for input sets the pace


def settled_ratio(delay: float) -> float:
    """Ratio r of exchange to computing between two exchanges at which K = 1 / (1 + r) - r / delay is 0."""
    return 0.5 * (math.sqrt(1.0 + 4.0 * delay) - 1.0)


def longest_useful(work_s: Floats, exchange_s: Floats, gamma: Floats, drift: Floats) -> Floats:
    """Real H of least (work + exposed exchange / H) * (1 + drift * (H - 1)), from 1 on; NaN where drift is unknown."""
    power = np.minimum(gamma, 64.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = exchange_s / work_s
        exposed = (
            np.where(ratio > 1.0, ratio * (1.0 + ratio**-power) ** (1.0 / power), (1.0 + ratio**power) ** (1.0 / power))
            - 1.0
        )
        best = np.sqrt(exposed * np.maximum(1.0 - drift, 0.0) / drift)
    best = np.where(drift == 0.0, INTERVAL_MOST, best)
    return np.where(np.isnan(best), best, np.clip(best, 1.0, INTERVAL_MOST))


def input_bound_s(
    observation: Observation, groups: WorkersByJob, memory: Memory, exchange_s: Floats
) -> tuple[Floats, dict[str, Any]]:
    """(time (s) between two steps of each job that waits for input, whatever its interval, or 0; new memory).

    The step, the job's part of an exchange and the stall, a mean over windows because shards come one by one: with
    fewer exchanges the job only waits longer for input.
    """
    workers, jobs, rows = observation.workers, observation.jobs, groups.rows
    stall_s = np.nan_to_num(np.minimum.reduceat(workers.input_stall_s, groups.first[:-1]))
    stall_s = _KEPT * carried(memory, "stall_s", rows, stall_s) + (1.0 - _KEPT) * stall_s
    work_s = np.maximum.reduceat(workers.step_s, groups.first[:-1])
    step_s = work_s + stall_s + np.nan_to_num(exchange_s) / jobs.sync_interval[rows]
    return np.where(stall_s > _STALLED * step_s, step_s, 0.0), {"stall_s": stall_s}


def no_longer_than_fed(
    h: Floats, k: Floats, bound: Floats, work_s: Floats, exchange_s: Floats, input_s: Floats
) -> tuple[Floats, Floats]:
    """(K, bound) of jobs that wait for input: H falls, or at least does not rise, to where that hides the exchange."""
    with np.errstate(invalid="ignore", divide="ignore"):
        fed = np.where(input_s > 0.0, np.maximum(exchange_s / np.maximum(input_s - work_s, 0.0), 1.0), np.inf)
    return np.where((h > fed) & ~np.isnan(k), 1.0, k), np.where(h > fed, bound, np.minimum(bound, fed))


def first_intervals(observation: Observation, plan: Plan, delay: float) -> Plan:
    """`plan` with an interval for each training job that waits for its first start, by its estimates.

    Estimates are for the requested GPUs. Where a job will run is not known, so that of all GPU models the shortest
    interval counts. Jobs without estimates keep theirs, as do those whose stored data is to be read.
    """
    o, jobs, speeds = observation, observation.jobs, observation.speeds
    if not len(speeds) or not len(o.waiting):
        return plan
    known = (speeds.exchange_s >= 0.0) & (speeds.samples_per_s > 0.0)
    known &= (speeds.gpus == jobs.gpus_requested[speeds.job]) & (jobs.attained_gpu_s[speeds.job] == 0.0)
    known &= np.isin(speeds.job, o.waiting)
    if len(o.stores):  # reading stored data may set the pace, which is not known yet
        known &= ~np.isin(speeds.job, o.stores.job) | ~(jobs.input_bytes[speeds.job] > 0.0)
    if not known.any():
        return plan
    before = plan.intervals(o)
    first = np.full(len(jobs), np.iinfo(np.int64).max)
    for k in np.flatnonzero(known).tolist():
        job = int(speeds.job[k])
        work_s = jobs.global_batch[job] / speeds.samples_per_s[k]
        gamma = float(np.nan_to_num(jobs.gamma[job], nan=1.0))
        bound = float(
            longest_useful(*(np.array([v]) for v in (work_s, speeds.exchange_s[k], gamma, jobs.drift[job])))[0]
        )
        h = speeds.exchange_s[k] / (settled_ratio(delay) * work_s)
        if bound >= 1.0:
            first[job] = min(first[job], math.floor(min(max(h, 1.0), bound) + 0.5))
    intervals = np.where(first < np.iinfo(np.int64).max, first, before)
    return plan if np.array_equal(intervals, before) else plan.with_(sync_interval=intervals)


def step_deviation(observation: Observation) -> Floats:
    """Standard deviation of each worker's local step; 0 where it is unknown."""
    return np.nan_to_num(observation.workers.step_cov) * observation.workers.step_s


def carried(memory: Memory, name: str, rows: Ints, else_: Ints | Floats) -> Floats:
    """The remembered value `name` of each job of `rows`, else the given default."""
    value = else_.astype(np.float64)
    if name in memory and len(memory["job"]):
        at = match_sorted(memory["job"], rows)
        value[at >= 0] = memory[name][at[at >= 0]]
    return value


def level_intervals(
    observation: Observation,
    groups: WorkersByJob,
    memory: Memory,
    one: Ints,
    far_s: Floats,
    input_s: Floats,
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
    gamma, work_s = np.nan_to_num(jobs.gamma[rows], nan=1.0), np.maximum.reduceat(step_s, groups.first[:-1])
    near_s, drift, ratio = jobs.near_exchange_s[rows], jobs.drift[rows], jobs.far_ratio[rows]
    every, now = jobs.far_every[rows], jobs.sync_interval[rows]
    near_h = carried(memory, "near_interval", rows, np.where(every > 1, now, one))
    far_h = carried(memory, "far_interval", rows, np.where(every > 1, now * every, one))
    if not longest:
        k = np.where(acts, coefficient(near_h, near_s), np.nan)
        bound = longest_useful(work_s, near_s, gamma, drift)
        near_h, near = next_interval(near_h, np.rint(near_h).astype(np.int64), k, bound, eta)
        k = np.where(acts, coefficient(far_h, far_s), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            left = ratio * drift / (1.0 - np.minimum(drift * (near - 1) / 0.1, 1.0) * (1.0 - ratio))
        bound = longest_useful(work_s, far_s, gamma, left)
        k, bound = no_longer_than_fed(far_h, k, bound, work_s, far_s, input_s)
        far_h, _ = next_interval(far_h, np.rint(far_h).astype(np.int64), k, bound, eta)
        whole = np.maximum(1, np.floor(far_h / near + 1e-9)).astype(np.int64)
    else:
        near, whole = one.copy(), np.ones_like(one)
    std_s = step_deviation(observation) if longest else np.zeros_like(step_s)  # which takes long to reckon with
    near, whole, gain = best_levels(
        groups.first, step_s, std_s, near_s, far_s, gamma, drift, ratio, input_s, near, whole, one, longest
    )
    use = (whole > 1) & (gain > np.where(every > 1, 0.0, hysteresis))
    stay = ~acts & (every > 1)
    interval = np.where(stay, now, np.where(use & acts, near, one))
    state = {"near_interval": near_h, "far_interval": far_h}
    return interval, np.where(stay, every, np.where(use & acts, whole, 1)), state
