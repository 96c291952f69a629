"""Columns of text in which each distinct text is kept once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Text:
    """A column of text: row k is `values[codes[k]]`. codes: (rows,)."""

    codes: Codes
    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    def __iter__(self) -> Iterator[str]:
        return map(self.values.__getitem__, self.codes.tolist())

    def tolist(self) -> list[str]:
        """Every row's text."""
        return list(self)

    def take(self, rows: NDArray[Any]) -> Text:
        """These rows (a mask or indices)."""
        return Text(self.codes[rows], self.values)

    def floats(self, convert: Callable[[str], float]) -> Floats:
        """Every row converted; each distinct text is converted once."""
        return np.array([convert(value) for value in self.values], dtype=np.float64)[self.codes]

    def mapped(self, convert: Callable[[str], str]) -> Text:
        """Every row's text replaced; each distinct text is converted once."""
        builder = TextBuilder()
        builder.add([convert(value) for value in self.values])
        new = builder.finish()
        return Text(new.codes[self.codes], new.values)


class TextBuilder:
    """Collects a `Text` from batches."""

    def __init__(self) -> None:
        self._code: defaultdict[str, int] = defaultdict(count().__next__)
        self._parts: list[Codes] = []

    def add(self, texts: Sequence[str]) -> None:
        """Append rows."""
        codes = map(self._code.__getitem__, texts)
        self._parts.append(np.fromiter(codes, dtype=np.int32, count=len(texts)))

    def finish(self) -> Text:
        """The column."""
        codes = np.concatenate(self._parts) if self._parts else np.empty(0, dtype=np.int32)
        return Text(codes, tuple(self._code))


def constant(text: str, rows: int) -> Text:
    """The same text in every row."""
    return Text(np.zeros(rows, dtype=np.int32), (text,))
