"""Published traces, SWF and CSV files by a mapping of columns, as rows of a trace."""

from __future__ import annotations

import numpy as np

from equipoise.formats.text.columns import Floats, Ints, Text
from equipoise.formats.traces.jobs import TraceJobs
from equipoise.formats.traces.swf import SwfTable
from equipoise.sim.traces.rows import Rows, further
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
    columns["time_limit_s"] = _known(jobs["time_requested_s"])
    columns |= {"site_queueing_s": _known(jobs["wait_s"]), "executable": _ids(jobs["executable"])}
    columns["preceding_job"] = _ids(jobs["preceding_job"])
    for name in ("cpu_s", "memory_kib", "memory_requested_kib", "think_s"):
        columns[name] = _known(jobs[name])
    rows = Rows(
        name=_ids(jobs["job_id"]),
        arrival_s=np.where(jobs["submit_s"] < 0, np.nan, jobs["submit_s"]),
        duration_s=_known(jobs["run_s"]),
        units=np.maximum(cpus, 0).astype(np.float64) if unit == "CPUs" else np.zeros(len(jobs)),
        line=jobs.line,
        columns=columns,
        changes=jobs.changes,
    )
    part = np.isin(jobs["status"], (2, 3, 4))
    rows.drop("a part of a job that has a row of its own", part, "merged")
    return rows


def _known(values: Floats) -> Floats:
    return np.where(values < 0, np.nan, values)


def _ids(values: Ints) -> Text:
    """Numbers as texts, "" for those that are unknown (-1)."""
    known, codes = np.unique(values, return_inverse=True)
    return Text(codes.astype(np.int32), tuple("" if k < 0 else str(k) for k in known.tolist()))
