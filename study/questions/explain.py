"""Why a job of a recorded run waited: the cause after each decision, and the jobs started before it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.contract import Decision, Plan, Reason
from equipoise.policies.observation import RUNNING, WAITING, Bools, Ints, Observation
from equipoise.policies.queues.places import least_gpus, place_job
from equipoise.policies.quotas.limits import (
    ROUNDING,
    Quota,
    allowed_nodes,
    amounts_of,
    bound,
    describe,
    held_amounts,
    node_model,
)
from equipoise.policies.record.journal import JournalError, read
from equipoise.sim.record import read_parquet
from equipoise.sim.scenario.tree import InputError
from equipoise.study.folders import MANIFEST, read_manifest
from equipoise.study.questions.sub_steps import done_to, in_words

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Folder:
    """A run folder with a journal: its jobs in order of their rows, and its policy."""

    path: Path
    policy: str
    seed: int
    jobs: Mapping[str, Any]

    def name(self, row: int) -> str:
        """The name of a job by its row."""
        return str(self.jobs["name"][row])

    def row(self, job: str) -> int:
        """The row of a job by name or number. Raises InputError when there is none, or several."""
        names = [str(name) for name in self.jobs["name"]]
        rows = [k for k, name in enumerate(names) if name == job]
        rows = rows or [k for k, number in enumerate(self.jobs["job_id"].tolist()) if str(number) == job]
        if len(rows) == 1:
            return rows[0]
        close = difflib.get_close_matches(job, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the first is {names[0]!r}" if names else "there are none"
        raise InputError([f"{self.path}: {'several jobs are' if rows else 'no job is'} named {job!r}; {hint}"])


def read_folder(path: str | Path) -> Folder:
    """Read a run folder. Raises InputError when it has no run or no journal."""
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        raise InputError([f"{path}: no run here; give the folder of `run --out DIR --journal`"])
    if not (folder / JOURNAL).is_file():
        raise InputError([f"{path}: no journal of decisions; make the run again with --journal"])
    manifest, jobs = read_manifest(folder), read_parquet(folder / "jobs.parquet")
    if lost := [name for name in ("name", "job_id", "gpus", "arrival_s", "start_s") if name not in jobs]:
        raise InputError([f"{folder / 'jobs.parquet'}: is damaged: it has no column {lost[0]!r}"])
    return Folder(folder, str(manifest.get("policy", "")), int(manifest.get("seed", 0)), jobs)


def decisions(folder: Folder) -> Iterator[Decision]:
    """The recorded decisions. Raises InputError for a damaged journal."""
    try:
        for entry in read(folder.path / JOURNAL):
            yield entry.decision
    except JournalError as error:
        raise InputError([str(error)]) from error


@dataclass(frozen=True)
class Cause:
    """Cause of a job's wait. kind: limit, GPUs, places, topology, reservation or order."""

    kind: str
    text: str


@dataclass
class Wait:
    """Causes of one job's wait up to its first start. span_s: by cause, in order of first occurrence.

    before: jobs (rows) that started while it waited, with the reason why they were first.
    """

    row: int
    span_s: dict[Cause, float] = field(default_factory=dict)
    before: dict[int, str] = field(default_factory=dict)
    stopped_s: list[float] = field(default_factory=list)

    @property
    def main(self) -> Cause | None:
        """The cause with the longest time."""
        return max(self.span_s, key=lambda cause: self.span_s[cause], default=None)


def why_it_waited(folder: Folder, row: int) -> Wait:
    """Goes through the journal; the cause after a decision holds until the next one."""
    wait, last, since_s = Wait(row), None, math.nan
    arrival_s = float(folder.jobs["arrival_s"][row])
    start_s = float(folder.jobs["start_s"][row])
    end_s = start_s if math.isfinite(start_s) else math.inf
    for decision in decisions(folder):
        o = decision.observation
        if o.time_s < arrival_s or len(o.jobs) <= row:
            continue
        if last is not None:
            _add(wait, last, min(o.time_s, end_s) - since_s)
        elif o.time_s > arrival_s:
            _add(wait, Cause("GPUs", "no decision was made: no GPU was free"), min(o.time_s, end_s) - arrival_s)
        if o.time_s >= end_s or row not in o.waiting:
            last = None
            break
        last, since_s = _cause(folder, decision, row), o.time_s
        _note_starts(wait, folder, decision, row)
    if last is not None and math.isfinite(end_s):
        _add(wait, last, end_s - since_s)
    return wait


def _add(wait: Wait, cause: Cause, span_s: float) -> None:
    if span_s > 0.0:
        wait.span_s[cause] = wait.span_s.get(cause, 0.0) + span_s


def _started(decision: Decision) -> dict[int, Ints]:
    """GPUs of the waiting jobs that a decision starts."""
    o, allocation = decision.observation, decision.plan.allocation
    if allocation is None:
        return {}
    rows = allocation.job.tolist()
    return {row: allocation.gpus_of(k) for k, row in enumerate(rows) if o.jobs.state[row] != RUNNING}


