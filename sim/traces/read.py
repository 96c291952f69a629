"""Job traces from files: `read_trace` and the `Trace` it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from equipoise.base.numerals import is_index
from equipoise.formats.recognise import recognise
from equipoise.formats.text.errors import FormatError
from equipoise.sim.scenario.model import TraceSpec
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import MAX_TIME_S
from equipoise.sim.traces.rows import chosen
from equipoise.sim.traces.site import JOB_FORMATS, read_rows
from equipoise.sim.traces.table import TextTable, header_of, left_out
from equipoise.sim.traces.trace import Bools, Ints, Trace, make_trace

# The own format: CSV with these columns, times in seconds, ids as text; other columns travel along as they are. Rows
# that equal an earlier one in every field, jobs of zero duration and jobs without GPUs are left out, with a note.
COLUMNS = ("job_id", "arrival_s", "gpus", "duration_s")
OPTIONAL = ("priority", "model", "cluster")


def read_csv(
    table: TextTable, limit: int | None, clusters: Sequence[str], time_scale: float, keep: Sequence[str] = ()
) -> Trace:
    """The trace in a table of this format. Raises InputError, one line per mistake."""
    table.need(COLUMNS, OPTIONAL)
    arrival_s = table.floats("arrival_s", low=0.0, high=MAX_TIME_S)
    gpus = table.ints("gpus", low=0)
    duration_s = table.floats("duration_s", low=0.0, high=MAX_TIME_S)
    priority = table.floats("priority", blank=1.0) if "priority" in table.header else None
    if priority is not None:
        table.refuse(priority <= 0, "priority", lambda k: f"{priority[k]:g} is not allowed, must be above 0")
    job_id, names, again, notes = _ids(table)
    columns = table.further((*COLUMNS, "model"))
    kept, dropped = left_out(
        {"equal to an earlier row": again, "zero duration": duration_s == 0, "no GPUs": gpus == 0}
        | {reason: ~rows for reason, rows in chosen(columns, keep, clusters, table.name).items()},
        table.line,
    )
    return make_trace(
        job_id,
        arrival_s,
        gpus,
        duration_s,
        priority=priority,
        model=table.text("model") if "model" in table.header else None,
        name=names,
        columns=columns,
        keep=kept,
        limit=limit,
        time_scale=time_scale,
        notes=notes,
        left_out=dropped,
        source=table.file,
        line=table.line,
    )


def _ids(table: TextTable) -> tuple[Ints, list[str] | None, Bools, list[str]]:
    """(numbers, names where they are none, rows equal to an earlier row, notes).

    Raises InputError for one id on two different rows, and for a row without one.
    """
    texts = table.text("job_id")
    again = np.zeros(len(table), dtype=np.bool_)
    first: dict[str, int] = {}
    double = np.zeros(len(table), dtype=np.bool_)
    for k, text in enumerate(texts):
        j = first.setdefault(text, k)
        if j != k:
            again[k] = table.rows[j] == table.rows[k]
            double[k] = not again[k]
    table.refuse(double, "job_id", lambda k: f"duplicate {texts[k]!r} (first on line {table.line[first[texts[k]]]})")
    table.refuse(np.array([not text for text in texts], dtype=np.bool_), "job_id", lambda k: "is empty")
    other = next((k for k, text in enumerate(texts) if not is_index(text) or int(text) >= 2**63), None)
    if other is None:
        return np.array([int(text) for text in texts], dtype=np.int64), None, again, []
    said = f"job_id {texts[other][:40]!r} in line {table.line[other]} is not a number"
    note = f"{said}: jobs keep these names and are numbered by row (from 0)"
    return np.arange(len(table), dtype=np.int64), texts, again, [note]


__all__ = ["FORMATS", "Trace", "check_format", "make_trace", "read_spec", "read_trace", "trace_format"]

FORMATS = ("csv", *JOB_FORMATS)
_UNITS = {"gpus": "GPUs", "cpus": "CPUs"}


def read_trace(
    path: str | Path,
    format: str = "auto",
    limit: int | None = None,
    clusters: Sequence[str] = (),
    time_scale: float = 1.0,
    *,
    columns: Mapping[str, str] | None = None,
    zone: str = "",
    keep: Sequence[str] = (),
    count: Literal["gpus", "cpus"] = "gpus",
) -> Trace:
    """Jobs of a file, packed or not, in order of arrival.

    format: one of FORMATS, or `auto` by the content. limit: only the earliest jobs. clusters: only these virtual
    clusters. time_scale: multiplies arrivals, below 1 raises the load. columns: of a CSV file that is none of the
    formats, such as {"arrival": "submit_time", "gpus": "gpu_num", "duration": "duration"}. zone: of the clock that
    wrote times without one. keep: `column=value` texts, such as `state=COMPLETED`. count: `cpus` takes each CPU
    core for one GPU, for clusters without.

    Raises InputError, one line `file:line:column: what is wrong` per mistake, and ValueError for an unknown format.
    """
    if format not in ("auto", *FORMATS):
        raise ValueError(f"unknown trace format {format!r}; allowed: auto, {', '.join(FORMATS)}")
    path = Path(path)
    if columns and format not in ("auto", "csv"):
        raise InputError([f"{path}: columns are for CSV files, not for the format {format!r}"])
    form = "columns" if columns else trace_format(path) if format == "auto" else format
    if form == "csv":
        if zone or count != "gpus":
            given = f"zone {zone!r}" if zone else f"count {count!r}"
            raise InputError([f"{path}: {given} has no effect on the format {form!r}; give columns"])
        trace = read_csv(TextTable(path), limit, clusters, time_scale, keep)
        if not len(trace):
            raise InputError([f"{path}: no jobs in it"])
        return trace
    unit = _UNITS[count]
    rows = read_rows(path, form, unit, zone, columns)
    return rows.trace(unit=unit, keep=keep, clusters=clusters, limit=limit, time_scale=time_scale)


def check_format(format: str) -> None:
    """Raises InputError for a format that is none."""
    if format not in ("auto", *FORMATS):
        raise InputError([f"workload.trace.format: {format!r}; allowed: auto, {', '.join(FORMATS)}"])


def read_spec(spec: TraceSpec, path: str | Path) -> Trace:
    """Jobs of the file at `path` as a scenario's `workload.trace` says. Raises InputError."""
    check_format(spec.format)
    given = ("format", "limit", "clusters", "time_scale", "columns", "zone", "keep", "count")
    return read_trace(path, **{key: getattr(spec, key) for key in given})


def trace_format(path: Path) -> str:
    """Which of FORMATS a file has. Raises InputError, one line on what it looks like, when it has none."""
    header = header_of(path)
    fit = len({*COLUMNS} & {*header}) / len(COLUMNS)
    if fit == 1:
        return "csv"
    try:
        found = recognise(path)
    except FormatError as error:
        if fit > 0.5 or not header:
            return "csv"  # whose reader says what is missing
        raise InputError([f"{error}; {_known(header)}"]) from error
    if found not in JOB_FORMATS:
        raise InputError([f"{path}: looks like {found}, which holds no jobs"])
    return found


def _known(header: Sequence[str]) -> str:
    more = "; or name them: --columns arrival=COLUMN,gpus=COLUMN,duration=COLUMN" if len(header) > 2 else ""
    return f"columns needed: csv: {','.join(COLUMNS)}{more}"
