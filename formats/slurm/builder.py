"""Rows of text under Slurm's column names, to a `JobTable`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

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


def number_attempts(jobs: JobTable, digest: Ints, tally: RowTally) -> tuple[Ints, Bools]:
    """(attempt of each row, rows to keep). digest: (rows,), equal where whole rows are equal."""
    attempt = np.ones(len(jobs), dtype=np.int64)
    keep = np.ones(len(jobs), dtype=np.bool_)
    key = jobs.job_id.codes.astype(np.int64) * (len(jobs.cluster.values) or 1) + jobs.cluster.codes
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    ends = np.append(starts[1:], len(order))
    for k in np.flatnonzero(ends - starts > 1).tolist():
        rows = order[starts[k] : ends[k]].tolist()
        kept = _distinct(jobs, rows, digest, keep, tally)
        _number(jobs, kept, attempt, tally)
    return attempt, keep


def _distinct(jobs: JobTable, rows: Sequence[int], digest: Ints, keep: Bools, tally: RowTally) -> list[int]:
    """The rows of distinct attempts: of several states of one, the one that ended, or the last."""
    pictures: dict[tuple[float, str], int] = {}
    seen: set[int] = set()
    for row in rows:
        line = int(jobs.line[row])
        if int(digest[row]) in seen:
            keep[row] = False
            tally.add("merged", "equal to an earlier row", line)
            continue
        seen.add(int(digest[row]))
        begun = (float(jobs.submit_s[row]), jobs.user[row])
        other = pictures.get(begun, -1)
        if other >= 0 and begun[0] == begun[0] and _same_start(jobs, other, row):
            newer, older = (other, row) if _is_older(jobs, row, other) else (row, other)
            keep[older] = False
            pictures[begun] = newer
            tally.add("merged", "an older state of a row that is also present", int(jobs.line[older]))
        else:
            pictures[begun if begun[0] == begun[0] else (float(-row - 1), "")] = row
    return [row for row in rows if keep[row]]


def _same_start(jobs: JobTable, first: int, second: int) -> bool:
    """Whether two rows can be one attempt: no start in one of them, or the same."""
    a, b = jobs.start_s[first], jobs.start_s[second]
    return bool(np.isnan(a) or np.isnan(b) or a == b)


def _is_older(jobs: JobTable, row: int, other: int) -> bool:
    """Whether `row` is an older state of the attempt than `other`: it has no end, or an earlier one."""
    a, b = jobs.end_s[row], jobs.end_s[other]
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(a) and not np.isnan(b))
    return bool(a < b)


def _number(jobs: JobTable, rows: list[int], attempt: Ints, tally: RowTally) -> None:
    """Number the attempts by submission and start. Another user's job with the same id begins at 1 again."""
    by_user: dict[str, list[int]] = {}
    for row in rows:
        by_user.setdefault(jobs.user[row], []).append(row)
    if len(by_user) > 1:
        tally.add("noted", "a job id used by several users' jobs", int(jobs.line[rows].min()), len(by_user))
    for own in by_user.values():
        if len(own) == 1:
            continue
        own.sort(key=lambda row: _when(jobs, row))
        attempt[own] = np.arange(1, len(own) + 1)
        tally.add("noted", "another attempt of a requeued job", int(jobs.line[own[1:]].min()), len(own) - 1)


def _when(jobs: JobTable, row: int) -> tuple[float, float, int]:
    times = (float(jobs.submit_s[row]), float(jobs.start_s[row]))
    submit, start = (time if time == time else np.inf for time in times)
    return submit, start, row
