"""Types of settings that are checked where they are given, with an error in one line."""

from __future__ import annotations

import functools
import operator
import reprlib
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError


def _whole(value: Any) -> int:
    """A whole number of any integer type; no boolean."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError("a whole number")
    return operator.index(value)


def _real(value: Any) -> float:
    """A number; no boolean and no text."""
    if isinstance(value, bool | str) or (not hasattr(value, "__float__") and not hasattr(value, "__index__")):
        raise ValueError("a number")
    return float(value)


Whole = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Real = Annotated[float, BeforeValidator(_real)]
Positive = Annotated[float, BeforeValidator(_real), Field(gt=0, allow_inf_nan=False)]


@functools.cache
def _adapters(kind: Any) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(kind)}


def follow(settings: Any, where: str = "") -> None:
    """Check a frozen dataclass by the types of its fields, and convert the values to these.

    Raises ValueError for the first that is not allowed, in one line: its name, its value, what is allowed.
    """
    kind: Any = type(settings)
    for name, adapter in _adapters(kind).items():
        value = getattr(settings, name)
        try:
            object.__setattr__(settings, name, adapter.validate_python(value))
        except (ValidationError, TypeError) as error:
            found = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else "another type"
            needed = found.removeprefix("Value error, ").removeprefix("Input should be ")
            given = " ".join(reprlib.repr(value).split())
            raise ValueError(f"{where}{name}: {given} is not allowed; needed: {needed}") from None
