"""Rigid jobs, defined by a duration, run at the speed of their slowest node with one event each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from simpy.events import Event

from equipoise.policies.kernels.jit import jit
from equipoise.policies.observation import Floats, Ints
from equipoise.sim.cells import cells
from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.job.account import BUSY, LOST_TO_FAULTS, RESTART, USEFUL, Use
from equipoise.sim.job.checkpoints import interval_s, write_s, writes_are_given
from equipoise.sim.job.demand import Demand
from equipoise.sim.scenario.model import Restart

_NO_NODES: Ints = np.empty(0, dtype=np.int64)
_NOTHING: Floats = np.empty(0)

ROUNDING = 1e-9
"""A job whose work takes this much longer than its limit, relative to that, is done."""


@jit
def refresh(  # type: ignore[no-untyped-def]
    now, rows, begin_s, rate, gpus, attained_base, left_s, factor, allowed_s, spare_s, attained, remaining, limit_left
):
    """Write attained GPU-seconds, remaining time and time to the limit (s) of running rigid jobs at `now`.

    begin_s is when work (re)started, gpus the sum of the shares held, allowed_s how long they may run from begin_s;
    rows whose rate is 0 are not rigid jobs under way.
    """
    for k in range(rows.size):
        row = rows[k]
        if rate[row] > 0.0:
            ran = max(0.0, now - begin_s[row])
            attained[row] = attained_base[row] + ran * gpus[row]
            left = max(0.0, left_s[row] - ran * rate[row])
            limit_left[row] = limit_left_s(allowed_s[row] - ran, spare_s[row])
            remaining[row] = remaining_s(left * factor[row], limit_left[row], spare_s[row])


@jit
def limit_left_s(allowed_s: float, spare_s: float) -> float:
    """Time (s) that policies assume a job's limit to leave it; inf: no limit.

    spare_s: NaN, or what is to be added to `allowed_s` where policies plan with the time limit.
    """
    return max(0.0, allowed_s if math.isnan(spare_s) else allowed_s + spare_s)


@jit
def remaining_s(left_s: float, limit_left_s: float, spare_s: float) -> float:
    """Remaining time (s) that policies assume for a job: its work, at most what its limit leaves, or all of that."""
    return max(0.0, min(left_s, limit_left_s)) if math.isnan(spare_s) else limit_left_s


class RigidJobs:
    """State of all rigid jobs, by job row: arrays, because there are very many.

    left_s is work left (seconds at speed 1) at begin_s, allowed_s the time that its limit leaves a job then; gpu_s
    (jobs, uses) follows `Use`; weight is the sum of the GPU shares a job holds. `ended(job)` is called for each
    that is done or has run for as long as it may (timed_out). `metered(row, holding, GPU-seconds)` is told what
    jobs have computed, None: nobody wants to know.
    """

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        demand: Demand,
        ended: Callable[[RigidJob], None],
        metered: Callable[[int, Holding, float], None] | None,
        mtbf_s: Callable[[Ints], float],
        restart: Restart,
    ) -> None:
        n = len(demand)
        self.clock, self.cluster, self.demand, self.ended = clock, cluster, demand, ended
        self.metered, self.mtbf_s, self.restart = metered, mtbf_s, restart
        self.gpu_s = np.zeros((n, len(Use)))
        self._left_s = np.where(np.isnan(demand.duration_s), 0.0, demand.duration_s)
        self._begin_s, self._rate, self._weight, self._attained_gpu_s = np.zeros((4, n))
        self.account, self.left_s, self.begin_s = cells(self.gpu_s), cells(self._left_s), cells(self._begin_s)
        self.rate, self.weight, self.attained_gpu_s = (
            cells(self._rate),
            cells(self._weight),
            cells(self._attained_gpu_s),
        )
        self.saved_s = cells(np.zeros(n))  # work done that a crash cannot take back
        self._allowed_s = demand.limit_s.copy()
        self.allowed_s, self.timed_out = cells(self._allowed_s), np.zeros(n, dtype=np.bool_)
        self.duration_s, self.spare_s = cells(demand.duration_s), cells(demand.spare_s)
        self._paces = None if demand.paces.alike else demand.paces

    def rate_on(self, holding: Holding, row: int) -> float:
        """Work (s) a second: of its slowest node, and in proportion where it started with fewer GPUs than asked."""
        paces, demand = self._paces, self.demand
        pace = None if paces is None else paces.speed[paces.kind[row]]
        rate = self.cluster.rigid_speed(holding.nodes, pace)
        return rate * holding.gpu.size / demand.gpus.item(row) if row in demand.shrinks else rate

    def refresh(
        self, now_s: float, running: Ints, factor: Floats, attained: Floats, remaining: Floats, limit_left: Floats
    ) -> None:
        """Write attained GPU-seconds, remaining time and time to the limit (s) of the running rigid jobs, by row."""
        refresh(
            now_s,
            running,
            self._begin_s,
            self._rate,
            self._weight,
            self._attained_gpu_s,
            self._left_s,
            factor,
            self._allowed_s,
            self.demand.spare_s,
            attained,
            remaining,
            limit_left,
        )


class RigidJob:
    """A running rigid job, one kind of `Job`."""

    __slots__ = ("_earlier", "_end", "_metered_gpu_s", "all", "holding", "row")

    rigid = True
    save_s = 0.0  # its duration contains its checkpoints
    exchanges = 0
    traffic: tuple[float, int] = (0, 0)

    def __init__(self, jobs: RigidJobs, row: int) -> None:
        self.all, self.row = jobs, row

    # -- what the world does with it -----------------------------------------------------------------------

    def start(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Run from `delay_s` from now on."""
        jobs, row, weight = self.all, self.row, holding.weight
        rate = jobs.rate_on(holding, row)
        begin_s = now_s + delay_s
        jobs.begin_s[row], jobs.rate[row], jobs.weight[row] = begin_s, rate, weight
        if delay_s:
            jobs.account[row, RESTART] += delay_s * weight
        # Where the rate changes while it runs: work done until then (s), and the rate before.
        self._earlier: list[tuple[float, float]] | None = None
        self.holding: Holding | None = holding
        if jobs.metered is not None:
            self._metered_gpu_s = self.computed_gpu_s
        self._end = self._plan_end(begin_s)

    def _plan_end(self, begin_s: float) -> Event:
        """Schedule its end: when its work is done, or at its time limit."""
        jobs, row = self.all, self.row
        takes_s, allowed_s = jobs.left_s[row] / jobs.rate[row], jobs.allowed_s[row]
        late = takes_s > allowed_s * (1.0 + ROUNDING)
        return jobs.clock.at(begin_s + (allowed_s if late else takes_s), self._at_limit if late else self._ended)

    def _at_limit(self, event: Event) -> None:
        """Stop the job at its time limit."""
        jobs, row = self.all, self.row
        jobs.timed_out[row] = True
        self._settle(jobs.clock.now)
        self._over()

    def _ended(self, _: Event) -> None:
        self._book(self.all.left_s[self.row])
        self._over()

    def _over(self) -> None:
        jobs, row = self.all, self.row
        jobs.rate[row] = 0.0
        if jobs.metered is not None:
            self._meter()
        jobs.ended(self)

    def stop(self, now_s: float, *, lost: bool) -> float:
        """Stop now. `lost`: work since the last checkpoint is lost. Saving takes no time."""
        jobs, row = self.all, self.row
        jobs.clock.cancel(self._end)
        self._settle(now_s)
        if lost:
            self._lose()
            jobs.allowed_s[row] = jobs.demand.limit_s.item(row)  # it is submitted anew
        jobs.rate[row] = 0.0
        jobs.saved_s[row] = jobs.duration_s[row] - jobs.left_s[row]
        self._meter()
        self.holding = None
        return 0.0

    def close(self, now_s: float) -> None:
        """Count its work until now, at the end of the run."""
        self._settle(now_s)
        self._meter()

    def _settle(self, now_s: float) -> None:
        """Count its work until now, and refund unused restart time."""
        jobs, row = self.all, self.row
        unspent_s = max(0.0, jobs.begin_s[row] - now_s)
        jobs.account[row, RESTART] -= unspent_s * jobs.weight[row]
        self._book(self._progress(now_s))
        jobs.allowed_s[row] -= max(0.0, now_s - jobs.begin_s[row])

    def meter_until_now(self) -> None:
        """Book and meter its work until now."""
        self._book_running()
        self._meter()

    def speed_changed(self) -> None:
        """Note that its nodes run at another speed from now on."""
        jobs, row = self.all, self.row
        assert self.holding is not None
        rate = jobs.rate_on(self.holding, row)
        if rate == jobs.rate[row]:
            return
        jobs.clock.cancel(self._end)
        begin_s = self._book_running()
        done_s = jobs.duration_s[row] - jobs.left_s[row]
        self._earlier = [*(self._earlier or ()), (done_s, jobs.rate[row])]
        jobs.rate[row] = rate
        self._end = self._plan_end(begin_s)

    # -- accounts ------------------------------------------------------------------------------------------

    def _book(self, work_s: float) -> None:
        """Count work done at the present rate."""
        jobs, row = self.all, self.row
        gpu_s = work_s / jobs.rate[row] * jobs.weight[row]
        jobs.account[row, BUSY] += gpu_s
        jobs.account[row, USEFUL] += gpu_s
        jobs.attained_gpu_s[row] += gpu_s
        jobs.left_s[row] -= work_s

    def _book_running(self) -> float:
        """Book its work until now; returns the time from which it continues (s)."""
        jobs, row, now_s = self.all, self.row, self.all.clock.now
        self._book(self._progress(now_s))
        begin_s: float = max(now_s, jobs.begin_s[row])
        jobs.allowed_s[row] -= max(0.0, now_s - jobs.begin_s[row])
        jobs.begin_s[row] = begin_s
        return begin_s

    def _progress(self, now_s: float) -> float:
        jobs, row = self.all, self.row
        ran_s = max(0.0, now_s - jobs.begin_s[row])
        return float(min(jobs.left_s[row], ran_s * jobs.rate[row]))

    def _lose(self) -> None:
        jobs, row = self.all, self.row
        duration_s, kept_s = jobs.duration_s[row], jobs.saved_s[row]
        done_s = duration_s - jobs.left_s[row]
        every_s = self._checkpoint_interval_s()
        if every_s < math.inf:
            took_s = self._took_s(kept_s, done_s)
            kept_s = done_s if every_s == 0.0 else self._done_in(kept_s, math.floor(took_s / every_s) * every_s)
        lost_gpu_s = self._took_s(kept_s, done_s) * jobs.weight[row]
        jobs.account[row, BUSY] -= lost_gpu_s
        jobs.account[row, USEFUL] -= lost_gpu_s
        jobs.account[row, LOST_TO_FAULTS] += lost_gpu_s
        jobs.left_s[row] = duration_s - kept_s

    def _took_s(self, kept_s: float, done_s: float) -> float:
        """Time that the work from `kept_s` to `done_s` took, at the rates at which it was done."""
        took_s, rate = 0.0, self.all.rate[self.row]
        for until_s, before in reversed(self._earlier or ()):
            if until_s <= kept_s:
                break
            took_s += (done_s - until_s) / rate
            done_s, rate = until_s, before
        return float(took_s + (done_s - kept_s) / rate)

    def _done_in(self, kept_s: float, time_s: float) -> float:
        """Work done `time_s` after that up to `kept_s` was, at the rates at which it was done."""
        for until_s, rate in self._earlier or ():
            if until_s > kept_s:
                took_s = (until_s - kept_s) / rate
                if time_s <= took_s:
                    return float(kept_s + time_s * rate)
                kept_s, time_s = until_s, time_s - took_s
        return float(kept_s + time_s * self.all.rate[self.row])

    @property
    def notice_s(self) -> float:
        """Notice in which it can save before its node is taken (s); 0 unless interval and writing are both given."""
        jobs, spec = self.all, self.all.demand.checkpoint[self.row]
        if self.holding is None or not writes_are_given(spec, jobs.restart):
            return 0.0
        return write_s(spec, None, jobs.restart, jobs.cluster, self.holding.nodes)

    def _checkpoint_interval_s(self) -> float:
        """Time between checkpoints: as given, or Young/Daly (see `job.checkpoints`)."""
        jobs, spec = self.all, self.all.demand.checkpoint[self.row]
        assert self.holding is not None
        nodes = self.holding.nodes
        return interval_s(spec, write_s(spec, None, jobs.restart, jobs.cluster, nodes), jobs.mtbf_s, nodes)

    def _meter(self) -> None:
        """Report computing up to the time of the last booking."""
        metered = self.all.metered
        if metered is not None and self.holding is not None:
            computed_gpu_s = self.computed_gpu_s
            metered(self.row, self.holding, computed_gpu_s - self._metered_gpu_s)
            self._metered_gpu_s = computed_gpu_s

    # -- what others ask -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name in the demand."""
        return self.all.demand.name[self.row]

    @property
    def gpu_s(self) -> Floats:
        """GPU-seconds by `Use`, up to when they were last booked."""
        account: Floats = self.all.gpu_s[self.row]
        return account

    @property
    def computed_gpu_s(self) -> float:
        """All its computing so far, including lost work."""
        account, row = self.all.account, self.row
        return float(account[row, BUSY] + account[row, LOST_TO_FAULTS])

    @property
    def kept(self) -> float:
        """Work done that a crash cannot take back (s)."""
        return float(self.all.saved_s[self.row])

    @property
    def booked_until_s(self) -> float:
        """It is booked when it changes: until it began, or went on."""
        return float(self.all.begin_s[self.row])

    def fill_row(self, cells: Mapping[str, Any], factor: float) -> None:
        """Write the booked values to its row of the jobs table; factor: estimated over real duration."""
        jobs, row = self.all, self.row
        cells["attained_gpu_s"][row] = jobs.attained_gpu_s[row]
        left_s = jobs.left_s[row] * factor
        cells["limit_left_s"][row] = limit_s = limit_left_s(jobs.allowed_s[row], jobs.spare_s[row])
        cells["service_s"][row] = remaining_s(left_s, limit_s, jobs.spare_s[row])

    def utilisation(self, now_s: float) -> Floats:
        """Busy share of each GPU it holds (GPUs held,): all it holds, once it has restarted."""
        assert self.holding is not None
        return self.holding.share * float(self.all.begin_s[self.row] < now_s)

    def on_links(self, since: tuple[float, int]) -> tuple[float, Ints, Floats]:
        """Return no traffic, because a rigid job exchanges nothing."""
        return 0.0, _NO_NODES, _NOTHING

    def not_metered(self) -> tuple[Ints, Floats]:
        """Return nothing, because a rigid job is metered whenever it is booked."""
        return _NO_NODES, _NOTHING
