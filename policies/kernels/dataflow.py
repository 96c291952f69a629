"""Jitted kernels of data placement: arrays in, arrays out, over all training jobs at once.

Workers are sorted by job, so job k of a table's running jobs owns the rows first[k] .. first[k + 1] - 1.
Rates are samples/s or bytes/s, times s. An unknown value is NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.policies.kernels.arrays import position
from equipoise.policies.kernels.jit import ZERO, jit, jit_in_place
from equipoise.policies.observation import Bools, Floats, Ints

_NOISE = 2.0**-30  # a difference below this share of a unit is rounding, not a difference
_PAIRS_MOST = 1 << 20  # pairs of workers whose rates are written down at once (8 MiB)


class LinkArrays(NamedTuple):
    """Rates between nodes: measured pairs, and the free rate of each node's interface."""

    key: Ints  # source * nodes + target of the measured pairs, ascending
    bytes_per_s: Floats  # of those pairs
    latency_s: Floats
    nic_bytes_per_s: Floats  # per node; used where a pair was not measured


@jit_in_place
def sum_by(owner: Ints, size: Floats, total: Floats) -> None:
    """Add each size to the total of its owner; -1: no owner."""
    for i in range(owner.size):
        if owner[i] >= 0:
            total[owner[i]] += size[i]


@jit_in_place
def may_move(owner: Ints, node: Ints, started: Bools, up: Bools, free: Bools) -> None:
    """Write whether each shard has an owner that has not started it, and is on a node that is up (up empty: all
    are)."""
    for i in range(owner.size):
        free[i] = owner[i] >= 0 and node[i] >= 0 and not started[i] and (up.size == 0 or up[node[i]])


