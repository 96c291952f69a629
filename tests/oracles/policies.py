"""Plain twins of the kernels of the data, task and sync stages: slow, obvious, without NumPy tricks."""

import heapq
import itertools
import math
from fractions import Fraction

from tests.oracles.physics import speed_at

LEAST = 2.0**-30


def segments(first):
    return [range(first[k], first[k + 1]) for k in range(len(first) - 1)]


def sum_by(owner, size, owners):
    """Sum of size by owner; -1 has none."""
    return [math.fsum(s for w, s in zip(owner, size, strict=True) if w == k) for k in range(owners)]


def may_move(owner, node, started, up):
    """Whether each shard has an owner that has not begun with it, and a living node."""
    return [w >= 0 and n >= 0 and not s and bool(up[n]) for w, n, s in zip(owner, node, started, strict=True)]


def to_fetch(owner, node, local, size, owner_node, nodes):
    """Bytes that each node sends to owners elsewhere, and that it receives for its own."""
    away = [
        (n, owner_node[w], s)
        for w, n, here, s in zip(owner, node, local, size, strict=True)
        if w >= 0 and n >= 0 and not here and owner_node[w] != n
    ]
    return (
        [math.fsum(s for n, _, s in away if n == k) for k in range(nodes)],
        [math.fsum(s for _, n, s in away if n == k) for k in range(nodes)],
    )


def match_sorted(old, new):
    old = list(old)
    return [old.index(wanted) if wanted in old else -1 for wanted in new]


def holt(series, alpha, beta, least=0.5):
    """Forecast after all of `series` (None: not seen), by the textbook recursion."""
    level = trend = None
    for value in series:
        if value is None:
            continue
        if level is None:
            level, trend = value, 0.0
        else:
            new = alpha * value + (1 - alpha) * (level + trend)
            trend = beta * (new - level) + (1 - beta) * trend
            level = new
    if level is None:
        return None
    return max(level + trend, level * least) if least else level + trend


def gradient_health(first, norm, rate, deviation, sigma, warm, sigmas):
    healthy = [True] * len(norm)
    for rows in segments(first):
        if not any(math.isfinite(norm[i]) for i in rows):
            continue
        known = [i for i in rows if math.isfinite(norm[i])]
        odd = {i for i in known if norm[i] > 0 and warm[i] and abs(deviation[i]) > sigmas * sigma[i]}
        if len(rows) >= 3 and len(odd) >= len(known) / 2:
            odd = set()
        for i in rows:
            if math.isfinite(rate[i]):
                healthy[i] = math.isfinite(norm[i]) and norm[i] > 0 and i not in odd
    return healthy


def imbalance(first, capacity, owned, receives):
    index, surplus = [], [0.0] * len(capacity)
    for rows in segments(first):
        total, speed = sum(owned[i] for i in rows), sum(capacity[i] for i in rows)
        if not (total > 0 and speed > 0 and math.isfinite(total + speed)):
            index.append(math.nan)
            continue
        tau = [owned[i] / total / capacity[i] for i in rows]
        index.append(max(tau) / (sum(tau) / len(tau)) - 1)
        for i in rows:
            extra = owned[i] - total * capacity[i] / speed
            surplus[i] = extra if receives[i] or extra > 0 else 0.0
    return index, surplus


class Links:
    """Measured pairs as a dict {(source, target): (bytes/s, delay)}, else the slower interface."""

    def __init__(self, measured, nic):
        self.measured, self.nic = measured, nic

    def rate(self, source, target):
        if source == target:
            return math.inf
        rate = self.measured.get((source, target), (math.nan, 0.0))[0]
        return rate if rate > 0 else min(self.nic[source], self.nic[target])

    def part(self, source, target):
        """A path's part of the fastest measured one from its source."""
        fastest = max((r for (s, _), (r, _) in self.measured.items() if s == source and r > 0), default=0.0)
        return min(1.0, self.rate(source, target) / fastest) if fastest else 1.0

    def time(self, source, target, size):
        if source == target:
            return 0.0
        delay = self.measured.get((source, target), (math.nan, math.nan))[1]
        return (delay if delay > 0 else 0.0) + size / self.rate(source, target)


