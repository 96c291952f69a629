"""S321: the virtual GPUs whose shares S3 sets: holders of shares, total shares, and speed by kind of job.

S323: on MIG GPUs shares are slices, and another slice must be worth its restart.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.kernels.placement import WHOLE
from equipoise.policies.kernels.slices import EIGHTHS, SEVENTHS, nearest_slices, slices_of
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.physics import speed_at
from equipoise.policies.stages.groups import WorkersByJob

_SAME = 0.005  # of a GPU: shares that are that near are the same slice


def virtual_gpus(observation: Observation, groups: WorkersByJob) -> tuple[Ints, Ints]:
    """Worker rows by GPU, on GPUs shared by single-GPU workers, and the offset of each GPU."""
    workers = observation.workers
    single = groups.spread(groups.sound & (observation.jobs.gpus_per_worker[groups.rows] == 1))
    size = len(observation.gpus)
    asked = observation.jobs.gpu_share_requested[workers.job]
    part = np.minimum(workers.gpu_share, asked) < WHOLE  # a worker with the whole GPU may have to release a part
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
    """Total share for the workers of each virtual GPU: all of it that no other job holds.

    While a job waits for a part of a GPU, only their requested shares, or the present ones if less.
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
    """Estimated samples/s of each worker's kind on a whole GPU of that model.

    Without an estimate: the highest speed of a worker of its job on a whole GPU, by the curve of its speed on a
    share.
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
    """Time of a step with all waits and its part of the exchange, by worker; NaN where unknown."""
    jobs = observation.jobs
    with np.errstate(invalid="ignore", divide="ignore"):
        period_s: Floats = (jobs.global_batch / jobs.throughput_samples_per_s)[observation.workers.job]
    return period_s


def capability(observation: Observation, share: Floats) -> Floats:
    """E / P of each worker, (workers,): marginal throughput per share, over the throughput of its kind on a whole GPU.

    E is the slope of its throughput b / (L + X) over the share f, L = whole step / speed(f) the step and X what the
    exchange adds to it: b / (L + X)^2 * L * speed'(f) / speed(f), with `physics.speed_at`. P is that at f = 1:
    b / (whole step + X). So E / P is 1 for a worker whose speed is proportional to its share, and falls as the
    exchange, or the curve, makes more share worth less. Waits at barriers and for input are lambda and delta.
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


def slice_gpus(
    observation: Observation,
    rows: Ints,
    first: Ints,
    share: Floats,
    room: Floats,
    proposal: Floats,
    new: Floats,
    changed: Bools,
) -> tuple[Floats, Bools]:
    """Shares and whether each GPU changes, with slices on MIG GPUs; unchanged on all others.

    rows: workers by GPU k from first[k] on; room (GPUs,): their total share; proposal, new (rows,): the planned
    shares, and these in quanta.
    """
    gpus = observation.gpus
    mig = gpus.mig[observation.workers.gpu[rows[first[:-1]]]]
    if not mig.any():
        return new, changed
    new, changed = new.copy(), changed.copy()
    for k in np.flatnonzero(mig & changed).tolist():
        part = slice(int(first[k]), int(first[k + 1]))
        here = rows[part]
        profile = nearest_slices(
            proposal[part], _least_memory(observation, here), *_room(share[here], room[k]), SEVENTHS, EIGHTHS
        )
        cut = SEVENTHS[profile] / 7.0
        gives_back = share[here].sum() > room[k] + _SAME  # somebody waits for it
        changed[k] = bool((profile >= 0).all()) and (gives_back or _pays(observation, here, share[here], cut))
        new[part] = cut if changed[k] else share[here]
    return new, changed


def _room(share: Floats, room: float) -> tuple[int, int]:
    """(compute, memory) slices of one GPU available to its workers, which have `share` of it now.

    A lower bound of memory: what they hold, or what is left if others hold as many memory as compute slices.
    """
    compute = int(7.0 * room + 0.05)
    if compute == 7:
        return 7, 8
    held_compute, held_memory = slices_of(share)
    return compute, max(held_memory if compute >= held_compute else 0, 4 if compute == 3 else compute)


def _least_memory(observation: Observation, rows: Ints) -> Floats:
    """Part of its GPU's memory that each worker uses: the requested memory less its free part."""
    workers, jobs = observation.workers, observation.jobs
    asked, whole = (jobs.gpu_share_requested[workers.job[rows]], observation.gpus.memory_bytes[workers.gpu[rows]])
    return np.nan_to_num(np.maximum(asked - workers.memory_free_bytes[rows] / whole, 0.0), nan=0.0)


def _pays(observation: Observation, rows: Ints, share: Floats, new: Floats) -> bool:
    """Whether the time saved on the jobs' remaining work exceeds the restarts of those that change.

    A step scales with the speed on the share; waits for others or for input absorb a longer step, and a shorter step
    then gains nothing.
    """
    workers, jobs = observation.workers, observation.jobs
    job, step_s = workers.job[rows], workers.step_s[rows]
    kappa = workers.share_kappa[rows]
    waits_s = np.nan_to_num(workers.wait_s[rows]) + np.nan_to_num(workers.input_stall_s[rows])
    other_s = step_s * (speeds_at(share, kappa) / speeds_at(new, kappa) - 1.0)
    change_s = np.where(other_s > 0.0, np.maximum(other_s - waits_s, 0.0), np.minimum(other_s + waits_s, 0.0))
    left_s = jobs.service_s[job]
    saved_s = -(left_s * change_s / whole_period_s(observation)[rows]).sum()
    moved = np.abs(new - share) >= _SAME
    return bool(moved.any() and saved_s > np.nan_to_num(jobs.restart_s[job[moved]]).sum())
