"""What each job's GPU time cost in energy and money, where GPUs differ or clocks change.

On equal GPUs at one clock and one price all this follows from the accounts at the end. Elsewhere it is booked
stretch by stretch, at the means over the GPUs that the job held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.observation import Floats
from sim.cluster import Holding
from sim.energy import Meter, mean_over
from sim.job import BUSY, LOST

if TYPE_CHECKING:
    from sim.world import SimWorld

USES = 6
"""Uses of held GPU time, the first rows of an account (`sim.job`); `useful` is a part of them."""


@dataclass(slots=True)
class _Open:
    holding: Holding
    account: Floats
    metered_gpu_s: float


class Books:
    """Books running jobs as they stop or change.

    idle_j (jobs,): what the GPUs that a job held draw idling; paid_idle_j (jobs,): the part of it on nodes whose
    electricity is charged, where not all are (`Prices.pays_energy`); used_usd (jobs, USES): money by use.
    usd_per_gpu_s (nodes,): NaN where not known.
    """

    def __init__(self, world: SimWorld, meter: Meter, usd_per_gpu_s: Floats) -> None:
        self.world, self.meter, self.usd_per_gpu_s = world, meter, usd_per_gpu_s
        jobs = len(world.demand)
        self.idle_j, self.paid_idle_j, self.used_usd = np.zeros(jobs), np.zeros(jobs), np.zeros((jobs, USES))
        self._open: dict[int, _Open] = {}

    def begins(self, row: int, holding: Holding) -> None:
        """A job takes GPUs."""
        account = self.world.account(row)[0]
        self._open[row] = _Open(holding, account[:USES].copy(), float(account[BUSY] + account[LOST]))

    def ends(self, row: int, reason: str) -> None:
        """A job has given back its GPUs, for whatever reason."""
        self.meter_rigid(row)
        opened = self._open.pop(row)
        held = self.world.account(row)[0][:USES] - opened.account
        node_of_gpu, power = self.meter.node_of_gpu, self.meter.power
        self.idle_j[row] += float(held.sum()) * mean_over(power.idle_w, opened.holding, node_of_gpu)
        if self.meter.pays is not None:
            paid_w = power.idle_w * self.meter.pays
            self.paid_idle_j[row] += float(held.sum()) * mean_over(paid_w, opened.holding, node_of_gpu)
        self.used_usd[row] += held * mean_over(self.usd_per_gpu_s, opened.holding, node_of_gpu)

    def meter_rigid(self, row: int) -> None:
        """Meter what a rigid job has computed up to the time its account is booked to."""
        if row in self.world.training:
            return
        account, opened = self.world.account(row)[0], self._open[row]
        computed = float(account[BUSY] + account[LOST])
        self.meter.rigid(row, opened.holding, computed - opened.metered_gpu_s)
        opened.metered_gpu_s = computed
