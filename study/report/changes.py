"""The table of S4's changes to running jobs: sub-step, goodput needed and reached, kept or rolled back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.policies.record.changes import AllocationChange, changes
from equipoise.policies.record.journal import JournalError, read_plans
from equipoise.sim.scenario.tree import InputError
from equipoise.study.display import digits, show
from equipoise.study.report.study import RunFolder
from equipoise.study.report.tables import table
from equipoise.study.report.timeline import job_names

LISTED = 200
HEADER = ("time", "job", "asked for by", "GPUs", "goodput needed", "goodput after", "verdict")
NOTE = (
    "A change is kept if the job then trains at least as many samples per second as 'goodput needed' says: as many "
    "as before the change, or, if it gave GPUs to others, as many as its remaining GPUs should train. It is judged "
    "after two measurements, unless the job ends or changes again first. S4 has numbered sub-steps; 'asked for by' "
    "names the one that wanted the change."
)


def changes_html(folders: Sequence[RunFolder]) -> str:
    """One table for each run that has a journal with changes; "" where there is none.

    Raises InputError when a journal is damaged.
    """
    return "".join(_table(folder) for folder in folders if folder.journal is not None)


def _table(folder: RunFolder) -> str:
    assert folder.journal is not None
    try:
        found = changes((time_s, plan) for time_s, plan, _ in read_plans(folder.journal))
    except JournalError as error:
        raise InputError([str(error)]) from error
    if not found:
        return ""
    verdicts = [change.verdict for change in found]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(sorted(verdicts)))
    more = f" The first {LISTED}." if len(found) > LISTED else ""
    caption = f"{folder.label}: {len(found)} changes of running jobs, {counts}.{more}"
    names = job_names(folder.path)
    return table(caption, HEADER, [_row(change, names[change.job]) for change in found[:LISTED]])


def _row(change: AllocationChange, name: str) -> tuple[str, ...]:
    goodput = ("" if np.isnan(value) else digits(value) for value in (change.expected, change.goodput))
    size = f"{change.gpus_before} to {change.gpus_after}"
    return show("x_s", change.time_s), name, change.asked, size, *goodput, change.verdict
