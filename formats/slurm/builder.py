"""Rows of text under Slurm's column names, to a `JobTable`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from equipoise.formats.slurm.attempts import number_attempts
from equipoise.formats.slurm.columns import canonical, sources
from equipoise.formats.slurm.derive import TIMES, Derivation
from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.slurm.values import NOT_GIVEN, parse_job_id
from equipoise.formats.text.columns import Bools, Ints, TextBuilder
from equipoise.formats.text.delimited import Batch
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.times import TextTimes, zone_of


class JobTableBuilder:
    """Collects rows of these columns; `finish` gives the table."""

    def __init__(self, names: Sequence[str], zone: str, tally: RowTally) -> None:
        """zone: of the clock that wrote times without a zone."""
        self._names, self._tally = list(names), tally
        self._zone_name, self._zone = zone, zone_of(zone)
        self._place = sources(names)
        self._id = self._place.get("job_id", NOT_GIVEN)
        self._times = {target: TextTimes() for target in TIMES if target in self._place}
        timed = {self._place[target] for target in self._times}
        self._texts = {k: TextBuilder() for k in range(len(names)) if k not in timed}
        self._line: list[int] = []
        self._digest: list[int] = []

    def add(self, batch: Batch) -> None:
        """Append rows of one text per column; steps of jobs are counted and left out."""
        if self._id >= 0 and batch.lines:
            batch = self._jobs_only(batch)
        if not batch.lines:
            return
        self._line += batch.lines
        self._digest += batch.digest
        for k, builder in self._texts.items():
            builder.add(batch.columns[k])
        self._add_times(batch)

    def _add_times(self, batch: Batch) -> None:
        """Eligible is mostly Submit: equal columns are parsed once."""
        last: tuple[Sequence[str], TextTimes] | None = None
        for target, times in self._times.items():
            column = batch.columns[self._place[target]]
            if last is not None and column == last[0]:
                times.add_last(last[1])
            else:
                times.add(column)
            last = column, times

    def _jobs_only(self, batch: Batch) -> Batch:
        """The rows of jobs; steps, repeated headers and rows without a job id are counted."""
        ids = batch.columns[self._id]
        own = [(text.isdigit() and text.isascii() and len(text) <= 12) or _is_job(text) for text in ids]
        if all(own):
            return batch
        for text, line, is_job in zip(ids, batch.lines, own, strict=True):
            if not is_job:
                self._tally.add("left out", self._why_not(text), line)
        return batch.select(own)

    def _why_not(self, text: str) -> str:
        if parse_job_id(text.strip()):
            return "a step of a job"
        name = self._names[self._id]
        return "a repeated header" if canonical(text) == canonical(name) else f"{name} is not a job id"

    def finish(self) -> JobTable:
        """The table; rows without a job id are left out, rows of the same attempt are merged."""
        jobs = Derivation(
            names=self._names,
            place=self._place,
            found={k: builder.finish() for k, builder in self._texts.items()},
            times=self._times,
            lines=np.array(self._line, dtype=np.int64),
            zone_name=self._zone_name,
            zone=self._zone,
            tally=self._tally,
        ).table()
        attempt, keep = number_attempts(jobs, np.array(self._digest, dtype=np.int64), self._tally)
        jobs = replace(jobs, attempt=attempt).take(keep)
        self._remarks(jobs)
        return replace(jobs, changes=self._tally.changes())

    def _remarks(self, jobs: JobTable) -> None:
        for reason, rows in {
            "one row for several array tasks": jobs.array_tasks > 1,
            "a part of a heterogeneous job": jobs.het_part >= 0,
            "started before it was submitted": jobs.start_s < jobs.submit_s,
            "ended before it started": jobs.end_s < jobs.start_s,
        }.items():
            self._count("noted", reason, jobs.line, rows)

    def _count(self, action: str, reason: str, lines: Ints, rows: Bools) -> None:
        if rows.any():
            self._tally.add(action, reason, int(lines[rows].min()), int(rows.sum()))


def _is_job(text: str) -> bool:
    found = parse_job_id(text.strip())
    return found is not None and not found.step
