"""S4, nodes and scheduling.

S411 efficiency, memory and speed of nodes, S412 priority of jobs, S413 guard over past changes; S421 use,
S422 allocation, S423 its effect on the efficiency of parallel work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from equipoise.policies.allocation.backfill import backfill
from equipoise.policies.allocation.draft import Hand
from equipoise.policies.allocation.elastic import (
    elastic_columns,
    elastic_rows,
    grow_jobs,
    on_living_nodes,
    parallel_work,
    scaling_columns,
    shrink_jobs,
    table_columns,
)
from equipoise.policies.allocation.gangs import (
    NO_ROWS,
    NO_VALUES,
    frozen,
    request_columns,
    some_room,
    start_in_order,
)
from equipoise.policies.allocation.preemption import patient_bars, start_with_preemption
from equipoise.policies.allocation.ranking import Ageing, NodeState, Ranking, gpus_wanted, node_state, rank
from equipoise.policies.allocation.sizes import resize_optimally
from equipoise.policies.contract import AllocationStage, Memory, Plan
from equipoise.policies.kernels.placement import WEIGHTED
from equipoise.policies.kernels.scaling import ScalingColumns, TableColumns
from equipoise.policies.observation import Floats, Ints, Observation
from equipoise.policies.stages.guard import (
    Record,
    Verdict,
    guard_blocked,
    guard_empty,
    guard_review,
    guard_watch,
)

_NO_VERDICT = Verdict(NO_ROWS, NO_ROWS, NO_VALUES)
_SMALLER = 16  # waiting elastic jobs, from the first, that may start with fewer workers
_PREEMPTING = 128  # waiting jobs, from the first, for which running jobs may give way
_SHRINKING = 4  # waiting jobs, from the first, for which elastic jobs may give up workers

_ABOVE_ZERO = (
    "ageing", "patience_s", "run_s", "growth", "horizon_s", "unknown_s", "speed_memory_s", "time_limit_s",
)  # fmt: skip
_NOT_NEGATIVE = (
    "lead_s", "reserve_after_s", "slowdown", "longest_wait_s", "reluctance", "margin", "noise", "backoff_s",
)  # fmt: skip


@dataclass(frozen=True)
class NodeAllocation(AllocationStage):
    """Gives GPUs to jobs by priority and ratio, resizes elastic jobs, and undoes what did harm.

    S412: A_i = p_i * (D_i/D_max + C_i/C_max + ageing * (1 + (lead_s + w_i)/s_i) + w_i/patience_s) * fit_i
    with data and compute demand D and C, waiting time w and service time s. S422: R_ij = R_j *
    (u_ij*A_i/(1+d_ij)) / sum_k(u_kj*A_k/(1+d_kj)), with u the share of node j's GPUs that the job uses, or
    could use while it waits, and d the share of its worker's data that is stored elsewhere; a node counts by
    its measured speed. `formula`: jobs in order of sum_j R_ij per GPU asked for, whole gangs, nodes by
    descending R_ij, within one GPU model if possible. `optimal`: the sizes that maximise goodput by an integer
    programme (Sia, Jayaram Subramanya et al. 2023). The source's formula images are lost: the forms are ours,
    with its variables and directions.

    Order: as above. Blocking: what does not fit is passed over until the first has waited `reserve_after_s`:
    then nothing may delay it. A job that has waited longer than min(reserve_after_s + slowdown * duration,
    longest_wait_s) in all is overdue: it comes first, the longest overdue before the others, and nothing may
    delay the first of them that does not fit. Placement: by R_ij. Preemption: a waiting job stops running jobs
    of lower A that still need longer by more than `reluctance` times their restart, but none that since its
    last start has worked less than `run_s`, or than `growth` times its work before. Elastic jobs are resized
    where that gains more than their restart costs.

    Nobody starves. With exact estimates and without faults a job starts at most (k + 1) * T after it is
    overdue: k are the starts of jobs that fell due before it, T is the longest job with its restart. A job of
    s seconds is stopped at most 1 + log(s / run_s) / log(1 + growth) times.
    """

    name: ClassVar[str] = "s4"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs", "workers", "shards", "speeds"})
    order: ClassVar[str] = "sum of R_ij per GPU asked for: priority, demand and waiting time over contention"
    blocking: ClassVar[str] = "greedy, with a reservation for the longest overdue job, or else for the first"
    preemption: ClassVar[str] = (
        "stops or resizes running jobs where that gains more than their restart costs, each a few times at most"
    )
    starvation: ClassVar[str] = "never: overdue jobs come first, the longest overdue before the others"
    places: ClassVar[str] = "whole gangs, nodes by descending R_ij"

    mode: str = "formula"
    ageing: float = 4.0  # weight of the response ratio in A
    lead_s: float = 360000.0  # waiting that every job starts with: the larger, the more short ones come first
    patience_s: float = 86400.0  # waiting time that adds 1 to A
    reserve_after_s: float = 3600.0  # a job is overdue after this...
    slowdown: float = 10.0  # ... and so many times its duration,
    longest_wait_s: float = 1814400.0  # but at the latest after this
    run_s: float = 600.0  # least work between two preemptions of a job...
    growth: float = 0.1  # ... and least relative to its work before
    preempt_ratio: float = 0.5  # a job gives way to one that needs less than this share of its time left
    reluctance: float = 2.0  # restarts that a preemption must gain
    horizon_s: float = 1800.0  # over which the gain of a resize counts at most
    margin: float = 0.05  # least relative gain in step time for which a job is resized
    unknown_s: float = 3600.0  # service time of a job that has no estimate
    speed_memory_s: float = 600.0  # half-life of a node's measured speed once nothing runs there
    noise: float = 0.05  # a loss of goodput under this is noise
    backoff_s: float = 600.0  # first back-off after a roll-back; doubles each time
    time_limit_s: float = 2.0  # of the integer programme; past it the formula decides

    def __post_init__(self) -> None:
        if self.mode not in ("formula", "optimal"):
            raise ValueError(f"mode: {self.mode!r} is not one of formula, optimal")
        for name in _ABOVE_ZERO:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        for name in _NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set the allocation; memory holds node speeds, the last goodputs and the guard's record."""
        o = observation
        if plan.allocation is not None:
            return plan.because("s4", "an earlier stage has handed out GPUs already"), memory
        if not len(o.waiting) and not len(o.running):
            return plan.because("s4", "no job waits or runs"), memory
        verdict, memory = self._review(o, memory)
        if not len(verdict.rollback) and self._nothing_to_do(o):
            return plan.because("s4", "nothing is free, and no change would pay"), memory
        nodes = node_state(o, memory, self.speed_memory_s)
        memory = {**memory, "node_speed": nodes.speed, "time_s": o.time_s}
        ranking = rank(o, nodes, self._ageing)
        scaling, table = scaling_columns(o), table_columns(o, nodes)
        hand = Hand(o, ranking.weight, nodes.model, _heaviest_first(ranking.weight, o.nodes.gpus_free))
        values = nodes.values() | _use(o) | self._undo(hand, nodes, verdict, memory["guard"])
        solved = {}
        if self.mode == "optimal":
            solved = self._solve(hand, nodes, ranking, scaling, table, memory["guard"])
        values |= solved | self._start(hand, ranking)
        if "s422_fallback" in solved or self.mode == "formula":
            values |= self._preempt(hand, ranking, values["s422_overdue"] >= 0)
            values |= self._resize(
                hand, nodes, ranking, scaling, table, memory["guard"], values["s422_overdue"]
            )
        allocation = hand.allocation()
        values |= parallel_work(hand, nodes, scaling, table)
        if allocation is None:
            return plan.because("s4", "all stays as it is", **values), memory
        memory = {**memory, "guard": self._watch(hand, memory["guard"])}
        text = f"starts {len(hand.started())}, stops {len(hand.stopped)}, resizes {len(hand.resized())}"
        return plan.with_(allocation=allocation).because("s4", text, **values), memory

    def _review(self, o: Observation, memory: Memory) -> tuple[Verdict, dict[str, Any]]:
        """S413: judge watched resizes by fresh measurements of goodput."""
        rows = np.sort(o.running)
        rows = rows[~o.jobs.rigid[rows]]
        if not len(rows) and "goodput_id" not in memory:
            return _NO_VERDICT, {"guard": guard_empty(), **memory}
        goodput = o.jobs.goodput_samples_per_s[rows]
        seen = np.full(len(rows), np.nan)
        if "goodput_id" in memory:
            known = np.isin(rows, memory["goodput_id"])
            seen[known] = memory["goodput"][np.searchsorted(memory["goodput_id"], rows[known])]
        record, verdict = memory.get("guard", guard_empty()), _NO_VERDICT
        fresh = np.where(goodput == seen, np.nan, goodput)  # no step has ended since: nothing was measured
        if len(record["id"]):
            verdict, record = guard_review(
                record, rows, fresh, o.time_s, noise=self.noise, settle_s=o.window_s, backoff_s=self.backoff_s
            )
        return verdict, {**memory, "guard": record, "goodput_id": rows, "goodput": goodput}

    def _watch(self, hand: Hand, record: Record) -> Record:
        """S413: watch the jobs that grew or moved; the measured goodput must not fall."""
        rows = np.sort(hand.resized())
        if not len(rows):
            return record
        held = hand.observation.jobs.gpus_held[rows]
        now = np.array([len(hand.given[row][0]) for row in rows.tolist()], dtype=np.int64)
        rows, held = rows[now >= held], held[now >= held]
        before = hand.observation.jobs.goodput_samples_per_s[rows]
        return guard_watch(record, rows, before, hand.observation.time_s, held.astype(np.float64))

    def _nothing_to_do(self, o: Observation) -> bool:
        """Whether nobody waits who could start, if need be by preemption, and nobody can change size."""
        if len(elastic_rows(o, o.running)):
            return False
        if not len(o.waiting) or some_room(o.nodes.gpus_free, o.gpus.share_free):
            return not len(o.waiting)
        shortest_s = np.nan_to_num(o.jobs.service_s[o.waiting], nan=math.inf).min()
        return bool(shortest_s >= self._bars(o, o.running).max(initial=-math.inf))

    def _bars(self, o: Observation, running: Ints) -> Floats:
        """A waiting job that needs less than this (s) may stop the running one."""
        return patient_bars(o, running, self.preempt_ratio, self.reluctance, self.run_s, self.growth)

    @cached_property
    def _ageing(self) -> Ageing:
        return Ageing(
            self.ageing, self.lead_s, self.patience_s, self.reserve_after_s, self.slowdown, self.longest_wait_s,
            self.unknown_s,
        )  # fmt: skip

    def _undo(self, hand: Hand, nodes: NodeState, verdict: Verdict, record: Record) -> dict[str, Any]:
        """S413: give back the workers of resizes that lowered the goodput; the guard has blocked the jobs."""
        undone = []
        if len(verdict.rollback):
            columns = elastic_columns(hand, nodes, verdict.rollback)
            job, offset, gpu = columns[:3]
            alive = on_living_nodes(hand.observation, columns)
            for k in np.flatnonzero(alive & (verdict.undo < np.diff(offset))).tolist():
                held = gpu[offset[k] : offset[k + 1]]
                hand.resize(int(job[k]), held, held[: int(verdict.undo[k])])
                undone.append(int(job[k]))
        return {
            "s413_kept": verdict.keep,
            "s413_undone": np.array(undone, dtype=np.int64),
            "s413_watched": int(record["watched"].sum()),
        }

    def _solve(
        self, hand: Hand, nodes: NodeState, ranking: Ranking, scaling: ScalingColumns, table: TableColumns,
        record: Record,
    ) -> dict[str, Any]:  # fmt: skip
        """S422, optimal: sizes by an integer programme; says why where the formula has to decide instead.

        Waiting jobs are left to the formula while one of them is overdue and so may have a reservation.
        """
        o = hand.observation
        overdue = len(ranking.overdue) > 0
        blocked = guard_blocked(record, ranking.running, o.time_s)
        try:
            configurations = resize_optimally(
                hand, nodes, ranking, scaling, table, blocked, not overdue, self.horizon_s, self.time_limit_s
            )
        except (TimeoutError, ValueError) as error:
            return {"s422_fallback": str(error)}
        return {"s422_configurations": configurations}

    def _start(self, hand: Hand, ranking: Ranking) -> dict[str, Any]:
        """S422: start overdue jobs, then the others in order; those only where they delay no overdue one."""
        o, requests = hand.observation, request_columns(hand.observation)
        overdue = self._start_first(hand, ranking.overdue[~hand.touched(ranking.overdue)])
        queue, first = ranking.waiting[~hand.touched(ranking.waiting)], -1
        if overdue < 0:
            first = self._start_first(hand, queue)
            if first >= 0 and _waited_s(o, first) > self.reserve_after_s:
                overdue = first
            queue = queue[~hand.touched(queue)]
        if overdue >= 0:
            queue = frozen(np.concatenate(([overdue], queue[queue != overdue])))
            running = np.sort(np.concatenate((ranking.running, hand.started())))
            more, _ = backfill(
                o, queue, _takes_s(o, queue), WEIGHTED, running, hand.holder, requests, hand.columns
            )
            hand.start(more)
        elif first >= 0:
            queue = frozen(queue[1:])
            more, _ = start_in_order(queue, False, WEIGHTED, requests, hand.columns)
            hand.start(more)
            self._start_smaller(hand, queue[~hand.touched(queue)][:_SMALLER])
        return {
            "s412_priority": ranking.waiting_a[:5],
            "s422_order": ranking.waiting[:5],
            "s422_ratio": ranking.ratio[:5],
            "s422_overdue": overdue,
        }

    def _start_first(self, hand: Hand, queue: Ints) -> int:
        """Start jobs in order up to the first that cannot start, in a smaller size either; returns it, or -1."""
        while len(queue):
            first, _ = start_in_order(
                frozen(queue), True, WEIGHTED, request_columns(hand.observation), hand.columns
            )
            queue = queue[len(hand.start(first)) :]
            if len(queue) and not self._start_smaller(hand, queue[:1]):
                return int(queue[0])
            queue = queue[1:]
        return -1

    def _start_smaller(self, hand: Hand, rows: Ints) -> int:
        """Start elastic jobs with a half, a quarter, ... of the workers they ask for; returns how many."""
        o, started = hand.observation, 0
        for row in elastic_rows(o, rows).tolist():
            per, fewest = int(o.jobs.gpus_per_worker[row]), int(o.jobs.workers_min[row])
            workers = int(gpus_wanted(o, np.array([row]))[0]) // per // 2
            while workers >= fewest and hand.free >= fewest * per:
                asked = o.jobs.gpus_requested.copy()
                asked[row] = workers * per
                requests = request_columns(o)
                requests = (requests[0], frozen(asked), *requests[2:])
                one, _ = start_in_order(frozen(np.array([row])), True, WEIGHTED, requests, hand.columns)
                if len(hand.start(one)):
                    started += 1
                    break
                workers //= 2
        return started

    def _preempt(self, hand: Hand, ranking: Ranking, overdue: bool) -> dict[str, Any]:
        """S422: stop running jobs for waiting ones of higher priority that need much less time."""
        o = hand.observation
        left = ~hand.touched(ranking.waiting)
        queue, standing = ranking.waiting[left][:_PREEMPTING], ranking.waiting_a[left][:_PREEMPTING]
        able = ~hand.touched(ranking.running)
        running = ranking.running[able]
        key, bar = np.nan_to_num(o.jobs.service_s[queue], nan=math.inf), self._bars(o, running)
        if not key.min(initial=math.inf) < bar.max(initial=-math.inf):
            return {"s422_stopped": NO_ROWS}
        room = hand.without_free() if overdue else hand.columns
        stopped, grants, _ = start_with_preemption(
            o, frozen(queue), frozen(key), frozen(standing), WEIGHTED, running, bar,
            ranking.running_a[able], hand.holder, request_columns(o), room,
        )  # fmt: skip
        hand.stop(stopped.tolist())
        hand.start(grants)
        return {"s422_stopped": stopped}

    def _resize(
        self, hand: Hand, nodes: NodeState, ranking: Ranking, scaling: ScalingColumns, table: TableColumns,
        record: Record, overdue: int,
    ) -> dict[str, Any]:  # fmt: skip
        """S422: elastic jobs give up workers for waiting ones, or take GPUs that nobody waits for."""
        o = hand.observation
        rows = elastic_rows(o, ranking.running)
        if not len(rows) and o.jobs.rigid[o.waiting].all():
            return {"s422_grown": NO_ROWS, "s422_shrunk": NO_ROWS}
        rows = rows[~guard_blocked(record, rows, o.time_s) & ~hand.touched(rows)]
        waits = np.flatnonzero(~hand.touched(ranking.waiting))
        if overdue >= 0:
            waits = waits[ranking.waiting[waits] == overdue]  # what is free is reserved for it
        if len(waits) or overdue >= 0:
            shrunk = shrink_jobs(
                hand, nodes, ranking, scaling, table, rows, waits[:_SHRINKING], self.horizon_s
            )
            return {"s422_shrunk": shrunk}
        rows = np.concatenate((rows, elastic_rows(o, hand.started())))
        grown, gain_s = grow_jobs(hand, nodes, ranking, scaling, table, rows, self.horizon_s, self.margin)
        return {"s422_grown": grown, "s422_gain_s": gain_s}


