"""Starting jobs in order of priority, with preemption of running jobs of lower priority."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.policies.kernels.gangs import (
    NO_GRANTS,
    NO_ROWS,
    NO_VALUES,
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
    frozen,
    granted,
    has_failed,
    holdings,
    new_failures,
    partly_free,
    remember_failure,
    reordered,
    room_of,
    seat,
    total,
    working,
)
from equipoise.policies.kernels.jit import ZERO, jit_in_place
from equipoise.policies.kernels.placement import WHOLE, Room, give, give_all, take
from equipoise.policies.observation import Bools, Floats, Ints, Observation


class Victims(NamedTuple):
    """Running jobs in the order of preemption, with their GPUs in compressed rows."""

    bar: Floats  # a waiting job with a smaller key may take the place of this one...
    standing: Floats  # ... if its own standing is higher; empty: whatever its standing
    offset: Ints
    gpu: Ints
    share: Floats
    stopped: Bools
    tentative: Ints  # scratch


VictimColumns = tuple[Floats, Floats, Ints, Ints, Floats, Bools, Ints]
NO_VICTIMS: VictimColumns = (
    np.empty(0),
    np.empty(0),
    np.zeros(1, dtype=np.int64),
    np.empty(0, dtype=np.int64),
    np.empty(0),
    np.empty(0, dtype=np.bool_),
    np.empty(0, dtype=np.int64),
)


@jit_in_place
def _release(c: Room, v: Victims, i: int, gpu_node: Ints) -> None:
    for e in range(v.offset[i], v.offset[i + 1]):
        if c.up[gpu_node[v.gpu[e]]]:
            give(c.free, c.room, gpu_node[v.gpu[e]], v.gpu[e], v.share[e])
    v.stopped[i] = True


@jit_in_place
def _restore(c: Room, v: Victims, i: int, gpu_node: Ints) -> None:
    for e in range(v.offset[i], v.offset[i + 1]):
        if c.up[gpu_node[v.gpu[e]]]:
            take(c.free, c.room, gpu_node[v.gpu[e]], v.gpu[e], v.share[e])
    v.stopped[i] = False


@jit_in_place
def _make_way(
    c: Room,
    v: Victims,
    r: GangRequests,
    d: GangDemand,
    key: float,
    standing: float,
    rule: int,
    out: Ints,
    at: int,
    gpu_node: Ints,
) -> bool:
    """Place a gang after stopping victims with a bar above `key` and a standing below `standing`.

    Victims that are not needed keep running, lowest bar first.
    """
    last, placed = 0, False
    for i in range(v.bar.size):
        if v.bar[i] <= key or placed:
            break
        lower = v.standing.size == 0 or v.standing[i] < standing
        if not lower or v.stopped[i] or v.offset[i] == v.offset[i + 1]:
            continue
        _release(c, v, i, gpu_node)
        v.tentative[last] = i
        last += 1
        if d.share < WHOLE or total(c.free) >= d.gpus:
            placed = seat(c, r, d, rule, out, at)
    for k in range(last - 2 if placed else last - 1, -1, -1):
        if placed:
            give_all(c, out, at, at + d.gpus, gpu_node, d.share)
        _restore(c, v, v.tentative[k], gpu_node)
        if placed and not seat(c, r, d, rule, out, at):
            _release(c, v, v.tentative[k], gpu_node)
            seat(c, r, d, rule, out, at)
    return placed


@jit_in_place
def _start_with_victims(
    queue: Ints,
    first: int,
    key: Floats,
    standing: Floats,
    rule: int,
    requests: RequestColumns,
    columns: WorkingColumns,
    victims: VictimColumns,
    some: bool,
    gpu_node: Ints,
    grants: GrantColumns,
    failures: tuple[Floats, Ints],
) -> tuple[int, int, bool, bool]:
    """Start jobs of queue[first:]; returns (jobs started, where space ran out or -1, more might start, False).

    `some`: these are not all victims. When they do not suffice, the last value is True and the others are undefined.
    """
    r, room, v = GangRequests(*requests), room_of(columns), Victims(*victims)
    out, tried = Grants(*grants), UnmetDemands(*failures)
    left, shared, n = total(room.free), partly_free(room.room), ZERO
    highest = v.bar[0] if v.bar.size else -np.inf
    for k in range(first, queue.size):
        if left == 0 and not shared and highest <= key[k]:
            continue
        d, at = demand(r, queue[k]), out.offset[n]
        if has_failed(tried, d, False) or (d.share >= WHOLE and d.gpus > left and highest <= key[k]):
            continue
        if n == out.job.size or at + d.gpus > out.gpu.size:
            return n, k, True, False
        fits = seat(room, r, d, rule, out.gpu, at)
        if not fits and highest > key[k]:
            mine = standing[k] if standing.size > 0 else 0.0
            fits = _make_way(room, v, r, d, key[k], mine, rule, out.gpu, at, gpu_node)
            if fits:
                tried.used[0] = 0
            elif some and v.bar[-1] > key[k]:
                return n, -1, True, True
        if fits:
            n = granted(out, n, queue[k], d)
            left, shared = total(room.free), shared or d.share < WHOLE
        elif standing.size == 0:  # else a job of higher standing may still fit
            remember_failure(tried, d, False)
    return n, -1, left > 0 or shared or highest > key[-1], False


@jit_in_place
def _first_to_go(bar: Floats, key: Floats, chosen: Ints, chosen_bar: Floats) -> tuple[int, bool]:
    """Write the positions with the highest bars above the least key, later ones first; returns (count, more exist)."""
    n, more, least = 0, False, key[0]
    for value in key:
        least = min(least, value)
    for i in range(bar.size - 1, -1, -1):
        if bar[i] <= least:
            continue
        if n == chosen.size:
            more = True
            if bar[i] <= chosen_bar[n - 1]:
                continue
            n -= 1
        at = n
        while at > 0 and chosen_bar[at - 1] < bar[i]:
            chosen[at], chosen_bar[at] = chosen[at - 1], chosen_bar[at - 1]
            at -= 1
        chosen[at], chosen_bar[at] = i, bar[i]
        n += 1
    return n, more


def _by_bar(bar: Floats) -> Ints:
    """Positions by descending bar, later ones first (a stable sort from the end)."""
    order: Ints = len(bar) - 1 - np.argsort(-bar[::-1], kind="stable")
    return order


def _victims(o: Observation, running: Ints, bar: Floats, standing: Floats, holder: Ints) -> tuple[Ints, VictimColumns]:
    """Running jobs (rows, ascending) by descending bar, later rows first, and the GPUs that each would release.

    Holders of shared GPUs are known only from the workers table.
    """
    if not len(running):
        return NO_ROWS, NO_VICTIMS
    order, workers = _by_bar(bar), o.workers
    if len(workers) and (o.gpus.job[workers.gpu] == SHARED).any():
        offset, gpu, share = _with_shared(o, running, holder, order)
    else:
        offset, gpu = holdings(running, holder, order)
        share = np.ones(len(gpu))
    columns = (
        bar[order],
        standing[order] if len(standing) else standing.copy(),
        offset,
        gpu,
        share,
        np.zeros(len(order), dtype=np.bool_),
        np.empty(len(order), dtype=np.int64),
    )
    return running[order], columns


def _with_shared(o: Observation, running: Ints, holder: Ints, order: Ints) -> tuple[Ints, Ints, Floats]:
    """GPUs of some jobs, whole or shared, in their order and in compressed rows: (offset, gpu, share)."""
    workers, (offset, gpu) = o.workers, holdings(running, holder)
    partly = np.flatnonzero(np.isin(workers.job, running) & (o.gpus.job[workers.gpu] == SHARED))
    job = np.concatenate((np.repeat(running, np.diff(offset)), workers.job[partly]))
    by_job = np.argsort(job, kind="stable")
    gpu = np.concatenate((gpu, workers.gpu[partly]))[by_job]
    share = np.concatenate((np.ones(len(gpu) - len(partly)), workers.gpu_share[partly]))[by_job]
    offset = np.searchsorted(job[by_job], np.append(running, np.iinfo(np.int64).max)).astype(np.int64)
    offset, entry = reordered(offset, np.arange(len(gpu)), order)
    return offset, gpu[entry], share[entry]


def start_with_preemption(
    o: Observation,
    queue: Ints,
    key: Floats,
    standing: Floats,
    rule: int,
    running: Ints,
    bar: Floats,
    running_standing: Floats,
    holder: Ints,
    requests: RequestColumns,
    columns: RoomColumns,
) -> tuple[Ints, GrantColumns, bool]:
    """Start jobs of `queue` (rows) in order; those that fit nowhere are passed over.

    A job that does not fit may stop running jobs (rows, ascending) whose `bar` is above its key and whose standing,
    if given, is below its own; highest bar first. `holder` is the row that holds each GPU. Returns the jobs stopped,
    the jobs started, and whether jobs beyond the queue with no smaller keys might start too.
    """
    if not len(queue):
        return NO_ROWS, NO_GRANTS, False
    free, chosen = total(columns.free), np.empty(_FEW, dtype=np.int64)
    found, more = _first_to_go(frozen(bar), frozen(key), chosen, np.empty(_FEW))
    if free == 0 and not found and not partly_free(columns.room):
        return NO_ROWS, NO_GRANTS, False
    if not len(running_standing):
        few = chosen[:found]
        few.sort()
        done = _started(
            o, queue, key, standing, rule, running[few], bar[few], NO_VALUES, more, holder, requests, columns, free
        )
        if done is not None:
            return done
    able = np.flatnonzero(bar > key.min())
    some = running_standing[able] if len(running_standing) else running_standing
    done = _started(
        o, queue, key, standing, rule, running[able], bar[able], some, False, holder, requests, columns, free
    )
    assert done is not None
    return done


_FEW = 16  # victims looked at first


def _started(
    o: Observation,
    queue: Ints,
    key: Floats,
    standing: Floats,
    rule: int,
    running: Ints,
    bar: Floats,
    running_standing: Floats,
    some: bool,
    holder: Ints,
    requests: RequestColumns,
    columns: RoomColumns,
    free: int,
) -> tuple[Ints, GrantColumns, bool] | None:
    """As `start_with_preemption`, with these victims; `some`: there are others; None: these are too few."""
    room, failures = working(columns), new_failures()
    order, victims = _victims(o, running, bar, running_standing, holder)

    def fill(at: int, _: tuple[bool, bool], grants: GrantColumns) -> tuple[int, int, tuple[bool, bool]]:
        """Start jobs from this position in the queue."""
        n, end, more, too_few = _start_with_victims(
            queue, at, key, standing, rule, requests, room, victims, some, o.gpus.node, grants, failures
        )
        return n, end, (more, too_few)

    grants, (more, too_few) = fill_in_parts(fill, (False, False), len(queue), 64 + free)
    return None if too_few else (np.sort(order[victims[5]]), grants, more)


def remaining_bars(running: Ints, service_s: Floats, restart_s: Floats) -> Floats:
    """Bar of running jobs under shortest remaining time: remaining time less the cost of a restart (s)."""
    left_s = service_s[running] - restart_s[running]
    return np.where(np.isnan(left_s), np.inf, left_s).astype(np.float64)


@jit_in_place
def _bars(
    rows: Ints,
    service_s: Floats,
    restart_s: Floats,
    started_s: Floats,
    attained_gpu_s: Floats,
    gpus: Ints,
    share: Floats,
    now_s: float,
    ratio: float,
    reluctance: float,
    run_s: float,
    growth: float,
    bar: Floats,
) -> None:
    for i in range(rows.size):
        j = rows[i]
        cost_s = restart_s[j] if restart_s[j] > 0.0 else 0.0
        width = gpus[j] * min(share[j], 1.0)
        began_s = -np.inf if np.isnan(started_s[j]) else started_s[j] + cost_s
        ran_gpu_s = max(now_s - began_s, 0.0) * width
        before_gpu_s = attained_gpu_s[j] - ran_gpu_s
        left_s = ratio * service_s[j] - reluctance * cost_s
        bar[i] = np.inf if np.isnan(left_s) else left_s
        if ran_gpu_s < max(run_s * width, growth * before_gpu_s):
            bar[i] = -np.inf


def patient_bars(o: Observation, running: Ints, ratio: float, reluctance: float, run_s: float, growth: float) -> Floats:
    """Bar of running jobs that limits stops: `ratio` of the remaining time less `reluctance` restarts.

    A job is not stopped (-inf) while it has worked since its last start for less than `run_s`, or for less than
    `growth` times its earlier work. So a job of s seconds is stopped at most 1 + log(s / run_s) / log(1 + growth)
    times.
    """
    jobs, bar = o.jobs, np.empty(len(running))
    _bars(
        frozen(running),
        jobs.service_s,
        jobs.restart_s,
        jobs.started_s,
        jobs.attained_gpu_s,
        jobs.gpus_held,
        jobs.gpu_share_requested,
        o.time_s,
        ratio,
        reluctance,
        run_s,
        growth,
        bar,
    )
    return bar
