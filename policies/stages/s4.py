"""S4, nodes and scheduling.

S411 efficiency and speed of nodes, S412 priority of jobs, S413 guard over past changes; S421 use, S422 allocation,
S423 effect on the efficiency of parallel work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from equipoise.policies.allocation.backfill import backfill
from equipoise.policies.allocation.elastic import (
    elastic_rows,
    parallel_work,
    scaling_columns,
    shrink_jobs,
    table_columns,
)
from equipoise.policies.allocation.growing import grow_jobs
from equipoise.policies.allocation.locality import slower_apart
from equipoise.policies.allocation.preemption import patient_bars, start_with_preemption
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import (
    UNKNOWN_S,
    NodeState,
    Patience,
    Ranking,
    node_state,
    rank,
    without_saved,
)
from equipoise.policies.allocation.sizes import WALL_LIMIT_S, movable, resize_optimally
from equipoise.policies.allocation.starts import SURE, Starts, takes_s_of
from equipoise.policies.allocation.widths import narrow_jobs
from equipoise.policies.contract import AllocationStage, Memory, Plan
from equipoise.policies.kernels.arrays import sort_by
from equipoise.policies.kernels.gangs import (
    NO_GRANTS,
    NO_ROWS,
    NO_VALUES,
    GrantColumns,
    RequestColumns,
    frozen,
    joined,
    request_columns,
    some_room,
    start_in_order,
)
from equipoise.policies.kernels.placement import ANY, WEIGHTED
from equipoise.policies.kernels.scaling import ScalingColumns, TableColumns
from equipoise.policies.observation import Floats, Ints, Observation
from equipoise.policies.plan import BY_CLOCK
from equipoise.policies.stages.frozen import check_frozen
from equipoise.policies.stages.guard import Record, Verdict, guard_blocked, guard_empty
from equipoise.policies.stages.power import at_full_clock
from equipoise.policies.stages.unhealthy import avoided_gpus, replace_suspects
from equipoise.policies.stages.watch import corrected, measured, remember_exchanges, review, watch, way_back

_PREEMPTING = 128  # first waiting jobs for which running jobs may be stopped
_PREEMPT_RATIO = 0.5  # a job is stopped for one that needs less than this share of its time left
_SHRINKING = 4  # first waiting jobs for which elastic jobs may give up workers

_ABOVE_ZERO = ("run_s", "growth", "horizon_s", "time_limit_s")
_NOT_NEGATIVE = ("reserve_after_s", "slowdown", "longest_wait_s", "reluctance", "noise", "backoff_s")


@dataclass(frozen=True)
class NodeAllocation(AllocationStage):
    """Allocates GPUs to jobs by priority and ratio, resizes elastic jobs, and undoes harmful changes.

    S412: A_i = p_i * (D_i/D * C_i/C)^0.1 * M/(M + m_i) * (4 * (1 + (100 h + w_i)/s_i) + w_i/24 h), with data and
    compute demand D_i and C_i over their geometric means, memory M of a GPU and need m_i, waiting time w and
    remaining time s. S422: R_ij = R_j * (u_ij*A_i/(1+d_ij)) / sum_k(u_kj*A_k/(1+d_kj)),
    with u the share of node j's GPUs that the job uses, or could use while it waits, and d the share of a worker's
    data that is stored elsewhere, for a waiting job the time to fetch it over the time to compute; R_j is the
    measured speed of the node. `formula`: jobs in order of sum_j R_ij per GPU asked for, whole gangs. The first few
    start where one estimate says that they end soonest (`allocation/starts.py`): it counts the GPU model, nodes that
    were measured slow, data stored elsewhere, hosts that prepare it, and the number of workers of an elastic job. A
    node that was never measured counts as the others of its model do. Where no other GPUs are surely quicker, a job
    starts on those that EASY would take, or on fewer and slower ones, on fewer nodes, or on those of highest R_ij if
    it reads data. A job waits for another GPU model where it surely ends sooner. `optimal`: the sizes that maximise
    goodput by an integer programme (Sia, Jayaram Subramanya et al. 2023). The source's formula images are lost: the
    forms are ours, with its variables and directions.

    Order: as above. Blocking: jobs that do not fit are skipped until the first has waited for as long as it takes,
    or `reserve_after_s`, or the job of highest A that and its own duration: then it has a reservation until it
    starts. A job with a total wait above min(reserve_after_s + slowdown * duration, longest_wait_s) is overdue:
    overdue jobs come first, the longest overdue before the others, then the one with a reservation, and no start
    may delay the first of them that does not fit: it ends before that one could start, or leaves it room.
    Placement: by R_ij. Preemption: a waiting job stops running jobs of lower A that need longer by more than
    `reluctance` times their restart, but none that has worked since its last start less than `run_s`, or less than
    `growth` times its earlier work; the largest that was stopped then has the reservation. Elastic jobs are resized
    where that gains more than their restart costs.

    No job starves. With exact estimates and without faults a job starts at most (k + 1) * T after it is overdue: k is
    the number of starts of jobs overdue before it, T is the longest job with its restart. A reservation is for nodes
    that the job may use. Under a limit that holds an overdue job back only what ends in time starts, so that it is
    free T later: the bound is then twice as long. A job of s seconds is stopped at most 1 + log(s / run_s) / log(1 +
    growth) times; `optimal` may stop it once it has worked for `reluctance` restarts instead of run_s.
    """

    name: ClassVar[str] = "s4"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs", "workers", "shards", "speeds", "stores"})
    order: ClassVar[str] = "sum of R_ij per GPU asked for: priority, demand and waiting time over contention"
    blocking: ClassVar[str] = "greedy, with a reservation for the longest overdue job, or else one first job"
    preemption: ClassVar[str] = (
        "stops or resizes running jobs where that gains more than their restart costs, each a few times at most"
    )
    starvation: ClassVar[str] = "never: overdue jobs come first, the longest overdue before the others"
    places: ClassVar[str] = "whole gangs, on nodes by descending R_ij"
    honours: ClassVar[tuple[str, ...]] = (*AllocationStage.honours, "job priority")

    mode: str = "formula"
    reserve_after_s: float = 3600.0  # a job is overdue after this...
    slowdown: float = 10.0  # ... plus this many times its duration,
    longest_wait_s: float = 1814400.0  # but at the latest after this
    run_s: float = 600.0  # least work between two preemptions of a job...
    growth: float = 0.1  # ... and least relative to its work before
    reluctance: float = 2.0  # restarts that a preemption must gain
    horizon_s: float = 1800.0  # longest time over which the gain of a resize counts
    noise: float = 0.05  # a loss of goodput below this is noise
    backoff_s: float = 600.0  # least first back-off after a roll-back; doubles each time
    time_limit_s: float = WALL_LIMIT_S  # wall-time limit of the search, as a last resort; reported in a run's notes
    frozen: str = ""  # a sub-step to replace by a simple default: see `policies.stages.frozen`

    def __post_init__(self) -> None:
        if self.mode not in ("formula", "optimal"):
            raise ValueError(f"mode: {self.mode!r} is not one of formula, optimal")
        check_frozen("s4", self.frozen)
        for name in _ABOVE_ZERO:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        for name in _NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set the allocation; memory holds node speeds, the last goodputs and the guard's record."""
        o = observation = at_full_clock(observation)
        if plan.allocation is not None:
            return plan.because("s4", "an earlier stage has already allocated GPUs"), memory
        if not len(o.waiting) and not len(o.running):
            return plan.because("s4", "no job waits or runs"), memory
        o, saved = without_saved(o, self._patience)
        before = memory.get("guard") or guard_empty()
        verdict, memory = review(o, memory, self.noise, self.backoff_s)
        if self.frozen == "S413":
            verdict, memory = Verdict(NO_ROWS, NO_ROWS, NO_VALUES), {**memory, "guard": guard_empty()}
        unsound = avoided_gpus(o, plan)
        if not len(verdict.rollback) and unsound is None and self._nothing_to_do(o):
            return plan.because("s4", "no GPU is free, and no change would pay"), memory
        nodes = node_state(o, memory, measured=self.frozen != "S411")
        memory = {**memory, "node_seen_s": nodes.seen_s}
        ranking = rank(
            o,
            nodes,
            self._patience,
            memory.get("reserved", -1),
            arrival_order=self.frozen == "S412",
            use=self.frozen != "S421",
        )
        memory = remember_exchanges(o, memory)
        scaling = scaling_columns(o, plan.intervals(o))
        table = corrected(table_columns(o, nodes), o, memory)
        order = _heaviest_first(ranking.weight, o.nodes.gpus_free)
        proposal = Proposal(o, ranking.weight, nodes.model, order, unsound, nodes.speed)
        values = nodes.values() | _use(o) | self._undo(proposal, verdict, memory, before, len(ranking.overdue) > 0)
        values["s413_replaced"] = replace_suspects(proposal)
        able = elastic_rows(o, ranking.running)
        able = able[measured(o, memory, able)]
        able, narrows = able[~guard_blocked(memory["guard"], able, o.time_s) & ~saved[able]], able
        solved = {}
        if self.mode == "optimal" and self.frozen != "S422":
            solved = self._solve(proposal, nodes, ranking, scaling, table, able, memory)
        if self.frozen == "S422":
            proposal.start(start_in_order(ranking.waiting, False, ANY, request_columns(o), proposal.columns)[0])
            proposal.leave(np.arange(len(o.jobs)))
        by_formula = "s422_fallback" in solved or self.mode == "formula"
        started, takes_s = self._start(proposal, nodes, ranking, scaling, table)
        values |= solved | started
        if by_formula and self.frozen != "S422":
            values |= self._preempt(proposal, ranking, takes_s, scaling[5])
            values |= self._resize(proposal, nodes, ranking, scaling, table, able, narrows, values["s422_overdue"])
        kept = ranking.overdue[ranking.overdue == memory.get("reserved", -1)]
        if not len(kept) or proposal.touched(kept)[0]:  # else it waits on
            memory["reserved"] = values["s422_overdue"]
        stopped = values.get("s422_stopped", NO_ROWS)
        if len(stopped) and (memory["reserved"] < 0 or proposal.touched(np.array([memory["reserved"]]))[0]):
            # The largest goes on once those that it was stopped for have ended.
            memory["reserved"] = int(stopped[o.jobs.gpus_held[stopped].argmax()])
        allocation = proposal.allocation()
        values |= parallel_work(proposal, nodes, scaling, table)
        if allocation is None:
            return plan.because("s4", "no change", **values), memory
        memory = watch(proposal, nodes, scaling, table, memory, values["s413_undone"])
        values |= _changed(proposal, values)
        text = f"starts {len(proposal.started())}, stops {len(proposal.stopped)}, resizes {len(proposal.resized())}"
        return plan.with_(allocation=allocation).because("s4", text, **values), memory

    def _nothing_to_do(self, o: Observation) -> bool:
        """Whether no waiting job could start, even by preemption, and no job can change size."""
        if len(elastic_rows(o, o.running)) or (len(o.gpu_models) > 1 and len(o.running)):
            return False
        if not len(o.waiting) or some_room(o.nodes.gpus_free, o.gpus.share_free):
            return not len(o.waiting)
        if self.mode == "optimal" and len(self._may_be_stopped(o, o.running)):
            return False
        shortest_s = np.nan_to_num(o.jobs.service_s[o.waiting], nan=math.inf).min()
        return bool(shortest_s >= self._bars(o, o.running).max(initial=-math.inf))

    def _bars(self, o: Observation, running: Ints) -> Floats:
        """Bar of each running job (s): a waiting job that needs less may stop it."""
        return patient_bars(o, running, _PREEMPT_RATIO, self.reluctance, self.run_s, self.growth)

    def _may_be_stopped(self, o: Observation, running: Ints) -> Ints:
        """Running jobs that `optimal` may stop: they have worked `reluctance` restarts since their last."""
        bars = patient_bars(o, running, _PREEMPT_RATIO, self.reluctance, 1e-9, self.growth)
        worked_s = o.time_s - o.jobs.started_s[running]
        least_s = (1.0 + self.reluctance) * np.nan_to_num(o.jobs.restart_s[running])
        return running[(bars > -math.inf) & ~(worked_s < least_s)]

    @cached_property
    def _patience(self) -> Patience:
        return Patience(self.reserve_after_s, self.slowdown, self.longest_wait_s)

    def _undo(
        self, proposal: Proposal, verdict: Verdict, memory: Memory, before: Record, reserved: bool
    ) -> dict[str, Any]:
        """S413: give jobs back their former GPUs, where these are free and not `reserved`."""
        o, undone = proposal.observation, []
        judged = np.concatenate((verdict.keep, verdict.rollback))
        for row in verdict.rollback.tolist():
            gpus = way_back(proposal, memory, row)
            held = proposal.gpus_of(row)[0]
            if gpus is not None and (not reserved or np.isin(gpus, held).all()):
                proposal.resize(row, held, gpus)
                undone.append(row)
        return {
            "s413_kept": verdict.keep,
            "s413_rejected": verdict.rollback,
            "s413_undone": np.array(undone, dtype=np.int64),
            "s413_before": before["before"][np.searchsorted(before["id"], judged)],
            "s413_after": o.jobs.goodput_samples_per_s[judged],
            "s413_watched": int(memory["guard"]["watched"].sum()),
        }

    def _solve(
        self,
        proposal: Proposal,
        nodes: NodeState,
        ranking: Ranking,
        scaling: ScalingColumns,
        table: TableColumns,
        able: Ints,
        memory: Memory,
    ) -> dict[str, Any]:
        """S422, optimal: sizes by an integer programme; the reason where the formula decides instead.

        Waiting jobs are left to the formula while one of them is overdue and so may have a reservation.
        """
        overdue = len(ranking.overdue) > 0
        fixed = NO_ROWS if overdue else self._movable(proposal, ranking, memory)
        patient = self._may_be_stopped(proposal.observation, ranking.running)
        blocked = ~np.isin(ranking.running, able)
        try:
            configurations = resize_optimally(
                proposal,
                nodes,
                ranking,
                scaling,
                table,
                blocked,
                fixed,
                patient,
                not overdue,
                self.horizon_s,
                self.reluctance,
                self.time_limit_s,
            )
        except TimeoutError as error:
            return {"s422_fallback": str(error), BY_CLOCK: self.time_limit_s}
        except ValueError as error:
            return {"s422_fallback": str(error)}
        return {"s422_configurations": configurations}

    def _movable(self, proposal: Proposal, ranking: Ranking, memory: Memory) -> Ints:
        """Rows of running jobs of fixed size that may change their GPU model, or stop."""
        o = proposal.observation
        blocked = guard_blocked(memory["guard"], ranking.running, o.time_s)
        blocked |= ~o.jobs.rigid[ranking.running] & ~measured(o, memory, ranking.running)
        return movable(proposal, ranking, blocked, self.reluctance)

    def _start(
        self, proposal: Proposal, nodes: NodeState, ranking: Ranking, scaling: ScalingColumns, table: TableColumns
    ) -> tuple[dict[str, Any], Floats | None]:
        """S422: start overdue jobs, then the others in order if they delay no overdue one.

        Also returns the time (s) that each job takes if one has a reservation, else None.
        """
        o = proposal.observation
        starts, requests = Starts(proposal, nodes, scaling, table), request_columns(o)
        late = ranking.overdue
        overdue = self._start_first(starts, late[~proposal.touched(late)], requests, False)
        queue, first = ranking.waiting[~proposal.touched(ranking.waiting)], -1
        if overdue < 0:
            by_a = queue[np.lexsort((queue, -ranking.waiting_a[~proposal.touched(ranking.waiting)]))]
            after_s = self.reserve_after_s + np.nan_to_num(o.jobs.duration_s[by_a], nan=UNKNOWN_S)
            patient = np.logical_and.accumulate(_waited_s(o, by_a) > after_s)
            overdue = self._start_first(starts, by_a[patient], requests, True)
            queue = queue[~proposal.touched(queue)]
        if overdue < 0:
            first = self._start_first(starts, queue, requests, True)
            if first >= 0 and not proposal.touched(np.array([first]))[0]:  # else it is to wait
                patience_s = min(self.reserve_after_s, starts.shortest_s(first))
                overdue = first if _waited_s(o, np.array([first]))[0] > patience_s else -1
            queue = queue[~proposal.touched(queue)]
        reserved_s, takes_s = math.nan, None
        if overdue >= 0:
            queue = _one_after_another(np.concatenate(([overdue], late, queue)), proposal)
            running = np.sort(np.concatenate((ranking.running, proposal.started())))
            takes_s = takes_s_of(proposal, nodes, running, queue, requests, scaling, table)
            takes_s[running] = np.nan_to_num(takes_s[running], nan=UNKNOWN_S)
            takes_s = frozen(takes_s)
            more, reserved_s = backfill(
                o, queue, takes_s, WEIGHTED, running, proposal.holder, requests, proposal.columns
            )
            proposal.start(more)
        elif first >= 0:
            queue = frozen(queue[1:])
            starts.start(queue, False, requests, True)
        return {
            "s412_priority": ranking.waiting_a[:5],
            "s422_order": ranking.waiting[:5],
            "s422_ratio": ranking.ratio[:5],
            "s422_overdue": overdue,
            "s422_reserved_s": reserved_s,
        }, takes_s

    def _start_first(self, starts: Starts, queue: Ints, requests: RequestColumns, may_wait: bool) -> int:
        """Start jobs in order up to the first that cannot; returns it, or -1."""
        started = starts.start(queue, True, requests, may_wait)
        return int(queue[started]) if started < len(queue) else -1

    def _preempt(self, proposal: Proposal, ranking: Ranking, takes_s: Floats | None, interval: Ints) -> dict[str, Any]:
        """S422: stop running jobs for waiting ones of higher priority that need much less time.

        With `takes_s`, by row, their GPUs are reserved for another job later: they must end before that.
        """
        o = proposal.observation
        left = ~proposal.touched(ranking.waiting)
        queue, standing = ranking.waiting[left][:_PREEMPTING], ranking.waiting_a[left][:_PREEMPTING]
        able = ~proposal.touched(ranking.running)
        running = ranking.running[able]
        key, bar = np.nan_to_num(o.jobs.service_s[queue], nan=math.inf), self._bars(o, running)
        if not key.min(initial=math.inf) < bar.max(initial=-math.inf):
            return {"s422_stopped": NO_ROWS}
        room = proposal.columns if takes_s is None else proposal.without_free()
        stopped, grants, _ = start_with_preemption(
            o,
            frozen(queue),
            frozen(key),
            frozen(standing),
            WEIGHTED,
            running,
            bar,
            ranking.running_a[able],
            proposal.holder,
            request_columns(o),
            room,
        )
        if len(stopped):
            own_s, before_s = o.jobs.service_s, np.full(len(o.jobs), math.inf)
            before_s[running] = bar
            if takes_s is not None:
                own_s, before_s[running] = takes_s, np.minimum(bar, takes_s[running])
            stopped, grants = _that_end_sooner(o, grants, own_s, before_s, proposal.holder, interval)
        proposal.stop(stopped.tolist())
        proposal.start(grants)
        return {"s422_stopped": stopped}

    def _resize(
        self,
        proposal: Proposal,
        nodes: NodeState,
        ranking: Ranking,
        scaling: ScalingColumns,
        table: TableColumns,
        able: Ints,
        narrows: Ints,
        overdue: int,
    ) -> dict[str, Any]:
        """S422: elastic jobs shrink for waiting ones, or grow onto GPUs that no waiting job could use."""
        o = proposal.observation
        if not len(narrows) and o.jobs.rigid[o.waiting].all():
            return {"s422_grown": NO_ROWS, "s422_shrunk": NO_ROWS}
        rows = able[~proposal.touched(able)]
        shrunk = narrow_jobs(proposal, nodes, rows, scaling, table, self.horizon_s, SURE)
        rows = rows[~proposal.touched(rows)]
        waits = np.flatnonzero(~proposal.touched(ranking.waiting))
        if overdue >= 0:
            waits = waits[ranking.waiting[waits] == overdue]  # what is free is reserved for it
        if len(waits):
            may = narrows[~proposal.touched(narrows)]
            for_others = shrink_jobs(proposal, nodes, ranking, scaling, table, may, waits[:_SHRINKING], self.horizon_s)
            shrunk = np.concatenate((shrunk, for_others))
        if overdue >= 0 or not proposal.touched(ranking.waiting[waits]).all():
            return {"s422_grown": NO_ROWS, "s422_shrunk": shrunk}
        rows = rows[~proposal.touched(rows)]
        grown, gain_s = grow_jobs(proposal, nodes, ranking, scaling, table, rows, self.horizon_s, SURE)
        return {"s422_grown": grown, "s422_gain_s": gain_s, "s422_shrunk": shrunk}


