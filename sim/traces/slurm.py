"""Jobs of `sacct`, `squeue`, `scontrol show job`, and of the Slurm simulator's events, as rows of a trace."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from equipoise.formats.accelerators import is_slice
from equipoise.formats.slurm.columns import canonical
from equipoise.formats.slurm.events import EventTable
from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.slurm.values import NOT_GIVEN
from equipoise.formats.text.columns import Text
from equipoise.sim.traces.rows import Rows, further
from equipoise.sim.traces.trace import Bools, Column, Floats, Ints

_SEGMENTS = "requests segments (--segment) without a size or a number of nodes: not simulated"
_TEXTS = ("cluster", "user", "account", "partition", "qos", "state", "gpu_type", "reason", "node_list")


def from_accounting(jobs: JobTable, unit: str, *, queue: bool = False) -> Rows:
    """One job per job id: attempts after a requeue are one job, so are the parts of a heterogeneous job.

    A job arrives when it became eligible: what lies between submission and that (`--begin`, a dependency, an
    array's throttle) is no queueing. Its duration is that of its last attempt that ran. queue: nothing has ended
    yet, so a job is assumed to run for its time limit.
    """
    waiting = jobs.array_tasks if queue else np.ones(len(jobs), dtype=np.int64)
    several = waiting > 1
    jobs = jobs.take(np.repeat(np.arange(len(jobs)), waiting)) if several.any() else jobs
    counts = jobs.cpus if unit == "CPUs" else jobs.gpus
    columns: dict[str, Column] = {name: getattr(jobs, name) for name in _TEXTS}
    columns["job_name"] = jobs.name
    columns["site_gpu_type"] = jobs.gpu_type_given
    columns["priority"] = _number_text(jobs.priority)
    columns |= {"cpus": _given(jobs.cpus), "nodes": _given(jobs.nodes)}
    columns["host_memory_bytes"] = _given(jobs.memory_bytes)
    columns["time_limit_s"] = np.where(np.isfinite(jobs.time_limit_s), jobs.time_limit_s, np.nan)
    columns["site_queueing_s"] = jobs.start_s - np.fmax(jobs.submit_s, jobs.eligible_s)
    ran_s = np.where(np.isfinite(jobs.elapsed_s), jobs.elapsed_s, jobs.end_s - jobs.start_s)
    rows = Rows(
        name=jobs.job_id,
        arrival_s=np.fmax(jobs.submit_s, jobs.eligible_s),
        duration_s=ran_s,
        units=_given(counts),
        line=jobs.line,
        submit_s=jobs.submit_s,
        columns=columns | further(jobs.other, columns),
        changes=jobs.changes,
    )
    rows.arrival_s = np.where(np.isnan(jobs.submit_s), np.nan, rows.arrival_s)
    if len(jobs) and not queue and np.isnan(jobs.submit_s).all() and np.isnan(jobs.start_s).all():
        rows.drop("the file has neither Submit nor Start", np.ones(len(jobs), dtype=np.bool_))
    _join_attempts(rows, jobs)
    _join_parts(rows, jobs)
    rows.drop(f"no {'GPUs, CPUs only' if unit == 'GPUs' else unit}", rows.units == 0)
    if queue:
        rows.duration_s = jobs.time_limit_s.copy()
        rows.count("assumed to run for its time limit", np.isfinite(jobs.time_limit_s))
        rows.made = int((waiting - 1).sum())
    else:
        rows.drop("never started", np.isnan(jobs.start_s) & ~(rows.duration_s > 0))
        over = np.isfinite(jobs.end_s) | ~np.isfinite(jobs.end_s).any()
        untold = over & (jobs.state.floats(lambda state: float(not state)) > 0) & (rows.duration_s > 0)
        rows.drop("had not ended when the file was written", ~jobs.ended & ~untold)
        rows.count("no State, assumed to have ended", untold)
    sliced = jobs.gpu_type.floats(lambda kind: float(any(map(is_slice, kind.split(","))))) > 0
    rows.count("a slice of a GPU (MIG) counts as a GPU", sliced, "noted")
    several = jobs.gpu_type.floats(lambda kind: float("," in kind)) > 0
    rows.count("requests several GPU types at once: assumed to run on one of them", several)
    _segment(rows, jobs.other)
    rows.count("arrival is the eligible time, which is after the submission", jobs.eligible_s > jobs.submit_s)
    return rows


def _segment(rows: Rows, columns: Mapping[str, Text]) -> None:
    """Add the GPUs of each segment of nodes that must be in one block (`sbatch --segment`) as a column."""
    size = np.zeros(len(rows.units))
    for name, text in columns.items():
        if canonical(name) in ("segmentsize", "segment"):
            size = np.fmax(size, text.floats(lambda cell: float(cell) if cell.isdecimal() else 0.0))
        elif canonical(name) == "submitline":
            size = np.fmax(size, text.floats(_segment_of_line))
    told = rows.columns["nodes"]
    nodes = told if isinstance(told, np.ndarray) else np.full(len(size), np.nan)
    known = (size > 0) & (nodes >= 1)
    if known.any():
        rows.columns["segment"] = np.where(known, size * rows.units / np.where(known, nodes, 1.0), np.nan)
    rows.count(_SEGMENTS, (size != 0) & ~known)


def _segment_of_line(line: str) -> float:
    """The size in a command line, -1 for one that is not a number."""
    found = re.search(r"\s--segment[= ](\d*)", line)
    return 0.0 if found is None else float(found[1] or -1)


def _given(counts: Ints) -> Floats:
    return np.where(counts == NOT_GIVEN, np.nan, counts).astype(np.float64)


def _number_text(values: Floats) -> Text:
    """Numbers as texts, "" for none."""
    known, codes = np.unique(values, return_inverse=True)
    texts = tuple("" if np.isnan(value) else f"{value:.15g}" for value in known.tolist())
    return Text(codes.astype(np.int32), texts)


def _join_attempts(rows: Rows, jobs: JobTable) -> None:
    """Attempts of one job become its last that ran, arrived when the first did."""
    again = np.zeros(len(jobs), dtype=np.bool_)
    for group in _groups(np.flatnonzero(_repeated(jobs)), jobs, lambda k: (jobs.job_id[k], jobs.user[k])):
        ran = [k for k in group if rows.duration_s[k] > 0] or group
        last = max(ran, key=lambda k: int(jobs.attempt[k]))
        rows.arrival_s[last] = np.fmin.reduce(rows.arrival_s[group])
        again[[k for k in group if k != last]] = True
    rows.drop("another attempt of a requeued job, not counted", again, "merged")


def _repeated(jobs: JobTable) -> Bools:
    """Rows of jobs with several attempts."""
    marked = np.zeros(len(jobs.job_id.values), dtype=np.bool_)
    marked[jobs.job_id.codes[jobs.attempt > 1]] = True
    return marked[jobs.job_id.codes]


def _join_parts(rows: Rows, jobs: JobTable) -> None:
    """Parts of a heterogeneous job start together: they become one job with the GPUs of all."""
    parts = np.flatnonzero((jobs.het_part != NOT_GIVEN) & rows.keep)
    joined = np.zeros(len(jobs), dtype=np.bool_)
    for group in _groups(parts, jobs, lambda k: (str(jobs.array_id[k]), jobs.user[k])):
        rows.units[group[0]] = np.nansum(rows.units[group])
        rows.duration_s[group[0]] = np.fmax.reduce(rows.duration_s[group])
        joined[group[1:]] = True
    rows.units[joined] = 0.0
    rows.drop("a component of a heterogeneous job, added to its first component", joined, "merged")


def _groups(rows: Ints, jobs: JobTable, key: object) -> list[list[int]]:
    """These rows by cluster and key, where several have the same."""
    assert callable(key)
    found: dict[tuple[str, object], list[int]] = {}
    for k in rows.tolist():
        found.setdefault((jobs.cluster[k], key(k)), []).append(k)
    return [group for group in found.values() if len(group) > 1]


def from_events(events: EventTable, unit: str) -> Rows:
    """Submissions to the Slurm simulator; one that would run beyond its time limit is ended there."""
    tasks, each = np.maximum(events.tasks, 1), np.maximum(events.cpus_per_task, 1)
    columns: dict[str, Column] = {
        name: getattr(events, name) for name in ("user", "account", "partition", "qos", "gpu_type")
    }
    columns["time_limit_s"] = np.where(np.isfinite(events.time_limit_s), events.time_limit_s, np.nan)
    columns |= {"cpus": (tasks * each).astype(np.float64), "nodes": _given(events.nodes)}
    columns["host_memory_bytes"] = _given(events.memory_bytes)
    rows = Rows(
        name=events.name,
        arrival_s=events.submit_s,
        duration_s=np.fmin(events.run_s, events.time_limit_s),
        units=(tasks * each).astype(np.float64) if unit == "CPUs" else _given(events.gpus),
        line=events.line,
        columns=columns | further(_options(events.options), columns),
        changes=events.changes,
    )
    rows.duration_s = np.where(np.isnan(events.run_s), np.nan, rows.duration_s)
    rows.count("ended at its time limit", events.run_s > events.time_limit_s)
    _segment(rows, events.options)
    return rows


def _options(options: Mapping[str, Text]) -> dict[str, Text]:
    return {name: text for name, text in options.items() if not name.startswith("-")}
