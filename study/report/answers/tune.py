"""The page of `equipoise tune`: the best point, also on unseen seeds, its flatness, and the importance of
parameters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

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
from equipoise.study.report.words import FLAT

KEYS = ("scenario", "policy", "vary", "better", "trials", "choices", "start", "notes")
GROUPS_MOST = 5
"""Most ranges of a parameter's values for its importance."""
DISTINCT_MOST = 8
"""Most distinct values for which each is its own group."""

Row = Mapping[str, Any]


def tune_page(folder: Path) -> str:
    """The page of the search in a folder. Raises InputError when its file is damaged."""
    content = read_answer(folder / TUNE, KEYS)
    metrics = list(content["start"])
    matters = importance(content["trials"], metrics[0])
    keys = [key for key, _ in matters] or list(content["vary"])
    over = [chart for k, key in enumerate(keys) if (chart := over_key(content, key, metrics[0], k)) is not None]
    trade = objectives(content, metrics) if len(metrics) > 1 else None
    charts = [chart for chart in (trade, *over) if chart is not None]
    title = str(content["scenario"])
    drawn = "".join(figure(chart) for chart in charts[1:])
    rest = f'<div class="pair"><div>{_matters(matters)}</div>{drawn}</div>'
    sections = [
        ("answer", "", _answer(content, metrics, matters, charts[0] if charts else None)),
        ("fresh", "Unseen seeds", section("fresh", "On seeds that no trial has seen", _fresh(content, metrics))),
        ("matters", "Parameters", section("matters", "What matters", rest)),
        ("trials", "Trials", section("trials", "All trials, the best first", _trials(content, metrics))),
    ]
    return composed(
        title, sections, charts, f"Equipoise report of the tuning of {title}. This file asks nothing from any network."
    )


def _answer(content: Row, metrics: Sequence[str], matters: Sequence[tuple[str, float]], picture: Chart | None) -> str:
    metric, trials, choices = metrics[0], content["trials"], content["choices"]
    best = min(choices, key=lambda choice: _order(metric, choice["trial"]))
    ratio = best["ratios"][metric]
    where = _point(best["trial"])
    if content["better"]:
        lead = f"{where}: {name(metric)} x {digits(ratio['mean'])} of what it is now, on unseen seeds."
    elif not best["trial"]["values"]:
        now = shown(metric, best["means"][metric])
        lead = f"Nothing was found: no trial beats the scenario as it is ({name(metric)} {now})."
    else:
        lead = f"Nothing was found that is significantly better than the scenario as it is; the best trial: {where}."
    near = [trial for trial in trials if _near(metric, trial, best["trial"])]
    figures = [
        Figure(
            f"{_begin(name(metric))}, unseen seeds",
            shown(metric, best["means"][metric]),
            f"as it is: {shown(metric, content['start'][metric])}",
        ),
        Figure("Ratio on unseen seeds", f"x {digits(ratio['mean'])}", _interval(ratio)),
        *(
            [Figure("p-value", _p(best["p"][metric]), f"that it is no better; significant below {SURE:g}")]
            if best["p"][metric] is not None
            else []
        ),
        Figure("Trials", f"{len(trials)}", f"{sum(trial['pruned'] for trial in trials)} stopped early"),
        Figure(f"Within {100 * FLAT:g} % of the best", f"{len(near)}", "trials, the best included"),
    ]
    because = list(_flat(metric, near, content))
    if matters:
        listed = ", ".join(f"{key} {100 * share:.0f} %" for key, share in matters)
        because.append(f"Share of the differences between trials that goes with one parameter alone: {listed}.")
    context = [
        ("Policy", str(content["policy"])),
        ("Minimised" if metric not in MORE_IS_BETTER else "Maximised", ", ".join(map(name, metrics))),
        ("Varied", "; ".join(f"{key}: {_range(allowed)}" for key, allowed in content["vary"].items())),
        ("Seeds", f"{trials[0]['seeds']} of each trial, {ratio['n']} others for the figures above"),
        ("Notes", " ".join(f"{_begin(note)}." for note in content["notes"])),
    ]
    return answer_html(f"Tuning: {content['scenario']}", lead, figures, picture, because, context)


