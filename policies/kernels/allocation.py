"""Jitted kernels of S4: state of nodes, priority of jobs, ratios of jobs to nodes, scaling of a job.

A waiting job could take GPUs on every node, so the pairs of waiting jobs and nodes are never stored: their sums
depend on a node only through its free GPUs, and on a job only through the GPUs it asks for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.observation import Bools, Floats, Ints, JobState

WAITING = int(JobState.WAITING)


@jit_in_place
def mean_by(index: Ints, value: Floats, mean: Floats, count: Ints) -> None:
    """Write the mean of the finite values per index (0 .. len(mean) - 1); NaN where there is none."""
    for i in range(mean.size):
        mean[i], count[i] = 0.0, 0
    for k in range(index.size):
        if np.isfinite(value[k]):
            mean[index[k]] += value[k]
            count[index[k]] += 1
    for i in range(mean.size):
        mean[i] = mean[i] / count[i] if count[i] > 0 else np.nan


@jit_in_place
def model_speeds(
    job: Ints, model: Ints, gpus: Ints, samples_per_s: Floats, first: Ints, best: Floats, speed: Floats, count: Ints
) -> None:
    """Write the speed of each GPU model relative to the fastest, 0..1; NaN unknown.

    Geometric mean over jobs of the estimated throughput at the job's first listed GPU count, relative to its
    best. first (-1) and best (0) are scratch by job row, speed and count (0) by model.
    """
    for k in range(job.size):
        if first[job[k]] < 0:
            first[job[k]] = gpus[k]
        if gpus[k] == first[job[k]] and samples_per_s[k] > best[job[k]]:
            best[job[k]] = samples_per_s[k]
    for k in range(job.size):
        if gpus[k] == first[job[k]] and samples_per_s[k] > 0.0:
            speed[model[k]] += np.log(samples_per_s[k] / best[job[k]])
            count[model[k]] += 1
    fastest = 0.0
    for m in range(speed.size):
        speed[m] = np.exp(speed[m] / count[m]) if count[m] > 0 else np.nan
        if speed[m] > fastest:
            fastest = speed[m]
    for m in range(speed.size):
        speed[m] /= fastest


@jit_in_place
def gpus_by_memory(memory_bytes: Floats, gpu_node: Ints, up: Bools, kind: Floats, count: Ints) -> int:
    """Write the distinct memory sizes of GPUs that are up, and how many there are of each; unknown: infinite.

    Returns how many distinct sizes there are; kind and count have space for all GPUs.
    """
    n, k = 0, 0
    for g in range(gpu_node.size):
        if not up[gpu_node[g]]:
            continue
        memory = np.inf if np.isnan(memory_bytes[g]) else memory_bytes[g]
        if k >= n or kind[k] != memory:
            k = 0
            while k < n and kind[k] != memory:
                k += 1
            if k == n:
                kind[n], count[n] = memory, 0
                n += 1
        count[k] += 1
    return n


@jit_in_place
def count_enough(need_bytes: Floats, kind: Floats, count: Ints, enough: Ints) -> None:
    """Write for each need (bytes) how many GPUs have that much memory."""
    for i in range(need_bytes.size):
        enough[i] = 0
        for k in range(kind.size):
            if not kind[k] < need_bytes[i]:
                enough[i] += count[k]


class AllocationClaims(NamedTuple):
    """Columns of the jobs table that determine a job's priority."""

    state: NDArray[np.int8]
    service_s: Floats
    duration_s: Floats
    queued_since_s: Floats
    waited_s: Floats


ClaimColumns = tuple[NDArray[np.int8], Floats, Floats, Floats, Floats]


@jit_in_place
def _known(value: float) -> float:
    return value if value > 0.0 else 0.0


@jit_in_place
def _waited_s(c: AllocationClaims, j: int, now_s: float) -> float:
    """Total waiting time (s) of job row j."""
    waited_s = _known(c.waited_s[j])
    if c.state[j] == WAITING:
        waited_s += _known(now_s - c.queued_since_s[j])
    return waited_s


@jit_in_place
def priorities(
    rows: Ints,
    worth: Floats,
    claims: ClaimColumns,
    now_s: float,
    ageing: float,
    lead_s: float,
    patience_s: float,
    unknown_s: float,
    a: Floats,
) -> None:
    """Write A_i = worth_i * (ageing * (1 + (lead_s + w_i)/s_i) + w_i/patience_s).

    w: total waiting time, s: remaining time; an unknown one counts as `unknown_s`. 1 + w/s is the response
    ratio of Brinch Hansen (1971), which favours short jobs as they wait; `lead_s` favours them from the start. The
    last term lets all priorities grow without bound at the same rate. One worth and one A per row.
    """
    c = AllocationClaims(*claims)
    for i in range(rows.size):
        j = rows[i]
        waited_s = _waited_s(c, j, now_s)
        service_s = unknown_s if np.isnan(c.service_s[j]) else max(c.service_s[j], 1.0)
        a[i] = worth[i] * (ageing * (1.0 + (lead_s + waited_s) / service_s) + waited_s / patience_s)


