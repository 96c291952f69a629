"""The jitted time advance: many synchronisation periods of one job in one call.

Every sum is built in the order of the periods, so cutting a stretch of periods anywhere gives the same bits.
"""

from __future__ import annotations

import math

import numpy as np

from policies.jit import ZERO, jit_in_place
from policies.observation import Floats, Ints
from sim.randomness import Space, noise_row, noise_space
from sim.workload import efficiency, hidden_s

# Integers of a stretch, by position in `whole` (see `sim.fast.Stretch`).
INTERVAL, BATCH, FIRST_STEP, SAMPLES, STEPS, EXCHANGES, RUN_COUNT, KEY, DONE = range(9)
# Reals, by position in `real`.
(
    MU, SIGMA, ALONE_S, GAMMA, PHI, PHI_GROWTH, REFERENCE, DRIFT, TARGET, WEIGHT,
    ANCHOR_S, RUN_BASE_S, RUN_PERIOD_S, USEFUL, WINDOW_USEFUL, WINDOW_EXCHANGE_S, START_S,
) = range(17)  # fmt: skip
# Rows of `worker` (one column per worker).
COMPUTE_S, INPUT_S, SHARE_WEIGHT, BUSY_S, BUSY_SQUARE, STALL_S, WAIT_S, W_SAMPLES, SAMPLES_EACH = range(9)
Scratch = tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats]
"""Arrays that `unfold` fills: finish, last_s, begin, busy_s, square, stall_s, factor; the last is for `advance`."""

_TOLERANCE = 1e-9


@jit_in_place
def unfold(
    steps: int, first_step: int, key: int, mu: float, sigma: float,
    compute_s: Floats, input_s: Floats, last_compute_s: Floats, last_input_s: Floats,
    finish: Floats, last_s: Floats, begin: Floats, busy_s: Floats, square: Floats, stall_s: Floats,
    factor: Floats, space: Space,
) -> None:  # fmt: skip
    """Local steps of one period for all workers, without waits.

    Fills, per worker: finish and begin of the last step (offsets), last_s its length, sums over all steps of
    busy_s, square (of the work) and stall_s; factor is the last noise, `space` belongs to `noise_row`.
    """
    n = compute_s.size
    if sigma == 0.0:
        factor[:] = 1.0
    for k in range(steps):
        c = last_compute_s if k == steps - 1 else compute_s
        i = last_input_s if k == steps - 1 else input_s
        if sigma != 0.0:
            noise_row(key, first_step + k, ZERO, mu, sigma, space, factor)
        if k == 0:
            for w in range(n):
                busy_s[w] = c[w] * factor[w]
            for w in range(n):
                last_s[w] = max(busy_s[w], i[w])
            for w in range(n):
                begin[w] = 0.0
                finish[w] = last_s[w]
                stall_s[w] = last_s[w] - busy_s[w]
                square[w] = last_s[w] * last_s[w]
        else:
            for w in range(n):
                busy = c[w] * factor[w]
                work = max(busy, i[w])
                last_s[w] = work
                begin[w] = finish[w]
                finish[w] += work
                busy_s[w] += busy
                square[w] += work * work
                stall_s[w] += work - busy


@jit_in_place
def add(total: Floats, values: Floats) -> None:
    """total += values, elementwise over `total`."""
    for w in range(total.size):
        total[w] += values[w]


@jit_in_place
def dot(values: Floats, weight: Floats) -> float:
    """Sum of values * weight in eight interleaved partial sums, which need not wait for each other."""
    n = weight.size
    a = b = c = d = e = f = g = h = 0.0
    whole = n - n % 8
    for w in range(0, whole, 8):
        a += values[w] * weight[w]
        b += values[w + 1] * weight[w + 1]
        c += values[w + 2] * weight[w + 2]
        d += values[w + 3] * weight[w + 3]
        e += values[w + 4] * weight[w + 4]
        f += values[w + 5] * weight[w + 5]
        g += values[w + 6] * weight[w + 6]
        h += values[w + 7] * weight[w + 7]
    for w in range(whole, n):
        a += values[w] * weight[w]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@jit_in_place
def meet(
    n: int, finish: Floats, begins: Floats, last_s: Floats, alone_s: float, gamma: float
) -> tuple[float, float, float]:
    """(arrival of the last worker, begin of the exchange, duration) of an uncontended period, as offsets (s)."""
    slowest, arrival, begin = 0, float(finish[0]), 0.0
    for w in range(n):
        if finish[w] > arrival:
            slowest, arrival = w, float(finish[w])
    for w in range(n):
        if begins[w] > begin:
            begin = float(begins[w])
    begin = max(begin, arrival - hidden_s(last_s[slowest], alone_s, gamma))
    return arrival, begin, max(arrival, begin + alone_s)


