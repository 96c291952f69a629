"""Rows cut at a delimiter that is not escaped; lines broken by a field's own text are repaired or left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise

from equipoise.formats.text.tally import RowTally

MAX_JOINED_LINES = 200
"""Lines that one record may go over; a longer one is a broken line followed by something else."""

MAX_STRAY = 30
"""Delimiters that one row's texts may hold. Commas stand in lists as well: MAX_COMMAS."""
MAX_COMMAS = 200

FREE, ONE, MANY = "free", "one", "many"


@dataclass(frozen=True)
class Kind:
    """The kind of value of a column. take: FREE any text, ONE a value without delimiters, MANY values with commas."""

    take: str = FREE
    form: re.Pattern[str] | None = None
    weight: int = 2
    """Cost of each delimiter put into a FREE column: the column with the least is where a stray one goes."""


Row = list[str]


@dataclass(frozen=True)
class Batch:
    """Some rows by columns, the line of each, and a number for each that is equal where whole rows are equal."""

    columns: Sequence[Sequence[str]]
    lines: Sequence[int]
    digest: Sequence[int]

    def select(self, rows: Sequence[bool]) -> Batch:
        """These rows."""
        columns = [list(compress(column, rows)) for column in self.columns]
        return Batch(columns, list(compress(self.lines, rows)), list(compress(self.digest, rows)))


def batch_of(rows: Sequence[Row], lines: Sequence[int], delimiter: str = "\n") -> Batch:
    """Rows of equal length as a batch."""
    return Batch(list(zip(*rows, strict=True)), lines, list(map(hash, map(delimiter.join, rows))))


