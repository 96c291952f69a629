"""The charts of `size`: the sizes against the target, and time against cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.study.display import show
from equipoise.study.questions.targets import Target
from equipoise.study.questions.trials import Question
from equipoise.study.report.chart import Axis, Chart, ChartSeries
from equipoise.study.report.charts.axes import axis, name
from equipoise.study.runs.decisions import front

BARS_MOST = 20
_MEETS = (("meets the targets", True), ("misses", False))
Row = Mapping[str, Any]


def size_charts(rows: Sequence[Row], question: Question) -> list[Chart]:
    """Those for which the sizes have numbers; the first is the picture of the answer."""
    target = question.targets[0]
    charts = (against_target(_by_value(rows, question.vary), target), against_cost(rows, target))
    return [chart for chart in charts if chart is not None]


def _by_value(rows: Sequence[Row], vary: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
    """The sizes by value of the varied key; with several keys, by rank."""
    if len(vary) != 1:
        return rows
    ((key, values),) = vary.items()
    place = {f"{key.rpartition('.')[2]} {value}": k for k, value in enumerate(values)}
    return sorted(rows, key=lambda row: place.get(row["values"], len(place)))


def against_target(rows: Sequence[Row], target: Target) -> Chart | None:
    """The result that the target limits, by size, with the range of its runs; a line at the limit."""
    key = target.measure.key
    known = [row for row in rows if math.isfinite(row[key])][:BARS_MOST]
    if not known:
        return None
    ends = [row["results"][key] for row in known]
    x, divisor = axis(key, [*(value for end in ends for value in end), target.limit])
    at = [float(k) for k in range(len(known))]
    labels = [target.measure.show(row[key]) + ("" if row["meets"] else " (misses)") for row in known]
    told = tuple((row["values"], text) for row, text in zip(known, labels, strict=True))
    spread = "One run each." if max(map(len, ends)) == 1 else "Mean of the runs; thin lines: lowest to highest."
    return Chart(
        "target",
        "ranked",
        f"{name(key)} by size",
        "; ".join(f"{size}: {text}" for size, text in told),
        x,
        Axis("", ticks=tuple((k, row["values"]) for k, row in zip(at, known, strict=True))),
        (
            ChartSeries("mean", at, [row[key] / divisor for row in known], _best(known), labels),
            ChartSeries("low", at, [min(end) / divisor for end in ends]),
            ChartSeries("high", at, [max(end) / divisor for end in ends]),
            ChartSeries("limit", [0.0], [target.limit / divisor], colour="front"),
        ),
        ("size", name(key)),
        told,
        f"{spread} Dashed: the limit. Blue: the best size."
        + (f" The first {BARS_MOST} of {len(rows)}." if len(rows) > BARS_MOST else ""),
    )


def _best(rows: Sequence[Row]) -> int:
    return min(range(len(rows)), key=lambda k: rows[k]["rank"])


def against_cost(rows: Sequence[Row], target: Target) -> Chart | None:
    """The limited result, if it is a time, else the makespan, against cost, with the Pareto front."""
    of_time = target.measure.key.partition("[")[0].endswith("_s") and target.at_most
    return time_against_cost(rows, target.measure.key if of_time else "makespan_s")


def time_against_cost(rows: Sequence[Row], key: str) -> Chart | None:
    """A time against cost, with the Pareto front; None where fewer than two rows have both."""
    known = [row for row in rows if row["cost_usd"] > 0.0 and math.isfinite(row[key])]
    if len(known) < 2:
        return None
    cost, time_s = ([float(row[of]) for row in known] for of in ("cost_usd", key))
    y, divisor = axis(key, time_s, zero=False)
    best = front(cost, time_s)
    parts = [(label, [k for k, row in enumerate(known) if row.get("meets") is meets]) for label, meets in _MEETS]
    if not any(of for _, of in parts):  # the first have their labels for certain
        parts = [("worth choosing", best), ("others", [k for k in range(len(known)) if k not in best])]
    series = [
        ChartSeries(
            label, [cost[k] for k in of], [time_s[k] / divisor for k in of], colour, [known[k]["values"] for k in of]
        )
        for colour, (label, of) in enumerate(parts)
        if of
    ]
    series.append(ChartSeries("front", [cost[k] for k in best], [time_s[k] / divisor for k in best], "front"))
    told = tuple((known[k]["values"], show("cost_usd", cost[k]), show(key, time_s[k])) for k in best)
    return Chart(
        "cost",
        "scatter",
        f"{name(key)} against cost",
        "Pareto front: " + "; ".join(", ".join(row) for row in told[:5]),
        Axis("cost (USD)", zero=False),
        y,
        tuple(series),
        ("size", "cost", name(key).lower()),
        told,
        "Line: Pareto front.",
    )