def _after(decision: Decision) -> tuple[Proposal, Quota]:
    """Free GPUs and usage of limits after the decision is applied."""
    o, allocation = decision.observation, decision.plan.allocation
    draft, quota = Proposal(o), Quota.now(o)
    if allocation is None:
        return draft, quota
    parts = [(row, k) for k, row in enumerate(allocation.job.tolist())]
    for row, _ in parts:
        if o.jobs.state[row] == RUNNING:
            quota.book(int(o.jobs.claim[row]), {m: -n for m, n in held_amounts(o, row).items()}, -1)
            draft.stop((row,))
    for row, k in parts:
        gpus = allocation.gpus_of(k)
        share = allocation.share[allocation.offset[k] : allocation.offset[k + 1]]
        if len(gpus):
            quota.book(int(o.jobs.claim[row]), amounts_of(o, gpus, share))
            draft.start((np.array([row]), np.array([0, len(gpus)]), gpus, share))
    return draft, quota


def _cause(folder: Folder, decision: Decision, row: int) -> Cause:
    """Why a job still waits after a decision.

    A limit is the cause only if the job would fit without it, or without the jobs of lower priority that use it,
    since it could take their GPUs, or gets them when they end.
    """
    o = decision.observation
    draft, quota = _after(decision)
    wanted, claim, allowed = least_gpus(o, row), int(o.jobs.claim[row]), allowed_nodes(o, row)
    if claim < 0:
        return _unplaced(draft, row, wanted, allowed) or _order(folder, decision, row)
    counted = wanted * float(min(o.jobs.gpu_share_requested[row], 1.0))
    room = np.array(quota.room(claim))
    if counted > room.max(initial=0.0) + ROUNDING:
        cause = _unplaced(_without_users(decision, draft, row, quota, counted), row, wanted, allowed)
        if cause is not None and cause.kind == "topology":
            return cause
        return _limit(quota, claim, counted)
    least = counted if o.jobs.one_gpu_model[row] else 0.0
    lets = allowed & (room[np.maximum(node_model(o), 0)] + ROUNDING >= least)
    cause = _unplaced(draft, row, wanted, lets)
    if cause is not None and _unplaced(draft, row, wanted, allowed) is None:
        return _limit(quota, claim, counted)
    return cause or _order(folder, decision, row)


def _unplaced(draft: Proposal, row: int, wanted: int, allowed: Bools) -> Cause | None:
    """Why the free GPUs of these nodes are not enough for a job; None if they are."""
    free = np.array(draft.columns.free)
    if draft.observation.jobs.gpu_share_requested[row] >= 1.0 and free[allowed].sum() < wanted:
        if free.sum() >= wanted:
            return Cause("places", f"{wanted} GPUs needed; free ones are on nodes that it must not use")
        return Cause("GPUs", f"{wanted} GPUs needed, fewer were free")
    if place_job(draft, row, wanted, allowed=allowed) is None:
        return Cause("topology", f"{wanted} GPUs free, but not together as it asks, or with too little memory")
    return None


def _without_users(decision: Decision, draft: Proposal, row: int, quota: Quota, gpus: float) -> Proposal:
    """Free GPUs without the jobs of lower priority that use the limit which a job would break."""
    o, jobs = decision.observation, decision.observation.jobs
    limit = quota.first(int(jobs.claim[row]), gpus)
    for other in [*o.running.tolist(), *_started(decision)]:
        leaves = quota.leaves(int(jobs.claim[other])) if jobs.claim[other] >= 0 else []
        uses = any(limit in quota.chain(leaf) for leaf in leaves)
        if uses and jobs.priority[other] < jobs.priority[row] and len(draft.gpus_of(other)[0]):
            draft.stop((other,))
    return draft


def _limit(quota: Quota, claim: int, gpus: float) -> Cause:
    limit = quota.first(claim, gpus)
    if limit < 0:
        return Cause("limit", "its limits")
    return Cause("limit", f"{describe(quota.queues, limit)} allows {bound(quota.queues, limit)}")


def _values(plan: Plan, key: str) -> tuple[Reason, Any] | None:
    """The last reason that has a value, with that value."""
    return next(((reason, reason.values[key]) for reason in reversed(plan.reasons) if key in reason.values), None)


