"""Files that sites hold (`equipoise.formats`), as rows of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.formats.read import read
from equipoise.formats.recognise import PUBLISHED_FORMATS
from equipoise.formats.slurm.scontrol import jobs_of
from equipoise.formats.text.columns import Floats, Ints, Text
from equipoise.formats.text.errors import FormatError
from equipoise.formats.traces.jobs import TraceJobs
from equipoise.formats.traces.published import read_csv_trace
from equipoise.formats.traces.swf import SwfTable
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.kubernetes import from_kueue
from equipoise.sim.traces.rows import Rows, further
from equipoise.sim.traces.slurm import from_accounting, from_events
from equipoise.sim.traces.trace import Column

_SWF_STATES = {0: "FAILED", 1: "COMPLETED", 2: "PARTIAL", 3: "PARTIAL", 4: "PARTIAL", 5: "CANCELLED"}


def from_published(jobs: TraceJobs, unit: str, *, mapped: bool = False) -> Rows:
    """Jobs of a published trace; mapped: of a CSV whose columns were named, so that it says the priorities too."""
    columns: dict[str, Column] = {
        "user": jobs.user,
        "account": jobs.group,
        "state": jobs.state,
        "gpu_type": jobs.gpu_type,
        "kind": jobs.kind,
        "cpus": jobs.cpus,
        "nodes": jobs.nodes,
        "site_queueing_s": jobs.start_s - jobs.submit_s,
    }
    rows = Rows(
        name=jobs.job_id,
        arrival_s=jobs.submit_s,
        duration_s=jobs.duration_s,
        units=(jobs.cpus if unit == "CPUs" else jobs.gpus).copy(),
        line=jobs.line,
        columns=columns | further(jobs.other, columns),
        changes=jobs.changes,
    )
    if mapped and np.isfinite(jobs.priority).any():
        rows.drop("a priority that is not above 0", jobs.priority <= 0)
        rows.priority = np.where(np.isnan(jobs.priority), 1.0, jobs.priority)
        rows.count("no priority, taken as 1", np.isnan(jobs.priority))
    rows.count("several attempts, their times summed", jobs.attempts > 1, "noted")
    return rows


def from_swf(jobs: SwfTable, unit: str) -> Rows:
    """Jobs of the Standard Workload Format, which knows processors and no GPUs."""
    cpus = np.where(jobs["processors"] > 0, jobs["processors"], jobs["processors_requested"])
    columns: dict[str, Column] = {
        name: _ids(jobs[field])
        for name, field in (("user", "user"), ("account", "group"), ("partition", "partition"), ("queue", "queue"))
    }
    states = tuple(_SWF_STATES.get(code, "") for code in range(6))
    columns["state"] = Text(np.clip(jobs["status"], -1, 5).astype(np.int32), (*states, ""))
    columns["time_limit_s"] = _not_below_0(jobs["time_requested_s"])
    columns |= {"site_queueing_s": _not_below_0(jobs["wait_s"]), "executable": _ids(jobs["executable"])}
    columns["preceding_job"] = _ids(jobs["preceding_job"])
    for name in ("cpu_s", "memory_kib", "memory_requested_kib", "think_s"):
        columns[name] = _not_below_0(jobs[name])
    rows = Rows(
        name=_ids(jobs["job_id"]),
        arrival_s=np.where(jobs["submit_s"] < 0, np.nan, jobs["submit_s"]),
        duration_s=_not_below_0(jobs["run_s"]),
        units=np.maximum(cpus, 0).astype(np.float64) if unit == "CPUs" else np.zeros(len(jobs)),
        line=jobs.line,
        columns=columns,
        changes=jobs.changes,
    )
    part = np.isin(jobs["status"], (2, 3, 4))
    rows.drop("a part of a job that has a row of its own", part, "merged")
    return rows


def _not_below_0(values: Floats) -> Floats:
    return np.where(values < 0, np.nan, values)


def _ids(values: Ints) -> Text:
    """Numbers as texts, "" for those that are unknown (-1)."""
    known, codes = np.unique(values, return_inverse=True)
    return Text(codes.astype(np.int32), tuple("" if k < 0 else str(k) for k in known.tolist()))


_ZONED = ("philly-log", "sacct", "squeue", "scontrol")
"""Formats whose times have no zone of their own."""

_QUEUES = ("squeue", "squeue-json", "scontrol")
_READERS: dict[str, Callable[[Any, str], Rows]] = {
    "slurm-events": from_events,
    "sacct": from_accounting,
    "sacct-json": from_accounting,
    "swf": from_swf,
    "philly-log": from_published,
    **dict.fromkeys(PUBLISHED_FORMATS, from_published),
}
JOB_FORMATS = (*sorted({*_READERS, *_QUEUES, "kueue"}),)
"""Formats that hold jobs, by the names that `recognise` gives."""

_NEEDED = ({"arrival", "arrival_s", "submit"}, {"gpus", "cpus"}, {"duration", "duration_s", "end"})


def read_rows(path: Path, form: str, unit: str, zone: str = "", columns: Mapping[str, str] | None = None) -> Rows:
    """The rows of a file in one of JOB_FORMATS, or of any CSV whose `columns` are named.

    unit: `GPUs` or `CPUs`, what is counted. Raises InputError, one line, when it is no such file.
    """
    try:
        rows = _mapped(path, columns, zone, unit) if columns else _known(path, form, zone, unit)
    except (FormatError, MemoryError) as error:
        raise InputError([f"{error or f'{path}: larger than the memory'}"]) from error
    rows.path = str(path)
    return rows


def _known(path: Path, form: str, zone: str, unit: str) -> Rows:
    if zone and form not in _ZONED:
        raise InputError([f"{path}: zone {zone!r} has no effect: times in {form} files are of a known zone"])
    found = read(path, form, **({"zone": zone} if zone and form != "scontrol" else {}))
    if form == "kueue":
        return from_kueue(found, unit, str(path))
    if form in _QUEUES:
        jobs = jobs_of(found, zone=zone or "UTC") if form == "scontrol" else found
        return from_accounting(jobs, unit, queue=True)
    return _READERS[form](found, unit)


def _mapped(path: Path, columns: Mapping[str, str], zone: str, unit: str) -> Rows:
    for group in _NEEDED:
        if not group & set(columns):
            raise InputError([f"{path}: columns: one of {', '.join(sorted(group))} is needed"])
    return from_published(read_csv_trace(path, columns, zone=zone or "UTC"), unit, mapped=True)
