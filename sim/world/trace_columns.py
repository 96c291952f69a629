"""Further columns of a trace's jobs, as a policy sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.observation import Floats, Labels


class TraceColumns(Mapping[str, Labels | Floats]):
    """The columns of the first `rows` jobs, each coded when it is first read; `coded` keeps that."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], rows: int, coded: dict[str, Labels | Floats]) -> None:
        self._columns, self._rows, self._coded = columns, rows, coded

    def __getitem__(self, name: str) -> Labels | Floats:
        whole = self._coded.get(name)
        if whole is None:
            whole = self._coded[name] = _coded(self._columns[name])
        if isinstance(whole, Labels):
            return Labels(whole.codes[: self._rows], whole.names)
        return whole[: self._rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _coded(column: NDArray[Any]) -> Labels | Floats:
    if column.dtype.kind not in "OU":
        numbers = column.astype(np.float64)
        numbers.flags.writeable = False
        return numbers
    names, codes = np.unique(column.astype(np.str_), return_inverse=True)
    codes = codes.astype(np.int64)
    codes.flags.writeable = False
    return Labels(codes, tuple(names.tolist()))
