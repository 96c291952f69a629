"""Any allocation stage under a site's declared limits: it sees only the jobs that may start."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.contract import Allocation, AllocationStage, Memory, Plan, Policy, Stage
from equipoise.policies.observation import HELD, RUNNING, WAITING, Ints, Observation
from equipoise.policies.queues.places import place_job, start_on
from equipoise.policies.quotas.feasible import breaches, may_start
from equipoise.policies.quotas.limits import Quota, restricted

_ROUNDS = 8
"""Most repeats of a stage without the jobs that broke a limit; after these nothing changes."""


@dataclass(frozen=True)
class Within(AllocationStage):
    """Hides waiting jobs at a limit from `stage`, and repeats it if its plan breaks a limit.

    A job on nodes that it may not use is moved to free allowed ones, or held back.
    """

    stage: AllocationStage = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Copy the declarations of the stage."""
        for name in ("name", "needs", "starts_only", "order", "blocking", "preemption", "honours"):
            object.__setattr__(self, name, getattr(self.stage, name))
        object.__setattr__(self, "needs", self.needs | {"nodes", "gpus", "jobs", "workers"})

    def initial(self) -> Memory:
        """Memory of the stage."""
        return self.stage.initial()

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """The plan of the stage for the jobs that may start."""
        o, before, fixed = observation, plan, np.empty(0, dtype=np.int64)
        held = _held(o, Quota.now(o))
        for _ in range(_ROUNDS):
            plan, after = self.stage.refine(_view(o, held, fixed), before, memory)
            if plan.allocation is None or plan.allocation is before.allocation:
                return _noted(plan, self.name, held), after
            allocation, homeless = _moved(o, plan.allocation)
            quota, placed = Quota.now(o), _without(allocation, homeless)
            bad = breaches(o, placed.job, placed.offset, placed.gpu, placed.share, quota=quota)
            bad |= dict.fromkeys(homeless, "found no GPUs")
            if not bad:
                return _noted(plan.with_(allocation=allocation), self.name, held), after
            rows = np.array(sorted(bad), dtype=np.int64)
            good = np.setdiff1d(allocation.job, rows)
            held = np.union1d(held, rows[o.jobs.state[rows] == WAITING])
            held = np.union1d(held, np.setdiff1d(_held(o, quota), good))  # others that these leave no room
            fixed = np.union1d(fixed, rows[o.jobs.state[rows] == RUNNING])
        if (o.jobs.state[allocation.job] == RUNNING).any():  # jobs may be changed for those that do not start
            return before.because(self.name, "every plan broke a limit: no change"), memory
        return _noted(plan.with_(allocation=_without(allocation, bad)), self.name, held), after


def _without(allocation: Allocation, rows: Collection[int]) -> Allocation:
    """The allocation without these rows."""
    if not rows:
        return allocation
    kept = [k for k, row in enumerate(allocation.job.tolist()) if row not in rows]
    none = np.empty(0, dtype=np.int64)
    entries = np.concatenate([none, *(np.arange(allocation.offset[k], allocation.offset[k + 1]) for k in kept)])
    sizes = np.diff(allocation.offset)[kept]
    offset = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return Allocation(allocation.job[kept], offset, allocation.gpu[entries], allocation.share[entries])


def within_queues(policy: Policy) -> Policy:
    """The policy with each allocation stage wrapped in `Within`, unless it respects limits itself."""
    return dataclasses.replace(policy, stages=tuple(map(_kept, policy.stages)))


def _kept(stage: Stage) -> Stage:
    if not isinstance(stage, AllocationStage) or stage.keeps_limits or isinstance(stage, Within):
        return stage
    return Within(stage)


def _held(o: Observation, quota: Quota) -> Ints:
    """Waiting jobs of which each alone would break a limit."""
    jobs, rows = o.jobs, o.waiting
    need = np.where(jobs.rigid[rows], jobs.gpus_requested[rows], jobs.workers_min[rows] * jobs.gpus_per_worker[rows])
    return np.asarray(rows[~may_start(o, quota, rows, need)])


def _view(o: Observation, held: Ints, fixed: Ints) -> Observation:
    """The view of the stage: jobs `held` do not wait, running jobs `fixed` are known by duration only."""
    if not len(held) and not len(fixed):
        return o
    changed: dict[str, Any] = {}
    if len(held):
        changed["state"] = o.jobs.state.copy()
        changed["state"][held] = HELD
    if len(fixed):
        changed["rigid"] = o.jobs.rigid.copy()
        changed["rigid"][fixed] = True
    waiting = np.setdiff1d(o.waiting, held, assume_unique=True)
    return dataclasses.replace(o, jobs=o.jobs.replaced(**changed), waiting=waiting, held=held)


def _moved(o: Observation, allocation: Allocation) -> tuple[Allocation, list[int]]:
    """(the allocation, jobs that cannot be placed): jobs with restricted nodes are moved to allowed ones.

    Jobs that had been given their new GPUs get others.
    """
    which, rows = restricted(o, allocation.job), allocation.job.tolist()
    if not which.any():
        return allocation, []
    proposal, homeless = Proposal(o), []
    proposal.stop(row for row in rows if o.jobs.state[row] == RUNNING)
    parts = {row: allocation.gpus_of(k) for k, row in enumerate(rows)}
    for k in np.argsort(~which, kind="stable").tolist():
        row, gpus = rows[k], parts[rows[k]]
        if not len(gpus):
            continue
        share = allocation.share[allocation.offset[k] : allocation.offset[k + 1]]
        if which[k] or (proposal.columns.room[gpus] < share - 1e-9).any():
            found = place_job(proposal, row, len(gpus), share=float(share.max()))
            if found is None:
                homeless.append(row)
                continue
            parts[row] = found
        start_on(proposal, row, parts[row], share)
    offset = np.concatenate(([0], np.cumsum([len(parts[row]) for row in rows]))).astype(np.int64)
    gpu = np.concatenate([parts[row] for row in rows]).astype(np.int64)
    return Allocation(allocation.job, offset, gpu, allocation.share), homeless


def _noted(plan: Plan, name: str, held: Ints) -> Plan:
    return plan.because(name, f"held {len(held)} jobs at the limits of their queues", held=held) if len(held) else plan
