"""Free GPUs by node over the time to come, in which jobs are planned one by one (conservative backfill).

Mu'alem and Feitelson 2001, "Utilization, Predictability, Workloads, and User Runtime Estimates": every job that is
looked at has a reservation, and a later one starts where it delays none of them. Slurm's sched/backfill does that
for the first `bf_max_job_test` jobs and for `bf_window` ahead.
"""

from __future__ import annotations

import math

import numpy as np

from equipoise.policies.allocation.draft import Hand
from equipoise.policies.observation import Bools, Ints


class Profile:
    """times_s ascending, and whole GPUs free per node from each on: free (times, nodes)."""

    def __init__(self, hand: Hand, rows: Ints) -> None:
        """Now, and after the estimated end of each running job (rows, those just started included)."""
        o = hand.observation
        self.now_s = o.time_s
        ends: dict[float, Ints] = {}
        for row in rows.tolist():
            service_s = float(o.jobs.service_s[row])
            end_s = o.time_s + max(service_s, 0.0) if not math.isnan(service_s) else math.inf
            gpus, share = hand.gpus_of(row)
            nodes = o.gpus.node[gpus[share >= 1.0]]
            given = ends.setdefault(max(end_s, math.nextafter(o.time_s, math.inf)), np.zeros(len(o.nodes), dtype=np.int64))
            np.add.at(given, nodes, 1)
        self.times_s = np.array([o.time_s, *sorted(ends)])
        given = [ends[time_s] for time_s in sorted(ends)]
        self.free = np.cumsum(np.vstack([hand.columns[3], *given]), axis=0)

    def earliest(self, allowed: Bools, wanted: int, takes_s: float, until_s: float) -> tuple[float, Ints] | None:
        """(first time at which so many GPUs are free for so long, what each node has free all that while)."""
        enough = self.free[:, allowed].sum(axis=1) >= wanted
        for k in np.flatnonzero(enough).tolist():
            begin_s = float(self.times_s[k])
            if begin_s > until_s:
                return None
            end = int(np.searchsorted(self.times_s, begin_s + takes_s))
            least = np.where(allowed, self.free[k : max(end, k + 1)].min(axis=0), 0)
            if int(least.sum()) >= wanted:
                return begin_s, least
        return None

    def take(self, per_node: Ints, begin_s: float, takes_s: float) -> None:
        """Take GPUs for a time."""
        first, last = self._cut(begin_s), self._cut(begin_s + takes_s)
        self.free[first:last] -= per_node

    def _cut(self, time_s: float) -> int:
        """The index of a time, which is put in where it is not there; the end for infinity."""
        if math.isinf(time_s):
            return len(self.times_s)
        k = int(np.searchsorted(self.times_s, time_s))
        if k == len(self.times_s) or self.times_s[k] != time_s:
            self.times_s = np.insert(self.times_s, k, time_s)
            self.free = np.insert(self.free, k, self.free[k - 1], axis=0)
        return k


def spread(least: Ints, wanted: int) -> Ints:
    """GPUs per node for a job that is only planned: the emptiest nodes first."""
    per_node, left = np.zeros_like(least), wanted
    for node in np.argsort(-least, kind="stable").tolist():
        per_node[node] = min(int(least[node]), left)
        left -= int(per_node[node])
        if left == 0:
            break
    return per_node
