"""The page of `equipoise tune`: the best point, also on unseen seeds, and all trials."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.base.json_values import number
from equipoise.study.display import MORE_IS_BETTER, digits
from equipoise.study.folders import TUNE
from equipoise.study.questions.tune import SURE
from equipoise.study.report.answers.parts import ROWS_MOST, answer_html, axis, name, places, read_answer, shown
from equipoise.study.report.chart import Axis, Chart, ChartSeries
from equipoise.study.report.charts.tune import objectives
from equipoise.study.report.first import Figure
from equipoise.study.report.page import composed, figure, section
from equipoise.study.report.tables import table

KEYS = ("scenario", "policy", "vary", "answer", "trials", "choices", "start", "notes")

Row = Mapping[str, Any]


def tune_page(folder: Path) -> str:
    """The page of the search in a folder. Raises InputError when its file is damaged."""
    content = read_answer(folder / TUNE, KEYS)
    metrics = list(content["start"])
    over = [chart for k, key in enumerate(content["vary"]) if (chart := over_key(content, key, metrics[0], k))]
    charts = [*([objectives(content, metrics)] if len(metrics) > 1 else []), *over]
    title = str(content["scenario"])
    drawn = "".join(figure(chart) for chart in charts[1:])
    sections = [
        ("answer", "", _answer(content, metrics, charts[0] if charts else None)),
        ("fresh", "Unseen seeds", section("fresh", "On seeds that no trial has seen", _fresh(content, metrics))),
        ("trials", "Trials", section("trials", "All trials, the best first", _trials(content, metrics))),
    ]
    if drawn:
        sections.insert(
            2, ("keys", "Parameters", section("keys", "Each parameter", f'<div class="pair">{drawn}</div>'))
        )
    return composed(
        title, sections, charts, f"Equipoise report of the tuning of {title}. This file asks nothing from any network."
    )


def _answer(content: Row, metrics: Sequence[str], picture: Chart | None) -> str:
    metric, trials = metrics[0], content["trials"]
    best = min(content["choices"], key=lambda choice: _order(metric, choice["trial"]))
    ratio, p = best["ratios"][metric], best["p"][metric]
    figures = [
        Figure(
            f"{_begin(name(metric))}, unseen seeds",
            shown(metric, best["means"][metric]),
            f"as it is: {shown(metric, content['start'][metric])}",
        ),
        Figure("Ratio on unseen seeds", f"x {digits(ratio['mean'])}", _interval(ratio)),
        Figure("p-value", _p(p), f"that it is no better; significant below {SURE:g}"),
        Figure("Trials", f"{len(trials)}", f"{sum(trial['pruned'] for trial in trials)} stopped early"),
    ]
    context = [
        ("Policy", str(content["policy"])),
        ("Minimised" if metric not in MORE_IS_BETTER else "Maximised", ", ".join(map(name, metrics))),
        ("Varied", "; ".join(f"{key}: {_range(allowed)}" for key, allowed in content["vary"].items())),
        ("Seeds", f"{trials[0]['seeds']} of each trial, {ratio['n']} others for the figures above"),
        ("Notes", " ".join(f"{_begin(note)}." for note in content["notes"])),
    ]
    return answer_html(f"Tuning: {content['scenario']}", content["answer"], figures, picture, [], context)


def _order(metric: str, trial: Row) -> float:
    """Key to sort trials by, the best first; failed ones last."""
    value = number(trial["means"][metric])
    return math.inf if math.isnan(value) else -value if metric in MORE_IS_BETTER else value


def over_key(content: Row, key: str, metric: str, number_: int) -> Chart | None:
    """A metric of each trial over one parameter, with a line at the unchanged scenario."""
    trials = [t for t in content["trials"] if key in t["values"] and math.isfinite(number(t["means"][metric]))]
    if not trials:
        return None
    start = number(content["trials"][0]["means"][metric])
    at, ticks = places([trial["values"][key] for trial in trials])
    y, divisor = axis(metric, [*(trial["means"][metric] for trial in trials), start], zero=False)
    chosen = [choice["trial"]["values"] for choice in content["choices"]]
    kinds = defaultdict[str, list[int]](list)
    for k, trial in enumerate(trials):
        kind = "best" if trial["values"] in chosen else "stopped early" if trial["pruned"] else "tried"
        kinds[kind].append(k)
    series = [
        ChartSeries(
            kind,
            [at[k] for k in kinds[kind]],
            [trials[k]["means"][metric] / divisor for k in kinds[kind]],
            colour,
            [_point(trials[k]) for k in kinds[kind]],
        )
        for colour, kind in enumerate(("tried", "best", "stopped early"))
        if kinds[kind]
    ]
    series.append(ChartSeries("as it is", [min(at), max(at)], [start / divisor] * 2, "front"))
    scale = content["vary"][key]
    log = isinstance(scale, Mapping) and scale.get("scale") == "log"
    best = min(trials, key=lambda trial: _order(metric, trial))
    return Chart(
        f"over-{number_}",
        "scatter",
        f"{_begin(name(metric))} over {key.rpartition('.')[2]}",
        f"{len(trials)} trials; the best at {_text(best['values'][key])}: {shown(metric, best['means'][metric])}",
        Axis(key, zero=False, ticks=ticks, log=log and not ticks),
        y,
        tuple(series),
        ("trial", name(metric)),
        tuple((_point(trial), shown(metric, trial["means"][metric])) for trial in trials),
        note="A point is a trial; other parameters differ, too. Line: the scenario as it is. Means over the "
        "search's own seeds, on which the best trial looks better than on the unseen ones of the figures above.",
    )


def _fresh(content: Row, metrics: Sequence[str]) -> str:
    head = ["point", *(name(metric) for metric in metrics), *(f"{name(metric)}, ratio" for metric in metrics), "p"]
    rows = [["as it is", *(shown(metric, content["start"][metric]) for metric in metrics), *("" for _ in metrics), ""]]
    for choice in (choice for choice in content["choices"] if choice["trial"]["values"]):
        ratios = [f"x {digits(number(choice['ratios'][m]['mean']))}\n{_interval(choice['ratios'][m])}" for m in metrics]
        least = min((p for m in metrics if (p := choice["p"][m]) is not None), default=None)
        rows.append([_point(choice["trial"]), *(shown(m, choice["means"][m]) for m in metrics), *ratios, _p(least)])
    return table("The best points against the scenario as it is, seed by seed; p after Holm", head, rows)


def _trials(content: Row, metrics: Sequence[str]) -> str:
    trials = sorted(enumerate(content["trials"]), key=lambda numbered: _order(metrics[0], numbered[1]))
    keys = list(content["vary"])
    rows = [
        [
            "as it is" if not trial["values"] else f"trial {number}",
            *(shown(metric, trial["means"][metric]) for metric in metrics),
            *(_text(trial["values"].get(key, "-")) for key in keys),
            f"{trial['seeds']}{' (stopped)' if trial['pruned'] else ''}",
        ]
        for number, trial in trials[:ROWS_MOST]
    ]
    head = ("", *map(name, metrics), *(key.removeprefix("policy.") for key in keys), "seeds")
    note = "Of a trial that was stopped early: what it would have had on all seeds, by its ratio to a better one."
    return table("Means over the seeds of the trials", head, rows) + f'<p class="note">{note}</p>'


def _point(trial: Row) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {_text(value)}" for key, value in trial["values"].items()) or "as it is"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _range(allowed: Any) -> str:
    if isinstance(allowed, Mapping):
        return f"{_text(allowed['low'])} to {_text(allowed['high'])}{' (log)' if allowed['scale'] == 'log' else ''}"
    return ", ".join(map(str, allowed))


def _interval(ratio: Row) -> str:
    low, high = number(ratio["low"]), number(ratio["high"])
    return f"95 % interval {digits(low)} to {digits(high)}" if math.isfinite(low) and low < high else "exact"


def _p(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]
