"""Jitted kernels of S4: a training job's step time as a function of its workers, and the gain of a resize.

The step follows the model of the simulator: local work c(n) for n workers, one exchange X(n) every H steps,
hidden behind the last step's work (`policies.physics.overlapped_s`):

    step(n) = ((H - 1) * c(n) + overlapped(c(n), X(n))) / H

c and X come from the table of estimates, corrected by present measurements; without estimates X scales with the
ring's (n - 1) / n.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.policies.kernels.arrays import position
from equipoise.policies.kernels.gangs import GangDemand, GrantColumns, Grants, WorkingColumns, granted, room_of, total
from equipoise.policies.kernels.jit import ZERO, jit_in_place
from equipoise.policies.kernels.placement import NOTHING, ONE, WEIGHTED, Room, give, place
from equipoise.policies.observation import Floats, Ints
from equipoise.policies.physics import overlapped_s


class SpeedTable(NamedTuple):
    """Estimates by job, ascending, GPU model and number of GPUs, and the relative speed of each GPU model."""

    job: Ints
    model: Ints
    gpus: Ints
    samples_per_s: Floats
    exchange_s: Floats  # of one exchange that nothing else slows; NaN unknown
    model_speed: Floats  # 0..1; NaN unknown


class Scaling(NamedTuple):
    """Columns of the jobs table that determine step times."""

    global_batch: Ints
    micro_batch: Ints
    per_worker: Ints
    workers_min: Ints
    workers_max: Ints
    sync_interval: Ints
    work_s: Floats
    exchange_s: Floats
    exchange_alone_s: Floats
    gamma: Floats
    service_s: Floats


TableColumns = tuple[Ints, Ints, Ints, Floats, Floats, Floats]
ScalingColumns = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Floats, Floats, Floats, Floats, Floats]


class JobNow(NamedTuple):
    """One training job as it runs now."""

    row: int
    batch: int
    per: int  # GPUs per worker
    fewest: int
    most: int  # workers that get at least a micro-batch, and may be
    interval: int
    work_s: float  # measured local step; NaN unknown
    exchange_s: float  # measured; NaN unknown
    alone_s: float  # exchange without contention; NaN unknown
    gamma: float
    service_s: float
    workers: int  # now; 0: it does not run
    model: int  # GPU model it runs, or would run, on


@jit_in_place
def job_of(j: int, workers: int, model: int, columns: ScalingColumns) -> JobNow:
    """Row j of the jobs table, running with `workers` on a GPU model (the slowest of several)."""
    s = Scaling(*columns)
    useful = max(s.global_batch[j] // max(s.micro_batch[j], 1), 1)
    gamma = s.gamma[j] if s.gamma[j] >= 1.0 else 1.0
    work_s = s.work_s[j] if workers > 0 and s.work_s[j] > 0.0 else np.nan
    return JobNow(
        j,
        s.global_batch[j],
        max(s.per_worker[j], 1),
        s.workers_min[j],
        min(s.workers_max[j], useful),
        max(s.sync_interval[j], 1),
        work_s,
        s.exchange_s[j],
        s.exchange_alone_s[j],
        gamma,
        s.service_s[j],
        workers,
        model,
    )


@jit_in_place
def _around(known: Floats, zero: bool, j: int, gpus: int, model: int, t: SpeedTable) -> tuple[int, int]:
    """Rows of the table that list this job with the next fewer and the next more GPUs (or as many); -1: none.

    Only rows with `known` above 0 count, or also 0 where allowed.
    """
    below, above = -1, -1
    for k in range(position(t.job, j), t.job.size):
        if t.job[k] != j:
            break
        if t.model[k] != model or not (known[k] > 0.0 or (zero and known[k] == 0.0)):
            continue
        if t.gpus[k] <= gpus and (below < 0 or t.gpus[k] > t.gpus[below]):
            below = k
        if t.gpus[k] >= gpus and (above < 0 or t.gpus[k] < t.gpus[above]):
            above = k
    return below, above


@jit_in_place
def listed_work_s(j: int, batch: int, gpus: int, model: int, t: SpeedTable) -> float:
    """Local work of a step (s) by the table; between listed counts linear in 1/GPUs, outside proportional.

    NaN where the table has no row for this job and GPU model.
    """
    below, above = _around(t.samples_per_s, False, j, gpus, model, t)
    if below < 0 and above < 0:
        return np.nan
    if below < 0 or above < 0:
        k = max(below, above)
        return float(batch / t.samples_per_s[k] * t.gpus[k] / gpus)
    low_s, high_s = batch / t.samples_per_s[below], batch / t.samples_per_s[above]
    if t.gpus[below] == t.gpus[above]:
        return float(low_s)
    span = 1.0 / t.gpus[below] - 1.0 / t.gpus[above]
    return float(high_s + (low_s - high_s) * (1.0 / gpus - 1.0 / t.gpus[above]) / span)


@jit_in_place
def _work_s(job: JobNow, workers: int, model: int, t: SpeedTable) -> float:
    """Local work (s) with this many workers on a GPU model.

    Without table and measurement: relative to one worker on the fastest model.
    """
    if job.work_s > 0.0 and workers == job.workers and model == job.model:
        return job.work_s
    listed = listed_work_s(job.row, job.batch, workers * job.per, model, t)
    if np.isnan(listed):
        speed, now_speed = t.model_speed[model], t.model_speed[job.model]
        if job.work_s > 0.0:
            ratio = now_speed / speed if speed > 0.0 and now_speed > 0.0 else 1.0
            return float(job.work_s * job.workers / workers * ratio)
        return float(1.0 / (workers * (speed if speed > 0.0 else 1.0)))
    if job.work_s > 0.0:
        here = listed_work_s(job.row, job.batch, job.workers * job.per, job.model, t)
        if here > 0.0:
            return listed * job.work_s / here
    return listed


@jit_in_place
def listed_exchange_s(j: int, gpus: int, model: int, t: SpeedTable) -> float:
    """Exchange (s) by the table; between listed counts linear in GPUs, outside that of the nearest.

    NaN where the table has no row for this job and GPU model.
    """
    below, above = _around(t.exchange_s, True, j, gpus, model, t)
    if below < 0 and above < 0:
        return np.nan
    if below < 0 or above < 0 or t.gpus[below] == t.gpus[above]:
        return float(t.exchange_s[max(below, above)] if below < 0 or above < 0 else t.exchange_s[below])
    part = (gpus - t.gpus[below]) / (t.gpus[above] - t.gpus[below])
    return float(t.exchange_s[below] + part * (t.exchange_s[above] - t.exchange_s[below]))


@jit_in_place
def _exchange_s(job: JobNow, workers: int, model: int, t: SpeedTable) -> float:
    """Exchange (s); 0 while the work is only known in relative terms.

    The estimate, times measured over estimated at the present workers; by the ring without estimates.
    """
    at = position(t.job, job.row)
    listed = at < t.job.size and t.job[at] == job.row
    if workers <= 1 or not (listed or job.work_s > 0.0):
        return 0.0
    there_s = listed_exchange_s(job.row, workers * job.per, model, t)
    if job.workers > 1 and job.exchange_s > 0.0:
        here_s = listed_exchange_s(job.row, job.workers * job.per, job.model, t)
        if there_s > 0.0 and here_s > 0.0:
            return there_s * job.exchange_s / here_s
        return job.exchange_s * (1.0 - 1.0 / workers) / (1.0 - 1.0 / job.workers)
    if there_s >= 0.0:
        return there_s
    return job.alone_s if job.alone_s > 0.0 else 0.0


@jit_in_place
def step_s(job: JobNow, workers: int, model: int, t: SpeedTable) -> float:
    """Estimated time (s) of a step with `workers` on a GPU model.

    Only ratios are meaningful without an estimate or a measurement of the job.
    """
    work_s, exchange_s = _work_s(job, workers, model, t), _exchange_s(job, workers, model, t)
    return ((job.interval - 1) * work_s + overlapped_s(work_s, exchange_s, job.gamma)) / job.interval


@jit_in_place
def speedups_of(
    rows: Ints, workers: Ints, now: Ints, model: Ints, scaling: ScalingColumns, table: TableColumns, speedup: Floats
) -> None:
    """Write the speed-up of each job (rows) with `workers` over one worker; 0 without any.

    `now` is the size at which the job was measured.
    """
    t = SpeedTable(*table)
    for i in range(rows.size):
        job = job_of(rows[i], now[i], model[i], scaling)
        many_s = step_s(job, workers[i], model[i], t) if workers[i] > 0 else 0.0
        speedup[i] = step_s(job, ONE, model[i], t) / many_s if many_s > 0.0 else 0.0


@jit_in_place
def times_of(
    rows: Ints,
    now: Ints,
    now_model: Ints,
    index: Ints,
    workers: Ints,
    model: Ints,
    scaling: ScalingColumns,
    table: TableColumns,
    result_s: Floats,
) -> None:
    """Write the step time (s) of job rows[index[k]] with workers[k] on model[k], for every k."""
    t = SpeedTable(*table)
    for k in range(index.size):
        job = job_of(rows[index[k]], now[index[k]], now_model[index[k]], scaling)
        result_s[k] = step_s(job, workers[k], model[k], t)


class ElasticArrays(NamedTuple):
    """Training jobs that can change size, with the GPUs of each in compressed rows, the last to give up first."""

    row: Ints
    offset: Ints
    gpu: Ints
    model: Ints  # GPU model it runs on; the slowest where there are several
    cost_s: Floats  # of a resize; 0 for a job that starts now
    requested: Ints  # workers


ElasticColumns = tuple[Ints, Ints, Ints, Ints, Floats, Ints]


@jit_in_place
def _time_s(job: JobNow, requested: int, horizon_s: float, t: SpeedTable) -> float:
    """Time (s) left at the present size, at most the horizon; `service_s` is that at the requested size."""
    here_s, there_s = step_s(job, job.workers, job.model, t), step_s(job, requested, job.model, t)
    left_s = job.service_s * (here_s / there_s if there_s > 0.0 else 1.0)
    return horizon_s if np.isnan(left_s) else min(left_s, horizon_s)


@jit_in_place
def _best_size(
    job: JobNow, requested: int, cost_s: float, free: Ints, horizon_s: float, margin: float, t: SpeedTable
) -> tuple[int, int, float]:
    """(workers, GPU model, seconds gained) of the best larger size, or move to another model; gain 0: stay.

    Sizes tried: one more worker, two, four, ..., and all that are free. The gain is the time saved on the remaining
    work (at most `horizon_s`), less the cost of the resize; a step must shorten by `margin` at least.
    """
    now_s, time_s = step_s(job, job.workers, job.model, t), _time_s(job, requested, horizon_s, t)
    best, best_model, gain = job.workers, job.model, 0.0
    for m in range(free.size):
        here = m == job.model
        size, stride = (job.workers + 1 if here else job.fewest), 1
        most = min(job.most, free[m] // job.per + (job.workers if here else 0))
        while size <= most:
            then_s = step_s(job, size, m, t)
            saved_s = time_s * (1.0 - then_s / now_s) - cost_s
            if saved_s > gain and then_s <= now_s * (1.0 - margin):
                best, best_model, gain = size, m, saved_s
            if size == most:
                break
            size = min(size + stride, most)
            stride *= 2
    return best, best_model, gain


@jit_in_place
def _only(c: Room, order: Ints) -> Room:
    """The same room (not a copy) restricted to some nodes, as one group."""
    return Room(
        c.first_gpu,
        c.size,
        c.up,
        c.free,
        c.room,
        c.memory_bytes,
        c.weight,
        c.speed,
        c.group,
        order,
        c.scratch,
        c.most,
        c.least_memory_bytes,
        c.largest,
        1,
    )


@jit_in_place
def grow(
    elastic: ElasticColumns,
    horizon_s: float,
    margin: float,
    memory_bytes: Floats,
    columns: WorkingColumns,
    node_model: Ints,
    gpu_node: Ints,
    order: Ints,
    first: Ints,
    free: Ints,
    scaling: ScalingColumns,
    table: TableColumns,
    grants: GrantColumns,
    gains: Floats,
) -> int:
    """Give free GPUs to jobs that gain from them, in order: writes all GPUs of each such job, and its gain (s).

    order[first[m] : first[m + 1]] are the nodes with GPU model m by descending weight, free[m] its free GPUs.
    Returns the number of jobs that grow or move.
    """
    e, room, t, out, n = ElasticArrays(*elastic), room_of(columns), SpeedTable(*table), Grants(*grants), ZERO
    for i in range(e.row.size):
        if total(free) == 0:
            break
        held, at = e.offset[i + 1] - e.offset[i], out.offset[n]
        per = max(scaling[2][e.row[i]], 1)
        job = job_of(e.row[i], held // per, e.model[i], scaling)
        workers, model, gain = _best_size(job, e.requested[i], e.cost_s[i], free, horizon_s, margin, t)
        if gain <= 0.0:
            continue
        kept, gpus = 0 if model != job.model else held, workers * per
        if at + gpus > out.gpu.size:
            break
        for k in range(kept):
            out.gpu[at + k] = e.gpu[e.offset[i] + k]
        only, need = _only(room, order[first[model] : first[model + 1]]), memory_bytes[e.row[i]]
        if not place(only, gpus - kept, 1.0, need, False, WEIGHTED, out.gpu, at + kept):
            continue
        free[model] -= gpus - kept
        for k in range(e.offset[i] + kept, e.offset[i + 1]):
            give(room.free, room.room, gpu_node[e.gpu[k]], e.gpu[k], 1.0)
            free[node_model[gpu_node[e.gpu[k]]]] += 1
        gains[n] = gain
        n = granted(out, n, e.row[i], GangDemand(gpus, 1.0, need, False, False, NOTHING))
    return n


@jit_in_place
def _cheapest(
    e: ElasticArrays,
    workers: Ints,
    claim: Floats,
    missing: int,
    horizon_s: float,
    scaling: ScalingColumns,
    t: SpeedTable,
) -> tuple[int, int, float]:
    """(index, workers to give up, claim-weighted seconds lost) of the job that loses least per GPU, or -1."""
    best, fewer, best_lost, least = -1, 0, np.inf, np.inf
    for i in range(e.row.size):
        per = max(scaling[2][e.row[i]], 1)
        now = (e.offset[i + 1] - e.offset[i]) // per
        job = job_of(e.row[i], now, e.model[i], scaling)
        give_up = min((missing + per - 1) // per, workers[i] - job.fewest)
        if give_up <= 0:
            continue
        before_s = step_s(job, workers[i], job.model, t)
        after_s = step_s(job, workers[i] - give_up, job.model, t)
        lost = _time_s(job, e.requested[i], horizon_s, t) * (after_s / before_s - 1.0)
        lost = claim[i] * (lost + (e.cost_s[i] if workers[i] == now else 0.0))
        if lost / (give_up * per) < least:
            best, fewer, best_lost, least = i, give_up, lost, lost / (give_up * per)
    return best, fewer, best_lost


@jit_in_place
def shrink_for(
    wanted: int,
    share: float,
    memory_bytes: float,
    alike: bool,
    worth_s: float,
    elastic: ElasticColumns,
    claim: Floats,
    horizon_s: float,
    columns: WorkingColumns,
    gpu_node: Ints,
    scaling: ScalingColumns,
    table: TableColumns,
    workers: Ints,
    out: Ints,
) -> bool:
    """Shrink elastic jobs so that a gang of `wanted` GPUs can start; False if that does not pay off.

    Jobs that lose least per GPU shrink first; nothing changes unless the claim-weighted seconds lost, restarts
    included, stay below `worth_s`. Writes the workers each keeps and the GPUs of the gang.
    """
    e, room, t, lost = ElasticArrays(*elastic), room_of(columns), SpeedTable(*table), 0.0
    for i in range(e.row.size):
        workers[i] = (e.offset[i + 1] - e.offset[i]) // max(scaling[2][e.row[i]], 1)
    while True:
        missing = max(wanted - total(room.free), 1)
        i, fewer, more = _cheapest(e, workers, claim, missing, horizon_s, scaling, t)
        lost += more
        if i < 0 or not lost < worth_s:
            return False
        per = max(scaling[2][e.row[i]], 1)
        for k in range((workers[i] - fewer) * per, workers[i] * per):
            g = e.gpu[e.offset[i] + k]
            give(room.free, room.room, gpu_node[g], g, 1.0)
        workers[i] -= fewer
        if total(room.free) < wanted:
            continue
        if place(room, wanted, share, memory_bytes, alike, WEIGHTED, out, ZERO):
            return True
