"""Result tables of services: one row per service, and one per window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.policies.observation import Columns
from equipoise.sim.features.services.state import ServiceState, ServiceWindow
from equipoise.sim.ledger.gpu_account import GpuAccount

_REPLICA = {
    "service": object,
    "replica": np.int32,
    "start_s": np.float64,
    "end_s": np.float64,
    "gpus": np.int32,
    "node": np.int32,
    "first_gpu": np.int32,
}


def columns_of(rows: list[dict[str, Any]]) -> Columns:
    """Rows of one form as columns; texts as objects."""
    found = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    return {
        name: np.array(values, dtype=object if isinstance(values[0], str) else None) for name, values in found.items()
    }


def replica_columns(held: Sequence[tuple[str, int, float, float, int, int, int]]) -> Columns:
    """When each replica of a service held GPUs: service, number, start and end, GPUs, node and first GPU."""
    found = sorted(held)
    return {name: np.array([row[k] for row in found], dtype=kind) for k, (name, kind) in enumerate(_REPLICA.items())}


def observed_columns(services: Sequence[tuple[ServiceState, int]]) -> Columns:
    """What policies see of (service, active replicas); measured values are those of the last window."""
    rows = []
    for state, active in services:
        spec, window = state.spec, state.last
        row = {
            "name": spec.name,
            "replicas": active,
            "wanted": state.wanted,
            "replicas_min": spec.kept,
            "replicas_max": spec.replicas.max,
            "gpus_per_replica": spec.replicas.gpus,
            "gpu_share": spec.share,
            "latency_target_s": spec.latency.within_s,
            "target_ratio": spec.latency.share,
            "requests_per_s": math.nan,
            "waiting": 0,
            "latency_p99_s": math.nan,
            "goodput_ratio": math.nan,
        }
        if window is not None:
            passed_s = max(window.end_s - window.start_s, math.ulp(1.0))
            answered = window.tally.served
            row["requests_per_s"] = window.arrived / passed_s
            row["waiting"] = window.waiting
            row["latency_p99_s"] = window.percentile_s(0.99)
            row["goodput_ratio"] = window.tally.within / answered if answered else math.nan
        rows.append(row)
    found = {**columns_of(rows), "name": np.array([row["name"] for row in rows])}  # not objects, for the journal
    for column in found.values():
        column.flags.writeable = False
    return found


def service_row(
    state: ServiceState, account: GpuAccount, taken: int, end_s: float, energy_j: float, cost_usd: float
) -> dict[str, Any]:
    """One service over a whole run; taken: jobs that were stopped for it.

    requests came; of them `answered`, `within` the target, and `unanswered` when the run
    ended, of which `late` had waited for longer than the target. What was not yet due does not count against it.
    """
    spec, total = state.spec, state.total
    unanswered, late = state.queue.unanswered(end_s)
    due = total.served + late
    p50_s, p95_s, p99_s = total.percentiles_s(0.5, 0.95, 0.99)
    span_s = end_s - state.begin_s
    return {
        "service": spec.name,
        "requests": state.arrived,
        "answered": total.served,
        "within": total.within,
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
        "jobs_stopped": taken,
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
        "waiting": window.waiting,
        "latency_p50_s": p50_s,
        "latency_p95_s": p95_s,
        "latency_p99_s": p99_s,
        "replicas": window.replicas,
        "wanted": window.wanted,
        "gpu_s": window.gpu_s,
    }
