"""Handing out GPUs to whole gangs: what a job needs, what is left, what has been granted.

Kernels take columns of the observation as plain tuples (cheap to hand over) and name them inside.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.contract import Allocation
from policies.jit import jit, jit_in_place
from policies.observation import Bools, Floats, Ints, Observation, S
from policies.placement import WHOLE, Room, gpus_needed, place


class Requests(NamedTuple):
    """What jobs ask for, per row of the jobs table."""

    rigid: Bools
    gpus: Ints
    per_worker: Ints
    workers_min: Ints
    workers_max: Ints
    share: Floats
    memory_bytes: Floats


class Grants(NamedTuple):
    """Jobs given GPUs so far: job[:jobs], offset[: jobs + 1], gpu[:gpus], share[:gpus]."""

    job: Ints
    offset: Ints
    gpu: Ints
    share: Floats


class Demand(NamedTuple):
    """What one job needs to start."""

    gpus: int
    share: float  # of each GPU
    memory_bytes: float  # on each GPU


class Failures(NamedTuple):
    """Demands that did not fit in this decision: (GPUs, share, memory, too late only), and how many."""

    entry: Floats
    used: Ints


SHARED = -2  # in `gpus.job`
GrantColumns = tuple[Ints, Ints, Ints, Floats]
RequestColumns = tuple[Bools, Ints, Ints, Ints, Ints, Floats, Floats]
RoomColumns = tuple[Ints, Ints, Bools, Ints, Floats, Floats, Floats, Ints, Ints]


def frozen(array: NDArray[S]) -> NDArray[S]:
    """A read-only view: compiled code then sees one type of array, and memory cannot be changed."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


NO_ROWS: Ints = frozen(np.empty(0, dtype=np.int64))
NO_VALUES: Floats = frozen(np.empty(0))


@jit
def working_room(columns: RoomColumns) -> Room:
    """The room to hand out, with working copies of what is free."""
    first_gpu, size, up, free, room, memory_bytes, weight, group, order = columns
    least = np.inf
    for memory in memory_bytes:
        if memory < least:
            least = memory
    groups = 0
    for g in group:
        groups = max(groups, g + 1)
    return Room(
        first_gpu, size.copy(), up, free.copy(), room.copy(), memory_bytes, least,
        weight, group, groups, order, np.zeros(1, dtype=np.int64),
    )  # fmt: skip


@jit
def copy_of(c: Room) -> Room:
    """A room that can be changed without changing `c`."""
    return Room(
        c.first_gpu, c.size, c.up, c.free.copy(), c.room.copy(), c.memory_bytes, c.least_memory_bytes,
        c.weight, c.group, c.groups, c.order, c.skip.copy(),
    )  # fmt: skip


@jit_in_place
def demand(r: Requests, j: int) -> Demand:
    """What job row j needs to start: a rigid job its request, a training job the nearest whole workers."""
    gpus = gpus_needed(r.rigid[j], r.gpus[j], r.per_worker[j], r.workers_min[j], r.workers_max[j])
    return Demand(gpus, min(r.share[j], 1.0), r.memory_bytes[j])


@jit
def no_failures() -> Failures:
    """Nothing has failed to fit yet."""
    return Failures(np.empty((16, 4)), np.zeros(1, dtype=np.int64))


@jit_in_place
def remember_failure(f: Failures, d: Demand, only_late: bool) -> None:
    """Note that a demand does not fit; `only_late`: only because it would end too late."""
    k = f.used[0]
    if k < f.entry.shape[0]:
        f.entry[k, 0], f.entry[k, 1], f.entry[k, 2] = d.gpus, d.share, d.memory_bytes
        f.entry[k, 3] = 1.0 if only_late else 0.0
        f.used[0] = k + 1


@jit_in_place
def has_failed(f: Failures, d: Demand, late: bool) -> bool:
    """Whether the same demand has failed already. What is left only shrinks, so it would fail again."""
    for k in range(f.used[0]):
        e = f.entry[k]
        if e[0] == d.gpus and e[1] == d.share and e[2] == d.memory_bytes and (late or e[3] == 0.0):
            return True
    return False


@jit_in_place
def granted(g: Grants, n: int, job: int, d: Demand) -> int:
    """Book the GPUs written behind the first n grants for `job`; returns n + 1."""
    at = g.offset[n]
    g.job[n] = job
    for e in range(at, at + d.gpus):
        g.share[e] = d.share
    g.offset[n + 1] = at + d.gpus
    return n + 1


