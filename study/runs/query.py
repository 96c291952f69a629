"""SQL over results: one SELECT, restricted to the results, and interruptible.

DuckDB folds constant parts of a query before it looks at anything, for minutes and gigabytes where a list is long.
So the query has its own thread, and an interruption does not wait for it.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import duckdb

from equipoise.base.database import writing
from equipoise.base.files import draft_of, replacing
from equipoise.exit_codes import INTERRUPTED
from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.store import connect, quoted
from equipoise.study.runs.views import text

T = TypeVar("T")

MEMORY_BYTES = 4 * 2**30
"""Memory limit of a query; DuckDB spills to disk beyond half of it."""
_ROWS_AT_ONCE = 10_000

FORMATS = {".csv": "FORMAT csv, HEADER", ".json": "FORMAT json, ARRAY", ".parquet": "FORMAT parquet, COMPRESSION zstd"}
"""How DuckDB writes a file, by its suffix."""

Rows = tuple[list[str], list[tuple[Any, ...]]]


class TableExportError(RuntimeError):
    """A file cannot be written; the message is one line."""


def ask(folder: Path, sql: str, to: Path | None = None, *, allow_files: bool = False) -> Rows:
    """(names, rows) of a query over a sweep, a comparison or a run; empty when written to the file `to`.

    allow_files: any SQL, including access to other files. Raises InputError for a statement that is not allowed or
    empty, duckdb.Error for wrong SQL or too little memory, TableExportError when `to` cannot be written. Ctrl-C ends
    the process.
    """
    folder = folder.resolve() if folder.is_dir() else folder
    with connect(folder) as connection, memory_at_most(MEMORY_BYTES):
        connection.execute("SET threads = 2")  # nobody waits here for the thread that asks
        connection.execute(f"SET memory_limit = '{MEMORY_BYTES // 2} B'")
        if not allow_files:
            _lock(connection, folder, to)
        _check(connection, sql, allow_files)
        left_over = None if to is None else draft_of(to)
        try:
            return interruptible(lambda: _made(connection, sql, to), left_over)
        except (MemoryError, duckdb.OutOfMemoryException):
            most = f"{MEMORY_BYTES / 2**30:g} GiB"
            raise InputError([f"SQL: this needs more than {most} of memory; ask for less, or use --to"]) from None


def _lock(connection: duckdb.DuckDBPyConnection, folder: Path, to: Path | None) -> None:
    """Restrict reading to files below `folder` and writing to `to`; this cannot be undone."""
    connection.execute(f"SET allowed_directories = [{text(folder / '_')[:-2]}']")  # it must end in a slash
    if to is not None:
        connection.execute(f"SET allowed_paths = [{text(draft_of(to))}]")
    for setting in ("autoinstall_known_extensions", "autoload_known_extensions"):
        # Else a name such as read_xlsx fetches a program and runs it.
        connection.execute(f"SET {setting} = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET python_enable_replacements = false")  # variables of this program are no tables
    connection.execute("SET lock_configuration = true")


_PRAGMA = re.compile(r"(?:[\s;\ufeff]|--[^\n]*\n|/\*.*?\*/)*PRAGMA\b", re.IGNORECASE | re.DOTALL)
"""Pattern of PRAGMA statements, some of which DuckDB rewrites as a SELECT."""


def _check(connection: duckdb.DuckDBPyConnection, sql: str, allow_files: bool) -> None:
    statements = connection.extract_statements(sql)
    if not statements:
        raise InputError(["SQL: the statement is empty; write e.g. SELECT * FROM runs"])
    if allow_files:
        return
    pragma = _PRAGMA.match(sql)
    if len(statements) > 1 or pragma or statements[0].type != duckdb.StatementType.SELECT:
        kind = "PRAGMA" if pragma else str(statements[0].type).rpartition(".")[2]
        what = f"{len(statements)} statements" if len(statements) > 1 else f"a {kind} statement"
        raise InputError([f"SQL: {what}; allowed is one SELECT over the results (--allow-files allows any)"])


def _made(connection: duckdb.DuckDBPyConnection, sql: str, to: Path | None) -> Rows:
    if to is not None:
        export(connection, sql, to)
        return [], []
    cursor = connection.execute(zones_as_text(connection, sql))
    rows: list[tuple[Any, ...]] = []
    while part := cursor.fetchmany(_ROWS_AT_ONCE):
        rows += part
    return [column[0] for column in cursor.description or []], rows


def export(connection: duckdb.DuckDBPyConnection, sql: str, target: Path) -> None:
    """Write the result of `sql` to `target`, through a temporary file; the suffix sets the format.

    Raises InputError for an unknown suffix or a statement without a result, TableExportError when the file cannot be
    written, duckdb.Error for wrong SQL.
    """
    if (options := FORMATS.get(target.suffix.lower())) is None:
        raise InputError([f"--to {target}: the name must end in {', '.join(FORMATS)}"])
    relation = connection.sql(sql)
    if relation is None:
        raise InputError(["SQL: this statement has no result; write SELECT ..."])
    try:
        with replacing(target) as draft, writing(draft):
            connection.execute(f"COPY ({relation.sql_query()}) TO {text(draft)} ({options})")
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


def interruptible(work: Callable[[], T], left_over: Path | None = None) -> T:
    """The result of `work`, run in a separate thread.

    On Ctrl-C the whole process ends at once, with exit code 130 and without the file `left_over`: DuckDB cannot be
    interrupted while it folds constants, and its connection refuses other threads.
    """
    given: list[T] = []
    failed: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        """Do the work; keep its result or error."""
        try:
            given.append(work())
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=run, daemon=True).start()
        done.wait()
    except KeyboardInterrupt:
        _end(left_over)
    if failed:
        raise failed[0]
    return given[0]


def _end(left_over: Path | None) -> NoReturn:
    if left_over is not None:
        left_over.unlink(missing_ok=True)
    print("equipoise: interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


@contextmanager
def memory_at_most(more_bytes: int) -> Iterator[None]:
    """Limit the additional memory of this process; larger requests fail. Only where the system supports it."""
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now_bytes = int(statm.read_text().split()[0]) * resource.getpagesize()
    allowed = [limit for limit in (now_bytes + more_bytes, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(allowed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
