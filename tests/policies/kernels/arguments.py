"""Arguments of kernels as stages hand them over, so that tests compile no kernel a second time."""

from __future__ import annotations

from typing import Any


def as_used(marks: str, *arguments: Any) -> list[Any]:
    """The arguments, those marked R (arrays, or tuples of arrays) as the columns of a table: they can only be read.

    Numba compiles a kernel for each combination of arrays that can be written and that cannot.
    """
    return [_read_only(a) if mark == "R" else a for mark, a in zip(marks, arguments, strict=True)]


def _read_only(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_read_only, value))
    seen = value.view()
    seen.flags.writeable = False
    return seen
