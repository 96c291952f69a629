"""Lucid: jobs that leave most of their GPUs idle are packed in pairs, nothing is ever stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.gangs import frozen, request_columns, start_in_order
from equipoise.policies.allocation.ranking import gpus_wanted
from equipoise.policies.baselines.queueing import NONE_WAITS, PLANNED, unchanged
from equipoise.policies.contract import AllocationStage, Memory, Plan
from equipoise.policies.kernels.placement import PLACEMENTS, WHOLE
from equipoise.policies.observation import Floats, Ints, Observation


@dataclass(frozen=True)
class Lucid(AllocationStage):
    """Lucid (Hu et al., ASPLOS 2023): shortest GPU time first, and pairs of jobs by utilisation.

    Waiting jobs come by GPUs x estimated duration (section 3.5). Who finds no GPUs of its own joins a running job
    of as many GPUs whose memory holds both, if their sharing scores add up to at most `capacity` (3.3): 0 for a job
    that keeps its GPUs busy less than `tiny` of the time, 1 below `medium`, else 2 (thresholds in place of the
    paper's decision tree). At most two share a GPU, each with a part in proportion to its utilisation; who is alone
    again has the GPU to itself. Utilisation is measured while a job runs alone; that of a waiting one is taken from
    jobs like it (same GPUs, batch, memory and checkpoint) that have run, in place of the paper's profiler. A job
    without a known one is not packed, nor is one that is known by its duration only.
    """

    name: ClassVar[str] = "lucid"
    order: ClassVar[str] = "GPUs x estimated duration, then id"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    starvation: ClassVar[str] = "a long job or a gang may wait for as long as shorter or smaller ones arrive"
    preemption: ClassVar[str] = "never"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs", "workers"})

    placement: str = "any"
    tiny: float = 0.25
    medium: float = 0.5
    capacity: int = 2

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement {self.placement!r} is none of {', '.join(PLACEMENTS)}")
        if not 0 <= self.tiny <= self.medium <= 1:
            raise ValueError("tiny and medium must be 0 to 1, tiny the smaller")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs alone, else beside a running one; give back what nobody shares."""
        o = observation
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        busy = self._learnt(o, memory)
        draft, rows = Draft(o), o.waiting
        cost = gpus_wanted(o, rows) * np.nan_to_num(o.jobs.service_s[rows], nan=np.inf)
        queue = rows[np.lexsort((rows, cost))]
        draft.start(start_in_order(
            frozen(queue), False, PLACEMENTS[self.placement], request_columns(o), draft.columns
        )[0])  # fmt: skip
        share, hosts = plan.shares(o).copy(), self._hosts(o, draft)
        for row in queue[~draft.touched(queue)].tolist() if hosts else ():
            self._join(o, row, hosts, draft, share, busy)
        for gpu, _ in hosts.values():  # whoever found no company keeps its GPUs to itself
            share[np.isin(o.workers.gpu, gpu)] = 1.0
        started, allocation = len(draft.started()), draft.allocation()
        moved = not np.array_equal(share, plan.shares(o))
        if moved:  # parts change when a period ends: look again soon
            step_s = np.nan_to_num(o.jobs.work_s[o.running] * o.jobs.sync_interval[o.running], nan=1.0)
            revisit_s = o.time_s + max(2.0 * float(step_s.max(initial=0.0)), 1.0)
            plan = plan.with_(gpu_share=share, revisit_s=min(plan.revisit_s, revisit_s))
        if allocation is None and not moved:
            return unchanged(
                plan, self.name, NONE_WAITS if not len(rows) else "nobody finds room or company"
            ), busy
        plan = plan if allocation is None else plan.with_(allocation=allocation)
        text = f"starts {started} of {len(rows)} waiting jobs" + (", deals shares of GPUs" if moved else "")
        return plan.because(self.name, text), busy

    def _learnt(self, o: Observation, memory: Memory) -> dict[str, Floats]:
        """Utilisation by kind of job, from those that have a GPU alone, running means of `memory`'s."""
        known: dict[str, Floats] = dict(memory)
        for row in np.unique(o.workers.job).tolist():
            gpu = np.flatnonzero(o.gpus.job == row)
            active = float(np.mean(o.gpus.sm_active_ratio[gpu])) if len(gpu) else np.nan
            if active > 0.0:
                known[_kind(o, row)] = np.array(active)
        return known

    def _score(self, busy: float) -> int:
        return 0 if busy < self.tiny else 1 if busy < self.medium else 2

    def _hosts(self, o: Observation, draft: Draft) -> dict[int, tuple[Ints, bool]]:
        """Running training jobs without company: (their GPUs, whether they hold less than all of these)."""
        found: dict[int, tuple[Ints, bool]] = {}
        crowd = np.bincount(o.workers.gpu, minlength=len(o.gpus))
        for row in np.unique(o.workers.job).tolist():
            part = o.workers_of(row)
            gpu, own = o.workers.gpu[part], o.workers.gpu_share[part]
            free = draft.columns.room[gpu]
            alone = (crowd[gpu] == 1).all() and (np.abs(own + free - 1.0) < 1e-6).all()
            asked = o.jobs.gpu_share_requested[row] >= WHOLE and o.jobs.gpus_per_worker[row] == 1
            if alone and asked and o.nodes.up[o.gpus.node[gpu]].all() and not o.gpus.mig[gpu].any():
                found[row] = (gpu, bool((own < WHOLE).all()))
        return found

    def _join(
        self, o: Observation, row: int, hosts: dict[int, tuple[Ints, bool]], draft: Draft, share: Floats,
        busy: dict[str, Floats],
    ) -> None:  # fmt: skip
        """Let a job start beside a host that has made room, or have one make room; takes it from `hosts`."""
        jobs, mine = o.jobs, float(busy.get(_kind(o, row), np.nan))
        if (
            jobs.rigid[row]
            or np.isnan(mine)
            or jobs.gpu_share_requested[row] < WHOLE
            or jobs.gpus_per_worker[row] > 1
        ):
            return
        count = int(gpus_wanted(o, np.array([row]))[0])
        best, least = -1, np.inf
        for host, (gpu, ready) in hosts.items():
            theirs = float(busy.get(_kind(o, host), np.nan))
            need = np.nan_to_num(jobs.memory_bytes[row]) + np.nan_to_num(jobs.memory_bytes[host])
            fits = len(gpu) == count and not (o.gpus.memory_bytes[gpu] < need).any()
            if jobs.one_gpu_model[row] and len(np.unique(o.gpus.model[gpu])) > 1:
                fits = False
            if fits and not np.isnan(theirs) and self._score(mine) + self._score(theirs) <= self.capacity:
                rank = theirs - ready  # who has made room comes first
                if rank < least:
                    best, least = host, rank
        if best < 0:
            return
        gpu, ready = hosts.pop(best)
        part = mine / (mine + float(busy[_kind(o, best)]))
        if not ready:
            share[np.isin(o.workers.gpu, gpu)] = 1.0 - part
            return
        draft.start((np.array([row]), np.array([0, count]), gpu, draft.columns.room[gpu].copy()))


def _kind(o: Observation, row: int) -> str:
    """What jobs that are alike have in common."""
    jobs = o.jobs
    asked = (
        jobs.gpus_requested,
        jobs.batch_reference,
        jobs.micro_batch,
        jobs.memory_bytes,
        jobs.checkpoint_bytes,
    )
    return ",".join(f"{column[row]:g}" for column in asked)
