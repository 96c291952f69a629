"""Store of a study's results: one SQLite ledger, one row per run, one writer; or memory.

Every row is committed on its own in write-ahead mode: a run reported as done survives a kill of any process.
Rows carry the values of the varied keys and the metrics as columns; columns are added as they appear. For
reading, the ledger is copied into `runs.parquet`, and DuckDB queries that.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from equipoise.base.database import own_database, writing
from equipoise.base.files import replacing
from equipoise.base.json_values import from_json
from equipoise.sim.scenario.tree import InputError
from equipoise.study.folders import LEDGER, RUNS, SUMMARY, reading
from equipoise.study.runs.orders import Row
from equipoise.study.runs.views import add_kept, text

PARQUET = "runs.parquet"
SCHEMA = 1
FIXED = {
    "id": "TEXT PRIMARY KEY",
    "number": "INTEGER NOT NULL",
    "point": "INTEGER NOT NULL",
    "policy": "TEXT NOT NULL",
    "seed": "INTEGER NOT NULL",
    "status": "TEXT NOT NULL CHECK (status IN ('done', 'failed'))",
    "error": "TEXT",
    "attempts": "INTEGER NOT NULL",
    "cpu_s": "REAL",
    "wall_s": "REAL",
}


class StoreError(RuntimeError):
    """The store cannot be used or written; the message is one line."""


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def only_writer(folder: Path, name: str = "sweep.lock") -> Iterator[None]:
    """Lock the folder for one writer; the lock of a killed process is released. Raises StoreError when it is locked."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise StoreError(
                f"{folder}: another sweep or comparison is writing here; wait for it, or choose another folder"
            ) from None
        yield


def damaged(path: Path, error: Exception) -> StoreError:
    """Message for a ledger that cannot be read: damaged, or a disk or lock error."""
    if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
        return StoreError(f"{path}: cannot be used: {error}")
    copy = path.with_name(PARQUET)
    kept = f"; {copy.name} in the same folder may have a copy of its runs" if copy.is_file() else ""
    return StoreError(f"{path}: is damaged: {error}{kept}; delete it to start again")


BATCH = 5_000
"""Runs that are read at once, as Python objects in memory."""
KINDS = ("BIGINT", "DOUBLE", "VARCHAR")


def kinds(db: sqlite3.Connection) -> dict[str, str]:
    """The columns of `runs` with their types for DuckDB: integer if all values are, float if all are, else text.

    Raises sqlite3.Error.
    """
    names = [column[0] for column in db.execute("SELECT * FROM runs LIMIT 0").description]
    ranks = "WHEN 'integer' THEN 0 WHEN 'real' THEN 1 WHEN 'null' THEN 1 ELSE 2"
    asked = (f"max(CASE typeof({quoted(name)}) {ranks} END)" for name in names)
    (found,) = db.execute(f"SELECT {', '.join(asked)} FROM runs").fetchall()
    return {name: KINDS[1 if kind is None else kind] for name, kind in zip(names, found, strict=True)}


def copy_runs(db: sqlite3.Connection, connection: duckdb.DuckDBPyConnection) -> None:
    """Make the table `runs` of a ledger in DuckDB, in the order of the study.

    Raises sqlite3.Error and duckdb.Error.
    """
    db.execute("BEGIN")  # all of it as it is now, whoever writes meanwhile
    try:
        columns = kinds(db)
        listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        connection.execute(f"CREATE TABLE runs ({listed})")
        cursor = db.execute("SELECT * FROM runs ORDER BY number, id")
        while rows := cursor.fetchmany(BATCH):
            of = zip(columns.items(), zip(*rows, strict=True), strict=True)
            batch = {name: to_array(values, kind) for (name, kind), values in of}
            connection.register("batch", batch)
            connection.execute("INSERT INTO runs SELECT * FROM batch")
            connection.unregister("batch")
    finally:
        db.rollback()


def write_copy(db: sqlite3.Connection, target: Path) -> None:
    """Write the table `runs` of a ledger as Parquet, through a temporary file; equal runs give equal bytes.

    Raises sqlite3.Error, duckdb.Error and OSError.
    """
    with replacing(target) as draft, own_database() as connection:
        connection.execute(f"SET memory_limit = '{COPY_MIB}MiB'")
        connection.execute(f"SET temp_directory = {text(f'{draft}.spilt')}")  # made only when there is more
        copy_runs(db, connection)
        with writing(target):
            connection.execute(
                f"COPY runs TO {text(draft)} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
            )


COPY_MIB, ROW_GROUP = 1024, 10_240
"""Memory for a table while it is copied (MiB; more is spilled to disk); rows per row group."""


