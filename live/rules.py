"""Rules for settings: the allowed values, as text and as code."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

# Conversion of a value (TypeError or ValueError: not allowed), and the allowed values as text.
Rule = tuple[Callable[[Any], Any], str]


def whole(low: int, high: float = math.inf) -> Rule:
    """A whole number of any integer type, `low` and `high` included; no boolean."""

    def take(value: Any) -> int:
        """The value, or ValueError if it is not allowed."""
        number = operator.index(value)
        if isinstance(value, bool) or not low <= number <= high:
            raise ValueError
        return number

    return (take, f"a whole number of at least {low}" if high == math.inf else f"a whole number, {low} to {high}")


def real(holds: Callable[[float], bool], text: str) -> Rule:
    """A number for which `holds` is true; no boolean and no text."""

    def take(value: Any) -> float:
        """The value, or ValueError if it is not allowed."""
        if isinstance(value, bool | str) or not holds(float(value)):
            raise ValueError
        return float(value)

    return take, text


def one_of(*allowed: Any) -> Rule:
    """One of these values, of exactly its type."""

    def take(value: Any) -> Any:
        """The value, or ValueError if it is not allowed."""
        found = next((a for a in allowed if type(value) is type(a) and value == a), None)
        if found is None:
            raise ValueError
        return found

    return take, f"one of {', '.join(str(a) for a in allowed)}"


def optional(rule: Rule) -> Rule:
    """None, or a value that the rule allows."""
    return (lambda value: None if value is None else rule[0](value)), f"{rule[1]}, or None"


def follow(rules: Mapping[str, Rule], settings: Any, where: str = "") -> None:
    """Convert all settings of a frozen object to their plain types.

    Raises ValueError for the first that is not allowed, in one line: its name, its value, the allowed values.
    """
    for name, (take, text) in rules.items():
        value = getattr(settings, name)
        try:
            object.__setattr__(settings, name, take(value))
        except (TypeError, ValueError, AttributeError, OverflowError):
            given = " ".join(reprlib.repr(value).split())
            raise ValueError(f"{where}{name}: {given} is not allowed; needed: {text}") from None
