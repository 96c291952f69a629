"""Allocation of GPUs to whole gangs: demands, room left and grants.

Kernels take columns as plain tuples, which are cheap to pass, and name them inside. Those that run at every decision
work in place on arrays allocated here, because this compiles and runs faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.kernels.arrays import position
from equipoise.policies.kernels.jit import ZERO, jit_in_place
from equipoise.policies.kernels.placement import NOTHING, TIGHT, WEIGHTED, WHOLE, Room, gpus_needed, place, tighten
from equipoise.policies.observation import Bools, Floats, Ints, Observation, S
from equipoise.policies.quotas.limits import allowed_nodes, node_sets, restricted

SHARED = -2  # in `gpus.job`
_NO_BOUND = 2**62
T = TypeVar("T")


class GangRequests(NamedTuple):
    """Requests of jobs, per row of the jobs table."""

    rigid: Bools
    gpus: Ints
    per_worker: Ints
    workers_min: Ints
    workers_max: Ints
    share: Floats
    memory_bytes: Floats
    alike: Bools
    input_bytes: Floats  # that it has to read; one without shares nothing of its host with others
    kind: Ints  # by row, of the nodes that it may use; -1, or empty: all
    first: Ints  # of each kind, its first set of nodes in `nodes`
    nodes: Bools  # (sets, nodes), of each kind those to try, best first


class GangDemand(NamedTuple):
    """Demand of one job to start."""

    gpus: int
    share: float  # of each GPU
    memory_bytes: float  # on each GPU
    alike: bool  # all GPUs of one model
    tight: bool  # it may share a host with others
    kind: int  # of the nodes that it may use; -1 all


class Grants(NamedTuple):
    """Jobs given GPUs so far: job[:jobs], offset[: jobs + 1], gpu[:gpus], share[:gpus]."""

    job: Ints
    offset: Ints
    gpu: Ints
    share: Floats


class UnmetDemands(NamedTuple):
    """Demands that did not fit in this decision: (GPUs, share, memory, only too late, alike, kind), and how many."""

    entry: Floats
    used: Ints


GrantColumns = tuple[Ints, Ints, Ints, Floats]
RequestColumns = tuple[Bools, Ints, Ints, Ints, Ints, Floats, Floats, Bools, Floats, Ints, Ints, Bools]
WorkingColumns = tuple[Ints, Bools, Floats, Floats, Floats, Ints, Ints, Floats, Ints]


class RoomColumns(NamedTuple):
    """Columns from which `Room` is made; see its fields."""

    first_gpu: Ints
    size: Ints
    up: Bools
    free: Ints
    room: Floats
    memory_bytes: Floats
    weight: Floats
    speed: Floats
    group: Ints
    order: Ints


def frozen(array: NDArray[S]) -> NDArray[S]:
    """A read-only view, so that compiled code sees one array type and memory cannot change."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def ascending(rows: Ints) -> Ints:
    """Rows in ascending order, read-only; `np.sort` takes three times as long for a few hundred."""
    rows = rows.copy()
    rows.sort()
    rows.flags.writeable = False
    return rows


NO_ROWS: Ints = frozen(np.empty(0, dtype=np.int64))
NO_VALUES: Floats = frozen(np.empty(0))
NO_GRANTS: GrantColumns = (NO_ROWS, frozen(np.zeros(1, dtype=np.int64)), NO_ROWS, NO_VALUES)


ANYWHERE: tuple[Ints, Ints, Bools] = (NO_ROWS, NO_ROWS, frozen(np.empty((0, 0), dtype=np.bool_)))


def _places(o: Observation, rows: Ints) -> tuple[Ints, Ints, Bools]:
    """(kind by job row, first set of each kind, sets of nodes) of these jobs: see `GangRequests`."""
    bound = restricted(o, rows)
    if not bound.any():
        return ANYWHERE
    rows, jobs, known = rows[bound], o.jobs, dict[tuple[int, int, int], int]()
    kind, first, sets = np.full(len(jobs), -1), [0], list[Bools]()
    keys = zip(jobs.claim[rows].tolist(), jobs.gpu_types[rows].tolist(), jobs.together[rows].tolist(), strict=True)
    for row, key in zip(rows.tolist(), keys, strict=True):
        if key not in known:
            known[key] = len(known)
            sets += node_sets(o, row, allowed_nodes(o, row))
            first.append(len(sets))
        kind[row] = known[key]
    nodes = np.array(sets) if sets else np.empty((0, len(o.nodes)), dtype=np.bool_)
    return frozen(kind), frozen(np.array(first)), frozen(nodes)


