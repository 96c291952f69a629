"""Fast access to single elements of arrays."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


def cells(array: NDArray[Any]) -> Any:
    """A view for single elements, which Python reads, writes and adds in half the time or less.

    Elements are plain Python numbers; the length of `array` must not change.
    """
    return memoryview(array)  # type: ignore[arg-type]
