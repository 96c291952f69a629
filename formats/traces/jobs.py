"""A table of jobs of a published trace, built from columns of a CSV file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from equipoise.formats.text.columns import Bools, Floats, Ints, Text, constant
from equipoise.formats.text.csvfile import CsvTable
from equipoise.formats.text.errors import FormatError, shown
from equipoise.formats.text.numbers import decimal, duration_s
from equipoise.formats.text.tally import TextChange
from equipoise.formats.text.times import MILLISECONDS_FROM, MISSING, parse_times, to_utc, zone_of

TEXTS = ("job_id", "gpu_type", "user", "group", "state", "kind")
TIMES = ("submit", "start", "end")
NUMBERS = ("gpus", "cpus", "nodes", "priority")
PASSED = ("partition", "queue", "qos")
"""Texts that travel under these names, as a file's own columns of these names do."""

TARGETS = (*TEXTS, *TIMES, "duration", *NUMBERS, *PASSED)
"""What a column can be told to be."""

ALIASES = {
    "arrival": "submit",
    "arrival_s": "submit",
    "duration_s": "duration",
    "model": "kind",
    "cluster": "group",
    "account": "group",
    "id": "job_id",
}
_BLANK = MISSING - {"0"}


@dataclass(frozen=True, eq=False)
class TraceJobs:
    """Jobs as equal-length columns, in the order of the file; NaN where the file does not say.

    submit_s, start_s, end_s: UTC seconds since 1970, or seconds of the trace's own clock. duration_s: of the run.
    gpus: of the whole job, a fraction where GPUs are shared. group: virtual cluster, project or the like. kind:
    what the job is (`type`, model, role). attempts: 1 where not given. other: further columns by name.
    """

    job_id: Text
    submit_s: Floats
    start_s: Floats
    end_s: Floats
    duration_s: Floats
    gpus: Floats
    gpu_type: Text
    cpus: Floats
    nodes: Floats
    priority: Floats
    user: Text
    group: Text
    state: Text
    kind: Text
    attempts: Ints
    line: Ints
    other: Mapping[str, Text] = field(default_factory=dict)
    changes: tuple[TextChange, ...] = ()

    def __len__(self) -> int:
        return len(self.line)


def jobs_of(table: CsvTable, columns: Mapping[str, str], zone: str = "UTC") -> TraceJobs:
    """The jobs of a table: `columns` maps each of TARGETS to its column.

    A column of times holds dates (with a zone, or of the clock in `zone`), or seconds throughout. What is not
    understood is counted and taken as not given; a missing start, end or duration follows from the others.
    Raises FormatError for a target or a column that is not there.
    """
    wanted = {ALIASES.get(target, target): column for target, column in columns.items()}
    for target, column in wanted.items():
        if target not in TARGETS:
            raise FormatError(f"{table.name}: {shown(target)} is not known; allowed: {', '.join(TARGETS)}")
        if column not in table.columns:
            found = ", ".join(list(table.columns)[:40])
            raise FormatError(f"{table.name}:1: column {shown(column)} is missing; found: {found}")
    clock = zone_of(zone)
    times = {target: times_of(table, wanted.get(target), clock, zone) for target in TIMES}
    duration = _numbers(table, wanted.get("duration"), _seconds)
    start, end = times["start"], times["end"]
    own: dict[str, Any] = {target: _numbers(table, wanted.get(target), decimal) for target in NUMBERS}
    own |= {target: _text(table, wanted.get(target)) for target in TEXTS}
    rows = len(table)
    if "job_id" not in wanted:
        own["job_id"] = Text(np.arange(rows, dtype=np.int32), tuple(map(str, range(rows))))
    used = set(wanted.values())
    passed = {target: table.columns[wanted[target]] for target in PASSED if target in wanted}
    return TraceJobs(
        submit_s=times["submit"],
        start_s=np.where(np.isnan(start), end - duration, start),
        end_s=np.where(np.isnan(end), start + duration, end),
        duration_s=np.where(np.isnan(duration), end - start, duration),
        attempts=np.ones(rows, dtype=np.int64),
        line=table.line,
        other={name: text for name, text in table.columns.items() if name not in used} | passed,
        changes=table.tally.changes(),
        **own,
    )


def _text(table: CsvTable, column: str | None) -> Text:
    return constant("", len(table)) if column is None else table.columns[column]


def _seconds(text: str) -> float | None:
    number = decimal(text)
    return duration_s(text) if number is None else number


def _numbers(table: CsvTable, column: str | None, convert: Callable[[str], float | None]) -> Floats:
    """A column as numbers; other values are counted."""
    if column is None:
        return np.full(len(table), np.nan)
    text = table.columns[column]
    values = [convert(value) for value in text.values]
    blank = [value.lower() in _BLANK for value in text.values]
    bad = np.array([v is None and not b for v, b in zip(values, blank, strict=True)], dtype=np.bool_)
    _count(table, f"{column} is not a number, ignored", bad[text.codes] if len(bad) else bad)
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)[text.codes]


def times_of(table: CsvTable, column: str | None, clock: ZoneInfo | timezone, zone: str) -> Floats:
    """UTC seconds of a column, NaN where there is no time; what is not understood is counted."""
    if column is None:
        return np.full(len(table), np.nan)
    text = table.columns[column]
    filled = [value for value in text.values if value.lower() not in _BLANK]
    if all(decimal(value) is not None for value in filled):
        numbers = _numbers(table, column, decimal)
        large = numbers >= MILLISECONDS_FROM
        _count(table, f"{column} counts milliseconds", large, "noted")
        return np.where(large, numbers / 1000.0, numbers)
    seconds, naive, bad = parse_times(text.values)
    seconds, odd = to_utc(seconds, naive, clock)
    rows = text.codes
    _count(table, f"{column} is not a time, ignored", bad[rows])
    _count(table, f"{column} falls into a change of {zone}'s clock, the earlier time is used", odd[rows], "noted")
    _count(table, f"{column} without a zone read as {zone}", naive[rows], "noted")
    return seconds[rows]


def _count(table: CsvTable, reason: str, rows: Bools, action: str = "changed") -> None:
    if rows.any():
        table.tally.add(action, reason, int(table.line[rows].min()), int(rows.sum()))


def summed(rows: Ints, amounts: Floats, count: int) -> Floats:
    """The sums of amounts by the row, of `count`, that they belong to."""
    total = np.zeros(count)
    np.add.at(total, rows, amounts)
    return total
