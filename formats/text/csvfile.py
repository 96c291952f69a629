"""Tables with a header, separated by commas, tabs, semicolons or bars; quotes as RFC 4180 has them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from equipoise.formats.text.columns import Ints, Text, TextBuilder
from equipoise.formats.text.delimited import Batch, batch_of
from equipoise.formats.text.errors import shown
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile

DELIMITERS = (",", "\t", ";", "|")
_BATCH_ROWS = 4096


@dataclass(frozen=True, eq=False)
class CsvTable:
    """Columns of text by name, in the order of the header; line: where each row ends in the file."""

    columns: dict[str, Text]
    line: Ints
    tally: RowTally
    name: str

    def __len__(self) -> int:
        return len(self.line)


def delimiter_of(line: str) -> str:
    """The delimiter that cuts a line into most parts, "" when none does."""
    best = max(DELIMITERS, key=line.count)
    return best if best in line else ""


def read_csv(
    source: str | Path | bytes, *, columns: Sequence[str] = (), delimiter: str = "", name: str = ""
) -> CsvTable:
    """A table. columns: its names where the file has no header. Rows of another width are counted and left out.

    Raises FormatError when it is not readable, empty or no table, or a name stands twice in the header.
    """
    tally, file = RowTally(), TextFile(source, name)
    lines = (f"{line}\n" for _, chunk in file.chunks(tally) for line in chunk)
    head = list(islice(lines, 1))
    mark = delimiter or delimiter_of(head[0] if head else "") or ","
    reader = csv.reader(chain(head, lines), delimiter=mark)
    rows = numbered_rows(file, reader)
    header = list(columns) or [cell.strip() for _, row in islice(rows, 1) for cell in row]
    if not any(header):
        raise file.error(1, "empty: a header that names the columns is needed")
    file.check_width(len(header))
    double = sorted(column for column, times in Counter(header).items() if times > 1)
    if double:
        raise file.error(1, f"column {shown(double[0])} appears twice")
    builders = [TextBuilder() for _ in header]
    numbers: list[int] = []
    for batch in even_batches(rows, len(header), tally):
        numbers += batch.lines
        for builder, column in zip(builders, batch.columns, strict=True):
            builder.add([cell.strip() for cell in column])
    texts = {column: builder.finish() for column, builder in zip(header, builders, strict=True)}
    return CsvTable(texts, np.array(numbers, dtype=np.int64), tally, file.name)


def even_batches(rows: Iterator[tuple[int, list[str]]], width: int, tally: RowTally) -> Iterator[Batch]:
    """The rows of `width` fields, some thousand at a time; others are counted and left out."""
    while part := list(islice(rows, _BATCH_ROWS)):
        for line, row in part:
            if len(row) != width:
                tally.add("left out", f"not as many fields as the {width} columns", line)
        if whole := [(line, row) for line, row in part if len(row) == width]:
            yield batch_of([row for _, row in whole], [line for line, _ in whole])


def numbered_rows(file: TextFile, reader: Iterator[list[str]], before: int = 0) -> Iterator[tuple[int, list[str]]]:
    """(line it ends at, row) of every row of a csv.reader that is not empty. before: lines read already.

    Raises FormatError for what csv refuses.
    """
    try:
        for row in reader:
            if row:
                yield before + reader.line_num, row  # type: ignore[attr-defined] # csv's reader has it
    except csv.Error as error:
        line = before + reader.line_num  # type: ignore[attr-defined]
        raise file.error(line, f"not a table: {error}") from error
