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

from policies.gangs import (
    Demand,
    GrantColumns,
    RoomColumns,
    granted,
    no_grants,
    trimmed,
    with_space,
    working_room,
)
from policies.jit import jit, jit_in_place
from policies.observation import Floats, Ints
from policies.placement import WEIGHTED, Room, give, place


class Scaling(NamedTuple):
    """What step times follow from: columns of the jobs table, and the table of throughputs by job."""

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
    restart_s: Floats
    table_job: Ints  # ascending
    table_model: Ints
    table_gpus: Ints
    table_samples_per_s: Floats
    model_speed: Floats  # relative, 0..1; NaN unknown


ScalingColumns = tuple[
    Ints, Ints, Ints, Ints, Ints, Ints, Floats, Floats, Floats, Floats, Floats, Floats,
    Ints, Ints, Ints, Floats, Floats,
]  # fmt: skip


@jit_in_place
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
        return float(s.global_batch[j] / s.table_samples_per_s[k] * s.table_gpus[k] / gpus)
    low_s = s.global_batch[j] / s.table_samples_per_s[below]
    high_s = s.global_batch[j] / s.table_samples_per_s[above]
    if s.table_gpus[below] == s.table_gpus[above]:
        return float(low_s)
    span = 1.0 / s.table_gpus[below] - 1.0 / s.table_gpus[above]
    return float(high_s + (low_s - high_s) * (1.0 / gpus - 1.0 / s.table_gpus[above]) / span)


@jit_in_place
def _work_s(j: int, workers: int, model: int, now: int, now_model: int, s: Scaling) -> float:
    """Local work (s) with so many workers on a GPU model, given what is measured with `now` workers now.

    Without table and measurement: relative to one worker on the fastest model.
    """
    per = s.per_worker[j]
    measured = s.work_s[j] if now > 0 else np.nan
    if measured > 0.0 and workers == now and model == now_model:
        return float(measured)
    listed = listed_work_s(j, workers * per, model, s)
    speed, now_speed = s.model_speed[model], s.model_speed[now_model]
    if np.isnan(listed):
        ratio = now_speed / speed if speed > 0.0 and now_speed > 0.0 else 1.0
        if measured > 0.0:
            return float(measured * now / workers * ratio)
        return float(1.0 / (workers * (speed if speed > 0.0 else 1.0)))
    if measured > 0.0:
        here = listed_work_s(j, now * per, now_model, s)
        if here > 0.0:
            return listed * measured / here
    return listed


@jit_in_place
def _exchange_s(j: int, workers: int, now: int, s: Scaling) -> float:
    if workers <= 1:
        return 0.0
    if now > 1 and s.exchange_s[j] > 0.0:
        return float(s.exchange_s[j] * (1.0 - 1.0 / workers) / (1.0 - 1.0 / now))
    return float(s.exchange_alone_s[j]) if s.exchange_alone_s[j] > 0.0 else 0.0


@jit_in_place
def step_s(j: int, workers: int, model: int, now: int, now_model: int, s: Scaling) -> float:
    """Estimated time (s) of a step of job j with `workers` on a GPU model, running with `now` workers now.

    Only ratios mean anything where neither the table nor a measurement knows the job.
    """
    work_s = _work_s(j, workers, model, now, now_model, s)
    at = np.searchsorted(s.table_job, j)
    listed = at < s.table_job.size and s.table_job[at] == j
    exchange_s = _exchange_s(j, workers, now, s) if listed or (now > 0 and s.work_s[j] > 0.0) else 0.0
    long, short = max(work_s, exchange_s), min(work_s, exchange_s)
    gamma = s.gamma[j] if s.gamma[j] >= 1.0 else 1.0
    both_s = long * (1.0 + (short / long) ** gamma) ** (1.0 / gamma) if long > 0.0 else 0.0
    h = max(s.sync_interval[j], 1)
    return float(((h - 1) * work_s + both_s) / h)


