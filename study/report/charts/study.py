"""The charts of a study: numbers, units and descriptions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.base.database import database
from equipoise.base.json_values import number
from equipoise.study.display import LABELS, digits, show
from equipoise.study.report.chart import Axis, Chart, ChartSeries, time_unit
from equipoise.study.report.first import ranking
from equipoise.study.report.study import Point, Study, Trend
from equipoise.study.report.timeline import USES, USES_OF_FEATURES, literal
from equipoise.study.report.words import NOUNS
from equipoise.study.runs.decisions import front

QUANTILES = 400
POLICIES_DRAWN = 8
DOTS = 1500
LONG_TAIL = 10.0
USE_LABELS = {
    "busy": "computing",
    "input_stall": "input stall",
    "barrier_wait": "barrier wait",
    "exposed_communication": "exposed communication",
    "pipeline_bubble": "pipeline bubble",
    "tensor_exchange": "tensor exchange",
    "restart": "restart",
    "lost_to_faults": "lost to faults",
    **USES_OF_FEATURES,
    "idle": "idle",
    "late": "idle after the last arrival",
    "down": "node down",
}
_USE_METRICS = {"gpu_busy_ratio": "busy"} | {f"{use}_ratio": use for use in (*USES[1:], *USES_OF_FEATURES, "idle")}


def colour_of(use: str) -> str:
    """The name of the colour of a use of GPU time."""
    return "beside" if use in USES_OF_FEATURES else use


def study_charts(study: Study) -> list[Chart]:
    """All charts for which the study has numbers."""
    made = [ranking(study), where_time_goes(study), completion_times(study), trade_off(study)]
    made.append(tornado(study))
    return [chart for chart in (*made, *(trend(t, k) for k, t in enumerate(study.trends))) if chart is not None]


def where_time_goes(study: Study) -> Chart | None:
    """Shares of GPU time by use, one bar per policy."""
    late = [study.mean("idle_late_ratio", p) for p in study.policies]
    return shares_of_time("policy", study.policies, study.mean, late, "Means over runs. ")


def shares_of_time(
    what: str, names: Sequence[str], share: Callable[[str, str], float], late: Sequence[float], note: str
) -> Chart | None:
    """Shares of GPU time by use, a bar for each name: share(metric, name); late: idle after the last arrival."""
    shares = {use: [share(metric, name) for name in names] for metric, use in _USE_METRICS.items()}
    if not any(value > 0 for values in shares.values() for value in values):
        return None
    at = list(range(len(names)))
    if all(math.isfinite(v) for v in late) and any(v > 5e-4 for v in late):
        shares["idle"] = [idle - v for idle, v in zip(shares["idle"], late, strict=True)]
        shares["late"] = list(late)
    series = tuple(
        ChartSeries(USE_LABELS[use], at, [100 * max(v, 0.0) for v in values], colour=colour_of(use))
        for use, values in shares.items()
        if any(v > 5e-4 for v in values)
    )
    header = (what, *(s.name for s in series))
    rows = tuple(
        (p, *(f"{digits(s.y[k])} %" if math.isfinite(s.y[k]) else "-" for s in series)) for k, p in enumerate(names)
    )
    text = "; ".join(
        f"{row[0]}: " + ", ".join(f"{n} {v}" for n, v in zip(header[1:], row[1:], strict=True)) for row in rows[:4]
    )
    ticks = tuple((float(k), p) for k, p in enumerate(names))
    return Chart(
        "uses",
        "bars",
        "Shares of GPU time",
        text,
        Axis("share of GPU time (%)", high=100.0),
        Axis("", ticks=ticks),
        series,
        header,
        rows,
        f"{note}All GPU time from the first arrival to the last completion is 100 %.",
    )


def completion_times(study: Study) -> Chart | None:
    """Share of all jobs completed within a time, one curve per policy, pooled over its runs."""
    found = {p: _completions(study, p) for p in study.policies[:POLICIES_DRAWN]}
    curves = {p: c for p, c in found.items() if c is not None and len(c[0])}
    if not curves or all(study.mean("jobs", p) == 1 for p in curves):  # the time of one job is no curve
        return None
    unit = time_unit(max(float(np.percentile(times, 95)) for times, _ in curves.values()))
    series = tuple(
        ChartSeries(p, times / unit.seconds, 100 * share, colour=study.policies.index(p))
        for p, (times, share) in curves.items()
    )
    rows = tuple((p, *_reached(*curve)) for p, curve in curves.items())
    text = "; ".join(f"{row[0]}: half of the jobs within {row[2]}, 95 % within {row[4]}" for row in rows)
    runs = "one run" if len(study.folders) == 1 else f"{len(study.folders)} runs, pooled"
    note = f"Jobs of {runs}. A job that was not completed never reaches its step."
    if len(study.policies) > POLICIES_DRAWN:
        note += f" The first {POLICIES_DRAWN} of {len(study.policies)} policies."
    return Chart(
        "completion",
        "step",
        "Completion times",
        text,
        Axis(f"time from arrival to completion ({unit.name})", log=_long_tailed(curves)),
        Axis("jobs completed (%)", high=100.0),
        series,
        ("policy", "25 %", "50 %", "75 %", "95 %", "all"),
        rows,
        note,
    )


def _long_tailed(curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]) -> bool:
    """Whether the slowest jobs take over ten times as long as the median, so a linear axis would show nothing."""
    return all(times[0] > 0 for times, _ in curves.values()) and any(
        times[-1] > LONG_TAIL * np.median(times) for times, _ in curves.values()
    )


def _reached(times: NDArray[np.float64], share: NDArray[np.float64]) -> list[str]:
    """Time at which this share of the jobs was completed; "never" if it never was."""
    told = []
    for level in (0.25, 0.5, 0.75, 0.95, 1.0):
        k = int(np.searchsorted(share, level - 1e-12))
        told.append(show("x_s", float(times[k])) if k < len(times) else "never")
    return told


def _completions(study: Study, policy: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """(completion times ascending in s, share of all jobs completed by then), at most `QUANTILES` steps."""
    paths = [folder.path / "jobs.parquet" for folder in study.folders if folder.policy == policy]
    if not paths:
        return None
    source = f"read_parquet([{', '.join(map(literal, paths))}])"
    span = "completion_s - arrival_s"
    with database() as db:
        total, done = db.execute(
            f"SELECT count(*), count(*) FILTER (WHERE NOT isnan(completion_s)) FROM {source}"
        ).fetchall()[0]
        if not done:
            return None
        if done <= QUANTILES:
            ordered = f"SELECT {span} AS t FROM {source} WHERE NOT isnan(completion_s) ORDER BY t"
            times = np.asarray(db.execute(ordered).fetchnumpy()["t"], dtype=np.float64)
            return times, np.arange(1, done + 1) / total
        levels = [k / QUANTILES for k in range(1, QUANTILES + 1)]
        query = f"SELECT quantile_disc({span}, {levels}) FROM {source} WHERE NOT isnan(completion_s)"
        times = np.array(db.execute(query).fetchall()[0][0], dtype=np.float64)
    return times, np.array(levels) * done / total


def trade_off(study: Study) -> Chart | None:
    """Trade-off of waiting (for one job: its makespan) against money, else GPUs or GPU time held."""
    points = _trade_points(study)
    if len(points) < 2:
        return None
    label, costs = _cost_axis(points)
    metric, name = _traded(study, points)
    results = [p.means.get(metric, math.nan) for p in points]
    if not any(math.isfinite(c) and math.isfinite(r) for c, r in zip(costs, results, strict=True)):
        return None
    unit = time_unit(float(np.nanmax(results)))
    y = [value / unit.seconds for value in results]
    best = front(costs, results)
    log = _spread_out(costs) and _spread_out(results)
    drawn = _thinned(len(points), best)
    series = [
        ChartSeries(
            policy,
            [costs[k] for k in of],
            [y[k] for k in of],
            colour=study.policies.index(policy),
            labels=[_point_text(points[k]) for k in of],
        )
        for policy in study.policies
        if (of := [k for k in drawn if points[k].policy == policy])
    ]
    series.append(ChartSeries("front", [costs[k] for k in best], [y[k] for k in best], colour="front"))
    rows = tuple(
        (points[k].policy, _point_text(points[k]), digits(costs[k], 4), show(metric, results[k])) for k in best[:20]
    )
    text = "Pareto front: " + "; ".join(f"{r[0]} {r[1]}: {r[2]} {label}, {r[3]}".replace("  ", " ") for r in rows[:5])
    return Chart(
        "pareto",
        "scatter",
        f"{name[0].upper()}{name[1:]} against {label.partition(' (')[0]}",
        text,
        Axis(label, zero=not log, log=log),
        Axis(f"{name} ({unit.name})", zero=not log, log=log),
        tuple(series),
        ("policy", "point", label, name),
        rows,
        (
            f"{_called(points[best[0]])} is best in both. Means over seeds."
            if len(best) == 1
            else "Line: Pareto front. Means over seeds."
        )
        + (f" {len(drawn):,} of {len(points):,} points are drawn." if len(drawn) < len(points) else ""),
    )


def _spread_out(values: Sequence[float]) -> bool:
    """Whether a linear axis would put most values close together."""
    known = [value for value in values if math.isfinite(value)]
    return min(known) > 0.0 and max(known) > 4.0 * float(np.median(known))


def _called(point: Point) -> str:
    text = _point_text(point)
    return f"{point.policy} at {text}" if text else point.policy


def _traded(study: Study, points: Sequence[Point]) -> tuple[str, str]:
    """(metric, its name): mean waiting where jobs wait, else the makespan."""
    waits = [p.means.get("queueing_mean_s", math.nan) for p in points]
    if study.main_metric == "completion_mean_s" and any(wait > 0 for wait in waits):
        return "queueing_mean_s", "mean waiting"
    return "makespan_s", "makespan"


def _thinned(n: int, kept: Sequence[int]) -> list[int]:
    """All of `kept`, and an even selection of the others, about `DOTS` in total."""
    step = max(1, math.ceil(n / DOTS))
    return sorted({*range(0, n, step), *kept})


def _trade_points(study: Study) -> list[Point]:
    if study.points:
        return list(study.points)
    names = ("makespan_s", "queueing_mean_s", "cost_usd", "idle_ratio", "energy_j")
    return [Point(0, p, {}, {n: study.mean(n, p) for n in names} | {"gpus": study.gpus}) for p in study.policies]


def _point_text(point: Point) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.values.items())


def _cost_axis(points: Sequence[Point]) -> tuple[str, list[float]]:
    """Cost axis of the points: USD when known, GPUs when they differ, else the share of GPU time held."""
    usd = [p.means.get("cost_usd", math.nan) for p in points]
    if any(math.isfinite(v) for v in usd):
        return "cost (USD)", usd
    gpus = [p.means.get("gpus", math.nan) for p in points]
    if len({g for g in gpus if math.isfinite(g)}) > 1:
        return "GPUs in the cluster", gpus
    held = [(1 - p.means.get("idle_ratio", math.nan)) * p.means.get("makespan_s", math.nan) / 3600 for p in points]
    if all(math.isfinite(g) for g in gpus):
        return "GPU hours held (h)", [h * g for h, g in zip(held, gpus, strict=True)]
    return "hours held per GPU (h)", held


def tornado(study: Study) -> Chart | None:
    """Change of the metric when one key goes from low to high, the largest on top."""
    content = study.tornado
    if content is None or not content["rows"]:
        return None
    metric, base = str(content.get("metric", "")), float(content.get("base") or math.nan)
    unit = time_unit(abs(base)) if metric.endswith("_s") else None
    scale = unit.seconds if unit is not None else 0.01 if metric.endswith("_ratio") else 1.0
    name = unit.name if unit is not None else "%" if metric.endswith("_ratio") else metric.rpartition("_")[2]
    ordered = sorted(content["rows"], key=lambda row: -_swing(row))[:30]
    at = list(range(len(ordered)))
    series = tuple(
        ChartSeries(
            end,
            at,
            [number(row[end]) / scale for row in ordered],
            colour=colour,
            labels=[str(row[f"{end}_value"]) for row in ordered],
        )
        for end, colour in (("low", 0), ("high", 1))
    )
    rows = tuple(
        (
            str(row["key"]),
            *(part for end in ("low", "high") for part in (str(row[f"{end}_value"]), show(metric, number(row[end])))),
        )
        for row in ordered
    )
    text = f"{LABELS.get(metric, metric)} is {show(metric, base)}; " + "; ".join(
        f"{row[0]} from {row[1]} to {row[3]}: {row[2]} to {row[4]}" for row in rows[:5]
    )
    label = f"{LABELS.get(metric, metric)} ({name})"
    return Chart(
        "tornado",
        "tornado",
        f"What {LABELS.get(metric, metric)} depends on",
        text,
        Axis(label, zero=False),
        Axis("", ticks=tuple((float(k), str(row["key"])) for k, row in enumerate(ordered))),
        (*series, ChartSeries("base", [0.0], [base / scale], colour="front")),
        ("key", "low value", "result", "high value", "result"),
        rows,
        "One key at a time, on the same seeds; the line is the base case.",
    )


def _swing(row: Mapping[str, object]) -> float:
    swing = abs(number(row["high"]) - number(row["low"]))
    return swing if math.isfinite(swing) else -1.0


def trend(found: Trend, number: int) -> Chart:
    """The main metric over one varied key, one line per policy."""
    everything = [v for means in found.means.values() for v in means if math.isfinite(v)]
    unit = time_unit(max(everything, default=1.0))
    at = list(range(len(found.values)))
    series = tuple(
        ChartSeries(
            p, at, [v / unit.seconds for v in means], colour=k, half=[v / unit.seconds for v in found.halves.get(p, ())]
        )
        for k, (p, means) in enumerate(found.means.items())
    )
    unknown = [math.nan] * len(at)
    rows = tuple(
        (p, *(show(found.metric, v, h) for v, h in zip(means, found.halves.get(p, unknown), strict=True)))
        for p, means in found.means.items()
    )
    name = NOUNS.get(found.metric, found.metric)
    text = "; ".join(
        f"{row[0]}: from {row[1]} at {found.values[0]} to {row[-1]} at {found.values[-1]}" for row in rows[:6]
    )
    return Chart(
        f"trend-{number}",
        "line",
        f"{name[0].upper()}{name[1:]} by {found.key}",
        text,
        Axis(found.key, zero=False, ticks=tuple((float(k), v) for k, v in enumerate(found.values))),
        Axis(f"{name} ({unit.name})"),
        series,
        ("policy", *found.values),
        rows,
        "Means over all other varied keys and seeds" + (", with 95 % intervals." if _sure(found) else "."),
    )


def _sure(found: Trend) -> bool:
    """Whether any interval is known and above zero."""
    return any(half > 0.0 for halves in found.halves.values() for half in halves)
