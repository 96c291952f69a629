"""The HTML around what a report shows: one self-contained file, its sections and figures."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from equipoise.study.report.detail import Detail
from equipoise.study.report.tables import table

TEMPLATES = Path(__file__).resolve().parent / "templates"


@dataclass(frozen=True)
class Made:
    """A written report, with notes on omitted parts and its first sentence."""

    path: Path
    size_bytes: int
    notes: tuple[str, ...]
    answer: str = ""


def composed(
    title: str,
    sections: Sequence[tuple[str, str, str]],
    charts: Sequence[Mapping[str, Any]],
    foot: str,
    details: Sequence[Detail] = (),
    refresh_s: float | None = None,
) -> str:
    """A page of `sections`: (identifier, name in the navigation, HTML) each."""
    data = {"charts": list(charts), "runs": [d.header for d in details]}
    return template("report.html").substitute(
        title=escape(f"{title}: Equipoise report"),
        refresh="" if refresh_s is None else f'<meta http-equiv="refresh" content="{math.ceil(refresh_s)}">\n',
        style=_text("report.css"),
        nav="".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in sections if name),
        main="\n".join(content for _, _, content in sections),
        foot=escape(foot),
        data=embedded(data),
        blobs="\n".join(_blob(key, content) for detail in details for key, content in detail.blobs),
        script="\n".join(_text(name) for name in ("charts.js", "gantt.js", "page.js")),
    )


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8").strip()


def template(name: str) -> Template:
    """A template of the page, by its file's name."""
    return Template(_text(name) + "\n")


def embedded(data: Any) -> str:
    """JSON escaped so that no text in it ends the surrounding script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _blob(key: str, content: bytes) -> str:
    return f'<script type="text/plain" id="{escape(key)}">{base64.b64encode(content).decode()}</script>'


def section(key: str, title: str, content: str) -> str:
    """A landmark of the page with its heading."""
    head = f'<h2 id="{key}-title">{escape(title)}</h2>'
    return f'<section id="{key}" aria-labelledby="{key}-title">{head}{content}</section>'


def figure(chart: Mapping[str, Any]) -> str:
    """A place for a chart (`Chart.plain`), with its numbers as a table for accessibility."""
    note = f'<span class="note">{escape(chart["note"])}</span>' if chart["note"] else ""
    numbers = table(chart["title"], chart["header"], chart["rows"]) if chart["rows"] else ""
    return (
        f'<figure class="chart" id="chart-{escape(chart["id"])}"><figcaption><strong>{escape(chart["title"])}</strong>'
        f'<span class="tag">simulated</span>{note}</figcaption>'
        f'<div class="plot"><p class="note">{escape(chart["text"])}</p></div>'
        f'<details class="numbers"><summary>The numbers as a table</summary>{numbers}</details></figure>'
    )