def _heaviest_first(weight: Floats, free: Ints) -> Ints:
    """Nodes by descending weight (not negative); among equals those with least free first, then the first.

    As `lexsort((free, -weight))`, in a fifth of the time: the bits of nonnegative floats sort like the floats.
    """
    order = np.arange(len(weight))
    spare, count = np.empty_like(order), np.empty(2048, dtype=np.int64)
    sort_by(frozen(free), order, spare, count)
    if len(weight) and weight.min() < weight.max():
        sort_by(frozen(np.iinfo(np.int64).max - (weight + 0.0).view(np.int64)), order, spare, count)
    return order


def _waited_s(o: Observation, rows: Ints) -> Floats:
    waited_s: Floats = np.nan_to_num(o.jobs.waited_s[rows]) + np.maximum(o.time_s - o.jobs.queued_since_s[rows], 0.0)
    return waited_s


def _one_after_another(rows: Ints, proposal: Proposal) -> Ints:
    """Undecided job rows, without duplicates, in order of first occurrence."""
    _, first = np.unique(rows, return_index=True)
    rows = rows[np.sort(first)]
    return frozen(rows[~proposal.touched(rows)])


def _that_end_sooner(
    o: Observation, grants: GrantColumns, takes_s: Floats, before_s: Floats, holder: Ints, interval: Ints
) -> tuple[Ints, GrantColumns]:
    """The grants that end before the present holders of their GPUs, exchanges between nodes included; these holders."""
    job, offset, gpu, share = grants
    stopped, parts = [NO_ROWS], []
    for k, row in enumerate(job.tolist()):
        some = slice(offset[k], offset[k + 1])
        held, slower = np.unique(holder[gpu[some]]), 1.0
        held, on = held[held >= 0], np.unique(o.gpus.node[gpu[some]])
        if len(held) and len(on) > 1 and not o.jobs.rigid[row]:
            slower = slower_apart(o, row, len(gpu[some]), int(interval[row]), on)
        if not slower * takes_s[row] > before_s[held].min(initial=math.inf):
            stopped.append(held)
            parts.append((job[k : k + 1], offset[k : k + 2] - offset[k], gpu[some], share[some]))
    return np.unique(np.concatenate(stopped)), joined(parts) if parts else NO_GRANTS


def _changed(proposal: Proposal, values: dict[str, Any]) -> dict[str, Any]:
    """S423: the running jobs whose GPUs change, GPU counts before and after, and the sub-step that asked for it."""
    rows = np.sort(proposal.resized())
    asked = {"S413": "s413_undone", "S422: free GPUs": "s422_grown", "S422: fewer GPUs": "s422_shrunk"}
    names = [
        next((name for name, key in asked.items() if row in values.get(key, ())), "S422: optimal")
        for row in rows.tolist()
    ]
    return {
        "s423_changed": rows,
        "s423_gpus_before": proposal.observation.jobs.gpus_held[rows],
        "s423_gpus_after": np.array([len(proposal.gpus_of(row)[0]) for row in rows.tolist()], dtype=np.int64),
        "s423_asked": names,
    }


def _use(o: Observation) -> dict[str, Any]:
    """S421: utilisation of the cluster now."""
    up = int(o.nodes.gpus[o.nodes.up].sum())
    free = int(o.nodes.gpus_free.sum())
    return {
        "s421_used_ratio": 1.0 - free / up if up else np.nan,
        "s421_free": free,
        "s421_largest_block": int(o.nodes.gpus_free.max(initial=0)),
        "s421_waiting": len(o.waiting),
    }
