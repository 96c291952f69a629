"""`multifactor`: Slurm's priority/multifactor with sched/backfill, as a scenario's `queues` declares them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.baselines.queueing import NONE_WAITS, PLANNED, unchanged
from equipoise.policies.contract import AllocationStage, Memory, Plan
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.queues.fairshare import classic, fair_tree, usage_now
from equipoise.policies.queues.places import of_one_model, place_job, start_on, wanted_gpus
from equipoise.policies.queues.profile import Profile, node_classes, spread
from equipoise.policies.quotas.limits import Quota, allowed_nodes, amounts_of, held_amounts, node_model, node_sets

_SHOWN = 200
"""Number of jobs at the head of the queue whose priorities are in the reason."""


def fairshare_factors(o: Observation, usage: Floats) -> Floats:
    """Fair-share factor of each claim, 0 without one."""
    q = o.queues
    formula = classic if q.numbers.get("classic") else fair_tree
    return formula(q.share_parent, q.share, usage)[q.share_leaf]


def priorities(o: Observation, rows: Ints, usage: Floats, counted_s: float) -> Floats:
    """Priority of waiting jobs (rows): the weighted sum of factors between 0 and 1, rounded down as in Slurm.

    Slurm, "Multifactor Priority Plugin". Size is the requested share of all GPUs. counted_s: when age and usage were
    calculated; a job that came later has no age yet.
    """
    q, jobs = o.queues, o.jobs
    of, claim = q.numbers, jobs.claim[rows]
    known = claim >= 0
    waited_s = jobs.waited_s[rows] + np.maximum(counted_s - jobs.queued_since_s[rows], 0.0)
    age = np.minimum(waited_s / of.get("max_age_s", math.inf), 1.0)
    size = np.minimum(jobs.gpus_requested[rows] / max(int(o.nodes.gpus.sum()), 1), 1.0)
    size = 1.0 - size if of.get("favour_small") else size
    total = of.get("age", 0.0) * age + of.get("size", 0.0) * size
    if len(q.claims):
        by_claim = of.get("partition", 0.0) * q.partition_factor + of.get("qos", 0.0) * q.qos_factor
        if of.get("fairshare"):
            by_claim = by_claim + of["fairshare"] * fairshare_factors(o, usage)
        total = total + np.where(known, by_claim[claim], 0.0)
    return np.floor(total + 1e-9)


@dataclass(frozen=True)
class Multifactor(AllocationStage):
    """Slurm's multifactor priority with backfill, by the weights and limits that the scenario declares.

    Order: (tier of the partition, priority, arrival, id); priority is the weighted sum of age, fair share, size,
    partition and QOS. Blocking: the first job of a partition that cannot be placed blocks those behind it; every
    `interval` at most, the first `depth` jobs are planned `window` ahead, and a job starts if it delays none planned
    earlier. A job at a limit is skipped. Preemption: where declared, a job that cannot be placed stops running ones
    of a QOS or partition that it may preempt (Slurm, "Preemption"): in order of QOS priority or tier, then the
    fewest nodes, or the last started; unneeded ones keep running.
    """

    name: ClassVar[str] = "multifactor"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs", "workers"})
    order: ClassVar[str] = "tier of the partition, multifactor priority, arrival, id"
    blocking: ClassVar[str] = "strict in each partition; with backfill, starts what delays no job planned before it"
    preemption: ClassVar[str] = "as declared: jobs of a QOS that its QOS may stop, or of partitions of a lower tier"
    places: ClassVar[str] = "the fewest nodes possible now, of the partition and of the GPU types asked for"
    starvation: ClassVar[str] = "none with a weight on age and backfill; else as the weights say"
    keeps_limits: ClassVar[bool] = True
    honours: ClassVar[tuple[str, ...]] = (
        "limits",
        "partitions",
        "GPU types",
        "topology required",
        "topology preferred",
        "priority",
        "fair share",
        "backfill",
        "preemption",
    )

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs by priority, then backfill; memory holds decayed usage and the last backfill."""
        o = observation
        usage = usage_now(o, memory)
        memory = {**memory, **usage}
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not len(o.waiting):
            return unchanged(plan, self.name, NONE_WAITS), memory
        rows = o.waiting
        priority, memory = self.steered(o, rows, priorities(o, rows, usage["counted"], usage["counted_s"]), memory)
        claim = o.jobs.claim[rows]
        tier = np.where(claim >= 0, o.queues.tier[claim], 1) if len(o.queues.tier) else np.ones(len(rows))
        order = np.lexsort((rows, -priority, -tier))
        ranked = rows[order]
        proposal, quota = Proposal(o), Quota.now(o)
        turn = _Turn(o, proposal, quota)
        left = self._main(turn, ranked)
        last_s, interval_s = memory.get("backfilled_s", -math.inf), o.queues.numbers.get("interval_s", 0.0)
        depth, revisit_s = int(o.queues.numbers.get("depth", 0)), math.inf
        if depth and left and o.time_s >= last_s + interval_s:
            classes = memory["node_class"] if "node_class" in memory else node_classes(o)
            turn.backfill(left[:depth], o.queues.numbers["window_s"], classes)
            memory = {**memory, "backfilled_s": o.time_s, "node_class": classes}
        elif depth and left and proposal.free:
            revisit_s = last_s + interval_s
        values = {
            "order": ranked[:_SHOWN],
            "priority": priority[order][:_SHOWN],
            "held": turn.ints(turn.limited),
            "limit": np.array(list(turn.limited.values()), dtype=np.int64),
            "planned": turn.ints(turn.planned),
            "planned_s": np.array(list(turn.planned.values())),
            "stopped": turn.ints(turn.victims),
            "stopped_for": np.array(list(turn.victims.values()), dtype=np.int64),
        }
        allocation = proposal.allocation()
        started = len(proposal.given)
        text = f"started {started} of {len(rows)} waiting jobs"
        text += f", {len(turn.limited)} at a limit" if turn.limited else ""
        text += f", {len(turn.planned)} planned for later" if turn.planned else ""
        text += f", {len(turn.victims)} stopped for others" if turn.victims else ""
        plan = plan.with_(revisit_s=min(plan.revisit_s, revisit_s))
        if allocation is not None:
            plan = plan.with_(allocation=allocation)
        return plan.because(self.name, text, **values), memory

    def steered(self, o: Observation, rows: Ints, priority: Floats, memory: Memory) -> tuple[Floats, Memory]:
        """Priorities (of rows) as something in front of the queue has changed them; nothing does here."""
        return priority, memory

    def _main(self, turn: _Turn, ranked: Ints) -> list[int]:
        """Start jobs in order, each partition up to the first that cannot be placed; returns the jobs left.

        That one keeps the nodes of its partition from jobs of other partitions behind it, too.
        """
        blocked, left = set[int](), list[int]()
        partition = turn.o.queues.codes(turn.o.jobs.claim[ranked], "partition").tolist()
        for row, part in zip(ranked.tolist(), partition, strict=True):
            if part in blocked or not (turn.proposal.free or turn.may_stop):
                left.append(row)
            elif turn.start(row) is False and not turn.stop_for(row):
                blocked.add(part)
                left.append(row)
                turn.shut |= turn.nodes_of(row)
        turn.shut[:] = False
        return left