@jit_in_place
def lateness(
    rows: Ints,
    claims: ClaimColumns,
    now_s: float,
    after_s: float,
    slowdown: float,
    most_s: float,
    unknown_s: float,
    late_s: Floats,
) -> None:
    """Write how long (s) each job has waited beyond its limit: min(after_s + slowdown * duration, most_s).

    An unknown duration counts as `unknown_s`. Between two waiting jobs the difference never changes.
    """
    c = AllocationClaims(*claims)
    for i in range(rows.size):
        j = rows[i]
        duration_s = unknown_s if np.isnan(c.duration_s[j]) else c.duration_s[j]
        late_s[i] = _waited_s(c, j, now_s) - min(after_s + slowdown * duration_s, most_s)


@jit_in_place
def _sum_of_least(at_least: Floats) -> None:
    """Turn x[f] = sum of values at f into S(f) = sum over g of min(g, f) * x[g], in place."""
    above = 0.0
    for f in range(at_least.size - 1, 0, -1):
        above += at_least[f]
        at_least[f] = above
    at_least[0] = 0.0
    for f in range(1, at_least.size):
        at_least[f] += at_least[f - 1]


@jit_in_place
def demand_by_size(wanted: Ints, a: Floats, s: Floats) -> None:
    """Write S(f) = sum_k min(wanted_k, f) * A_k: demand of waiting jobs on a node with f free GPUs."""
    for f in range(s.size):
        s[f] = 0.0
    for k in range(wanted.size):
        s[min(max(wanted[k], 0), s.size - 1)] += a[k]
    _sum_of_least(s)


@jit_in_place
def contention(
    size: Ints,
    free: Ints,
    by_size: Floats,
    gpu_node: Ints,
    gpu_job: Ints,
    job_a: Floats,
    job_trains: Bools,
    worker_job: Ints,
    worker_node: Ints,
    worker_gpus: Floats,
    worker_delay: Floats,
    sums: Floats,
) -> None:
    """Write the denominator of R_ij per node: sum over jobs k of u_kj * A_k / (1 + d_kj).

    Running training jobs count by their workers with the delay d of each, rigid ones by the GPUs they hold,
    waiting ones by `by_size` of the free GPUs. `job_a` is A by job row.
    """
    for n in range(size.size):
        sums[n] = 0.0
    for g in range(gpu_node.size):
        if gpu_job[g] >= 0 and not job_trains[gpu_job[g]]:
            sums[gpu_node[g]] += job_a[gpu_job[g]]
    for w in range(worker_job.size):
        sums[worker_node[w]] += worker_gpus[w] * job_a[worker_job[w]] / (1.0 + worker_delay[w])
    for n in range(size.size):
        sums[n] = (sums[n] + by_size[max(free[n], 0)]) / size[n] if size[n] > 0 else 0.0


@jit_in_place
def entitlements(wanted: Ints, a: Floats, free: Ints, weight: Floats, gives: Floats, ratio: Floats) -> None:
    """Write sum_j R_ij of waiting jobs: A_i * sum_j min(wanted_i, free_j) * weight_j (speed over contention).

    `gives` is scratch with space for 0 .. most free GPUs of a node.
    """
    for f in range(gives.size):
        gives[f] = 0.0
    for n in range(free.size):
        gives[max(free[n], 0)] += weight[n]
    _sum_of_least(gives)
    for i in range(wanted.size):
        ratio[i] = a[i] * gives[min(max(wanted[i], 0), gives.size - 1)]


@jit_in_place
def remote_share(worker: Ints, size_bytes: Floats, local: Bools, total: Floats, remote: Floats) -> None:
    """Write d per worker to `remote`: the share of the bytes it owns that is stored elsewhere; 0: it owns none.

    `total` is scratch.
    """
    for w in range(total.size):
        total[w], remote[w] = 0.0, 0.0
    for k in range(worker.size):
        if worker[k] >= 0 and size_bytes[k] > 0.0:
            total[worker[k]] += size_bytes[k]
            if not local[k]:
                remote[worker[k]] += size_bytes[k]
    for w in range(total.size):
        if total[w] > 0.0:
            remote[w] /= total[w]
