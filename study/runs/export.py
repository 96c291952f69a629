"""Results of a query as a file: CSV, JSON, Parquet, or a workbook for Excel."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb

from equipoise.base.database import writing
from equipoise.base.files import replacing
from equipoise.formats.text.spreadsheet import FORMULA, NUMBER, guarded
from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.store import quoted
from equipoise.study.runs.views import text

ROWS_MOST = 1_048_576
"""Rows of one Excel sheet, the header included."""
COLUMNS_MOST = 16_384
_BATCH = 10_000
_MADE = datetime(2000, 1, 1)  # equal results give equal files


class TableExportError(RuntimeError):
    """A file cannot be written; the message is one line."""


def export(connection: duckdb.DuckDBPyConnection, sql: str, target: Path) -> None:
    """Write the result of `sql` to `target`, through a temporary file; the suffix sets the format.

    Raises InputError for an unknown suffix, ExportError when the result does not fit into the
    format or the file cannot be written, duckdb.Error for wrong SQL.
    """
    writers: dict[str, Callable[[duckdb.DuckDBPyConnection, str, Path], None]] = {
        ".csv": _copied("FORMAT csv, HEADER", _without_formulas),
        ".json": _copied("FORMAT json, ARRAY"),
        ".parquet": _copied("FORMAT parquet, COMPRESSION zstd"),
        ".xlsx": _workbook,
    }
    if target.suffix.lower() not in writers:
        raise InputError([f"--to {target}: the name must end in {', '.join(writers)}"])
    try:
        with replacing(target) as draft:
            writers[target.suffix.lower()](connection, sql, draft)
    except OSError as error:
        raise TableExportError(f"{target}: cannot be written: {error.strerror or error}") from error


def zones_as_text(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The query with time zone times as text, because DuckDB needs pytz to make Python objects of them."""
    if connection.extract_statements(sql)[0].type != duckdb.StatementType.SELECT:
        return sql
    relation = connection.sql(sql)
    zoned = ["TIMESTAMP WITH TIME ZONE" in str(kind) for kind in relation.types]
    if not any(zoned):
        return sql
    shown = [
        f"CAST(#{k} AS VARCHAR) AS {quoted(name)}" if cast else f"#{k}"
        for k, (name, cast) in enumerate(zip(relation.columns, zoned, strict=True), start=1)
    ]
    return f"SELECT {', '.join(shown)} FROM ({relation.sql_query()})"


def _without_formulas(relation: duckdb.DuckDBPyRelation) -> str:
    """A query for the same rows, with an apostrophe before texts that a spreadsheet would take for formulas."""
    columns = []
    for k, (name, kind) in enumerate(zip(relation.columns, relation.types, strict=True), start=1):
        cell = f"#{k}"
        if str(kind).startswith(("VARCHAR", "ENUM")):
            written = f"CAST(#{k} AS VARCHAR)"
            formula = f"regexp_matches({written}, {text(f'^{FORMULA}')})"
            number = f"regexp_full_match({written}, {text(NUMBER)})"
            cell = f"CASE WHEN {formula} AND NOT {number} THEN chr(39) || {written} ELSE {written} END"
        columns.append(f"{cell} AS {quoted(guarded(name))}")
    return f"SELECT {', '.join(columns)} FROM ({relation.sql_query()})"


def _as_it_is(relation: duckdb.DuckDBPyRelation) -> str:
    query: str = relation.sql_query()
    return query


def _copied(
    options: str, rows: Callable[[duckdb.DuckDBPyRelation], str] = _as_it_is
) -> Callable[[duckdb.DuckDBPyConnection, str, Path], None]:
    def write(connection: duckdb.DuckDBPyConnection, sql: str, draft: Path) -> None:
        """Write the result of the statement."""
        relation = connection.sql(sql)
        if relation is None:
            raise InputError(["SQL: this statement has no result; write SELECT ..."])
        with writing(draft):
            connection.execute(f"COPY ({rows(relation)}) TO {text(draft)} ({options})")

    return write


def _workbook(connection: duckdb.DuckDBPyConnection, sql: str, draft: Path) -> None:
    """One sheet, header frozen and filterable. Text stays text, even if it looks like a formula."""
    try:
        import xlsxwriter
        from xlsxwriter.exceptions import FileCreateError
    except ImportError as error:
        raise TableExportError("Excel files need XlsxWriter: pip install 'equipoise[report]'") from error
    cursor = connection.execute(zones_as_text(connection, sql))
    names = [column[0] for column in cursor.description or []]
    if len(names) > COLUMNS_MOST:
        raise TableExportError(f"{len(names)} columns; a sheet holds {COLUMNS_MOST}")
    book = xlsxwriter.Workbook(str(draft), {"constant_memory": True})
    book.set_properties({"created": _MADE})
    sheet = book.add_worksheet("results")
    bold = book.add_format({"bold": True})
    for k, name in enumerate(names):
        sheet.write_string(0, k, name, bold)
    row = 0
    while batch := cursor.fetchmany(_BATCH):
        for values in batch:
            row += 1
            if row >= ROWS_MOST:
                raise TableExportError(
                    f"more than {ROWS_MOST - 1:,} rows, which is all that a sheet holds; write .csv or .parquet"
                )
            _write_row(sheet, row, values)
    sheet.freeze_panes(1, 0)
    if names:
        sheet.autofilter(0, 0, max(row, 1), len(names) - 1)
    try:
        book.close()
    except FileCreateError as error:
        raise OSError(errno.EIO, str(error)) from error


def _write_row(sheet: Any, row: int, values: Sequence[Any]) -> None:
    for k, value in enumerate(values):
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue  # unknown is an empty cell
        if isinstance(value, bool):
            sheet.write_boolean(row, k, value)
        elif isinstance(value, int | float):
            sheet.write_number(row, k, value)
        else:
            sheet.write_string(row, k, str(value))
