"""Device memory limits: samples of one pass, and the fewest workers of a job.

What does not fit into one pass takes further ones (gradient accumulation), which cost their time. A worker on a
share of a GPU has that share of its memory, as asked for; a share that a plan changes later changes its speed.
"""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.sim.cost.step import memory_need_bytes
from equipoise.sim.scenario.model import Model

UNBOUNDED = 2**62
_ROUNDING = 1e-9


def least_bytes(model: Model, workers: int) -> float:
    """Least device memory per GPU of one worker: a pass of one sample."""
    return memory_need_bytes(model, 1, workers)


def samples_per_pass(model: Model, memory_bytes: float, workers: int) -> int:
    """Most samples of one pass, by the memory of the GPUs and the model's own limit.

    0 where not even one sample fits; `UNBOUNDED` where neither limits it.
    """
    held = memory_need_bytes(model, 0, workers)
    each = least_bytes(model, workers) - held
    limit = model.samples_per_pass or UNBOUNDED
    if memory_bytes * (1.0 + _ROUNDING) < held + each:
        return 0
    return limit if each <= 0.0 else min(limit, int((memory_bytes * (1.0 + _ROUNDING) - held) / each))


def fewest_workers(model: Model, workers: int, workers_min: int, memories: Iterable[float]) -> int:
    """The fewest workers, from `workers_min` on, that fit wherever a worker of `workers` fits.

    Where what is held is divided among workers (ZeRO), fewer of them hold more. `memories`: bytes of each kind
    of GPU. `workers_min` where none of them has room.
    """
    need = least_bytes(model, workers)
    enough = [memory for memory in memories if memory * (1.0 + _ROUNDING) >= need]
    if not enough:
        return workers_min
    fitting = (n for n in range(workers_min, workers) if samples_per_pass(model, min(enough), n))
    return next(fitting, max(workers, workers_min))
