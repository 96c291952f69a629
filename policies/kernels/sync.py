"""Jitted kernels of the synchronisation stage: intervals between gradient exchanges, shares of GPUs.

Workers are sorted by job; job k owns the rows first[k] .. first[k + 1] - 1. Times in s, shares 0..1.
"""

from __future__ import annotations

import math

import numpy as np

from equipoise.policies.kernels.jit import jit
from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.policies.physics import largest_remainder, overlapped_s, share_for, speed_at


@jit
def step_spread(first: Ints, step_s: Floats) -> Floats:
    """max / mean - 1 of the workers' step times per job; NaN where one is unknown."""
    spread = np.full(first.size - 1, np.nan)
    for k in range(first.size - 1):
        largest, total = 0.0, 0.0
        for i in range(first[k], first[k + 1]):
            largest = max(largest, step_s[i])
            total += step_s[i]
        if total > 0.0:
            spread[k] = largest * (first[k + 1] - first[k]) / total - 1.0
    return spread


@jit
def busiest_node(first: Ints, node: Ints, busy_s: Floats) -> Floats:
    """Per job the largest `busy_s` among the nodes of its workers."""
    largest = np.zeros(first.size - 1)
    for k in range(first.size - 1):
        for i in range(first[k], first[k + 1]):
            largest[k] = max(largest[k], busy_s[node[i]])
    return largest


@jit
def sync_coefficient(
    first: Ints, interval: Floats, exchange_s: Floats, step_s: Floats, counts: Bools, alpha: Floats, beta: Floats
) -> Floats:
    """K per job: the least of its workers' K_i = alpha * V_i/V_ref - beta * d_i, clipped to -1..1.

    With r_i = exchange / (h * step_i): worker i's update speed is V_i/V_ref = 1 / (1 + r_i) of its speed without
    delay, and its delay is d_i = r_i of its computation between two exchanges. alpha and beta are by job; workers
    whose gradients are left out are ignored. NaN where an exchange or a step is unknown.
    """
    coefficient = np.full(interval.size, np.nan)
    for k in range(interval.size):
        least, known = 1.0, exchange_s[k] >= 0.0
        for i in range(first[k], first[k + 1]):
            if counts[i]:
                known = known and step_s[i] > 0.0
                r = exchange_s[k] / (interval[k] * step_s[i])
                least = min(least, alpha[k] / (1.0 + r) - beta[k] * r)
        if known:
            coefficient[k] = max(least, -1.0)
    return coefficient


@jit
def next_interval(
    interval: Floats, current: Ints, coefficient: Floats, bound: Floats, eta: float
) -> tuple[Floats, Ints]:
    """h <- clip(h * exp(-eta * K), 1, bound) and the whole interval: (h, H).

    H follows h only once they are 0.75 apart. Where the coefficient or the bound is unknown both are kept.
    """
    h, whole = interval.copy(), current.copy()
    for k in range(h.size):
        if np.isnan(coefficient[k]) or not bound[k] >= 1.0:
            continue
        h[k] = min(max(h[k] * math.exp(-eta * coefficient[k]), 1.0), bound[k])
        if abs(h[k] - current[k]) >= 0.75:
            whole[k] = math.floor(h[k] + 0.5)
    return h, whole


@jit
def expected_maximum(mean: Floats, std: Floats) -> float:
    """E[max_i X_i] of independent normal X_i: lo + the integral of 1 - prod_i F_i over 6 sigma.

    Simpson's rule on 64 intervals; exact where nothing varies.
    """
    low, high = -np.inf, -np.inf
    for i in range(mean.size):
        low = max(low, mean[i] - 6.0 * std[i])
        high = max(high, mean[i] + 6.0 * std[i])
    if not high > low:
        return low
    width, total = (high - low) / 64.0, 0.0
    for n in range(65):
        x, below = low + n * width, 1.0
        for i in range(mean.size):
            if std[i] > 0.0:
                below *= 0.5 * math.erfc((mean[i] - x) / (std[i] * math.sqrt(2.0)))
            elif x < mean[i]:
                below = 0.0
        weight = 1.0 if n == 0 or n == 64 else (4.0 if n % 2 == 1 else 2.0)
        total += weight * (1.0 - below)
    return low + total * width / 3.0


@jit
def sync_period(interval: float, mean: Floats, std: Floats, exchange_s: float, gamma: float) -> float:
    """Expected duration of `interval` local steps and one exchange.

    The barrier waits for the maximum of sums, approximated as normal; the exchange hides behind the last
    step L of the slowest worker: period = W - L + `overlapped_s(L, X)`.
    """
    barrier_s = expected_maximum(interval * mean, math.sqrt(interval) * std)
    last_s = float(mean.max())
    return barrier_s - last_s + overlapped_s(last_s, exchange_s, gamma)


