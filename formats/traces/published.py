"""Published traces of GPU clusters in their own columns: Helios, Acme, PAI, openb and later ones; any CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from equipoise.formats.text.columns import Floats, Text, constant
from equipoise.formats.text.csvfile import CsvTable, read_csv
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.numbers import decimal
from equipoise.formats.traces.jobs import TraceJobs, jobs_of, summed


@dataclass(frozen=True)
class Published:
    """A trace's columns: `needs` tell it from others, `columns` map them to TARGETS, `source` is the publication.

    zone: of times without one. headerless: the names of a file that has no header.
    """

    needs: tuple[str, ...]
    columns: Mapping[str, str]
    source: str
    zone: str = "UTC"
    headerless: tuple[str, ...] = ()


_TIMES = {"submit": "submit_time", "start": "start_time", "end": "end_time", "duration": "duration"}
_JOB = {"job_id": "job_id", "user": "user", "gpus": "gpu_num", "cpus": "cpu_num", "nodes": "node_num", "state": "state"}
_TASKS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
_PAI_JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_PODS = {"job_id": "name", "submit": "creation_time", "start": "scheduled_time", "end": "deletion_time"}

PUBLISHED: dict[str, Published] = {
    "philly": Published(
        ("timestamp", "duration", "num_gpus"),
        {"submit": "timestamp", "duration": "duration", "gpus": "num_gpus"},
        "Jeon et al., ATC 2019: Analysis of Large-Scale Multi-Tenant GPU Clusters, as tables of it are passed on",
    ),
    "helios": Published(
        ("job_id", "vc", "gpu_num", "node_num", "submit_time", "duration"),
        {**_JOB, **_TIMES, "group": "vc"},
        "Hu et al., SC 2021: Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters",
        zone="Asia/Shanghai",
    ),
    "acme": Published(
        ("job_id", "gpu_num", "node_num", "type", "submit_time", "gpu_time"),
        {**_JOB, "submit": "submit_time", "start": "start_time", "end": "end_time", "kind": "type"},
        # Kalos' `duration` counts from submission: the run is what lies between start and end.
        "Hu et al., NSDI 2024: Characterization of Large Language Model Development in the Datacenter",
    ),
    "pai-tasks": Published(
        ("job_name", "task_name", "inst_num", "plan_gpu"),
        {
            "job_id": "job_name",
            "submit": "start_time",
            "end": "end_time",
            "state": "status",
            "gpu_type": "gpu_type",
            "kind": "task_name",
        },
        "Weng et al., NSDI 2022: MLaaS in the Wild (cluster-trace-gpu-v2020)",
        headerless=_TASKS,
    ),
    "pai-jobs": Published(
        ("job_name", "inst_id", "user", "status"),
        {"job_id": "job_name", "user": "user", "submit": "start_time", "end": "end_time", "state": "status"},
        "Weng et al., NSDI 2022 (cluster-trace-gpu-v2020)",
        headerless=_PAI_JOBS,
    ),
    "openb-pods": Published(
        ("num_gpu", "gpu_milli", "cpu_milli", "creation_time"),
        {**_PODS, "gpus": "num_gpu", "gpu_type": "gpu_spec", "kind": "qos", "state": "pod_phase"},
        "Weng et al., ATC 2023: Beware of Fragmentation (cluster-trace-gpu-v2023)",
    ),
    "dlrm": Published(
        ("instance_sn", "app_name", "gpu_request", "creation_time"),
        {
            **_PODS,
            "job_id": "instance_sn",
            "gpus": "gpu_request",
            "cpus": "cpu_request",
            "group": "app_name",
            "kind": "role",
        },
        "Alibaba cluster-trace-gpu-v2025",
    ),
    "spot": Published(
        ("job_name", "gpu_model", "gpu_request", "worker_num", "job_type"),
        {
            "job_id": "job_name",
            "group": "organization",
            "gpu_type": "gpu_model",
            "gpus": "gpu_request",
            "cpus": "cpu_request",
            "nodes": "worker_num",
            "submit": "submit_time",
            "duration": "duration",
            "kind": "job_type",
        },
        "Alibaba cluster-trace-gpu spot jobs, 2026",
    ),
}


@dataclass(frozen=True)
class TraceNodes:
    """Nodes of a trace: name, GPUs, their type, CPU cores and memory of each (NaN where not given)."""

    name: Text
    gpus: Floats
    gpu_type: Text
    cpus: Floats
    memory_bytes: Floats

    def __len__(self) -> int:
        return len(self.name)


def read_csv_trace(
    source: str | Path | bytes,
    columns: Mapping[str, str],
    *,
    zone: str = "UTC",
    header: Sequence[str] = (),
    delimiter: str = "",
    name: str = "",
) -> TraceJobs:
    """Jobs of any CSV file: `columns` says which of its columns brings what, such as {"arrival": "submit_time"}.

    See `jobs_of`. header: the names of a file without one. Raises FormatError.
    """
    return jobs_of(read_csv(source, columns=header, delimiter=delimiter, name=name), columns, zone)


def which_published(header: Sequence[str]) -> str:
    """The name in PUBLISHED of the trace with these columns, "" for none."""
    fits = [(len(known.needs), name) for name, known in PUBLISHED.items() if set(known.needs) <= set(header)]
    return max(fits)[1] if fits else ""


def read_published(source: str | Path | bytes, trace: str, *, name: str = "") -> TraceJobs:
    """Jobs of a published trace, by its name in PUBLISHED; PAI's tasks are summed up to jobs.

    Raises FormatError when the columns are not its own, ValueError for an unknown name.
    """
    if trace not in PUBLISHED:
        raise ValueError(f"unknown trace {trace!r}; allowed: {', '.join(PUBLISHED)}")
    known = PUBLISHED[trace]
    table = read_csv(source, name=name)
    if known.headerless and not set(known.needs) <= set(table.columns):
        table = read_csv(source, columns=known.headerless, delimiter=",", name=name)
        if not len(table):
            names = ", ".join(known.headerless)
            raise FormatError(f"{table.name}: no row of the {len(known.headerless)} columns of {trace}: {names}")
    missing = [column for column in known.needs if column not in table.columns]
    if missing:
        raise FormatError(f"{table.name}:1: column {missing[0]!r} is missing, which {trace} has ({known.source})")
    columns = {target: column for target, column in known.columns.items() if column in table.columns}
    jobs = jobs_of(table, columns, known.zone)
    return _TO_JOBS[trace](jobs, table) if trace in _TO_JOBS else jobs


def _openb(jobs: TraceJobs, table: CsvTable) -> TraceJobs:
    """GPUs of a pod: one that shares a GPU has a part of one (gpu_milli / 1000)."""
    milli = _column(table, "gpu_milli")
    gpus = np.where(jobs.gpus == 1, milli / 1000.0, jobs.gpus)
    return replace(jobs, gpus=gpus, cpus=_column(table, "cpu_milli") / 1000.0)


def _spot(jobs: TraceJobs, table: CsvTable) -> TraceJobs:
    """Multiply a job's request, which is per worker, by its workers."""
    return replace(jobs, gpus=jobs.gpus * jobs.nodes, cpus=jobs.cpus * jobs.nodes)


