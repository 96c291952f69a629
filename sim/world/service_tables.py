"""Result tables of services: one row per service, and one per window."""

from __future__ import annotations

import math
from typing import Any

from equipoise.sim.serving.service import ServiceWindow
from equipoise.sim.world.services import Tenant


def service_row(tenant: Tenant, end_s: float, energy_j: float, cost_usd: float) -> dict[str, Any]:
    """One service over a whole run.

    requests came; of them `answered`, `within` the target, `refused` at a full queue, and `unanswered` when the run
    ended, of which `late` had waited for longer than the target. What was not yet due does not count against it.
    """
    spec, total, account = tenant.spec, tenant.state.total, tenant.account
    unanswered, late = tenant.state.queue.unanswered(end_s)
    due = total.served + total.refused + late
    p50_s, p95_s, p99_s = total.percentiles_s(0.5, 0.95, 0.99)
    span_s = end_s - tenant.state.begin_s
    return {
        "service": spec.name,
        "requests": tenant.state.arrived,
        "answered": total.served,
        "within": total.within,
        "refused": total.refused,
        "unanswered": unanswered,
        "late": late,
        "target_s": spec.latency.within_s,
        "target_ratio": spec.latency.share,
        "goodput_ratio": total.within / due if due else math.nan,
        "goodput_per_s": total.within / span_s if span_s > 0.0 else math.nan,
        "latency_mean_s": total.latency_s / total.served if total.served else math.nan,
        "latency_p50_s": p50_s,
        "latency_p95_s": p95_s,
        "latency_p99_s": p99_s,
        "gpu_s": account.gpu_s,
        "busy_gpu_s": account.busy_gpu_s,
        "energy_j": energy_j,
        "cost_usd": cost_usd,
        "usd_per_million": 1e6 * cost_usd / total.served if total.served else math.nan,
        "jobs_stopped": tenant.taken,
    }


def window_row(name: str, window: ServiceWindow) -> dict[str, Any]:
    """One window of a service."""
    tally = window.tally
    p50_s, p95_s, p99_s = tally.percentiles_s(0.5, 0.95, 0.99)
    return {
        "service": name,
        "start_s": window.start_s,
        "end_s": window.end_s,
        "requests": window.arrived,
        "answered": tally.served,
        "within": tally.within,
        "refused": tally.refused,
        "waiting": window.waiting,
        "latency_p50_s": p50_s,
        "latency_p95_s": p95_s,
        "latency_p99_s": p99_s,
        "replicas": window.replicas,
        "wanted": window.wanted,
        "gpu_s": window.gpu_s,
    }
