"""Which GPU models each job has held."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.observation import Bools
from equipoise.sim.cluster.cluster import Cluster, Holding
from equipoise.sim.job.job import Job
from equipoise.sim.job.listener import Listener


class ModelsHeld(Listener):
    """Remembers the GPU models that jobs have held; needed where there are several."""

    def __init__(self, jobs: int, cluster: Cluster) -> None:
        self._model = cluster.node_model
        self._held: Bools = np.zeros((jobs, len(cluster.gpu_models)), dtype=np.bool_)

    def began(self, job: Job, holding: Holding, now_s: float) -> None:
        """A job has taken GPUs."""
        self._held[job.row, self._model[holding.nodes]] = True

    def names(self, models: tuple[str, ...]) -> NDArray[Any]:
        """The models of each job, several joined by "+" in the order of `models`; "" of one that has held none."""
        weights = 1 << np.arange(len(models), dtype=np.int64)
        codes, of = np.unique(self._held @ weights, return_inverse=True)
        texts = ["+".join(name for k, name in enumerate(models) if code >> k & 1) for code in codes.tolist()]
        return np.array(texts, dtype=object)[of]
