"""Definitions of metrics, read from `docs/metrics.md` and from the pages of features."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

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