@jit_in_place
def parallel_efficiency(job: Ints, workers: Ints, now: Ints, model: Ints, scaling: ScalingColumns) -> float:
    """Mean over workers of each job's speed-up over one worker per worker, 0..1; NaN without workers.

    `workers` is the size asked about, `now` the one at which the job was measured.
    """
    s, total, count = Scaling(*scaling), 0.0, 0
    for i in range(job.size):
        one_s = step_s(job[i], 1, model[i], now[i], model[i], s)
        many_s = step_s(job[i], workers[i], model[i], now[i], model[i], s)
        if many_s > 0.0:
            total += one_s / many_s
            count += workers[i]
    return total / count if count > 0 else np.nan


@jit_in_place
def remaining_s(j: int, now: int, model: int, requested: int, s: Scaling) -> float:
    """Estimated time (s) left with `now` workers; `service_s` is that with the `requested` ones."""
    here, there = step_s(j, now, model, now, model, s), step_s(j, requested, model, now, model, s)
    return float(s.service_s[j] * (here / there if there > 0.0 else 1.0))


class Elastic(NamedTuple):
    """Training jobs that can change size, with the GPUs each holds in compressed rows, best kept first."""

    job: Ints
    offset: Ints
    gpu: Ints
    model: Ints  # GPU model it runs on; the slowest where there are several
    cost_s: Floats  # of a resize; 0 for a job that starts now
    requested: Ints  # workers


ElasticColumns = tuple[Ints, Ints, Ints, Ints, Floats, Ints]


@jit_in_place
def _time_s(e: Elastic, i: int, workers: int, horizon_s: float, s: Scaling) -> float:
    left_s = remaining_s(e.job[i], workers, e.model[i], e.requested[i], s)
    return horizon_s if np.isnan(left_s) else min(left_s, horizon_s)


