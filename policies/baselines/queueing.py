"""Shared parts of the allocation baselines: what a job needs, and starting jobs in order.

Kernels take columns of the observation as plain tuples (cheap to hand over) and name them inside.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.baselines.sorted_queue import Columns, first_rows
from policies.contract import Allocation, Memory, Plan, Reason
from policies.jit import jit
from policies.observation import Bools, Floats, Ints, Observation
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


RequestColumns = tuple[Bools, Ints, Ints, Ints, Ints, Floats, Floats]
RoomColumns = tuple[Ints, Ints, Bools, Ints, Floats, Floats]


@jit
def working_room(columns: RoomColumns) -> Room:
    """The room to hand out, with working copies of what is free."""
    first_gpu, size, up, free, room, memory_bytes = columns
    return Room(first_gpu, size, up, free.copy(), room.copy(), memory_bytes)


@jit
def requested(r: Requests, j: int) -> int:
    """GPUs job row j gets when it starts."""
    return gpus_needed(r.rigid[j], r.gpus[j], r.per_worker[j], r.workers_min[j], r.workers_max[j])


@jit
def with_space(g: Grants, jobs: int, gpus: int) -> Grants:
    """The same grants with space for `jobs` jobs and `gpus` GPUs in all."""
    job, offset, gpu, share = g.job, g.offset, g.gpu, g.share
    if jobs > job.size:
        job, offset = np.empty(2 * jobs, dtype=np.int64), np.zeros(2 * jobs + 1, dtype=np.int64)
        job[: g.job.size] = g.job
        offset[: g.offset.size] = g.offset
    if gpus > gpu.size:
        gpu, share = np.empty(2 * gpus, dtype=np.int64), np.empty(2 * gpus)
        gpu[: g.gpu.size] = g.gpu
        share[: g.share.size] = g.share
    return Grants(job, offset, gpu, share)


@jit
def no_grants(jobs: int, gpus: int) -> Grants:
    """Empty grants with space for so many jobs and GPUs."""
    return Grants(
        np.empty(jobs, dtype=np.int64),
        np.zeros(jobs + 1, dtype=np.int64),
        np.empty(gpus, dtype=np.int64),
        np.empty(gpus),
    )


@jit
def partly_free(share_free: Floats) -> bool:
    """Whether some GPU is shared and has room left."""
    for room in share_free:  # noqa: SIM110 (the compiler knows no generators)
        if 1e-9 < room < WHOLE:
            return True
    return False


@jit
def some_room(node_gpus_free: Ints, share_free: Floats) -> bool:
    """Whether anything at all is free."""
    for n in range(node_gpus_free.size):
        if node_gpus_free[n] > 0:
            return True
    return partly_free(share_free)


@jit
def start_in_order(
    queue: Ints, strict: bool, rule: int, requests: RequestColumns, columns: RoomColumns
) -> tuple[int, Ints, Ints, Ints, Floats, bool]:
    """Start the jobs of `queue` (rows, first to start first) that can be placed by `rule` now.

    `strict` stops at the first that cannot; else it is passed over. Returns (jobs started, job, offset, gpu,
    share, whether the queue ended before the room did).
    """
    r = Requests(*requests)
    left = columns[3].sum()
    shared = left == 0 and partly_free(columns[4])
    k, end = 0, 0
    while k < queue.size and (left > 0 or shared):
        if r.share[queue[k]] < WHOLE or requested(r, queue[k]) <= left:
            break
        k = queue.size if strict else k + 1
    grants = no_grants(min(queue.size - k, 16), 16)
    if k == queue.size or not (left > 0 or shared):
        return 0, grants.job, grants.offset, grants.gpu, grants.share, not strict and (left > 0 or shared)
    room = working_room(columns)
    shared = shared or partly_free(room.room)
    started, failures = 0, 0
    failed = np.empty((8, 3))  # (GPUs, share, memory) that did not fit: what is left only shrinks
    while k < queue.size and (left > 0 or shared):
        j = queue[k]
        k += 1
        wanted, share, memory = requested(r, j), min(r.share[j], 1.0), r.memory_bytes[j]
        hopeless = share >= WHOLE and wanted > left
        for f in range(failures):
            hopeless |= failed[f, 0] == wanted and failed[f, 1] == share and failed[f, 2] == memory
        if not hopeless:
            grants = with_space(grants, started + 1, end + wanted)
            if place(room, wanted, share, memory, rule, grants.gpu, end):
                grants.job[started] = j
                grants.share[end : end + wanted] = share
                end += wanted
                started += 1
                grants.offset[started] = end
                left = room.free.sum()
                shared |= share < WHOLE
                continue
            if failures < failed.shape[0]:
                failed[failures, 0], failed[failures, 1], failed[failures, 2] = wanted, share, memory
                failures += 1
        if strict:
            break
    more = k == queue.size and (left > 0 or shared)
    job, offset = grants.job[:started], grants.offset[: started + 1]
    return started, job, offset, grants.gpu[:end], grants.share[:end], more


def request_columns(o: Observation) -> RequestColumns:
    """Columns of the jobs table that make up `Requests`, in its order."""
    jobs = o.jobs
    return (
        jobs.rigid, jobs.gpus_requested, jobs.gpus_per_worker, jobs.workers_min, jobs.workers_max,
        jobs.gpu_share_requested, jobs.memory_bytes,
    )  # fmt: skip


def room_columns(o: Observation) -> RoomColumns:
    """Columns of the nodes and GPUs tables that make up `Room`, in its order."""
    nodes, gpus = o.nodes, o.gpus
    return nodes.first_gpu, nodes.gpus, nodes.up, nodes.gpus_free, gpus.share_free, gpus.memory_bytes


def start_from_queue(
    o: Observation, queue: Memory, columns: Columns, strict: bool, rule: int
) -> tuple[Allocation | None, Memory]:
    """Start jobs from a sorted queue; looks at its first few, and at more only when these leave room."""
    requests, room, limit = request_columns(o), room_columns(o), 64
    while True:
        rows, queue = first_rows(queue, o, columns, limit)
        started, job, offset, gpu, share, more = start_in_order(rows, strict, rule, requests, room)
        if not more or len(rows) < limit:
            break
        limit *= 16
    if not started:
        return None, queue
    return Allocation(job, offset, gpu, share), {**queue, "waiting": len(o.waiting) - started}


def planned_already(plan: Plan, name: str) -> Plan:
    """The plan of an earlier stage that has allocated GPUs is left alone, with the reason."""
    return plan.because(name, "an earlier stage has allocated GPUs; nothing to do")


def with_starts(plan: Plan, name: str, waiting: int, allocation: Allocation) -> Plan:
    """The plan with jobs started and the reason."""
    text = f"started {len(allocation.job)} of {waiting} waiting jobs"
    return Plan(
        plan.moves, plan.samples_per_step, plan.fetch_order, plan.sync_interval, plan.gpu_share,
        allocation, plan.revisit_s, (*plan.reasons, Reason(name, text, {"started": allocation.job})),
    )  # fmt: skip