def stoppable(o: Observation, row: int) -> list[int]:
    """Running jobs that a waiting one may stop, in the order of trial.

    Slurm, "Preemption": preempt/qos uses the declared pairs of QOS, preempt/partition_prio the tiers of partitions.
    """
    q, jobs, running = o.queues, o.jobs, o.running
    running = running[(jobs.claim[running] >= 0) & (jobs.gpu_share_requested[running] >= 1.0)]
    claim, mine = jobs.claim[running], jobs.claim[[row]]
    if q.numbers["preempt_by"] == 1.0:
        theirs, own = q.codes(claim, "qos"), int(q.codes(mine, "qos")[0])
        may = (theirs >= 0) & q.preempts[own, theirs] if own >= 0 else np.zeros(len(running), dtype=np.bool_)
        rank = np.where(theirs >= 0, q.qos_priority[theirs], 0.0) if len(q.qos_priority) else np.zeros(len(theirs))
    else:
        rank = q.tier[claim].astype(np.float64)
        may = q.tier[claim] < q.tier[mine[0]]
    may = may & ~q.spared[claim] & (o.time_s - jobs.started_s[running] >= q.numbers["exempt_s"])
    running, rank = running[may], rank[may]
    if q.numbers["youngest_first"]:
        order = np.lexsort((-running, -jobs.started_s[running]))
    else:
        nodes = [len(np.unique(o.gpus.node[o.gpus.job == other])) for other in running.tolist()]
        order = np.lexsort((running, np.array(nodes, dtype=np.int64), rank))
    return [int(other) for other in running[order]]


