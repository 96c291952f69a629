"""Shared parts of the pages of answers: names and units of metrics, the first screen, points on axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from equipoise.sim.scenario.tree import InputError
from equipoise.study.display import LABELS, show
from equipoise.study.folders import read_json
from equipoise.study.report.chart import Axis, Chart, time_unit
from equipoise.study.report.first import Figure, figures_html
from equipoise.study.report.page import figure
from equipoise.study.report.study import in_order

ROWS_MOST = 400


def read_answer(path: Any, keys: Sequence[str]) -> Mapping[str, Any]:
    """The file of an answer. Raises InputError when it is damaged or of another version."""
    content: Mapping[str, Any] = read_json(path)
    if lost := [key for key in keys if key not in content]:
        raise InputError([f"{path}: is damaged, or of another version: it has no {lost[0]!r}"])
    return content


def name(metric: str) -> str:
    """Name of a metric in words."""
    return LABELS.get(metric, metric).strip()


def unit(metric: str, values: Sequence[float]) -> tuple[str, float]:
    """(unit, divisor) for values of a metric."""
    known = [abs(value) for value in values if math.isfinite(value)]
    if metric.endswith("_s") and not metric.endswith("_per_s"):
        found = time_unit(max(known, default=0.0))
        return found.name, found.seconds
    for suffix, (text, divisor) in {
        "_usd_per_h": ("USD/h", 1.0),
        "_usd": ("USD", 1.0),
        "_ratio": ("%", 0.01),
        "_j": ("kWh", 3.6e6),
        "_w": ("kW", 1e3),
        "_kg": ("kg", 1.0),
    }.items():
        if metric.endswith(suffix):
            return text, divisor
    return "", 1.0


def axis(metric: str, values: Sequence[float], *, zero: bool = True) -> tuple[Axis, float]:
    """(an axis of a metric, the divisor of its values)."""
    text, divisor = unit(metric, values)
    return Axis(f"{name(metric)} ({text})" if text else name(metric), zero=zero), divisor


def places(values: Sequence[Any]) -> tuple[list[float], tuple[tuple[float, str], ...]]:
    """(place of each value on an axis, ticks): numbers where they are, texts one after the other."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], ()
    texts = sorted({str(value) for value in values}, key=in_order)
    ticks = tuple((float(k), text) for k, text in enumerate(texts))
    return [float(texts.index(str(value))) for value in values], ticks


def answer_html(
    what: str,
    lead: str,
    figures: Sequence[Figure],
    picture: Chart | None,
    because: Sequence[str],
    context: Sequence[tuple[str, str]],
) -> str:
    """The first screen: one sentence, figures, one picture, assumptions, and the question."""
    drawn = figure(picture) if picture is not None else ""
    told = "".join(f'<p class="because">{escape(text)}</p>' for text in because)
    asked = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(text)}</dd></div>" for key, text in context if text)
    return (
        f'<section id="answer" aria-label="The answer"><h1>{escape(what)}</h1><p class="answer">{escape(lead)}</p>'
        f'{figures_html(figures)}<div class="first"><div>{drawn}{told}</div>'
        f'<div><dl class="context">{asked}</dl></div></div></section>'
    )


def shown(metric: str, value: float | None) -> str:
    """A value from JSON in its unit; "-" when it is not known."""
    return show(metric, math.nan if value is None else value)
