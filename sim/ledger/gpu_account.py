"""GPU-seconds, energy and cost of GPUs that a feature holds beside the jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from equipoise.policies.observation import Floats
from equipoise.sim.cluster.meter import Meter


@dataclass
class GpuAccount:
    """Sums over a run. A part of a GPU counts as that part of a GPU-second; usd: NaN where a price is not known.

    dynamic_j: what computing draws beyond idling; idle_j: what the GPUs held draw idling; paid_j: the part of both
    on nodes whose electricity is charged, where not all are (`Prices.pays_energy`).
    """

    gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    dynamic_j: float = 0.0
    idle_j: float = 0.0
    paid_dynamic_j: float = 0.0
    paid_idle_j: float = 0.0
    usd: float = 0.0

    def book(self, meter: Meter, usd_per_gpu_s: Floats, node: int, gpu_s: float, busy_gpu_s: float) -> float:
        """Book held and used GPU time on a node at the present clock; returns its dynamic_j."""
        dynamic_j, idle_j = busy_gpu_s * meter.busy_w.item(node), gpu_s * meter.power.idle_w.item(node)
        self.gpu_s += gpu_s
        self.busy_gpu_s += busy_gpu_s
        self.dynamic_j += dynamic_j
        self.idle_j += idle_j
        if meter.pays is None or meter.pays[node]:
            self.paid_dynamic_j += dynamic_j
            self.paid_idle_j += idle_j
        self.usd += gpu_s * usd_per_gpu_s.item(node)
        return dynamic_j

    @staticmethod
    def total(accounts: Iterable[GpuAccount]) -> GpuAccount:
        """All of them together."""
        whole = GpuAccount()
        for one in accounts:
            for name in vars(whole):
                setattr(whole, name, getattr(whole, name) + getattr(one, name))
        return whole
