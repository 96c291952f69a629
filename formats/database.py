"""The one way to open DuckDB."""

from __future__ import annotations

import duckdb


def database() -> duckdb.DuckDBPyConnection:
    """A connection with one thread, whose answers come in the order of the files.

    With two, Ctrl-C is often heard when the question has ended and not before: the thread that asks waits for the
    other one, and looks at no signal meanwhile. With one it is heard in half a second.
    """
    return duckdb.connect(config={"threads": "1"})  # noqa: TID251
