"""When jobs change queue under least attained service: demotion while running, promotion while waiting."""

from __future__ import annotations

import numpy as np

from equipoise.policies.allocation.gangs import NO_ROWS, frozen
from equipoise.policies.baselines.sorted_queue import Columns, Keys, counted_service, key_of, level, waited
from equipoise.policies.contract import Memory
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.observation import Floats, Ints, Observation


@jit_in_place
def _soonest_s(time_s: float) -> float:
    """The earliest time worth asking for: rounding must not ask for now again."""
    return time_s + max(1e-6, 1e-12 * time_s)


@jit_in_place
def next_demotion_s(rows: Ints, gpus: Ints, share: Floats, columns: Columns) -> float:
    """When the first of some running jobs, with share[row] of gpus[row] GPUs, reaches its next threshold (s)."""
    keys, soonest = Keys(*columns), np.inf
    for j in rows:
        service = counted_service(j, keys)
        k = level(service, keys.thresholds)
        rate = gpus[j] * min(share[j], 1.0)
        if k < keys.thresholds.size and rate > 0.0:
            soonest = min(soonest, keys.time_s + (keys.thresholds[k] - service) / rate)
    return max(soonest, _soonest_s(keys.time_s))


@jit_in_place
def _promotions(rows: Ints, last_s: float, columns: Columns, due: Ints) -> tuple[int, float]:
    """Write the waiting jobs that have moved to an earlier queue since `last_s`.

    Returns how many, and when the next one will (s).
    """
    keys = Keys(*columns)
    then = Keys(
        keys.state, keys.value, keys.tie, keys.gpus, keys.queued_since_s, keys.waited_s,
        keys.thresholds, keys.relief, last_s,
    )  # fmt: skip
    n, soonest = 0, np.inf
    for j in rows:
        service = counted_service(j, keys)
        k = level(service, keys.thresholds)
        if key_of(j, then) > k:
            due[n] = j
            n += 1
        rate = keys.relief * keys.gpus[j] / keys.thresholds[0]  # quanta per second of waiting
        if k > 0 and rate > 0.0:
            bound = keys.thresholds[k - 1] * (1.0 - 1e-9) - 1e-6
            quanta = np.floor((keys.value[j] - bound) / keys.thresholds[0]) + 1.0
            soonest = min(soonest, keys.time_s + quanta / rate - waited(j, keys))
    return n, max(soonest, _soonest_s(keys.time_s))


def next_promotion_s(rows: Ints, columns: Columns) -> float:
    """When the first of some jobs that wait from now on moves to an earlier queue (s)."""
    return _due(rows, np.inf, columns)[1] if len(rows) else np.inf


def _due(rows: Ints, last_s: float, columns: Columns) -> tuple[Ints, float]:
    due = np.empty(len(rows), dtype=np.int64)
    n, soonest_s = _promotions(frozen(rows), last_s, columns, due)
    return due[:n], soonest_s


def _slack_s(time_s: float, keys: Keys) -> float:
    """How much earlier than foreseen a waiting job may change queue: `counted_service` rounds quanta up."""
    return 2e-9 * float(keys.thresholds[0]) / keys.relief + 1e-12 * time_s if keys.relief > 0.0 else 0.0


def promoted(o: Observation, memory: Memory, columns: Columns) -> tuple[Ints, float]:
    """Jobs that may have come back or changed queue, and when the next waiting job will change queue (s).

    All waiting jobs are looked at only when such a time has come or jobs have come back.
    """
    if not memory:
        return NO_ROWS, _due(o.waiting, o.time_s, columns)[1]
    again, arrived = memory["again"], len(o.jobs) - memory["jobs"]
    came_back = len(again) or len(o.waiting) != memory["waiting"] + arrived
    if o.time_s < memory["promotion_s"] - _slack_s(o.time_s, Keys(*columns)) and not came_back:
        return NO_ROWS, memory["promotion_s"]
    due, soonest_s = _due(o.waiting, memory["time_s"], columns)
    return frozen(np.concatenate((again, due))), soonest_s
