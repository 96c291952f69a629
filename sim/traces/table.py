"""CSV files with a header, gz or not, read into columns; a mistake is one line `file:line:column`."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.base.numerals import strict_float
from equipoise.base.regular import TABLE_BYTES, RefusedError, read_unpacked
from equipoise.formats.text.columns import TextBuilder
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.tally import RowTally, TextChange
from equipoise.formats.text.textfile import TextFile
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.rows import further
from equipoise.sim.traces.trace import Bools, Column, Floats, Ints

MAX_LINES = 20
"""Mistakes shown of one file; the rest is counted."""

_PLAIN = frozenset("0123456789+-.eE")


class TextTable:
    """Columns of text by name. `line[k]` is where row k stands in the file."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises InputError when it is not readable, not text, or not a table."""
        self.name, self.file = str(path), path.name
        reader = csv.reader(io.StringIO(_text(path), newline=""))
        self.rows: list[list[str]] = []
        self.line: list[int] = []
        try:
            self.header = [name.strip() for name in next(reader, [])]
            for row in reader:
                if row:
                    self.rows.append(row)
                    self.line.append(reader.line_num)
        except csv.Error as error:
            raise InputError([f"{self.name}:{reader.line_num}:1: not CSV: {error}"]) from error
        _check_width(TextFile(path), len(self.header))
        if not any(self.header):
            raise InputError([f"{self.name}:1:1: empty; the first line must name the columns"])

    def __len__(self) -> int:
        return len(self.rows)

    def _check_widths(self) -> None:
        width = len(self.header)
        wrong = [k for k, row in enumerate(self.rows) if len(row) != width]
        self.fail([f"{self.name}:{self.line[k]}:1: {len(self.rows[k])} fields, the header has {width}" for k in wrong])
        double = sorted(name for name, times in Counter(self.header).items() if times > 1)
        self.fail([f"{self.name}:1:1: column {name!r} appears twice" for name in double])

    def need(self, columns: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Raises InputError for missing columns, one that looks like a misspelt optional one, and uneven rows."""
        mistakes = []
        if missing := [repr(name) for name in columns if name not in self.header]:
            said = f"column{'s' * (len(missing) > 1)} {', '.join(missing)} {'are' if missing[1:] else 'is'} missing"
            mistakes.append(f"{self.name}:1:1: {said}; found: {', '.join(self.header)}")
        for name in self.header:
            close = difflib.get_close_matches(name, optional, n=1, cutoff=0.8)
            if close and name not in optional and name not in columns and close[0] not in self.header:
                mistakes.append(f"{self.name}:1:1: unknown column {name!r}; did you mean {close[0]!r}?")
        self.fail(mistakes)
        self._check_widths()

    def text(self, column: str) -> list[str]:
        """A column as text, without surrounding blanks and the apostrophe that keeps it from being a formula."""
        k = self.header.index(column)
        return [row[k].strip() for row in self.rows]

    def further(self, used: Sequence[str]) -> dict[str, Column]:
        """The columns that are none of `used` and hold something, by the names that results give them."""
        found = {}
        for title in self.header:
            builder = TextBuilder()
            builder.add(self.text(title) if title and title not in used else [])
            column = builder.finish()
            if any(column.values):
                found[title] = column
        return further(found, {})

    def floats(
        self, column: str, *, blank: float | None = None, low: float = -math.inf, high: float = math.inf
    ) -> Floats:
        """A column as finite numbers of `low` to `high`. `blank` stands for an empty field (None: refused)."""
        texts = self.text(column)
        if blank is not None:
            texts = [text or str(blank) for text in texts]
        values = np.array([])
        if _PLAIN.issuperset("".join(texts)):  # the quick way takes much else, such as 1_0 and infinity
            with suppress(ValueError):
                values = np.array(texts, dtype=np.float64)
        if len(values) < len(texts):
            values = np.array([_number(text) for text in texts])
        bad = ~np.isfinite(values)
        bad |= (values < low) | (values > high)
        self.refuse(bad, column, lambda k: _problem(texts[k], values[k], low, high))
        return values

    def ints(self, column: str, *, low: int) -> Ints:
        """A column as whole numbers of at least `low`. Raises InputError."""
        values = self.floats(column, low=low)
        texts = self.text(column)
        bad = (values != np.floor(values)) | (np.abs(values) > 2**53)
        self.refuse(bad, column, lambda k: f"{texts[k]!r} is not a whole number")
        return values.astype(np.int64)

    def refuse(self, bad: Bools, column: str, problem: Callable[[int], str]) -> None:
        """Raises InputError with one line per bad row of a column."""
        rows = np.flatnonzero(bad).tolist()
        self.fail([f"{self.at(k, column)}: {column}: {problem(k)}" for k in rows[:MAX_LINES]], len(rows))

    def at(self, row: int, column: str) -> str:
        """`file:line:column` of one field."""
        before = self.rows[row][: self.header.index(column)]
        return f"{self.name}:{self.line[row]}:{sum(len(text) + 1 for text in before) + 1}"

    def fail(self, mistakes: Sequence[str], total: int | None = None) -> None:
        """Raises InputError when there are mistakes."""
        more = (len(mistakes) if total is None else total) - MAX_LINES
        if mistakes:
            rest = [f"{self.name}: and {more} more lines like these"] if more > 0 else []
            raise InputError([*mistakes[:MAX_LINES], *rest])


def header_of(path: Path) -> list[str]:
    """The names in a file's first line; none when it is empty or cannot be read. Raises InputError for too many."""
    try:
        file = TextFile(path, head_bytes=1 << 20)
        _, lines = next(file.chunks(RowTally()), (1, [""]))
        names = [name.strip() for name in next(csv.reader([lines[0][: csv.field_size_limit()]]), [])]
    except (FormatError, csv.Error):
        return []
    if lines[0].lstrip()[:1] not in ("{", "["):
        _check_width(file, lines[0].count(","))
    return names if any(names) else []


def _check_width(file: TextFile, columns: int) -> None:
    """Raises InputError for a header of too many columns."""
    try:
        file.check_width(columns)
    except FormatError as error:
        raise InputError([str(error)]) from error


def left_out(rows: Mapping[str, Bools], lines: Sequence[int]) -> tuple[Bools, list[TextChange]]:
    """(rows to keep, what was left out and why) from rows to drop by reason; a row counts once."""
    dropped: Any = None
    changes = []
    for reason, which in rows.items():
        new = which if dropped is None else which & ~dropped
        dropped = which if dropped is None else dropped | which
        if new.any():
            changes.append(TextChange("left out", reason, int(new.sum()), lines[int(new.argmax())]))
    return ~dropped, changes


def _text(path: Path) -> str:
    try:
        text = read_unpacked(path, TABLE_BYTES).decode("utf-8-sig")
        if "\0" in text:
            line = text.count("\n", 0, text.index("\0")) + 1
            raise InputError([f"{path}:{line}:1: holds a zero byte: binary data, not text"])
        return text
    except RefusedError as error:
        raise InputError([f"{path}: {error}"]) from error
    except UnicodeDecodeError as error:
        raise InputError([f"{path}: not UTF-8 text (byte {error.start})"]) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError([f"{path}: damaged gzip file: {error}"]) from error
    except OSError as error:
        raise InputError([f"{path}: cannot be read: {error.strerror or error}"]) from error


def _number(text: str) -> float:
    try:
        return strict_float(text)
    except ValueError:
        return math.nan


def _problem(text: str, value: float, low: float, high: float) -> str:
    if not text:
        return "is empty, a number is needed"
    if not math.isfinite(value):
        return f"{text[:40]!r} is not a number"
    if value > high:
        return f"{text[:40]} is too large, must be at most {high:g}"
    return f"{text[:40]} is too small, must be at least {low:g}"
