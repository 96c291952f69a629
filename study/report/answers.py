"""The page of an answer of `size`, `tune` or `compare`: sentences, the first chart, what was asked, then tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from equipoise.base.files import write_whole
from equipoise.sim.scenario.tree import InputError
from equipoise.study.folders import DECISION, SIZE, TUNE, read_json
from equipoise.study.report.html import Made, composed, figure, section
from equipoise.study.report.tables import table

ROWS_MOST = 400


def answer_report(folder: str | Path, out: str | Path | None = None) -> Made | None:
    """Write the page of the answer in a folder; default: `report.html` there. None where there is no answer.

    Raises InputError when the answer is damaged, OSError when the page cannot be written.
    """
    file = next((path for name in (SIZE, TUNE, DECISION) if (path := Path(folder) / name).is_file()), None)
    if file is None:
        return None
    target = Path(folder) / "report.html" if out is None else Path(out)
    try:
        page = read_json(file)["page"]
        content, answer = answer_page(page).encode(), str(page["answer"][0])
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError([f"{file}: is damaged, or of another version: it has no {error}"]) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content)
    return Made(target, len(content), (), answer)


def answer_page(page: Mapping[str, Any]) -> str:
    """The page of findings (`study.findings.Findings.plain`)."""
    title, charts = str(page["title"]), page["charts"]
    lead, *because = page["answer"]
    parts = [_first(title, lead, [*because, *page["remarks"]], page["asked"], charts[:1])]
    if charts[1:]:
        drawn = "".join(map(figure, charts[1:]))
        parts.append(("charts", "Charts", section("charts", "Charts", f'<div class="pair">{drawn}</div>')))
    for number, one in enumerate(page["tables"]):
        head, *rows = one["rows"]
        cut = f" The first {ROWS_MOST} of {len(rows)}." if len(rows) > ROWS_MOST else ""
        name = str(one["title"] or "All that was run")
        shown = [[_whole(text) for text in row] for row in rows[:ROWS_MOST]]
        content = table(f"{name}.{cut}", head, shown, "wraps" if any(one["right"]) else "texts")
        parts.append((f"table-{number}", name, section(f"table-{number}", name, content)))
    return composed(title, parts, charts, f"Equipoise report: {title}. This file asks nothing from any network.")


def _whole(text: str) -> str:
    """A short text on one line: no number without its unit."""
    return text.replace(" ", "\u00a0") if len(text) <= 12 else text


def _first(
    title: str, lead: str, because: Sequence[str], asked: Sequence[Sequence[str]], charts: Sequence[Mapping[str, Any]]
) -> tuple[str, str, str]:
    """The first screen."""
    told = "".join(f'<p class="because">{escape(text)}</p>' for text in because)
    facts = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(text)}</dd></div>" for key, text in asked)
    return (
        "answer",
        "",
        f'<section id="answer" aria-label="The answer"><h1>{escape(title)}</h1><p class="answer">{escape(lead)}</p>'
        f'<div class="first"><div>{"".join(map(figure, charts))}{told}</div>'
        f'<div><dl class="context">{facts}</dl></div></div></section>',
    )
