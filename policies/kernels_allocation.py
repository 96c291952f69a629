"""Jitted kernels of S4: state of nodes, priority of jobs, ratios of jobs to nodes, scaling of a job.

A waiting job could take GPUs on every node, so the pairs of waiting jobs and nodes are never laid out: what
they sum to depends on a node only through its free GPUs, and on a job only through the GPUs it asks for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.jit import jit
from policies.observation import Bools, Floats, Ints, JobState

WAITING = int(JobState.WAITING)


@jit
def mean_by(index: Ints, value: Floats, size: int) -> Floats:
    """Mean of the finite values per index in 0..size-1; NaN where there is none."""
    total, count = np.zeros(size), np.zeros(size)
    for k in range(index.size):
        if 0 <= index[k] < size and np.isfinite(value[k]):
            total[index[k]] += value[k]
            count[index[k]] += 1.0
    return total / count


@jit
def least_by(index: Ints, value: Floats, size: int) -> Floats:
    """Least finite value per index in 0..size-1; NaN where there is none."""
    least = np.full(size, np.nan)
    for k in range(index.size):
        if 0 <= index[k] < size and np.isfinite(value[k]) and not value[k] >= least[index[k]]:
            least[index[k]] = value[k]
    return least


@jit
def model_speeds(job: Ints, model: Ints, gpus: Ints, samples_per_s: Floats, jobs: int, models: int) -> Floats:
    """Speed of each GPU model relative to the fastest, 0..1, from estimated throughputs; NaN unknown.

    Geometric mean over jobs of the throughput at the job's first listed GPU count, relative to its best.
    """
    first, best = np.full(jobs, -1, dtype=np.int64), np.zeros(jobs)
    for k in range(job.size):
        if first[job[k]] < 0:
            first[job[k]] = gpus[k]
        if gpus[k] == first[job[k]] and samples_per_s[k] > best[job[k]]:
            best[job[k]] = samples_per_s[k]
    total, count = np.zeros(models), np.zeros(models)
    for k in range(job.size):
        if gpus[k] == first[job[k]] and samples_per_s[k] > 0.0 and 0 <= model[k] < models:
            total[model[k]] += np.log(samples_per_s[k] / best[job[k]])
            count[model[k]] += 1.0
    speed = np.exp(total / count)
    return speed / max(np.nanmax(speed), 1e-300) if count.sum() > 0.0 else speed


@jit
def worker_speeds(job: Ints, node: Ints, response_s: Floats, node_model: Ints, model_speed: Floats) -> Floats:
    """Speed of each worker (sorted by job) relative to the fastest GPU model; NaN unmeasured.

    A job's fastest worker counts as its GPU model does, the others by their time per sample (s).
    """
    speed = np.full(job.size, np.nan)
    first = 0
    while first < job.size:
        end, best = first, -1
        while end < job.size and job[end] == job[first]:
            if response_s[end] > 0.0 and (best < 0 or response_s[end] < response_s[best]):
                best = end
            end += 1
        if best >= 0:
            top = model_speed[node_model[node[best]]]
            for w in range(first, end):
                if response_s[w] > 0.0:
                    speed[w] = response_s[best] / response_s[w] * (1.0 if np.isnan(top) else top)
        first = end
    return speed


@jit
def gpus_with_memory(need_bytes: Floats, memory_bytes: Floats, gpu_node: Ints, up: Bools) -> Ints:
    """For each need (bytes), how many GPUs that are up have that much memory; unknown memory is enough."""
    kinds, count = np.empty(gpu_node.size + 1), np.empty(gpu_node.size + 1, dtype=np.int64)
    n, k = 0, 0
    for g in range(gpu_node.size):
        if not up[gpu_node[g]]:
            continue
        memory = np.inf if np.isnan(memory_bytes[g]) else memory_bytes[g]
        if k >= n or kinds[k] != memory:
            k = 0
            while k < n and kinds[k] != memory:
                k += 1
            if k == n:
                kinds[n], count[n] = memory, 0
                n += 1
        count[k] += 1
    enough = np.zeros(need_bytes.size, dtype=np.int64)
    for i in range(need_bytes.size):
        for k in range(n):
            if not kinds[k] < need_bytes[i]:
                enough[i] += count[k]
    return enough


class Claims(NamedTuple):
    """Columns of the jobs table that make a job's priority."""

    state: NDArray[np.int8]
    priority: Floats
    data_bytes: Floats
    compute_flops: Floats
    service_s: Floats
    queued_since_s: Floats
    waited_s: Floats


ClaimColumns = tuple[NDArray[np.int8], Floats, Floats, Floats, Floats, Floats, Floats]


