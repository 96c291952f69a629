"""Equipoise's own trace format: CSV with `job_id,arrival_s,gpus,duration_s[,priority,model,cluster,...]`.

Times are in seconds. Other columns are ignored. Rows that equal an earlier one in every field, jobs of zero
duration and jobs without GPUs are left out, and the trace's note says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.policies.numerals import is_index
from equipoise.sim.scenario.units import MAX_TIME_S
from equipoise.sim.traces.table import Table, left_out
from equipoise.sim.traces.trace import Bools, Ints, Trace, make_trace

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
    plain = np.array([is_index(text) for text in texts], dtype=np.bool_)
    names = np.array([any(map(str.isalpha, text)) for text in texts], dtype=np.bool_)
    wanted = "is not a whole number such as 0, 1, 2, nor a name"
    table.refuse(~plain & ~names, "job_id", lambda k: f"{texts[k][:40]!r} {wanted}")
    if not names.any():
        whole = [int(text) for text in texts]
        large = np.array([number >= 2**63 for number in whole], dtype=np.bool_)
        table.refuse(large, "job_id", lambda k: f"{texts[k][:40]} is too large, must be below 2^63")
        return np.array(whole, dtype=np.int64), again, []
    k = int(np.argmax(names))
    note = f"job_id {texts[k][:40]!r} in line {table.line[k]} is no number: rows (from 0) are the ids of all jobs"
    return np.arange(len(table), dtype=np.int64), again, [note]
