"""`sacct` output as text: any `--format`, any delimiter or fixed widths, with or without a header."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from equipoise.formats.slurm.builder import JobTableBuilder
from equipoise.formats.slurm.columns import DEFAULT, HEADERLESS, canonical, kinds, known_names
from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.slurm.tables import DASHES, cut
from equipoise.formats.text.csvfile import even_batches, numbered_rows
from equipoise.formats.text.delimited import MANY, Batch, DelimitedRecords, batch_of, header_delimiter
from equipoise.formats.text.errors import shown
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile

_PREVIEW = 60
"""Lines looked at to find the header."""

_DELIMITERS = ("|#", "|", "\t", ";", ",", "^", "~", "::", "#")
_DEFAULT_WIDTHS = (12, 10, 10, 10, 10, 10, 8)
_KNOWN = known_names()


@dataclass(frozen=True)
class ColumnLayout:
    """How rows of a file are split: by `delimiter`, or at `spans` (begin, end) when that is empty.

    first: how many lines come before the first row. header: whether the file has a header. quoted: whether
    texts stand in quotes, as other programs write tables.
    """

    names: tuple[str, ...]
    delimiter: str
    spans: tuple[tuple[int, int], ...] = ()
    first: int = 0
    header: bool = True
    quoted: bool = False


def read_accounting(
    source: str | Path | bytes, *, columns: Sequence[str] = (), delimiter: str = "", zone: str = "UTC", name: str = ""
) -> JobTable:
    """Jobs of a `sacct` text.

    columns: the names of a file without a header, as given to `--format`. delimiter: where it cannot be seen
    from the file. zone: of the clock that wrote the times (`UTC` when sacct ran with TZ=UTC).

    Raises FormatError, one line, when the file is not readable or no `sacct` output.
    """
    tally, file = RowTally(), TextFile(source, name)
    chunks = file.chunks(tally)
    first, lines = next(chunks, (1, []))
    layout = find_layout(lines[:_PREVIEW], columns, delimiter)
    if layout is None:
        raise file.error(0, not_accounting(lines))
    file.check_width(len(layout.names))
    _count_before(lines, layout, tally)
    rest = chain([(first + layout.first, lines[layout.first :])], chunks)
    builder = JobTableBuilder(layout.names, zone, tally)
    for batch in _batches(file, layout, rest, tally):
        builder.add(batch)
    return builder.finish()


def _count_before(lines: list[str], layout: ColumnLayout, tally: RowTally) -> None:
    own = int(layout.header) + int(bool(layout.spans and layout.header))
    before = [k + 1 for k, line in enumerate(lines[: layout.first - own]) if line.strip()]
    if before:
        tally.add("left out", "text before the header", before[0], len(before))


def _batches(
    file: TextFile, layout: ColumnLayout, chunks: Iterator[tuple[int, list[str]]], tally: RowTally
) -> Iterator[Batch]:
    if layout.quoted:
        return _quoted(file, layout, chunks, tally)
    if layout.delimiter:
        named = kinds(layout.names)
        return DelimitedRecords(layout.delimiter, named, tally, layout.names).of_chunks(chunks)
    return _fixed(layout, chunks, tally)


def _quoted(
    file: TextFile, layout: ColumnLayout, chunks: Iterator[tuple[int, list[str]]], tally: RowTally
) -> Iterator[Batch]:
    """Rows of a table rewritten by another program, with quotes around texts."""
    lines = (f"{line}\n" for _, part in chunks for line in part)
    rows = numbered_rows(file, csv.reader(lines, delimiter=layout.delimiter), layout.first)
    return even_batches(rows, len(layout.names), tally)


def _fixed(layout: ColumnLayout, chunks: Iterator[tuple[int, list[str]]], tally: RowTally) -> Iterator[Batch]:
    """Rows cut at the columns' places. A row with text between the columns is left out."""
    for first, lines in chunks:
        rows, numbers = [], []
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            if row := cut(line, layout.spans):
                rows.append([cell.lstrip() for cell in row])
                numbers.append(number)
            else:
                tally.add("left out", "text between the columns", number)
        yield batch_of(rows, numbers)


