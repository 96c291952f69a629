"""When jobs change queue under least attained GPU time: demotion while running, promotion while waiting."""

from __future__ import annotations

import numpy as np

from equipoise.policies.baselines.sorted_queue import Columns, Keys, counted_gpu_s, key_of, level, waited
from equipoise.policies.contract import Memory
from equipoise.policies.kernels.gangs import NO_ROWS, frozen
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.placement import NOTHING, WHOLE
from equipoise.policies.observation import WAITING, Floats, Ints, Observation

Promotion = tuple[float, int]
"""Time at which the next waiting job moves to an earlier queue (s; inf: never), and its row (-1: none)."""


@jit_in_place
def _soonest_s(time_s: float) -> float:
    """The earliest useful revisit time: rounding must not request the present time again."""
    return time_s + max(1e-6, 1e-12 * time_s)


@jit_in_place
def _reaches_s(attained: float, k: int, rate: float, keys: Keys) -> float:
    """Time (s) at which a job with `rate` GPU-seconds per second reaches threshold k; infinite without such a
    threshold."""
    if k < keys.thresholds.size and rate > 0.0:
        return float(keys.time_s + (keys.thresholds[k] - attained) / rate)
    return np.inf


@jit_in_place
def next_demotion_s(
    running: Ints,
    held: Ints,
    planned: Ints,
    stops: int,
    asked: Ints,
    share: Floats,
    lowest: float,
    room: int,
    columns: Columns,
) -> float:
    """Time (s) at which the first of the running jobs could be stopped for a waiting one.

    That is when it enters a later queue than the first in which jobs wait. Jobs stopped now were not considered yet:
    if GPUs are left for them, or a running job is in a later queue, any change of queue counts.

    running: rows that run, ascending, on held[row] GPUs; planned: first the `stops` stopped ones, ascending, then
    the started ones, on asked[row] GPUs; share (jobs,): of each GPU. lowest: first queue with waiting jobs other
    than stopped ones. room: free GPUs less the allocated ones.
    """
    keys, stopped, highest = Keys(*columns), 0, 0
    first, first_stopped = keys.thresholds.size, keys.thresholds.size
    if lowest < first:
        first = int(lowest)
    for j in planned[:stops]:
        first_stopped = min(first_stopped, level(counted_gpu_s(j, keys), keys.thresholds))
        room += held[j]
    first = min(first, first_stopped)
    soonest, soonest_of_any, parts = np.inf, np.inf, False
    for i in range(running.size + planned.size - stops):
        if i < running.size:
            j, gpus = running[i], held[running[i]]
            if stopped < stops and planned[stopped] == j:
                stopped += 1
                continue
        else:
            j = planned[stops + i - running.size]
            gpus = asked[j]
        attained = counted_gpu_s(j, keys)
        k, rate = level(attained, keys.thresholds), gpus * min(share[j], 1.0)
        highest, parts = max(highest, k), parts or share[j] < WHOLE
        soonest_of_any = min(soonest_of_any, _reaches_s(attained, k, rate, keys))
        soonest = min(soonest, _reaches_s(attained, max(k, first), rate, keys))
    if stops > 0 and (parts or room > 0 or highest > first_stopped):
        soonest = soonest_of_any
    return max(soonest, _soonest_s(keys.time_s))


@jit_in_place
def _promotions(rows: Ints, last_s: float, columns: Columns, due: Ints) -> tuple[int, float, int]:
    """Write the waiting jobs that have moved to an earlier queue since `last_s`.

    Returns their number, the time of the next one (s), and its row (-1: none).
    """
    keys = Keys(*columns)
    then = Keys(
        keys.state,
        keys.value,
        keys.tie,
        keys.gpus,
        keys.queued_since_s,
        keys.waited_s,
        keys.thresholds,
        keys.relief,
        last_s,
    )
    n, soonest, first = 0, np.inf, NOTHING
    for j in rows:
        attained = counted_gpu_s(j, keys)
        k = level(attained, keys.thresholds)
        if key_of(j, then) > k:
            due[n] = j
            n += 1
        rate = keys.relief * keys.gpus[j] / keys.thresholds[0]  # quanta per second of waiting
        if k > 0 and rate > 0.0:
            bound = keys.thresholds[k - 1] * (1.0 - 1e-9) - 1e-6
            quanta = np.floor((keys.value[j] - bound) / keys.thresholds[0]) + 1.0
            at_s = keys.time_s + quanta / rate - waited(j, keys)
            if at_s < soonest:
                soonest, first = at_s, j
    return n, max(soonest, _soonest_s(keys.time_s)), first


def next_promotion(rows: Ints, columns: Columns) -> Promotion:
    """The first of the newly waiting jobs to move to an earlier queue."""
    return _due(rows, np.inf, columns)[1] if len(rows) else (np.inf, -1)


def _due(rows: Ints, last_s: float, columns: Columns) -> tuple[Ints, Promotion]:
    due = np.empty(len(rows), dtype=np.int64)
    n, soonest_s, first = _promotions(frozen(rows), last_s, columns, due)
    return due[:n], (soonest_s, first)


def _slack_s(time_s: float, keys: Keys) -> float:
    """Time (s) by which a waiting job may change queue earlier than predicted: `counted_gpu_s` rounds quanta up."""
    return 2e-9 * float(keys.thresholds[0]) / keys.relief + 1e-12 * time_s if keys.relief > 0.0 else 0.0


def promoted(o: Observation, memory: Memory, columns: Columns) -> tuple[Ints, Promotion]:
    """Jobs that may have been requeued or changed queue, and the next waiting job to change queue.

    All waiting jobs are examined only at such a time, when a job was requeued without a stop, or when the next one
    no longer waits.
    """
    if not memory:
        return NO_ROWS, _due(o.waiting, o.time_s, columns)[1]
    again, arrived, (next_s, row) = memory["again"], len(o.jobs) - memory["jobs"], memory["promotion"]
    slack_s = _slack_s(o.time_s, Keys(*columns))
    if o.time_s < next_s - slack_s and len(o.waiting) == memory["waiting"] + len(again) + arrived:
        if not len(again) or row < 0:
            return again, (next_s, row)
        following = _due(np.array([row]), o.time_s, columns)[1]
        if o.jobs.state[row] == WAITING and abs(following[0] - next_s) <= slack_s:
            return again, following
    due, following = _due(o.waiting, memory["time_s"], columns)
    return frozen(np.concatenate((again, due))), following
