"""Allocation of GPUs to jobs: starts, stops and ends."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from equipoise.policies.contract import Allocation
from equipoise.policies.observation import RUNNING, Floats, Ints, Refusal
from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.job.job import Job
from equipoise.sim.job.listener import Listeners
from equipoise.sim.job.rigid import RigidJob, RigidJobs
from equipoise.sim.scenario.model import Restart
from equipoise.sim.world.roster import Roster


class Writes:
    """A bucket of `burst` writes, refilled at `per_s`, first come first served."""

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s, self.burst = per_s, burst
        self._last_s = -math.inf

    def take(self, now_s: float, count: int = 1) -> float:
        """Add `count` writes; returns the time of the last one (s)."""
        if not count:
            return now_s
        # As the generic cell rate algorithm has it: the time at which the bucket would be full again, and no later.
        self._last_s = max(self._last_s, now_s - self.burst / self.per_s) + count / self.per_s
        return self._last_s if self._last_s > now_s + 1e-9 else now_s


class Allocator:
    """Hands GPUs to jobs and takes them back. `changed()` is called after each change, None: no listener."""

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        roster: Roster,
        rigid: RigidJobs,
        restart: Restart,
        writes: Writes | None,
        listeners: Listeners,
        changed: Callable[[], None] | None,
    ) -> None:
        self.clock, self.cluster, self.roster = clock, cluster, roster
        self.rigid, self.restart, self.writes = rigid, restart, writes
        self.listeners, self.changed = listeners, changed
        self.refused: list[Refusal] = []  # of the last allocation
        self.stopped_s = 0.0  # when the stops of the last allocation are written

    def apply(self, allocation: Allocation) -> set[int]:
        """Carry out an allocation, all stops before all starts; returns the rows of running jobs it replaced."""
        roster, offset = self.roster, allocation.offset.tolist()
        listed = list(zip(allocation.job.tolist(), offset, offset[1:], strict=False))
        self.refused = []
        replaced = set()
        for row, first, end in listed:
            if roster.state[row] == RUNNING:
                ousted = end == first
                self.stop(roster.running_jobs[row], "preempted" if ousted else "resized")
                roster.preemptions[row] += ousted
                replaced.add(row)
        if self.writes is not None:
            self.stopped_s = self.writes.take(self.clock._now, len(replaced))
        gpu, share = allocation.gpu.copy(), allocation.share.copy()
        for row, first, end in listed:
            if end > first:
                self._start(row, gpu[first:end], share[first:end])
        return replaced

    def _start(self, row: int, gpus: Ints, share: Floats) -> None:
        now_s, roster = self.clock._now, self.roster
        if self.cluster.any_mig and not self.cluster.can_be_cut(gpus, share):
            self.refused.append(Refusal(f"start of job row {row}", "MIG cannot cut the GPU into such slices"))
            return
        job: Job = roster.training[row] if row in roster.training else RigidJob(self.rigid, row)
        holding = self.cluster.book(row, gpus, share)
        for tell in self.listeners.began:
            tell(job, holding, now_s)
        cost_s = roster.started(job, holding, now_s)
        if roster.training:
            self._neighbours_changed(job, holding)
        for tell in self.listeners.shares_changed:
            if holding.weight < holding.gpu.size:
                tell(holding.gpu)
        written_s = now_s if self.writes is None else self.writes.take(now_s)
        if written_s > now_s:
            roster.writing(row, now_s, written_s)
        job.start(holding, now_s, cost_s + written_s - now_s)
        if roster.training:
            self._input_changed(job, holding)
        if self.changed is not None:
            self.changed()

    def stop(self, job: Job, reason: str) -> None:
        """Take the GPUs from a running job and put it back in the queue; for `fault` it loses what is not saved."""
        now_s, lost, restart = self.clock._now, reason == "fault", self.restart
        cost_s = restart.initialisation
        if lost:
            cost_s += restart.detection + restart.rescheduling
            self.roster.restarts[job.row] += 1
        cost_s += job.stop(now_s, lost=lost)
        self._release(job, reason, now_s)
        self.roster.stopped(job, now_s, cost_s)
        if self.changed is not None:
            self.changed()
        if lost:
            for tell in self.listeners.rolled_back:
                tell(job)

    def finish(self, job: Job, reason: str) -> None:
        """End a job that is done (`completed`) or at its time limit (`timeout`)."""
        now_s = self.clock._now
        self._release(job, reason, now_s)
        self.roster.finished(job, now_s)
        if self.changed is not None:
            self.changed()

    def _release(self, job: Job, reason: str, now_s: float) -> None:
        for tell in self.listeners.ended:
            tell(job, reason, now_s)
        holding = self.cluster.release(job.row)
        for tell in self.listeners.shares_changed:
            if holding.weight < holding.gpu.size:
                tell(holding.gpu)
        if self.roster.training:
            self._neighbours_changed(job, holding)
            self._input_changed(job, holding)

    def close(self, time_s: float) -> None:
        """Book the work of jobs that are still running at the end of the run, `time_s`."""
        for row in self.roster.running.rows.tolist():
            job = self.roster.running_jobs[row]
            job.close(time_s)
            for tell in self.listeners.ended:
                tell(job, "open", time_s)

    def _input_changed(self, job: Job, holding: Holding) -> None:
        """Training jobs whose input shares nodes with this one's have another part of it from their next period."""
        if job.rigid:
            return
        for row, other in self.roster.training.items():
            shares = row != job.row and other.runs and other.config.shares_input
            if shares and np.isin(other.config.nodes, holding.nodes).any():
                other.speed_changed()

    def _neighbours_changed(self, job: Job, holding: Holding) -> None:
        """Training jobs that share a GPU with this one run at another speed from their next period on."""
        if holding.weight == holding.gpu.size:
            return
        for row, other in self.roster.training.items():
            if row != job.row and other.holding is not None and np.isin(other.holding.gpu, holding.gpu).any():
                other.speed_changed()
