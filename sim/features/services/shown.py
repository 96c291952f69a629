"""What results show of services: how requests were answered, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from equipoise.sim.scenario.units import format_seconds, format_share
from equipoise.sim.shown import Metric, Over, Shown, Tables


def _summary(tables: Tables, totals: Mapping[str, float], gpu_s: float) -> dict[str, float]:
    """Request metrics: the worst of several services, and each as `service_goodput_ratio[NAME]`."""
    if "services" not in tables:
        return {}
    of = tables["services"]
    answered = float(of["answered"].sum())
    whole = {
        "serving_ratio": totals["serving_gpu_s"] / gpu_s,
        "service_requests": float(of["requests"].sum()),
        "service_goodput_ratio": float(of["goodput_ratio"].min()),
        "service_goodput_per_s": float(of["goodput_per_s"].sum()),
        **{f"service_latency_p{q}_s": float(of[f"latency_p{q}_s"].max()) for q in (50, 95, 99)},
        "serving_usd": totals["serving_usd"],
        "cost_per_million_requests_usd": 1e6 * float(of["cost_usd"].sum()) / answered if answered else math.nan,
    }
    named = {
        f"service_{name}[{service}]": float(of[name][k])
        for k, service in enumerate(of["service"].tolist() if len(of["service"]) > 1 else ())
        for name in ("goodput_ratio", "latency_p50_s", "latency_p95_s", "latency_p99_s")
    }
    return whole | named


def _rows(tables: Tables) -> list[dict[str, Any]]:
    """One row per service."""
    services, rows = tables.get("services", {}), []
    for k, name in enumerate(services["service"].tolist() if services else ()):
        of = {column: values[k].item() for column, values in services.items() if column != "service"}
        rows.append(
            {
                "service": str(name),
                "requests": f"{of['requests']:,}",
                "in time": ("_ratio", of["goodput_ratio"]),
                **{f"p{q}": ("_s", of[f"latency_p{q}_s"]) for q in (50, 95, 99)},
                "GPU hours": f"{of['gpu_s'] / 3600:.1f}",
                "busy": ("_ratio", of["busy_gpu_s"] / of["gpu_s"] if of["gpu_s"] else math.nan),
                "cost": ("_usd", of["cost_usd"]),
                "per 1e6 requests": ("_usd", of["usd_per_million"]),
                "jobs stopped": str(of["jobs_stopped"]),
            }
        )
    return rows


def _over_time(tables: Tables) -> list[Over]:
    """Replicas and latency of each service."""
    windows, found = tables.get("service_windows", {}), []
    for name in dict.fromkeys(windows["service"].tolist() if windows else ()):
        of = {column: values[windows["service"] == name] for column, values in windows.items()}
        edges_s = np.append(of["start_s"], of["end_s"][-1:])
        found.append(Over(f"Replicas of {name}", str(name), "replicas", edges_s, of["replicas"]))
        title = f"Latency of {name}, p99 of each window"
        found.append(Over(title, str(name), "ms", edges_s, 1e3 * of["latency_p99_s"]))
    return found


def _lines(observed: Tables) -> Iterator[str]:
    """Replicas held and wanted by each service at a decision, and the results of its last window's requests."""
    s = observed.get("services", {})
    for k, name in enumerate(s["name"].tolist() if s else ()):
        text = f"service {name}: {s['replicas'][k]} of {s['wanted'][k]} replicas wanted ({s['replicas_min'][k]} to "
        text += f"{s['replicas_max'][k]})"
        if math.isfinite(s["requests_per_s"][k]):
            text += f"; {s['requests_per_s'][k]:.4g} requests/s came, {s['waiting'][k]} waited"
        if math.isfinite(s["latency_p99_s"][k]):
            text += f"; p99 {format_seconds(s['latency_p99_s'][k])}, "
            text += f"{format_share(s['goodput_ratio'][k])} within {format_seconds(s['latency_target_s'][k])}"
        yield text


SHOWN = Shown(
    heading=("services", "Services", "How requests were answered"),
    metrics=(
        Metric("serving_ratio", "serving", after="lost_to_faults_ratio"),
        Metric("service_requests", "requests"),
        Metric("service_goodput_ratio", "answered in time", target="service_goodput", more_is_better=True, main=True),
        Metric("service_goodput_per_s", "in time per second", more_is_better=True),
        Metric("service_latency_p50_s", "latency p50", target="service_latency_p50", main=True),
        Metric("service_latency_p95_s", "latency p95", target="service_latency_p95", also_called="latency", main=True),
        Metric("service_latency_p99_s", "latency p99", target="service_latency_p99", main=True),
        Metric("cost_per_million_requests_usd", "cost per 1e6 requests", main=True),
        Metric("serving_usd", "  serving", after="lost_to_faults_usd"),
    ),
    tables=("services", "service_windows"),
    of_timeline=("replicas",),
    uses={"serving": "serving requests"},
    bars=("replicas", "replicas of services"),
    summary=_summary,
    rows=_rows,
    over_time=_over_time,
    lines=_lines,
)
