"""Counts of rows that a reader left out, merged or changed."""

from __future__ import annotations

from dataclasses import dataclass

ACTIONS = ("left out", "merged", "changed", "noted")
"""`noted` rows are kept as they are; the reason is reported."""


@dataclass(frozen=True)
class TextChange:
    """`count` rows, the first of them at line `first_line` of the file (from 1)."""

    action: str
    reason: str
    count: int
    first_line: int


class RowTally:
    """Counts rows by action and reason."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[int]] = {}

    def add(self, action: str, reason: str, line: int, count: int = 1) -> None:
        """Count `count` rows, the first of them at `line`. Raises ValueError for an action not in ACTIONS."""
        if action not in ACTIONS:
            raise ValueError(f"unknown action {action!r}; allowed: {', '.join(ACTIONS)}")
        entry = self._found.setdefault((action, reason), [0, line])
        entry[0] += count
        entry[1] = min(entry[1], line)

    def changes(self) -> tuple[TextChange, ...]:
        """Every count, in order of ACTIONS and then of the first line."""
        found = [TextChange(action, reason, *entry) for (action, reason), entry in self._found.items()]
        return tuple(sorted(found, key=lambda c: (ACTIONS.index(c.action), c.first_line, c.reason)))
