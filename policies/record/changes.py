"""S413 and S423 as data: S4's changes to running jobs' GPUs, their effect on goodput, and their verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from equipoise.policies.contract import Plan

KEPT, ROLLED_BACK, NOT_JUDGED = "kept", "rolled back", "not judged"


@dataclass(frozen=True)
class AllocationChange:
    """One change of the GPUs of a running job.

    job: its row. asked: the part of S4 that asked for it. gpus_before, gpus_after: its numbers of GPUs. expected:
    goodput (samples/s) below which the change is harmful: the earlier one, or the one expected with fewer GPUs.
    goodput: measured when judged; NaN before. verdict: kept, rolled back, or not judged, because the job ended, was
    stopped or was changed again first.
    """

    time_s: float
    job: int
    asked: str
    gpus_before: int
    gpus_after: int
    expected: float = float("nan")
    goodput: float = float("nan")
    verdict: str = NOT_JUDGED


def changes(decisions: Iterable[tuple[float, Plan]]) -> list[AllocationChange]:
    """All changes in a record of decisions, (time in s, plan) each, by time."""
    found: list[AllocationChange] = []
    watched: dict[int, int] = {}  # by job, the change that is judged next
    for time_s, plan in decisions:
        for values in (reason.values for reason in plan.reasons if reason.stage == "s4"):
            judged = [(row, KEPT) for row in _rows(values, "s413_kept")]
            judged += [(row, ROLLED_BACK) for row in _rows(values, "s413_rejected")]
            for k, (row, verdict) in enumerate(judged):
                at = watched.pop(row, None)
                if at is not None:
                    figures = float(values["s413_before"][k]), float(values["s413_after"][k])
                    found[at] = replace(found[at], expected=figures[0], goodput=figures[1], verdict=verdict)
            for k, row in enumerate(_rows(values, "s423_changed")):
                watched[row] = len(found)
                before, after = int(values["s423_gpus_before"][k]), int(values["s423_gpus_after"][k])
                found.append(AllocationChange(time_s, row, values["s423_asked"][k], before, after))
    return found


def _rows(values: Mapping[str, Any], name: str) -> list[int]:
    return [int(row) for row in values.get(name, ())]
