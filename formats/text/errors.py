"""The one error of this package."""

from __future__ import annotations


class FormatError(ValueError):
    """A file that cannot be read as what it should be. One line: `file:line: what is wrong, what is allowed`."""

    def __init__(self, message: str) -> None:
        """Keep the message on one line, whatever the file contains."""
        super().__init__("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message))


def shown(text: str, limit: int = 60) -> str:
    """A text for an error line: quoted, control characters escaped, cut to `limit` characters."""
    return repr(text if len(text) <= limit else text[:limit] + "...")
