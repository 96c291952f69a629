"""JSON files read strictly: no NaN, and a one-line error when a file is not JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile

_BLANKS = re.compile(r"[ \t\r\n]*")


def load_json(file: TextFile, tally: RowTally) -> Any:
    """The value in a file. Raises FormatError."""
    text = file.text(tally)
    values = list(parse_values(file, text))
    if len(values) > 1:
        raise file.error(0, "not JSON: several values, one after the other")
    return values[0]


def parse_values(file: TextFile, text: str) -> Iterator[Any]:
    """The values in a file's text, one after the other. Raises FormatError, at the line of the mistake."""
    decoder, at = json.JSONDecoder(parse_constant=_refuse), 0
    try:
        while (begin := _BLANKS.match(text, at).end()) < len(text) or not at:  # type: ignore[union-attr]
            value, at = decoder.raw_decode(text, begin)
            yield value
    except json.JSONDecodeError as error:
        raise file.error(error.lineno, f"not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise file.error(0, f"not JSON that can be read: {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def path(value: Any, *keys: str) -> Any:
    """`value[a][b]...`, None where a mapping or a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def first_of(value: Any, keys: Iterable[str]) -> Any:
    """The first of these keys (dots go deeper) that is there and not None."""
    for key in keys:
        found = path(value, *key.split("."))
        if found is not None:
            return found
    return None