@jit_in_place
def _best_size(
    e: Elastic, i: int, workers: int, free: Ints, horizon_s: float, margin: float, s: Scaling
) -> tuple[int, int, float]:
    """(workers, GPU model, seconds gained) of the best larger size, or move to another model; gain 0: stay.

    Sizes tried: one more worker, two, four, ..., and all that are free. The gain is the time saved on what
    is left (at most `horizon_s`), less the cost of the resize; a step must shorten by `margin` at least.
    """
    j, per, model = e.job[i], s.per_worker[e.job[i]], e.model[i]
    now_s, time_s = step_s(j, workers, model, workers, model, s), _time_s(e, i, workers, horizon_s, s)
    best, best_model, gain = workers, model, 0.0
    useful = min(s.workers_max[j], max(s.global_batch[j] // max(s.micro_batch[j], 1), 1))
    for m in range(free.size):
        least = workers + 1 if m == model else s.workers_min[j]
        most = min(useful, free[m] // per + (workers if m == model else 0))
        size, stride = least, 1
        while size <= most:
            then_s = step_s(j, size, m, workers, model, s)
            saved_s = time_s * (1.0 - then_s / now_s) - e.cost_s[i]
            if saved_s > gain and then_s <= now_s * (1.0 - margin):
                best, best_model, gain = size, m, saved_s
            if size == most:
                break
            size = min(size + stride, most)
            stride *= 2
    return best, best_model, gain


@jit
def _free_by_model(room: Room, node_model: Ints, models: int) -> Ints:
    free = np.zeros(models, dtype=np.int64)
    for n in range(room.free.size):
        free[node_model[n]] += room.free[n]
    return free


@jit
def _only(room: Room, order: Ints, skip: Ints) -> Room:
    """The same room (not a copy) with some nodes only to choose from, as one group."""
    return Room(
        room.first_gpu, room.size, room.up, room.free, room.room, room.memory_bytes,
        room.least_memory_bytes, room.weight, room.group, 1, order, skip,
    )  # fmt: skip


@jit
def grow(
    elastic: ElasticColumns, horizon_s: float, margin: float, memory_bytes: Floats, columns: RoomColumns,
    node_model: Ints, gpu_node: Ints, scaling: ScalingColumns,
) -> tuple[GrantColumns, Floats]:  # fmt: skip
    """Give free GPUs to jobs that gain by them, in order; returns all GPUs of each and its gain (s)."""
    e, s, room = Elastic(*elastic), Scaling(*scaling), working_room(columns)
    grants, n, gains = no_grants(e.job.size, 16), 0, np.empty(e.job.size)
    free = _free_by_model(room, node_model, s.model_speed.size)
    model_of = node_model[room.order]
    order = room.order[np.argsort(model_of, kind="mergesort")]
    first = np.searchsorted(np.sort(model_of), np.arange(free.size + 1))
    skip = np.zeros(free.size, dtype=np.int64)
    for i in range(e.job.size):
        if free.sum() == 0:
            break
        j, held = e.job[i], e.gpu[e.offset[i] : e.offset[i + 1]]
        per, at = s.per_worker[j], grants.offset[n]
        workers, model, gain = _best_size(e, i, held.size // per, free, horizon_s, margin, s)
        if gain <= 0.0:
            continue
        moves = model != e.model[i]
        kept, gpus = 0 if moves else held.size, workers * per
        grants = with_space(grants, n + 1, at + gpus)
        grants.gpu[at : at + kept] = held[:kept]
        only = _only(room, order[first[model] : first[model + 1]], skip[model : model + 1])
        if not place(only, gpus - kept, 1.0, memory_bytes[j], WEIGHTED, grants.gpu, at + kept):
            continue
        free[model] -= gpus - kept
        for g in held[kept:]:
            give(room, gpu_node[g], g, 1.0)
            free[node_model[gpu_node[g]]] += 1
            skip[node_model[gpu_node[g]]] = 0
        gains[n] = gain
        n = granted(grants, n, j, Demand(gpus, 1.0, memory_bytes[j]))
    return trimmed(grants, n), gains[:n]


@jit_in_place
def _cheapest(
    e: Elastic, workers: Ints, claim: Floats, missing: int, horizon_s: float, s: Scaling
) -> tuple[int, int, float]:
    """(index, workers to give up, claim-weighted seconds lost) of the job that loses least per GPU, or -1."""
    best, fewer, loss = -1, 0, np.inf
    for i in range(e.job.size):
        j, per, model = e.job[i], s.per_worker[e.job[i]], e.model[i]
        give_up = min((missing + per - 1) // per, workers[i] - s.workers_min[j])
        if give_up <= 0:
            continue
        now = (e.offset[i + 1] - e.offset[i]) // per
        before_s = step_s(j, workers[i], model, now, model, s)
        after_s = step_s(j, workers[i] - give_up, model, now, model, s)
        lost = _time_s(e, i, workers[i], horizon_s, s) * (after_s / before_s - 1.0)
        lost = claim[i] * (lost + (e.cost_s[i] if workers[i] == now else 0.0))
        if lost / (give_up * per) < loss:
            best, fewer, loss = i, give_up, lost / (give_up * per)
    return best, fewer, loss * fewer * (s.per_worker[e.job[best]] if best >= 0 else 0)


@jit
def shrink_for(
    wanted: int, share: float, memory_bytes: float, worth_s: float, elastic: ElasticColumns, claim: Floats,
    horizon_s: float, columns: RoomColumns, gpu_node: Ints, scaling: ScalingColumns,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Workers each elastic job keeps so that a gang of `wanted` GPUs can start, and the GPUs it gets.

    Jobs that lose least per GPU give up workers first; all of it happens only if the claim-weighted seconds
    lost, restarts included, stay below `worth_s`. No GPUs: it does not pay, or does not help.
    """
    e, s, room = Elastic(*elastic), Scaling(*scaling), working_room(columns)
    nothing = np.empty(0, dtype=np.int64)
    workers = (e.offset[1:] - e.offset[:-1]) // s.per_worker[e.job]
    total, out = 0.0, np.empty(max(wanted, 1), dtype=np.int64)
    while True:
        missing = max(wanted - room.free.sum(), 1)
        i, fewer, lost = _cheapest(e, workers, claim, missing, horizon_s, s)
        total += lost
        if i < 0 or not total < worth_s:
            return workers, nothing
        per = s.per_worker[e.job[i]]
        for k in range((workers[i] - fewer) * per, workers[i] * per):
            g = e.gpu[e.offset[i] + k]
            give(room, gpu_node[g], g, 1.0)
        workers[i] -= fewer
        if room.free.sum() >= wanted and place(room, wanted, share, memory_bytes, WEIGHTED, out, 0):
            return workers, out[:wanted]
