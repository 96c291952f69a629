"""Rows of a CSV file that the user measured, read strictly."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from equipoise.base.regular import RefusedError, read_file

MOST_BYTES = 256_000_000


class CsvRows:
    """The rows of a file: its column names, then (line, text of each column); a text that is not there is "".

    Raises ValueError, `file:line: what is wrong`, and OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = read_file(path, MOST_BYTES).decode("utf-8-sig")
        except RefusedError as error:
            raise ValueError(f"{path}: {error}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from None
        self._reader = csv.reader(text.splitlines(keepends=True), strict=True)
        self.columns = next(self._lines(), (1, []))[1]
        for column, times in Counter(self.columns).items():
            if times > 1:
                raise ValueError(f"{path}:1: {column}: duplicate column")

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        for line, row in self._lines():
            if len(row) > len(self.columns):
                raise ValueError(f"{self._path}:{line}: {len(row)} values, but there are {len(self.columns)} columns")
            yield line, dict.fromkeys(self.columns, "") | dict(zip(self.columns, row, strict=False))

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        try:
            for row in self._reader:
                if row:
                    yield self._reader.line_num, row
        except csv.Error as error:
            raise ValueError(f"{self._path}:{self._reader.line_num}: not a table: {error}") from None
