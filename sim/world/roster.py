"""All jobs of a run by row: waiting and running ones, their observed columns, and their results."""

from __future__ import annotations

import math

import numpy as np

from equipoise.policies.observation import DONE, RUNNING, WAITING, Floats, Jobs, resize, writable
from equipoise.sim.cells import cells
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.job.demand import Demand
from equipoise.sim.job.job import Job
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.world.queue import RowQueue


class Roster:
    """State of each job that has arrived, and of those still to come.

    running_jobs: by row, those that hold GPUs; training: those that have arrived, whether they run or not.
    factor (jobs,): estimated over real duration. initialisation_s: least cost of a start. columns, cells: what
    policies see of all jobs, and of single ones.
    """

    def __init__(self, demand: Demand, factor: Floats, initialisation_s: float) -> None:
        self.demand, self.factor, self.initialisation_s = demand, factor, initialisation_s
        self.table = Jobs(0, len(demand))
        self.columns = {name: writable(self.table, name) for name in Jobs.columns}
        self.waiting, self.running = RowQueue(), RowQueue()
        self.running_jobs: dict[int, Job] = {}
        self.training: dict[int, TrainingJob] = {}
        self.start_s = np.full(len(demand), np.nan)
        self.completion_s = np.full(len(demand), np.nan)
        self.preemptions = np.zeros(len(demand), dtype=np.int64)
        self.restarts = np.zeros(len(demand), dtype=np.int64)
        self.restart_s = np.zeros(len(demand))  # cost that the next start has to pay
        self.completed = 0
        self._written_s: dict[int, float] = {}  # when the last start is written, where that takes time
        resize(self.table, len(demand))
        estimate_s = demand.estimates_s(factor)
        rigid = np.array([row not in demand.training for row in range(len(demand))])
        for name, values in (
            ("id", demand.id),
            ("arrival_s", demand.arrival_s),
            ("queued_since_s", demand.arrival_s),
            ("rigid", rigid),
            ("priority", demand.priority),
            ("gpus_requested", demand.gpus),
            ("gpu_share_requested", demand.gpu_share),
            ("one_gpu_model", rigid & ~demand.mixes),
            ("duration_s", estimate_s),
            ("service_s", estimate_s),
            ("limit_left_s", demand.limit_s + np.nan_to_num(demand.spare_s)),
            ("restart_s", initialisation_s),
        ):
            self.columns[name][:] = values
        for row, most in demand.claims.smaller.items():
            self.columns["gpus_requested"][row] = most
        for row, (fewest, step) in demand.shrinks.items():
            self.columns["gpus_per_worker"][row] = step
            self.columns["workers_min"][row] = fewest // step
            self.columns["workers_max"][row] = self.columns["gpus_requested"][row] // step
        if len(demand.claims.claim):
            for name in ("claim", "gpu_types", "together", "segment"):
                self.columns[name][:] = getattr(demand.claims, name)
        resize(self.table, 0)
        self.cells = {name: cells(column) for name, column in self.columns.items()}
        self.state, self._held = self.cells["state"], self.cells["gpus_held"]
        self._since_s, self._started_s = self.cells["queued_since_s"], self.cells["started_s"]
        self._restart_s, self._waited_s = self.cells["restart_s"], self.cells["waited_s"]
        self._progress = self.cells["progress"]
        self._first_s, self._done_s = cells(self.start_s), cells(self.completion_s)
        self._cost_s, self._factor = cells(self.restart_s), cells(factor)

    def started(self, job: Job, holding: Holding, now_s: float) -> float:
        """Remove a job from the queue; returns the cost of its start (s), including that of a crash."""
        row = job.row
        self.waiting.remove(row)
        self.running.add(row)
        self.running_jobs[row] = job
        self.state[row], self._held[row] = RUNNING, holding.gpu.size
        self._waited_s[row] += now_s - self._since_s[row]
        self._since_s[row] = self._started_s[row] = now_s
        if math.isnan(self._first_s[row]):
            self._first_s[row] = now_s
        cost_s: float = self._cost_s[row]
        self._cost_s[row], self._restart_s[row] = 0.0, self.initialisation_s
        return cost_s

    def writing(self, row: int, now_s: float, until_s: float) -> None:
        """A start that was decided now is written down only then: the job has waited until then."""
        self._written_s[row] = until_s
        self._waited_s[row] += until_s - now_s
        if self.start_s[row] == now_s:
            self.start_s[row] = until_s

    def stopped(self, job: Job, now_s: float, cost_s: float) -> None:
        """A job is back in the queue; its next start costs `cost_s`."""
        row = job.row
        unwritten_s = self._written_s.pop(row, now_s) - now_s
        if unwritten_s > 0.0:
            self._waited_s[row] -= unwritten_s
            if self.start_s[row] > now_s:
                self.start_s[row] = math.nan
        del self.running_jobs[row]
        self.running.remove(row)
        self.waiting.add(row)
        self.state[row], self._held[row] = WAITING, 0
        self._cost_s[row] = self._restart_s[row] = cost_s
        self._since_s[row] = now_s
        job.fill_row(self.cells, self._factor[row])

    def finished(self, job: Job, now_s: float) -> None:
        """Mark a job as done."""
        row = job.row
        del self.running_jobs[row]
        self.running.remove(row)
        self.state[row], self._held[row] = DONE, 0
        self._done_s[row] = now_s
        job.fill_row(self.cells, self._factor[row])
        self._progress[row] = 1.0
        self.completed += 1

    def queueing_s(self, now_s: float) -> Floats:
        """Time in the queue up to now, (jobs,)."""
        queueing_s: Floats = self.columns["waited_s"].copy()
        rows = self.waiting.rows
        queueing_s[rows] += now_s - self.columns["queued_since_s"][rows]
        return queueing_s