@jit_in_place
def to_fetch(
    owner: Ints, node: Ints, local: Bools, size: Floats, owner_node: Ints, sent: Floats, received: Floats
) -> None:
    """Add the size of each shard that is not at its owner (-1: none) to the bytes sent and received."""
    for i in range(owner.size):
        if owner[i] < 0 or node[i] < 0 or local[i]:
            continue
        target = owner_node[owner[i]]
        if target != node[i]:
            sent[node[i]] += size[i]
            received[target] += size[i]


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
def holt(level: Floats, trend: Floats, windows: Ints, value: Floats, alpha: float, beta: float, least: float) -> Floats:
    """Advance Holt's linear smoothing by one window, in place; returns the one-window forecasts.

    Holt (1957), level and trend with gains `alpha` and `beta`. Windows without a finite value leave the
    state alone. A forecast never falls below the part `least` of the level, so a steep fall cannot make it negative;
    0: the values may be negative.
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
            forecast[i] = level[i] + trend[i]
            if least > 0.0:
                forecast[i] = max(forecast[i], least * level[i])
    return forecast


@jit
def gradient_health(
    first: Ints, norm: Floats, rate: Floats, deviation: Floats, sigma: Floats, warm: Bools, sigmas: float
) -> Bools:
    """Which workers send sound gradients.

    A norm that is missing (while the worker computes and a peer's norm is known), infinite or zero is not sound, nor
    is one whose deviation exceeds `sigmas` times its usual one once that is `warm`; unless this holds for half of a
    job's known norms or more.
    """
    healthy = np.ones(norm.size, dtype=np.bool_)
    for k in range(first.size - 1):
        known, strange = 0, 0
        for i in range(first[k], first[k + 1]):
            if np.isfinite(norm[i]):
                known += 1
                if norm[i] > 0.0 and warm[i] and abs(deviation[i]) > sigmas * sigma[i]:
                    strange += 1
        if known == 0:
            continue
        some = first[k + 1] - first[k] < 3 or 2 * strange < known
        for i in range(first[k], first[k + 1]):
            if not np.isfinite(rate[i]):
                continue
            sound = np.isfinite(norm[i]) and norm[i] > 0.0
            healthy[i] = sound and not (some and warm[i] and abs(deviation[i]) > sigmas * sigma[i])
    return healthy


@jit_in_place
def _of_rank(values: Floats, size: int, rank: int) -> float:
    """The value of that rank (0: the least) among the first `size`, which it reorders (Hoare 1961, "Find")."""
    low, high = 0, size - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return float(values[rank])


@jit
def common_ratio(first: Ints, ratio: Floats) -> Floats:
    """Lower median of the known ratios of each job's workers; 1 where fewer than three are known."""
    common, known = np.full(first.size - 1, 1.0), np.empty(ratio.size)
    for k in range(first.size - 1):
        n = ZERO
        for i in range(first[k], first[k + 1]):
            if not np.isnan(ratio[i]):
                known[n] = ratio[i]
                n += 1
        if n >= 3:
            common[k] = _of_rank(known, n, (n - 1) // 2)
    return common


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
def link(links: LinkArrays, source: int, target: int) -> tuple[float, float]:
    """Rate in bytes/s and delay in s from node to node.

    Infinite and none within a node; else as measured, or the slower interface and none.
    """
    if source == target:
        return np.inf, 0.0
    pair = source * links.nic_bytes_per_s.size + target
    at = position(links.key, pair)
    measured = at < links.key.size and links.key[at] == pair
    delay_s = float(links.latency_s[at]) if measured and links.latency_s[at] > 0.0 else 0.0
    if measured and links.bytes_per_s[at] > 0.0:
        return float(links.bytes_per_s[at]), delay_s
    return float(min(links.nic_bytes_per_s[source], links.nic_bytes_per_s[target])), delay_s


@jit
def source_rates(links: LinkArrays) -> Floats:
    """Fastest measured rate out of each node, 0 where no path from it was measured."""
    nodes = links.nic_bytes_per_s.size
    fastest = np.zeros(nodes)
    for k in range(links.key.size):
        source = links.key[k] // nodes
        fastest[source] = max(fastest[source], links.bytes_per_s[k])
    return fastest


@jit
def part_of_source(links: LinkArrays, fastest: Floats, source: int, target: int) -> float:
    """Rate of a path over the rate that its source can send, at most 1."""
    rate = link(links, source, target)[0]
    return rate / float(fastest[source]) if rate < fastest[source] else 1.0


@jit
def transfer_time(links: LinkArrays, source: int, target: int, size_bytes: float) -> float:
    """Seconds to bring `size_bytes` from node to node, delay included."""
    rate, delay_s = link(links, source, target)
    return delay_s + size_bytes / rate


@jit
def _pair_rates(links: LinkArrays, node: Ints, donors: Ints, receivers: Ints) -> Floats:
    """Rates from each donor to each receiver; empty when there are too many pairs to write down."""
    if donors.size * receivers.size > _PAIRS_MOST:
        return np.empty((0, 0))
    rates, measured, nic = np.empty((donors.size, receivers.size)), links.key.size > 0, links.nic_bytes_per_s
    for d in range(donors.size):
        for r in range(receivers.size):
            source, target = node[donors[d]], node[receivers[r]]
            if measured:
                rates[d, r] = link(links, source, target)[0]
            else:
                rates[d, r] = np.inf if source == target else min(nic[source], nic[target])
    return rates


@jit
def _best_listed(rates: Floats, supply: Floats, r: int) -> tuple[int, float, float]:
    """As `_best_donor`, where all rates are written down."""
    best, best_rate, finite = -1, -1.0, 0.0
    for d in range(supply.size):
        if supply[d] > _NOISE:
            if rates[d, r] > best_rate:
                best, best_rate = d, rates[d, r]
            if np.isfinite(rates[d, r]):
                finite = max(finite, rates[d, r])
    return best, best_rate, finite


@jit
def _best_donor(links: LinkArrays, node: Ints, donors: Ints, supply: Floats, receiver: int) -> tuple[int, float, float]:
    """The donor with samples left that reaches a receiver fastest, that rate, and the fastest finite one.

    The lowest of equals; -1 when no donor is left.
    """
    best, best_rate, finite = -1, -1.0, 0.0
    for d in range(donors.size):
        if supply[d] > _NOISE:
            rate = link(links, node[donors[d]], node[receiver])[0]
            if rate > best_rate:
                best, best_rate = d, rate
            if np.isfinite(rate):
                finite = max(finite, rate)
    return best, best_rate, finite


@jit
def greedy_flow(
    first: Ints, acting: Bools, surplus: Floats, pull: Floats, node: Ints, links: LinkArrays
) -> tuple[tuple[Ints, Ints, Floats], float]:
    """Flow T from surplus to deficit, heaviest pairs first: ((donors, receivers, samples), F(T)).

    Weight of a pair: pull_j * b_ij / b_max, where pull_j = C_j / (1 + L_j) and b_max is the fastest link in
    use within the job (a pair on one node counts as that fast). Each step empties a donor or fills a
    receiver. Weights only fall as donors run dry, so a receiver's last known weight is an upper bound and
    only the heaviest receiver is looked at again.
    """
    giver, taker = np.empty(surplus.size, dtype=np.int64), np.empty(surplus.size, dtype=np.int64)
    amount = np.empty(surplus.size)
    count, value = 0, 0.0
    for k in range(first.size - 1):
        if not acting[k]:
            continue
        donors, supply = _where_positive(surplus, 1.0, first[k], first[k + 1])
        receivers, demand = _where_positive(surplus, -1.0, first[k], first[k + 1])
        rates = _pair_rates(links, node, donors, receivers)
        weight, donor = np.zeros(receivers.size), np.full(receivers.size, -1, dtype=np.int64)
        fastest = 0.0
        for r in range(receivers.size):
            if rates.size > 0:  # few arguments: each array handed on costs as much as a pair
                donor[r], weight[r], finite = _best_listed(rates, supply, r)
            else:
                donor[r], weight[r], finite = _best_donor(links, node, donors, supply, receivers[r])
            fastest = max(fastest, finite)
        if fastest == 0.0:
            fastest = 1.0
        for r in range(receivers.size):
            weight[r] = pull[receivers[r]] * min(weight[r] / fastest, 1.0)
        while donors.size > 0 and receivers.size > 0:
            r = _heaviest(weight)
            d = donor[r]
            if not weight[r] > 0.0:
                break
            if supply[d] <= _NOISE:
                if rates.size > 0:
                    donor[r], rate, _ = _best_listed(rates, supply, r)
                else:
                    donor[r], rate, _ = _best_donor(links, node, donors, supply, receivers[r])
                if donor[r] < 0:
                    break  # nothing is left to give in this job
                weight[r] = pull[receivers[r]] * min(rate / fastest, 1.0)
                continue
            part = min(supply[d], demand[r])
            supply[d] -= part
            demand[r] -= part
            giver[count], taker[count], amount[count] = donors[d], receivers[r], part
            count += 1
            value += part * weight[r]
            if demand[r] <= _NOISE:
                weight[r] = 0.0
    return (giver[:count], taker[:count], amount[:count]), value


@jit
def _heaviest(weight: Floats) -> int:
    """Index of the largest, the lowest of equals."""
    best = 0
    for r in range(1, weight.size):
        if weight[r] > weight[best]:
            best = r
    return best


@jit
def _where_positive(values: Floats, sign: float, begin: int, end: int) -> tuple[Ints, Floats]:
    """Rows in begin .. end - 1 where sign * value exceeds rounding errors, and that value."""
    rows, amount, count = np.empty(end - begin, dtype=np.int64), np.empty(end - begin), 0
    for i in range(begin, end):
        if sign * values[i] > _NOISE:
            rows[count], amount[count] = i, sign * values[i]
            count += 1
    return rows[:count], amount[:count]


@jit
def last_needed_first(rows: Ints, worker: Ints, needed_s: Floats, workers: int) -> tuple[Ints, Ints]:
    """Shard rows (ascending) by worker, last needed first, then last row: (offset per worker, rows).

    `worker` and `needed_s` are by shard row; an unknown need comes first. Linear when the needs of each worker's
    rows ascend, as they do in a queue.
    """
    first, order = np.zeros(workers + 1, dtype=np.int64), np.empty(rows.size, dtype=np.int64)
    for row in rows:
        first[worker[row] + 1] += 1
    for i in range(workers):
        first[i + 1] += first[i]
    end = first[:-1].copy()
    for k in range(rows.size - 1, -1, -1):
        i = worker[rows[k]]
        need = np.inf if np.isnan(needed_s[rows[k]]) else needed_s[rows[k]]
        at = end[i]
        while at > first[i]:
            before = needed_s[order[at - 1]]
            if np.isnan(before) or before >= need:
                break
            order[at] = order[at - 1]
            at -= 1
        order[at] = rows[k]
        end[i] += 1
    return first, order


@jit
def _runs_dry(kept: float, capacity: float, links: LinkArrays, source: int, target: int, size_bytes: float) -> bool:
    """Whether a worker on node `target` finishes the samples `kept` before it could fetch a shard."""
    return bool(kept / capacity < transfer_time(links, source, target, size_bytes))


@jit
def pick_shards(
    donors: Ints,
    receivers: Ints,
    amount: Floats,
    shard_first: Ints,
    shard_row: Ints,
    shard_samples: Floats,
    shard_bytes: Floats,
    shard_node: Ints,
    node: Ints,
    capacity: Floats,
    owned: Floats,
    room_bytes: Floats,
    sent: Floats,
    received: Floats,
    links: LinkArrays,
) -> tuple[Ints, Ints, int]:
    """Whole shards that carry a flow of `amount` samples per pair: (shard rows, new owners, refused).

    Worker i may give the shards shard_row[shard_first[i]:shard_first[i + 1]] (last needed first); those the
    receiver's node already stores go first. A shard moves if more than half of it is wanted, by this pair and by the
    rest of all pairs of either worker (else the rounding of each pair adds up), there is room for it, the time saved
    exceeds its transfer (gain_s_per_step * steps_left > transfer_s), and the receiver, with the pending transfers of
    both interfaces (the source's at its fastest measured rate), finishes it before the donor would have finished its
    queue. If a shard to fetch is wanted only in part, the rest of the donor's queue must also last until it could
    fetch the shard back, over a path that is not slower: it may run out just before the end. `sent` and `received`
    are the bytes that each node is still to send and to receive; they, `owned` and `room_bytes` are updated in
    place.
    """
    limit = shard_row.size
    rows, owners = np.empty(limit, dtype=np.int64), np.empty(limit, dtype=np.int64)
    gone = np.zeros(limit, dtype=np.bool_)
    count, refused, linked, rate, delay_s, part = 0, 0, (-1, -1), np.inf, 0.0, 1.0
    fastest = source_rates(links)
    gives, needs = np.zeros(capacity.size), np.zeros(capacity.size)
    for pair in range(donors.size):
        gives[donors[pair]] += amount[pair]
        needs[receivers[pair]] += amount[pair]
    for pair in range(donors.size):
        i, j, wanted = donors[pair], receivers[pair], amount[pair]
        target = node[j]
        for stored_there in (True, False):
            for e in range(shard_first[i], shard_first[i + 1]):
                row = shard_row[e]
                source, size, samples = shard_node[row], shard_bytes[row], shard_samples[row]
                least = 0.5 * samples * (1.0 + _NOISE)  # half a shard too many comes back as half too few
                if min(wanted, gives[i], needs[j]) <= least or samples <= 0.0:
                    continue
                if gone[e] or (source == target) != stored_there:
                    continue
                if source != linked[0] or target != linked[1]:  # mostly as for the shard before
                    rate, delay_s = link(links, source, target)
                    linked, part = (source, target), part_of_source(links, fastest, source, target)
                on_its_way = source != node[i]  # the donor would have to fetch it, too
                to_send = sent[source] - (size if on_its_way else 0.0)
                queued = 0.0 if stored_there else max(to_send * part, received[target])
                arrival_s = delay_s + (queued + size) / rate
                finish_s = max(owned[j] / capacity[j], arrival_s) + samples / capacity[j]
                if (
                    finish_s >= owned[i] / capacity[i]
                    or (not stored_there and size > room_bytes[target])
                    or samples / capacity[i] <= delay_s + size / rate
                    or (
                        not stored_there
                        and wanted < samples
                        and _runs_dry(owned[i] - samples, capacity[i], links, source, node[i], size)
                    )
                    or (
                        not stored_there
                        and min(wanted, gives[i]) < samples
                        and transfer_time(links, source, node[i], size) > (delay_s + size / rate) * (1.0 + _NOISE)
                    )
                ):
                    refused += 1
                    continue
                gone[e] = True
                rows[count], owners[count] = row, j
                count += 1
                wanted -= samples
                gives[i] -= samples
                needs[j] -= samples
                owned[i] -= samples
                owned[j] += samples
                if on_its_way:
                    sent[source] -= size
                    received[node[i]] -= size
                if not stored_there:
                    sent[source] += size
                    received[target] += size
                    room_bytes[target] -= size
    return rows[:count], owners[:count], refused
