"""One folder holds one study: a run, a comparison or a sweep.

A run directory has `config.yaml`, `manifest.json`, `jobs.parquet` and, when the run has ended, `summary.json`. A
comparison or a sweep has a ledger with a row per run, and below `runs/` a run directory per run that was kept, by
the run's id; a comparison that has ended has its result in `comparison.json`, a search for the best values in
`tune.json` beside its ledger. The answer of `size` is `size.json`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from equipoise.base.json_values import from_json
from equipoise.base.regular import RECORD_BYTES, RefusedError, read_file
from equipoise.sim.scenario.tree import InputError

Kind = Literal["run", "comparison", "sweep", "size"]
LEDGER, RUNS, SHARDS = "sweep.db", "runs", "shards"
COMPARISON, MANIFEST, SUMMARY = "comparison.json", "manifest.json", "summary.json"
SIZE, TUNE, DECISION = "size.json", "tune.json", "decision.json"
_MARKS = {"sweep": LEDGER, "comparison": COMPARISON, "run": MANIFEST, "size": SIZE}
_OWN = (*_MARKS.values(), SUMMARY, "config.yaml", "jobs.parquet", "runs.parquet", "journal.jsonl")


def kind_of(folder: Path) -> Kind | None:
    """Kind of study in a folder, if any; an unfinished comparison has only its ledger."""
    if (folder / COMPARISON).is_file():
        return "comparison"
    if (folder / LEDGER).is_file():
        return _kind_by(folder / LEDGER)
    if (folder / MANIFEST).is_file():
        return "run"
    return "size" if (folder / SIZE).is_file() else None


def _kind_by(ledger: Path) -> Kind | None:
    """Kind of study recorded in a ledger; None if the study was killed before recording it."""
    try:
        with reading(ledger) as db:
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                return None
            about = dict(db.execute("SELECT key, value FROM about").fetchall())
    except sqlite3.Error:
        return "sweep"  # damaged, or not ours: whoever reads it says so
    return "comparison" if about.get("study") == "comparison" else "sweep" if about else None


@contextmanager
def reading(ledger: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection to a ledger, also on a read-only file system. Raises sqlite3.Error."""
    log = Path(f"{ledger}-wal")
    # SQLite writes files beside a database in write-ahead mode, unless nobody will change it meanwhile.
    ways = ["mode=rw", "mode=ro", *([] if log.exists() and log.stat().st_size else ["mode=ro&immutable=1"])]
    for way in ways:
        with closing(sqlite3.connect(f"file:{quote(str(ledger.absolute()))}?{way}", uri=True)) as db:
            try:
                db.execute("SELECT 1 FROM sqlite_master").fetchone()
            except sqlite3.OperationalError:
                if way == ways[-1]:
                    raise
            else:
                yield db
                return


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises InputError when it cannot be read or is not an object."""
    try:
        content = from_json(read_file(path, RECORD_BYTES))
    except OSError as error:
        raise InputError([f"{path}: cannot be read: {error.strerror}"]) from error
    except RefusedError as error:
        raise InputError([f"{path}: {error}"]) from error
    except ValueError as error:
        raise InputError([f"{path}: is damaged: {error}"]) from error
    if not isinstance(content, dict):
        raise InputError([f"{path}: is damaged: a section is needed, not {type(content).__name__}"])
    return content


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the run in a folder. Raises InputError when it cannot be read or is damaged."""
    path = folder / MANIFEST
    content = read_json(path)
    for key, kind, wanted in (("policy", str, "a text"), ("seed", int, "a whole number")):
        if not isinstance(content.get(key, kind()), kind):
            raise InputError([f"{path}: is damaged: {key}: {wanted} is needed"])
    return content


def check_target(path: str | Path, suffixes: tuple[str, ...]) -> None:
    """Raises InputError when writing `path` would overwrite anything but an earlier output of this kind.

    suffixes: those of such an output; an existing file with another suffix is not overwritten.
    """
    target = Path(path)
    if not str(path).strip():
        raise InputError(["--out: a file name is needed"])
    _check_text(target)
    inside = target.parent.name == "timeline"
    study = target.parent.parent if inside else target.parent
    own = (inside or target.name in _OWN) and kind_of(study) is not None
    if target.is_file() and (own or not target.name.endswith(suffixes)):
        kind = " or ".join(suffixes)
        why = "is a part of a result" if own else f"is there and is no {kind} file"
        raise InputError([f"{target}: {why}, which would be lost; choose another name"])


def check_free(folder: str | Path, kind: Kind) -> None:
    """Raises InputError when the folder holds a study of another kind.

    Also where its path is not UTF-8 text: no table of results could be written, or read.
    """
    _check_text(Path(folder))
    other = kind_of(Path(folder))
    if other is not None and other != kind:
        raise InputError([f"{folder}: holds a {other} ({_MARKS[other]}), so no {kind}; choose another folder"])


def _check_text(path: Path) -> None:
    """Raises InputError for a path with bytes that are not UTF-8, which DuckDB does not take."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise InputError([f"{path.absolute()}: the path is not UTF-8 text; choose another name"]) from error


class HeldError(RuntimeError):
    """Another run writes into the folder."""


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Lock a run directory for one run, if the file system supports it; leaves no file in it.

    Raises HeldError when another run holds the lock.
    """
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            os.close(held)
            told = f"{folder}: another run is writing here; wait for it, or choose another folder"
            raise HeldError(told) from None
    try:
        yield
    finally:
        os.close(held)
