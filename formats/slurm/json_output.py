"""`sacct --json` and `squeue --json`, in the schemas of Slurm's data parser (dbv0.0.36 and v0.0.36 on)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from equipoise.formats.slurm.builder import JobTableBuilder
from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.text.delimited import batch_of
from equipoise.formats.text.jsonfile import first_of, load_json, path
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile

Cell = Callable[[Any], str]


def read_accounting_json(source: str | Path | bytes, *, name: str = "") -> JobTable:
    """Jobs of `sacct --json`. `line` of a row is its place in the list of jobs, from 1. Raises FormatError."""
    return read_jobs_json(source, _ACCOUNTED, name=name)


def read_jobs_json(source: str | Path | bytes, cells: Mapping[str, Cell], *, name: str = "") -> JobTable:
    """Jobs of a JSON file, each column made by its cell. Raises FormatError."""
    tally, file = RowTally(), TextFile(source, name)
    value = load_json(file, tally)
    jobs = value.get("jobs") if isinstance(value, dict) else value
    if not isinstance(jobs, list):
        raise file.error(0, "JSON without a list `jobs`, which `sacct --json` and `squeue --json` have")
    builder = JobTableBuilder(list(cells), "UTC", tally)
    rows, places = [], []
    for place, job in enumerate(jobs, 1):
        if not isinstance(job, dict):
            tally.add("left out", "not a job but another JSON value", place)
            continue
        steps = job.get("steps")
        if isinstance(steps, list) and steps:
            tally.add("left out", "a step of a job", place, len(steps))
        rows.append([cell(job) for cell in cells.values()])
        places.append(place)
    if rows:
        builder.add(batch_of(rows, places))
    return builder.finish()


def text(*keys: str) -> Cell:
    """The first of these keys as text; of a list its first member."""

    def cell(job: Any) -> str:
        """The text that the column form would have."""
        value = first_of(job, keys)
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, str) else str(value) if type(value) in (int, float) else ""

    return cell


def number(*keys: str, form: str = "{}") -> Cell:
    """The first of these keys that holds a number, plain or as `{set, infinite, number}`; "" for none."""

    def cell(job: Any) -> str:
        """The text that the column form would have."""
        for key in keys:
            value = plain_number(path(job, *key.split(".")))
            if value is not None:
                return "UNLIMITED" if value == float("inf") else form.format(value)
        return ""

    return cell


def moment(*keys: str) -> Cell:
    """A time in seconds since 1970; 0 stands for none."""
    inner = number(*keys)
    return lambda job: "" if inner(job) in ("0", "UNLIMITED") else inner(job)


def plain_number(value: Any) -> int | float | None:
    """A number as Slurm writes it in JSON, inf for `infinite`; None for none."""
    if isinstance(value, dict):
        if value.get("infinite") is True:
            return float("inf")
        return plain_number(value.get("number")) if value.get("set") is not False else None
    return value if type(value) in (int, float) else None


def job_id(array: str, task: str, tasks: str, het: str, offset: str) -> Cell:
    """The id that users see, from the keys of its parts."""

    def cell(job: Any) -> str:
        """The text that the column form would have."""
        own = plain_number(path(job, "job_id"))
        main, index = (plain_number(first_of(job, [key])) for key in (array, task))
        waiting = first_of(job, [tasks])
        part, place = (plain_number(first_of(job, [key])) for key in (het, offset))
        if main and isinstance(waiting, str) and waiting:
            return f"{main}_[{waiting}]"
        if main and index is not None:
            return f"{main}_{index}"
        return f"{part}+{place or 0}" if part else "" if own is None else str(own)

    return cell


def tres(key: str) -> Cell:
    """A list of `{type, name, count}` as the text that `sacct` prints for it."""

    def cell(job: Any) -> str:
        """The text that the column form would have."""
        members = first_of(job, [key])
        return ",".join(filter(None, map(_member, members))) if isinstance(members, list) else ""

    return cell


def _member(value: Any) -> str:
    kind, name, count = (path(value, key) for key in ("type", "name", "count"))
    amount = plain_number(count)
    if not isinstance(kind, str) or amount is None or amount < 0:
        return ""
    unit = "M" if kind == "mem" else ""
    return f"{kind}/{name}={amount}{unit}" if isinstance(name, str) and name else f"{kind}={amount}{unit}"


def either(*cells: Cell) -> Cell:
    """The first cell that is not empty."""
    return lambda job: next(filter(None, (cell(job) for cell in cells)), "")


_ACCOUNTED: dict[str, Cell] = {
    "JobID": job_id("array.job_id", "array.task_id", "array.task", "het.job_id", "het.job_offset"),
    "Cluster": text("cluster", "association.cluster"),
    "User": text("association.user", "user"),
    "Account": text("account", "association.account"),
    "Partition": text("partition"),
    "QOS": text("qos"),
    "JobName": text("name"),
    "State": text("state.current", "state"),
    "Reason": text("state.reason"),
    "NodeList": text("nodes"),
    "Submit": moment("time.submission"),
    "Eligible": moment("time.eligible"),
    "Start": moment("time.start"),
    "End": moment("time.end"),
    "ElapsedRaw": number("time.elapsed"),
    "TimelimitRaw": number("time.limit"),
    "NNodes": number("allocation_nodes"),
    "ReqCPUS": number("required.CPUs"),
    "AllocTRES": tres("tres.allocated"),
    "ReqTRES": tres("tres.requested"),
    "ReqMem": either(
        number("required.memory_per_cpu", form="{}Mc"),
        number("required.memory_per_node", "required.memory", form="{}Mn"),
    ),
    "Priority": number("priority"),
    "WCKey": text("wckey.wckey", "wckey"),
    "Constraints": text("constraints"),
    "Reservation": text("reservation.name"),
    "SubmitLine": text("submit_line"),
    "SegmentSize": number("segment_size"),
}