def request_columns(o: Observation, rows: Ints | None = None) -> RequestColumns:
    """Columns of the jobs table that make up `GangRequests`, in its order; `rows`: of these waiting jobs only."""
    jobs = o.jobs
    return (
        jobs.rigid,
        jobs.gpus_requested,
        jobs.gpus_per_worker,
        jobs.workers_min,
        jobs.workers_max,
        jobs.gpu_share_requested,
        jobs.memory_bytes,
        jobs.one_gpu_model,
        jobs.input_bytes,
        *_places(o, o.waiting if rows is None else rows),
    )


def room_columns(o: Observation) -> RoomColumns:
    """Columns of the nodes and GPUs tables that make up `Room`, as observed and without weights of nodes."""
    nodes, gpus = o.nodes, o.gpus
    return RoomColumns(
        nodes.first_gpu,
        nodes.gpus,
        nodes.up,
        nodes.gpus_free,
        gpus.share_free,
        gpus.memory_bytes,
        NO_VALUES,
        NO_VALUES,
        node_models(o),
        NO_ROWS,
    )


def node_models(o: Observation) -> Ints:
    """GPU model of each node; nothing where there is only one."""
    if len(o.gpu_models) < 2 or not len(o.gpus):
        return NO_ROWS
    first: Ints = np.minimum(np.maximum(o.nodes.first_gpu, 0), len(o.gpus) - 1)
    return frozen(o.gpus.model[first])


def working(columns: RoomColumns) -> WorkingColumns:
    """The same columns with copies of those that kernels change, and scratch space: all numbers by node in one
    block."""
    first_gpu, size, up, free, room, memory_bytes, weight, speed, group, order = columns
    by_node = np.empty((9, len(size)), dtype=np.int64)
    by_node[0], by_node[1], by_node[2] = size, free, _NO_BOUND
    return first_gpu, up.copy(), memory_bytes, weight, speed, group, order, room.copy(), by_node


@jit_in_place
def room_of(columns: WorkingColumns) -> Room:
    """The room to allocate."""
    first_gpu, up, memory_bytes, weight, speed, group, order, room, by_node = columns
    size, free, most, scratch = by_node[0], by_node[1], by_node[2], by_node[3:]
    least, largest, groups = np.inf, 0, 0
    for memory in memory_bytes:
        if memory < least:
            least = memory
    for g in group:
        groups = max(groups, g + 1)
    for gpus in size:
        largest = max(largest, gpus)
    return Room(
        first_gpu,
        size,
        up,
        free,
        room,
        memory_bytes,
        weight,
        speed,
        group,
        order,
        scratch,
        most,
        least,
        largest,
        groups,
    )


@jit_in_place
def demand(r: GangRequests, j: int) -> GangDemand:
    """Demand of job row j: the request of a rigid job, else the nearest number of whole workers."""
    gpus = gpus_needed(r.rigid[j], r.gpus[j], r.per_worker[j], r.workers_min[j], r.workers_max[j])
    kind = r.kind[j] if r.kind.size > 0 else NOTHING
    tight = not r.input_bytes[j] > 0.0
    return GangDemand(gpus, min(r.share[j], 1.0), r.memory_bytes[j], r.alike[j], tight, kind)


@jit_in_place
def _show(c: Room, nodes: Bools, k: int, shown: bool) -> None:
    """Hide the nodes that are not of set k, or show them again."""
    free, up = c.scratch[4], c.scratch[5]
    for n in range(c.free.size):
        if not nodes[k, n] and shown:
            c.free[n], c.up[n] = free[n], up[n] != 0
        elif not nodes[k, n]:
            free[n], up[n] = c.free[n], c.up[n]
            c.free[n], c.up[n] = 0, False


@jit_in_place
def seat(c: Room, r: GangRequests, d: GangDemand, rule: int, out: Ints, at: int) -> bool:
    """As `placement.place`, on nodes that the job may use, together where it asks for that."""
    if rule == WEIGHTED and d.tight:
        rule = TIGHT
    if d.kind < 0:
        return place(c, d.gpus, d.share, d.memory_bytes, d.alike, rule, out, at)
    for k in range(r.first[d.kind], r.first[d.kind + 1]):
        _show(c, r.nodes, k, False)
        fits = place(c, d.gpus, d.share, d.memory_bytes, d.alike, rule, out, at)
        _show(c, r.nodes, k, True)
        if fits:
            return True
    return False


@jit_in_place
def total(counts: Ints) -> int:
    """Sum of counts."""
    result = 0
    for count in counts:
        result += count
    return result


@jit_in_place
def partly_free(share_free: Floats) -> bool:
    """Whether some GPU is shared and has room left."""
    for room in share_free:  # noqa: SIM110 (the compiler knows no generators)
        if 1e-9 < room < WHOLE:
            return True
    return False


