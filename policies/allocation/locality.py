"""S422's d: distance of nodes from a job's data.

For one job and its candidate nodes, d is the time that its workers would fetch remote data, relative to its computing
time. Candidates are the nodes that store its data and the first others by weight: no more of those can be used.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.kernels.gangs import RoomColumns, frozen
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.physics import overlapped_s

_NIC_LEAST_FREE = 0.01  # an interface counts as at least that much free


def with_data(o: Observation, rows: Ints) -> Bools:
    """Whether each job row's data is stored on known nodes and takes time to read."""
    if not len(o.stores):
        return np.zeros(len(rows), dtype=np.bool_)
    known = np.zeros(len(o.jobs), dtype=np.bool_)
    known[o.stores.job] = True
    return np.asarray(known[rows] & (o.jobs.input_bytes[rows] > 0.0))


def fetch_s_of(o: Observation, row: int, gpus: int, nodes: Ints) -> Floats:
    """Time (s) for which a job (row) with this many GPUs would fetch what is not stored on each of `nodes`.

    A node with u of the job's n GPUs reads u/n of its data. The part that it does not store comes over its
    interface, or at the rate of the storing nodes if these are slower.
    """
    first, end = np.searchsorted(o.stores.job, (row, row + 1))
    homes, ratio = o.stores.node[first:end], o.stores.ratio[first:end]
    stored = np.zeros(len(o.nodes))
    stored[homes] = ratio
    taken = np.clip(o.nodes.gpus_free[nodes], 1, gpus) / gpus
    remote = np.maximum(taken - stored[nodes], 0.0)
    s_per_byte = 1.0 / _free_rate(o)
    source_s = float((ratio * s_per_byte[homes]).max())
    fetch_s: Floats = np.maximum(remote * s_per_byte[nodes], remote / taken * source_s)
    return float(o.jobs.input_bytes[row]) * fetch_s


def _free_rate(o: Observation) -> Floats:
    """Free rate (bytes/s) of each node's interface; infinite where unknown."""
    nodes = o.nodes
    busy = np.clip(np.nan_to_num(nodes.nic_busy_ratio), 0.0, 1.0 - _NIC_LEAST_FREE)
    rate: Floats = np.where(nodes.nic_bytes_per_s > 0.0, nodes.nic_bytes_per_s * (1.0 - busy), np.inf)
    return rate


def own_room(proposal: Proposal, row: int, gpus: int) -> RoomColumns:
    """The room for one job with data: weights over 1 + d, with its candidate nodes in order."""
    o, columns = proposal.observation, proposal.columns
    weight, order = columns.weight, columns.order
    free = columns.free
    first, end = np.searchsorted(o.stores.job, (row, row + 1))
    some = order[free[order] > 0]
    near = np.zeros(len(o.nodes), dtype=np.bool_)
    near[o.stores.node[first:end]] = True
    looked_at = some[near[some] | (np.cumsum(~near[some]) <= gpus)]
    own = weight.copy()
    work_s = max(float(np.nan_to_num(o.jobs.service_s[row], nan=1.0)), 1e-9)
    own[looked_at] = weight[looked_at] / (1.0 + fetch_s_of(o, row, gpus, looked_at) / work_s)
    ranked = looked_at[np.lexsort((free[looked_at], -own[looked_at]))]
    return columns._replace(weight=frozen(own), order=frozen(ranked))


def input_s(o: Observation, row: int, nodes: Ints, gpus: Ints) -> float:
    """Time (s) for which a job (row) with these GPUs on `nodes` is supplied with input: fetched and prepared."""
    fetched_s = _gathered_s(o, row, nodes, gpus / gpus.sum()) if with_data(o, np.array([row]))[0] else 0.0
    return max(fetched_s, _prepared_s(o, row, nodes, gpus))


def _gathered_s(o: Observation, row: int, nodes: Ints, part: Floats) -> float:
    """Time (s) to fetch data if each of `nodes` reads this part, first what it stores itself.

    The others send at most what they store.
    """
    first, end = np.searchsorted(o.stores.job, (row, row + 1))
    more = np.zeros(len(o.nodes))
    more[nodes] = part
    more[o.stores.node[first:end]] -= o.stores.ratio[first:end]
    some = np.union1d(nodes, o.stores.node[first:end])
    return float(o.jobs.input_bytes[row]) * float((np.abs(more[some]) / _free_rate(o)[some]).max())


def _prepared_s(o: Observation, row: int, nodes: Ints, gpus: Ints) -> float:
    """Time (s) for which hosts prepare samples; a node's cores are shared equally by workers of training jobs."""
    core_s = float(o.jobs.prepare_core_s[row])
    if not core_s > 0.0:
        return 0.0
    workers = gpus / max(int(o.jobs.gpus_per_worker[row]), 1)
    there = np.bincount(o.workers.node[o.workers.job != row], minlength=len(o.nodes))[nodes] + workers
    samples = float(np.nan_to_num(o.jobs.remaining_samples[row])) / max(workers.sum(), 1.0)
    return float((samples * core_s * there / o.nodes.cores[nodes]).max())


def slower_apart(o: Observation, row: int, gpus: int, interval: int, nodes: Ints) -> float:
    """Step of a training job (row) with this many GPUs on `nodes` over that on its estimate's nodes; 1 where unknown.

    The estimate is for the fewest nodes with the fastest model, or, where the job is apart, for these and one more.
    """
    speeds, gamma = o.speeds, float(np.nan_to_num(o.jobs.gamma[row], nan=1.0))
    here = np.flatnonzero((speeds.job == row) & (speeds.gpus == gpus))
    if not len(here):
        return 1.0
    k = here[np.argmax(speeds.samples_per_s[here])]
    work_s, nic = float(o.jobs.global_batch[row] / speeds.samples_per_s[k]), o.nodes.nic_bytes_per_s
    model = o.gpus.model[np.minimum(o.nodes.first_gpu, len(o.gpus) - 1)]
    order = np.lexsort((-o.nodes.gpus, model != speeds.gpu_model[k]))
    count = np.cumsum(o.nodes.gpus[order])
    one_node = bool(count[0] >= gpus)
    if one_node:  # half of the workers on the first
        count = np.minimum(count, gpus // 2) + np.maximum(count - count[0], 0)
    listed = order[: int(np.searchsorted(count, gpus)) + 1]
    slow = float(nic[listed].min() / max(nic[nodes].min(), 1.0)) if nic[nodes].min() > 0.0 else 1.0
    apart_s = float((speeds.apart_exchange_s if one_node else speeds.exchange_s)[k]) * max(slow, 1.0)
    step_s, then_s = (
        (interval - 1) * work_s + overlapped_s(work_s, exchange_s, gamma)
        for exchange_s in (float(speeds.exchange_s[k]), apart_s)
    )
    return max(then_s / step_s, 1.0) if then_s < np.inf and step_s > 0.0 else 1.0
