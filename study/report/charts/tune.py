"""The chart of a search with several objectives: the first two of each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.study.display import LABELS, show
from equipoise.study.report.chart import Axis, Chart, ChartSeries


def objectives(content: Mapping[str, Any], metrics: Sequence[str]) -> Chart:
    """Trials, the start and the choices of a search (its `as_json`, read) on the first two objectives."""
    first, second = metrics[:2]
    name = {metric: LABELS.get(metric, metric).strip() for metric in metrics}
    trials = [trial for trial in content["trials"] if None not in trial["means"].values()]
    choices = sorted((choice["trial"] for choice in content["choices"]), key=lambda trial: trial["means"][first])

    def series(label: str, of: Sequence[Mapping[str, Any]], colour: int | str) -> ChartSeries:
        """Points of these trials."""
        x, y = ([float(trial["means"][metric]) for trial in of] for metric in (first, second))
        return ChartSeries(label, x, y, colour=colour, labels=[_text(trial["values"]) for trial in of])

    shown = [
        series("tried", [trial for trial in trials if not trial["pruned"]], 0),
        series("stopped early", [trial for trial in trials if trial["pruned"]], 1),
        series("as it is", trials[:1], 2),
        series("front", choices, "front"),
    ]
    rows = tuple((_text(trial["values"]), *(show(m, trial["means"][m]) for m in (first, second))) for trial in choices)
    return Chart(
        "objectives",
        "scatter",
        f"{name[second]} against {name[first]}",
        "Pareto front of the trials",
        Axis(f"{name[first]} ({_unit(first)})", zero=False),
        Axis(f"{name[second]} ({_unit(second)})", zero=False),
        tuple(one for one in shown if len(one.x)),
        ("point", name[first], name[second]),
        rows,
        "Line: points that no other trial beats. Means over the seeds of the trials.",
    )


def _unit(metric: str) -> str:
    return {"s": "s", "usd": "USD", "j": "J", "kg": "kg"}.get(metric.rsplit("_", 1)[-1], "1")


def _text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in values.items()) or "as it is"
