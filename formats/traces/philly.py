"""Philly's `cluster_job_log` (Jeon et al., ATC 2019): a JSON list of jobs with their attempts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.formats.text.columns import Floats, Ints, Text, TextBuilder, constant
from equipoise.formats.text.csvfile import CsvTable
from equipoise.formats.text.jsonfile import load_json, path
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile
from equipoise.formats.text.times import zone_of
from equipoise.formats.traces.jobs import TraceJobs, summed, times_of


def read_philly_log(source: str | Path | bytes, *, zone: str = "America/Los_Angeles", name: str = "") -> TraceJobs:
    """Jobs of the log. `line` is a job's place in the list, from 1.

    gpus: of the attempt with most. duration_s: of all attempts that ended, together. zone: the log's times have
    none; its machines stood at the US west coast. Raises FormatError when it is no such log.
    """
    tally, file = RowTally(), TextFile(source, name)
    value = load_json(file, tally)
    listed = list(enumerate(value, 1)) if isinstance(value, list) else []
    kept = [(place, job) for place, job in listed if isinstance(path(job, "attempts"), list)]
    if not kept:
        raise file.error(0, "no list of jobs with `attempts`, which Philly's cluster_job_log has")
    for place, job in listed:
        if not isinstance(path(job, "attempts"), list):
            tally.add("left out", "not a job with attempts", place)
    jobs, places = [job for _, job in kept], np.array([place for place, _ in kept], dtype=np.int64)
    attempts = [[one for one in job["attempts"] if isinstance(one, dict)] for job in jobs]
    owner = np.repeat(np.arange(len(jobs)), [len(own) for own in attempts])
    flat = [attempt for own in attempts for attempt in own]

    def seconds(rows: Sequence[Any], key: str, lines: Ints) -> Floats:
        """The times under a key."""
        table = CsvTable({key: _text(rows, key)}, lines, tally, file.name)
        return times_of(table, key, zone_of(zone), zone)

    begins, ends = (seconds(flat, key, places[owner]) for key in ("start_time", "end_time"))
    start, end = np.full(len(jobs), np.inf), np.full(len(jobs), -np.inf)
    np.fmin.at(start, owner, begins)
    np.fmax.at(end, owner, ends)
    gpus, nodes = np.zeros(len(jobs)), np.zeros(len(jobs))
    held = np.array([_gpus(attempt) for attempt in flat], dtype=np.float64).reshape(-1, 2)
    np.maximum.at(gpus, owner, held[:, 0])
    np.maximum.at(nodes, owner, held[:, 1])
    count = np.array([len(own) for own in attempts], dtype=np.int64)
    if (never := count == 0).any():
        first = int(places[never].min())
        tally.add("noted", "a job without attempts: it never ran", first, int(never.sum()))
    unknown = np.full(len(jobs), np.nan)
    return TraceJobs(
        job_id=_text(jobs, "jobid"),
        submit_s=seconds(jobs, "submitted_time", places),
        start_s=np.where(np.isinf(start), np.nan, start),
        end_s=np.where(np.isinf(end), np.nan, end),
        duration_s=summed(owner, np.nan_to_num(ends - begins), len(jobs)),
        gpus=np.where(never, np.nan, gpus),
        gpu_type=constant("", len(jobs)),
        cpus=unknown,
        nodes=np.where(never, np.nan, nodes),
        priority=unknown,
        user=_text(jobs, "user"),
        group=_text(jobs, "vc"),
        state=_text(jobs, "status"),
        kind=constant("", len(jobs)),
        attempts=count,
        line=places,
        changes=tally.changes(),
    )


def _text(rows: Sequence[Any], key: str) -> Text:
    builder = TextBuilder()
    values = [path(row, key) for row in rows]
    builder.add([value if isinstance(value, str) else "" for value in values])
    return builder.finish()


def _gpus(attempt: Any) -> tuple[int, int]:
    """(GPUs, machines) of an attempt."""
    detail = path(attempt, "detail")
    machines = [part for part in detail if isinstance(part, dict)] if isinstance(detail, list) else []
    lists = [part.get("gpus") for part in machines]
    return sum(len(gpus) for gpus in lists if isinstance(gpus, list)), len(machines)
