"""Jitted kernels of S4: how a training job's step time follows its workers, and what a resize gains.

The step follows the model of the simulator: local work c(n) for n workers, one exchange X(n) every H steps,
hidden behind the last step's work by overlap with exponent gamma (Pollux, Qiao et al. 2021):

    step(n) = ((H - 1) * c(n) + (c(n)^gamma + X(n)^gamma)^(1/gamma)) / H

c comes from the table of estimated throughputs, corrected by what is measured now; X scales with the ring's
(n - 1) / n.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.gangs import Grants, demand_of, granted, no_grants, trimmed, with_space
from policies.jit import jit
from policies.observation import Floats, Ints
from policies.placement import WEIGHTED, Room, give, place, take


class Scaling(NamedTuple):
    """What step times follow from: columns of the jobs table, and the table of throughputs by job."""

    global_batch: Ints
    per_worker: Ints
    workers_min: Ints
    workers_max: Ints
    sync_interval: Ints
    work_s: Floats
    exchange_s: Floats
    exchange_alone_s: Floats
    gamma: Floats
    service_s: Floats
    restart_s: Floats
    table_job: Ints  # ascending
    table_model: Ints
    table_gpus: Ints
    table_samples_per_s: Floats
    model_speed: Floats  # relative, 0..1; NaN unknown


ScalingColumns = tuple[
    Ints, Ints, Ints, Ints, Ints, Floats, Floats, Floats, Floats, Floats, Floats,
    Ints, Ints, Ints, Floats, Floats,
]  # fmt: skip


@jit
def listed_work_s(j: int, gpus: int, model: int, s: Scaling) -> float:
    """Local work of a step (s) by the table; between listed counts linear in 1/GPUs, outside proportional.

    NaN where the table has nothing for this job and GPU model.
    """
    below, above = -1, -1
    for k in range(np.searchsorted(s.table_job, j), s.table_job.size):
        if s.table_job[k] != j:
            break
        if s.table_model[k] != model or not s.table_samples_per_s[k] > 0.0:
            continue
        if s.table_gpus[k] <= gpus and (below < 0 or s.table_gpus[k] > s.table_gpus[below]):
            below = k
        if s.table_gpus[k] >= gpus and (above < 0 or s.table_gpus[k] < s.table_gpus[above]):
            above = k
    if below < 0 and above < 0:
        return np.nan
    if below < 0 or above < 0:
        k = max(below, above)
        return s.global_batch[j] / s.table_samples_per_s[k] * s.table_gpus[k] / gpus
    low_s = s.global_batch[j] / s.table_samples_per_s[below]
    high_s = s.global_batch[j] / s.table_samples_per_s[above]
    if s.table_gpus[below] == s.table_gpus[above]:
        return low_s
    span = 1.0 / s.table_gpus[below] - 1.0 / s.table_gpus[above]
    return high_s + (low_s - high_s) * (1.0 / gpus - 1.0 / s.table_gpus[above]) / span


@jit
def _work_s(j: int, workers: int, model: int, now: int, now_model: int, s: Scaling) -> float:
    """Local work (s) with so many workers on a GPU model, given what is measured with `now` workers now.

    Without table and measurement: relative to one worker on the fastest model.
    """
    per = s.per_worker[j]
    listed = listed_work_s(j, workers * per, model, s)
    measured = s.work_s[j] if now > 0 else np.nan
    speed, now_speed = s.model_speed[model], s.model_speed[now_model]
    if np.isnan(listed):
        ratio = now_speed / speed if speed > 0.0 and now_speed > 0.0 else 1.0
        if measured > 0.0:
            return measured * now / workers * ratio
        return 1.0 / (workers * (speed if speed > 0.0 else 1.0))
    if measured > 0.0:
        here = listed_work_s(j, now * per, now_model, s)
        if here > 0.0:
            return listed * measured / here
    return listed


@jit
def _exchange_s(j: int, workers: int, now: int, s: Scaling) -> float:
    if workers <= 1:
        return 0.0
    if now > 1 and s.exchange_s[j] > 0.0:
        return s.exchange_s[j] * (1.0 - 1.0 / workers) / (1.0 - 1.0 / now)
    return s.exchange_alone_s[j] if s.exchange_alone_s[j] > 0.0 else 0.0


@jit
def step_s(j: int, workers: int, model: int, now: int, now_model: int, s: Scaling) -> float:
    """Estimated time (s) of a step of job j, exchange included."""
    work_s = _work_s(j, workers, model, now, now_model, s)
    exchange_s = _exchange_s(j, workers, now, s)
    long, short = max(work_s, exchange_s), min(work_s, exchange_s)
    gamma = s.gamma[j] if s.gamma[j] >= 1.0 else 1.0
    both_s = long * (1.0 + (short / long) ** gamma) ** (1.0 / gamma) if long > 0.0 else 0.0
    h = max(s.sync_interval[j], 1)
    return ((h - 1) * work_s + both_s) / h
