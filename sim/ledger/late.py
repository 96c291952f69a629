"""GPU time held after the last arrival; idle time then cannot be used by any order of the jobs."""

from __future__ import annotations

from equipoise.sim.cluster.cluster import Holding
from equipoise.sim.job.job import Job
from equipoise.sim.job.listener import Listener


class HeldLate(Listener):
    """gpu_s: GPU-seconds held after `after_s`, a shared GPU by its shares."""

    def __init__(self, after_s: float) -> None:
        self.after_s, self.gpu_s = after_s, 0.0
        self._open: dict[int, tuple[float, float]] = {}  # by row of the job: GPUs held, and since when

    def began(self, job: Job, holding: Holding, now_s: float) -> None:
        """A job takes GPUs."""
        self._open[job.row] = (holding.weight, now_s)

    def ended(self, job: Job, reason: str, now_s: float) -> None:
        """A job has released its GPUs."""
        gpus, since_s = self._open.pop(job.row)
        if now_s > self.after_s:
            self.gpu_s += gpus * (now_s - max(since_s, self.after_s))
