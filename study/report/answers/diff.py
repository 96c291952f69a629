"""The page of `equipoise diff`: two runs side by side, with their differences in inputs and results."""

from __future__ import annotations

import math
from pathlib import Path

from equipoise.base.files import write_whole
from equipoise.study.display import digits, show
from equipoise.study.questions.difference import Difference
from equipoise.study.report.answers.parts import ROWS_MOST, answer_html, name
from equipoise.study.report.charts.study import shares_of_time
from equipoise.study.report.first import Figure
from equipoise.study.report.page import Made, composed, section
from equipoise.study.report.tables import table

_STRIP = ("makespan_s", "completion_mean_s", "queueing_mean_s", "goodput_ratio", "cost_usd", "energy_j")
_ROWS_ALONE = 10
"""Rows above which a table is split into two of half the height."""
_NAMED = 3
"""Most inputs named on the first screen."""


def difference_page(found: Difference, first: str, second: str, out: Path) -> Made:
    """Write the page of the differences of two runs with these names. Raises OSError."""
    content = difference_html(found, first, second).encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, content)
    return Made(out, len(content), ())


def difference_html(found: Difference, first: str, second: str) -> str:
    """The page as text; ratios refer to the first run."""
    value = {metric: (a, b) for metric, a, b in found.metrics}
    main = "completion_mean_s" if value.get("jobs", (1.0, 1.0)) != (1.0, 1.0) else "makespan_s"
    figures = [
        Figure(_capital(name(metric)), show(metric, b), f"{first}: {show(metric, a)}{_times(a, b)}")
        for metric in _STRIP
        for a, b in [value.get(metric, (math.nan, math.nan))]
        if math.isfinite(b) and (a, b) != (0.0, 0.0)
    ]

    def share(metric: str, run: str) -> float:
        """A metric of one of the two runs; 0 where it is not known."""
        number = value.get(metric, (0.0, 0.0))[run != first]
        return number if math.isfinite(number) else 0.0

    names = [first, second if second != first else f"{second} again"]
    late = [share("idle_late_ratio", run) for run in names]
    picture = shares_of_time("run", names, share, late, "")
    differ = [key for key, _, _ in found.readable()]
    more = f" and {len(differ) - _NAMED} more" if len(differ) > _NAMED else ""
    inputs = f"{', '.join(differ[:_NAMED])}{more}" if differ else "nothing"
    sections = [
        (
            "answer",
            "",
            answer_html(
                "Two runs side by side",
                _lead(main, *value.get(main, (math.nan, math.nan)), first, second),
                figures,
                picture,
                [],
                [("First", first), ("Second", second), ("What differs", inputs)],
            ),
        ),
        ("metrics", "Results", section("metrics", "Results of both", _metrics(found, names))),
        ("inputs", "What differs", section("inputs", "What differs between them", _inputs(found, names))),
    ]
    return composed(
        f"{first} and {second}",
        sections,
        [picture] if picture is not None else [],
        f"Equipoise report of two runs, {first} and {second}. This file asks nothing from any network.",
    )


def _lead(metric: str, a: float, b: float, first: str, second: str) -> str:
    if not (math.isfinite(a) and math.isfinite(b)):
        return f"The {name(metric)} of one of them is not known."
    if a == b:
        return f"Both have the same {name(metric)}, {show(metric, b)}."
    now, before = show(metric, b), show(metric, a)
    return f"{_capital(name(metric))} is {now} in {second}, {before} in {first}{_times(a, b)}."


def _times(a: float, b: float) -> str:
    return f" (x {digits(b / a)})" if a > 0.0 and math.isfinite(b) else ""


def _inputs(found: Difference, names: list[str]) -> str:
    if not found.inputs:
        return "<p>Scenario, policy, seed, code and versions are equal.</p>"
    rows = found.readable()
    cut = f" The first {ROWS_MOST} of {len(rows)}." if len(rows) > ROWS_MOST else ""
    return table(
        f"Facts of the runs, and keys of the scenario with defaults filled in.{cut}",
        ("key", *names),
        rows[:ROWS_MOST],
        "texts",
    )


def _metrics(found: Difference, names: list[str]) -> str:
    rows, equal = [], []
    for metric, a, b in found.metrics:
        if math.isnan(a) and math.isnan(b):
            continue
        if a == b:
            equal.append(name(metric))
        else:
            ratio = f"x {digits(b / a)}" if a > 0.0 and math.isfinite(b) else "-"
            rows.append((name(metric), show(metric, b), show(metric, a), ratio))
    same = f'<p class="note">Equal: {", ".join(dict.fromkeys(equal))}.</p>' if equal else ""
    if not rows:
        return f"<p>All results are equal.</p>{same}"
    head, caption = ("metric", names[1], names[0], "ratio"), f"Results that differ; ratios are to {names[0]}"
    half = (len(rows) + 1) // 2 if len(rows) > _ROWS_ALONE else len(rows)
    parts = [table(caption, head, part) for part in (rows[:half], rows[half:]) if part]
    return f'<div class="pair">{"".join(parts)}</div>{same}'


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