@jit_in_place
def advance(
    periods: int, horizon_s: float, checkpoint_s: float,
    whole: Ints, real: Floats, worker: Floats, gpu_s: Floats, scratch: Scratch, space: Space, end_s: Floats,
) -> int:  # fmt: skip
    """Advance up to `periods` whole, uncontended periods without waits; returns how many.

    Stops before a period that ends after `horizon_s` (but does at least one), after the first that ends at or
    after `checkpoint_s`, when the job is done, and before one that would be shorter than the interval. All
    arrays but `end_s` (end of each period, s) hold state and are updated in place; gpu_s rows follow `sim.job`.
    """
    n, steps, batch = worker.shape[1], whole[INTERVAL], whole[BATCH]
    sigma, alone_s = real[SIGMA], real[ALONE_S]
    finish, last_s, begins, p_busy, p_square, p_stall, factor, waited = scratch
    compute_s, input_s = worker[COMPUTE_S], worker[INPUT_S]
    busy_s, busy_square = worker[BUSY_S], worker[BUSY_SQUARE]
    stall_s, wait_s = worker[STALL_S], worker[WAIT_S]
    samples, weight, per_step = worker[W_SAMPLES], worker[SHARE_WEIGHT], worker[SAMPLES_EACH]
    arrival = duration = 0.0
    done = 0
    while done < periods:
        phi = real[PHI]
        if phi >= 0.0:
            phi *= 1.0 + real[PHI_GROWTH] * min(1.0, real[USEFUL] / real[TARGET])
        gain = efficiency(float(batch), steps, phi, real[REFERENCE], real[DRIFT])
        missing = real[TARGET] * (1.0 - _TOLERANCE) - real[USEFUL]
        if math.ceil(missing / (batch * gain)) < steps:
            break
        if sigma != 0.0 or done == 0:
            unfold(
                steps, whole[FIRST_STEP], whole[KEY], real[MU], sigma,
                compute_s, input_s, compute_s, input_s,
                finish, last_s, begins, p_busy, p_square, p_stall, factor, space,
            )  # fmt: skip
            arrival, _, duration = meet(n, finish, begins, last_s, alone_s, real[GAMMA])
        if duration == real[RUN_PERIOD_S]:
            base, count = real[RUN_BASE_S], whole[RUN_COUNT] + 1
        else:
            base, count = real[RUN_BASE_S] + whole[RUN_COUNT] * real[RUN_PERIOD_S], 1
        end = real[ANCHOR_S] + (base + count * duration)
        if end > horizon_s and done > 0:
            break
        real[RUN_BASE_S], real[RUN_PERIOD_S], whole[RUN_COUNT] = base, duration, count
        for w in range(n):
            waited[w] = arrival - finish[w]
        add(busy_s, p_busy)
        add(busy_square, p_square)
        add(stall_s, p_stall)
        add(wait_s, waited)
        for w in range(n):
            samples[w] += per_step[w] * steps
        busy = dot(p_busy, weight)
        useful = 0.0
        if steps > 1:
            useful += (steps - 1) * batch * gain
        useful += batch * gain
        gpu_s[0] += busy
        gpu_s[1] += dot(p_stall, weight)
        gpu_s[2] += dot(waited, weight)
        gpu_s[3] += (duration - arrival) * real[WEIGHT]
        gpu_s[6] += busy * useful / (steps * batch)
        real[USEFUL] += useful
        real[WINDOW_USEFUL] += useful
        real[WINDOW_EXCHANGE_S] += alone_s
        whole[SAMPLES] += steps * batch
        whole[STEPS] += steps
        whole[EXCHANGES] += 1
        whole[FIRST_STEP] += steps
        real[START_S] = end
        end_s[done] = end
        done += 1
        if real[USEFUL] >= real[TARGET] * (1.0 - _TOLERANCE):
            whole[DONE] = 1
            break
        if end >= checkpoint_s:
            break
    return done


def scratch_for(workers: int) -> tuple[Scratch, Space]:
    """Working space of `unfold` and `advance` for that many workers: (scratch, space)."""
    finish, last_s, begin, busy_s, square, stall_s, factor, waited = np.zeros((8, workers + workers % 2))
    return (finish, last_s, begin, busy_s, square, stall_s, factor, waited), noise_space(workers)