def greedy_flow(first, acting, surplus, pull, node, links):
    """At every step the heaviest of all pairs that are left."""
    flow, value = [], 0.0
    left = list(surplus)
    for k, rows in enumerate(segments(first)):
        if not acting[k]:
            continue
        pairs = [(i, j) for i in rows for j in rows if surplus[i] > LEAST and surplus[j] < -LEAST]
        rates = {pair: links.rate(node[pair[0]], node[pair[1]]) for pair in pairs}
        fastest = max((r for r in rates.values() if math.isfinite(r)), default=1.0)
        while True:
            open_pairs = [(i, j) for i, j in pairs if left[i] > LEAST and left[j] < -LEAST]
            if not open_pairs:
                break
            weight = {p: pull[p[1]] * min(rates[p] / fastest, 1.0) for p in open_pairs}
            i, j = max(open_pairs, key=lambda p: (weight[p], -p[1], rates[p], -p[0]))
            part = min(left[i], -left[j])
            left[i] -= part
            left[j] += part
            flow.append((i, j, part))
            value += part * weight[i, j]
    return flow, value


def common_ratio(first, ratio):
    """Lower median of what is known, per job; 1 for fewer than three."""
    result = []
    for a, b in itertools.pairwise(first):
        known = sorted(r for r in ratio[a:b] if not math.isnan(r))
        result.append(known[(len(known) - 1) // 2] if len(known) >= 3 else 1.0)
    return result


def last_needed_first(rows, worker, needed, workers):
    """Shard rows of each worker, last needed first, unknown needs before all, then later rows first."""
    key = lambda row: (math.inf if math.isnan(needed[row]) else needed[row], row)  # noqa: E731
    return [sorted((r for r in rows if worker[r] == i), key=key, reverse=True) for i in range(workers)]


def pick_shards(flow, queue, samples, size, stored, node, capacity, owned, room, sent, received, links):
    """`queue[i]` are the shards that worker i may give, in order; sent and received: bytes by node."""
    owned, room, queue = list(owned), list(room), {i: list(rows) for i, rows in queue.items()}
    sent, received = list(sent), list(received)
    picked, refused = [], 0
    gives, needs = [0.0] * len(capacity), [0.0] * len(capacity)
    for i, j, wanted in flow:
        gives[i] += wanted
        needs[j] += wanted
    for i, j, wanted in flow:
        target = node[j]
        near = [row for row in queue.get(i, []) if stored[row] == target]
        far = [row for row in queue.get(i, []) if stored[row] != target]
        for row in near + far:
            if min(wanted, gives[i], needs[j]) <= samples[row] / 2 * (1 + 2**-30) or samples[row] <= 0:
                continue
            source, own_s = stored[row], links.time(stored[row], target, size[row])
            arrives = 0.0
            if source != target:
                before = sent[source] - (size[row] if source != node[i] else 0.0)
                arrives = links.time(
                    source, target, max(before * links.part(source, target), received[target]) + size[row]
                )
            done = max(owned[j] / capacity[j], arrives) + samples[row] / capacity[j]
            worth = done < owned[i] / capacity[i] and samples[row] / capacity[i] > own_s
            back_s = links.time(source, node[i], size[row])
            dry = source != target and wanted < samples[row] and (owned[i] - samples[row]) / capacity[i] < back_s
            rounded_up = source != target and min(wanted, gives[i]) < samples[row] and back_s > own_s * (1 + 2**-30)
            if not worth or dry or rounded_up or (source != target and size[row] > room[target]):
                refused += 1
                continue
            queue[i].remove(row)
            picked.append((row, j))
            wanted -= samples[row]
            gives[i] -= samples[row]
            needs[j] -= samples[row]
            owned[i] -= samples[row]
            owned[j] += samples[row]
            if source != node[i]:
                sent[source] -= size[row]
                received[node[i]] -= size[row]
            if source != target:
                sent[source] += size[row]
                received[target] += size[row]
                room[target] -= size[row]
    return picked, refused


def shard_priority(fetch, needed, size, job, alpha, beta):
    result = []
    for k in range(len(fetch)):
        if needed[k] <= fetch[k]:
            urgency = 1.0
        elif math.isfinite(needed[k]):
            urgency = fetch[k] / (fetch[k] + (needed[k] - fetch[k]))
        else:
            urgency = 0.0
        largest = max(size[n] for n in range(len(size)) if job[n] == job[k])
        result.append(alpha * urgency + beta * (1 - size[k] / largest if largest else 0.0))
    return result


def fetch_queues(shards, node, rack, links):
    """`shards` are (size, source, owner, needed, workers) in order: (arrivals, {late one: bytes before it})."""
    arrives, late = [], {}
    for k, (size, source, owner, needed, workers) in enumerate(shards):

        def queued(to, source=source, k=k):
            def total(same):
                return sum(b for b, s, o, _, _ in shards[:k] if same(s, node[o]))

            leaving = total(lambda s, t: s == source)
            waits = [leaving * links.part(source, to), total(lambda s, t: t == to)]
            if rack[source] != rack[to]:
                waits.append(total(lambda s, t: (rack[s], rack[t]) == (rack[source], rack[to])))
            return max(waits)

        arrives.append(links.time(source, node[owner], queued(node[owner]) + size))
        if arrives[-1] > needed:
            late[k] = [queued(node[w]) for w in workers]
    return arrives, late


def distribute_late(late, before, node, capacity, computing, owned, room, links):
    """`late` are (size, samples, source, needed, late, owner, workers), most critical first."""
    room, taken, chosen = list(room), set(), []
    for k, (size, samples, source, needed, lateness, owner, workers) in enumerate(late):
        options = []
        for i, w in enumerate(workers):
            fetch = links.time(source, node[w], before[k][i] + size)
            tail = owned[w] / capacity[w]
            ends = max(tail, fetch) + samples / capacity[w]
            stands_still = owned[owner] / computing[owner] + lateness
            before_owner = ends < max(owned[owner] / capacity[owner], stands_still)
            fits = fetch == 0 or size <= room[node[w]]
            if w != owner and w not in taken and fetch <= needed and fits and before_owner:
                options.append((max(fetch - tail, 0.0), tail, w))
        best = min(options)[2] if options else -1
        chosen.append(best)
        taken.add(best)
        if best >= 0 and source != node[best]:
            room[node[best]] -= size
    return chosen


def sample_time(response, fixed, samples):
    return max(response - fixed / samples, response / 100)


def resource_shares(first, rate, response, fixed, samples, alpha, beta):
    share = [math.nan] * len(rate)
    for rows in segments(first):
        good = all(response[i] > 0 and math.isfinite(response[i]) and samples[i] > 0 for i in rows)
        if not (good and all(rate[i] > 0 and fixed[i] >= 0 for i in rows)):
            continue
        batch = sum(samples[i] for i in rows)
        now = {i: samples[i] / batch for i in rows}
        for _ in range(64):
            per = {i: sample_time(response[i], fixed[i], samples[i]) for i in rows}
            speed = {i: 1 / (fixed[i] / (now[i] * batch) + per[i]) for i in rows}
            own = {i: sample_time(1 / rate[i], fixed[i], samples[i]) for i in rows}
            part = {i: 1 / (fixed[i] / (now[i] * batch) + own[i]) for i in rows}
            new = {i: alpha * part[i] / sum(part.values()) + beta * speed[i] / sum(speed.values()) for i in rows}
            change = max(abs(new[i] - now[i]) for i in rows)
            now = new
            if change < 1e-9:
                break
        for i in rows:
            share[i] = now[i]
    return share


def slowest_step(first, response, fixed, measured, dealt):
    return [
        max(
            (
                fixed[i] + dealt[i] * sample_time(response[i], fixed[i], max(measured[i], 1))
                for i in rows
                if dealt[i] > 0
            ),
            default=0.0,
        )
        for rows in segments(first)
    ]


def largest_remainder(ideal, units, low, cap):
    """One unit at a time to (or from) the worker that is furthest from its ideal."""
    dealt = [min(max(math.floor(x + LEAST), low), top) for x, top in zip(ideal, cap, strict=True)]
    while sum(dealt) != units:
        step = 1 if sum(dealt) < units else -1
        free = [i for i, b in enumerate(dealt) if (b < cap[i] if step > 0 else b > low)]
        worst = min(
            free, key=lambda i: (math.floor((dealt[i] - ideal[i]) * step / LEAST), -step * round(ideal[i], 6), i)
        )
        dealt[worst] += step
    return dealt


def exact_deal(fixed, unit, units, low, cap):
    """One unit at a time to the worker that finishes it first, by a heap."""
    dealt = [low] * len(fixed)
    heap = [(fixed[i] + (low + 1) * unit[i], i) for i in range(len(fixed)) if low < cap[i]]
    heapq.heapify(heap)
    for _ in range(units - sum(dealt)):
        _, i = heapq.heappop(heap)
        dealt[i] += 1
        if dealt[i] < cap[i]:
            heapq.heappush(heap, (fixed[i] + (dealt[i] + 1) * unit[i], i))
    return dealt


def deal(first, wanted, share, response, fixed, samples, samples_max, batch, micro_batch):
    """Deal by `share`, or exactly when that is None."""
    result, done = [int(b) for b in samples], []
    for k, rows in enumerate(segments(first)):
        micro, per = max(micro_batch[k], 1), {}
        units, rest = divmod(int(batch[k]), int(micro))
        cap = [min(int(samples_max[i]) // int(micro), units) for i in rows]
        low = 1 if units >= len(rows) and min(cap) >= 1 else 0
        done.append(False)
        if not wanted[k] or sum(cap) < units:
            continue
        per = {i: sample_time(response[i], fixed[i], max(samples[i], 1)) for i in rows}
        if share is None:
            part = exact_deal([fixed[i] for i in rows], [micro * per[i] for i in rows], units, low, cap)
        else:
            part = largest_remainder([share[i] * units for i in rows], units, low, cap)
        amount = {i: b * micro for i, b in zip(rows, part, strict=True)}
        if rest:
            open_ = [i for i in rows if amount[i] + rest <= samples_max[i]]
            if not open_:
                continue
            amount[min(open_, key=lambda i: (fixed[i] + (amount[i] + rest) * per[i], i))] += rest
        for i in rows:
            result[i] = amount[i]
        done[k] = True
    return result, done


def step_spread(first, step):
    spread = []
    for rows in segments(first):
        times = [step[i] for i in rows]
        known = all(math.isfinite(t) for t in times) and sum(times) > 0
        spread.append(max(times) / (sum(times) / len(times)) - 1 if known else math.nan)
    return spread


def busiest_node(first, node, busy):
    return [max(busy[node[i]] for i in rows) for rows in segments(first)]


def sync_coefficient(first, interval, exchange, step, counts, alpha, beta):
    result = []
    for rows, h, x, a, b in zip(segments(first), interval, exchange, alpha, beta, strict=True):
        ratios = [x / (h * step[i]) for i in rows if counts[i]]
        if not (x >= 0 and all(step[i] > 0 for i in rows if counts[i])):
            result.append(math.nan)
            continue
        k = min((a / (1 + r) - b * r for r in ratios), default=1.0)
        result.append(max(-1.0, min(1.0, k)))
    return result


def next_interval(interval, current, coefficient, bound, eta):
    real, whole = [], []
    for h, now, k, top in zip(interval, current, coefficient, bound, strict=True):
        if not math.isnan(k) and top >= 1:
            h = min(max(h * math.exp(-eta * k), 1.0), top)
            if abs(h - now) >= 0.75:
                now = math.floor(h + 0.5)
        real.append(h)
        whole.append(now)
    return real, whole


def slowest_other(first, step):
    result = [0.0] * len(step)
    for rows in segments(first):
        for i in rows:
            result[i] = max((step[n] for n in rows if n != i), default=0.0)
    return result


def weighted_shares(first, share, room, efficiency, load, delay, damping, floor):
    new = list(share)
    for k, rows in enumerate(segments(first)):
        held = sum(share[i] for i in rows)
        weight = {i: share[i] * efficiency[i] * load[i] / (1 + delay[i]) for i in rows}
        total = sum(weight.values())
        if not (total > 0 and math.isfinite(total)):
            continue
        moved = {i: room[k] * ((1 - damping) * share[i] / held + damping * weight[i] / total) for i in rows}
        least = {i: min(floor, share[i]) for i in rows}
        short = sum(max(least[i] - moved[i], 0) for i in rows)
        above = sum(max(moved[i] - least[i], 0) for i in rows)
        for i in rows:
            new[i] = moved[i] - short * (moved[i] - least[i]) / above if moved[i] > least[i] else least[i]
    return new


def worst_slowdown(shares, held, step, others, kappa):
    """Largest slowdown on one GPU at `shares`, from the steps measured at the shares `held`."""
    worst = 0.0
    for f, before, s, o, k in zip(shares, held, step, others, kappa, strict=True):
        alone = s * speed_at(before, k)
        worst = max(worst, max(alone / speed_at(f, k), o) / max(alone, o))
    return worst


def nearest_slices(wanted, least_memory, compute, memory):
    """Every choice of profiles, the nearest of those that fit; None where none do."""
    profiles = [(1, 1), (2, 2), (3, 4), (4, 4), (7, 8)]
    best = None
    for choice in itertools.product(range(5), repeat=len(wanted)):
        used = [profiles[p] for p in choice]
        if sum(c for c, _ in used) > compute or sum(m for _, m in used) > memory:
            continue
        if any(m < 8 * least - 1e-9 for (_, m), least in zip(used, least_memory, strict=True)):
            continue
        cost = sum(math.log(c / 7 / w) ** 2 for (c, _), w in zip(used, wanted, strict=True))
        if best is None or cost < best[0]:
            best = (cost, choice)
    return best


def quantise_shares(first, share, room, new, quantum, band):
    result, changed = list(share), []
    for k, rows in enumerate(segments(first)):
        held = room[k]
        units = math.floor(held / quantum[k] + 1e-9)
        far = any(abs(new[i] - share[i]) > band * share[i] for i in rows)
        changed.append(False)
        if not far or units < len(rows):
            continue
        whole = largest_remainder([new[i] * (units / held) for i in rows], units, 1, [units] * len(rows))
        quantised = [min(b * quantum[k], 1.0) for b in whole]
        if any(abs(q - share[i]) > 1e-9 for q, i in zip(quantised, rows, strict=True)):
            changed[k] = True
            for q, i in zip(quantised, rows, strict=True):
                result[i] = q
    return result, changed


def best_makespan(fixed, unit, units, low, cap):
    """The least possible max(fixed + b * unit) over all whole deals, by trying every level there is."""
    levels = sorted(
        {Fraction(f) + b * Fraction(u) for f, u, top in zip(fixed, unit, cap, strict=True) for b in range(low, top + 1)}
    )
    for level in levels:
        most = [
            min(top, math.floor((level - Fraction(f)) / Fraction(u)))
            for f, u, top in zip(fixed, unit, cap, strict=True)
        ]
        if min(most) >= low and sum(most) >= units:
            return float(level)
    raise ValueError("no deal fits")
