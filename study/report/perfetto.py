"""A run's timeline as Chrome trace JSON, which Perfetto and chrome://tracing open.

Process = node, thread = GPU, slice = a job's stretch on that GPU; counters of the whole cluster; instants for
faults and decisions. Times are microseconds, as the format requires (Trace Event Format, Google 2016).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import duckdb

from equipoise.base.database import database
from equipoise.base.files import replacing
from equipoise.policies.record.journal import JournalError, read_plans
from equipoise.sim.scenario.tree import InputError
from equipoise.study.report.timeline import SHARES, USES, has_timeline, literal, table

CHUNK = 50_000
CLUSTER = 0
"""Process of the counters and instants; nodes count from 1."""
MANY = 1_000_000
"""Number of slices above which viewers become slow or fail."""


@dataclass(frozen=True)
class Written:
    """Number of written events by kind."""

    path: Path
    slices: int
    counters: int
    instants: int


def write_trace(folder: str | Path, out: str | Path) -> Written:
    """Write the timeline of a run directory as gzipped Chrome trace JSON; equal runs give equal bytes.

    Raises InputError when the folder holds no timeline, OSError when the file cannot be written.
    """
    source, target = Path(folder), Path(out)
    if not has_timeline(source):
        raise InputError([f"{folder}: no timeline here; make the run with --timeline"])
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(target) as draft, open(draft, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
            counts = _write(source, file)
    except duckdb.Error as error:
        raise InputError([f"{folder}: the timeline cannot be read: {' '.join(str(error).split())}"]) from error
    return Written(target, *counts)


def _write(source: Path, file: gzip.GzipFile) -> tuple[int, int, int]:
    """Every part in turn; returns numbers of slices, counters and instants."""
    out = _Events(file)
    out.put(_metadata(source))
    slices = out.put(_slices(source))
    counters = out.put(_counters(source))
    instants = out.put(_faults(source)) + out.put(_decisions(source / "journal.jsonl"))
    out.close()
    return slices, counters, instants


class _Events:
    """A list of events, written as a stream."""

    def __init__(self, file: BinaryIO | gzip.GzipFile) -> None:
        self.file = file
        self.file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        self.first = True

    def put(self, texts: Iterator[str]) -> int:
        """Write events; returns how many."""
        count, held = 0, list[str]()
        for text in texts:
            held.append(text)
            count += 1
            if len(held) >= CHUNK:
                self._flush(held)
        self._flush(held)
        return count

    def _flush(self, held: list[str]) -> None:
        if held:
            self.file.write((("\n" if self.first else ",\n") + ",\n".join(held)).encode())
            self.first = False
            held.clear()

    def close(self) -> None:
        """End the list."""
        self.file.write(b"\n]}\n")


def _event(**fields: Any) -> str:
    return json.dumps(fields, separators=(",", ":"), allow_nan=False)


def _rows(query: str) -> Iterator[tuple[Any, ...]]:
    """Rows of a query, `CHUNK` at a time."""
    with database() as connection:
        cursor = connection.execute(query)
        while rows := cursor.fetchmany(CHUNK):
            yield from rows


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _metadata(source: Path) -> Iterator[str]:
    """Names of processes and threads."""
    yield _event(ph="M", pid=CLUSTER, name="process_name", args={"name": "cluster"})
    query = f"SELECT gpu, node, node_name, model FROM {table(source, 'gpus')} ORDER BY gpu"
    seen = set()
    for gpu, node, name, model in _rows(query):
        if node not in seen:
            seen.add(node)
            yield _event(ph="M", pid=node + 1, name="process_name", args={"name": name})
            yield _event(ph="M", pid=node + 1, name="process_sort_index", args={"sort_index": node + 1})
        yield _event(ph="M", pid=node + 1, tid=gpu, name="thread_name", args={"name": f"GPU {gpu} {model}".strip()})


def _slices(source: Path) -> Iterator[str]:
    """One slice per stretch and GPU. A shared GPU's jobs overlap, so they become asynchronous events."""
    jobs = f"read_parquet({literal(source / 'jobs.parquet')}, file_row_number = true)"
    uses = ", ".join(f"s.{use}_gpu_s" for use in USES)
    query = (
        f"SELECT h.node, h.gpu, h.share, to_json(j.name), s.job_id, s.segment, s.start_s, s.end_s, s.gpus, "
        f"s.end_reason, {uses} FROM {table(source, 'holdings')} h JOIN {table(source, 'segments')} s "
        f"USING (job_id, segment) JOIN {jobs} j USING (job_id) ORDER BY j.file_row_number, s.segment, h.gpu"
    )
    last, told = None, ""
    for node, gpu, share, name, job, segment, start_s, end_s, gpus, reason, *used in _rows(query):
        if (job, segment) != last:  # what all GPUs of a stretch have in common is written once
            last, ts, dur = (job, segment), _us(start_s), _us(end_s - start_s)
            args = {"gpus": gpus, "ended": reason}
            args |= {f"{use}_gpu_s": round(amount or 0.0, 6) for use, amount in zip(USES, used, strict=True)}
            told = f'"name":{name},"ts":{ts},"dur":{dur},"args":{_event(job=job, **args)}'
        if share == 1.0:
            yield f'{{"ph":"X","cat":"job","pid":{node + 1},"tid":{gpu},{told}}}'
            continue
        both = f'"cat":"shared","id":"{job}.{segment}.{gpu}","pid":{node + 1},"tid":{gpu},"name":{name}'
        yield f'{{"ph":"b",{both},"ts":{ts},"args":{_event(job=job, **args)}}}'
        yield f'{{"ph":"e",{both},"ts":{_us(end_s)}}}'


