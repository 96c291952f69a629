"""Configuration lines of Slurm: `Key=Value Key=Value`, comments, continuation, Include."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from equipoise.formats.slurm.hostlist import expand_hosts
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile

MAX_INCLUDES = 100
"""Files one configuration may include, one within another; more are taken for a circle."""

_PAIR = re.compile(r"""([A-Za-z][A-Za-z0-9_]*)\s*(\+?=)\s*("[^"]*"|'[^']*'|[^\s"']\S*|)""")


@dataclass(frozen=True)
class ConfigLine:
    """One logical line: `pairs` in its order, keys in lower case. where: `file:line`. rest: text other than pairs."""

    where: str
    line: int
    pairs: tuple[tuple[str, str], ...]
    rest: str = ""

    def get(self, key: str, default: str = "") -> str:
        """The value of a key, the last one if it is repeated."""
        return dict(self.pairs).get(key, default)


def config_lines(source: str | Path | bytes, tally: RowTally, *, name: str = "") -> Iterator[ConfigLine]:
    """Logical lines of a configuration and of what it includes. Raises FormatError.

    An included file is looked up in the folder of the file that names it; a missing one is counted.
    """
    yield from _lines(source, tally, name, [0])


def _lines(source: str | Path | bytes, tally: RowTally, name: str, included: list[int]) -> Iterator[ConfigLine]:
    file = TextFile(source, name)
    folder = None if isinstance(source, bytes) else Path(source).parent
    for number, text in _joined(file, tally):
        words = text.split(None, 1)
        if words and words[0].lower() == "include" and len(words) == 2 and "=" not in words[0]:
            yield from _included(words[1].strip(), folder, number, tally, file, included)
        else:
            yield _config_line(text, number, file.name)


def _joined(file: TextFile, tally: RowTally) -> Iterator[tuple[int, str]]:
    """(number, text) of logical lines: without comments, joined where a line ends in a backslash."""
    text, begin = "", 0
    for first, lines in file.chunks(tally):
        for number, line in enumerate(lines, first):
            bare = _without_comment(line).rstrip()
            begin = begin or number
            if bare.endswith("\\"):
                text += bare[:-1] + " "
                continue
            if (text + bare).strip():
                yield begin, (text + bare).strip()
            text, begin = "", 0
    if text.strip():
        yield begin, text.strip()


def _without_comment(line: str) -> str:
    """The line up to `#`, unless a backslash escapes it."""
    return re.sub(r"(?<!\\)#.*", "", line).replace("\\#", "#")


def _included(
    target: str, folder: Path | None, number: int, tally: RowTally, file: TextFile, included: list[int]
) -> Iterator[ConfigLine]:
    included[0] += 1
    if included[0] > MAX_INCLUDES:
        raise file.error(number, f"more than {MAX_INCLUDES} files included: the files include each other")
    path = None if folder is None else folder / Path(target).name
    if path is None or not path.is_file():
        tally.add("left out", f"Include {target}: not found in the folder of the file", number)
        return
    yield from _lines(path, tally, "", included)


def _config_line(text: str, number: int, name: str) -> ConfigLine:
    pairs = tuple((m[1].lower(), m[3].strip("\"'")) for m in _PAIR.finditer(text))
    return ConfigLine(f"{name}:{number}", number, pairs, _PAIR.sub("", text).strip())


def hosts_of(line: ConfigLine, text: str) -> tuple[str, ...]:
    """The names of a host list in a line. Raises FormatError, at that line."""
    try:
        return expand_hosts(text)
    except FormatError as error:
        raise FormatError(f"{line.where}: {error}") from error