@jit
def _known(value: float) -> float:
    return value if value > 0.0 else 0.0


@jit
def priorities(
    rows: Ints, fit: Bools, claims: ClaimColumns, now_s: float, ageing: float, unknown_s: float
) -> Floats:
    """A_i = p_i * (D_i/D_max + C_i/C_max + ageing * (1 + waited_i/service_i)) * fit_i, one per row.

    D, C: data (bytes) and compute (FLOP) demand, p: priority. The last term is the response ratio of Brinch
    Hansen (1971): a job's claim grows without bound as it waits, faster the shorter it is. An unknown
    service time counts as `unknown_s`.
    """
    c = Claims(*claims)
    d_max, c_max = 0.0, 0.0
    for j in rows:
        d_max, c_max = max(d_max, _known(c.data_bytes[j])), max(c_max, _known(c.compute_flops[j]))
    result = np.empty(rows.size)
    for i in range(rows.size):
        j = rows[i]
        demand = _known(c.data_bytes[j]) / d_max if d_max > 0.0 else 0.0
        demand += _known(c.compute_flops[j]) / c_max if c_max > 0.0 else 0.0
        waited_s = _known(c.waited_s[j])
        if c.state[j] == WAITING:
            waited_s += _known(now_s - c.queued_since_s[j])
        service_s = unknown_s if np.isnan(c.service_s[j]) else max(c.service_s[j], 1.0)
        p = 1.0 if np.isnan(c.priority[j]) else c.priority[j]
        result[i] = p * (demand + ageing * (1.0 + waited_s / service_s)) * (1.0 if fit[i] else 0.0)
    return result


@jit
def demand_by_size(wanted: Ints, a: Floats, most: int) -> Floats:
    """S(f) = sum_k min(wanted_k, f) * A_k, f = 0..most: what waiting jobs ask of a node with f free GPUs."""
    asks = np.zeros(most + 2)
    for k in range(wanted.size):
        asks[min(max(wanted[k], 0), most)] += a[k]
    above, s = 0.0, np.zeros(most + 1)
    for f in range(most, 0, -1):
        above += asks[f]
        s[f] = above
    return np.cumsum(s)


@jit
def contention(
    size: Ints, free: Ints, by_size: Floats, gpu_node: Ints, gpu_job: Ints, job_a: Floats,
    worker_job: Ints, worker_node: Ints, worker_gpus: Floats, worker_delay: Floats, job_trains: Bools,
) -> Floats:  # fmt: skip
    """Denominator of R_ij per node: sum over jobs k of u_kj * A_k / (1 + d_kj).

    Running training jobs count by their workers with the delay d of each, rigid ones by the GPUs they hold,
    waiting ones by `by_size` of the free GPUs. `job_a` is A by job row.
    """
    total = np.zeros(size.size)
    for g in range(gpu_node.size):
        if gpu_job[g] >= 0 and not job_trains[gpu_job[g]]:
            total[gpu_node[g]] += job_a[gpu_job[g]]
    for w in range(worker_job.size):
        total[worker_node[w]] += worker_gpus[w] * job_a[worker_job[w]] / (1.0 + worker_delay[w])
    for n in range(size.size):
        total[n] = (total[n] + by_size[max(free[n], 0)]) / size[n] if size[n] > 0 else 0.0
    return total


@jit
def entitlements(wanted: Ints, a: Floats, free: Ints, weight: Floats) -> Floats:
    """sum_j R_ij of waiting jobs: A_i * sum_j min(wanted_i, free_j) * weight_j (speed over contention)."""
    most = max(free.max(), 0) if free.size else 0
    level = np.zeros(most + 2)
    for n in range(free.size):
        level[max(free[n], 0)] += weight[n]
    above, gives = 0.0, np.zeros(most + 1)
    for f in range(most, 0, -1):
        above += level[f]
        gives[f] = above
    gives = np.cumsum(gives)
    result = np.empty(wanted.size)
    for i in range(wanted.size):
        result[i] = a[i] * gives[min(max(wanted[i], 0), most)]
    return result


@jit
def remote_share(worker: Ints, size_bytes: Floats, local: Bools, workers: int) -> Floats:
    """d per worker: the share of the bytes it owns that is stored elsewhere; 0 where it owns none."""
    total, remote = np.zeros(workers), np.zeros(workers)
    for k in range(worker.size):
        if worker[k] >= 0 and size_bytes[k] > 0.0:
            total[worker[k]] += size_bytes[k]
            if not local[k]:
                remote[worker[k]] += size_bytes[k]
    return remote / np.maximum(total, 1e-300)
