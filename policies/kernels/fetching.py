"""Jitted kernels of the order of fetches: arrays in, arrays out, over all training jobs at once.

Workers are sorted by job. Times in s, sizes in bytes. An unknown value is NaN.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.kernels.dataflow import LinkArrays, part_of_source, source_rates, transfer_time
from equipoise.policies.kernels.jit import jit
from equipoise.policies.observation import Floats, Ints


@jit
def fetch_times(rows: Ints, size_bytes: Floats, source: Ints, target: Ints, links: LinkArrays) -> Floats:
    """Seconds to fetch each of the shards `rows` from its node to `target` (aligned with `rows`)."""
    fetch_s = np.empty(rows.size)
    for k in range(rows.size):
        fetch_s[k] = transfer_time(links, source[rows[k]], target[k], size_bytes[rows[k]])
    return fetch_s


@jit
def shard_priority(
    fetch_s: Floats, needed_s: Floats, size_bytes: Floats, job: Ints, jobs: int, alpha: float, beta: float
) -> Floats:
    """P = alpha * U + beta * S. `job` numbers 0 .. jobs - 1.

    U = fetch / (fetch + max(needed - fetch, 0)), the inverse critical ratio: 1 when no slack is left;
    S = 1 - size / largest size of the job. An unknown need has U = 0.
    """
    largest = np.zeros(jobs)
    for k in range(job.size):
        largest[job[k]] = max(largest[job[k]], size_bytes[k])
    priority = np.empty(job.size)
    for k in range(job.size):
        urgency = 0.0
        if needed_s[k] <= fetch_s[k]:
            urgency = 1.0
        elif fetch_s[k] > 0.0 and np.isfinite(needed_s[k]):
            urgency = fetch_s[k] / needed_s[k]
        smallness = 1.0 - size_bytes[k] / largest[job[k]] if largest[job[k]] > 0.0 else 0.0
        priority[k] = alpha * urgency + beta * smallness
    return priority


@jit
def fetch_queues(
    size_bytes: Floats,
    source: Ints,
    owner: Ints,
    needed_s: Floats,
    begin: Ints,
    end: Ints,
    most: int,
    node: Ints,
    rack: Ints,
    links: LinkArrays,
) -> tuple[Floats, Ints, Floats]:
    """Arrival times of shards fetched in this order, the late ones, and the bytes before those at other workers.

    A shard waits for those before it that leave the same node (at the node's fastest measured rate), reach the
    same node, or go between the same two racks; it has the rate of its own path. Columns by shard, workers of its
    job are begin .. end - 1; rack by node.
    Returns (seconds by shard, at most `most` late ones, bytes before each of these by worker of its job).
    """
    out, into = np.zeros(rack.size), np.zeros(rack.size)
    racks, fastest = rack.max() + 1, source_rates(links)
    between = np.zeros((racks, racks))
    arrives_s, late, count = np.empty(source.size), np.empty(most, dtype=np.int64), 0
    before = np.empty((most, (end - begin).max()))
    for k in range(source.size):
        s, t = source[k], node[owner[k]]
        queued = _queued(s, t, out, into, between, rack, part_of_source(links, fastest, s, t))
        arrives_s[k] = transfer_time(links, s, t, queued + size_bytes[k])
        if arrives_s[k] > needed_s[k] and count < most:
            late[count] = k
            for w in range(begin[k], end[k]):
                part = part_of_source(links, fastest, s, node[w])
                before[count, w - begin[k]] = _queued(s, node[w], out, into, between, rack, part)
            count += 1
        out[s] += size_bytes[k]
        into[t] += size_bytes[k]
        between[rack[s], rack[t]] += size_bytes[k]
    return arrives_s, late[:count], before[:count]


@jit
def _queued(s: int, t: int, out: Floats, into: Floats, between: Floats, rack: Ints, part: float) -> float:
    queued = max(float(out[s]) * part, float(into[t]))
    return queued if rack[s] == rack[t] else max(queued, float(between[rack[s], rack[t]]))


@jit
def lateness_elsewhere(
    size_bytes: float,
    samples: float,
    source: int,
    needed_s: float,
    late_s: float,
    owner: int,
    worker: int,
    before: float,
    node: Ints,
    capacity: Floats,
    computing: Floats,
    owned: Floats,
    room_bytes: Floats,
    links: LinkArrays,
) -> float:
    """Lateness in s of a late shard at `worker` instead of `owner`; infinite where it must not go.

    It may go to a node that has room and can fetch it in time, to a worker that would still finish before the owner,
    which reads its queue at `capacity` and stalls while this shard is late, beyond its computing (`computing`).
    `before`: bytes it waits for.
    """
    fetch_s = transfer_time(links, source, node[worker], before + size_bytes)
    if worker == owner or fetch_s > needed_s or (fetch_s > 0.0 and size_bytes > room_bytes[node[worker]]):
        return np.inf
    tail_s = float(owned[worker] / capacity[worker])
    finish_s = max(tail_s, fetch_s) + samples / capacity[worker]
    if not finish_s < max(owned[owner] / capacity[owner], owned[owner] / computing[owner] + late_s):
        return np.inf
    return max(fetch_s - tail_s, 0.0)


@jit
def distribute_late(
    rows: Ints,
    size_bytes: Floats,
    samples: Floats,
    source: Ints,
    needed_s: Floats,
    late_s: Floats,
    owner: Ints,
    begin: Ints,
    end: Ints,
    before: Floats,
    node: Ints,
    capacity: Floats,
    computing: Floats,
    owned: Floats,
    room_bytes: Floats,
    links: LinkArrays,
) -> Ints:
    """New owner of each late shard, most critical first, or -1: the least late of its job's workers
    begin .. end - 1, then the one with least work left. A worker takes at most one shard per decision.

    Columns are aligned with `rows`; before[k, i]: bytes that shard k waits for at its job's worker i.
    `room_bytes` is updated in place.
    """
    chosen = np.full(rows.size, -1, dtype=np.int64)
    taken = np.zeros(node.size, dtype=np.bool_)
    for k in range(rows.size):
        best_late, best_tail = np.inf, np.inf
        for w in range(begin[k], end[k]):
            if taken[w]:
                continue
            late = lateness_elsewhere(
                size_bytes[k],
                samples[k],
                source[k],
                needed_s[k],
                late_s[k],
                owner[k],
                w,
                before[k, w - begin[k]],
                node,
                capacity,
                computing,
                owned,
                room_bytes,
                links,
            )
            tail = owned[w] / capacity[w]
            if late < best_late or (late == best_late and late < np.inf and tail < best_tail):
                best_late, best_tail, chosen[k] = late, tail, w
        if chosen[k] >= 0:
            taken[chosen[k]] = True
            if source[k] != node[chosen[k]]:
                room_bytes[node[chosen[k]]] -= size_bytes[k]
    return chosen
