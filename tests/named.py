"""Test files by their names, wherever they stand below `tests/`."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent


def path_of(name: str) -> str:
    """Where `test_NAME.py` stands, from the root of the checkout; `ROOM/NAME` looks below `tests/ROOM` alone.

    Raises LookupError when there is none, or two.
    """
    room, _, file = name.rpartition("/")
    found = sorted((HERE / room).rglob(f"test_{file}.py"))
    if len(found) != 1:
        raise LookupError(f"{len(found)} files are called {name}")
    return str(found[0].relative_to(HERE.parent))
