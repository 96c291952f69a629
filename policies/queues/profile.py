"""Free GPUs over the time to come, in which jobs are planned one by one (conservative backfill).

Mu'alem and Feitelson 2001, "Utilization, Predictability, Workloads, and User Runtime Estimates": every job that is
looked at has a reservation, and a later one starts where it delays none of them. Slurm's sched/backfill does that
for the first `bf_max_job_test` jobs and for `bf_window` ahead.

Nodes that all jobs may use alike are one class, of which only the number of free GPUs counts: a gang may be spread
over nodes, so that enough of them is a place. Which GPUs a job gets is decided when it starts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.allocation.draft import Hand
from equipoise.policies.observation import Bools, Ints, Observation
from equipoise.policies.queues.limits import node_model


def node_classes(o: Observation) -> Ints:
    """The class of each node: nodes of one GPU model that the same claims may use."""
    rows = np.vstack((node_model(o)[None, :], o.queues.nodes.T.reshape(len(o.nodes), -1).T.astype(np.int64)))
    return np.asarray(np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64))


class Profile:
    """times_s ascending, and whole GPUs free from each on by class of nodes: free (times, classes)."""

    def __init__(self, hand: Hand, rows: Ints, node_class: Ints) -> None:
        """Now, and after the estimated end of each running job (rows, those just started included)."""
        o = hand.observation
        self.classes = int(node_class.max(initial=0)) + 1
        holder, first = hand.holder, math.nextafter(o.time_s, math.inf)
        service_s = o.jobs.service_s[rows]
        end_s = np.where(
            np.isnan(service_s), np.inf, np.maximum(o.time_s + np.maximum(service_s, 0.0), first)
        )
        times_s, which = np.unique(end_s, return_inverse=True)
        slot = np.full(len(o.jobs), -1)
        slot[rows] = which.reshape(-1)
        whole = np.flatnonzero(holder >= 0)
        at = slot[holder[whole]]
        key = (at * self.classes + node_class[o.gpus.node[whole]])[at >= 0]
        given = np.bincount(key, minlength=len(times_s) * self.classes).reshape(len(times_s), self.classes)
        now = np.bincount(node_class, weights=hand.columns[3], minlength=self.classes).astype(np.int64)
        self.times_s = np.concatenate(([o.time_s], times_s))
        self.free: NDArray[np.int64] = np.cumsum(np.vstack((now[None, :], given)), axis=0)

    def earliest(
        self, allowed: Bools, wanted: int, takes_s: float, until_s: float
    ) -> tuple[float, Ints] | None:
        """(first time at which so many GPUs are free for so long, what each class has free all that while).

        allowed: (classes,). None: not before `until_s`.
        """
        times_s = self.times_s
        bad = np.flatnonzero(self.free[:, allowed].sum(axis=1) < wanted)
        ends = np.searchsorted(times_s, times_s + takes_s)
        next_bad = np.append(bad, len(times_s))[np.searchsorted(bad, np.arange(len(times_s)))]
        able = (next_bad >= np.maximum(ends, np.arange(1, len(times_s) + 1))) & (times_s <= until_s)
        for k in np.flatnonzero(able).tolist():
            least = np.where(allowed, self.free[k : max(int(ends[k]), k + 1)].min(axis=0), 0)
            if int(least.sum()) >= wanted:
                return float(times_s[k]), least
        return None

    def take(self, per_class: Ints, begin_s: float, takes_s: float) -> None:
        """Take GPUs for a time."""
        first, last = self._cut(begin_s), self._cut(begin_s + takes_s)
        self.free[first:last] -= per_class

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
    """GPUs by class for a job that is only planned: the emptiest class first."""
    taken, left = np.zeros_like(least), wanted
    for one in np.argsort(-least, kind="stable").tolist():
        taken[one] = min(int(least[one]), left)
        left -= int(taken[one])
    return taken
