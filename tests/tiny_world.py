"""A cluster of rigid jobs in plain Python: a heap of events, one decision per instant, nothing else.

It drives an allocation stage through real observations. At one instant: completions, then arrivals, then
one decision. A preempted job keeps its progress and pays `restart_s` when it starts again.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from policies.contract import UNCHANGED, AllocationStage, Memory, check
from policies.observation import Gpus, Jobs, JobState, Nodes, Observation, resize, writable


class TinyWorld:
    """Jobs are (arrival_s, gpus, duration_s), rows and ids in the order given (sorted by arrival)."""

    def __init__(self, jobs: Sequence[tuple[float, int, float]], nodes: Sequence[int], restart_s: float = 0.0):
        self.jobs = list(jobs)
        first = np.concatenate(([0], np.cumsum(nodes)[:-1]))
        table = Jobs(len(jobs))
        self.o = Observation.of(
            nodes=Nodes.of(gpus=list(nodes), first_gpu=first, gpus_free=list(nodes)),
            gpus=Gpus.of(node=np.repeat(np.arange(len(nodes)), nodes)),
            jobs=table,
        )
        columns = {
            "id": range(len(jobs)), "arrival_s": [j[0] for j in jobs], "gpus_requested": [j[1] for j in jobs],
            "duration_s": [j[2] for j in jobs], "service_s": [j[2] for j in jobs],
            "rigid": True, "restart_s": restart_s, "queued_since_s": [j[0] for j in jobs],
        }  # fmt: skip
        for name, values in columns.items():
            writable(table, name)[:] = values
        resize(table, 0)
        self.restart_s = restart_s
        self.cell = {name: writable(table, name) for name in Jobs.columns}
        self.waiting: np.ndarray = np.empty(0, dtype=np.int64)
        self.running: dict[int, np.ndarray] = {}
        self.started_at: dict[int, float] = {}
        self.first_start: dict[int, float] = {}
        self.completion: dict[int, float] = {}
        self.stops = 0
        self.decisions = 0
        self.cpu_s = 0.0

    def _hold(self, job: int, gpus: np.ndarray, now: float) -> None:
        free, room, holder = (writable(self.o.nodes, "gpus_free"), *(writable(self.o.gpus, c) for c in ("share_free", "job")))
        assert (room[gpus] == 1.0).all()
        room[gpus], holder[gpus] = 0.0, job
        np.subtract.at(free, self.o.gpus.node[gpus], 1)
        again = job in self.first_start
        self.running[job] = gpus
        self.first_start.setdefault(job, now)
        self.started_at[job] = now
        self.cell["state"][job] = JobState.RUNNING
        self.cell["gpus_held"][job] = len(gpus)
        self.cell["started_s"][job] = now
        self.cell["waited_s"][job] += now - self.cell["queued_since_s"][job]
        if again:
            self.cell["service_s"][job] += self.restart_s
        self.waiting = np.delete(self.waiting, np.searchsorted(self.waiting, job))

    def _release(self, job: int, now: float, state: JobState) -> None:
        free, room, holder = (writable(self.o.nodes, "gpus_free"), *(writable(self.o.gpus, c) for c in ("share_free", "job")))
        gpus = self.running.pop(job)
        room[gpus], holder[gpus] = 1.0, -1
        np.add.at(free, self.o.gpus.node[gpus], 1)
        self.cell["state"][job] = state
        self.cell["gpus_held"][job] = 0
        if state == JobState.WAITING:
            self.stops += 1
            self.cell["queued_since_s"][job] = now
            self.waiting = np.insert(self.waiting, np.searchsorted(self.waiting, job), job)

    def _elapse(self, since: float, now: float) -> None:
        for job, gpus in self.running.items():
            self.cell["service_s"][job] -= now - since
            self.cell["attained_gpu_s"][job] += (now - since) * len(gpus)

    def run(self, stage: AllocationStage, verify: bool = True, progress: bool = True) -> None:
        """Run until every job is done; with `progress` remaining and attained service are kept current."""
        memory: Memory = stage.initial()
        events: list[tuple[float, int, int, int]] = [(j[0], 1, k, 0) for k, j in enumerate(self.jobs)]
        heapq.heapify(events)
        version = [0] * len(self.jobs)
        now, revisit = 0.0, math.inf
        while events or revisit < math.inf:
            then, now = now, min(events[0][0] if events else math.inf, revisit)
            if progress:
                self._elapse(then, now)
            arrived = self.o.jobs.rows
            while events and events[0][0] == now:
                _, kind, job, stamp = heapq.heappop(events)
                if kind == 1:
                    arrived = job + 1
                elif version[job] == stamp and job in self.running:
                    self._release(job, now, JobState.DONE)
                    self.completion[job] = now
            if arrived > self.o.jobs.rows:
                self.waiting = np.concatenate((self.waiting, np.arange(self.o.jobs.rows, arrived)))
                resize(self.o.jobs, arrived)
            memory, revisit = self._decide(stage, memory, now, verify, events, version)
            assert events or revisit < math.inf or not len(self.waiting), "jobs wait and nothing will happen"

    def _decide(self, stage: AllocationStage, memory: Memory, now: float, verify: bool, events: list[Any], version: list[int]) -> tuple[Memory, float]:
        self.o.time_s = now
        self.o.waiting = self.waiting
        self.o.waiting.flags.writeable = False
        self.o.running = np.array(sorted(self.running), dtype=np.int64)
        before = time.thread_time()
        plan, memory = stage.refine(self.o, UNCHANGED, memory)
        self.cpu_s += time.thread_time() - before
        self.decisions += 1
        if verify:
            problem = check(plan, self.o)
            assert problem is None, problem
        a = plan.allocation
        if a is not None:
            for k, job in enumerate(a.job):
                if job in self.running:
                    version[job] += 1
                    self._release(int(job), now, JobState.WAITING)
            for k, job in enumerate(a.job):
                if len(a.gpus_of(k)):
                    self._hold(int(job), a.gpus_of(k), now)
                    heapq.heappush(events, (now + self.cell["service_s"][job], 0, int(job), version[job]))
        return memory, plan.revisit_s