def _fits(o: Observation, row: int, free: Ints, allowed: Bools, wanted: int) -> bool:
    """Whether a job fits with these free GPUs per node."""
    sets = (mask for some in of_one_model(o, row, allowed) for mask in node_sets(o, row, some))
    return any(int(free[mask & o.nodes.up].sum()) >= wanted for mask in sets)


class _Turn:
    """One decision: free GPUs, used limits, jobs at a limit (limit by row), and planned jobs."""

    def __init__(self, o: Observation, proposal: Proposal, quota: Quota) -> None:
        self.o, self.proposal, self.quota = o, proposal, quota
        self.limited: dict[int, int] = {}
        self.planned: dict[int, float] = {}
        self.victims: dict[int, int] = {}
        self.may_stop = "preempt_by" in o.queues.numbers
        self.shut = np.zeros(len(o.nodes), dtype=np.bool_)  # nodes on which no further job starts
        self._allowed: dict[tuple[int, int], Bools] = {}  # nodes by claim and GPU types

    @staticmethod
    def ints(rows: dict[int, int] | dict[int, float]) -> Ints:
        """Rows as an array."""
        return np.array(list(rows), dtype=np.int64)

    def nodes_of(self, row: int) -> Bools:
        """Nodes of a job's partition."""
        q, claim = self.o.queues, int(self.o.jobs.claim[row])
        every: Bools = np.ones(len(self.o.nodes), dtype=np.bool_)
        return q.nodes[claim] if claim >= 0 and q.nodes.shape[1] else every

    def start(self, row: int, most: Ints | None = None, node_class: Ints | None = None) -> bool | None:
        """Start a job now: True, False if it cannot be placed, None if a limit blocks it.

        most: GPUs of each class of nodes that are not reserved by jobs planned earlier.
        """
        wanted, claim = wanted_gpus(self.o, row), int(self.o.jobs.claim[row])
        share = float(min(self.o.jobs.gpu_share_requested[row], 1.0))
        allowed = self._nodes(claim, row, wanted * share)
        if allowed is None:
            return None
        allowed = allowed & ~self.shut
        gpus = place_job(self.proposal, row, wanted, allowed=allowed)
        if gpus is not None and most is not None and node_class is not None:
            taken = np.bincount(node_class[self.o.gpus.node[gpus]], minlength=len(most))
            if (taken > most).any() and self.o.jobs.segment[row]:
                return False  # its parts are not spread by classes
            if (taken > most).any():  # spread as the profile says, class by class
                gpus = self._by_class(row, spread(most, wanted), allowed, node_class)
        if gpus is None:
            return False
        amounts = amounts_of(self.o, gpus, share)
        broken = self.quota.broken(claim, amounts)
        if broken >= 0:  # a gang over several models, one of which is at its limit
            self.limited[row] = broken
            return None
        self.quota.book(claim, amounts)
        start_on(self.proposal, row, gpus)
        return True

    def _by_class(self, row: int, taken: Ints, allowed: Bools, node_class: Ints) -> Ints | None:
        parts = []
        for one in np.flatnonzero(taken).tolist():
            part = place_job(self.proposal, row, int(taken[one]), allowed=allowed & (node_class == one))
            if part is None:
                return None
            parts.append(part)
        return np.concatenate(parts)

    def _nodes(self, claim: int, row: int, gpus: float) -> Bools | None:
        """Nodes that a job may use now; None where its limits allow none (the limit is recorded)."""
        key = claim, int(self.o.jobs.gpu_types[row])
        if key not in self._allowed:
            self._allowed[key] = allowed_nodes(self.o, row)
        allowed = self._allowed[key]
        if claim < 0:
            return allowed
        room = np.array(self.quota.room(claim))
        if (room + 1e-9 >= gpus).all():
            return allowed
        model = node_model(self.o)
        allowed = allowed & (model >= 0) & (room + 1e-9 >= gpus)[np.maximum(model, 0)]
        if allowed.any():
            return allowed
        self.limited[row] = self.quota.first(claim, gpus)
        return None

    def stop_for(self, row: int) -> bool:
        """Stop running jobs so that an unplaced one starts; False where that does not help."""
        o, claim = self.o, int(self.o.jobs.claim[row])
        wanted, share = wanted_gpus(o, row), float(min(o.jobs.gpu_share_requested[row], 1.0))
        if not self.may_stop or claim < 0 or share < 1.0:
            return False
        allowed = self._nodes(claim, row, wanted)
        candidates = [other for other in stoppable(o, row) if other not in self.victims]
        if allowed is None or not candidates:
            return False
        free = np.array(self.proposal.columns.free)
        nodes = {other: o.gpus.node[np.flatnonzero(o.gpus.job == other)] for other in candidates}
        victims: list[int] = []
        for other in candidates:
            if allowed[nodes[other]].any():
                np.add.at(free, nodes[other], 1)
                victims.append(other)
                if _fits(o, row, free, allowed, wanted):
                    break
        if not _fits(o, row, free, allowed, wanted):
            return False
        for other in victims[-2::-1]:
            np.subtract.at(free, nodes[other], 1)
            if _fits(o, row, free, allowed, wanted):
                victims.remove(other)
            else:
                np.add.at(free, nodes[other], 1)
        for other in victims:
            amounts = {model: -gpus for model, gpus in held_amounts(o, other).items()}
            self.quota.book(int(o.jobs.claim[other]), amounts, -1)
            self.victims[other] = row
        self.proposal.stop(victims)
        return bool(self.start(row))

    def backfill(self, rows: list[int], window_s: float, node_class: Ints) -> None:
        """Plan jobs in order; start those planned for now."""
        o, proposal = self.o, self.proposal
        running = np.setdiff1d(o.running, self.ints(self.victims))
        profile = Profile(proposal, np.concatenate((running, proposal.started())), node_class, len(rows))
        until_s = o.time_s + window_s
        wanted = [wanted_gpus(o, row) for row in rows]
        least = np.minimum.accumulate(wanted[::-1])[::-1].tolist()  # of each job and those behind it
        for k, row in enumerate(rows):
            if least[k] > proposal.free:
                break
            share = float(min(o.jobs.gpu_share_requested[row], 1.0))
            allowed = self._nodes(int(o.jobs.claim[row]), row, wanted[k] * share)
            if row in self.limited or allowed is None:
                continue
            takes_s = float(o.jobs.service_s[row])
            takes_s = math.inf if math.isnan(takes_s) else max(takes_s, 0.0)
            plans = []
            for nodes in of_one_model(o, row, allowed):
                classes = np.zeros(profile.classes, dtype=np.bool_)
                classes[node_class[nodes]] = True
                if (plan := profile.earliest(classes, wanted[k], takes_s, until_s)) is not None:
                    plans.append(plan)
            if not plans:
                continue
            begin_s, free = min(plans, key=lambda plan: plan[0])
            if begin_s <= o.time_s and self.start(row, free, node_class):
                given = node_class[o.gpus.node[proposal.given[row][0]]]
                profile.take(np.bincount(given, minlength=profile.classes), o.time_s, takes_s)
            elif begin_s > o.time_s:
                profile.take(spread(free, wanted[k]), begin_s, takes_s)
                self.planned[row] = begin_s