def find_layout(
    lines: Sequence[str],
    columns: Sequence[str] = (),
    delimiter: str = "",
    published: Sequence[tuple[str, ...]] = HEADERLESS,
) -> ColumnLayout | None:
    """The layout of the rows, from a file's first lines; None when this is no output of Slurm's tools.

    published: column lists that a file without a header may have.
    """
    for k, line in enumerate(lines):
        if k + 1 < len(lines) and DASHES.fullmatch(lines[k + 1]) and (layout := _by_dashes(lines, k)):
            return layout
        mark = delimiter if delimiter and delimiter in line else header_delimiter(line, _is_known)
        if mark and not columns and _is_header(line.split(mark)):
            return ColumnLayout(_names(line.split(mark)), mark, first=k + 1, quoted=_is_quoted(lines, mark))
        if canonical(line) in ("jobid", "jobidraw"):
            return ColumnLayout((line.strip(),), "|", first=k + 1)
    return _headerless(lines, (tuple(columns),) if columns else published, delimiter)


def _is_quoted(lines: Sequence[str], mark: str) -> bool:
    return mark in ",;\t" and any(line.startswith('"') or f'{mark}"' in line for line in lines)


def _is_known(name: str) -> bool:
    return canonical(name) in _KNOWN


def _is_header(names: Sequence[str]) -> bool:
    """Whether half of the names, and at least two, are known; `ALL` prints many beyond FIELDS."""
    known = sum(map(_is_known, names))
    plain = all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_:/()\- ]*|", name) for name in _names(names))
    return plain and known >= 2 and (known * 2 >= len(names) or "jobid" in map(canonical, names))


def _names(parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip().strip('"') for part in parts)


def _by_dashes(lines: Sequence[str], k: int) -> ColumnLayout | None:
    spans = tuple(match.span() for match in re.finditer("-+", lines[k + 1]))
    names = tuple(lines[k][a:b].strip() for a, b in spans)
    if sum(map(_is_known, names)) < min(2, len(names)):
        return None
    return ColumnLayout(names, "", spans, first=k + 2)


def _headerless(lines: Sequence[str], lists: Sequence[tuple[str, ...]], delimiter: str) -> ColumnLayout | None:
    """The column list and delimiter that fit the first lines best."""
    sample = [line for line in lines if line.strip()]
    best, found = 0.0, None
    for mark in (delimiter,) if delimiter else _DELIMITERS:
        rows = [line.split(mark) for line in sample]
        for names in lists:
            for trailing in ((), ("",)):
                fit = _fit(rows, (*names, *trailing), mark)
                if fit > best:
                    best, found = fit, ColumnLayout((*names, *trailing), mark, header=False)
    if found is None and DEFAULT in lists:
        return _default_widths(sample)
    return found if best >= 0.5 else None


def _fit(rows: Sequence[list[str]], names: Sequence[str], mark: str) -> float:
    """Share of rows that fit these columns; a row with the delimiter in a text counts less."""
    own = kinds(names)
    records = DelimitedRecords(mark, own, RowTally(), names)
    lists = [(k, kind.form) for k, kind in enumerate(own) if kind.take == MANY and kind.form]
    good = 0.0
    for row in rows:
        trailing = names[-1] == "" and row[-1] != ""
        if len(row) >= len(names) > 1 and not trailing and records.is_record(row):
            fits = all(form.fullmatch(row[k]) for k, form in lists)
            good += 0.9 if len(row) > len(names) else 1.0 if fits else 0.5
    return good / len(rows) if rows else 0.0


def _default_widths(sample: Sequence[str]) -> ColumnLayout | None:
    """`sacct --noheader` with neither format nor delimiter: the default columns at their default widths."""
    spans, begin = [], 0
    for width in _DEFAULT_WIDTHS:
        spans.append((begin, begin + width))
        begin += width + 1
    state = re.compile(r"[A-Z_]{2,10}\+?")
    exit_code = re.compile(r"[0-9]+:[0-9]+")
    fit = [
        bool(state.fullmatch(line[slice(*spans[5])].strip()) and exit_code.fullmatch(line[slice(*spans[6])].strip()))
        for line in sample
    ]
    return ColumnLayout(DEFAULT, "", tuple(spans), header=False) if fit and sum(fit) * 2 >= len(fit) else None


def not_accounting(lines: Sequence[str]) -> str:
    """A one-line description of a file that is not `sacct` output."""
    sample = next((line for line in lines if line.strip()), "")
    if not sample:
        return "empty: sacct output with a header, or --noheader with columns=, is needed"
    return (
        f"not sacct output with known columns: its first line is {shown(sample)}; "
        "give the header line, or columns= with the list of --format"
    )
