"""Jitted kernels of allocation: feasibility, and the placing of gangs on nodes.

Three named placement rules:

- `counted`: the GPUs are one pool, nodes are ignored; the lowest-numbered free GPUs are taken.
- `packed`: whole free nodes (largest first) for the full part of a gang, best fit for the rest, so that it
  sits on the fewest nodes its size allows; where that is not possible now, it is not placed.
- `any`: the fewest nodes possible now (emptiest first, the rest by best fit); always placed while enough
  GPUs are free.

A fourth, `WEIGHTED`, takes nodes by a worth that the caller gives, inside one group of nodes if it can. `TIGHT` takes
instead, for a gang that fits into one node, the fullest of the fast nodes that have room for it.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.kernels.arrays import position
from equipoise.policies.kernels.jit import ZERO, jit_in_place
from equipoise.policies.observation import Bools, Floats, Ints

COUNTED, PACKED, ANY = 0, 1, 2
PLACEMENTS = {"counted": COUNTED, "packed": PACKED, "any": ANY}
_BLOCK = 64  # nodes of `Room.order` of which is known what none has more of
WHOLE = 1.0 - 1e-9  # a GPU with at least this much room is free

# Handed on by kernels; see `policies.kernels.jit.ZERO`.
NOTHING, ONE, WEIGHTED, TIGHT = (cast(int, np.int64(value)) for value in (-1, 1, 3, 4))
_EQUALLY_FAST = 0.9  # of the fastest node with room, from which on a node will do


class Room(NamedTuple):
    """Free capacity of the cluster during one decision: working copies and scratch space.

    Kernels take single fields of it where possible: each array argument costs compile time.
    """

    first_gpu: Ints  # per node: row of its first GPU
    size: Ints  # per node: GPUs
    up: Bools  # per node
    free: Ints  # per node: whole GPUs left
    room: Floats  # per GPU: share left, 0..1
    memory_bytes: Floats  # per GPU; NaN unknown, taken as enough
    weight: Floats  # per node, for `WEIGHTED`: worth of a GPU there
    speed: Floats  # per node, for `TIGHT`
    group: Ints  # per node, its GPU model: `WEIGHTED` stays inside one group if it can, others if told
    order: Ints  # nodes by descending weight, for `WEIGHTED`
    scratch: Ints  # 6 rows of one number per node
    most: Ints  # no node has more whole GPUs left, and then none of each block of `order` (see `tighten`)
    least_memory_bytes: float  # over all GPUs
    largest: int  # GPUs of the largest node
    groups: int


@jit_in_place
def gpus_needed(rigid: bool, requested: int, per_worker: int, workers_min: int, workers_max: int) -> int:
    """GPUs for a job: exactly the request of a rigid one, else the nearest number of whole workers."""
    if rigid:
        return requested
    return min(max(requested // per_worker, workers_min), workers_max) * per_worker


@jit_in_place
def _count_usable(
    first_gpu: Ints, up: Bools, room: Floats, memory: Floats, share: float, need: float, usable: Ints, size: Ints
) -> None:
    """Per node: GPUs with room and memory for a job, and (in place of all its GPUs) those with memory."""
    for n in range(size.size):
        usable[n] = 0
        gpus = size[n]
        for g in range(first_gpu[n], first_gpu[n] + gpus):
            if memory[g] < need:
                size[n] -= 1
            elif up[n] and room[g] >= share - 1e-9:
                usable[n] += 1


@jit_in_place
def _choose_counted(usable: Ints, wanted: int, node: Ints, count: Ints) -> int:
    """Lowest-numbered nodes first: the GPUs are one pool. Removes them from `usable`."""
    k = 0
    for n in range(usable.size):
        if usable[n] > 0 and wanted > 0:
            node[k], count[k] = n, min(usable[n], wanted)
            usable[n] -= count[k]
            wanted -= count[k]
            k += 1
    return k


@jit_in_place
def _best_fit(usable: Ints, wanted: int) -> int:
    """The node with the fewest usable GPUs among those with enough; -1 when there is none."""
    best = -1
    for n in range(usable.size):
        if usable[n] >= wanted and (best < 0 or usable[n] < usable[best]):
            best = n
    return best


@jit_in_place
def _choose_any(usable: Ints, wanted: int, node: Ints, count: Ints) -> int:
    """Fewest nodes possible now: the emptiest ones whole, the rest by best fit. Removes them from `usable`."""
    k = 0
    while wanted > 0:
        most, best = 0, _best_fit(usable, wanted)
        for n in range(usable.size):
            most = max(most, usable[n])
        if most == 0:
            return k
        for n in range(usable.size):
            if wanted > 0 and (n == best or (best < 0 and usable[n] == most and wanted > most)):
                node[k], count[k] = n, min(usable[n], wanted)
                usable[n] -= count[k]
                wanted -= count[k]
                k += 1
    return k


@jit_in_place
def _choose_packed(usable: Ints, size: Ints, up: Bools, wanted: int, node: Ints, count: Ints) -> int:
    """Whole free nodes for the full part, largest first, best fit for the rest. Removes them from `usable`.

    Stops early when the gang must wait.
    """
    k, level = 0, 2**62
    while wanted > 0:
        below, nodes = 0, 0
        for n in range(size.size):
            if up[n] and size[n] < level and size[n] >= below:
                nodes = nodes + 1 if size[n] == below else 1
                below = size[n]
        if below == 0:
            return k
        level = below
        whole = min(nodes, wanted // level)
        for n in range(size.size):
            if whole > 0 and up[n] and size[n] == level and usable[n] == level:
                node[k], count[k] = n, level
                usable[n] = 0
                wanted -= level
                whole -= 1
                nodes -= 1
                k += 1
        if whole > 0:
            return k
        if 0 < wanted < level and nodes > 0:
            best = _best_fit(usable, wanted)
            if best >= 0:
                node[k], count[k] = best, wanted
                usable[best] -= wanted
                k += 1
            return k
    return k


@jit_in_place
def tighten(c: Room) -> None:
    """Update `c.most`, so that fewer nodes are examined; must be repeated once GPUs are released."""
    most = 0
    for n in range(c.free.size):
        most = max(most, c.free[n])
    c.most[0] = most
    if c.order.size > _BLOCK:
        for b in range(-(-c.order.size // _BLOCK)):
            most = 0
            for i in range(b * _BLOCK, min((b + 1) * _BLOCK, c.order.size)):
                most = max(most, c.free[c.order[i]])
            c.most[1 + b] = most


@jit_in_place
def _choose_heaviest(
    usable: Ints,
    most_usable: int,
    blocks: Ints,
    weight: Floats,
    group: Ints,
    order: Ints,
    first: int,
    only: int,
    wanted: int,
    node: Ints,
    count: Ints,
) -> tuple[int, float]:
    """Nodes of group `only` (-1: any) one by one, each by the worth of the missing GPUs that it can provide.

    Examines `order` from `first` on, until no node can be worth more, and skips blocks in which none can; removes
    nodes from `usable`. Returns (nodes, worth), with a negative worth when these are not enough.
    """
    k, worth = 0, 0.0
    while wanted > 0:
        best, most, i = -1, 0.0, first
        while i < order.size:
            n = order[i]
            if weight[n] * min(wanted, most_usable) <= most:
                break
            if blocks.size and i % _BLOCK == 0 and weight[n] * min(wanted, blocks[1 + i // _BLOCK]) <= most:
                i += _BLOCK
                continue
            value = min(usable[n], wanted) * weight[n]
            if value > most and (only < 0 or group[n] == only):
                best, most = n, value
            i += 1
        if best < 0:
            return k, -1.0
        node[k], count[k] = best, min(usable[best], wanted)
        usable[best] -= count[k]
        wanted -= count[k]
        worth += most
        k += 1
    return k, worth


@jit_in_place
def _put_back(usable: Ints, node: Ints, count: Ints, k: int) -> None:
    for i in range(k):
        usable[node[i]] += count[i]


@jit_in_place
def _choose_weighted(
    usable: Ints,
    most_usable: int,
    blocks: Ints,
    weight: Floats,
    group: Ints,
    groups: int,
    order: Ints,
    wanted: int,
    alike: bool,
    node: Ints,
    count: Ints,
) -> int:
    """The heaviest nodes of the group of highest worth; if no group is enough and not `alike`, of all groups."""
    first = 0
    while first < order.size and usable[order[first]] == 0:
        first += 1
    best, most = NOTHING, -1.0
    for only in range(groups if groups > 1 else 0):
        k, worth = _choose_heaviest(usable, most_usable, blocks, weight, group, order, first, only, wanted, node, count)
        _put_back(usable, node, count, k)
        if worth > most:
            best, most = only, worth
    if alike and groups > 1 and best < 0:
        return 0
    return _choose_heaviest(usable, most_usable, blocks, weight, group, order, first, best, wanted, node, count)[0]


@jit_in_place
def _choose_tight(
    usable: Ints, weight: Floats, speed: Floats, order: Ints, wanted: int, node: Ints, count: Ints
) -> int:
    """The fullest node that has room for a whole gang among the fast ones, the heaviest on ties. Removes its GPUs."""
    best, fastest = -1, 0.0
    for n in order:
        if usable[n] >= wanted and weight[n] > 0.0:
            fastest = max(fastest, speed[n])
    for n in order:
        if usable[n] < wanted or weight[n] <= 0.0 or speed[n] < _EQUALLY_FAST * fastest:
            continue
        if best < 0 or usable[n] < usable[best] or (usable[n] == usable[best] and weight[n] > weight[best]):
            best = n
    if best < 0:
        return 0
    node[0], count[0] = best, wanted
    usable[best] -= wanted
    return 1


@jit_in_place
def _choose_tightest(
    first_gpu: Ints, size: Ints, up: Bools, room: Floats, memory: Floats, share: float, need: float
) -> tuple[int, int]:
    """(node, GPU) with the least room that holds `share`, lowest-numbered on ties; (-1, -1) when none."""
    node, gpu = -1, -1
    for n in range(size.size):
        for g in range(first_gpu[n], first_gpu[n] + size[n]):
            fits = up[n] and room[g] >= share - 1e-9 and not memory[g] < need
            if fits and (gpu < 0 or room[g] < room[gpu] - 1e-12):
                node, gpu = n, g
    return node, gpu


@jit_in_place
def take(free: Ints, room: Floats, n: int, gpu: int, share: float) -> None:
    """Remove `share` of a GPU on node n from the room."""
    if room[gpu] >= WHOLE:
        free[n] -= 1
    room[gpu] = max(room[gpu] - share, 0.0)


@jit_in_place
def give(free: Ints, room: Floats, n: int, gpu: int, share: float) -> None:
    """Return `share` of a GPU on node n to the room."""
    before = room[gpu]
    room[gpu] = min(before + share, 1.0)
    if before < WHOLE <= room[gpu]:
        free[n] += 1


@jit_in_place
def take_all(c: Room, gpu: Ints, first: int, end: int, gpu_node: Ints, share: float) -> None:
    """Remove the same share of gpu[first:end] from the room."""
    for e in range(first, end):
        take(c.free, c.room, gpu_node[gpu[e]], gpu[e], share)


@jit_in_place
def give_all(c: Room, gpu: Ints, first: int, end: int, gpu_node: Ints, share: float) -> None:
    """Return the same share of gpu[first:end] to the room."""
    for e in range(first, end):
        give(c.free, c.room, gpu_node[gpu[e]], gpu[e], share)


@jit_in_place
def place(c: Room, wanted: int, share: float, need: float, alike: bool, rule: int, out: Ints, at: int) -> bool:
    """Place a gang of `wanted` GPUs (or the same `share` of each) by `rule`; False when it must wait.

    `need` is memory per GPU (bytes); `alike`: all in one group, the first that has room. Writes the GPU rows to
    out[at : at + wanted] and removes them from `c`; changes nothing when False.
    """
    if wanted <= 0:
        return False
    first_gpu, room, memory = c.first_gpu, c.room, c.memory_bytes
    if wanted == 1 and share < WHOLE and rule != COUNTED:
        n, g = _choose_tightest(first_gpu, c.size, c.up, room, memory, share, need)
        if g >= 0:
            out[at] = g
            take(c.free, room, n, g, share)
        return g >= 0
    grouped = alike and wanted > 1 and c.groups >= 2 and rule < WEIGHTED
    node, count = c.scratch[0], c.scratch[1]
    for only in range(ZERO if grouped else NOTHING, c.groups if grouped else ZERO):  # -1: of any group
        usable, size, most = c.free, c.size, c.most[0]
        blocks = c.most if c.order.size > _BLOCK else c.most[:0]
        if share < WHOLE or need > c.least_memory_bytes or only >= 0:
            usable, size, most, blocks = c.scratch[2], c.scratch[3], c.largest, c.most[:0]
            for n in range(size.size):
                size[n] = c.size[n]
            _count_usable(first_gpu, c.up, room, memory, share, need, usable, size)
            if only >= 0:
                for n in range(size.size):
                    if c.group[n] != only:
                        usable[n], size[n] = 0, 0
        if rule == COUNTED:
            chosen = _choose_counted(usable, wanted, node, count)
        elif rule == ANY:
            chosen = _choose_any(usable, wanted, node, count)
        elif rule == PACKED:
            chosen = _choose_packed(usable, size, c.up, wanted, node, count)
        else:
            chosen = 0
            if rule == TIGHT:
                chosen = _choose_tight(usable, c.weight, c.speed, c.order, wanted, node, count)
        if rule >= WEIGHTED and chosen == 0:
            chosen = _choose_weighted(
                usable, most, blocks, c.weight, c.group, c.groups, c.order, wanted, alike, node, count
            )
        _put_back(usable, node, count, chosen)
        end = at
        for k in range(chosen):
            first, missing = first_gpu[node[k]], count[k]
            for g in range(first, first + c.size[node[k]]):
                if missing > 0 and room[g] >= share - 1e-9 and not memory[g] < need:
                    out[end] = g
                    end += 1
                    missing -= 1
        if end - at >= wanted:
            end = at
            for k in range(chosen):
                for _ in range(count[k]):
                    take(c.free, room, node[k], out[end], share)
                    end += 1
            return True
    return False


@jit_in_place
def _owner(offset: Ints, entry: int) -> int:
    """The listed job to which an entry of the GPU list belongs."""
    return position(offset, entry + 1) - 1


@jit_in_place
def _share_held(job: int, gpu: int, worker_job: Ints, worker_gpu: Ints, worker_share: Floats) -> float:
    """Share of `gpu` that `job` holds through its rows of the workers table (sorted by job)."""
    held = 0.0
    for w in range(position(worker_job, job), worker_job.size):
        if worker_job[w] != job:
            break
        if worker_gpu[w] == gpu:
            held += worker_share[w]
    return held


@jit_in_place
def allocation_fault(
    job: Ints,
    offset: Ints,
    gpu: Ints,
    share: Floats,
    listed: Ints,
    order: Ints,
    job_state: NDArray[np.int8],
    job_rigid: Bools,
    job_gpus: Ints,
    job_gpus_per_worker: Ints,
    job_workers_min: Ints,
    job_workers_max: Ints,
    job_memory_bytes: Floats,
    job_alike: Bools,
    gpu_model: Ints,
    gpu_node: Ints,
    gpu_job: Ints,
    gpu_share_free: Floats,
    gpu_memory_bytes: Floats,
    node_up: Bools,
    worker_job: Ints,
    worker_gpu: Ints,
    worker_share: Floats,
    done: int,
) -> tuple[int, int, int]:
    """First fault of an allocation as (code, job row, gpu row); code 0 when feasible.

    Codes are those of `feasibility._ALLOCATION_FAULTS`. A GPU's room is its free share plus the shares that the
    listed jobs release. `listed` are the jobs, ascending; `order` sorts `gpu`. Cost O(k log k) in the listed jobs
    and GPUs, independent of the cluster's size.
    """
    if offset.size != job.size + 1 or offset[0] != 0 or offset[-1] != gpu.size or share.size != gpu.size:
        return 11, -1, -1
    for k in range(listed.size):
        if listed[k] < 0 or listed[k] >= job_state.size or (k > 0 and listed[k] == listed[k - 1]):
            return 1, listed[k], -1
    for k in range(job.size):
        j = job[k]
        held = offset[k + 1] - offset[k]
        if held < 0:
            return 11, -1, -1
        if job_state[j] == done:
            return 2, j, -1
        if held > 0:
            if job_rigid[j]:
                per = job_gpus_per_worker[j]
                fewer = held < job_gpus[j] and job_workers_max[j] > job_workers_min[j]
                if held != job_gpus[j] and not (fewer and held % per == 0 and held >= per * job_workers_min[j]):
                    return 6, j, -1
            else:
                per = job_gpus_per_worker[j]
                if held % per != 0 or held < per * job_workers_min[j] or held > per * job_workers_max[j]:
                    return 7, j, -1
        for e in range(offset[k], offset[k + 1]):
            g = gpu[e]
            if g < 0 or g >= gpu_node.size:
                return 3, j, g
            if not node_up[gpu_node[g]]:
                return 4, j, g
            if not (share[e] > 0.0 and share[e] <= 1.0):
                return 10, j, g
            if gpu_memory_bytes[g] < job_memory_bytes[j]:
                return 8, j, g
            if job_alike[j] and gpu_model[g] != gpu_model[gpu[offset[k]]]:
                return 12, j, g
    if gpu.size == 0:
        return 0, -1, -1
    e = 0
    while e < order.size:
        g = gpu[order[e]]
        wanted = 0.0
        first = e
        while e < order.size and gpu[order[e]] == g:
            for other in range(first, e):
                if _owner(offset, order[other]) == _owner(offset, order[e]):
                    return 9, job[_owner(offset, order[e])], g
            wanted += share[order[e]]
            e += 1
        room = gpu_share_free[g]
        holder = gpu_job[g]
        if holder >= 0:
            at = position(listed, holder)
            if at < listed.size and listed[at] == holder:
                room = 1.0
        elif holder == -3:
            return 13, job[_owner(offset, order[first])], g
        elif holder == -2:
            for k in range(job.size):
                room += _share_held(job[k], g, worker_job, worker_gpu, worker_share)
        if wanted > room + 1e-9:
            return 5, job[_owner(offset, order[first])], g
    return 0, -1, -1
