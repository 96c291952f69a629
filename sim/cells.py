"""Single numbers of arrays, for what changes one job at a time."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


def cells(array: NDArray[Any]) -> Any:
    """The same numbers, for one at a time: Python reads, writes and adds them in half the time or less.

    They come as Python's own numbers; `array` must stay as long as it is.
    """
    return memoryview(array)  # type: ignore[arg-type]
