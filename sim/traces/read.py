"""Job traces from files: `read_trace` and the `Trace` it gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces import csv_trace, philly
from equipoise.sim.traces.table import Table
from equipoise.sim.traces.trace import Trace, make_trace

__all__ = ["Trace", "make_trace", "read_trace"]

_READERS = {"csv": (csv_trace.COLUMNS, csv_trace.read_csv), "philly": (philly.COLUMNS, philly.read_philly)}


def read_trace(
    path: str | Path,
    format: str = "auto",
    limit: int | None = None,
    clusters: Sequence[str] = (),
    time_scale: float = 1.0,
) -> Trace:
    """Jobs of a CSV file, gzip or not, in order of arrival.

    format: `csv`, `philly`, or `auto` by the header. limit: only the earliest jobs. clusters: only these
    virtual clusters. time_scale: multiplies arrivals, below 1 raises the load.

    Raises InputError, one line `file:line:column: what is wrong` per mistake, and ValueError for an unknown
    format.
    """
    if format != "auto" and format not in _READERS:
        raise ValueError(f"unknown trace format {format!r}; allowed: auto, {', '.join(_READERS)}")
    table = Table(Path(path))
    trace = _READERS[_format(table) if format == "auto" else format][1](table, limit, clusters, time_scale)
    if not len(trace):
        raise InputError([f"{path}: no jobs in it"])
    return trace


def _format(table: Table) -> str:
    """The format with most of its columns in the header. Raises InputError when there is none of any."""
    fit = {name: sum(c in table.header for c in columns) for name, (columns, _) in _READERS.items()}
    best = max(fit, key=lambda name: fit[name])
    if fit[best] == 0:
        known = "; ".join(f"{name}: {','.join(columns)}" for name, (columns, _) in _READERS.items())
        raise InputError([f"{table.name}:1:1: not a known trace format; columns needed: {known}"])
    return best
