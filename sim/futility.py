"""Runs that faults keep from ever ending: noticed after a stated number of failures, not simulated for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sim.world import SimWorld

FRUITLESS_RESTARTS = 1000
"""A job that faults throw back so often in a row, without keeping anything new in between, will never end."""

IDLE_FAILURES = 10_000
"""When so many nodes fail in a row while jobs wait and none runs, none ever will."""


class Stalled(RuntimeError):
    """Jobs are not done, and nothing will ever happen that could complete them."""


class Futility:
    """Watches that faults leave some lasting progress."""

    def __init__(self, world: SimWorld) -> None:
        self.world, jobs = world, len(world.demand)
        self._kept = np.zeros(jobs)  # progress that no fault can take back, at the last restart
        self._fruitless = np.zeros(jobs, dtype=np.int64)  # restarts since it last grew
        self._idle_failures = 0

    def restarted(self, row: int) -> None:
        """A fault has thrown a job back. Raises Stalled when it has kept nothing for too many times."""
        world, job = self.world, self.world.training.get(row)
        kept = float(world.rigid.saved_s[row])
        if job is not None:
            kept = (job.saved_account if job.holding is None else job.account).useful_samples
        if kept > self._kept[row]:
            self._kept[row], self._fruitless[row] = kept, 0
            return
        self._fruitless[row] += 1
        if self._fruitless[row] >= FRUITLESS_RESTARTS:
            raise Stalled(
                f"job {world.demand.name[row]} was thrown back by faults {FRUITLESS_RESTARTS} times in a row and "
                f"kept nothing: with {world.mtbf_s:g} s between failures of a node it never reaches a checkpoint"
            )

    def node_failed(self) -> None:
        """A node has failed. Raises Stalled when nothing has run for too many failures."""
        world = self.world
        self._idle_failures = 0 if world.running else self._idle_failures + bool(world.waiting)
        if self._idle_failures >= IDLE_FAILURES:
            row = int(world.waiting.rows[0])
            raise Stalled(
                f"nothing ran during the last {IDLE_FAILURES} node failures: job {world.demand.name[row]} waits "
                f"for {world.demand.gpus[row]} GPUs that are never up together"
            )
