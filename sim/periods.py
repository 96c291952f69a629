"""The jitted time advance: many synchronisation periods of one job in one call.

Every sum is built in the order of the periods, so cutting a stretch of periods anywhere gives the same bits.
"""

from __future__ import annotations

import math

import numpy as np

from policies.jit import jit
from sim.randomness import noise_pair
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
# Rows of `scratch`.
FINISH, LAST, BEGIN, P_BUSY, P_SQUARE, P_STALL = range(6)

_TOLERANCE = 1e-9


@jit
def one_step(compute_s, input_s, factor, w, last, scratch):  # type: ignore[no-untyped-def]
    """Add one local step of worker `w` to the scratch rows."""
    busy = compute_s * factor
    work = max(busy, input_s)
    if last:
        scratch[BEGIN, w] = scratch[FINISH, w]
        scratch[LAST, w] = work
    scratch[FINISH, w] += work
    scratch[P_BUSY, w] += busy
    scratch[P_SQUARE, w] += work * work
    scratch[P_STALL, w] += work - busy


@jit
def unfold(steps, first_step, key, mu, sigma, compute_s, input_s, last_compute_s, last_input_s, scratch):  # type: ignore[no-untyped-def]
    """Local steps of one period for all workers, without waits: fills the scratch rows (offsets and sums, s)."""
    n = compute_s.size
    scratch[:, :n] = 0.0
    for k in range(steps):
        last = k == steps - 1
        c, i = (last_compute_s, last_input_s) if last else (compute_s, input_s)
        if sigma == 0.0:
            for w in range(n):
                one_step(c[w], i[w], 1.0, w, last, scratch)
        else:
            for pair in range((n + 1) // 2):
                even, odd = noise_pair(key, pair, first_step + k, mu, sigma)
                w = 2 * pair
                one_step(c[w], i[w], even, w, last, scratch)
                if w + 1 < n:
                    one_step(c[w + 1], i[w + 1], odd, w + 1, last, scratch)


@jit
def meet(n, scratch, alone_s, gamma):  # type: ignore[no-untyped-def]
    """(arrival of the last worker, begin of the exchange, duration) of an uncontended period, as offsets (s)."""
    slowest, begin = 0, 0.0
    for w in range(n):
        if scratch[FINISH, w] > scratch[FINISH, slowest]:
            slowest = w
        begin = max(begin, scratch[BEGIN, w])
    arrival = scratch[FINISH, slowest]
    begin = max(begin, arrival - hidden_s(scratch[LAST, slowest], alone_s, gamma))
    return arrival, begin, max(arrival, begin + alone_s)


@jit
def advance(periods, horizon_s, checkpoint_s, whole, real, worker, gpu_s, scratch, end_s):  # type: ignore[no-untyped-def]
    """Advance up to `periods` whole, uncontended periods without waits; returns how many.

    Stops before a period that ends after `horizon_s` (but does at least one), after the first that ends at or
    after `checkpoint_s`, when the job is done, and before one that would be shorter than the interval. All
    arrays but `end_s` (end of each period, s) hold state and are updated in place; gpu_s rows follow `sim.job`.
    """
    n, steps, batch = worker.shape[1], whole[INTERVAL], whole[BATCH]
    sigma, alone_s = real[SIGMA], real[ALONE_S]
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
                worker[COMPUTE_S], worker[INPUT_S], worker[COMPUTE_S], worker[INPUT_S], scratch,
            )  # fmt: skip
            arrival, _, duration = meet(n, scratch, alone_s, real[GAMMA])
        if duration == real[RUN_PERIOD_S]:
            base, count = real[RUN_BASE_S], whole[RUN_COUNT] + 1
        else:
            base, count = real[RUN_BASE_S] + whole[RUN_COUNT] * real[RUN_PERIOD_S], 1
        end = real[ANCHOR_S] + (base + count * duration)
        if end > horizon_s and done > 0:
            break
        real[RUN_BASE_S], real[RUN_PERIOD_S], whole[RUN_COUNT] = base, duration, count
        busy = stall = wait = 0.0
        for w in range(n):
            weight, waited = worker[SHARE_WEIGHT, w], arrival - scratch[FINISH, w]
            busy += scratch[P_BUSY, w] * weight
            stall += scratch[P_STALL, w] * weight
            wait += waited * weight
            worker[BUSY_S, w] += scratch[P_BUSY, w]
            worker[BUSY_SQUARE, w] += scratch[P_SQUARE, w]
            worker[STALL_S, w] += scratch[P_STALL, w]
            worker[WAIT_S, w] += waited
            worker[W_SAMPLES, w] += worker[SAMPLES_EACH, w] * steps
        useful = 0.0
        if steps > 1:
            useful += (steps - 1) * batch * gain
        useful += batch * gain
        gpu_s[0] += busy
        gpu_s[1] += stall
        gpu_s[2] += wait
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


def scratch_for(workers: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Working space of `unfold` and `advance` for that many workers."""
    return np.zeros((6, workers))
