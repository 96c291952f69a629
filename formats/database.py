"""The one way to open DuckDB."""

from __future__ import annotations

import os

import duckdb

_shared: list[duckdb.DuckDBPyConnection] = []


def database() -> duckdb.DuckDBPyConnection:
    """A connection to read or write a file with: to one empty database of this process.

    Opening a database takes 20 ms of processor time, a further connection to it a hundredth of that. Who makes
    tables or views in it, or changes its settings, needs `own_database`.
    """
    for known in _shared:
        try:
            connection = known.cursor()
            connection.execute("SELECT 1").fetchall()
        except duckdb.Error:  # after an error inside DuckDB a database answers nothing any more
            break
        return connection
    _shared[:] = [own_database()]
    return _shared[0].cursor()


def own_database() -> duckdb.DuckDBPyConnection:
    """A connection with one thread, whose answers come in the order of the files, to a new empty database.

    With two, Ctrl-C is often heard when the question has ended and not before: the thread that asks waits for the
    other one, and looks at no signal meanwhile. With one it is heard in half a second. No file is kept in memory:
    another may have taken its place.
    """
    config = {"threads": "1", "enable_external_file_cache": "false"}
    return duckdb.connect(config=config)  # noqa: TID251


os.register_at_fork(before=_shared.clear)  # a process that ends with a database of another one waits for ever
