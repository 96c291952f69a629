"""The charts of a search: its objectives against each other, and the first of them over each parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from equipoise.study.display import show
from equipoise.study.questions.tune import FoundParameters, ParameterRange, ParameterTrial, point_text
from equipoise.study.report.chart import Axis, Chart, ChartSeries
from equipoise.study.report.charts.axes import axis, name
from equipoise.study.report.study import in_order


def tune_charts(found: FoundParameters) -> list[Chart]:
    """With several objectives these against each other; the first objective over each parameter."""
    both = [objectives(found)] if len(found.metrics) > 1 else []
    return both + [chart for k, key in enumerate(found.vary) if (chart := over_key(found, key, k)) is not None]


def objectives(found: FoundParameters) -> Chart:
    """Trials, the start and the choices on the first two objectives."""
    first, second = found.metrics[:2]
    trials = [trial for trial in found.trials if all(map(math.isfinite, trial.means.values()))]
    choices = sorted((choice.trial for choice in found.choices), key=lambda trial: trial.means[first])
    x, across = axis(first, [trial.means[first] for trial in trials], zero=False)
    y, up = axis(second, [trial.means[second] for trial in trials], zero=False)

    def series(label: str, of: Sequence[ParameterTrial], colour: int | str) -> ChartSeries:
        """Points of these trials."""
        at, to = [trial.means[first] / across for trial in of], [trial.means[second] / up for trial in of]
        return ChartSeries(label, at, to, colour=colour, labels=[point_text(trial.values) for trial in of])

    rows = tuple((point_text(trial.values), *(show(m, trial.means[m]) for m in (first, second))) for trial in choices)
    return Chart(
        "objectives",
        "scatter",
        f"{name(second)} against {name(first).lower()}",
        "Pareto front of the trials",
        x,
        y,
        (series("tried", trials, 0), series("unchanged", trials[:1], 2), series("front", choices, "front")),
        ("point", name(first), name(second)),
        rows,
        "Line: points that no other trial beats. Means over the seeds of the trials.",
    )


def over_key(found: FoundParameters, key: str, number: int) -> Chart | None:
    """The first objective of each trial over one parameter, with a line at the unchanged scenario."""
    metric = found.metrics[0]
    trials = [trial for trial in found.trials if key in trial.values and math.isfinite(trial.means[metric])]
    if not trials:
        return None
    start = found.trials[0].means[metric]
    at, ticks = _places([trial.values[key] for trial in trials])
    y, divisor = axis(metric, [*(trial.means[metric] for trial in trials), start], zero=False)
    chosen = [choice.trial for choice in found.choices]
    series = [
        ChartSeries(
            label,
            [at[k] for k in of],
            [trials[k].means[metric] / divisor for k in of],
            colour,
            [point_text(trials[k].values) for k in of],
        )
        for colour, (label, best) in enumerate((("tried", False), ("best", True)))
        if (of := [k for k, trial in enumerate(trials) if (trial in chosen) == best])
    ]
    series.append(ChartSeries("unchanged", [min(at), max(at)], [start / divisor] * 2, "front"))
    scale = found.vary[key]
    log = isinstance(scale, ParameterRange) and scale.scale == "log"
    return Chart(
        f"over-{number}",
        "scatter",
        f"{name(metric)} over {key.rpartition('.')[2]}",
        f"{len(trials)} trials",
        Axis(key, zero=False, ticks=ticks, log=log and not ticks),
        y,
        tuple(series),
        ("trial", name(metric)),
        tuple((point_text(trial.values), show(metric, trial.means[metric])) for trial in trials),
        "A point is a trial; other parameters differ, too. Line: the scenario as it is. Means over the search's own "
        "seeds, on which the best trial looks better than on the unseen ones of the answer.",
    )


def _places(values: Sequence[Any]) -> tuple[list[float], tuple[tuple[float, str], ...]]:
    """(place of each value on an axis, ticks): numbers where they are, texts one after the other."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], ()
    texts = sorted({str(value) for value in values}, key=in_order)
    return [float(texts.index(str(value))) for value in values], tuple((float(k), t) for k, t in enumerate(texts))
