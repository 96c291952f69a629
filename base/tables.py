"""Rows as text: aligned columns, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from equipoise.base.json_values import plain


def as_csv(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A header and one line per row; unknown values are empty."""
    text = io.StringIO()
    cells = [["" if plain(value) is None else value for value in row] for row in rows]
    csv.writer(text, lineterminator="\n").writerows([list(names), *cells])
    return text.getvalue()


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> Iterator[str]:
    """One line per row. right: which columns are right-aligned; the others, by default all, are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [*right, *[False] * (len(widths) - len(right))]
    for row in rows:
        cells = zip(row, widths, sides, strict=True)
        yield "  ".join(c.rjust(w) if at_right else c.ljust(w) for c, w, at_right in cells).rstrip()
