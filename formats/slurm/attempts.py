"""Rows of one job: the same row dumped twice, an older state of it, and attempts after a requeue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.text.columns import Bools, Ints
from equipoise.formats.text.tally import RowTally


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
