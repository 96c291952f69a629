"""Equipoise's own trace format: CSV with `job_id,arrival_s,gpus,duration_s[,priority,model,cluster,...]`.

Times are in seconds. Ids are text; other columns travel along as they are. Rows that equal an earlier one in every
field, jobs of zero duration and jobs without GPUs are left out, and the trace's note says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.base.numerals import is_index
from equipoise.sim.scenario.units import MAX_TIME_S
from equipoise.sim.traces.rows import chosen
from equipoise.sim.traces.table import TextTable, left_out
from equipoise.sim.traces.trace import Bools, Ints, Trace, make_trace

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
        | {reason: ~rows for reason, rows in chosen(columns, keep, clusters, table.name).items()}
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
        notes=[*notes, *dropped],
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
