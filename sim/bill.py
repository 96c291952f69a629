"""What a run drew and cost, from its accounts: per job, in all, and where the money went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from policies.observation import Floats
from sim.cost import HOUR_S
from sim.job import BUSY, LOST

if TYPE_CHECKING:
    from sim.world import SimWorld

WASTE_ROWS = {
    "input_stall": 1,
    "barrier_wait": 2,
    "exposed_communication": 3,
    "restart": 4,
    "lost_to_faults": 5,
}
"""Uses of held GPU time that train nothing that lasts, by row of an account."""

_RESIDUE = 1e-9
"""Rounding of a difference of sums, relative to them."""


def bill(world: SimWorld, gpu_s: Floats, span_s: float) -> tuple[dict[str, Floats], dict[str, float]]:
    """(columns per job, totals of the run); gpu_s (jobs, 6) by use, span_s the time that is paid for.

    Everything that is not known is NaN. Energy is at the meter of the site, with its PUE.
    """
    dynamic_j, idle_j, used_usd = _per_job(world, gpu_s)
    pue, prices = world.scenario.energy.pue, world.prices
    energy_j = pue * (dynamic_j + idle_j)
    nodes, power = world.cluster.nodes, world.meter.power
    down_s = world.down_s()
    up_s = np.maximum(0.0, span_s - down_s)
    standing_j = (nodes.gpus * power.idle_w + power.base_w) * up_s
    site_j = pue * (float(standing_j.sum()) + float(dynamic_j.sum()))
    paid_j, paid_site_j = energy_j, site_j
    if prices.pays_energy is not None and world.books is not None:
        paid_j = pue * (world.meter.paid_j + world.books.paid_idle_j)
        paid_standing_j = float(standing_j[prices.pays_energy].sum())
        paid_site_j = pue * (paid_standing_j + float(world.meter.paid_j.sum()))
    per_j = prices.usd_per_j
    cost_usd = used_usd.sum(axis=1) + (0.0 if per_j is None else per_j * paid_j)
    gpu_usd = float(prices.usd_per_h.sum()) * span_s / HOUR_S
    idle_usd = gpu_usd - float(used_usd.sum())
    totals = {
        "energy_j": site_j,
        "down_gpu_s": float(nodes.gpus @ down_s),
        "gpu_usd": gpu_usd,
        "energy_usd": 0.0 if per_j is None else per_j * paid_site_j,
        "storage_usd": _storage_usd(world, span_s),
        "idle_usd": 0.0 if abs(idle_usd) < _RESIDUE * gpu_usd else idle_usd,
    }
    totals |= {f"{use}_usd": float(used_usd[:, row].sum()) for use, row in WASTE_ROWS.items()}
    totals["cost_usd"] = gpu_usd + totals["energy_usd"] + totals["storage_usd"]
    return {"energy_j": energy_j, "cost_usd": cost_usd}, totals


def _per_job(world: SimWorld, gpu_s: Floats) -> tuple[Floats, Floats, Floats]:
    """(energy of computing, energy of held GPUs idling, money by use) of each job."""
    meter, books = world.meter, world.books
    if books is not None:
        return meter.dynamic_j, books.idle_j, books.used_usd
    computed = gpu_s[:, BUSY] + gpu_s[:, LOST]
    for row, job in world.training.items():
        computed[row] = gpu_s[row, BUSY] + job.undone_gpu_s
    dynamic_j = computed * meter.busy_w[0]
    idle_j = gpu_s.sum(axis=1) * meter.power.idle_w[0]
    return dynamic_j, idle_j, gpu_s * world.prices.usd_per_gpu_s[0]


def _storage_usd(world: SimWorld, span_s: float) -> float:
    """Datasets and their copies, for as long as the run takes."""
    held = 0.0
    for _, spec in sorted(world.demand.training.items()):
        if spec.data is not None:
            held += spec.data.samples * spec.data.sample_size * spec.data.replicas
    price = world.prices.usd_per_byte_s
    if held == 0.0:
        return 0.0
    return float("nan") if price is None else held * price * span_s
