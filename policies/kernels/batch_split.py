"""Jitted kernels that split the work of a step: shares, and whole micro-batches.

Workers are sorted by job; job k owns the rows first[k] .. first[k + 1] - 1. Times in s, amounts in samples.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.kernels.arrays import heapify, sift_down
from equipoise.policies.kernels.jit import ZERO, jit, jit_in_place
from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.policies.physics import deal_remainders


@jit
def resource_shares(
    first: Ints, rate: Floats, response_s: Floats, fixed_s: Floats, samples: Ints, alpha: float, beta: float
) -> Floats:
    """R_i = alpha * C_i / sum(C) + beta * (1/T_i) / sum(1/T), at the split that R itself gives.

    T_i = fixed_i / b_i + t_i depends on the split b_i through the fixed part of a step, so R is iterated to its
    fixed point, where all workers take equally long. C_i is `rate`, the sustainable rate of a worker, at that split;
    transient input waits are in T_i only. NaN for the workers of a job with an unknown value.
    """
    share = np.full(rate.size, np.nan)
    each, able = np.empty(rate.size), np.empty(rate.size)
    speed, sustained = np.empty(rate.size), np.empty(rate.size)
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
            each[i] = sample_time(response_s[i], fixed_s[i], samples[i])
            able[i] = sample_time(1.0 / rate[i], fixed_s[i], samples[i])
        for _ in range(64):
            rates, speeds = 0.0, 0.0
            for i in range(begin, end):
                start_s = fixed_s[i] / (share[i] * batch)
                # Samples per busy second at this share: by the response, and by what a worker can sustain.
                speed[i], sustained[i] = 1.0 / (start_s + each[i]), 1.0 / (start_s + able[i])
                rates += sustained[i]
                speeds += speed[i]
            change = 0.0
            for i in range(begin, end):
                new = alpha * sustained[i] / rates + beta * speed[i] / speeds
                change = max(change, abs(new - share[i]))
                share[i] = new
            if change < 1e-9:
                break
    return share


@jit
def sample_time(response_s: float, fixed_s: float, samples: int) -> float:
    """Seconds per additional sample: the response without the fixed part, at least 0.1 % of it."""
    return max(response_s - fixed_s / samples, 0.001 * response_s)


@jit
def slowest_step(first: Ints, response_s: Floats, fixed_s: Floats, measured: Ints, dealt: Ints) -> Floats:
    """Predicted step time per job at the split `dealt`: the maximum over its workers."""
    slowest_s = np.zeros(first.size - 1)
    for k in range(first.size - 1):
        for i in range(first[k], first[k + 1]):
            step_s = fixed_s[i] + dealt[i] * sample_time(response_s[i], fixed_s[i], max(measured[i], 1))
            if dealt[i] > 0 and not step_s <= slowest_s[k]:
                slowest_s[k] = step_s
    return slowest_s


@jit
def exact_deal(fixed_s: Floats, unit_s: Floats, units: int, low: int, cap: Ints) -> Ints:
    """Whole units that minimise max_i(fixed_i + b_i * unit_i), each in low .. cap[i], sum `units`.

    Giving one unit at a time to the worker that would finish it first is optimal; bisection on the finishing time
    assigns all units that end before it at once, and a heap assigns the rest.
    """
    dealt = np.empty(fixed_s.size, dtype=np.int64)
    early, late = 0.0, 0.0
    for i in range(fixed_s.size):
        late = max(late, fixed_s[i] + units * unit_s[i])
    for _ in range(64):
        middle = 0.5 * (early + late)
        if _deal_until(middle, fixed_s, unit_s, units, low, cap, dealt) <= units:
            early = middle
        else:
            late = middle
    left = units - _deal_until(early, fixed_s, unit_s, units, low, cap, dealt)
    end_s, worker = np.empty(fixed_s.size), np.empty(fixed_s.size, dtype=np.int64)
    for i in range(fixed_s.size):
        worker[i] = i
        end_s[i] = fixed_s[i] + (dealt[i] + 1) * unit_s[i] if dealt[i] < cap[i] else np.inf
    heapify(end_s, worker, worker.size)
    for _ in range(left):
        i = worker[0]
        dealt[i] += 1
        end_s[0] = fixed_s[i] + (dealt[i] + 1) * unit_s[i] if dealt[i] < cap[i] else np.inf
        sift_down(end_s, worker, worker.size, ZERO)
    return dealt


@jit
def _deal_until(end_s: float, fixed_s: Floats, unit_s: Floats, units: int, low: int, cap: Ints, dealt: Ints) -> int:
    """Write the units that each worker finishes by `end_s`, in low .. cap[i], to `dealt`; returns the sum."""
    total = 0
    for i in range(fixed_s.size):
        by_then = min(max((end_s - fixed_s[i]) / unit_s[i], 0.0), float(units))
        dealt[i] = min(max(int(by_then), low), cap[i])
        total += dealt[i]
    return total


@jit_in_place
def _bounds(samples_max: Ints, begin: int, micro: int, units: int, cap: Ints) -> tuple[int, bool]:
    """Fewest units of each worker, and whether the bounds leave room for `units`; writes most units to `cap`.

    A worker gets at least one unit when there are enough, so that its speed stays visible.
    """
    room, low = 0, 1 if units >= cap.size else 0
    for i in range(cap.size):
        cap[i] = min(samples_max[begin + i] // micro, units)
        room += cap[i]
        if cap[i] < 1:
            low = 0
    return low, room >= units


@jit
def _settle(
    out: Ints,
    units: Ints,
    begin: int,
    micro: int,
    rest: int,
    response_s: Floats,
    fixed_s: Floats,
    samples: Ints,
    samples_max: Ints,
) -> bool:
    """Write units as samples to out[begin:]; the remainder goes to the worker that finishes it first.

    False (and nothing is written) when no worker has room for the rest.
    """
    best, best_s = -1, np.inf
    for i in range(begin, begin + units.size):
        amount = units[i - begin] * micro + rest
        end_s = fixed_s[i] + amount * sample_time(response_s[i], fixed_s[i], max(samples[i], 1))
        if amount <= samples_max[i] and (best < 0 or end_s < best_s):
            best, best_s = i, end_s
    if rest > 0 and best < 0:
        return False
    for i in range(begin, begin + units.size):
        out[i] = units[i - begin] * micro + (rest if i == best else 0)
    return True


@jit
def deal_by_share(
    first: Ints,
    wanted: Bools,
    share: Floats,
    response_s: Floats,
    fixed_s: Floats,
    samples: Ints,
    samples_max: Ints,
    batch: Ints,
    micro_batch: Ints,
) -> tuple[Ints, Bools]:
    """Split the batch of the `wanted` jobs by `share`, largest remainders first: (samples, job was split).

    In whole micro-batches, at least one each where there are enough; the remainder of a batch goes to the worker
    with room that finishes it first. Jobs whose memory bounds leave no room keep their samples.
    """
    dealt, done = samples.copy(), np.zeros(first.size - 1, dtype=np.bool_)
    whole, parts = np.empty((3, samples.size), dtype=np.int64), np.empty((2, samples.size))
    for k in range(first.size - 1):
        begin, end, micro = first[k], first[k + 1], max(micro_batch[k], 1)
        units, cap, part = batch[k] // micro, whole[0, begin:end], whole[1, begin:end]
        ideal = parts[0, begin:end]
        low, fits = _bounds(samples_max, begin, micro, units, cap)
        if not (wanted[k] and fits):
            continue
        for i in range(cap.size):
            ideal[i] = share[begin + i] * units
        deal_remainders(ideal, units, low, cap, part, whole[2, begin:end], parts[1, begin:end])
        rest = batch[k] - units * micro
        done[k] = _settle(dealt, part, begin, micro, rest, response_s, fixed_s, samples, samples_max)
    return dealt, done


@jit
def deal_exactly(
    first: Ints,
    wanted: Bools,
    response_s: Floats,
    fixed_s: Floats,
    samples: Ints,
    samples_max: Ints,
    batch: Ints,
    micro_batch: Ints,
) -> tuple[Ints, Bools]:
    """Split the batch of the `wanted` jobs so that the slowest step is as short as possible.

    Otherwise as `deal_by_share`.
    """
    dealt, done = samples.copy(), np.zeros(first.size - 1, dtype=np.bool_)
    for k in range(first.size - 1):
        begin, micro = first[k], max(micro_batch[k], 1)
        units, cap = batch[k] // micro, np.empty(first[k + 1] - begin, dtype=np.int64)
        low, fits = _bounds(samples_max, begin, micro, units, cap)
        if not (wanted[k] and fits):
            continue
        start_s, unit_s = np.empty(cap.size), np.empty(cap.size)
        for i in range(cap.size):
            w = begin + i
            start_s[i] = fixed_s[w]
            unit_s[i] = micro * sample_time(response_s[w], fixed_s[w], max(samples[w], 1))
        part = exact_deal(start_s, unit_s, units, low, cap)
        rest = batch[k] - units * micro
        done[k] = _settle(dealt, part, begin, micro, rest, response_s, fixed_s, samples, samples_max)
    return dealt, done
