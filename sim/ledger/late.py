"""What jobs held: the GPU models of each job, and the GPU time after the last arrival."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.observation import Ints
from equipoise.sim.cells import cells
from equipoise.sim.cluster.holding import Holding
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


class RanOn(Listener):
    """Notes the types of all GPUs that a job ever held. names: of the types; type_of_gpu (gpus,): indices."""

    def __init__(self, jobs: int, names: tuple[str, ...], type_of_gpu: Ints) -> None:
        self.names, self.type_of_gpu = names, type_of_gpu
        self._held = np.zeros((jobs, len(names)), dtype=np.bool_)
        self._cells = cells(self._held)

    def began(self, job: Job, holding: Holding, now_s: float) -> None:
        """A job takes GPUs."""
        if holding.nodes.size == 1:  # as most, and a node has one type
            self._cells[job.row, self.type_of_gpu.item(holding.gpu.item(0))] = True
        else:
            self._held[job.row, self.type_of_gpu[holding.gpu]] = True

    def column(self) -> NDArray[np.object_]:
        """(jobs,) names joined by "+" in their order in the cluster; "" for a job that never ran."""
        kinds, of = np.unique(self._held, axis=0, return_inverse=True)
        texts = ["+".join(name for name, held in zip(self.names, kind, strict=True) if held) for kind in kinds]
        return np.array([*texts, ""], dtype=object)[of.reshape(-1)]