def _heaviest_first(weight: Floats, free: Ints) -> Ints:
    """Nodes by descending weight; among equals those with least free first, then the first.

    As `lexsort((free, -weight))`, in a third of the time: sorting is faster when it need not be stable.
    """
    if not len(weight) or weight.min() == weight.max():
        return np.argsort(free, kind="stable")
    by_weight, n = np.argsort(-weight), len(weight)
    rank = np.zeros(n, dtype=np.int64)
    rank[by_weight[1:]] = np.cumsum(np.diff(weight[by_weight]) != 0.0)
    return np.argsort((rank * (int(free.max(initial=0)) + 1) + free) * n + np.arange(n))


def _waited_s(o: Observation, row: int) -> float:
    return float(np.nan_to_num(o.jobs.waited_s[row]) + max(o.time_s - o.jobs.queued_since_s[row], 0.0))


def _takes_s(o: Observation, rows: Ints) -> Floats:
    """How long (s) jobs will run, by row of the jobs table: those that have run before restart first."""
    jobs, takes_s = o.jobs, o.jobs.service_s.copy()
    takes_s[rows] += np.where(jobs.attained_gpu_s[rows] > 0.0, np.nan_to_num(jobs.restart_s[rows]), 0.0)
    return frozen(takes_s)


def _use(o: Observation) -> dict[str, Any]:
    """S421: use of the cluster now."""
    up = int(o.nodes.gpus[o.nodes.up].sum())
    free = int(o.nodes.gpus_free.sum())
    return {
        "s421_used_ratio": 1.0 - free / up if up else np.nan,
        "s421_free": free,
        "s421_largest_block": int(o.nodes.gpus_free.max(initial=0)),
        "s421_waiting": len(o.waiting),
    }