def _pai_tasks(jobs: TraceJobs, table: CsvTable) -> TraceJobs:
    """Tasks summed up by job: GPUs are plan_gpu / 100 of each instance, cores plan_cpu / 100.

    A job begins with its first task and ends with its last; it has not ended while one of them has not.
    """
    instances = np.nan_to_num(_column(table, "inst_num"), nan=1.0)
    gpus = np.nan_to_num(_column(table, "plan_gpu")) / 100.0 * instances
    cpus = np.nan_to_num(_column(table, "plan_cpu")) / 100.0 * instances
    ids, rows = np.unique(jobs.job_id.codes, return_inverse=True)
    first = np.full(len(ids), len(jobs), dtype=np.int64)
    np.minimum.at(first, rows, np.arange(len(jobs)))
    submit, end = np.full(len(ids), np.inf), np.full(len(ids), -np.inf)
    np.minimum.at(submit, rows, np.nan_to_num(jobs.submit_s, nan=np.inf))
    with np.errstate(invalid="ignore"):  # a task without an end leaves its job without one
        np.maximum.at(end, rows, jobs.end_s)
    order = np.argsort(first)
    kept = first[order]
    took = len(jobs) - len(ids)
    if took:
        table.tally.add("merged", "a further task of a job", int(np.delete(jobs.line, kept).min()), took)
    submit = np.where(np.isinf(submit), np.nan, submit)[order]
    return TraceJobs(
        job_id=jobs.job_id.take(kept),
        submit_s=submit,
        start_s=np.full(len(ids), np.nan),
        end_s=end[order],
        duration_s=end[order] - submit,
        gpus=summed(rows, gpus, len(ids))[order],
        gpu_type=jobs.gpu_type.take(kept),
        cpus=summed(rows, cpus, len(ids))[order],
        nodes=summed(rows, instances, len(ids))[order],
        priority=jobs.priority[kept],
        user=jobs.user.take(kept),
        group=jobs.group.take(kept),
        state=jobs.state.take(kept),
        kind=jobs.kind.take(kept),
        attempts=jobs.attempts[kept],
        line=jobs.line[kept],
        changes=table.tally.changes(),
    )


def _column(table: CsvTable, name: str) -> Floats:
    if name not in table.columns:
        return np.full(len(table), np.nan)
    return table.columns[name].floats(lambda text: np.nan if (value := decimal(text)) is None else value)


_TO_JOBS = {"openb-pods": _openb, "spot": _spot, "pai-tasks": _pai_tasks}
_NODE_COLUMNS = {
    "openb": ("sn", "gpu", "model", "cpu_milli", "memory_mib", 1e-3, 2.0**20),
    "pai": ("machine", "cap_gpu", "gpu_type", "cap_cpu", "cap_mem", 1.0, 2.0**30),
    "spot": ("node_name", "gpu_capacity_num", "gpu_model", "cpu_num", "", 1.0, 1.0),
}


def read_trace_nodes(source: str | Path | bytes, *, name: str = "") -> TraceNodes:
    """Nodes of openb (`sn,cpu_milli,...`), PAI (`machine,gpu_type,...`, header or not) or the spot trace.

    Raises FormatError for other columns.
    """
    table = read_csv(source, name=name)
    if len(table.columns) == 5 and "sn" not in table.columns and "machine" not in table.columns:
        table = read_csv(source, columns=("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu"), name=name)
    for label, gpus, model, cpus, memory, per_core, per_byte in _NODE_COLUMNS.values():
        if label in table.columns and gpus in table.columns and np.isfinite(_column(table, gpus)).any():
            return TraceNodes(
                name=table.columns[label],
                gpus=_column(table, gpus),
                gpu_type=table.columns.get(model, constant("", len(table))),
                cpus=_column(table, cpus) * per_core,
                memory_bytes=_column(table, memory) * per_byte,
            )
    raise FormatError(f"{table.name}:1: not the nodes of a published trace; found: {', '.join(table.columns)[:200]}")
