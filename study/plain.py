"""Plain data, as JSON has it."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Plain data for JSON: what is not finite is null, what JSON has no word for is text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if isinstance(value, str | int | None) else str(value)
