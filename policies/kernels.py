"""Jitted kernels of the data and task stages: arrays in, arrays out, over all training jobs at once.

Workers are sorted by job, so job k of a table's running jobs owns the rows first[k] .. first[k + 1] - 1.
Rates are samples/s or bytes/s, times s. A value that is not known is NaN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from policies.jit import jit
from policies.observation import Bools, Floats, Ints

_NOISE = 2.0**-30  # a difference below this share of a unit is rounding, not a difference


class Links(NamedTuple):
    """What is known about the way between nodes: measured pairs, and each node's free interface rate."""

    key: Ints  # source * nodes + target of the measured pairs, ascending
    bytes_per_s: Floats  # of those pairs
    latency_s: Floats
    nic_bytes_per_s: Floats  # per node; used where a pair was not measured


@jit
def match_sorted(old: Ints, new: Ints) -> Ints:
    """Position in `old` of each id of `new` (both ascending and distinct), -1 where it is missing."""
    found = np.full(new.size, -1, dtype=np.int64)
    at = 0
    for k in range(new.size):
        while at < old.size and old[at] < new[k]:
            at += 1
        if at < old.size and old[at] == new[k]:
            found[k] = at
    return found


@jit
def holt(level: Floats, trend: Floats, windows: Ints, value: Floats, alpha: float, beta: float) -> Floats:
    """Advance Holt's linear smoothing by one window, in place; returns the one-window forecasts.

    Holt (1957), level and trend with gains `alpha` and `beta`. Windows without a finite value leave the
    state alone; a forecast never falls below half the level, so that a steep fall cannot turn it negative.
    """
    forecast = np.full(level.size, np.nan)
    for i in range(level.size):
        if np.isfinite(value[i]):
            if windows[i] == 0:
                level[i], trend[i] = value[i], 0.0
            else:
                error = value[i] - (level[i] + trend[i])
                level[i] += trend[i] + alpha * error
                trend[i] += alpha * beta * error
            windows[i] += 1
        if windows[i] > 0:
            forecast[i] = max(level[i] + trend[i], 0.5 * level[i])
    return forecast


@jit
def gradient_health(
    first: Ints, norm: Floats, rate: Floats, deviation: Floats, sigma: Floats, warm: Bools, sigmas: float
) -> Bools:
    """Which workers send sound gradients.

    A norm that is missing (while the worker does compute and a peer's norm is known), infinite or zero is
    not sound, nor is one whose relative deviation exceeds `sigmas` times its usual one once that is `warm`.
    """
    healthy = np.ones(norm.size, dtype=np.bool_)
    for k in range(first.size - 1):
        known = False
        for i in range(first[k], first[k + 1]):
            known = known or np.isfinite(norm[i])
        if not known:
            continue
        for i in range(first[k], first[k + 1]):
            if not np.isfinite(rate[i]):
                continue
            sound = np.isfinite(norm[i]) and norm[i] > 0.0
            healthy[i] = sound and not (warm[i] and abs(deviation[i]) > sigmas * sigma[i])
    return healthy


@jit
def imbalance(first: Ints, capacity: Floats, owned: Floats, receives: Bools) -> tuple[Floats, Floats]:
    """Imbalance index per job and surplus per worker (samples, negative: deficit).

    tau_i = share of the data / capacity_i; I = max(tau) / mean(tau) - 1; the surplus is what a worker owns
    beyond its share of the capacity. Jobs with an unknown capacity or no data left get I = NaN. Workers
    that receive nothing have no deficit.
    """
    index = np.full(first.size - 1, np.nan)
    surplus = np.zeros(capacity.size)
    for k in range(first.size - 1):
        total_capacity, total_owned = 0.0, 0.0
        for i in range(first[k], first[k + 1]):
            total_capacity += capacity[i]
            total_owned += owned[i]
        if not (total_owned > 0.0 and total_capacity > 0.0 and np.isfinite(total_owned + total_capacity)):
            continue
        largest, total = 0.0, 0.0
        for i in range(first[k], first[k + 1]):
            tau = owned[i] / total_owned / capacity[i]
            largest = max(largest, tau)
            total += tau
            extra = owned[i] - total_owned * capacity[i] / total_capacity
            surplus[i] = extra if receives[i] or extra > 0.0 else 0.0
        index[k] = largest * (first[k + 1] - first[k]) / total - 1.0
    return index, surplus


