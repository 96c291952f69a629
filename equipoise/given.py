"""Checks of the arguments of public functions; errors are one line that names what is allowed."""

from __future__ import annotations

import operator
import os
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from equipoise.sim.scenario.tree import InputError


def wrong(name: str, given: object, allowed: str) -> InputError:
    """The error for a value that is not allowed."""
    return InputError([f"{name}: {reprlib.repr(given)} is not allowed; allowed: {allowed}"])


def path_of(name: str, given: Any, allowed: str = "a path") -> str | Path:
    """The path as given. Raises InputError, which names `allowed`, for anything but a string or a path."""
    if isinstance(given, str | Path):
        return given
    if not isinstance(given, os.PathLike) or not isinstance(os.fspath(given), str):
        raise wrong(name, given, allowed)
    return Path(given)


def texts_of(name: str, given: Any, example: str) -> tuple[str, ...]:
    """A tuple from a list of strings. Raises InputError for anything else, including a single string."""
    texts = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | dict) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise wrong(name, given, f"a list of strings, such as [{example!r}]")
    return texts


def whole_of(name: str, given: Any, least: int | None = None) -> int:
    """An integer of at least `least`. Raises InputError for anything else, including booleans."""
    try:
        number = operator.index(given)
    except TypeError:
        number = None
    if number is None or isinstance(given, bool) or (least is not None and number < least):
        raise wrong(name, given, "a whole number" + ("" if least is None else f" of at least {least}"))
    return number


def called(name: str, given: Any) -> None:
    """Raise InputError for anything but None or a function."""
    if given is not None and not callable(given):
        raise wrong(name, given, "a function, or None")