def _flat(metric: str, near: Sequence[Row], content: Row) -> Iterator[str]:
    """Range of each parameter in which trials are about as good as the best."""
    if len(near) < 2:
        yield f"No other trial is within {100 * FLAT:g} % of the best: it is isolated, or was found late."
        return
    parts = []
    for key in content["vary"]:
        values = [trial["values"][key] for trial in near if key in trial["values"]]
        if values and all(isinstance(value, int | float) for value in values):
            ends = dict.fromkeys((_text(min(values)), _text(max(values))))
            parts.append(f"{key} {'from ' * (len(ends) > 1)}{' to '.join(ends)}")
        elif values:
            parts.append(f"{key} {' or '.join(sorted({str(value) for value in values}))}")
    yield f"{len(near)} trials are within {100 * FLAT:g} % of the best: {', '.join(parts)}."


def _near(metric: str, trial: Row, best: Row) -> bool:
    mine, top = number(trial["means"][metric]), number(best["means"][metric])
    return math.isfinite(mine) and abs(mine - top) <= FLAT * abs(top)


def _order(metric: str, trial: Row) -> float:
    """Key to sort trials by, the best first; failed ones last."""
    value = number(trial["means"][metric])
    return math.inf if math.isnan(value) else -value if metric in MORE_IS_BETTER else value


def importance(trials: Sequence[Row], metric: str) -> list[tuple[str, float]]:
    """(parameter, share of the variance of a metric over the trials that it explains alone), the largest first.

    Numbers are divided into ranges of equally many trials. The share is Kelley's epsilon squared (1935,
    PNAS 21:554), which is 0 in the mean where a parameter does nothing. Trials are denser where results are good, so
    this holds for this search only. [] with too few trials.
    """
    done = [trial for trial in trials if trial["values"] and math.isfinite(number(trial["means"][metric]))]
    y = np.array([number(trial["means"][metric]) for trial in done])
    if len(done) < 8 or not np.ptp(y) > 0.0:
        return []
    found = []
    for key in done[0]["values"]:
        groups = _groups([trial["values"][key] for trial in done])
        number_of = len(set(groups))
        if number_of < 2 or len(done) <= number_of:
            continue
        by = [y[np.array(groups) == group] for group in sorted(set(groups))]
        total = float(((y - y.mean()) ** 2).sum())
        within = math.fsum(float(((of - of.mean()) ** 2).sum()) for of in by)
        found.append((key, max(0.0, 1.0 - (within / (len(y) - number_of)) / (total / (len(y) - 1)))))
    return sorted(found, key=lambda one: -one[1])


def _groups(values: Sequence[Any]) -> list[int]:
    """The group of each trial: of a choice its value, of a number its range."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        texts = sorted({str(value) for value in values})
        return [texts.index(str(value)) for value in values]
    if len(values) >= 2 * len(distinct := sorted(set(values))) and len(distinct) <= DISTINCT_MOST:
        return [distinct.index(value) for value in values]
    many = min(GROUPS_MOST, max(2, len(values) // 6))
    edges = np.unique(np.quantile(np.asarray(values, dtype=float), np.linspace(0, 1, many + 1)[1:-1]))
    return np.searchsorted(edges, np.asarray(values, dtype=float), side="right").tolist()  # type: ignore[no-any-return]


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


def _matters(found: Sequence[tuple[str, float]]) -> str:
    if not found:
        return '<p class="note">Too few trials to tell which parameter matters.</p>'
    rows = [(key, f"{100 * share:.0f} %") for key, share in found]
    note = (
        "Share of the variance over the trials that goes with ranges of this parameter alone (epsilon squared, "
        "Kelley 1935). Trials lie closer where results are good, so it describes this search only; "
        "shares may add up to more than 100 %, because the search changes parameters together."
    )
    return table("Importance of the parameters", ("parameter", "share"), rows) + f'<p class="note">{escape(note)}</p>'


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
