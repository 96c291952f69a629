"""`squeue` output: delimited or in columns, with a header or with the columns given; and `squeue --json`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from equipoise.formats.slurm.accounting import ColumnLayout, find_layout
from equipoise.formats.slurm.builder import JobTableBuilder
from equipoise.formats.slurm.columns import canonical, kinds, known_names
from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.slurm.json_output import Cell, either, job_id, moment, number, read_jobs_json, text
from equipoise.formats.slurm.values import ENDED
from equipoise.formats.text.columns import Text, TextBuilder
from equipoise.formats.text.delimited import DelimitedRecords
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile

_MONITOR = (
    "TRES_PER_NODE MIN_CPUS JOBARRAYID JOBID NAME TIME_LIMIT MIN_MEMORY COMMAND PRIORITY STATE USERNAME NUMCPUS "
    "NUMNODES TIME_LEFT TIMEUSED NODELIST DEPENDENCY EXC_NODES START_TIME SUBMIT_TIME ELIGIBLE_TIME ACCRUE_TIME "
    "PENDING_TIME COMMENT PARTITION ACCOUNT QOS REASON TRES_ALLOC RESERVATION REQUEUE FEATURE RESTARTCNT SCHEDNODES"
)
MONITOR = tuple(_MONITOR.split())
"""Columns that Meta's cluster monitor asks squeue for, without a header; newer ones add LAST_SCHED_EVAL."""

_OWN = (
    "jobidraw arrayjobid arraytaskid timeleft nodelist(reason) features dependency reservation nice minmemory "
    "trespernode"
)
_KNOWN = known_names() | frozenset(_OWN.split())
_CLUSTER = re.compile(r"CLUSTER: \S+$")
_PLACE_OR_REASON = "NODELIST(REASON)"


def read_queue(
    source: str | Path | bytes, *, columns: Sequence[str] = (), delimiter: str = "", zone: str = "UTC", name: str = ""
) -> JobTable:
    """Jobs of a `squeue` text, see `read_accounting` for the arguments.

    A time that squeue expects (the start of a waiting job, the end of a running one) is ignored.
    Raises FormatError when the file is not readable or no `squeue` output.
    """
    tally, file = RowTally(), TextFile(source, name)
    chunks = file.chunks(tally)
    first, lines = next(chunks, (1, []))
    layout = _in_columns(lines) if not columns else None
    layout = layout or find_layout(lines[:50], columns, delimiter, (MONITOR, (*MONITOR, "LAST_SCHED_EVAL")))
    if layout is None:
        raise file.error(0, "not squeue output: the line JOBID PARTITION NAME ..., or columns=, is needed")
    rest: Iterator[tuple[int, list[str]]] = chain([(first + layout.first, lines[layout.first :])], chunks)
    names = layout.names
    file.check_width(len(names))
    if layout.delimiter == " ":
        rest = _single_blanks(rest)
    if named := [line for line in lines[: layout.first] if _CLUSTER.match(line)]:
        names, rest = (*names, "CLUSTER"), _with_cluster(rest, layout.delimiter, named[-1])
    builder = JobTableBuilder(names, zone, tally)
    for batch in DelimitedRecords(layout.delimiter, kinds(names), tally, names).of_chunks(rest):
        builder.add(batch)
    return as_queue(builder.finish(), tally)


def _in_columns(lines: Sequence[str]) -> ColumnLayout | None:
    """The layout of columns that blanks separate, by a header line of known names."""
    for k, line in enumerate(lines[:50]):
        names = tuple(line.split())
        if len(names) >= 2 and sum(canonical(name) in _KNOWN for name in names) * 2 > len(names):
            return ColumnLayout(names, " ", first=k + 1) if "jobid" in map(canonical, names) else None
    return None