@jit_in_place
def some_room(node_gpus_free: Ints, share_free: Floats) -> bool:
    """Whether anything at all is free."""
    return total(node_gpus_free) > 0 or partly_free(share_free)


@jit_in_place
def remember_failure(f: UnmetDemands, d: GangDemand, only_late: bool) -> None:
    """Record that a demand does not fit; `only_late`: only because it would end too late."""
    k = f.used[0]
    if k < f.entry.shape[0]:
        f.entry[k, 0], f.entry[k, 1], f.entry[k, 2] = d.gpus, d.share, d.memory_bytes
        f.entry[k, 3] = 1.0 if only_late else 0.0
        f.entry[k, 4], f.entry[k, 5] = 1.0 if d.alike else 0.0, d.kind
        f.used[0] = k + 1


@jit_in_place
def has_failed(f: UnmetDemands, d: GangDemand, late: bool) -> bool:
    """Whether the same demand has already failed. Room only shrinks, so it would fail again."""
    for k in range(f.used[0]):
        same = f.entry[k, 0] == d.gpus and f.entry[k, 1] == d.share and f.entry[k, 2] == d.memory_bytes
        same = same and (f.entry[k, 4] == 1.0) == d.alike and f.entry[k, 5] == d.kind
        if same and (late or f.entry[k, 3] == 0.0):
            return True
    return False


def new_failures() -> tuple[Floats, Ints]:
    """The parts of `UnmetDemands`: nothing has failed yet."""
    return np.empty((16, 6)), np.zeros(1, dtype=np.int64)


@jit_in_place
def granted(g: Grants, n: int, job: int, d: GangDemand) -> int:
    """Record the GPUs written behind the first n grants as granted to `job`; returns n + 1."""
    at = g.offset[n]
    g.job[n] = job
    for e in range(at, at + d.gpus):
        g.share[e] = d.share
    g.offset[n + 1] = at + d.gpus
    return n + 1


def new_grants(jobs: int, gpus: int) -> GrantColumns:
    """The parts of `Grants`, with space for this many jobs and GPUs."""
    offset = np.zeros(jobs + 1, dtype=np.int64)
    return np.empty(jobs, dtype=np.int64), offset, np.empty(gpus, dtype=np.int64), np.empty(gpus)


def trimmed(g: GrantColumns, n: int) -> GrantColumns:
    """The first n grants without spare space."""
    job, offset, gpu, share = g
    end = int(offset[n])
    return job[:n], offset[: n + 1], gpu[:end], share[:end]


def joined(parts: list[GrantColumns]) -> GrantColumns:
    """Grants of different jobs as one, in that order."""
    if len(parts) == 1:
        return parts[0]
    jobs, offsets, gpus, shares = zip(*parts, strict=True)
    count = np.concatenate([np.diff(offset) for offset in offsets])
    offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(count)))
    return np.concatenate(jobs), offset, np.concatenate(gpus), np.concatenate(shares)


Fill = Callable[[int, T, GrantColumns], tuple[int, int, T]]


def fill_in_parts(fill: Fill[T], last: T, jobs: int, space: int) -> tuple[GrantColumns, T]:
    """Grants made by `fill`, which is called with increasing space (GPUs) until it is enough.

    fill(at, last, grants) continues at position `at` of at most `jobs` with the `last` of the call before; it
    returns the number of grants, where space ran out (-1: nowhere), and its new `last`.
    """
    parts, at = [], 0
    while at >= 0:
        grants = new_grants(min(jobs - at, space), space)
        n, at, last = fill(at, last, grants)
        parts.append(trimmed(grants, n))
        space *= 4
    return joined(parts), last


@jit_in_place
def _first_that_may(
    queue: Ints, strict: bool, requests: RequestColumns, free: Ints, share_free: Floats
) -> tuple[int, int]:
    """(position of the first job that may fit, whole GPUs free); -1: nothing is free, -2: none may."""
    left = total(free)
    if left == 0 and not partly_free(share_free):
        return -1, left
    r = GangRequests(*requests)
    for k in range(queue.size):
        d = demand(r, queue[k])
        if d.share < WHOLE or d.gpus <= left:
            return k, left
        if strict:
            break
    return -2, left