@jit
def best_interval(
    first: Ints,
    step_s: Floats,
    std_s: Floats,
    exchange_s: Floats,
    gamma: Floats,
    drift: Floats,
    input_s: Floats,
    current: Ints,
    longest: int,
) -> tuple[Ints, Floats]:
    """The H in 1..longest with the least expected period per useful step, and its gain over the current H.

    Cost of H: max(E[period(H)] / H, input_s) * (1 + drift * (H - 1)), with input_s the least time between two steps.
    The gain is 1 - cost(best) / cost(current), NaN (and H as it is) where something is unknown.
    """
    best, gain = current.copy(), np.full(current.size, np.nan)
    for k in range(current.size):
        mean, std = step_s[first[k] : first[k + 1]], std_s[first[k] : first[k + 1]]
        known = exchange_s[k] >= 0.0 and drift[k] >= 0.0 and gamma[k] >= 1.0
        for i in range(mean.size):
            known = known and mean[i] > 0.0 and std[i] >= 0.0
        if not known:
            continue
        least = np.inf
        for h in range(1, longest + 1):
            step = max(sync_period(float(h), mean, std, exchange_s[k], gamma[k]) / h, input_s[k])
            cost = step * (1.0 + drift[k] * (h - 1))
            if cost < least:
                least, best[k] = cost, h
        now = max(sync_period(float(current[k]), mean, std, exchange_s[k], gamma[k]) / current[k], input_s[k])
        gain[k] = 1.0 - least / (now * (1.0 + drift[k] * (current[k] - 1)))
    return best, gain


@jit
def level_cost(
    interval: int,
    every: int,
    mean: Floats,
    std: Floats,
    near_s: float,
    far_s: float,
    gamma: float,
    drift: float,
    ratio: float,
    input_s: float,
) -> float:
    """Expected time per useful local step (s) with exchanges each `interval` steps, one in `every` of all workers.

    Near exchanges leave the part `ratio` of the drift (`policies.levels`). With every = 1 the cost in `best_interval`.
    """
    period_s = sync_period(float(interval), mean, std, far_s, gamma)
    if every > 1:
        period_s += (every - 1) * sync_period(float(interval), mean, std, near_s, gamma)
    useful = 1.0 + drift * (interval * (1.0 + ratio * (every - 1)) - 1.0)
    return max(period_s / (interval * every), input_s) * useful