def _order(folder: Folder, decision: Decision, row: int) -> Cause:
    """The cause for a job that would have fitted: the job for which the policy reserved the room."""
    plan, o = decision.plan, decision.observation
    planned = _values(plan, "planned")
    if planned is not None and len(planned[1]):
        other = [int(k) for k in planned[1] if int(k) != row]
        if other:
            return Cause("reservation", f"it would have delayed {folder.name(other[0])}, which is planned earlier")
    reserved = _values(plan, "reserved_s")
    overdue = _values(plan, "s422_overdue")
    if (reserved is not None and math.isfinite(float(reserved[1]))) or (overdue is not None and int(overdue[1]) >= 0):
        head = int(overdue[1]) if overdue is not None and int(overdue[1]) >= 0 else int(o.waiting[0])
        if head != row:
            return Cause("reservation", f"it would have delayed {folder.name(head)}, which has a reservation")
    ranked = _values(plan, "order")
    first = [int(k) for k in ranked[1]] if ranked is not None else o.waiting.tolist()
    started = set(_started(decision))
    ahead = [k for k in first[: first.index(row)] if k not in started] if row in first else first[:1]
    if ahead and ahead[0] != row:
        return Cause("order", f"behind {folder.name(ahead[0])}, which is earlier in the queue and could not start")
    return Cause("order", "the policy started others, or waited")


def _note_starts(wait: Wait, folder: Folder, decision: Decision, row: int) -> None:
    """Record the jobs started in this decision while the job waits, and why they were first."""
    o = decision.observation
    ranked, told = _values(decision.plan, "order"), _values(decision.plan, "priority")
    of: dict[int, float] = {}
    if ranked is not None and told is not None:
        of = dict(zip((int(k) for k in ranked[1]), (float(p) for p in told[1]), strict=True))
    for other in _started(decision):
        if other == row or other in wait.before:
            continue
        if other in of and row in of and of[other] != of[row]:
            higher = of[other] > of[row]
            why = f"priority {of[other]:g} against {of[row]:g}" if higher else "fitted where it did not"
        elif other < row:
            why = "arrived before it"
        elif o.jobs.gpus_requested[other] < o.jobs.gpus_requested[row]:
            why = "asks for fewer GPUs"
        else:
            why = "the policy's order"
        wait.before[other] = why


def at_time(folder: Folder, time_s: float | None) -> Decision:
    """The last decision up to a time (None: of all). Raises InputError where there is none."""
    found = None
    for decision in decisions(folder):
        if time_s is not None and decision.observation.time_s > time_s:
            break
        found = decision
    if found is None:
        raise InputError([f"{folder.path}: no decision was made by then"])
    return found


_ROWS = ("started", "stopped", "stopped_for", "held", "order", "planned")
_SHOWN = 6


def stage_lines(folder: Folder, decision: Decision) -> list[str]:
    """The observation at a decision, and what each stage computed and did."""
    o = decision.observation
    running, waiting = len(o.running), len(o.waiting)
    free = int(o.nodes.gpus_free.sum())
    ran = f"{running} job{'s' * (running != 1)} ran"
    lines = [f"{ran}, {waiting} waited, {free} of {int(o.nodes.gpus.sum())} GPUs were free"]
    if waiting:
        lines.append(f"waiting: {_some([folder.name(row) for row in o.waiting.tolist()])}")
    for reason in decision.plan.reasons:
        lines.append(f"{reason.stage}: {reason.text}")
        words, told = in_words(reason, o, folder.name)
        lines += [f"  {text}" for text in words]
        lines += [
            f"  {key}: {text}"
            for key, value in reason.values.items()
            if key not in told and (text := _shown(folder, o, key, value))
        ]
    if decision.plan.changes_nothing():
        lines.append("nothing was changed")
    return lines


def done_to_job(folder: Folder, row: int) -> list[tuple[float, str]]:
    """Changes of a job with time (s) and sub-step; repeated ones are listed once.

    Also the loss of its GPUs without a plan, to a fault or to the owner of its nodes.
    """
    found, queued_s, stopped = list[tuple[float, str]](), math.nan, False
    for decision in decisions(folder):
        o = decision.observation
        if row >= len(o.jobs):
            continue
        before_s, queued_s = queued_s, float(o.jobs.queued_since_s[row])
        if queued_s > before_s and o.jobs.state[row] == WAITING and not stopped:
            found.append((queued_s, "lost its GPUs, and waits again"))
        text = done_to(decision, row)
        stopped = o.jobs.state[row] == RUNNING and _stops(decision.plan, row)
        if text and (not found or found[-1][1] != text):
            found.append((o.time_s, text))
    return found


def _stops(plan: Plan, row: int) -> bool:
    """Whether a plan takes all GPUs from a job."""
    if plan.allocation is None or row not in plan.allocation.job:
        return False
    return not len(plan.allocation.gpus_of(int(np.flatnonzero(plan.allocation.job == row)[-1])))


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _shown(folder: Folder, o: Observation, key: str, value: Any) -> str:
    if key == "limit":
        return _some(list(dict.fromkeys(o.queues.names["limit"][int(k)] for k in value)))
    values = np.atleast_1d(np.asarray(value))
    if values.dtype.kind not in "iufb":
        return str(value)
    if key in _ROWS:
        return _some([folder.name(int(row)) for row in values])
    known = [f"{v:g}" for v in values.ravel().tolist() if not (isinstance(v, float) and math.isnan(v))]
    return _some(known)