class MemoryStore:
    """Rows in the memory of this process."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def put(self, row: Mapping[str, Any]) -> None:
        """Insert or replace one run."""
        self._rows[row["id"]] = dict(row)

    def status(self) -> dict[str, tuple[str, int]]:
        """(status, attempts) of every run by id."""
        return {key: (row["status"], row["attempts"]) for key, row in self._rows.items()}

    def results(self, metric: str) -> dict[str, float]:
        """A metric of every run that has it, by id."""
        values = ((key, row.get(metric)) for key, row in self._rows.items() if row["status"] == "done")
        return {key: value for key, value in values if value is not None and value == value}

    def rows(self) -> list[Row]:
        """All runs in the order of the study."""
        return sorted(self._rows.values(), key=lambda row: (row["number"], row["id"]))

    def failures(self) -> list[Row]:
        """Failed runs, in the order of the study."""
        return [row for row in self.rows() if row["status"] == "failed"]

    def keep_only(self, planned: Iterable[str]) -> int:
        """Drop runs that are not planned; returns their number."""
        before, wanted = len(self._rows), set(planned)
        self._rows = {key: row for key, row in self._rows.items() if key in wanted}
        return before - len(self._rows)

    def set_about(self, **texts: str) -> None:
        """Ignored: memory keeps no facts."""


class Ledger:
    """Table `runs` of `sweep.db`; use as a context manager, inside `only_writer`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None)
            self._prepare()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        version = self._ask("PRAGMA user_version")[0][0]
        if version not in (0, SCHEMA):
            raise StoreError(f"{self.path}: written by another version of this software (schema {version})")
        if version == 0:
            columns = ", ".join(f"{name} {kind}" for name, kind in FIXED.items())
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(f"CREATE TABLE IF NOT EXISTS runs ({columns})")
            self._db.execute("CREATE TABLE IF NOT EXISTS former_runs (id TEXT PRIMARY KEY, row TEXT NOT NULL)")
            self._db.execute("CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
            self._db.execute(f"PRAGMA user_version = {SCHEMA}")
            self._db.execute("COMMIT")
        self.columns = self._read_columns()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction. Raises StoreError when it cannot be written (disk full)."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self.columns = self._read_columns()
            raise damaged(self.path, error) from error

    def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query. Raises StoreError when the file is damaged."""
        try:
            return self._db.execute(sql).fetchall()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def _read_columns(self) -> list[str]:
        return [row[1] for row in self._ask("PRAGMA table_info(runs)")]

    def put(self, row: Mapping[str, Any]) -> None:
        """Insert or replace one run, durably. Raises StoreError when it cannot be written."""
        self.put_all([row])

    def put_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert or replace runs, all or none. Raises StoreError when they cannot be written."""
        with self._transaction():
            for row in rows:
                self._put(row)

    def _put(self, row: Mapping[str, Any]) -> None:
        for name in row:
            if name not in self.columns:
                self._db.execute(f"ALTER TABLE runs ADD COLUMN {quoted(name)}")
                self.columns.append(name)
        names = ", ".join(quoted(name) for name in row)
        marks = ", ".join("?" * len(row))
        values = [to_cell(value) for value in row.values()]
        self._db.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({marks})", values)

    def keep_only(self, planned: Iterable[str]) -> int:
        """Move runs that are not planned to `former_runs`, and move planned ones back from there.

        Returns how many were moved away. A changed sweep file or code gives its runs new ids.
        """
        wanted = set(planned)
        some_away = any(key not in wanted for (key,) in self._ask("SELECT id FROM runs"))
        away = [row for row in self.rows() if row["id"] not in wanted] if some_away else []
        former = self._ask("SELECT id, row FROM former_runs")
        back = [from_json(text) for key, text in former if key in wanted]
        with self._transaction() as db:
            for row in back:
                self._put(row)
                db.execute("DELETE FROM former_runs WHERE id = ?", (row["id"],))
            for row in away:
                db.execute("INSERT OR REPLACE INTO former_runs VALUES (?, ?)", (row["id"], json.dumps(row)))
                db.execute("DELETE FROM runs WHERE id = ?", (row["id"],))
        return len(away)

    def status(self) -> dict[str, tuple[str, int]]:
        """(status, attempts) of every run by id."""
        return {key: (s, n) for key, s, n in self._ask("SELECT id, status, attempts FROM runs")}

    def results(self, metric: str) -> dict[str, float]:
        """A metric of every run that has it, by id."""
        if metric not in self.columns:
            return {}
        name = quoted(metric)
        return dict(self._ask(f"SELECT id, {name} FROM runs WHERE status = 'done' AND {name} IS NOT NULL"))

    def failures(self) -> list[Row]:
        """Failed runs, in the order of the sweep."""
        return self._rows("WHERE status = 'failed'")

    def rows(self) -> list[Row]:
        """All runs in the order of the sweep; missing columns of a run are left out."""
        return self._rows("")

    def _rows(self, where: str) -> list[Row]:
        found = self._ask(f"SELECT * FROM runs {where} ORDER BY number, id")
        return [
            {name: value for name, value in zip(self.columns, values, strict=True) if value is not None}
            for values in found
        ]

    def set_about(self, **texts: str) -> None:
        """Keep facts about the sweep (its file, versions)."""
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", list(texts.items()))

    def about(self) -> dict[str, str]:
        """Facts about the sweep."""
        return dict(self._ask("SELECT key, value FROM about ORDER BY key"))

    def export(self) -> Path:
        """Copy the table to `runs.parquet` in the ledger's folder, through a temporary file.

        Raises StoreError when it cannot be written.
        """
        target = self.path.with_name(PARQUET)
        try:
            write_copy(self._db, target)
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error
        except (duckdb.Error, OSError) as error:
            raise StoreError(f"{target}: cannot be written: {' '.join(str(error).split())}") from error
        return target


Store = MemoryStore | Ledger
"""Store of the rows of a study; a shard's file is also a memory store."""


@contextmanager
def ledger_with_copy(folder: Path) -> Iterator[Ledger]:
    """The ledger of a folder; without an error, `runs.parquet` is a copy of it at the end."""
    with Ledger(folder) as ledger:
        yield ledger
        ledger.export()
    _is_copy(folder)


def to_cell(value: Any) -> Any:
    """A value as SQLite can hold it: NaN as NULL, lists and sections as JSON."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json.dumps(value) if isinstance(value, list | dict) else value


def to_array(values: Sequence[Any], kind: str) -> np.ndarray[Any, Any]:
    """A column of one of `KINDS`: integers, floats (missing: NaN), or text."""
    if kind == "BIGINT":
        return np.array(values, dtype=np.int64)
    if kind == "DOUBLE":
        return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    return np.array([None if value is None else str(value) for value in values], dtype=object)


def connect(folder: str | Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with the views `runs`, and `jobs`, `segments`, ... if kept.

    `folder` is that of a sweep, of a comparison or of a run. The connection's relations convert to pandas (`.df()`),
    polars (`.pl()`) and Arrow (`.arrow()`), if installed. Raises InputError when the folder holds no such study, or
    a damaged one.
    """
    folder = Path(folder)
    connection = own_database()
    try:
        _add_views(connection, folder)
    except (duckdb.Error, OSError) as error:
        raise InputError([f"{folder}: cannot be read: {' '.join(str(error).split())}"]) from error
    return connection


def _add_views(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    if (folder / LEDGER).exists():
        _add_runs(connection, folder)
        add_kept(connection, folder / RUNS / "*", several=True)
    elif (folder / SUMMARY).exists():
        source = f"read_json({text(folder / SUMMARY)})"
        connection.execute(f"CREATE VIEW runs AS SELECT * EXCLUDE (totals, notes) FROM {source}")
        add_kept(connection, folder, several=False)
    else:
        raise InputError([f"{folder}: no sweep, comparison or run here (no {LEDGER} or {SUMMARY})"])


def _add_runs(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """The table `runs` of a ledger, from its copy, which is refreshed if it is old and can be written."""
    source = f"read_parquet({text(folder / PARQUET)})"
    if not is_current(folder):
        try:
            with reading(folder / LEDGER) as ledger:
                try:
                    write_copy(ledger, folder / PARQUET)
                    _is_copy(folder)
                except (duckdb.Error, OSError):  # a folder that cannot be written can be read
                    copy_runs(ledger, connection)
                    return
        except sqlite3.Error as error:
            raise InputError([str(damaged(folder / LEDGER, error))]) from error
    connection.execute(f"CREATE VIEW runs AS SELECT * FROM {source}")


def _is_copy(folder: Path) -> None:
    """Set the modification time of the copy to that of its closed ledger, to mark them as equal."""
    written_ns = (folder / LEDGER).stat().st_mtime_ns
    os.utime(folder / PARQUET, ns=(written_ns, written_ns))


def is_current(folder: Path) -> bool:
    """Whether `runs.parquet` is a copy of the ledger as it is."""
    ledger, copy, log = folder / LEDGER, folder / PARQUET, folder / f"{LEDGER}-wal"
    if not copy.exists() or (log.exists() and log.stat().st_size):
        return False
    return copy.stat().st_mtime_ns == ledger.stat().st_mtime_ns
