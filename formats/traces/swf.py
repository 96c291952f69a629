"""The Standard Workload Format 2.2 of the Parallel Workloads Archive (Feitelson et al.): 18 numbers a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.formats.text.columns import Floats, Ints
from equipoise.formats.text.numbers import decimal
from equipoise.formats.text.tally import RowTally, TextChange
from equipoise.formats.text.textfile import TextFile

FIELDS = (
    "job_id",
    "submit_s",
    "wait_s",
    "run_s",
    "processors",
    "cpu_s",
    "memory_kib",
    "processors_requested",
    "time_requested_s",
    "memory_requested_kib",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding_job",
    "think_s",
)
_WHOLE = frozenset(FIELDS) - {"submit_s", "wait_s", "run_s", "cpu_s", "time_requested_s", "think_s"}
_WHOLE -= {"memory_kib", "memory_requested_kib"}


@dataclass(frozen=True, eq=False)
class SwfTable:
    """Jobs as equal-length columns, `table["wait_s"]`, by FIELDS; -1 stands for unknown, as in the file.

    submit_s: from the start of the log. memory_kib: per processor. status: 1 completed, 0 failed, 5 cancelled, 2
    to 4 parts of a job. line: where each row stands.
    """

    columns: Mapping[str, Floats | Ints]
    line: Ints
    changes: tuple[TextChange, ...]

    def __len__(self) -> int:
        return len(self.line)

    def __getitem__(self, field: str) -> Any:
        return self.columns[field]


def read_swf(source: str | Path | bytes, *, name: str = "") -> SwfTable:
    """Jobs of an SWF file. Raises FormatError when no line of it has 18 numbers."""
    tally, file = RowTally(), TextFile(source, name)
    rows: list[Sequence[float]] = []
    lines: list[int] = []
    for first, texts in file.chunks(tally):
        for number, line in enumerate(texts, first):
            if line.strip() and not line.lstrip().startswith((";", "#")):
                _add(line, number, rows, lines, tally)
    if not rows:
        raise file.error(0, f"not a line of {len(FIELDS)} numbers, as in SWF")
    table = np.array(rows, dtype=np.float64)
    columns = {
        field: table[:, k].astype(np.int64) if field in _WHOLE else table[:, k] for k, field in enumerate(FIELDS)
    }
    return SwfTable(columns, np.array(lines, dtype=np.int64), tally.changes())


def _add(line: str, number: int, rows: list[Sequence[float]], lines: list[int], tally: RowTally) -> None:
    values = [decimal(part) for part in line.split()]
    if len(values) != len(FIELDS):
        tally.add("left out", f"not {len(FIELDS)} fields", number)
        return
    numbers = [value for value in values if value is not None]
    whole = (value for value, field in zip(numbers, FIELDS, strict=False) if field in _WHOLE)
    if len(numbers) != len(values) or any(value != int(value) or abs(value) > 2**53 for value in whole):
        tally.add("left out", "a field that is not a number, or a broken number of what is counted", number)
        return
    rows.append(numbers)
    lines.append(number)