@jit_in_place
def _start(
    queue: Ints,
    first: int,
    strict: bool,
    rule: int,
    requests: RequestColumns,
    columns: WorkingColumns,
    grants: GrantColumns,
    failures: tuple[Floats, Ints],
) -> tuple[int, int, bool]:
    """Start jobs of queue[first:]; returns (jobs started, where space for grants ran out or -1, room is left)."""
    r, room, out, tried = GangRequests(*requests), room_of(columns), Grants(*grants), UnmetDemands(*failures)
    left, shared, n = total(room.free), partly_free(room.room), ZERO
    tighten(room)
    for k in range(first, queue.size):
        if left == 0 and not shared:
            break
        d, at = demand(r, queue[k]), out.offset[n]
        if (d.share < WHOLE or d.gpus <= left) and not has_failed(tried, d, False):
            if n == out.job.size or at + d.gpus > out.gpu.size:
                return n, k, True
            if seat(room, r, d, rule, out.gpu, at):
                n = granted(out, n, queue[k], d)
                left = left - d.gpus if d.share >= WHOLE else total(room.free)
                shared |= d.share < WHOLE
                if n % 16 == 0:  # often enough: it looks at all nodes
                    tighten(room)
                continue
            remember_failure(tried, d, False)
        if strict:
            break
    return n, -1, left > 0 or shared


def start_in_order(
    queue: Ints, strict: bool, rule: int, requests: RequestColumns, columns: RoomColumns
) -> tuple[GrantColumns, bool]:
    """Start the jobs of `queue` (rows, first to start first) that can be placed by `rule` now.

    `strict` stops at the first that cannot; else it is passed over. Returns the jobs started and whether
    the queue ended before the room did.
    """
    queue = frozen(queue)
    at, left = _first_that_may(queue, strict, requests, columns.free, columns.room)
    if at < 0:
        return NO_GRANTS, at == -2 and (not strict or not len(queue))
    room, failures, space, parts = working(columns), new_failures(), left + 8, []
    while at >= 0:  # as `fill_in_parts`; written out, because this is called for nearly every job
        out = new_grants(min(len(queue), space), space)
        n, at, more = _start(queue, at, strict, rule, requests, room, out, failures)
        parts.append(trimmed(out, n))
        space *= 4
    grants = joined(parts)
    return grants, more and (not strict or len(grants[0]) == len(queue))


@jit_in_place
def _holdings(
    job: Ints, gpu_job: Ints, order: Ints, held: Ints, slot: Ints, offset: Ints, fill: Ints, place_of: Ints, gpu: Ints
) -> None:
    for i in range(order.size):
        place_of[order[i]] = i
    count, last, at = 0, -1, -1
    for g in range(gpu_job.size):
        if gpu_job[g] < 0:
            continue
        if gpu_job[g] != last:  # the GPUs of a job are mostly one after another
            last = gpu_job[g]
            at = position(job, last)
            if at == job.size or job[at] != last:
                at = -1
            elif order.size > 0:
                at = place_of[at]
        if at >= 0:
            held[count], slot[count] = g, at
            count += 1
            offset[at + 1] += 1
    for i in range(job.size):
        offset[i + 1] += offset[i]
        fill[i] = offset[i]
    for k in range(count):
        gpu[fill[slot[k]]] = held[k]
        fill[slot[k]] += 1


def holdings(job: Ints, gpu_job: Ints, order: Ints = NO_ROWS) -> tuple[Ints, Ints]:
    """GPUs that each of `job` (rows, ascending) holds alone, in compressed rows: (offset, gpu).

    order: positions in `job` in the order of the result; none: unchanged.
    """
    offset, of_gpu = np.zeros(len(job) + 1, dtype=np.int64), np.empty((3, len(gpu_job)), dtype=np.int64)
    scratch = np.empty((2, len(job)), dtype=np.int64)
    _holdings(
        frozen(job), frozen(gpu_job), frozen(order), of_gpu[0], of_gpu[1], offset, scratch[0], scratch[1], of_gpu[2]
    )
    return offset, of_gpu[2, : offset[-1]]


@jit_in_place
def _reorder(offset: Ints, value: Ints, order: Ints, new_offset: Ints, new: Ints) -> None:
    end = 0
    for i in range(order.size):
        new_offset[i] = end
        for e in range(offset[order[i]], offset[order[i] + 1]):
            new[end] = value[e]
            end += 1
    new_offset[order.size] = end


def reordered(offset: Ints, value: Ints, order: Ints) -> tuple[Ints, Ints]:
    """Some compressed rows (positions) in another order."""
    new_offset, new = np.empty(len(order) + 1, dtype=np.int64), np.empty(len(value), dtype=np.int64)
    _reorder(offset, value, order, new_offset, new)
    return new_offset, new[: new_offset[-1]]


@jit_in_place
def place_gang(
    columns: WorkingColumns, wanted: int, share: float, memory_bytes: float, rule: int, out: Ints, alike: bool
) -> bool:
    """Place one gang (see `placement.place`); writes its GPUs to `out` and removes them from the columns."""
    return place(room_of(columns), wanted, share, memory_bytes, alike, rule, out, ZERO)
