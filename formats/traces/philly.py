"""Philly's `cluster_job_log` (Jeon et al., ATC 2019): a JSON list of jobs with their attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from equipoise.formats.text.columns import Text, TextBuilder, constant
from equipoise.formats.text.jsonfile import load_json, path
from equipoise.formats.text.tally import Tally
from equipoise.formats.text.textfile import TextFile
from equipoise.formats.text.times import parse_times, to_utc, zone_of
from equipoise.formats.traces.jobs import TraceJobs, summed


def read_philly_log(
    source: str | Path | bytes, *, zone: str = "America/Los_Angeles", name: str = ""
) -> TraceJobs:
    """Jobs of the log. `line` is a job's place in the list, from 1.

    gpus: of the attempt with most. duration_s: of all attempts that ended, together. zone: the log's times have
    none; its machines stood at the US west coast. Raises FormatError when it is no such log.
    """
    tally, file = Tally(), TextFile(source, name)
    value = load_json(file, tally)
    if not isinstance(value, list) or not any(isinstance(path(job, "attempts"), list) for job in value):
        raise file.error(0, "no list of jobs with `attempts`, which Philly's cluster_job_log is")
    jobs, places = [], []
    for place, job in enumerate(value, 1):
        if isinstance(path(job, "attempts"), list):
            jobs.append(job)
            places.append(place)
        else:
            tally.add("left out", "not a job with attempts", place)
    return _Reader(jobs, places, zone, tally).table()


class _Reader:
    """Columns from the jobs of the log."""

    def __init__(self, jobs: list[Any], places: list[int], zone: str, tally: Tally) -> None:
        self.jobs, self.tally = jobs, tally
        self.places = np.array(places, dtype=np.int64)
        self.zone, self.clock = zone, zone_of(zone)

    def table(self) -> TraceJobs:
        """One row per job."""
        attempts = [[a for a in job["attempts"] if isinstance(a, dict)] for job in self.jobs]
        owner = np.repeat(np.arange(len(self.jobs)), [len(own) for own in attempts])
        flat = [attempt for own in attempts for attempt in own]
        begins = self._seconds([path(attempt, "start_time") for attempt in flat], owner, "start_time")
        ends = self._seconds([path(attempt, "end_time") for attempt in flat], owner, "end_time")
        own = np.arange(len(self.jobs))
        submit = self._seconds([path(job, "submitted_time") for job in self.jobs], own, "submitted_time")
        start, end = np.full(len(self.jobs), np.inf), np.full(len(self.jobs), -np.inf)
        np.fmin.at(start, owner, begins)
        np.fmax.at(end, owner, ends)
        ran = summed(owner, np.nan_to_num(ends - begins), len(self.jobs))
        gpus, nodes = np.zeros(len(self.jobs)), np.zeros(len(self.jobs))
        for job, attempt in zip(owner.tolist(), flat, strict=True):
            count, machines = _gpus(attempt)
            gpus[job], nodes[job] = max(gpus[job], count), max(nodes[job], machines)
        unknown = np.array([not own for own in attempts], dtype=np.bool_)
        if unknown.any():
            first = int(self.places[unknown].min())
            self.tally.add("noted", "a job without attempts: it never ran", first, int(unknown.sum()))
        return TraceJobs(
            job_id=self._text("jobid"),
            submit_s=submit,
            start_s=np.where(np.isinf(start), np.nan, start),
            end_s=np.where(np.isinf(end), np.nan, end),
            duration_s=ran,
            gpus=np.where(unknown, np.nan, gpus),
            gpu_type=constant("", len(self.jobs)),
            cpus=np.full(len(self.jobs), np.nan),
            nodes=np.where(unknown, np.nan, nodes),
            priority=np.full(len(self.jobs), np.nan),
            user=self._text("user"),
            group=self._text("vc"),
            state=self._text("status"),
            kind=constant("", len(self.jobs)),
            attempts=np.array([len(own) for own in attempts], dtype=np.int64),
            line=self.places,
            changes=self.tally.changes(),
        )

    def _text(self, key: str) -> Text:
        builder = TextBuilder()
        values = [path(job, key) for job in self.jobs]
        builder.add([value if isinstance(value, str) else "" for value in values])
        return builder.finish()

    def _seconds(self, values: list[Any], owner: Any, key: str) -> Any:
        texts = [value if isinstance(value, str) else "" for value in values]
        seconds, naive, bad = parse_times(texts)
        seconds, odd = to_utc(seconds, naive, self.clock)
        for action, reason, rows in (
            ("changed", f"{key} is not a time, taken as not given", bad),
            ("noted", f"{key} falls into a change of {self.zone}'s clock, its first sense taken", odd),
            ("noted", f"{key} without a zone read as {self.zone}", naive),
        ):
            if rows.any():
                self.tally.add(action, reason, int(self.places[owner[rows]].min()), int(rows.sum()))
        return seconds


def _gpus(attempt: Any) -> tuple[int, int]:
    """(GPUs, machines) of an attempt."""
    detail = path(attempt, "detail")
    machines = [part for part in detail if isinstance(part, dict)] if isinstance(detail, list) else []
    lists = [part.get("gpus") for part in machines]
    return sum(len(gpus) for gpus in lists if isinstance(gpus, list)), len(machines)