@jit
def best_levels(
    first: Ints,
    step_s: Floats,
    std_s: Floats,
    near_s: Floats,
    far_s: Floats,
    gamma: Floats,
    drift: Floats,
    ratio: Floats,
    input_s: Floats,
    near: Ints,
    every: Ints,
    one: Ints,
    longest: int,
) -> tuple[Ints, Ints, Floats]:
    """Interval and `every` of two levels, and the relative time saved over the single interval `one`.

    The given ones or, with longest > 0, those of least cost with interval * every <= longest. NaN: unknown.
    """
    best_h, best_every, gain = near.copy(), every.copy(), np.full(near.size, np.nan)
    for k in range(near.size):
        mean, std = step_s[first[k] : first[k + 1]], std_s[first[k] : first[k + 1]]
        known = near_s[k] >= 0.0 and far_s[k] >= 0.0 and drift[k] >= 0.0 and gamma[k] >= 1.0
        for i in range(mean.size):
            known = known and mean[i] > 0.0
        if not known:
            continue
        rest = (near_s[k], far_s[k], gamma[k], drift[k], ratio[k], input_s[k])
        least = np.inf if longest else level_cost(near[k], every[k], mean, std, *rest)
        for h in range(1, longest + 1):
            for m in range(1, longest // h + 1):
                cost = level_cost(h, m, mean, std, *rest)
                if cost < least:
                    least, best_h[k], best_every[k] = cost, h, m
        gain[k] = 1.0 - least / level_cost(one[k], 1, mean, std, *rest)
    return best_h, best_every, gain


@jit
def slowest_other(first: Ints, step_s: Floats) -> Floats:
    """Per worker the longest step among the other workers of its job; 0 when it is alone."""
    longest = np.zeros(step_s.size)
    for k in range(first.size - 1):
        largest, second, where = 0.0, 0.0, -1
        for i in range(first[k], first[k + 1]):
            if step_s[i] > largest:
                largest, second, where = step_s[i], largest, i
            else:
                second = max(second, step_s[i])
        for i in range(first[k], first[k + 1]):
            longest[i] = second if i == where else largest
    return longest


@jit
def weighted_shares(
    first: Ints,
    share: Floats,
    room: Floats,
    efficiency: Floats,
    load: Floats,
    delay: Floats,
    damping: float,
    floor: float,
) -> Floats:
    """R'_i = R_i * (E_i / P_i) * lambda_i / (1 + delta_i); GPU k has the rows first[k] .. first[k + 1] - 1.

    Normalised to room[k], the total for the workers of the GPU: present shares are scaled to it, then moved by
    `damping`, never below `floor` (or the present share, if that is less). Unknown inputs leave a GPU's shares
    unchanged.
    """
    new = share.copy()
    for k in range(first.size - 1):
        begin, end = first[k], first[k + 1]
        held, total = 0.0, 0.0
        for i in range(begin, end):
            held += share[i]
            total += share[i] * efficiency[i] * load[i] / (1.0 + delay[i])
        if not (total > 0.0 and np.isfinite(total)):
            continue
        for i in range(begin, end):
            target = share[i] * efficiency[i] * load[i] / (1.0 + delay[i]) / total
            in_force = share[i] / held
            new[i] = room[k] * (in_force + damping * (target - in_force))
        _lift(new, share, begin, end, floor)
    return new


@jit
def _lift(new: Floats, share: Floats, begin: int, end: int, floor: float) -> None:
    """Raise shares to the floor, in place; the others give in proportion to their excess over it."""
    missing, above = 0.0, 0.0
    for i in range(begin, end):
        least = min(floor, share[i])
        missing += max(least - new[i], 0.0)
        above += max(new[i] - least, 0.0)
    for i in range(begin, end):
        least = min(floor, share[i])
        new[i] = least if new[i] <= least else new[i] - missing * (new[i] - least) / above


@jit
def _share_at(slowdown: float, alone_s: float, others_s: float, kappa: float, floor: float) -> float:
    """Least share, at least `floor`, with max(own step, others') <= slowdown * max(own alone, others')."""
    allowed_s = slowdown * max(alone_s, others_s)
    return max(share_for(min(alone_s / allowed_s, 1.0), kappa), floor)


@jit
def fair_shares(
    first: Ints, share: Floats, room: Floats, step_s: Floats, others_s: Floats, kappa: Floats, floor: float
) -> Floats:
    """Shares per GPU that minimise the slowest co-located job's slowdown under the fitted share curves.

    A worker alone on the GPU would take step * speed_at(share); its job's step is the longer of its own and
    `others_s`, its peers'. The least common slowdown whose shares fit into room[k], the total for the GPU's workers,
    is found by bisection, and the rest is split in proportion. Unknown inputs leave a GPU unchanged.
    """
    new = share.copy()
    for k in range(first.size - 1):
        begin, end = first[k], first[k + 1]
        held, known = room[k], True
        for i in range(begin, end):
            known = known and step_s[i] > 0.0 and np.isfinite(step_s[i]) and np.isfinite(others_s[i])
        least = min(floor, held / (end - begin))
        if not known:
            continue
        fast, slow = 1.0, 1.0
        for i in range(begin, end):  # at the floor everywhere, nothing is slower than this
            slow = max(slow, 1.0 / speed_at(least, kappa[i]))
        for _ in range(64):
            middle, wanted = 0.5 * (fast + slow), 0.0
            for i in range(begin, end):
                alone_s = step_s[i] * speed_at(share[i], kappa[i])
                wanted += _share_at(middle, alone_s, others_s[i], kappa[i], least)
            if wanted <= held:
                slow = middle
            else:
                fast = middle
        wanted = 0.0
        for i in range(begin, end):
            alone_s = step_s[i] * speed_at(share[i], kappa[i])
            new[i] = _share_at(slow, alone_s, others_s[i], kappa[i], least)
            wanted += new[i]
        for i in range(begin, end):
            new[i] = min(new[i] * max(held / wanted, 1.0), 1.0)
    return new


@jit
def quantise_shares(
    first: Ints, share: Floats, room: Floats, new: Floats, quantum: Floats, band: float
) -> tuple[Floats, Bools]:
    """Shares in whole quanta of the GPU, room[k] in total, and whether each GPU's shares change.

    A GPU whose shares would all change by at most `band` keeps them, as does one with less than one quantum for each
    worker.
    """
    result, changed = share.copy(), np.zeros(first.size - 1, dtype=np.bool_)
    for k in range(first.size - 1):
        begin, end = first[k], first[k + 1]
        held, far = room[k], False
        for i in range(begin, end):
            far = far or abs(new[i] - share[i]) > band * share[i]
        units = math.floor(held / quantum[k] + 1e-9)
        if not far or units < end - begin:
            continue
        ideal, cap = np.empty(end - begin), np.empty(end - begin, dtype=np.int64)
        for i in range(begin, end):
            ideal[i - begin], cap[i - begin] = new[i] * (units / held), units
        whole = largest_remainder(ideal, units, min(units, 1), cap)
        for i in range(begin, end):
            result[i] = min(whole[i - begin] * quantum[k], 1.0)
            changed[k] = changed[k] or abs(result[i] - share[i]) > 1e-9
        for i in range(begin, end):
            if not changed[k]:
                result[i] = share[i]
    return result, changed