def _single_blanks(chunks: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    for first, lines in chunks:
        yield first, [" ".join(line.split()) for line in lines]


def _with_cluster(chunks: Iterator[tuple[int, list[str]]], mark: str, named: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of `squeue -M` with their cluster, given on a separate line, as a last column."""
    for first, lines in chunks:
        made = []
        for line in lines:
            named = line if _CLUSTER.match(line) else named
            blank = not line.strip() or line == named
            made.append("" if blank else f"{line}{mark}{named.split()[1]}")
        yield first, made


def as_queue(jobs: JobTable, tally: RowTally) -> JobTable:
    """The table without times that are only expected, and with `NODELIST(REASON)` split into nodes and reasons."""
    ended = jobs.state.floats(lambda state: float(state in ENDED or state == "COMPLETING")) > 0
    waiting = jobs.state.floats(lambda state: float(state in ("PENDING", "CONFIGURING", "REQUEUED"))) > 0
    expected = (waiting & np.isfinite(jobs.start_s)) | (~ended & np.isfinite(jobs.end_s))
    if expected.any():
        reason = "an expected start or end time ignored"
        tally.add("changed", reason, int(jobs.line[expected].min()), int(expected.sum()))
    other = dict(jobs.other)
    mixed = other.pop(_PLACE_OR_REASON, None)
    nodes, why = (jobs.node_list, jobs.reason) if mixed is None else _told_apart(mixed)
    return replace(
        jobs,
        start_s=np.where(waiting, np.nan, jobs.start_s),
        end_s=np.where(ended, jobs.end_s, np.nan),
        node_list=nodes,
        reason=why,
        other=other,
        changes=tally.changes(),
    )


def _told_apart(mixed: Text) -> tuple[Text, Text]:
    nodes, why = TextBuilder(), TextBuilder()
    cells = mixed.tolist()
    nodes.add(["" if cell.startswith("(") else cell for cell in cells])
    why.add([cell.strip("()") if cell.startswith("(") else "" for cell in cells])
    return nodes.finish(), why.finish()


def read_queue_json(source: str | Path | bytes, *, name: str = "") -> JobTable:
    """Jobs of `squeue --json` or `scontrol show job --json`. Raises FormatError."""
    jobs = read_jobs_json(source, QUEUED, name=name)
    tally = RowTally()
    for change in jobs.changes:
        tally.add(change.action, change.reason, change.first_line, change.count)
    return as_queue(jobs, tally)


QUEUED: dict[str, Cell] = {
    "JobID": job_id("array_job_id", "array_task_id", "array_task_string", "het_job_id", "het_job_offset"),
    "Cluster": text("cluster"),
    "User": text("user_name"),
    "Account": text("account"),
    "Partition": text("partition"),
    "QOS": text("qos"),
    "JobName": text("name"),
    "State": text("job_state"),
    "Reason": text("state_reason"),
    "NodeList": text("nodes"),
    "Submit": moment("submit_time"),
    "Eligible": moment("eligible_time"),
    "Start": moment("start_time"),
    "End": moment("end_time"),
    "TimelimitRaw": number("time_limit"),
    "NNodes": number("node_count"),
    "NCPUS": number("cpus"),
    "AllocTRES": text("tres_alloc_str"),
    "ReqTRES": text("tres_req_str"),
    "TRES_PER_NODE": text("tres_per_node"),
    "TRES_PER_JOB": text("tres_per_job"),
    "TRES_PER_TASK": text("tres_per_task"),
    "TRES_PER_SOCKET": text("tres_per_socket"),
    "NUM_TASKS": number("tasks"),
    "SOCKETS_PER_NODE": number("sockets_per_node"),
    "ReqMem": either(number("memory_per_cpu", form="{}Mc"), number("memory_per_node", form="{}Mn")),
    "Priority": number("priority"),
    "Features": text("features"),
    "Restarts": number("restart_cnt"),
    "Hold": text("hold"),
    "Dependency": text("dependency"),
    "SegmentSize": number("segment_size"),
}
