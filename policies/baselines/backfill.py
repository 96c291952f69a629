"""EASY backfill: jobs behind a blocked head start where they do not delay it.

Lifka, "The ANL/IBM SP scheduling system" (1995): only the head of the queue holds a reservation.
"""

from __future__ import annotations

import numpy as np

from policies.baselines.queueing import (
    RequestColumns,
    Requests,
    RoomColumns,
    no_grants,
    partly_free,
    requested,
    with_space,
    working_room,
)
from policies.jit import jit
from policies.observation import Floats, Ints
from policies.placement import WHOLE, Room, give, place, take


@jit
def copy_of(c: Room) -> Room:
    """A room that can be changed without changing `c`."""
    return Room(c.first_gpu, c.size, c.up, c.free.copy(), c.room.copy(), c.memory_bytes)


@jit
def holdings(job: Ints, gpu_job: Ints) -> tuple[Ints, Ints]:
    """GPUs that each of `job` (rows, ascending) holds alone, in compressed rows: (offset, gpu)."""
    offset = np.zeros(job.size + 1, dtype=np.int64)
    at = np.searchsorted(job, gpu_job)
    for g in range(gpu_job.size):
        if at[g] < job.size and job[at[g]] == gpu_job[g]:
            offset[at[g] + 1] += 1
    offset = np.cumsum(offset)
    gpu, fill = np.empty(offset[-1], dtype=np.int64), offset.copy()
    for g in range(gpu_job.size):
        if at[g] < job.size and job[at[g]] == gpu_job[g]:
            gpu[fill[at[g]]] = g
            fill[at[g]] += 1
    return offset, gpu


@jit
def _end_s(service_s: float, now_s: float) -> float:
    return np.inf if np.isnan(service_s) else now_s + max(service_s, 0.0)


@jit
def _reserve(
    head: int, room: Room, later: Room, r: Requests, rule: int, now_s: float, job: Ints, service_s: Floats,
    offset: Ints, gpu: Ints, gpu_job: Ints, gpu_node: Ints,
) -> float:  # fmt: skip
    """Free in `later` what running jobs have given back when the head can start; returns that time.

    NaN when it cannot start even after all have ended (larger than what is up). Shared GPUs come free last.
    """
    end = np.empty(job.size)
    for i in range(job.size):
        end[i] = _end_s(service_s[job[i]], now_s)
    wanted, share, memory = requested(r, head), min(r.share[head], 1.0), r.memory_bytes[head]
    out = np.empty(max(wanted, 1), dtype=np.int64)
    order = np.argsort(end, kind="mergesort")
    for i in order:
        for e in range(offset[i], offset[i + 1]):
            give(later, gpu_node[gpu[e]], gpu[e], 1.0)
        if later.free.sum() >= wanted or share < WHOLE:
            if place(copy_of(later), wanted, share, memory, rule, out, 0):
                return end[i]
    for g in range(gpu_job.size):
        if gpu_job[g] == -2 and later.up[gpu_node[g]]:
            give(later, gpu_node[g], g, 1.0)
    if place(copy_of(later), wanted, share, memory, rule, out, 0):
        return end[order[-1]] if order.size else now_s
    return np.nan


@jit
def backfill(
    queue: Ints, rule: int, now_s: float, service_s: Floats, running: Ints, started: Ints, started_gpu: Ints,
    started_share: Floats, started_offset: Ints,
    requests: RequestColumns, columns: RoomColumns, gpu_job: Ints, gpu_node: Ints,
) -> tuple[int, Ints, Ints, Ints, Floats, float]:  # fmt: skip
    """Start jobs of queue[1:] that fit now and do not delay queue[0], which does not fit.

    `running` (rows, ascending) and the jobs `started` in this decision end after `service_s` (s). Returns
    (jobs, job, offset, gpu, share, time of the head's reservation).
    """
    r, room = Requests(*requests), working_room(columns)
    for e in range(started_gpu.size):
        take(room, gpu_node[started_gpu[e]], started_gpu[e], started_share[e])
    left, shared = room.free.sum(), partly_free(room.room)
    grants = no_grants(16, 16)
    if queue.size < 2 or not (left > 0 or shared):
        return 0, grants.job[:0], grants.offset[:1], grants.gpu[:0], grants.share[:0], np.nan
    holder = gpu_job.copy()
    for k in range(started.size):
        for e in range(started_offset[k], started_offset[k + 1]):
            holder[started_gpu[e]] = started[k] if started_share[e] >= WHOLE else -2
    job = np.sort(np.concatenate((running, started)))
    offset, gpu = holdings(job, holder)
    later, head = copy_of(room), queue[0]
    reserved_s = _reserve(
        head, room, later, r, rule, now_s, job, service_s, offset, gpu, holder, gpu_node
    )
    out = np.empty(max(requested(r, head), 1), dtype=np.int64)
    n, end, failures = 0, 0, 0
    failed = np.empty((16, 4))  # (GPUs, share, memory, ends too late) that did not fit
    for k in range(1, queue.size):
        if not (left > 0 or shared):
            break
        j = queue[k]
        wanted, share, memory = requested(r, j), min(r.share[j], 1.0), r.memory_bytes[j]
        late = 1.0 if _end_s(service_s[j], now_s) > reserved_s else 0.0
        hopeless = share >= WHOLE and wanted > left
        for f in range(failures):
            same = failed[f, 0] == wanted and failed[f, 1] == share and failed[f, 2] == memory
            hopeless |= same and late >= failed[f, 3]
        if hopeless:
            continue
        grants = with_space(grants, n + 1, end + wanted)
        trial = copy_of(room)
        fits = place(trial, wanted, share, memory, rule, grants.gpu, end)
        harmless, blocked = True, fits
        if fits and late > 0.0:
            after = copy_of(later)
            for e in range(end, end + wanted):
                take(after, gpu_node[grants.gpu[e]], grants.gpu[e], share)
            harmless = place(
                copy_of(after), requested(r, head), min(r.share[head], 1.0), r.memory_bytes[head], rule, out, 0
            )
            if harmless:
                later = after
        if fits and harmless:
            room = trial
            grants.job[n] = j
            grants.share[end : end + wanted] = share
            end += wanted
            n += 1
            grants.offset[n] = end
            left, shared = room.free.sum(), shared or share < WHOLE
        elif failures < failed.shape[0]:
            failed[failures, 0], failed[failures, 1], failed[failures, 2] = wanted, share, memory
            failed[failures, 3] = 1.0 if blocked else 0.0
            failures += 1
    return n, grants.job[:n], grants.offset[: n + 1], grants.gpu[:end], grants.share[:end], reserved_s
