"""Results of services: a table by policy, and replicas and latency over time for one run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.sim.record import read_parquet
from equipoise.study.display import digits, show
from equipoise.study.report.chart import Axis, Chart, ChartSeries, time_unit
from equipoise.study.report.study import RunFolder, Study, first_of_each_policy
from equipoise.study.report.tables import table

POINTS = 1000
"""Most windows in a chart; with more, neighbours are merged: the most replicas, the latest latency."""
HEADER = (
    "service",
    "policy",
    "requests",
    "in time",
    "p50",
    "p95",
    "p99",
    "GPU hours",
    "busy",
    "cost",
    "per 1e6 requests",
    "jobs stopped",
)


def service_rows(services: Any) -> list[tuple[str, ...]]:
    """A row of texts per service, of the columns of `services.parquet`: those of HEADER without the policy."""
    rows = []
    for k, name in enumerate(services["service"].tolist()):
        of = {column: values[k].item() for column, values in services.items() if column != "service"}
        busy = of["busy_gpu_s"] / of["gpu_s"] if of["gpu_s"] else math.nan
        rows.append(
            (
                str(name),
                f"{of['requests']:,}",
                show("_ratio", of["goodput_ratio"]),
                *(show("_s", of[f"latency_p{q}_s"]) for q in (50, 95, 99)),
                f"{of['gpu_s'] / 3600:.1f}",
                show("_ratio", busy),
                show("_usd", of["cost_usd"]),
                show("_usd", of["usd_per_million"]),
                str(of["jobs_stopped"]),
            )
        )
    return rows


def service_tables(study: Study) -> str:
    """The services of the first run of each policy as a table of HTML; "" where there are none."""
    rows = [
        (name, folder.policy, *rest)
        for folder in first_of_each_policy(study.folders)
        if (services := _read(folder, "services"))
        for name, *rest in service_rows(services)
    ]
    return table("Services, of the first run of each policy", HEADER, sorted(rows)) if rows else ""


def services_over_time(folder: RunFolder, identifier: str) -> list[Chart]:
    """Replicas and latency of each service over time; none where the run has no services."""
    windows = _read(folder, "service_windows")
    if not windows:
        return []
    charts = []
    for number, name in enumerate(dict.fromkeys(windows["service"].tolist())):
        rows = windows["service"] == name
        of = {column: values[rows] for column, values in windows.items()}
        edges_s = np.append(of["start_s"], of["end_s"][-1:])
        unit = time_unit(float(edges_s[-1] - edges_s[0]))
        step = -(-len(of["start_s"]) // POINTS)
        at = np.append(edges_s[:-1:step], edges_s[-1]) / unit.seconds
        held, late_s = _most(of["replicas"], step), _most(of["latency_p99_s"], step)
        hours = Axis(f"simulated time ({unit.name})")
        for part, title, values, axis, shown in (
            ("replicas", f"Replicas of {name}", held, "replicas", digits),
            ("latency", f"Latency of {name}, p99 of each window", 1e3 * late_s, "ms", lambda v: f"{digits(v)} ms"),
        ):
            known = values[np.isfinite(values)]
            row = (str(name), *(shown(float(v)) for v in ((known.mean(), known.max()) if known.size else (0.0, 0.0))))
            series = ChartSeries(str(name), at, np.nan_to_num(values), colour=0 if part == "replicas" else 1)
            text = f"mean {row[1]}, highest {row[2]}"
            charts.append(
                Chart(
                    f"{identifier}-{number}-{part}",
                    "area",
                    title,
                    text,
                    hours,
                    Axis(axis),
                    (series,),
                    ("", "mean", "highest"),
                    (row,),
                    "",
                    unit.seconds,
                )
            )
    return charts


def _most(values: NDArray[Any], step: int) -> NDArray[np.float64]:
    """Maximum of each group of neighbours; unknown values are ignored unless all are unknown."""
    known = np.where(np.isfinite(values), values, -np.inf).astype(np.float64)
    found: NDArray[np.float64] = np.maximum.reduceat(known, np.arange(0, len(known), step))
    return np.where(np.isfinite(found), found, np.nan)


def _read(folder: RunFolder, name: str) -> Any:
    path = folder.path / f"{name}.parquet"
    return read_parquet(path) if path.is_file() else {}
