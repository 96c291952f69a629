"""The first screen of a report: main figures, one picture, and the simulated case."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from equipoise.base.database import database
from equipoise.study.display import cluster_line, digits, show
from equipoise.study.report.chart import Axis, Chart, ChartSeries, time_unit
from equipoise.study.report.study import Point, Study
from equipoise.study.report.timeline import literal
from equipoise.study.report.words import NOUNS, best_point, best_policy
from equipoise.study.sure import between, read_certainty

MOST_FIGURES = 6
_LABELS = {
    "completion_mean_s": "Mean completion time",
    "makespan_s": "Makespan",
    "queueing_mean_s": "Mean waiting",
    "goodput_ratio": "Goodput",
    "cost_usd": "Cost",
    "energy_j": "Energy",
    "mfu_ratio": "MFU",
    "cost_per_million_tokens_usd": "Cost per million tokens",
}


@dataclass(frozen=True)
class Figure:
    """One figure of the strip: its name, its value, and its ratio to the baseline ("" without one)."""

    label: str
    value: str
    against: str = ""
    sure: str = ""  # its interval, where it rests on predicted steps


# -- the strip -------------------------------------------------------------------------------------------------


def strip(study: Study) -> list[Figure]:
    """Up to six figures of the best policy, each with the baseline's: time, waiting, goodput, cost, energy."""
    if not study.rows:
        return []
    best, other = _sides(study)
    sure = read_certainty(study.config) if study.kind != "sweep" else None
    found = []
    for metric in _wanted(study):
        figure = _figure(metric, best, other)
        if figure is not None:
            of = between(metric, best.means[metric], sure.spread) if sure is not None else ""
            found.append(replace(figure, sure=f"90 %: {of}" if of else ""))
    return found[:MOST_FIGURES]


def _wanted(study: Study) -> list[str]:
    wanted = dict.fromkeys((study.main_metric, *_LABELS))
    if study.main_metric == "makespan_s":  # of one job: the same number
        del wanted["completion_mean_s"]
    return list(wanted)


@dataclass(frozen=True)
class _Side:
    """One side of a comparison: its name and its means."""

    name: str
    means: Mapping[str, float]


def _sides(study: Study) -> tuple[_Side, _Side | None]:
    """(the best, the baseline or next best); of a sweep both at the best point."""
    point = best_point(study)
    if point is not None:
        there = {p.policy: p for p in study.points if p.number == point.number}
        first = there.get(study.policies[0])
        return _of_point(point), None if first is None or first is point else _of_point(first)
    best = best_policy(study)
    others = [p for p in study.policies if p != best]
    return _of_policy(study, best), _of_policy(study, others[0]) if others else None


def _of_point(point: Point) -> _Side:
    return _Side(point.policy, point.means)


def _of_policy(study: Study, policy: str) -> _Side:
    return _Side(policy, {metric: study.mean(metric, policy) for metric in _LABELS})


def _figure(metric: str, best: _Side, other: _Side | None) -> Figure | None:
    value = best.means.get(metric, math.nan)
    beside = other.means.get(metric, math.nan) if other is not None else math.nan
    if not math.isfinite(value) or (value == 0 and not beside > 0):
        return None
    if other is None or not math.isfinite(beside):
        return Figure(_LABELS[metric], show(metric, value))
    ratio = f" (x {digits(value / beside)})" if beside > 0 else ""
    return Figure(_LABELS[metric], show(metric, value), f"{other.name}: {show(metric, beside)}{ratio}")


def strip_html(study: Study) -> str:
    """The strip of a study as HTML."""
    return figures_html(strip(study))


def figures_html(figures: Sequence[Figure]) -> str:
    """Figures side by side as HTML."""
    cards = "".join(
        f"<div><dt>{escape(f.label)}</dt><dd>{escape(f.value)}"
        + "".join(f'<span class="of">{escape(text)}</span>' for text in (f.sure, f.against) if text)
        + "</dd></div>"
        for f in figures
    )
    return f'<dl class="strip">{cards}</dl>' if cards else ""


# -- the picture -----------------------------------------------------------------------------------------------


