"""Definitions of metrics, read from `docs/metrics.md` and from the pages of features."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from itertools import groupby

from equipoise.base.sources import root
from equipoise.sim.discover import files

PAGE = root() / "study" / "report" / "templates" / "metrics.md"
"""The page of metrics; in a checkout a link to `docs`."""


@cache
def metrics_page() -> str:
    """The text of the pages. Raises FileNotFoundError when the installation is incomplete."""
    return "\n".join(path.read_text(encoding="utf-8") for path in (PAGE, *files("metrics.md")))


@cache
def definitions() -> dict[str, str]:
    """Definition of each metric and comparison value, as plain text, by name."""
    found: dict[str, str] = {}
    for line in metrics_page().splitlines():
        cells = _cells(line)
        if len(cells) != 2 or not cells[0].startswith("`"):
            continue
        text = _plain(cells[1])
        for name in _names(re.findall(r"`([^`]+)`", cells[0])):
            found.setdefault(name, text)
    return found


def _names(shown: Sequence[str]) -> Iterator[str]:
    """Whole names: "completion_p50_s", "_p95_s" is short for completion_p95_s."""
    first = shown[0]
    for name in shown:
        if name.startswith("_"):
            stem = re.sub(r"_[a-z]*\d+_s$", "", first)
            yield stem + name
        else:
            yield name


def _cells(line: str) -> list[str]:
    if not line.startswith("|"):
        return []
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _plain(text: str) -> str:
    return re.sub(r"\*([^*\s][^*]*)\*", r"\1", text).replace("`", "")


def page_html(level: int = 3) -> str:
    """The page as HTML; its headings begin at `level`.

    Supports the Markdown of the page: headings, paragraphs, tables, lists, indented code, code and emphasis.
    """
    out: list[str] = []
    title = "Metrics"
    for block in re.split(r"\n\s*\n", metrics_page().strip()):
        lines = block.splitlines()
        for kind, part in groupby(lines, key=_kind):
            found = list(part)
            title = found[0].lstrip("# ") if kind == "heading" else title
            out.append(_block(kind, found, level, title))
    return "\n".join(part for part in out if part)


def _kind(line: str) -> str:
    for kind, start in (("heading", "#"), ("table", "|"), ("code", "    ")):
        if line.startswith(start):
            return kind
    return "list" if re.match(r"(- |  )", line) else "text"


def _block(kind: str, lines: list[str], level: int, title: str) -> str:
    if kind == "heading":
        marks, _, text = lines[0].partition(" ")
        depth = min(level + max(len(marks) - 2, 0), 6)
        return "" if len(marks) == 1 else f"<h{depth}>{_inline(text)}</h{depth}>"
    if kind == "table":
        return _table([_cells(line) for line in lines], title)
    if kind == "code":
        return f"<pre>{escape(chr(10).join(line[4:] for line in lines))}</pre>"
    if kind == "list":
        items = re.split(r"\n- ", "\n" + "\n".join(lines))[1:]
        return "<ul>" + "".join(f"<li>{_inline(' '.join(item.split()))}</li>" for item in items) + "</ul>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _table(rows: list[list[str]], title: str) -> str:
    head = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in rows[0])
    body = "".join(
        f'<tr><th scope="row">{_inline(row[0])}</th>{"".join(f"<td>{_inline(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows[2:]
    )
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="texts" aria-label="{escape(title)}">{inner}</table></div>'


def _inline(text: str) -> str:
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(_code(part) if part.startswith("`") else _emphasis(part) for part in parts)


def _code(part: str) -> str:
    return f"<code>{escape(part[1:-1])}</code>"


def _emphasis(part: str) -> str:
    linked = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", part)
    marked = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escape(linked, quote=False))
    return re.sub(r"(?<!\w)\*([^*\s](?:[^*]*[^*\s])?)\*(?!\w)", r"<em>\1</em>", marked)
