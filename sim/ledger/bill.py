"""Energy and cost of a run: of each job's GPU time, in total, and by use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.sim.cells import cells
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.cluster.meter import Meter, mean_over
from equipoise.sim.hardware.contracts import HOUR_S
from equipoise.sim.hardware.prices import Prices
from equipoise.sim.job.account import HELD, WASTED_USES
from equipoise.sim.job.demand import Demand
from equipoise.sim.job.job import Job
from equipoise.sim.job.listener import Listener
from equipoise.sim.ledger.gpu_account import GpuAccount


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


RESIDUE = 1e-9
"""Rounding of a difference of sums, relative to them."""


@dataclass(frozen=True)
class Biller:
    """Works out the bill of a run. `accounts`: None where all GPUs are equal, at one clock and one price.

    pue: energy at the meter of the site per energy at the nodes.
    """

    cluster: Cluster
    demand: Demand
    prices: Prices
    meter: Meter
    accounts: CostAccounts | None
    pue: float

    def bill(
        self, gpu_s: Floats, computed_gpu_s: Floats, down_s: Floats, unpaid_s: Floats, span_s: float, beside: GpuAccount
    ) -> tuple[dict[str, Floats], dict[str, float]]:
        """(columns per job, totals of the run); span_s is the time that is paid for.

        gpu_s (jobs, uses) and computed_gpu_s (jobs,): GPU time by use, and all computing; down_s (nodes,), and
        unpaid_s (nodes,) of it, in which a spot node was back with its owner; beside: what features held.
        Everything that is not known is NaN. Energy is at the meter of the site, with its PUE.
        """
        dynamic_j, idle_j, used_usd = self._per_job(gpu_s, computed_gpu_s)
        pue, prices, nodes = self.pue, self.prices, self.cluster.nodes
        energy_j = pue * (dynamic_j + idle_j)
        standing_j = self.meter.power.idling_w(nodes.gpus) * np.maximum(0.0, span_s - down_s)
        site_j = pue * (float(standing_j.sum()) + float(dynamic_j.sum()))
        paid_j, paid_site_j = energy_j, site_j
        if prices.pays_energy is not None and self.accounts is not None:
            paid_j = pue * (self.meter.paid_j + self.accounts.paid_idle_j)
            paid_standing_j = float(standing_j[prices.pays_energy].sum())
            paid_site_j = pue * (paid_standing_j + float(self.meter.paid_j.sum()))
        site_j += pue * beside.dynamic_j
        paid_site_j += pue * beside.paid_dynamic_j
        per_j = prices.usd_per_j
        cost_usd = used_usd.sum(axis=1) + (0.0 if per_j is None else per_j * paid_j)
        gpu_usd = (float(prices.usd_per_h.sum()) * span_s - float(prices.usd_per_h @ unpaid_s)) / HOUR_S
        idle_usd = gpu_usd - float(used_usd.sum()) - beside.usd
        totals = {
            "energy_j": site_j,
            "down_gpu_s": float(nodes.gpus @ down_s),
            "gpu_usd": gpu_usd,
            "energy_usd": 0.0 if per_j is None else per_j * paid_site_j,
            "storage_usd": self._storage_usd(span_s),
            "idle_usd": 0.0 if abs(idle_usd) < RESIDUE * gpu_usd else idle_usd,
        }
        totals |= {f"{use.label}_usd": float(used_usd[:, use].sum()) for use in WASTED_USES}
        if bonds := [bond.due(span_s) for bond in prices.bonds]:
            totals["committed_usd"] = math.fsum(usd for usd, _ in bonds)
            totals["upfront_usd"] = math.fsum(upfront for _, upfront in bonds)
        totals["cost_usd"] = gpu_usd + totals["energy_usd"] + totals["storage_usd"]
        return {"energy_j": energy_j, "cost_usd": cost_usd}, totals

    def bill_of(self, account: GpuAccount) -> tuple[float, float]:
        """(energy in J at the meter of the site, money in USD) of GPUs beside the jobs, as jobs are charged."""
        energy_j = self.pue * (account.dynamic_j + account.idle_j)
        paid_j = self.pue * (account.paid_dynamic_j + account.paid_idle_j)
        per_j = self.prices.usd_per_j
        return energy_j, account.usd + (0.0 if per_j is None else per_j * paid_j)

    def _per_job(self, gpu_s: Floats, computed_gpu_s: Floats) -> tuple[Floats, Floats, Floats]:
        """(energy of computing, energy of held GPUs idling, money by use) of each job."""
        meter, accounts = self.meter, self.accounts
        if accounts is not None:
            return meter.dynamic_j, accounts.idle_j, accounts.used_usd
        idle_j = gpu_s.sum(axis=1) * meter.power.idle_w[0]
        return computed_gpu_s * meter.busy_w[0], idle_j, gpu_s * self.prices.usd_per_gpu_s[0]

    def _storage_usd(self, span_s: float) -> float:
        """Datasets and their copies, for as long as the run takes."""
        held = 0.0
        for _, spec in sorted(self.demand.training.items()):
            if spec.data is not None:
                held += spec.data.samples * spec.data.sample_size * spec.data.replicas
        price = self.prices.usd_per_byte_s
        if held == 0.0:
            return 0.0
        return float("nan") if price is None else held * price * span_s
