"""S313 before there is anything to measure: the interval at which a waiting job's estimates would settle."""

from __future__ import annotations

import math

import numpy as np

from equipoise.policies.contract import Plan
from equipoise.policies.observation import Observation

INTERVAL_MOST = 1000.0  # formula mode, where no drift bounds the interval


def settled_ratio(delay: float) -> float:
    """Exchange over the computing between two exchanges at which K = 1 / (1 + r) - r / delay is 0."""
    return 0.5 * (math.sqrt(1.0 + 4.0 * delay) - 1.0)


def first_intervals(observation: Observation, plan: Plan, delay: float) -> Plan:
    """`plan` with an interval for each training job that waits for its first start, by its estimates.

    Those of the GPUs it asks for, on the GPU model where it is quickest; jobs without estimates keep theirs.
    """
    o, jobs, speeds = observation, observation.jobs, observation.speeds
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
