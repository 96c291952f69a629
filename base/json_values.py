"""Plain data, as JSON has it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """A copy for JSON: arrays become lists, non-finite numbers null, and other types text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)


def number(value: object) -> float:
    """A number from JSON; NaN for null, other types, and numbers too large for a float."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def from_json(text: str | bytes) -> Any:
    """A value from JSON. Raises ValueError, also where it is nested too deeply or contains an unpaired surrogate."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    halves = ("\\ud", "\\uD") if isinstance(text, str) else (b"\\ud", b"\\uD")
    if any(half in text for half in halves):  # type: ignore[operator]
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("an unpaired surrogate, which is not text") from None
    return value
