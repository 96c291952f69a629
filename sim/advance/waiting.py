"""Data of a job that has not arrived when its workers read it, and the time until the data changes."""

from __future__ import annotations

from collections import deque

from equipoise.policies.observation import Ints
from equipoise.sim.job.dataset import JobData, Piece


def awaited(data: JobData, worker: int, before: int, count: int) -> list[Piece]:
    """Missing pieces with any of the `count` samples that follow the next `before` samples of a worker."""
    found = []
    for piece in data.queues[worker]:
        if before < piece.left and not data.is_ready(worker, piece):
            found.append(piece)
        count -= max(0, min(count, piece.left - before)) if before < piece.left else 0
        before = max(0, before - piece.left)
        if count <= 0:
            break
    return found


def anyone_waits(data: JobData, demand: Ints) -> bool:
    """Whether any worker's next `demand` samples are not all present."""
    return any(awaited(data, worker, 0, need) for worker, need in enumerate(demand.tolist()))


def quiet_periods(data: JobData, per_period: Ints) -> int:
    """Whole periods of `per_period` samples before the data changes."""
    count = data.left // int(per_period.sum())
    for worker, need in enumerate(per_period.tolist()):
        if need > 0 and count > 0:
            count = min(count, _quiet_samples(data, worker) // need)
    return count


def _quiet_samples(data: JobData, worker: int) -> int:
    """Samples that the worker can read before its queue changes (a fetch, a wait, an empty queue)."""
    total, quiet, last = 0, -1, deque[int](maxlen=data.prefetch)
    for piece in data.queues[worker]:
        if not data.is_ready(worker, piece):
            if piece.transfer is None:
                early = total - sum(last)  # when it is fetched ahead
                return early if quiet < 0 else min(quiet, early)
            quiet = total if quiet < 0 else quiet
        last.append(piece.left)
        total += piece.left
    return total if quiet < 0 else quiet
