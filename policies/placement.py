"""Jitted kernels of allocation: feasibility, and the placing of gangs on nodes."""

from __future__ import annotations

import numpy as np

from policies.jit import jit
from policies.observation import Bools, Floats, Ints


@jit
def _share_held(job: int, gpu: int, worker_job: Ints, worker_gpu: Ints, worker_share: Floats) -> float:
    """Share of `gpu` that `job` holds through its rows of the workers table (sorted by job)."""
    held = 0.0
    for w in range(np.searchsorted(worker_job, job), worker_job.size):
        if worker_job[w] != job:
            break
        if worker_gpu[w] == gpu:
            held += worker_share[w]
    return held


@jit
def allocation_fault(
    job, offset, gpu, share,
    job_state, job_rigid, job_gpus, job_gpus_per_worker, job_workers_min, job_workers_max, job_memory_bytes,
    gpu_node, gpu_job, gpu_share_free, gpu_memory_bytes, node_up,
    worker_job, worker_gpu, worker_share, done,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """First fault of an allocation as (code, job row, gpu row); code 0 when feasible.

    Codes are those of `contract._ALLOCATION_FAULTS`. A GPU's room is its free share plus what the listed
    jobs give up. Cost O(k log k) in the listed jobs and GPUs, independent of the cluster's size.
    """
    if offset.size != job.size + 1 or offset[0] != 0 or offset[-1] != gpu.size or share.size != gpu.size:
        return 11, -1, -1
    listed = np.sort(job)
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
                if held != job_gpus[j]:
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
    if gpu.size == 0:
        return 0, -1, -1
    owner = np.empty(gpu.size, dtype=np.int64)
    for k in range(job.size):
        owner[offset[k] : offset[k + 1]] = job[k]
    order = np.argsort(gpu)
    e = 0
    while e < order.size:
        g = gpu[order[e]]
        wanted = 0.0
        first = e
        while e < order.size and gpu[order[e]] == g:
            for other in range(first, e):
                if owner[order[other]] == owner[order[e]]:
                    return 9, owner[order[e]], g
            wanted += share[order[e]]
            e += 1
        room = gpu_share_free[g]
        holder = gpu_job[g]
        if holder >= 0:
            at = np.searchsorted(listed, holder)
            if at < listed.size and listed[at] == holder:
                room = 1.0
        elif holder == -2:
            for k in range(job.size):
                room += _share_held(job[k], g, worker_job, worker_gpu, worker_share)
        if wanted > room + 1e-9:
            return 5, owner[order[first]], g
    return 0, -1, -1
