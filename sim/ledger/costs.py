"""Energy and cost of each job's GPU time, where GPUs differ or clocks change.

On equal GPUs at one clock and one price all this follows from the accounts at the end. Elsewhere it is booked
stretch by stretch, at the means over the GPUs that the job held.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.sim.cells import cells
from equipoise.sim.cluster.cluster import Holding
from equipoise.sim.cluster.meter import Meter, mean_over
from equipoise.sim.job.account import HELD
from equipoise.sim.job.job import Job
from equipoise.sim.job.listener import Listener


class CostAccounts(Listener):
    """Books running jobs as they stop or change.

    idle_j (jobs,): what the GPUs that a job held draw idling; paid_idle_j (jobs,): the part of it on nodes whose
    electricity is charged, where not all are (`Prices.pays_energy`); used_usd (jobs, uses): money by use.
    usd_per_gpu_s (nodes,): NaN where not known.
    """

    def __init__(self, jobs: int, meter: Meter, usd_per_gpu_s: Floats) -> None:
        self.meter, self.usd_per_gpu_s = meter, usd_per_gpu_s
        self.idle_j, self.paid_idle_j, self.used_usd = np.zeros(jobs), np.zeros(jobs), np.zeros((jobs, HELD))
        self._idle_j = cells(self.idle_j)
        self._open: dict[int, tuple[Holding, Floats]] = {}  # what a job holds, and its account as it began to

    def began(self, job: Job, holding: Holding, now_s: float) -> None:
        """A job takes GPUs."""
        self._open[job.row] = (holding, job.gpu_s[:HELD].copy())

    def ended(self, job: Job, reason: str, now_s: float) -> None:
        """A job has released its GPUs."""
        row = job.row
        holding, before = self._open.pop(row)
        held = job.gpu_s[:HELD] - before
        held_s = float(np.add.reduce(held))  # half the time of its method
        node_of_gpu, power = self.meter.node_of_gpu, self.meter.power
        self._idle_j[row] += held_s * mean_over(power.idle_w, holding, node_of_gpu)
        if self.meter.pays is not None:
            paid_w = power.idle_w * self.meter.pays
            self.paid_idle_j[row] += held_s * mean_over(paid_w, holding, node_of_gpu)
        self.used_usd[row] += held * mean_over(self.usd_per_gpu_s, holding, node_of_gpu)
