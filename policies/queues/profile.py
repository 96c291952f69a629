"""Free GPUs over the time to come, in which jobs are planned one by one (conservative backfill).

Mu'alem and Feitelson 2001, "Utilization, Predictability, Workloads, and User Runtime Estimates": every considered
job has a reservation, and a later one starts if it delays none of them. Slurm's sched/backfill does that for the
first `bf_max_job_test` jobs and for `bf_window` ahead.

Nodes with the same access for all jobs form a class, of which only the number of free GPUs counts, because a gang
may be spread over nodes. The GPUs of a job are chosen when it starts.
"""

from __future__ import annotations

import math

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.quotas.limits import node_model


def node_classes(o: Observation) -> Ints:
    """The class of each node: nodes of one GPU model that the same claims may use."""
    rows = np.vstack((node_model(o)[None, :], o.queues.nodes.reshape(-1, len(o.nodes)).astype(np.int64)))
    return np.asarray(np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64))


@jit_in_place
def first_fit(
    times_s: Floats, free: Ints, used: int, allowed: Bools, wanted: int, takes_s: float, until_s: float, least: Ints
) -> int:
    """The first of the `used` rows from which the wanted GPUs are free for the whole duration; -1: none up to
    `until_s`.

    Writes to `least` (classes,) the GPUs of each class that are free for all of that time.
    """
    for k in range(used):
        if times_s[k] > until_s:
            return -1
        total = 0
        for c in range(least.size):
            least[c] = free[k, c] if allowed[c] else 0
            total += least[c]
        end_s, i = times_s[k] + takes_s, k + 1
        while total >= wanted and i < used and times_s[i] < end_s:
            total = 0
            for c in range(least.size):
                least[c] = min(least[c], free[i, c])
                total += least[c]
            i += 1
        if total >= wanted:
            return k
    return -1


@jit_in_place
def take_between(times_s: Floats, free: Ints, used: int, taken: Ints, begin_s: float, end_s: float) -> int:
    """Reserve GPUs by class from begin to end; returns the number of used rows.

    A time without a row gets a copy of the row before it; arrays have space for two more rows.
    """
    for time_s in (end_s, begin_s):
        k = used
        while k > 0 and times_s[k - 1] >= time_s:
            k -= 1
        if (k < used and times_s[k] == time_s) or time_s == np.inf:
            continue
        for i in range(used, k, -1):
            times_s[i] = times_s[i - 1]
            for c in range(taken.size):
                free[i, c] = free[i - 1, c]
        times_s[k] = time_s
        for c in range(taken.size):
            free[k, c] = free[k - 1, c]
        used += 1
    for k in range(used):
        if begin_s <= times_s[k] < end_s:
            for c in range(taken.size):
                free[k, c] -= taken[c]
    return used


class Profile:
    """times_s (ascending), and whole GPUs free from each time on by class of nodes: free (times, classes)."""

    def __init__(self, proposal: Proposal, rows: Ints, node_class: Ints, planned: int) -> None:
        """Free GPUs now, and after the estimated end of each running job (rows, just started ones included).

        planned: most jobs that may be planned.
        """
        o = proposal.observation
        self.classes = int(node_class.max(initial=0)) + 1
        service_s = o.jobs.service_s[rows]
        first_s = math.nextafter(o.time_s, math.inf)
        end_s = np.where(np.isnan(service_s), np.inf, np.maximum(o.time_s + np.maximum(service_s, 0.0), first_s))
        times_s, which = np.unique(end_s, return_inverse=True)
        slot = np.full(len(o.jobs), -1)
        slot[rows] = which.reshape(-1)
        whole = np.flatnonzero(proposal.holder >= 0)
        at = slot[proposal.holder[whole]]
        key = (at * self.classes + node_class[o.gpus.node[whole]])[at >= 0]
        given = np.bincount(key, minlength=len(times_s) * self.classes).reshape(len(times_s), self.classes)
        now = np.bincount(node_class, weights=proposal.columns.free, minlength=self.classes).astype(np.int64)
        self._used = len(times_s) + 1
        self._times_s = np.empty(self._used + 2 * planned)
        self._free = np.empty((self._used + 2 * planned, self.classes), dtype=np.int64)
        self._times_s[0], self._times_s[1 : self._used] = o.time_s, times_s
        self._free[: self._used] = np.cumsum(np.vstack((now[None, :], given)), axis=0)

    def earliest(self, allowed: Bools, wanted: int, takes_s: float, until_s: float) -> tuple[float, Ints] | None:
        """(first time at which the wanted GPUs are free for the whole duration, GPUs of each class free for all of
        that time).

        allowed: (classes,). None: no such time before `until_s`.
        """
        least = np.empty(self.classes, dtype=np.int64)
        k = first_fit(self._times_s, self._free, self._used, allowed, wanted, takes_s, until_s, least)
        return None if k < 0 else (float(self._times_s[k]), least)

    def take(self, per_class: Ints, begin_s: float, takes_s: float) -> None:
        """Reserve GPUs for a time."""
        end_s = begin_s + takes_s
        self._used = take_between(self._times_s, self._free, self._used, per_class, begin_s, end_s)


def spread(least: Ints, wanted: int) -> Ints:
    """GPUs by class for a planned job: the emptiest class first."""
    taken, left = np.zeros_like(least), wanted
    for one in np.argsort(-least, kind="stable").tolist():
        taken[one] = min(int(least[one]), left)
        left -= int(taken[one])
    return taken