@jit
def trimmed(g: Grants, n: int) -> GrantColumns:
    """The first n grants without spare space: (job, offset, gpu, share)."""
    end = g.offset[n]
    return g.job[:n], g.offset[: n + 1], g.gpu[:end], g.share[:end]


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
def _longer_ints(a: Ints, size: int) -> Ints:
    longer = np.empty(size, dtype=np.int64)  # loops compile several times faster than copies of slices
    for i in range(a.size):
        longer[i] = a[i]
    return longer


@jit
def _longer_floats(a: Floats, size: int) -> Floats:
    longer = np.empty(size)
    for i in range(a.size):
        longer[i] = a[i]
    return longer


@jit
def with_space(g: Grants, jobs: int, gpus: int) -> Grants:
    """The same grants with space for `jobs` jobs and `gpus` GPUs in all."""
    job, offset, gpu, share = g.job, g.offset, g.gpu, g.share
    if jobs > job.size:
        job, offset = _longer_ints(job, 2 * jobs), _longer_ints(offset, 2 * jobs + 1)
    if gpus > gpu.size:
        gpu, share = _longer_ints(gpu, 2 * gpus), _longer_floats(share, 2 * gpus)
    return Grants(job, offset, gpu, share)


@jit_in_place
def total(counts: Ints) -> int:
    """Sum of counts."""
    result = 0
    for count in counts:
        result += count
    return result


@jit
def no_grants(jobs: int, gpus: int) -> Grants:
    """Empty grants with space for so many jobs and GPUs."""
    return Grants(
        np.empty(jobs, dtype=np.int64),
        np.zeros(jobs + 1, dtype=np.int64),
        np.empty(gpus, dtype=np.int64),
        np.empty(gpus),
    )


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
    for n in range(node_gpus_free.size):
        if node_gpus_free[n] > 0:
            return True
    return partly_free(share_free)


@jit
def start_in_order(
    queue: Ints, strict: bool, rule: int, requests: RequestColumns, columns: RoomColumns
) -> tuple[GrantColumns, bool]:
    """Start the jobs of `queue` (rows, first to start first) that can be placed by `rule` now.

    `strict` stops at the first that cannot; else it is passed over. Returns the jobs started and whether
    the queue ended before the room did.
    """
    r = Requests(*requests)
    left = total(columns[3])
    shared = left == 0 and partly_free(columns[4])
    k = 0
    while k < queue.size and (left > 0 or shared):
        d = demand(r, queue[k])
        if d.share < WHOLE or d.gpus <= left:
            break
        k = queue.size if strict else k + 1
    grants, n = no_grants(min(queue.size - k, 16), 16), 0
    if k < queue.size and (left > 0 or shared):
        room, tried = working_room(columns), no_failures()
        shared = shared or partly_free(room.room)
        while k < queue.size:
            j = queue[k]
            k += 1
            d, at = demand(r, j), grants.offset[n]
            if (d.share < WHOLE or d.gpus <= left) and not has_failed(tried, d, False):
                grants = with_space(grants, n + 1, at + d.gpus)
                if place(room, d.gpus, d.share, d.memory_bytes, rule, grants.gpu, at):
                    n = granted(grants, n, j, d)
                    left = left - d.gpus if d.share >= WHOLE else total(room.free)
                    shared |= d.share < WHOLE
                    if left > 0 or shared:
                        continue
                    break
                remember_failure(tried, d, False)
            if strict:
                break
    return trimmed(grants, n), (left > 0 or shared) and (n == queue.size or not strict)


def request_columns(o: Observation) -> RequestColumns:
    """Columns of the jobs table that make up `Requests`, in its order."""
    jobs = o.jobs
    return (
        jobs.rigid, jobs.gpus_requested, jobs.gpus_per_worker, jobs.workers_min, jobs.workers_max,
        jobs.gpu_share_requested, jobs.memory_bytes,
    )  # fmt: skip


def room_columns(o: Observation) -> RoomColumns:
    """Columns of the nodes and GPUs tables that make up `Room`, without weights of nodes."""
    nodes, gpus = o.nodes, o.gpus
    return (
        nodes.first_gpu, nodes.gpus, nodes.up, nodes.gpus_free, gpus.share_free, gpus.memory_bytes,
        NO_VALUES, NO_ROWS, NO_ROWS,
    )  # fmt: skip


def joined(first: Allocation, second: Allocation) -> Allocation:
    """Two allocations of different jobs as one, in that order."""
    if not len(second.job):
        return first
    return Allocation(
        np.concatenate((first.job, second.job)),
        np.concatenate((first.offset[:-1], second.offset + first.offset[-1])),
        np.concatenate((first.gpu, second.gpu)),
        np.concatenate((first.share, second.share)),
    )
