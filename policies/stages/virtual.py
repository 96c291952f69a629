"""S321: the virtual GPUs that S3 shares out: who holds a part of a GPU, how much there is, what a kind can do."""

from __future__ import annotations

import numpy as np

from equipoise.policies.kernels.placement import WHOLE
from equipoise.policies.observation import Floats, Ints, Observation
from equipoise.policies.physics import speed_at
from equipoise.policies.stages.groups import Groups


def virtual_gpus(observation: Observation, groups: Groups) -> tuple[Ints, Ints]:
    """Worker rows, by GPU, on GPUs of which single-GPU workers hold a part, and where each GPU's begin."""
    workers = observation.workers
    single = groups.spread(groups.sound & (observation.jobs.gpus_per_worker[groups.rows] == 1))
    size = len(observation.gpus)
    shared = np.bincount(workers.gpu, weights=workers.gpu_share < WHOLE, minlength=size) > 0
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
    curves = zip(workers.gpu_share, workers.share_kappa, strict=True)
    at_share = np.array([speed_at(f, k) for f, k in curves])
    with np.errstate(divide="ignore", invalid="ignore"):
        own = workers.capacity_samples_per_s / at_share
    best = np.zeros(len(o.jobs))
    np.maximum.at(best, workers.job, np.nan_to_num(own))
    rate: Floats = np.where(best[workers.job] > 0.0, best[workers.job], np.nan)
    for k in np.flatnonzero(speeds.gpus == o.jobs.gpus_held[speeds.job]).tolist():
        mine = workers.job == speeds.job[k]
        mine &= o.gpus.model[workers.gpu] == speeds.gpu_model[k]
        rate[mine] = speeds.samples_per_s[k] / o.jobs.gpus_held[speeds.job[k]]
    return rate
