"""Stall detection: runs that faults keep from ever ending are noticed after a stated number of failures."""

from __future__ import annotations

import numpy as np

from equipoise.sim.job.demand import Demand
from equipoise.sim.job.job import Job
from equipoise.sim.job.listener import Listener
from equipoise.sim.world.queue import RowQueue

FRUITLESS_RESTARTS = 1000
"""After this many restarts in a row without new progress a job is taken to never end."""

IDLE_FAILURES = 10_000
"""When so many nodes fail in a row while jobs wait and none runs, none ever will."""


class Stalled(RuntimeError):
    """Jobs are not done, and no future event can complete them."""


class StallDetection(Listener):
    """Watches that faults leave some lasting progress; mtbf_s: between failures of a node."""

    def __init__(self, demand: Demand, waiting: RowQueue, running: RowQueue, mtbf_s: float) -> None:
        self.demand, self.waiting, self.running, self.mtbf_s = demand, waiting, running, mtbf_s
        self._kept = np.zeros(len(demand))  # progress that no fault can take back, at the last restart
        self._fruitless = np.zeros(len(demand), dtype=np.int64)  # restarts since it last grew
        self._idle_failures = 0

    def rolled_back(self, job: Job) -> None:
        """A fault has thrown a job back. Raises Stalled when it has kept nothing for too many times."""
        row, kept = job.row, job.kept
        if kept > self._kept[row]:
            self._kept[row], self._fruitless[row] = kept, 0
            return
        self._fruitless[row] += 1
        if self._fruitless[row] >= FRUITLESS_RESTARTS:
            raise Stalled(
                f"job {job.name} was interrupted by faults {FRUITLESS_RESTARTS} times in a row "
                f"without new progress: with {self.mtbf_s:g} s between failures of a node it never reaches a checkpoint"
            )

    def node_down(self, node: int, now_s: float) -> None:
        """A node has failed. Raises Stalled when nothing has run for too many failures."""
        self._idle_failures = 0 if self.running else self._idle_failures + bool(self.waiting)
        if self._idle_failures >= IDLE_FAILURES:
            row = int(self.waiting.rows[0])
            raise Stalled(
                f"nothing ran during the last {IDLE_FAILURES} node failures: job {self.demand.name[row]} waits "
                f"for {self.demand.gpus[row]} GPUs that are never up at the same time"
            )
