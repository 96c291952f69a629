"""The jitted time advance: many synchronisation periods of one job in one call.

Sums are built in the order of the periods, so cutting a stretch of periods anywhere gives identical results.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from equipoise.policies.kernels.jit import ZERO, jit_in_place, jit_inside
from equipoise.policies.observation import Floats
from equipoise.policies.physics import efficiency, hidden_s, rate_worth
from equipoise.sim.job.account import (
    BARRIER_WAIT,
    BUSY,
    EXPOSED_COMMUNICATION,
    INPUT_STALL,
    PIPELINE_BUBBLE,
    TENSOR_EXCHANGE,
    USEFUL,
)
from equipoise.sim.job.period import TIE
from equipoise.sim.job.progress import DONE_TOLERANCE
from equipoise.sim.randomness import Space, StepNoise, noise_space, step_noise_row


class Fixed(NamedTuple):
    """Values that are constant during a stretch of periods. See `job.progress` and `job.cost` for the model."""

    interval: int
    batch: int
    noise: StepNoise
    mean_interval: float  # see `job.progress`
    far_every: int
    alone_s: float  # of the exchange of all workers, uncontended
    near_s: float  # the same of near ones
    gamma: float
    noise_scale: float  # negative: none
    reference: float
    drift: float
    learning_rate: float  # factor on its own, which is for the batch `given`
    given: float
    rate_rule: int
    target: float
    weight: float  # GPU-seconds held per second
    divided: bool  # whether a worker is several GPUs, see `Configuration._divide`
    credit: float  # part of the samples that count, see `job.configuration`
    anchor_s: float  # see `job.period.Ends`


class Moving(NamedTuple):
    """Totals that each period adds to."""

    first_step: int
    samples: int
    steps: int
    exchanges: int
    run_count: int  # see `job.period.Ends`, as the next two
    run_base_s: float
    run_period_s: float
    useful: float
    window_useful: float
    window_exchange_s: float
    turn: int  # see `job.progress`
    near: int  # exchanges of near workers
    window_near_s: float
    start_s: float
    done: bool


class PerWorker(NamedTuple):
    """Arrays (workers,): times and weights of a step, and sums of the window."""

    compute_s: Floats
    input_s: Floats
    weight: Floats
    bubble_weight: Floats
    inside_weight: Floats
    samples_each: Floats
    busy_s: Floats
    busy_square: Floats
    stall_s: Floats
    wait_s: Floats
    samples: Floats


class Scratch(NamedTuple):
    """Arrays (workers, rounded up to even) for one period: see `unfold`; `wait_s` is for `advance`."""

    finish: Floats
    last_s: Floats
    begin: Floats
    busy_s: Floats
    square: Floats
    stall_s: Floats
    factor: Floats
    wait_s: Floats


@jit_inside
def unfold(
    steps: int,
    first_step: int,
    noise: StepNoise,
    compute_s: Floats,
    input_s: Floats,
    last_compute_s: Floats,
    last_input_s: Floats,
    scratch: Scratch,
    space: Space,
) -> None:
    """Local steps of one period for all workers, without waits.

    Fills, per worker: finish and begin of the last step (offsets), last_s its length, sums over all steps of
    busy_s, square (of busy_s) and stall_s; factor is the last noise, `space` belongs to `step_noise_row`.
    """
    finish, last_s, begin, busy_s = scratch.finish, scratch.last_s, scratch.begin, scratch.busy_s
    square, stall_s, factor = scratch.square, scratch.stall_s, scratch.factor
    n = compute_s.size
    if not noise.varies:
        factor[:] = 1.0
    for k in range(steps):
        c = last_compute_s if k == steps - 1 else compute_s
        i = last_input_s if k == steps - 1 else input_s
        if noise.varies:
            step_noise_row(noise, first_step + k, ZERO, space, factor)
        if k == 0:
            for w in range(n):
                busy_s[w] = c[w] * factor[w]
            for w in range(n):
                last_s[w] = max(busy_s[w], i[w])
            for w in range(n):
                begin[w] = 0.0
                finish[w] = last_s[w]
                stall_s[w] = last_s[w] - busy_s[w]
                square[w] = busy_s[w] * busy_s[w]
        else:
            for w in range(n):
                busy = c[w] * factor[w]
                work = max(busy, i[w])
                last_s[w] = work
                begin[w] = finish[w]
                finish[w] += work
                busy_s[w] += busy
                square[w] += busy * busy
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
def largest(values: Floats, n: int) -> float:
    """The largest of the first n values and 0, in eight interleaved parts, as in `dot`."""
    a = b = c = d = e = f = g = h = 0.0
    whole = n - n % 8
    for w in range(0, whole, 8):
        a, b = max(a, values[w]), max(b, values[w + 1])
        c, d = max(c, values[w + 2]), max(d, values[w + 3])
        e, f = max(e, values[w + 4]), max(f, values[w + 5])
        g, h = max(g, values[w + 6]), max(h, values[w + 7])
    for w in range(whole, n):
        a = max(a, values[w])
    return max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)))


@jit_inside
def meet(n: int, scratch: Scratch, alone_s: float, gamma: float) -> tuple[float, float, float]:
    """(arrival of the last worker, begin of the exchange, duration) of an uncontended period, as offsets (s)."""
    finish, last_s = scratch.finish, scratch.last_s
    slowest, arrival = 0, largest(finish, n)
    least = arrival * (1.0 - TIE)
    while slowest + 8 <= n and largest(finish[slowest : slowest + 8], 8) < least:
        slowest += 8
    while finish[slowest] < least:
        slowest += 1
    begin = max(largest(scratch.begin, n), arrival - hidden_s(last_s[slowest], alone_s, gamma))
    return arrival, begin, max(arrival, begin + alone_s)


@jit_in_place
def gain(fixed: Fixed) -> float:
    """Statistical efficiency of a sample."""
    batch, phi = float(fixed.batch), fixed.noise_scale
    worth = rate_worth(fixed.learning_rate, batch, fixed.given, phi, fixed.rate_rule)
    return efficiency(batch, fixed.mean_interval, phi, fixed.reference, fixed.drift) * worth


@jit_inside
def book(
    fixed: Fixed, worker: PerWorker, scratch: Scratch, arrival: float, duration: float, each: float, gpu_s: Floats
) -> float:
    """Add one period to the window of each worker and to the account; returns its useful samples.

    `each` is the efficiency of a sample.
    """
    n, steps, batch = worker.compute_s.size, fixed.interval, fixed.batch
    for w in range(n):
        scratch.wait_s[w] = arrival - scratch.finish[w]
    add(worker.busy_s, scratch.busy_s)
    add(worker.busy_square, scratch.square)
    add(worker.stall_s, scratch.stall_s)
    add(worker.wait_s, scratch.wait_s)
    for w in range(n):
        worker.samples[w] += worker.samples_each[w] * steps
    busy = dot(scratch.busy_s, worker.weight)
    if fixed.divided:
        bubble = dot(scratch.busy_s, worker.bubble_weight)
        inside = dot(scratch.busy_s, worker.inside_weight)
        gpu_s[PIPELINE_BUBBLE] += bubble
        gpu_s[TENSOR_EXCHANGE] += inside
        busy -= bubble + inside
    useful = 0.0
    if steps > 1:
        useful += (steps - 1) * batch * each
    useful += batch * each
    useful *= fixed.credit
    gpu_s[BUSY] += busy
    gpu_s[INPUT_STALL] += dot(scratch.stall_s, worker.weight)
    gpu_s[BARRIER_WAIT] += dot(scratch.wait_s, worker.weight)
    gpu_s[EXPOSED_COMMUNICATION] += (duration - arrival) * fixed.weight
    gpu_s[USEFUL] += busy * useful / (steps * batch)
    return useful


@jit_in_place
def advance(
    periods: int,
    horizon_s: float,
    checkpoint_s: float,
    fixed: Fixed,
    moving: Moving,
    worker: PerWorker,
    gpu_s: Floats,
    scratch: Scratch,
    space: Space,
    end_s: Floats,
) -> tuple[int, Moving]:
    """Advance up to `periods` whole, uncontended periods without waits; returns how many, and what has moved.

    Stops before a period that ends after `horizon_s` (but does at least one), after the first that ends at or
    after `checkpoint_s`, when the job is done, and before one that would be shorter than the interval. Updates
    `worker` and gpu_s (by `Use`) in place and writes the end of each period to `end_s` (s).
    """
    n, steps = worker.compute_s.size, fixed.interval
    goal = fixed.target * (1.0 - DONE_TOLERANCE)
    first_step, run_count, run_base, run_period = (
        moving.first_step,
        moving.run_count,
        moving.run_base_s,
        moving.run_period_s,
    )
    useful, window_useful, window_exchange = moving.useful, moving.window_useful, moving.window_exchange_s
    turn, near, window_near = moving.turn, moving.near, moving.window_near_s
    least = steps if fixed.far_every == 1 else steps + 1  # the last exchange is of all workers
    start, finished = moving.start_s, moving.done
    arrival = duration = 0.0
    each = gain(fixed)
    done = 0
    while done < periods:
        if math.ceil((goal - useful) / (fixed.batch * each)) < least:
            break
        far = turn + 1 >= fixed.far_every
        alone_s = fixed.alone_s if far else fixed.near_s
        if fixed.noise.varies or done == 0:
            unfold(
                steps,
                first_step,
                fixed.noise,
                worker.compute_s,
                worker.input_s,
                worker.compute_s,
                worker.input_s,
                scratch,
                space,
            )
        if fixed.noise.varies or done == 0 or fixed.far_every > 1:
            arrival, _, duration = meet(n, scratch, alone_s, fixed.gamma)
        if duration == run_period:
            base, count = run_base, run_count + 1
        else:
            base, count = run_base + run_count * run_period, 1
        end = fixed.anchor_s + (base + count * duration)
        if end > horizon_s and done > 0:
            break
        run_base, run_period, run_count = base, duration, count
        fresh = book(fixed, worker, scratch, arrival, duration, each, gpu_s)
        useful += fresh
        window_useful += fresh
        window_exchange += alone_s
        if far:
            turn = 0
        else:
            turn, near, window_near = turn + 1, near + 1, window_near + alone_s
        first_step += steps
        start = end
        end_s[done] = end
        done += 1
        if useful >= goal:
            finished = True
            break
        if end >= checkpoint_s:
            break
    return done, Moving(
        first_step,
        moving.samples + done * steps * fixed.batch,
        moving.steps + done * steps,
        moving.exchanges + done,
        run_count,
        run_base,
        run_period,
        useful,
        window_useful,
        window_exchange,
        turn,
        near,
        window_near,
        start,
        finished,
    )


def scratch_for(workers: int) -> tuple[Scratch, Space]:
    """Working space of `unfold` and `advance` for that many workers: (scratch, space)."""
    return Scratch(*np.zeros((8, workers + workers % 2))), noise_space(workers)
