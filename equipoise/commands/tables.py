"""Rows as text: columns that stand below each other, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from equipoise.base.json_values import plain
from equipoise.formats.text.spreadsheet import guarded


def as_csv(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A line of names and one per row; what is unknown is empty, and no text is a formula to a spreadsheet."""
    text = io.StringIO()
    cells = [["" if plain(value) is None else guarded(value) for value in row] for row in rows]
    csv.writer(text, lineterminator="\n").writerows([list(map(guarded, names)), *cells])
    return text.getvalue()


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> Iterator[str]:
    """A line per row. right: which columns stand at the right; the others, and all by default, at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [*right, *[False] * (len(widths) - len(right))]
    for row in rows:
        cells = zip(row, widths, sides, strict=True)
        yield "  ".join(c.rjust(w) if at_right else c.ljust(w) for c, w, at_right in cells).rstrip()
