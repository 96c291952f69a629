"""Lucid: jobs that leave most of their GPUs idle are packed in pairs; no job is ever stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import gpus_wanted
from equipoise.policies.baselines.queueing import NONE_WAITS, PLANNED, unchanged
from equipoise.policies.contract import AllocationStage, Memory, Plan
from equipoise.policies.kernels.gangs import frozen, request_columns, start_in_order
from equipoise.policies.kernels.placement import PLACEMENTS, WHOLE
from equipoise.policies.observation import Floats, Ints, Observation


@dataclass(frozen=True)
class Lucid(AllocationStage):
    """Lucid (Hu et al., ASPLOS 2023): shortest GPU time first, and pairs of jobs by utilisation.

    Waiting jobs are ordered by GPUs x estimated duration (section 3.5). A job without free GPUs joins a running job
    on the same number of GPUs with memory for both, if their sharing scores sum to at most `capacity` (3.3): 0 for a
    job that keeps its GPUs busy less than `tiny` of the time, 1 below `medium`, else 2 (thresholds in place of the
    paper's decision tree). At most two share a GPU, each with a part in proportion to its utilisation; when one
    ends, the other gets the whole GPU. Utilisation is measured while a job runs alone; that of a waiting one is
    taken from jobs like it (same GPUs, batch, memory and checkpoint) that have run, in place of the paper's
    profiler. A job of unknown utilisation is not packed, nor is one known by its duration only.
    """

    name: ClassVar[str] = "lucid"
    order: ClassVar[str] = "GPUs x estimated duration, then id"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    starvation: ClassVar[str] = "a long job or a gang may wait for as long as shorter or smaller ones arrive"
    fidelity: ClassVar[str] = "not compared: no public completion times by job are at hand"
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
            raise ValueError("tiny and medium must be 0 to 1, tiny at most medium")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs alone, else with a running one; restore full shares where sharing has ended."""
        o = observation
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        busy = self._learnt(o, memory)
        proposal, rows = Proposal(o), o.waiting
        cost = gpus_wanted(o, rows) * np.nan_to_num(o.jobs.service_s[rows], nan=np.inf)
        queue = rows[np.lexsort((rows, cost))]
        proposal.start(
            start_in_order(frozen(queue), False, PLACEMENTS[self.placement], request_columns(o), proposal.columns)[0]
        )
        share, hosts = plan.shares(o).copy(), self._hosts(o, proposal, busy)
        open_ones = [host for host in hosts.values() if host.score <= self.capacity]
        left = queue[~proposal.touched(queue)] if open_ones else queue[:0]
        for row, wanted in zip(left.tolist(), gpus_wanted(o, left).tolist(), strict=True):
            joined = self._join(o, row, wanted, open_ones, proposal, share, busy)
            if joined is not None:
                open_ones.remove(joined)
                del hosts[joined.row]
        for host in hosts.values():  # hosts without a partner keep their whole GPUs
            share[np.isin(o.workers.gpu, host.gpu)] = 1.0
        started, allocation = len(proposal.started()), proposal.allocation()
        moved = not np.array_equal(share, plan.shares(o))
        if moved:  # parts change when a period ends: look again soon
            step_s = np.nan_to_num(o.jobs.work_s[o.running] * o.jobs.sync_interval[o.running], nan=1.0)
            revisit_s = o.time_s + max(2.0 * float(step_s.max(initial=0.0)), 1.0)
            plan = plan.with_(gpu_share=share, revisit_s=min(plan.revisit_s, revisit_s))
        if allocation is None and not moved:
            return unchanged(plan, self.name, NONE_WAITS if not len(rows) else "no job finds GPUs or a partner"), busy
        plan = plan if allocation is None else plan.with_(allocation=allocation)
        text = f"starts {started} of {len(rows)} waiting jobs" + (", assigns shares of GPUs" if moved else "")
        return plan.because(self.name, text), busy

    def _learnt(self, o: Observation, memory: Memory) -> dict[str, Floats]:
        """Utilisation by kind of job, from jobs alone on their GPU, as running means in `memory`."""
        known: dict[str, Floats] = dict(memory)
        for row in np.unique(o.workers.job).tolist():
            gpu = np.flatnonzero(o.gpus.job == row)
            active = float(np.mean(o.gpus.sm_active_ratio[gpu])) if len(gpu) else np.nan
            if active > 0.0:
                known[_kind(o, row)] = np.array(active)
        return known

    def _score(self, busy: float) -> int:
        return 0 if busy < self.tiny else 1 if busy < self.medium else 2

    def _hosts(self, o: Observation, proposal: Proposal, busy: dict[str, Floats]) -> dict[int, _Host]:
        """Running training jobs that do not share their GPUs."""
        found: dict[int, _Host] = {}
        crowd = np.bincount(o.workers.gpu, minlength=len(o.gpus))
        for row in np.unique(o.workers.job).tolist():
            part = o.workers_of(row)
            gpu, own = o.workers.gpu[part], o.workers.gpu_share[part]
            free = proposal.columns.room[gpu]
            alone = (crowd[gpu] == 1).all() and (np.abs(own + free - 1.0) < 1e-6).all()
            asked = o.jobs.gpu_share_requested[row] >= WHOLE and o.jobs.gpus_per_worker[row] == 1
            if alone and asked and o.nodes.up[o.gpus.node[gpu]].all() and not o.gpus.mig[gpu].any():
                theirs = float(busy.get(_kind(o, row), np.nan))
                score = self.capacity + 1 if np.isnan(theirs) else self._score(theirs)
                held = float(np.nan_to_num(o.jobs.memory_bytes[row]))
                most = float(np.fmin.reduce(o.gpus.memory_bytes[gpu]))
                kinds = len(np.unique(o.gpus.model[gpu]))
                found[row] = _Host(row, gpu, bool((own < WHOLE).all()), theirs, score, held, most, kinds)
        return found

    def _join(
        self,
        o: Observation,
        row: int,
        count: int,
        hosts: list[_Host],
        proposal: Proposal,
        share: Floats,
        busy: dict[str, Floats],
    ) -> _Host | None:
        """Start a job on `count` GPUs of a host that has made room, or request room; returns the host."""
        jobs = o.jobs
        if jobs.rigid[row] or jobs.gpu_share_requested[row] < WHOLE or jobs.gpus_per_worker[row] > 1:
            return None
        mine = float(busy.get(_kind(o, row), np.nan))
        if np.isnan(mine):
            return None
        room, need = self.capacity - self._score(mine), float(np.nan_to_num(jobs.memory_bytes[row]))
        alike, best, least = bool(jobs.one_gpu_model[row]), None, np.inf
        for host in hosts:
            if len(host.gpu) != count or host.score > room or host.most_bytes < need + host.held_bytes:
                continue
            if alike and host.gpu_models > 1:
                continue
            rank = host.busy - host.ready  # hosts that have made room come first
            if rank < least:
                best, least = host, rank
        if best is None:
            return None
        if best.ready:
            gpus = np.array([row]), np.array([0, count]), best.gpu, proposal.columns.room[best.gpu].copy()
            proposal.start(gpus)
        else:
            share[np.isin(o.workers.gpu, best.gpu)] = 1.0 - mine / (mine + best.busy)
        return best


@dataclass(frozen=True, slots=True, eq=False)
class _Host:
    """A running training job that shares no GPU. ready: it holds less than all of its GPUs."""

    row: int
    gpu: Ints
    ready: bool
    busy: float  # share of the time that its kind keeps GPUs busy; NaN not known
    score: int
    held_bytes: float  # of each GPU's memory
    most_bytes: float  # the least memory of its GPUs
    gpu_models: int


def _kind(o: Observation, row: int) -> str:
    """The columns that define a kind of job."""
    jobs = o.jobs
    asked = (jobs.gpus_requested, jobs.batch_reference, jobs.micro_batch, jobs.memory_bytes, jobs.checkpoint_bytes)
    return ",".join(f"{column[row]:g}" for column in asked)
