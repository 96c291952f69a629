"""S321: the virtual GPUs that S3 shares out: who holds a part of a GPU, how much there is, what a kind can do."""

from __future__ import annotations

import numpy as np

from equipoise.policies.kernels.placement import WHOLE
from equipoise.policies.observation import Floats, Ints, Observation
from equipoise.policies.physics import speed_at
from equipoise.policies.stages.groups import WorkersByJob


def virtual_gpus(observation: Observation, groups: WorkersByJob) -> tuple[Ints, Ints]:
    """Worker rows, by GPU, on GPUs of which single-GPU workers hold or asked for a part, and where each's begin."""
    workers = observation.workers
    single = groups.spread(groups.sound & (observation.jobs.gpus_per_worker[groups.rows] == 1))
    size = len(observation.gpus)
    asked = observation.jobs.gpu_share_requested[workers.job]
    part = np.minimum(workers.gpu_share, asked) < WHOLE  # who was given all of it may have to give some back
    if not part.any():
        return np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    shared = np.bincount(workers.gpu, weights=part, minlength=size) > 0
    shared &= observation.gpus.share_quantum < WHOLE  # where parts are equal by nature, there is no choice
    alone = np.bincount(workers.gpu, weights=~single, minlength=size) == 0
    rows = np.flatnonzero((shared & alone)[workers.gpu])
    rows = rows[np.argsort(workers.gpu[rows], kind="stable")]
    start = np.flatnonzero(np.diff(workers.gpu[rows], prepend=-1))
    return rows, np.append(start, len(rows)).astype(np.int64)


def gpu_room(observation: Observation, share: Floats, rows: Ints, first: Ints) -> Floats:
    """What the workers of each virtual GPU may hold together: all of it that nobody else holds.

    While a job waits that asks for a part of a GPU, only what they ask for, or hold if that is less.
    """
    o, workers = observation, observation.workers
    if not len(rows):
        return np.empty(0)
    held = np.add.reduceat(share[rows], first[:-1])
    if (o.jobs.gpu_share_requested[o.waiting] < WHOLE).any():
        asked = o.jobs.gpu_share_requested[workers.job[rows]]
        return np.minimum(held, np.add.reduceat(asked, first[:-1]))
    room: Floats = np.minimum(held + o.gpus.share_free[workers.gpu[rows[first[:-1]]]], 1.0)
    return room


def whole_rates(observation: Observation) -> Floats:
    """Samples/s that each worker's kind trains on a whole GPU of that model, by estimate.

    Where there is none: the most that a worker of its job would train on all of its GPU, by the curve of its
    speed on a share.
    """
    o, workers, speeds = observation, observation.workers, observation.speeds
    with np.errstate(divide="ignore", invalid="ignore"):
        own = workers.capacity_samples_per_s / speeds_at(workers.gpu_share, workers.share_kappa)
    best = np.zeros(len(o.jobs))
    np.maximum.at(best, workers.job, np.nan_to_num(own))
    rate: Floats = np.where(best[workers.job] > 0.0, best[workers.job], np.nan)
    for k in np.flatnonzero(speeds.gpus == o.jobs.gpus_held[speeds.job]).tolist():
        mine = workers.job == speeds.job[k]
        mine &= o.gpus.model[workers.gpu] == speeds.gpu_model[k]
        rate[mine] = speeds.samples_per_s[k] / o.jobs.gpus_held[speeds.job[k]]
    return rate


def speeds_at(share: Floats, kappa: Floats) -> Floats:
    """`physics.speed_at` of each worker."""
    return np.array([speed_at(f, k) for f, k in zip(share, kappa, strict=True)])


def whole_period_s(observation: Observation) -> Floats:
    """Time of a step with all its waits and its part of the exchange, by worker; NaN where it is not known."""
    jobs = observation.jobs
    with np.errstate(invalid="ignore", divide="ignore"):
        period_s: Floats = (jobs.global_batch / jobs.throughput_samples_per_s)[observation.workers.job]
    return period_s


def capability(observation: Observation, share: Floats) -> Floats:
    """E / P of each worker, (workers,): what more share would add, over what its kind trains on a whole GPU.

    E is the slope of its throughput b / (L + X) over the share f, L = whole step / speed(f) the step and X what the
    exchange adds to it: b / (L + X)^2 * L * speed'(f) / speed(f), with `physics.speed_at`. P is that at f = 1:
    b / (whole step + X). So E / P is 1 for who trains in proportion to its share, and falls as the exchange, or
    what the curve leaves, makes more share worth less. Waits at barriers and for input are lambda and delta.
    """
    o, workers = observation, observation.workers
    samples, step_s, kappa = workers.samples_per_step, workers.step_s, workers.share_kappa
    waits_s = np.nan_to_num(workers.wait_s) + np.nan_to_num(workers.input_stall_s)
    with np.errstate(invalid="ignore", divide="ignore"):
        exchange_s = np.fmax(whole_period_s(o) - step_s - waits_s, 0.0)
        steepness = np.where(kappa < np.inf, kappa / (share * (share + kappa)), 1.0 / share)
        slope = samples / (step_s + exchange_s) ** 2 * step_s * steepness
        ratio: Floats = slope / (samples / (samples / whole_rates(o) + exchange_s))
    return ratio