def ranking(study: Study) -> Chart | None:
    """The main metric by policy, shortest first, with its interval and the lower bound."""
    metric = study.main_metric
    found = [row for p in study.policies if (row := study.row(metric, p)) is not None]
    rows = sorted((row for row in found if math.isfinite(row.value.mean)), key=lambda row: row.value.mean)
    if len(rows) < 2:
        return None
    unit = time_unit(rows[-1].value.mean)
    at = [float(k) for k in range(len(rows))]
    told = tuple((row.policy, show(metric, row.value.mean, row.value.half_width)) for row in rows)
    series = [
        ChartSeries("mean", at, [row.value.mean / unit.seconds for row in rows], labels=[text for _, text in told]),
        ChartSeries("low", at, [row.value.low / unit.seconds for row in rows]),
        ChartSeries("high", at, [row.value.high / unit.seconds for row in rows]),
    ]
    bound = max((row.bound for row in rows if row.bound > 0), default=math.nan)
    if math.isfinite(bound):
        series.append(ChartSeries("lower bound", [0.0], [bound / unit.seconds], colour="front"))
    noun = NOUNS[metric]
    runs = (
        f"one {study.unit}"
        if study.seeds == 1
        else f"mean and {100 * study.level:g} % interval of {study.seeds} {study.unit}s"
    )
    return Chart(
        "ranking",
        "ranked",
        f"{noun[0].upper()}{noun[1:]} by policy",
        "; ".join(f"{policy}: {text}" for policy, text in told),
        Axis(f"{noun} ({unit.name})"),
        Axis("", ticks=tuple((k, row.policy) for k, row in zip(at, rows, strict=True))),
        tuple(series),
        ("policy", noun),
        told,
        f"{runs[0].upper()}{runs[1:]}." + (" Dashed: lower bound." if math.isfinite(bound) else ""),
    )


def picture(study: Study, charts: Mapping[str, Chart]) -> Chart | None:
    """The chart of the first screen: ranked policies, the most important parameter, or GPU time by use."""
    if study.kind == "sweep" and study.trends:
        widest = max(range(len(study.trends)), key=lambda k: _span(study, k))
        return charts.get(f"trend-{widest}")
    return charts.get("ranking") or charts.get("uses")


def _span(study: Study, k: int) -> float:
    known = [m for means in study.trends[k].means.values() for m in means if math.isfinite(m) and m > 0]
    return max(known) / min(known) if known else 0.0


# -- what was simulated ----------------------------------------------------------------------------------------


def context(study: Study) -> list[tuple[str, str]]:
    """(heading, text) of cluster, workload and disturbances; [] without a stored scenario."""
    config = study.config or {}
    cluster = config.get("cluster")
    if not isinstance(cluster, Mapping):
        return []
    lines = [
        ("Cluster", cluster_line(cluster)),
        ("Workload", _workload(study)),
        ("Disturbances", _faults(config)),
        ("Varied (the above is the first point)", ", ".join(study.points[0].values) if study.points else ""),
    ]
    return [(name, text) for name, text in lines if text]


def _workload(study: Study) -> str:
    """Number, size and arrival of the jobs of the first run."""
    paths = [folder.path / "jobs.parquet" for folder in study.folders[:1]]
    if not paths:
        jobs = max((study.mean("jobs", policy) for policy in study.policies), default=math.nan)
        return "" if math.isnan(jobs) else f"{jobs:,.0f} job{'s' if jobs != 1 else ''}"
    query = (
        "SELECT count(*), min(gpus), median(gpus), max(gpus), max(arrival_s) - min(arrival_s) "
        f"FROM read_parquet({literal(paths[0])})"
    )
    with database() as db:
        jobs, least, middle, most, span = db.execute(query).fetchall()[0]
    if not jobs:
        return ""
    sizes = f"{least}" if least == most else f"{least} to {most} (median {middle:g})"
    noun = "GPU" if most == 1 else "GPUs"
    if jobs == 1:
        return f"1 job on {sizes} {noun}"
    when = f", arriving over {show('x_s', span)}" if span > 0 else ", all there from the start"
    return f"{jobs:,} jobs on {sizes} {noun}{when}"


def _faults(config: Mapping[str, Any]) -> str:
    noise, faults = config.get("noise"), config.get("faults")
    parts = list(_noise(noise)) if isinstance(noise, Mapping) else []
    given = faults if isinstance(faults, Mapping) else {}
    named = [str(kind).replace("_", " ") for kind, value in given.items() if value]
    parts.append(f"faults: {', '.join(named)}" if named else "no faults")
    return "; ".join(parts)


def _noise(noise: Mapping[str, Any]) -> Iterator[str]:
    spread = noise.get("step_cov")
    if isinstance(spread, int | float):
        yield f"step times vary by {show('x_ratio', spread)}" if spread > 0 else "step times do not vary"


def context_html(study: Study) -> str:
    """The lines as HTML."""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in context(study))
    return f'<dl class="context">{rows}</dl>' if rows else ""
