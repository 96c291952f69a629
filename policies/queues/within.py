"""Any allocation stage under a site's declared limits: it sees only the jobs that may start."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.contract import Allocation, AllocationStage, Memory, Plan, Policy, Stage
from equipoise.policies.observation import HELD, RUNNING, WAITING, Floats, Ints, Observation
from equipoise.policies.queues.places import least_gpus, place_job, start_on
from equipoise.policies.quotas.limits import Quota, breaches, may_start, restricted, stands_well

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
        now = Quota.now(o)
        held = _held(o, now)
        for _ in range(_ROUNDS):
            plan, after = self.stage.refine(_view(o, now, held, fixed), before, memory)
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


def _view(o: Observation, quota: Quota, held: Ints, fixed: Ints) -> Observation:
    """The view of the stage: jobs `held` do not wait, running jobs `fixed` are known by duration only.

    No job may have more workers than its limits leave it.
    """
    changed: dict[str, Any] = {}
    most = _workers_left(o, quota)
    if (most < o.jobs.workers_max).any():
        changed["workers_max"] = most
    if not len(held) and not len(fixed) and not changed:
        return o
    if len(held):
        changed["state"] = o.jobs.state.copy()
        changed["state"][held] = HELD
    if len(fixed):
        changed["rigid"] = o.jobs.rigid.copy()
        changed["rigid"][fixed] = True
    waiting = np.setdiff1d(o.waiting, held, assume_unique=True)
    return dataclasses.replace(o, jobs=o.jobs.replaced(**changed), waiting=waiting, held=held)


def _workers_left(o: Observation, quota: Quota) -> Ints:
    """Workers that each job may have at most, at least as many as it has."""
    jobs, most = o.jobs, o.jobs.workers_max.copy()
    rows = np.concatenate((o.waiting, o.running))
    rows = rows[~jobs.rigid[rows] & (jobs.workers_max[rows] > jobs.workers_min[rows]) & (jobs.claim[rows] >= 0)]
    for row in rows.tolist():
        runs = int(jobs.state[row] == RUNNING)
        room = max(quota.room(int(jobs.claim[row]), 1 - runs)) / min(float(jobs.gpu_share_requested[row]), 1.0)
        most_gpus = min(float(jobs.gpus_held[row]) * runs + room + 1e-9, 2.0**53)
        fewest = max(int(jobs.workers_min[row]), int(jobs.gpus_held[row]) * runs // int(jobs.gpus_per_worker[row]))
        most[row] = min(int(most[row]), max(fewest, int(most_gpus) // int(jobs.gpus_per_worker[row])))
    return most


def _moved(o: Observation, allocation: Allocation) -> tuple[Allocation, list[int]]:
    """(the allocation, jobs that cannot be placed): jobs on nodes that they may not use are moved to allowed ones.

    Jobs that had been given their new GPUs get others.
    """
    which, rows = restricted(o, allocation.job), allocation.job.tolist()
    for k in np.flatnonzero(which).tolist():
        which[k] = not stands_well(o, rows[k], allocation.gpus_of(k))
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
            found = next(
                (f for n in _sizes(o, row, len(gpus)) if (f := _free(proposal, row, n, share)) is not None), None
            )
            if found is None:
                homeless.append(row)
                continue
            parts[row] = found
        start_on(proposal, row, parts[row], share[: len(parts[row])])
    offset = np.concatenate(([0], np.cumsum([len(parts[row]) for row in rows]))).astype(np.int64)
    gpu = np.concatenate([parts[row] for row in rows]).astype(np.int64)
    shares = [allocation.share[allocation.offset[k] :][: len(parts[row])] for k, row in enumerate(rows)]
    return Allocation(allocation.job, offset, gpu, np.concatenate(shares)), homeless


def _free(proposal: Proposal, row: int, gpus: int, share: Floats) -> Ints | None:
    return place_job(proposal, row, gpus, share=float(share.max()))


def _sizes(o: Observation, row: int, gpus: int) -> range:
    """GPU counts to try for a job: the planned number, then smaller ones if it waits and may start smaller."""
    least = least_gpus(o, row) if o.jobs.state[row] == WAITING else gpus
    return range(gpus, min(least, gpus) - 1, -int(o.jobs.gpus_per_worker[row]))


def _noted(plan: Plan, name: str, held: Ints) -> Plan:
    return plan.because(name, f"held {len(held)} jobs at the limits of their queues", held=held) if len(held) else plan
