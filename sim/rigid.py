"""Rigid jobs: known by a duration only, they run at the pace of their slowest node, one event each."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from simpy.events import Event

from policies.jit import jit
from policies.observation import Ints
from sim.clock import Clock
from sim.cluster import Cluster, Holding
from sim.demand import Demand
from sim.job import BUSY, LOST, RESTART, USEFUL


@jit
def refresh(now, rows, begin_s, rate, gpus, attained_base, left_s, factor, attained, service):  # type: ignore[no-untyped-def]
    """Write attained GPU-seconds and remaining service (s) of running rigid jobs at `now`.

    begin_s is when work (re)started, gpus the sum of the shares held; rows whose rate is 0 are not rigid jobs
    under way.
    """
    for k in range(rows.size):
        row = rows[k]
        if rate[row] > 0.0:
            ran = max(0.0, now - begin_s[row])
            attained[row] = attained_base[row] + ran * gpus[row]
            service[row] = max(0.0, left_s[row] - ran * rate[row]) * factor[row]


class RigidJobs:
    """State of all rigid jobs, by job row.

    left_s is work left (seconds at speed 1) at begin_s; gpu_s rows follow `sim.job`.
    """

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        demand: Demand,
        finished: Callable[[int], None],
        mtbf_s: float,
        write_s: float,
    ) -> None:
        n = len(demand)
        self.clock, self.cluster, self.demand, self.finished = clock, cluster, demand, finished
        self.mtbf_s, self.write_s = mtbf_s, write_s
        self.left_s = np.where(np.isnan(demand.duration_s), 0.0, demand.duration_s)
        self.begin_s, self.rate = np.zeros(n), np.zeros(n)
        self.saved_s = np.zeros(n)  # work done that a crash cannot take back
        self.gpu_s = np.zeros((n, 7))
        self.attained_base = np.zeros(n)
        self._end: dict[int, Event] = {}
        self.weight = np.zeros(n)  # sum of the GPU shares it holds
        self._nodes: dict[int, Ints] = {}
        # Where the rate has changed since the job's start: work done until then (s), and the rate before.
        self._earlier: dict[int, list[tuple[float, float]]] = {}

    def start(self, row: int, holding: Holding, delay_s: float) -> None:
        """Run from `delay_s` from now on."""
        clock = self.clock
        rate = self.cluster.rigid_speed(holding.nodes)
        weight = holding.weight
        begin_s = clock._now + delay_s
        self.begin_s[row], self.rate[row] = begin_s, rate
        self.weight[row], self._nodes[row] = weight, holding.nodes
        if delay_s:
            self.gpu_s[row, RESTART] += delay_s * weight
        self._end[row] = clock.at(begin_s + self.left_s.item(row) / rate, partial(self._ended, row))

    def _ended(self, row: int, _: Event) -> None:
        self._book(row, self.left_s.item(row))
        self._forget(row)
        self.finished(row)

    def _book(self, row: int, work_s: float) -> None:
        """Count work done at the present rate."""
        gpu_s = work_s / self.rate.item(row) * self.weight.item(row)
        self.gpu_s[row, BUSY] += gpu_s
        self.gpu_s[row, USEFUL] += gpu_s
        self.attained_base[row] += gpu_s
        self.left_s[row] -= work_s

    def book_until_now(self, row: int) -> None:
        """Count what a job has done when the run ends before it does."""
        unspent_s = max(0.0, float(self.begin_s[row]) - self.clock.now)
        self.gpu_s[row, RESTART] -= unspent_s * self.weight.item(row)
        self._book(row, self._progress(row))

    def _progress(self, row: int) -> float:
        ran_s = max(0.0, self.clock.now - float(self.begin_s[row]))
        return min(float(self.left_s[row]), ran_s * float(self.rate[row]))

    def stop(self, row: int, *, lost: bool) -> None:
        """Stop now. `lost`: what was done since the last checkpoint is gone."""
        self.clock.cancel(self._end[row])
        unspent_s = max(0.0, float(self.begin_s[row]) - self.clock.now)
        self.gpu_s[row, RESTART] -= unspent_s * self.weight.item(row)
        self._book(row, self._progress(row))
        if lost:
            self._lose(row)
        self._forget(row)
        self.saved_s[row] = float(self.demand.duration_s[row]) - self.left_s[row]

    def _lose(self, row: int) -> None:
        duration_s = float(self.demand.duration_s[row])
        done_s = duration_s - float(self.left_s[row])
        every_s = self.checkpoint_interval_s(row)
        kept_s = float(self.saved_s[row])
        if every_s < math.inf:
            since = done_s - kept_s
            kept_s += since if every_s == 0.0 else math.floor(since / every_s) * every_s
        lost_gpu_s = self._took_s(row, kept_s, done_s) * self.weight.item(row)
        self.gpu_s[row, BUSY] -= lost_gpu_s
        self.gpu_s[row, USEFUL] -= lost_gpu_s
        self.gpu_s[row, LOST] += lost_gpu_s
        self.left_s[row] = duration_s - kept_s

    def _took_s(self, row: int, kept_s: float, done_s: float) -> float:
        """Time that the work from `kept_s` to `done_s` took, at the rates at which it was done."""
        took_s, rate = 0.0, self.rate.item(row)
        for until_s, before in reversed(self._earlier.get(row, ())):
            if until_s <= kept_s:
                break
            took_s += (done_s - until_s) / rate
            done_s, rate = until_s, before
        return took_s + (done_s - kept_s) / rate

    def checkpoint_interval_s(self, row: int) -> float:
        """Work between checkpoints: as given, or Young/Daly, sqrt(2 * write time * mean time to failure)."""
        spec, nodes = self.demand.checkpoint[row], self._nodes[row]
        if spec.interval == "never":
            return math.inf
        if spec.interval != "young-daly":
            return float(spec.interval)
        if self.mtbf_s == math.inf:
            return math.inf
        write_s = self.write_s
        if spec.size is not None:
            write_s = spec.size / sum(self.cluster.group(int(node)).storage_rate for node in nodes)
        return math.sqrt(2.0 * write_s * self.mtbf_s / len(nodes))

    def speed_changed(self, row: int) -> None:
        """Its nodes run at another speed from now on."""
        rate = self.cluster.rigid_speed(self._nodes[row])
        if rate == self.rate[row]:
            return
        self.clock.cancel(self._end[row])
        begin_s = self.book_running(row)
        done_s = self.demand.duration_s.item(row) - self.left_s.item(row)
        self._earlier.setdefault(row, []).append((done_s, self.rate.item(row)))
        self.rate[row] = rate
        self._end[row] = self.clock.at(begin_s + self.left_s[row] / rate, partial(self._ended, row))

    def book_running(self, row: int) -> float:
        """Book what a job has done by now; returns when it does, or will, go on (s)."""
        self._book(row, self._progress(row))
        begin_s = max(self.clock.now, float(self.begin_s[row]))
        self.begin_s[row] = begin_s
        return begin_s

    def _forget(self, row: int) -> None:
        self.rate[row] = 0.0
        self._earlier.pop(row, None)
        del self._end[row], self._nodes[row]
