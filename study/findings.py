"""What a question found: its answer in sentences, then tables, remarks and charts; as text, and as data for a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any

from equipoise.base.tables import aligned

WIDTH, LINES = 120, 25
"""Columns and lines of the first screen."""


@dataclass(frozen=True)
class FindingsTable:
    """Rows of texts, the head first; the most important columns first.

    right: which columns are right-aligned. more: not for the first screen.
    """

    title: str
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]
    more: bool = False

    def lines(self, wide: bool) -> list[str]:
        """One line per row; unless wide, without the last columns where these do not fit."""
        widths = [max(map(len, column)) + 2 for column in zip(*self.rows, strict=True)]
        fits = next((k for k in range(len(widths), 1, -1) if sum(widths[:k]) - 2 <= WIDTH), 1)
        shown = len(widths) if wide else fits
        lines = list(aligned([row[:shown] for row in self.rows], self.right[:shown]))
        left = ", ".join(dict.fromkeys(filter(None, self.rows[0][shown:])))
        return [*lines, f"left out: {left} (--wide shows all)"] if left else lines


@dataclass(frozen=True)
class Findings:
    """The answer in one to three sentences, and what it rests on. asked, charts: for the page only."""

    title: str
    answer: tuple[str, ...]
    tables: tuple[FindingsTable, ...] = ()
    remarks: tuple[str, ...] = ()
    asked: tuple[tuple[str, str], ...] = ()
    charts: tuple[Mapping[str, Any], ...] = ()

    def lines(self, wide: bool = False) -> list[str]:
        """The text for a terminal; unless wide, its first screen."""
        lines = [line for text in self.answer for line in wrap(text, WIDTH)]
        lines += [line for text in self.remarks for line in wrap(text, WIDTH, subsequent_indent="  ")]
        for table in self.tables:
            if wide or not table.more:
                lines += ["", *([f"{table.title}:"] if table.title else []), *table.lines(wide)]
        more = [table.title for table in self.tables if table.more and not wide]
        return first_screen([*lines, *([f"also with --wide: {', '.join(more)}"] if more else [])], wide)

    def plain(self) -> dict[str, Any]:
        """Plain data, from which `study.report.answers` makes a page."""
        return asdict(self)


def screen(answer: Iterable[str], lines: Iterable[str] = (), wide: bool = False) -> str:
    """The text for a terminal: sentences that answer the question, then lines; unless wide, its first screen."""
    return "\n".join(first_screen([*(line for text in answer for line in wrap(text, WIDTH)), *lines], wide))


def first_screen(lines: Iterable[str], wide: bool) -> list[str]:
    """The lines, at most `LINES` unless wide."""
    every = list(lines)
    if wide or len(every) <= LINES:
        return every
    return [*every[: LINES - 1], f"{len(every) - LINES + 1} more lines: --wide shows all"]
