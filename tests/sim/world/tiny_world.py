"""A cluster of rigid jobs in plain Python: a heap of events, one decision per instant, nothing else.

It drives an allocation stage through real observations. At one instant: completions, crashes, arrivals, then
one decision. A preempted or crashed job keeps its progress and pays `restart_s` when it starts again.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from equipoise.policies.contract import UNCHANGED, AllocationStage, Memory, Plan, check
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, resize, writable

_END, _CRASH, _ARRIVAL = 0, 1, 2


class TinyWorld:
    """Jobs are (arrival_s, gpus, duration_s), rows and ids in the order given (sorted by arrival).

    `crashes` are (time_s, job): that job, if it runs then, is put back in the queue.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[float, int, float]],
        nodes: Sequence[int],
        restart_s: float = 0.0,
        crashes: Sequence[tuple[float, int]] = (),
    ):
        self.jobs = list(jobs)
        first = np.concatenate(([0], np.cumsum(nodes)[:-1]))
        table = Jobs(len(jobs))
        self.o = Observation.of(
            nodes=Nodes.of(gpus=list(nodes), first_gpu=first, gpus_free=list(nodes)),
            gpus=Gpus.of(node=np.repeat(np.arange(len(nodes)), nodes)),
            jobs=table,
        )
        self.cell = {name: writable(table, name) for name in Jobs.columns}
        arrival, gpus, duration = (np.array(column) for column in zip(*jobs, strict=True))
        for name, values in (
            ("id", np.arange(len(jobs))),
            ("arrival_s", arrival),
            ("gpus_requested", gpus),
            ("rigid", True),
            ("duration_s", duration),
            ("service_s", duration),
            ("queued_since_s", arrival),
            ("restart_s", restart_s),
            ("attained_gpu_s", 0.0),
        ):
            self.cell[name][:] = values
        resize(table, 0)
        self.restart_s = restart_s
        self.free, self.room = writable(self.o.nodes, "gpus_free"), writable(self.o.gpus, "share_free")
        self.holder = writable(self.o.gpus, "job")
        self.events = [(job[0], _ARRIVAL, k, 0) for k, job in enumerate(jobs)]
        self.events += [(time_s, _CRASH, k, 0) for time_s, k in crashes]
        heapq.heapify(self.events)
        self.version = [0] * len(jobs)
        self.waiting: list[int] = []
        self.running: dict[int, np.ndarray] = {}
        self.first_start: dict[int, float] = {}
        self.completion: dict[int, float] = {}
        self.stops = self.decisions = 0
        self.cpu_s = 0.0  # spent in the stage

    def _hold(self, job: int, gpus: np.ndarray, now: float) -> None:
        assert (self.room[gpus] == 1.0).all(), "a GPU is handed out twice"
        assert len(gpus) == self.jobs[job][1], "a gang is not whole"
        self.room[gpus], self.holder[gpus] = 0.0, job
        np.subtract.at(self.free, self.o.gpus.node[gpus], 1)
        if job in self.first_start:
            self.cell["service_s"][job] += self.restart_s
        self.running[job] = gpus
        self.waiting.remove(job)
        self.first_start.setdefault(job, now)
        self.cell["state"][job], self.cell["gpus_held"][job] = JobState.RUNNING, len(gpus)
        self.cell["started_s"][job] = now
        self.cell["waited_s"][job] += now - self.cell["queued_since_s"][job]
        end_s = now + float(self.cell["service_s"][job])
        heapq.heappush(self.events, (end_s, _END, job, self.version[job]))

    def _release(self, job: int, now: float, state: JobState) -> None:
        gpus = self.running.pop(job)
        self.room[gpus], self.holder[gpus] = 1.0, -1
        np.add.at(self.free, self.o.gpus.node[gpus], 1)
        self.version[job] += 1
        self.cell["state"][job], self.cell["gpus_held"][job] = state, 0
        if state == JobState.WAITING:
            self.cell["queued_since_s"][job] = now
            self.waiting.append(job)
            self.waiting.sort()

    def run(
        self,
        stage: AllocationStage,
        verify: bool = True,
        progress: bool = True,
        on_decision: Callable[[Observation, Plan], None] | None = None,
    ) -> None:
        """Run until every job is done; with `progress` remaining and attained service are kept current."""
        memory, revisit, now = stage.initial(), math.inf, 0.0
        while self.events or revisit < math.inf:
            then, now = now, min(self.events[0][0] if self.events else math.inf, revisit)
            if progress:
                for job, gpus in self.running.items():
                    self.cell["service_s"][job] -= now - then
                    self.cell["attained_gpu_s"][job] += (now - then) * len(gpus)
            arrived, happened = self.o.jobs.rows, now == revisit
            while self.events and self.events[0][0] == now:
                _, kind, job, stamp = heapq.heappop(self.events)
                if kind == _ARRIVAL:
                    arrived, happened = job + 1, True
                    self.waiting.append(job)
                elif job in self.running and (kind == _CRASH or self.version[job] == stamp):
                    self._release(job, now, JobState.WAITING if kind == _CRASH else JobState.DONE)
                    happened = True
                    if kind == _END:
                        self.completion[job] = now
            if arrived > self.o.jobs.rows:
                self.waiting.sort()
                resize(self.o.jobs, arrived)
            if not happened:  # the end that a stopped job no longer has
                continue
            memory, revisit = self._decide(stage, memory, now, verify, on_decision)
            assert self.events or revisit < math.inf or not self.waiting, "jobs wait and nothing will happen"

    def _decide(
        self,
        stage: AllocationStage,
        memory: Memory,
        now: float,
        verify: bool,
        on_decision: Callable[[Observation, Plan], None] | None,
    ) -> tuple[Memory, float]:
        self.o.window_s, self.o.time_s = max(now - self.o.time_s, 1e-9), now
        self.o.waiting = np.array(self.waiting, dtype=np.int64)
        self.o.waiting.flags.writeable = False
        self.o.running = np.array(sorted(self.running), dtype=np.int64)
        before = time.thread_time()
        plan, memory = stage.refine(self.o, UNCHANGED, memory)
        self.cpu_s += time.thread_time() - before
        self.decisions += 1
        if verify:
            assert check(plan, self.o) is None
        if on_decision is not None:
            on_decision(self.o, plan)
        if plan.allocation is not None:
            listed = plan.allocation.job.tolist()
            for job in listed:
                if job in self.running:
                    self._release(job, now, JobState.WAITING)
                    self.stops += 1
            for k, job in enumerate(listed):
                gpus = plan.allocation.gpus_of(k)
                if len(gpus):
                    self._hold(job, gpus, now)
        return memory, plan.revisit_s

    def mean_completion_s(self) -> float:
        """Mean of completion less arrival."""
        return float(np.mean([self.completion[k] - job[0] for k, job in enumerate(self.jobs)]))