@jit
def _position(key: Ints, wanted: int) -> int:
    """Position of `wanted` in ascending `key`, -1 when it is missing."""
    low, high = 0, key.size
    while low < high:
        middle = (low + high) // 2
        if key[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < key.size and key[low] == wanted else -1


@jit
def link_rate(links: Links, source: int, target: int) -> float:
    """Rate in bytes/s from node to node: infinite within one, else as measured, else the slower interface."""
    if source == target:
        return np.inf
    at = _position(links.key, source * links.nic_bytes_per_s.size + target)
    if at >= 0 and links.bytes_per_s[at] > 0.0:
        return float(links.bytes_per_s[at])
    return float(min(links.nic_bytes_per_s[source], links.nic_bytes_per_s[target]))


@jit
def transfer_time(links: Links, source: int, target: int, size_bytes: float) -> float:
    """Seconds to bring `size_bytes` from node to node, delay included."""
    if source == target:
        return 0.0
    at = _position(links.key, source * links.nic_bytes_per_s.size + target)
    delay_s = float(links.latency_s[at]) if at >= 0 and links.latency_s[at] > 0.0 else 0.0
    return delay_s + size_bytes / link_rate(links, source, target)


@jit
def _best_donor(links: Links, left: Floats, node: Ints, begin: int, end: int, receiver: int) -> int:
    """The worker with surplus left that reaches `receiver` fastest; the lowest of equals; -1 when none."""
    best, best_rate = -1, -1.0
    for i in range(begin, end):
        if left[i] > _NOISE:
            rate = link_rate(links, node[i], node[receiver])
            if rate > best_rate:
                best, best_rate = i, rate
    return best


@jit
def _fastest_pair(links: Links, surplus: Floats, node: Ints, begin: int, end: int) -> float:
    """Highest finite rate between a worker with surplus and one with deficit; 1 when there is none."""
    fastest = 0.0
    for i in range(begin, end):
        if surplus[i] > _NOISE:
            for j in range(begin, end):
                if surplus[j] < -_NOISE:
                    rate = link_rate(links, node[i], node[j])
                    if np.isfinite(rate):
                        fastest = max(fastest, rate)
    return fastest if fastest > 0.0 else 1.0


@jit
def greedy_flow(
    first: Ints, acting: Bools, surplus: Floats, pull: Floats, node: Ints, links: Links
) -> tuple[tuple[Ints, Ints, Floats], float]:
    """Flow T from surplus to deficit, heaviest pairs first: ((donors, receivers, samples), F(T)).

    Weight of a pair: pull_j * b_ij / b_max, where pull_j = C_j / (1 + L_j) and b_max is the fastest link in
    use within the job (a pair on one node counts as that fast). Each step empties a donor or fills a
    receiver. Weights only fall as donors run dry, so a receiver's last known weight is an upper bound and
    only the heaviest receiver is looked at again.
    """
    limit = surplus.size
    donors, receivers = np.empty(limit, dtype=np.int64), np.empty(limit, dtype=np.int64)
    amount = np.empty(limit)
    left = surplus.copy()
    weight, donor = np.zeros(limit), np.full(limit, -1, dtype=np.int64)
    count, value = 0, 0.0
    for k in range(first.size - 1):
        if not acting[k]:
            continue
        begin, end = first[k], first[k + 1]
        fastest = _fastest_pair(links, surplus, node, begin, end)
        for j in range(begin, end):
            weight[j] = np.inf if left[j] < -_NOISE else 0.0
        while True:
            j = begin
            for other in range(begin + 1, end):
                if weight[other] > weight[j]:
                    j = other
            if not weight[j] > 0.0:
                break
            if donor[j] < 0 or left[donor[j]] <= _NOISE:
                donor[j] = _best_donor(links, left, node, begin, end, j)
                if donor[j] < 0:
                    break  # no surplus is left in this job
                weight[j] = pull[j] * min(link_rate(links, node[donor[j]], node[j]) / fastest, 1.0)
                continue
            i = donor[j]
            part = min(left[i], -left[j])
            left[i] -= part
            left[j] += part
            donors[count], receivers[count], amount[count] = i, j, part
            count += 1
            value += part * weight[j]
            if left[j] >= -_NOISE:
                weight[j] = 0.0
    return (donors[:count], receivers[:count], amount[:count]), value


@jit
def pick_shards(
    donors: Ints, receivers: Ints, amount: Floats,
    shard_first: Ints, shard_row: Ints, shard_samples: Floats, shard_bytes: Floats, shard_node: Ints,
    node: Ints, capacity: Floats, owned: Floats, room_bytes: Floats, links: Links,
) -> tuple[Ints, Ints, int]:  # fmt: skip
    """Whole shards that carry a flow of `amount` samples per pair: (shard rows, new owners, refused).

    Worker i may give the shards shard_row[shard_first[i]:shard_first[i + 1]] (last needed first); those the
    receiver's node already stores go first. A shard goes when at least half of it is wanted, there is room
    for it, the work that it takes off its donor lasts longer than its transfer (gain_s_per_step * steps_left
    > transfer_s), and the receiver, counting what is already on the way over both interfaces, finishes it
    before the donor would have finished its queue. `owned` and `room_bytes` are updated in place.
    """
    limit = shard_row.size
    rows, owners = np.empty(limit, dtype=np.int64), np.empty(limit, dtype=np.int64)
    gone = np.zeros(limit, dtype=np.bool_)
    sent, received = np.zeros(room_bytes.size), np.zeros(room_bytes.size)
    count, refused = 0, 0
    for pair in range(donors.size):
        i, j, wanted = donors[pair], receivers[pair], amount[pair]
        target = node[j]
        for stored_there in (True, False):
            for e in range(shard_first[i], shard_first[i + 1]):
                row = shard_row[e]
                source, size, samples = shard_node[row], shard_bytes[row], shard_samples[row]
                if gone[e] or (source == target) != stored_there or 2.0 * wanted < samples or samples <= 0.0:
                    continue
                arrival_s = 0.0
                if not stored_there:
                    queued = max(sent[source], received[target])
                    arrival_s = transfer_time(links, source, target, queued + size)
                finish_s = max(owned[j] / capacity[j], arrival_s) + samples / capacity[j]
                if (
                    finish_s >= owned[i] / capacity[i]
                    or (not stored_there and size > room_bytes[target])
                    or samples / capacity[i] <= transfer_time(links, source, target, size)
                ):
                    refused += 1
                    continue
                gone[e] = True
                rows[count], owners[count] = row, j
                count += 1
                wanted -= samples
                owned[i] -= samples
                owned[j] += samples
                if not stored_there:
                    sent[source] += size
                    received[target] += size
                    room_bytes[target] -= size
    return rows[:count], owners[:count], refused


@jit
def fetch_times(rows: Ints, size_bytes: Floats, source: Ints, target: Ints, links: Links) -> Floats:
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

    U = fetch / (fetch + max(needed - fetch, 0)), the inverse critical ratio: 1 when there is no slack left;
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
def lateness_elsewhere(
    size_bytes: float, samples: float, source: int, needed_s: float, late_s: float, owner: int, worker: int,
    node: Ints, capacity: Floats, owned: Floats, room_bytes: Floats, links: Links,
) -> float:  # fmt: skip
    """Lateness in s of a late shard if `worker` had it instead of `owner`; infinite where it may not go.

    It may go to a node that has room and can have it by the time it is needed, to a worker that would then
    still finish before the owner does, the owner's wait for this shard included.
    """
    fetch_s = transfer_time(links, source, node[worker], size_bytes)
    if worker == owner or fetch_s > needed_s or (fetch_s > 0.0 and size_bytes > room_bytes[node[worker]]):
        return np.inf
    tail_s = float(owned[worker] / capacity[worker])
    finish_s = max(tail_s, fetch_s) + samples / capacity[worker]
    if not finish_s < owned[owner] / capacity[owner] + late_s:
        return np.inf
    return max(fetch_s - tail_s, 0.0)


@jit
def distribute_late(
    rows: Ints, size_bytes: Floats, samples: Floats, source: Ints, needed_s: Floats, late_s: Floats,
    owner: Ints, begin: Ints, end: Ints,
    node: Ints, capacity: Floats, owned: Floats, room_bytes: Floats, links: Links,
) -> Ints:  # fmt: skip
    """New owner of each late shard, most critical first, or -1: the least late of its job's workers
    begin .. end - 1, then the one with least work left. A worker takes at most one shard per decision.

    Columns are aligned with `rows`. `room_bytes` is updated in place.
    """
    chosen = np.full(rows.size, -1, dtype=np.int64)
    taken = np.zeros(node.size, dtype=np.bool_)
    for k in range(rows.size):
        best_late, best_tail = np.inf, np.inf
        for w in range(begin[k], end[k]):
            if taken[w]:
                continue
            late = lateness_elsewhere(
                size_bytes[k], samples[k], source[k], needed_s[k], late_s[k], owner[k], w,
                node, capacity, owned, room_bytes, links,
            )  # fmt: skip
            tail = owned[w] / capacity[w]
            if late < best_late or (late == best_late and late < np.inf and tail < best_tail):
                best_late, best_tail, chosen[k] = late, tail, w
        if chosen[k] >= 0:
            taken[chosen[k]] = True
            if source[k] != node[chosen[k]]:
                room_bytes[node[chosen[k]]] -= size_bytes[k]
    return chosen


@jit
def resource_shares(
    first: Ints, rate: Floats, response_s: Floats, fixed_s: Floats, samples: Ints, alpha: float, beta: float
) -> Floats:
    """R_i = alpha * C_i / sum(C) + beta * (1/T_i) / sum(1/T), at the deal that R itself makes.

    T_i = fixed_i / b_i + t_i depends on the deal b_i through the fixed part of a step, so R is iterated to
    its own fixed point, where all workers take equally long. C_i is `rate`, at most 1/T_i, and follows T_i.
    NaN for the workers of a job in which something is not known.
    """
    share = np.full(rate.size, np.nan)
    for k in range(first.size - 1):
        begin, end = first[k], first[k + 1]
        batch, known = 0.0, True
        for i in range(begin, end):
            batch += samples[i]
            known = known and response_s[i] > 0.0 and np.isfinite(response_s[i]) and samples[i] > 0
            known = known and rate[i] > 0.0 and fixed_s[i] >= 0.0
        if not known:
            continue
        for i in range(begin, end):
            share[i] = samples[i] / batch
        for _ in range(64):
            rates, speeds = 0.0, 0.0
            for i in range(begin, end):
                speed = _speed_at(share[i] * batch, response_s[i], fixed_s[i], samples[i])
                rates += min(rate[i] * response_s[i], 1.0) * speed
                speeds += speed
            change = 0.0
            for i in range(begin, end):
                speed = _speed_at(share[i] * batch, response_s[i], fixed_s[i], samples[i])
                new = alpha * min(rate[i] * response_s[i], 1.0) * speed / rates + beta * speed / speeds
                change = max(change, abs(new - share[i]))
                share[i] = new
            if change < 1e-9:
                break
    return share


@jit
def _speed_at(dealt: float, response_s: float, fixed_s: float, samples: int) -> float:
    """Samples per busy second at a deal, from the mean response at `samples` and the fixed part."""
    per_sample_s = sample_time(response_s, fixed_s, samples)
    return 1.0 / (fixed_s / dealt + per_sample_s)


@jit
def sample_time(response_s: float, fixed_s: float, samples: int) -> float:
    """Seconds per further sample: the response without the fixed part, at least 1 % of it."""
    return max(response_s - fixed_s / samples, 0.01 * response_s)


@jit
def slowest_step(first: Ints, response_s: Floats, fixed_s: Floats, measured: Ints, dealt: Ints) -> Floats:
    """Predicted step time per job at the deal `dealt`: the maximum over its workers."""
    slowest_s = np.zeros(first.size - 1)
    for k in range(first.size - 1):
        for i in range(first[k], first[k + 1]):
            step_s = fixed_s[i] + dealt[i] * sample_time(response_s[i], fixed_s[i], max(measured[i], 1))
            if dealt[i] > 0 and not step_s <= slowest_s[k]:
                slowest_s[k] = step_s
    return slowest_s


@jit
def _sift(heap: Ints, key: Floats, size: int, at: int) -> None:
    """Restore the min-heap order of `heap` (indices, by key then index) below position `at`."""
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        right = child + 1
        if right < size and (
            key[heap[right]] < key[heap[child]]
            or (key[heap[right]] == key[heap[child]] and heap[right] < heap[child])
        ):
            child = right
        if key[heap[at]] < key[heap[child]] or (key[heap[at]] == key[heap[child]] and heap[at] < heap[child]):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@jit
def _heap(key: Floats) -> Ints:
    heap = np.arange(key.size)
    for at in range(key.size // 2 - 1, -1, -1):
        _sift(heap, key, key.size, at)
    return heap


@jit
def largest_remainder(ideal: Floats, units: int, low: int, cap: Ints) -> Ints:
    """Whole units that sum to `units`, as near to `ideal` as can be, each in low .. cap[i].

    Largest remainders are rounded up, lower indices first among equals. Needs
    low * n <= units <= sum(cap).
    """
    dealt = np.empty(ideal.size, dtype=np.int64)
    left = units
    for i in range(ideal.size):
        dealt[i] = min(max(math.floor(ideal[i] + _NOISE), low), cap[i])
        left -= dealt[i]
    step = 1 if left > 0 else -1
    key = np.empty(ideal.size)
    for i in range(ideal.size):
        stuck = dealt[i] >= cap[i] if step > 0 else dealt[i] <= low
        key[i] = np.inf if stuck else math.floor((dealt[i] - ideal[i]) * step / _NOISE)
    heap = _heap(key)
    while left != 0:
        i = heap[0]
        dealt[i] += step
        left -= step
        stuck = dealt[i] >= cap[i] if step > 0 else dealt[i] <= low
        key[i] = np.inf if stuck else math.floor((dealt[i] - ideal[i]) * step / _NOISE)
        _sift(heap, key, key.size, 0)
    return dealt


@jit
def exact_deal(fixed_s: Floats, unit_s: Floats, units: int, low: int, cap: Ints) -> Ints:
    """Whole units that minimise max_i(fixed_i + b_i * unit_i), each in low .. cap[i], sum `units`.

    Giving one unit at a time to the worker that would finish it first is optimal; bisection on the finishing
    time gives all the units that end before it at once, and a heap deals out the rest.
    """
    early, late = 0.0, 0.0
    for i in range(fixed_s.size):
        late = max(late, fixed_s[i] + units * unit_s[i])
    for _ in range(64):
        middle = 0.5 * (early + late)
        if _units_by(middle, fixed_s, unit_s, units, low, cap).sum() <= units:
            early = middle
        else:
            late = middle
    dealt = _units_by(early, fixed_s, unit_s, units, low, cap)
    key = np.empty(fixed_s.size)
    for i in range(fixed_s.size):
        key[i] = fixed_s[i] + (dealt[i] + 1) * unit_s[i] if dealt[i] < cap[i] else np.inf
    heap = _heap(key)
    for _ in range(units - dealt.sum()):
        i = heap[0]
        dealt[i] += 1
        key[i] = fixed_s[i] + (dealt[i] + 1) * unit_s[i] if dealt[i] < cap[i] else np.inf
        _sift(heap, key, key.size, 0)
    return dealt


@jit
def _units_by(end_s: float, fixed_s: Floats, unit_s: Floats, units: int, low: int, cap: Ints) -> Ints:
    """Units that each worker finishes by `end_s`, in low .. cap[i]."""
    done = np.empty(fixed_s.size, dtype=np.int64)
    for i in range(fixed_s.size):
        by_then = min(max((end_s - fixed_s[i]) / unit_s[i], 0.0), float(units))
        done[i] = min(max(int(by_then), low), cap[i])
    return done


@jit
def deal_batches(
    first: Ints, wanted: Bools, exact: bool, share: Floats, response_s: Floats, fixed_s: Floats,
    samples: Ints, samples_max: Ints, batch: Ints, micro_batch: Ints,
) -> tuple[Ints, Bools]:  # fmt: skip
    """Deal the global batch of the `wanted` jobs in whole micro-batches: (samples, job was dealt).

    By `share` with largest remainders, or `exact`: the least slowest step. A worker gets at least one
    micro-batch when there are enough, so that its speed stays visible. What a batch leaves over whole
    micro-batches goes to the worker with room that finishes it first. Jobs whose memory bounds leave no
    room for the batch keep their samples.
    """
    dealt, done = samples.copy(), np.zeros(first.size - 1, dtype=np.bool_)
    for k in range(first.size - 1):
        begin, end = first[k], first[k + 1]
        micro = max(micro_batch[k], 1)
        units, rest = batch[k] // micro, batch[k] % micro
        cap = np.minimum(samples_max[begin:end] // micro, units)
        low = 1 if units >= end - begin and cap.min() >= 1 else 0
        if not wanted[k] or cap.sum() < units:
            continue
        if exact:
            unit_s = np.empty(end - begin)
            for i in range(begin, end):
                unit_s[i - begin] = micro * sample_time(response_s[i], fixed_s[i], max(samples[i], 1))
            part = exact_deal(fixed_s[begin:end], unit_s, units, low, cap) * micro
        else:
            part = largest_remainder(share[begin:end] * units, units, low, cap) * micro
        if rest > 0:
            best, best_s = -1, np.inf
            for i in range(begin, end):
                end_s = fixed_s[i] + (part[i - begin] + rest) * sample_time(
                    response_s[i], fixed_s[i], max(samples[i], 1)
                )
                if part[i - begin] + rest <= samples_max[i] and (best < 0 or end_s < best_s):
                    best, best_s = i, end_s
            if best < 0:
                continue
            part[best - begin] += rest
        dealt[begin:end] = part
        done[k] = True
    return dealt, done
