"""Philly-style traces: CSV with `timestamp,duration,num_gpus[,gpu_time][,cluster]` (Jeon et al. 2019).

`timestamp` is a date and time (`2017-10-09 07:01:55`, with `T` or a trailing `Z` too) or seconds; arrivals
are counted from the earliest. There are no ids, so a job's id is its row (from 0), and rows that are equal in
every field may be different jobs: they are kept. Jobs without duration or GPUs are left out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np

from equipoise.sim.scenario.units import MAX_TIME_S
from equipoise.sim.traces.keep import chosen
from equipoise.sim.traces.table import TextTable, left_out
from equipoise.sim.traces.trace import Floats, Trace, make_trace

COLUMNS = ("timestamp", "duration", "num_gpus")
OPTIONAL = ("cluster",)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+)?(Z|[-+][0-9:]+)?")


def read_philly(
    table: TextTable, limit: int | None, clusters: Sequence[str], time_scale: float, keep: Sequence[str] = ()
) -> Trace:
    """The trace in a table of this format. Raises InputError, one line per mistake."""
    table.need(COLUMNS, OPTIONAL)
    time_s, shown = _times(table)
    gpus = table.ints("num_gpus", low=0)
    duration_s = table.floats("duration", blank=0.0, low=0.0, high=MAX_TIME_S)
    columns = table.further(COLUMNS)
    kept, notes = left_out(
        {"zero duration": duration_s == 0, "no GPUs": gpus == 0}
        | {reason: ~rows for reason, rows in chosen(columns, keep, (), table.name).items()}
    )
    kept &= table.select("cluster", clusters)
    if kept.any():
        first = int(np.flatnonzero(kept)[np.argmin(time_s[kept])])
        notes.append(f"arrivals counted from {shown[first]}")
        time_s = time_s - time_s[first]
    if same := table.repeated():
        notes.append(f"{same} rows that equal an earlier one kept as jobs of their own")
    return make_trace(
        np.arange(len(table), dtype=np.int64),
        time_s,
        gpus,
        duration_s,
        columns=columns,
        keep=kept,
        limit=limit,
        time_scale=time_scale,
        notes=notes,
        source=table.file,
        line=table.line,
    )


def _times(table: TextTable) -> tuple[Floats, list[str]]:
    """(seconds since 1970 or as given, text) of every row's timestamp. Raises InputError."""
    shown = table.text("timestamp")
    if shown and not any("-" in text.lstrip("-") or ":" in text for text in shown):
        return table.floats("timestamp", low=-MAX_TIME_S, high=MAX_TIME_S), shown
    # NumPy also takes a year alone, and the words now and today.
    texts = [text.removesuffix("Z") if _DATE.fullmatch(text) else "NaT" for text in shown]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # what NumPy takes for a time zone is a wrong time here
            stamps = np.array(texts, dtype="datetime64[ms]")
    except (ValueError, UserWarning):
        stamps = np.array([_stamp(text) for text in texts], dtype="datetime64[ms]")
    problem = "is not a date and time such as 2017-10-09 07:01:55"
    table.refuse(np.isnat(stamps), "timestamp", lambda k: f"{shown[k]!r} {problem}")
    return stamps.astype(np.int64) / 1000.0, shown


def _stamp(text: str) -> np.datetime64:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            return np.datetime64(text, "ms")
    except (ValueError, UserWarning):
        return np.datetime64("NaT", "ms")
