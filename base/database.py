"""Connections to DuckDB."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

_shared: list[duckdb.DuckDBPyConnection] = []


def database() -> duckdb.DuckDBPyConnection:
    """A connection to one empty database shared by this process, for reading and writing files.

    Opening a database takes 20 ms of processor time, a further connection to it a hundredth of that. Code that
    creates tables or views, or changes settings, needs `own_database`.
    """
    if _shared:
        try:
            connection = _shared[0].cursor()
            connection.execute("SELECT 1").fetchall()
            return connection
        except duckdb.Error:  # after an error inside DuckDB a database answers nothing any more
            pass
    _shared[:] = [own_database()]
    return _shared[0].cursor()


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """DuckDB writes `target` inside. Raises OSError with the system's words where it cannot, as on a full disk."""
    try:
        yield
    except duckdb.IOException as error:
        told = re.search(r'"errno":"([0-9]+)"', str(error))
        number = int(told[1]) if told else errno.EIO
        raise OSError(number, os.strerror(number), str(target)) from error


def own_database() -> duckdb.DuckDBPyConnection:
    """A connection with one thread, whose answers come in the order of the files, to a new empty database.

    With two, Ctrl-C is often heard when the question has ended and not before: the thread that asks waits for the
    other one, and looks at no signal meanwhile. With one it is heard in half a second. No file is kept in memory:
    another may have taken its place.
    """
    config = {"threads": "1", "enable_external_file_cache": "false"}
    return duckdb.connect(config=config)  # noqa: TID251


os.register_at_fork(before=_shared.clear)  # a process that ends with a database of another one waits for ever
