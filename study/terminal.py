"""Safe terminal output: control characters in files, names or values are escaped."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with every control character but the end of a line written out, as in `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