def _counters(source: Path) -> Iterator[str]:
    """GPUs by use, jobs, network and power of the cluster; each value holds until the next."""
    uses = ", ".join(f"{use}_gpu_s" for use in SHARES)
    query = (
        f"SELECT start_s, end_s, jobs_waiting, jobs_running, network_bytes, energy_j, {uses} "
        f"FROM {table(source, 'usage')} WHERE end_s > start_s ORDER BY start_s"
    )
    for start_s, end_s, waiting, running, network_bytes, energy_j, *used in _rows(query):
        width_s = end_s - start_s
        gpus = {use: round((amount or 0.0) / width_s, 6) for use, amount in zip(SHARES, used, strict=True)}
        yield _counter(start_s, "GPUs", gpus)
        yield _counter(start_s, "jobs", {"waiting": round(waiting, 6), "running": round(running, 6)})
        yield _counter(start_s, "network (bytes/s)", {"rate": round(network_bytes / width_s, 3)})
        if energy_j is not None and energy_j == energy_j:
            yield _counter(start_s, "power (W)", {"power": round(energy_j / width_s, 3)})


def _counter(time_s: float, name: str, values: dict[str, float]) -> str:
    return _event(ph="C", pid=CLUSTER, name=name, ts=_us(time_s), args=values)


def _faults(source: Path) -> Iterator[str]:
    """Faults and other events, on their node where that is known."""
    gpus = f"(SELECT DISTINCT node, node_name FROM {table(source, 'gpus')})"
    query = (
        f"SELECT e.time_s, e.kind, e.subject, e.value, g.node FROM {table(source, 'events')} e "
        f"LEFT JOIN {gpus} g ON e.subject = g.node_name ORDER BY e.time_s, e.kind, e.subject"
    )
    for time_s, kind, subject, value, node in _rows(query):
        pid, scope = (CLUSTER, "g") if node is None else (node + 1, "p")
        args = {"subject": subject} | ({"value": value} if value == value else {})
        yield _event(ph="i", cat="fault", pid=pid, tid=0, s=scope, name=kind, ts=_us(time_s), args=args)


def _decisions(path: Path) -> Iterator[str]:
    """Decisions with their reasons, when a journal was kept."""
    if not path.is_file():
        return
    try:
        for time_s, plan, refused in read_plans(path):
            reasons = {reason.stage: reason.text for reason in plan.reasons}
            reasons |= {f"refused {k}": f"{r.what}: {r.why}" for k, r in enumerate(refused, 1)}
            yield _event(
                ph="i", cat="decision", pid=CLUSTER, tid=0, s="p", name="decision", ts=_us(time_s), args=reasons
            )
    except JournalError as error:
        raise InputError([str(error)]) from error
