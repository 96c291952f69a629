"""Starting jobs in order of priority, at the cost of running jobs of lower priority."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.gangs import (
    SHARED,
    Demand,
    GrantColumns,
    RequestColumns,
    Requests,
    RoomColumns,
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
from policies.jit import jit, jit_in_place
from policies.observation import Bools, Floats, Ints
from policies.placement import WHOLE, Room, give, place, take


class Victims(NamedTuple):
    """Running jobs in the order in which they give way, with what they hold in compressed rows."""

    bar: Floats  # a waiting job with a smaller key may take the place of this one...
    standing: Floats  # ... if its own standing is higher; empty: whatever its standing
    offset: Ints
    gpu: Ints
    share: Floats
    stopped: Bools


@jit
def _victims(
    running: Ints, bar: Floats, standing: Floats, gpu_job: Ints,
    worker_job: Ints, worker_gpu: Ints, worker_share: Floats,
) -> tuple[Ints, Victims]:  # fmt: skip
    """Running jobs (rows, ascending) by descending bar, later rows first, and what each would give up.

    Of shared GPUs only what stands in the workers table is known.
    """
    offset, gpu = holdings(running, gpu_job)
    order = running.size - 1 - np.argsort(-bar[::-1], kind="mergesort")
    first = np.searchsorted(worker_job, running)
    end = np.searchsorted(worker_job, running, side="right")
    held_offset = np.zeros(running.size + 1, dtype=np.int64)
    held_gpu = np.empty(gpu.size + worker_job.size, dtype=np.int64)
    held_share = np.ones(held_gpu.size)
    n = 0
    for k in range(order.size):
        i = order[k]
        for e in range(offset[i], offset[i + 1]):
            held_gpu[n] = gpu[e]
            n += 1
        for w in range(first[i], end[i]):
            if gpu_job[worker_gpu[w]] == SHARED:
                held_gpu[n], held_share[n] = worker_gpu[w], worker_share[w]
                n += 1
        held_offset[k + 1] = n
    stopped = np.zeros(running.size, dtype=np.bool_)
    ordered = standing[order] if standing.size > 0 else standing
    return running[order], Victims(bar[order], ordered, held_offset, held_gpu[:n], held_share[:n], stopped)


@jit_in_place
def _release(room: Room, v: Victims, i: int, gpu_node: Ints) -> None:
    for e in range(v.offset[i], v.offset[i + 1]):
        if room.up[gpu_node[v.gpu[e]]]:
            give(room, gpu_node[v.gpu[e]], v.gpu[e], v.share[e])
    v.stopped[i] = True


@jit_in_place
def _restore(room: Room, v: Victims, i: int, gpu_node: Ints) -> bool:
    """Give a victim back what it held, unless some of that has been taken; returns whether it could."""
    for e in range(v.offset[i], v.offset[i + 1]):
        if room.up[gpu_node[v.gpu[e]]] and room.room[v.gpu[e]] < v.share[e] - 1e-9:
            return False
    for e in range(v.offset[i], v.offset[i + 1]):
        if room.up[gpu_node[v.gpu[e]]]:
            take(room, gpu_node[v.gpu[e]], v.gpu[e], v.share[e])
    v.stopped[i] = False
    return True


@jit
def _make_way(
    room: Room, v: Victims, d: Demand, key: float, standing: float, rule: int,
    out: Ints, at: int, gpu_node: Ints,
) -> bool:  # fmt: skip
    """Place a gang after stopping victims with a bar above `key` and a standing below `standing`.

    Those whose place it did not need keep running.
    """
    last, placed = 0, False
    tentative = np.empty(v.bar.size, dtype=np.int64)
    for i in range(v.bar.size):
        if v.bar[i] <= key or placed:
            break
        lower = v.standing.size == 0 or v.standing[i] < standing
        if not lower or v.stopped[i] or v.offset[i] == v.offset[i + 1]:
            continue
        _release(room, v, i, gpu_node)
        tentative[last] = i
        last += 1
        if d.share < WHOLE or room.free.sum() >= d.gpus:
            placed = place(room, d.gpus, d.share, d.memory_bytes, rule, out, at)
    for k in range(last - 1, -1, -1):
        _restore(room, v, tentative[k], gpu_node)
    return placed


@jit
def start_with_preemption(
    queue: Ints, key: Floats, standing: Floats, rule: int,
    running: Ints, bar: Floats, running_standing: Floats,
    requests: RequestColumns, columns: RoomColumns, gpu_job: Ints, gpu_node: Ints,
    worker_job: Ints, worker_gpu: Ints, worker_share: Floats,
) -> tuple[Ints, GrantColumns, bool]:  # fmt: skip
    """Start jobs of `queue` (rows) in order; those that fit nowhere are passed over.

    A job that does not fit may stop running jobs (rows, ascending) whose `bar` is above its key and whose
    standing, where given, is below its own; highest bar first. Returns the jobs stopped, the jobs started,
    and whether jobs beyond the queue with no smaller keys might start too.
    """
    left, shared = columns[3].sum(), partly_free(columns[4])
    highest = bar.max() if bar.size else -np.inf
    grants, n = no_grants(min(queue.size, 16), 16), 0
    if queue.size == 0 or (left == 0 and not shared and highest <= key.min()):
        return np.empty(0, dtype=np.int64), trimmed(grants, 0), False
    r, room, tried = Requests(*requests), working_room(columns), no_failures()
    order, v = _victims(running, bar, running_standing, gpu_job, worker_job, worker_gpu, worker_share)
    for k in range(queue.size):
        if left == 0 and not shared and highest <= key[k]:
            continue
        d, at = demand(r, queue[k]), grants.offset[n]
        if has_failed(tried, d, False) or (d.share >= WHOLE and d.gpus > left and highest <= key[k]):
            continue
        grants = with_space(grants, n + 1, at + d.gpus)
        fits = place(room, d.gpus, d.share, d.memory_bytes, rule, grants.gpu, at)
        if not fits and highest > key[k]:
            mine = standing[k] if standing.size > 0 else 0.0
            fits = _make_way(room, v, d, key[k], mine, rule, grants.gpu, at, gpu_node)
            tried = no_failures() if fits else tried
        if fits:
            n = granted(grants, n, queue[k], d)
            left, shared = room.free.sum(), shared or d.share < WHOLE
        elif standing.size == 0:  # else a job of higher standing may still fit
            remember_failure(tried, d, False)
    more = left > 0 or shared or highest > key[-1]
    return np.sort(order[v.stopped]), trimmed(grants, n), more


@jit
def remaining_bars(running: Ints, service_s: Floats, restart_s: Floats) -> Floats:
    """Bar of running jobs under shortest remaining time: what remains (s) less the cost of a restart (s)."""
    bar = np.empty(running.size)
    for i in range(running.size):
        left = service_s[running[i]]
        bar[i] = np.inf if np.isnan(left) else left - restart_s[running[i]]
    return bar
