"""The page of `equipoise size`: the answer, the sizes against the target, changes that would alter their order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from equipoise.base.json_values import number
from equipoise.sim.scenario.units import format_scaled
from equipoise.study.folders import SIZE
from equipoise.study.questions.ranking import TITLES
from equipoise.study.questions.targets import Target, read_target
from equipoise.study.report.answers.parts import ROWS_MOST, answer_html, axis, name, read_answer, shown
from equipoise.study.report.chart import Axis, Chart, ChartSeries
from equipoise.study.report.charts.study import front
from equipoise.study.report.first import Figure
from equipoise.study.report.page import composed, figure, section
from equipoise.study.report.tables import table

KEYS = (
    "scenario",
    "question",
    "said",
    "met",
    "nodes",
    "values",
    "ranking",
    "ranking_changes",
    "not_possible",
    "sizes_excluded",
)
BARS_MOST = 20
_STRIP = {
    "makespan_s": "Time",
    "cost_usd": "Cost",
    "price_usd_per_h": "Cost of an hour",
    "power_w": "Power",
    "mfu_ratio": "MFU",
    "carbon_kg": "CO2",
}
_BEST = {"nodes": "fewest nodes", "price": "lowest price of an hour", "cost": "lowest cost"}

Row = Mapping[str, Any]


def size_page(folder: Path) -> str:
    """The page of the answer in a folder. Raises InputError when its file is damaged."""
    content = read_answer(folder / SIZE, KEYS)
    targets = [read_target(text) for text in content["question"]["targets"]]
    rows: Sequence[Row] = content["ranking"]
    first = against_target(_by_value(rows, content["question"]["vary"]), targets)
    second = against_cost(rows, targets[0])
    charts = [chart for chart in (first, second) if chart is not None]
    title = str(content["scenario"])
    sections = [
        ("answer", "", _answer(content, targets, charts[0] if charts else None)),
        ("sizes", "Sizes", section("sizes", "The sizes that were run, the best first", _sizes(rows, targets))),
    ]
    if content["ranking_changes"]:
        told = _changes(rows[0], content["ranking_changes"])
        sections.append(("changes", "What would change it", section("changes", "What would change the ranking", told)))
    if second is not None:
        sections.append(("cost", "Cost", section("cost", "What it takes", figure(second))))
    if left := _left(content):
        sections.append(("left", "Not run", section("left", "What was not run", left)))
    return composed(
        title, sections, charts, f"Equipoise report of the size of {title}. This file asks nothing from any network."
    )


def _answer(content: Row, targets: Sequence[Target], picture: Chart | None) -> str:
    asked = content["question"]
    best = content["ranking"][0] if content["ranking"] else {}
    _, *because = (str(line).strip() for line in content["said"])
    because = [f"{text[:1].upper()}{text[1:]}." for text in because[1 if content["met"] else 0 :]]  # the strip has it
    figures = [Figure("GPUs", f"{best['gpus']:,}", f"{content['nodes']} nodes")] if best else []
    figures += [
        Figure(
            _asked(target), target.measure.show(best[target.measure.key]), f"limit {target.measure.show(target.limit)}"
        )
        for target in targets
        if best.get(target.measure.key) is not None
    ]
    asked_keys = {target.measure.key for target in targets}
    figures += [
        Figure(label, _cell(key, best[key]))
        for key, label in _STRIP.items()
        if best.get(key) is not None and key not in asked_keys
    ]
    context = [
        ("Cluster", str(content.get("cluster", ""))),
        ("Workload", str(content.get("workload", ""))),
        ("Targets", ", ".join(asked["targets"])),
        ("Varied", "; ".join(f"{key}: {_values(values)}" for key, values in asked["vary"].items())),
        ("Best is", _BEST[asked["objective"]]),
        ("Policy", str(asked["policy"])),
        ("Runs", f"{asked['seeds']} of each size; {100 * asked['confidence']:g} % of them must meet the targets"),
        ("Changed first", ", ".join(asked["changed"])),
    ]
    return answer_html(f"Size: {content['scenario']}", _lead(content, targets), figures[:6], picture, because, context)


def _lead(content: Row, targets: Sequence[Target]) -> str:
    """The answer as one sentence; the values where more than a number of nodes was chosen."""
    wanted = " and ".join(f"{_asked(t).lower()} {'≤' if t.at_most else '≥'} {t.measure.show(t.limit)}" for t in targets)
    values = content["values"] or {}
    named = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in values.items())
    if not content["met"]:
        return f"No size meets {wanted}" + (f"; closest is {named}." if named else ".")
    nodes = content["nodes"]
    counted = [key for key in values if not key.endswith(".count")]
    meet = "1 node meets" if nodes == 1 else f"{nodes} nodes meet"
    return f"{meet} {wanted}" + (f": {named}." if counted or len(values) > 1 else ".")


def _by_value(rows: Sequence[Row], vary: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
    """The sizes by value of the varied key; with several keys, by rank."""
    if len(vary) != 1:
        return rows
    ((key, values),) = vary.items()
    place = {f"{key.rpartition('.')[2]} {value}": k for k, value in enumerate(values)}
    return sorted(rows, key=lambda row: place.get(row["values"], len(place)))


def _asked(target: Target) -> str:
    """The limited result of a target, as a heading."""
    key, bracket, of = target.measure.key.partition("[")
    text = name(key) + (f" [{of}" if bracket else "")
    return f"{text[:1].upper()}{text[1:]}"


def _values(values: Sequence[Any]) -> str:
    texts = [str(value) for value in values]
    return ", ".join(texts) if len(texts) <= 8 else f"{', '.join(texts[:3])} to {texts[-1]} ({len(texts)} values)"


def against_target(rows: Sequence[Row], targets: Sequence[Target]) -> Chart | None:
    """The result that the first target limits, by size, with the range of its runs; a line at the limit."""
    target, key = targets[0], targets[0].measure.key
    known = [row for row in rows if row.get(key) is not None and math.isfinite(row[key])][:BARS_MOST]
    if not known:
        return None
    best = min(range(len(known)), key=lambda k: known[k].get("rank", k))
    ends = [row["results"].get(key) or [row[key]] for row in known]
    x, divisor = axis(key, [*(value for end in ends for value in end), target.limit])
    at = [float(k) for k in range(len(known))]
    labels = [target.measure.show(row[key]) + _misses(row, targets) for row in known]
    told = tuple((row["values"], text) for row, text in zip(known, labels, strict=True))
    few, many = min(map(len, ends)), max(map(len, ends))
    runs = f"{many} runs" + (f" (of sizes that miss only {few} or more)" if few < many else "")
    spread = f"Mean of {runs}; thin lines: lowest to highest." if many > 1 else "One run each."
    return Chart(
        "target",
        "ranked",
        f"{_asked(target)} by size",
        "; ".join(f"{a}: {b}" for a, b in told),
        x,
        Axis("", ticks=tuple((k, row["values"]) for k, row in zip(at, known, strict=True))),
        (
            ChartSeries("mean", at, [row[key] / divisor for row in known], best, labels),
            ChartSeries("low", at, [min(end) / divisor for end in ends]),
            ChartSeries("high", at, [max(end) / divisor for end in ends]),
            ChartSeries("limit", [0.0], [target.limit / divisor], colour="front"),
        ),
        ("size", _asked(target)),
        told,
        f"{spread} Dashed: the limit. Blue: the best size."
        + (f" The first {BARS_MOST}." if len(rows) > BARS_MOST else ""),
    )


def _misses(row: Row, targets: Sequence[Target]) -> str:
    """Missed targets of a size, after its result: those missed in the mean, or the number of runs that miss."""
    if row["meets"]:
        return ""
    missed = [target for target in targets if not _met(target, row[target.measure.key])]
    if missed:
        told = [_beyond(t) if t is targets[0] else f"misses {_asked(t).lower()}" for t in missed]
        return f" ({', '.join(told)})"
    runs = list(zip(*(row["results"][target.measure.key] for target in targets), strict=True))
    met = sum(all(map(_met, targets, values)) for values in runs)
    return f" ({met} of {len(runs)} runs meet the targets)"


def _beyond(target: Target) -> str:
    return "over the limit" if target.at_most else "below the limit"


def _met(target: Target, value: float | None) -> bool:
    return target.met({target.measure.key: number(value)})


def against_cost(rows: Sequence[Row], target: Target) -> Chart | None:
    """The limited result, if it is a time, else the makespan, against cost, with the Pareto front.

    None where fewer than two sizes have both.
    """
    key = target.measure.key.partition("[")[0]
    key = target.measure.key if key.endswith("_s") and target.at_most else "makespan_s"
    title = _asked(target) if key == target.measure.key else "Time"
    known = [row for row in rows if row.get("cost_usd") and row.get(key) is not None]
    if len(known) < 2:
        return None
    cost, time_s = ([float(row[of]) for row in known] for of in ("cost_usd", key))
    y, divisor = axis(key, time_s, zero=False)
    best = front(cost, time_s)
    parts = [
        (label, [k for k, row in enumerate(known) if row["meets"] == meets])
        for label, meets in (("meets the targets", True), ("misses", False))
    ]
    series = [
        ChartSeries(
            label, [cost[k] for k in of], [time_s[k] / divisor for k in of], colour, [known[k]["values"] for k in of]
        )
        for colour, (label, of) in enumerate(parts)
        if of
    ]
    series.append(ChartSeries("front", [cost[k] for k in best], [time_s[k] / divisor for k in best], "front"))
    told = tuple((known[k]["values"], shown("cost_usd", cost[k]), shown("makespan_s", time_s[k])) for k in best)
    return Chart(
        "cost",
        "scatter",
        f"{title} against cost",
        "Pareto front: " + "; ".join(", ".join(row) for row in told[:5]),
        Axis("cost (USD)", zero=False),
        y,
        tuple(series),
        ("size", "cost", title.lower()),
        told,
        "Line: Pareto front.",
    )


def _cell(key: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if key == "meets":
        return "yes" if value else "no"
    if key == "gpus":
        return f"{value:,}"
    if key == "chance":
        return f"{100 * value:.0f} %"
    return format_scaled(value, "W") if key == "power_w" else shown("_usd" if key == "price_usd_per_h" else key, value)


def _sizes(rows: Sequence[Row], targets: Sequence[Target]) -> str:
    if not rows:
        return '<p class="note">No size was run.</p>'
    columns = {key: title for key, title in TITLES.items() if title}
    asked = {t.measure.key: t for t in targets if t.measure.key not in columns}
    titles = {key: columns[key] for key in ("values", "meets")}
    titles |= {key: _asked(target).lower() for key, target in asked.items()} | columns
    keys = [key for key in titles if any(row.get(key) not in (None, "") for row in rows)]
    body = [
        [asked[key].measure.show(number(row[key])) if key in asked else _cell(key, row[key]) for key in keys]
        for row in rows[:ROWS_MOST]
    ]
    cut = f" The first {ROWS_MOST} of {len(rows)}." if len(rows) > ROWS_MOST else ""
    return table(f"Means over the runs of a size.{cut}", [titles[key] for key in keys], body)


def _changes(first: Row, found: Sequence[Row]) -> str:
    rows = []
    for change in found:
        rate, mfu = number(change["rate"]), number(change["mfu_ratio"])
        faster = "-" if math.isnan(rate) else f"{100 * (rate - 1):.1f} %"
        needed = "-" if math.isnan(mfu) else shown("mfu_ratio", mfu) + (" (beyond the peak)" if mfu > 1 else "")
        rows.append(
            (
                change["values"],
                f"{100 * (1 - change['price']):.1f} %",
                shown("_usd", number(change["price_usd_per_gpu_h"])),
                faster,
                needed,
            )
        )
    head = ("size", "cheaper by the hour by", "a GPU-hour then", "or faster by", "MFU then")
    return table(f"Each alone would put it level with {first['values']}, the first", head, rows)


def _left(content: Row) -> str:
    excluded, impossible = content["sizes_excluded"], content["not_possible"]
    told = [f"{excluded} sizes were excluded by lower bounds, price or power." if excluded else ""]
    told += (
        []
        if content["question"]["rank"]
        else ["The search ended at the first size that meets the targets; --rank runs all."]
    )
    lines = "".join(f"<p>{escape(text)}</p>" for text in told if text)
    listed = "".join(f"<li>{escape(str(text))}</li>" for text in impossible[:ROWS_MOST])
    return lines + (f"<p>Not possible:</p><ul>{listed}</ul>" if listed else "")