@dataclass
class DelimitedRecords:
    """Rows of `width` fields from a file's lines.

    A record over several lines (a newline in a name) is joined; a row with too many fields (the delimiter in a
    name) is put together so that every column holds what its kind allows; what remains is left out and counted.
    """

    delimiter: str
    kinds: Sequence[Kind]
    tally: RowTally
    names: Sequence[str]

    def __post_init__(self) -> None:
        """Columns whose form tells a row from a fragment."""
        self.width = len(self.kinds)
        self._strict = [(k, kind.form) for k, kind in enumerate(self.kinds) if kind.take == ONE and kind.form]
        self._open: list[str] = []
        self._open_line = 0
        self._rows: list[Row] = []
        self._lines: list[int] = []

    def of_chunks(self, chunks: Iterable[tuple[int, list[str]]]) -> Iterator[Batch]:
        """Rows of the (number of the first line, lines) that a file comes in."""
        for first, lines in chunks:
            if not self._open and self._whole(lines):
                yield from self._rest(0)
                yield self._fast(first, lines[:-1])
                self._emit(lines[-1].split(self.delimiter), first + len(lines) - 1)
                continue
            for number, line in enumerate(lines, first):
                self._add_line(number, line, line.split(self.delimiter))
            yield from self._rest(1)
        self._close()
        yield from self._rest(0)

    def _whole(self, lines: list[str]) -> bool:
        """Whether every line has as many fields as there are columns."""
        return {line.count(self.delimiter) for line in lines} == {self.width - 1}

    def _fast(self, first: int, lines: list[str]) -> Batch:
        """The columns of whole lines, cut all at once: four times as fast as line by line."""
        flat = self.delimiter.join(lines).split(self.delimiter) if lines else []
        columns = [flat[k :: self.width] for k in range(self.width)]
        return Batch(columns, range(first, first + len(lines)), list(map(hash, lines)))

    def _rest(self, held: int) -> Iterator[Batch]:
        """The rows so far, but for the last `held`, which may go on in a later line."""
        end = len(self._rows) - held
        if end > 0:
            yield batch_of(self._rows[:end], self._lines[:end], self.delimiter)
            self._rows, self._lines = self._rows[end:], self._lines[end:]

    def _add_line(self, number: int, line: str, row: Row) -> None:
        if not self._open or self.is_record(row):
            self._close()
            self._start(number, line, row)
            return
        fields = "\n".join([*self._open, line]).split(self.delimiter)
        if self.is_record(fields):
            begin, self._open = self._open_line, []
            self.tally.add("changed", "a record over several lines joined", begin)
            self._start(begin, "", fields)
        elif len(fields) <= self.width and len(self._open) < MAX_JOINED_LINES:
            self._open.append(line)
        else:
            self._close()
            self._start(number, line, row)

    def is_record(self, row: Row) -> bool:
        """Whether this is a whole row, maybe with delimiters in its texts."""
        if len(row) > self.width:
            return self.align(row)[0] is not None
        return len(row) == self.width and self.plausible(row)

    def _start(self, number: int, line: str, row: Row) -> None:
        if len(row) < self.width:
            if line.strip():
                self._open, self._open_line = [line], number
        elif len(row) == self.width:
            self._emit(row, number)
        else:
            self._realign(row, number)

    def _realign(self, row: Row, number: int) -> None:
        fields, where = self.align(row)
        if fields is None:
            self.tally.add("left out", f"more fields than the {self.width} columns", number)
            return
        if where:
            self.tally.add("changed", f"the delimiter stands in {where}", number)
        self._emit(fields, number)

    def _emit(self, row: Row, number: int) -> None:
        self._rows.append(row)
        self._lines.append(number)

    def _close(self) -> None:
        """Give up on lines that form no record: the end of the last row's last text, or a broken record."""
        if not self._open:
            return
        rest, self._open = self._open, []
        last = self.kinds[-1]
        if self._rows and last.take == FREE and not any(self.delimiter in line for line in rest):
            self._rows[-1][-1] = "\n".join([self._rows[-1][-1], *rest])
            self.tally.add("changed", "a record over several lines joined", self._lines[-1])
        else:
            filled = sum(bool(line.strip()) for line in rest)
            self.tally.add("left out", f"fewer fields than the {self.width} columns", self._open_line, filled)

    def plausible(self, row: Row) -> bool:
        """Whether every column of a fixed form matches it."""
        return all(form.fullmatch(row[k]) for k, form in self._strict)

    def align(self, parts: Row) -> tuple[Row | None, str]:
        """(fields, names of the free columns that took delimiters) of a row cut into more parts than columns.

        The cheapest way to give each column one or more neighbouring parts: a list that holds its form costs
        nothing, a free text its weight per delimiter. None where no assignment is possible.
        """
        extra = len(parts) - self.width
        if extra > (MAX_COMMAS if self.delimiter == "," else MAX_STRAY):
            return None, ""
        best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
        for column, kind in enumerate(self.kinds):
            reached: dict[int, tuple[int, tuple[int, ...]]] = {}
            for at, (cost, cuts) in sorted(best.items()):
                for more in range(0, extra - (at - column) + 1):
                    price = _price(kind, parts, at, more, self.delimiter)
                    if price is None and kind.take == ONE:
                        break
                    if price is None:
                        continue
                    end = at + more + 1
                    if end not in reached or cost + price < reached[end][0]:
                        reached[end] = (cost + price, (*cuts, end))
            best = reached
        if len(parts) not in best:
            return None, ""
        cuts = (0, *best[len(parts)][1])
        fields = [self.delimiter.join(parts[a:b]) for a, b in pairwise(cuts)]
        free = [k for k, kind in enumerate(self.kinds) if kind.take == FREE and cuts[k + 1] - cuts[k] > 1]
        return fields, ", ".join(self.names[k] for k in free)


def _price(kind: Kind, parts: Row, at: int, more: int, delimiter: str) -> int | None:
    """Cost of giving a column parts[at : at + more + 1], None when it cannot hold them."""
    if more and (kind.take == ONE or (kind.take == MANY and delimiter != ",")):
        return None
    if kind.take == FREE:
        return kind.weight * more
    text = parts[at] if not more else delimiter.join(parts[at : at + more + 1])
    return 0 if kind.form is None or kind.form.fullmatch(text) else None


def header_delimiter(line: str, known: Callable[[str], bool]) -> str:
    """The delimiter of a header: the one that gives most known names, "" for none."""
    candidates = {found for found in re.findall(r"[^A-Za-z0-9_]+", line) if "  " not in found and '"' not in found}
    candidates |= {mark for mark in ("|", ",", ";", "\t", "^", "~") if mark in line}
    counted = [(sum(map(known, line.split(mark))), mark) for mark in candidates]
    best = max(counted, default=(0, ""), key=lambda pair: (pair[0], len(pair[1]), pair[1]))
    return best[1] if best[0] >= 2 else ""
