"""Escaping of CSV texts that a spreadsheet would read as formulas.

A cell that begins with `=`, `+`, `-`, `@`, a tab or an end of line may be run as a formula when the file is opened
(OWASP, "CSV Injection"). Such a text is written behind an apostrophe, and read without it; one that has an
apostrophe there already gets one more, so that every text comes back as it was. Numbers stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

FORMULA = r"'*[=+\-@\t\r\n＝＋－＠]"
"""How such a text begins, as a regular expression; the last four are the signs in full width."""
NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"

_FORMULA, _NUMBER = re.compile(FORMULA), re.compile(NUMBER)


def guarded(value: Any) -> Any:
    """The written form of a value: a text that looks like a formula gets an apostrophe in front."""
    if not isinstance(value, str) or not _FORMULA.match(value) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def unguarded(text: str) -> str:
    """The text that was written as `text`."""
    return text[1:] if text[:1] == "'" and _FORMULA.match(text) else text
