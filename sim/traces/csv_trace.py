"""Equipoise's own trace format: CSV with `job_id,arrival_s,gpus,duration_s[,priority,model,cluster,...]`.

Times are in seconds. Other columns are ignored. Rows that equal an earlier one in every field, jobs of zero
duration and jobs without GPUs are left out, and the trace's note says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.traces.table import MAX_TIME_S, Table, left_out
from sim.traces.trace import Bools, Ints, Trace, make_trace

COLUMNS = ("job_id", "arrival_s", "gpus", "duration_s")
OPTIONAL = ("priority", "model", "cluster")


def read_csv(table: Table, limit: int | None, clusters: Sequence[str], time_scale: float) -> Trace:
    """The trace in a table of this format. Raises InputError, one line per mistake."""
    table.need(COLUMNS, OPTIONAL)
    arrival_s = table.floats("arrival_s", low=0.0, high=MAX_TIME_S)
    gpus = table.ints("gpus", low=0)
    duration_s = table.floats("duration_s", low=0.0, high=MAX_TIME_S)
    priority = table.floats("priority", blank=1.0) if "priority" in table.header else None
    if priority is not None:
        table.refuse(priority <= 0, "priority", lambda k: f"{priority[k]:g} is not allowed, must be above 0")
    job_id, again, notes = _ids(table)
    kept, dropped = left_out(
        {"equal to an earlier row": again, "zero duration": duration_s == 0, "no GPUs": gpus == 0}
    )
    return make_trace(
        job_id,
        arrival_s,
        gpus,
        duration_s,
        priority=priority,
        model=table.text("model") if "model" in table.header else None,
        keep=kept & table.select("cluster", clusters),
        limit=limit,
        time_scale=time_scale,
        notes=[*notes, *dropped],
        source=table.file,
        line=table.line,
    )


def _ids(table: Table) -> tuple[Ints, Bools, list[str]]:
    """(ids, rows equal to an earlier row, notes). Raises InputError for one id on two different rows."""
    texts = table.text("job_id")
    again = np.zeros(len(table), dtype=np.bool_)
    first: dict[str, int] = {}
    double = np.zeros(len(table), dtype=np.bool_)
    for k, text in enumerate(texts):
        j = first.setdefault(text, k)
        if j != k:
            again[k] = table.rows[j] == table.rows[k]
            double[k] = not again[k]
    table.refuse(
        double, "job_id", lambda k: f"{texts[k]!r} already stands in line {table.line[first[texts[k]]]}"
    )
    try:
        return np.array([int(text) for text in texts], dtype=np.int64), again, []
    except (ValueError, OverflowError):
        rows = np.arange(len(table), dtype=np.int64)
        return rows, again, ["job_id is not a whole number everywhere, rows (from 0) are the ids"]
