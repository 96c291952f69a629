"""Numbers in text, read in one strict way: ASCII digits, a point, an exponent, and nothing else.

Python's own `int` and `float` also take digit separators (`1_0` is 10), digits of every script, blanks, `nan` and
`infinity`, so that a typing error would silently become another number.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser

_INT = re.compile(r"[-+]?[0-9]{1,4000}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def strict_int(text: str) -> int:
    """The whole number that `text` is, in decimal digits with at most a sign. Raises ValueError."""
    if _INT.fullmatch(text) is None:
        raise ValueError(f"{_shown(text)} is not a whole number{_hint(text)}")
    return int(text)


def strict_float(text: str) -> float:
    """The number that `text` is: digits, a point, an exponent; infinite where that is too large for a float.

    Raises ValueError.
    """
    if _FLOAT.fullmatch(text) is None:
        raise ValueError(f"{_shown(text)} is not a number{_hint(text)}")
    return float(text)


def is_index(text: str) -> bool:
    """Whether `text` is a plain number of at least 0, without a sign."""
    return text[:1] not in ("+", "-") and _INT.fullmatch(text) is not None


def plain_numbers(parser: ArgumentParser) -> None:
    """Have the arguments of `parser` whose type is int or float read in this way."""
    parser.register("type", int, strict_int)
    parser.register("type", float, strict_float)


def _hint(text: str) -> str:
    for mark in ("_", ","):
        if mark in text and _FLOAT.fullmatch(text.replace(mark, "")):
            return f"; write it without {mark!r}"
    return ""


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else repr(text)[:57] + "..."
