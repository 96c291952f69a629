"""EASY backfill: jobs behind a blocked head start where they do not delay it.

Lifka, "The ANL/IBM SP scheduling system" (1995): only the head of the queue holds a reservation.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.kernels.gangs import (
    NO_GRANTS,
    SHARED,
    GangDemand,
    GangRequests,
    GrantColumns,
    Grants,
    RequestColumns,
    RoomColumns,
    UnmetDemands,
    WorkingColumns,
    demand,
    fill_in_parts,
    granted,
    has_failed,
    holdings,
    new_failures,
    partly_free,
    remember_failure,
    reordered,
    room_of,
    seat,
    some_room,
    total,
    working,
)
from equipoise.policies.kernels.jit import ZERO, jit_in_place
from equipoise.policies.kernels.placement import WHOLE, Room, give_all, take_all, tighten
from equipoise.policies.observation import Floats, Ints, Observation

_SAME_TIME = 1e-12  # relative; two ends that are closer differ by rounding

Running = tuple[Ints, Ints, Floats, float, Ints]
"""Running jobs by ascending end: (offset, gpu) of what each holds alone, its end (s), when the last of those ends
that share GPUs, and the node of each GPU. The holders of parts of a shared GPU are not always known, so all shared
GPUs come free at once, as one more job."""


@jit_in_place
def _fits(c: Room, r: GangRequests, d: GangDemand, rule: int, gpu_node: Ints, spare: Ints) -> bool:
    """Whether a gang could be placed; `c` is unchanged."""
    fits = seat(c, r, d, rule, spare, ZERO)
    if fits:
        give_all(c, spare, ZERO, d.gpus, gpu_node, d.share)
    return fits


@jit_in_place
def _reserve(r: GangRequests, head: GangDemand, later: Room, rule: int, running: Running, spare: Ints) -> float:
    """Free in `later` the GPUs that running jobs release until the head fits; returns that time (s).

    All jobs that end at that time count. NaN when the head does not fit even after all have ended.
    """
    offset, gpu, end_s, _, gpu_node = running
    reserved_s = np.nan
    for i in range(end_s.size):
        if end_s[i] > reserved_s * (1.0 + _SAME_TIME):  # never while there is none
            break
        give_all(later, gpu, offset[i], offset[i + 1], gpu_node, 1.0)
        enough = head.share < WHOLE or total(later.free) >= head.gpus
        enough = enough and np.isnan(reserved_s) and offset[i + 1] > offset[i]
        if enough and _fits(later, r, head, rule, gpu_node, spare):
            reserved_s = end_s[i]
    return float(reserved_s)


@jit_in_place
def _late(takes_s: float, now_s: float, reserved_s: float) -> bool:
    """Whether a job may still run at the reserved time; False without a reservation (NaN)."""
    if np.isnan(reserved_s):
        return False
    return not now_s + takes_s <= reserved_s  # nor where it takes NaN


@jit_in_place
def _harmless(
    later: Room,
    r: GangRequests,
    head: GangDemand,
    rule: int,
    gpu: Ints,
    first: int,
    end: int,
    share: float,
    gpu_node: Ints,
    spare: Ints,
) -> bool:
    """Whether the head still fits when gpu[first:end] are held; then removes them from `later`."""
    take_all(later, gpu, first, end, gpu_node, share)
    if _fits(later, r, head, rule, gpu_node, spare):
        return True
    give_all(later, gpu, first, end, gpu_node, share)
    return False


@jit_in_place
def _fill(
    queue: Ints,
    first: int,
    reserved_s: float,
    rule: int,
    now_s: float,
    takes_s: Floats,
    requests: RequestColumns,
    columns: WorkingColumns,
    later_columns: WorkingColumns,
    running: Running,
    spare: Ints,
    grants: GrantColumns,
    failures: tuple[Floats, Ints],
) -> tuple[int, int, float]:
    """Start jobs of queue[first:] that fit now and do not delay queue[0].

    Returns (jobs started, where space for grants ran out or -1, the time reserved for queue[0] or NaN). With
    `first` 0 the reservation is made; `later_columns` are the GPUs free at that time.
    """
    r, room, later = GangRequests(*requests), room_of(columns), room_of(later_columns)
    out, tried, gpu_node = Grants(*grants), UnmetDemands(*failures), running[4]
    head = demand(r, queue[0])
    if first == 0:
        reserved_s = _reserve(r, head, later, rule, running, spare)
    left, shared, n = total(room.free), partly_free(room.room), ZERO
    tighten(room)
    for k in range(max(first, 1), queue.size):
        if left == 0 and not shared:
            break
        d, at = demand(r, queue[k]), out.offset[n]
        late = _late(takes_s[queue[k]], now_s, reserved_s)
        if d.share < WHOLE and not np.isnan(reserved_s):  # its GPUs come free when the last that share any end
            if running[3] > reserved_s:
                late = True
            elif late:
                continue
        if (d.share >= WHOLE and d.gpus > left) or has_failed(tried, d, late):
            continue
        if n == out.job.size or at + d.gpus > out.gpu.size:
            return n, k, reserved_s
        fits = seat(room, r, d, rule, out.gpu, at)
        if fits and late and not _harmless(later, r, head, rule, out.gpu, at, at + d.gpus, d.share, gpu_node, spare):
            give_all(room, out.gpu, at, at + d.gpus, gpu_node, d.share)
            remember_failure(tried, d, True)
        elif fits:
            n = granted(out, n, queue[k], d)
            left, shared = total(room.free), shared or d.share < WHOLE
            if n % 16 == 0:  # often enough: it looks at all nodes
                tighten(room)
        else:
            remember_failure(tried, d, False)
    return n, -1, reserved_s


def _by_end(o: Observation, job: Ints, takes_s: Floats, holder: Ints) -> Running:
    """Jobs (rows, ascending) as `Running`; an unknown end comes last, an overdue one counts as now."""
    end_s = np.where(np.isnan(takes_s), np.inf, o.time_s + np.maximum(takes_s, 0.0))
    offset, gpu = holdings(job, holder)
    shares = np.diff(offset) < np.maximum(o.jobs.gpus_held[job], 1)
    shared_s = float(end_s[shares].max(initial=o.time_s))
    shared = np.flatnonzero((holder == SHARED) & o.nodes.up[o.gpus.node])
    offset, gpu = np.append(offset, len(gpu) + len(shared)), np.concatenate((gpu, shared))
    end_s = np.append(end_s, shared_s)
    order = np.argsort(end_s, kind="stable").astype(np.int64)
    return *reordered(offset, gpu, order), end_s[order], shared_s, o.gpus.node


def backfill(
    o: Observation,
    queue: Ints,
    takes_s: Floats,
    rule: int,
    job: Ints,
    holder: Ints,
    requests: RequestColumns,
    columns: RoomColumns,
    only: RoomColumns | None = None,
) -> tuple[GrantColumns, float]:
    """Start jobs of queue[1:] that fit now, in the room `only` if given, and do not delay queue[0], which does not fit.

    `takes_s` is the (remaining) running time by row. `job` are the rows (ascending) of all running jobs, including
    those that this decision has started; `holder` is the row that holds each GPU. Returns the jobs started, and the
    time (s) reserved for queue[0], NaN when there is none.
    """
    if len(queue) < 2 or not some_room(columns.free, columns.room):
        return NO_GRANTS, np.nan
    room, later, running = working(only or columns), working(columns), _by_end(o, job, takes_s[job], holder)
    spare, failures = np.empty(max(len(holder), 1), dtype=np.int64), new_failures()

    def fill(at: int, reserved_s: float, grants: GrantColumns) -> tuple[int, int, float]:
        """Backfill from this position in the queue."""
        return _fill(
            queue, at, reserved_s, rule, o.time_s, takes_s, requests, room, later, running, spare, grants, failures
        )

    return fill_in_parts(fill, float("nan"), len(queue), int(columns.free.sum()) + 8)
