"""EASY backfill: jobs behind a blocked head start where they do not delay it.

Lifka, "The ANL/IBM SP scheduling system" (1995): only the head of the queue holds a reservation.
"""

from __future__ import annotations

import numpy as np

from policies.gangs import (
    SHARED,
    Demand,
    GrantColumns,
    Grants,
    RequestColumns,
    Requests,
    RoomColumns,
    copy_of,
    demand,
    granted,
    has_failed,
    holdings,
    no_failures,
    no_grants,
    partly_free,
    remember_failure,
    trimmed,
    with_space,
    working_room,
)
from policies.jit import jit
from policies.observation import Floats, Ints
from policies.placement import WHOLE, Room, give, place, take


@jit
def _end_s(service_s: float, now_s: float) -> float:
    return float(np.inf) if np.isnan(service_s) else now_s + max(service_s, 0.0)


@jit
def _fits(room: Room, d: Demand, rule: int) -> bool:
    return place(copy_of(room), d.gpus, d.share, d.memory_bytes, rule, np.empty(d.gpus, dtype=np.int64), 0)


@jit
def _reserve(
    head: Demand,
    later: Room,
    rule: int,
    now_s: float,
    job: Ints,
    service_s: Floats,
    holder: Ints,
    gpu_node: Ints,
) -> float:
    """Free in `later` what jobs (rows, ascending) have given back when the head fits; returns that time (s).

    NaN when it does not fit even after all have ended. GPUs shared by several jobs come free last, because
    who holds what part of them is not always known.
    """
    offset, gpu = holdings(job, holder)
    end = np.empty(job.size)
    for i in range(job.size):
        end[i] = _end_s(service_s[job[i]], now_s)
    last_s = now_s
    for i in np.argsort(end, kind="mergesort"):
        for e in range(offset[i], offset[i + 1]):
            give(later, gpu_node[gpu[e]], gpu[e], 1.0)
        last_s = end[i]
        if offset[i + 1] > offset[i] and _fits(later, head, rule):
            return float(last_s)
    for g in range(holder.size):
        if holder[g] == SHARED and later.up[gpu_node[g]]:
            give(later, gpu_node[g], g, 1.0)
    return float(last_s) if _fits(later, head, rule) else np.nan


@jit
def _late(end_s: float, reserved_s: float) -> bool:
    """Whether a job that would end then may run into the reservation; no reservation is never run into."""
    return not np.isnan(reserved_s) and (end_s > reserved_s or np.isinf(end_s))


@jit
def _harmless(later: Room, head: Demand, rule: int, gpu: Ints, gpu_node: Ints, share: float) -> bool:
    """Whether the head still fits when these GPUs stay taken; then takes them out of `later`."""
    trial = copy_of(later)
    for g in gpu:
        take(trial, gpu_node[g], g, share)
    if not _fits(trial, head, rule):
        return False
    for g in gpu:
        take(later, gpu_node[g], g, share)
    return True


@jit
def _fill(
    queue: Ints, rule: int, now_s: float, service_s: Floats, r: Requests, room: Room, later: Room,
    head: Demand, reserved_s: float, gpu_node: Ints,
) -> tuple[int, Grants]:  # fmt: skip
    """Start jobs of `queue` that fit and do not delay the head; returns (how many, grants)."""
    left, shared = room.free.sum(), partly_free(room.room)
    grants, tried = no_grants(16, 16), no_failures()
    n = 0
    for j in queue:
        if not (left > 0 or shared):
            break
        d = demand(r, j)
        late = _late(_end_s(service_s[j], now_s), reserved_s)
        if (d.share >= WHOLE and d.gpus > left) or has_failed(tried, d, late):
            continue
        at = grants.offset[n]
        grants = with_space(grants, n + 1, at + d.gpus)
        trial = copy_of(room)
        fits = place(trial, d.gpus, d.share, d.memory_bytes, rule, grants.gpu, at)
        if fits and (
            not late or _harmless(later, head, rule, grants.gpu[at : at + d.gpus], gpu_node, d.share)
        ):
            room = trial
            n = granted(grants, n, j, d)
            left, shared = room.free.sum(), shared or d.share < WHOLE
        else:
            remember_failure(tried, d, fits)
    return n, grants


@jit
def backfill(
    queue: Ints, rule: int, now_s: float, service_s: Floats, running: Ints, start: GrantColumns,
    requests: RequestColumns, columns: RoomColumns, gpu_job: Ints, gpu_node: Ints,
) -> tuple[GrantColumns, float]:  # fmt: skip
    """Start jobs of queue[1:] that fit now and do not delay queue[0], which does not fit.

    `running` (rows, ascending) and those in `start`, which this decision starts, end after `service_s` (s).
    Returns these further jobs and the time (s) of the head's reservation, NaN when there is none.
    """
    r, room, holder = Requests(*requests), working_room(columns), gpu_job.copy()
    started, offset, gpu, share = start
    for k in range(started.size):
        for e in range(offset[k], offset[k + 1]):
            take(room, gpu_node[gpu[e]], gpu[e], share[e])
            holder[gpu[e]] = started[k] if share[e] >= WHOLE else SHARED
    grants, n, reserved_s = no_grants(0, 0), 0, np.nan
    if queue.size > 1 and (room.free.sum() > 0 or partly_free(room.room)):
        job = np.sort(np.concatenate((running, started)))
        head, later = demand(r, queue[0]), copy_of(room)
        reserved_s = _reserve(head, later, rule, now_s, job, service_s, holder, gpu_node)
        n, grants = _fill(queue[1:], rule, now_s, service_s, r, room, later, head, reserved_s, gpu_node)
    return trimmed(grants, n), reserved_s
