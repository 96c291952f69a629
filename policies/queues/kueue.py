"""`kueue`: admission by quota as in Kueue, with borrowing, lending, reclaiming and preemption.

Rules: kueue `pkg/scheduler/scheduler.go` (order of a cycle), `pkg/scheduler/preemption/preemption.go` (candidates to
stop), https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/. A cycle considers the heads of all queues at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.baselines.queueing import NONE_WAITS, PLANNED, unchanged
from equipoise.policies.contract import AllocationStage, Memory, Plan
from equipoise.policies.declared_queues import ANY_PRIORITY, LOWER_OR_NEWER, NEVER
from equipoise.policies.observation import Bools, Ints, Observation
from equipoise.policies.queues.places import of_one_model, place_job, start_on, wanted_gpus
from equipoise.policies.quotas.limits import (
    ROUNDING,
    Quota,
    allowed_nodes,
    amounts_of,
    held_amounts,
    node_model,
    node_sets,
)

CYCLE_S = 0.005
"""Time of a cycle without writes (assumed; a write takes far longer)."""
_NO_ROWS: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Kueue(AllocationStage):
    """Kueue's admission: each queue within its quota, idle quota lent in its cohort, and reclaimed.

    Order: in a cycle the heads of all queues, by priority and arrival; those within their nominal quota first,
    then by priority and arrival (with fair sharing: the queue that borrows least for its weight first).
    Blocking: a strict queue waits for its head, another skips it. Where decisions take time (`decide.writes_per_s`),
    each is one cycle, and a refused job is reconsidered when a job of its cohort has ended. Preemption: lower
    priorities of its own queue, and jobs of queues that borrow, as each queue declares; a queue reclaims at most its
    nominal quota.
    """

    name: ClassVar[str] = "kueue"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs", "workers"})
    order: ClassVar[str] = "heads of queues: those within quota first, then priority, arrival, id"
    blocking: ClassVar[str] = "as each queue declares: strict, or passes over what does not fit (best-effort)"
    preemption: ClassVar[str] = "lower priority in the queue, and jobs of other queues of the cohort on borrowed quota"
    places: ClassVar[str] = "the fewest nodes possible now, of the first flavor with quota"
    starvation: ClassVar[str] = "a gang may wait in a best-effort queue for as long as smaller jobs arrive"
    keeps_limits: ClassVar[bool] = True
    honours: ClassVar[tuple[str, ...]] = (
        "limits",
        "partitions",
        "GPU types",
        "topology required",
        "topology preferred",
        "quotas",
        "reclaim",
        "preemption while borrowing",
        "queue order",
        "fair sharing",
        "partial admission",
        "job priority",
    )

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Admit the heads of queues, cycle by cycle, until none fits; memory: kinds of equal jobs."""
        o = observation
        memory = _kinds(o, memory)
        cycles = bool(o.queues.numbers.get("cycles"))
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not len(o.waiting):
            return unchanged(plan, self.name, NONE_WAITS), memory
        turn = _Turn(o, memory["kind"])
        if cycles:
            plan, memory = turn.one_cycle(plan, memory)
        while not cycles and (heads := turn.heads()):
            turn.cycle(heads)
        allocation = turn.proposal.allocation()
        stopped = len(turn.proposal.stopped)
        values: dict[str, Any] = {
            "held": np.array(list(turn.limited), dtype=np.int64),
            "limit": np.array(list(turn.limited.values()), dtype=np.int64),
            "stopped": np.array(list(turn.victims), dtype=np.int64),
            "stopped_for": np.array(list(turn.victims.values()), dtype=np.int64),
        }
        text = f"admitted {len(turn.proposal.given)} of {len(o.waiting)} waiting jobs"
        text += f", stopped {stopped}" if stopped else ""
        if allocation is not None:
            plan = plan.with_(allocation=allocation)
        return plan.because(self.name, text, **values), memory


def _kinds(o: Observation, memory: Memory) -> Memory:
    """Jobs equal in queue, size, priority and requests form a kind; only the first of a kind can be next."""
    jobs, seen = o.jobs, memory.get("kind", np.empty(0, dtype=np.int64))
    if len(seen) == len(jobs):
        return memory
    known = {key: k for k, key in enumerate(memory.get("keys", ()))}
    columns = (
        jobs.claim,
        jobs.gpus_requested,
        jobs.priority,
        jobs.gpu_types,
        jobs.together,
        jobs.segment,
        jobs.gpu_share_requested,
        jobs.workers_min,
        jobs.workers_max,
        jobs.memory_bytes,
    )
    new = zip(*(column[len(seen) :].tolist() for column in columns), strict=True)
    found = [known.setdefault(key, len(known)) for key in new]
    kind = np.concatenate((seen, np.array(found, dtype=np.int64)))
    kind.flags.writeable = False
    return {"kind": kind, "keys": tuple(known)}


def _unparked(parked: Mapping[int, int], roots: set[int]) -> dict[int, int]:
    """Kinds that stay parked after a change below these roots."""
    return {kind: root for kind, root in parked.items() if root not in roots}


@dataclass
class _Head:
    """The next job of a queue and its possible admission: `leaf` is the quota of the flavor, -1 without."""

    row: int
    kind: int
    queue: int
    wanted: int
    gpus: float
    leaf: int = -1
    borrows: bool = False
    fits: bool = False


class _Turn:
    """One decision: free GPUs, used quota, and the next job of each queue."""

    def __init__(self, o: Observation, kind: Ints) -> None:
        self.o, self.proposal, self.quota = o, Proposal(o), Quota.now(o)
        self.limited: dict[int, int] = {}
        self.victims: dict[int, int] = {}
        self._aside: set[int] = set()
        q = o.queues
        self.owner, self.nominal = q.owner.tolist(), q.gpus_nominal.tolist()
        self.root = list(range(len(q.parent)))
        for limit, above in enumerate(q.parent.tolist()):
            self.root[limit] = self.root[above] if above >= 0 else limit
        self._waiting_kind = kind[o.waiting]
        kinds = int(self._waiting_kind.max(initial=-1)) + 1
        first = np.full(kinds, -1)
        first[self._waiting_kind[::-1]] = np.arange(len(o.waiting))[::-1]
        there = np.flatnonzero(first >= 0)
        rows = o.waiting[first[there]]
        queues = q.codes(o.jobs.claim[rows], "queue").tolist()
        self._order: dict[int, list[tuple[float, int, int]]] = {}
        for kind_, row, queue in zip(there.tolist(), rows.tolist(), queues, strict=True):
            self._order.setdefault(queue, []).append((-float(o.jobs.priority[row]), row, kind_))
        self._rest: dict[int, Iterator[int]] = {}
        self._model = node_model(o)

    # -- who is next -----------------------------------------------------------------------------------------

    def heads(self) -> list[_Head]:
        """The first job of each queue that is not set aside."""
        found = []
        for queue, entries in self._order.items():
            if entries:
                _, row, kind = min(entries)
                wanted = wanted_gpus(self.o, row)
                share = float(min(self.o.jobs.gpu_share_requested[row], 1.0))
                found.append(_Head(row, kind, queue, wanted, wanted * share))
        return found

    def _admitted(self, head: _Head) -> None:
        """The next job of the same kind takes the head's place."""
        entries = self._order[head.queue]
        entries.remove((-float(self.o.jobs.priority[head.row]), head.row, head.kind))
        if head.kind not in self._rest:
            rows = self.o.waiting[self._waiting_kind == head.kind].tolist()
            self._rest[head.kind] = iter(rows[1:])
        row = next(self._rest[head.kind], None)
        if row is not None:
            entries.append((-float(self.o.jobs.priority[row]), row, head.kind))

    def _set_aside(self, head: _Head) -> None:
        """No job of this kind can be admitted now; a strict queue waits for it."""
        self._aside.add(head.kind)
        self._park(head.kind)

    def one_cycle(self, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """The cycle of this decision, and the next one; memory: parked kinds by root, and recorded refusals.

        Kueue parks a refused workload until one of the cohort ends or is stopped, and writes the reason to its status.
        """
        o = self.o
        ended = np.setdiff1d(memory.get("ran", _NO_ROWS), o.running, assume_unique=True)
        parked = _unparked(memory.get("parked", {}), {self._root_of(row) for row in ended.tolist()})
        for kind in parked:
            self._park(kind)
        told: dict[int, float] = dict(memory.get("told", {}))
        heads = self.heads()
        self.cycle(heads, once=True)
        count = 0
        for head in heads:
            if head.row in self.proposal.given:
                told.pop(head.row, None)
                continue
            if head.kind in self._aside:
                parked[head.kind] = self._root_of(head.row)
            short = round(head.gpus - self.quota.left(head.leaf), 6) if head.leaf >= 0 else 0.0
            count += told.get(head.row) != short
            told[head.row] = short
        parked = _unparked(parked, {self._root_of(row) for row in self.victims})
        ran = np.setdiff1d(
            np.concatenate((o.running, np.array(list(self.proposal.given), dtype=np.int64))),
            np.array(list(self.victims), dtype=np.int64),
        )
        if any(self._order.values()) or self.victims:
            plan = plan.with_(revisit_s=min(plan.revisit_s, o.time_s + CYCLE_S))
        return plan.with_(told=count), {**memory, "parked": parked, "told": told, "ran": ran}

    def _root_of(self, row: int) -> int:
        """The cohort's limit at the top of a job's first quota, -1 where it has none."""
        return next((self.root[leaf] for leaf in self._quotas(row)), -1)

    def _park(self, kind: int) -> None:
        """Park a kind that was refused; a strict queue waits for it."""
        for queue, entries in self._order.items():
            if any(entry[2] == kind for entry in entries):
                strict = queue >= 0 and bool(self.o.queues.strict[queue])
                self._order[queue] = [] if strict else [entry for entry in entries if entry[2] != kind]

    # -- one cycle -------------------------------------------------------------------------------------------

    def cycle(self, heads: Sequence[_Head], once: bool = False) -> None:
        """Admit, with preemption where a queue may, or set aside each of the heads.

        once: only the first head of a cohort may stop others; the rest are retried in the next cycle.
        """
        stopping: set[int] = set()
        for head in heads:
            self._nominate(head)
        changed = False
        for head in sorted(heads, key=self._rank):
            if head.fits and self._start(head):
                self._admitted(head)
                changed = True
            elif head.fits and changed:
                continue  # another head took what it counted on: it comes again in the next cycle
            elif once and head.leaf >= 0 and self.root[head.leaf] in stopping:
                continue
            elif (victims := self._whom_to_stop(head) or self._with_fewer(head)) is not None:
                for row in victims:
                    self._stop(row, head.row)
                    stopping.add(self.root[head.leaf])
                self._start(head)
                self._admitted(head)
                changed = True
            else:
                self._note(head)
                self._set_aside(head)

    def _with_fewer(self, head: _Head) -> list[int] | None:
        """Partial admission: shrink a head as far as needed; returns the jobs to stop for it.

        None if even its fewest workers (or pods) do not fit: the head is then unchanged.
        """
        if self.o.jobs.workers_max[head.row] <= self.o.jobs.workers_min[head.row]:
            return None
        per, asked, found = int(self.o.jobs.gpus_per_worker[head.row]), head.wanted, None
        low, high = int(self.o.jobs.workers_min[head.row]), asked // per - 1
        while low <= high:
            workers = (low + high + 1) // 2
            victims = self._resized(head, workers * per)
            if victims is None:
                high = workers - 1
            else:
                found, low = (workers, victims), workers + 1
        self._resized(head, found[0] * per if found else asked)
        return found[1] if found else None

    def _resized(self, head: _Head, wanted: int) -> list[int] | None:
        """Let a head ask for this many GPUs; returns the jobs that it must stop, None where that does not help."""
        share = float(min(self.o.jobs.gpu_share_requested[head.row], 1.0))
        head.wanted, head.gpus, head.fits = wanted, wanted * share, False
        self._nominate(head)
        return [] if head.fits else self._whom_to_stop(head) or None

    def _rank(self, head: _Head) -> tuple[float, float, float, int]:
        priority = float(self.o.jobs.priority[head.row])
        if self.o.queues.numbers.get("fair_sharing") and head.leaf >= 0:
            return (self._share(head.leaf, head.gpus), -priority, float(self.o.jobs.arrival_s[head.row]), head.row)
        return (float(head.borrows), -priority, float(self.o.jobs.arrival_s[head.row]), head.row)

    def _share(self, leaf: int, more: float = 0.0) -> float:
        """Borrowed quota of a queue over its weight (Kueue's dominant resource share, for GPUs only)."""
        borrowed: float = max(0.0, self.quota.gpus[leaf] + more - self.nominal[leaf])
        return borrowed / float(self.o.queues.weight[self.owner[leaf]])

    def _quotas(self, row: int) -> list[int]:
        """Quotas of the job's queue, one per flavor, in the order declared."""
        claim = int(self.o.jobs.claim[row])
        return [k for k in self.quota.leaves(claim) if self.owner[k] >= 0] if claim >= 0 else []

    def _nodes(self, head: _Head, leaf: int) -> Bools:
        allowed = allowed_nodes(self.o, head.row)
        if leaf >= 0 and (bits := int(self.o.queues.models[leaf])) != -1:
            allowed = allowed & (self._model >= 0) & ((bits >> np.maximum(self._model, 0)) & 1 == 1)
        return allowed

    def _nominate(self, head: _Head) -> None:
        """Choose a flavor: the first in which the job fits, else the first in which it may stop others."""
        quotas = self._quotas(head.row) or [-1]
        head.leaf = next(
            (leaf for leaf in quotas if leaf >= 0 and head.gpus <= self.quota._most[leaf] + ROUNDING), quotas[0]
        )
        for leaf in quotas:
            if self._within(head, leaf) and self._room(head, leaf, ()):
                head.leaf, head.fits = leaf, True
                break
        if head.leaf >= 0:
            head.borrows = self.quota.gpus[head.leaf] + head.gpus > self.nominal[head.leaf] + ROUNDING

    def _within(self, head: _Head, leaf: int, borrow: bool = True) -> bool:
        """Whether the quota of a flavor, and every other limit of the job, allow it."""
        if leaf >= 0:
            if head.gpus > self.quota.left(leaf) + ROUNDING:
                return False
            if not borrow and self.quota.gpus[leaf] + head.gpus > self.nominal[leaf] + ROUNDING:
                return False
        claim = int(self.o.jobs.claim[head.row])
        others = [k for k in self.quota.leaves(claim) if self.owner[k] < 0] if claim >= 0 else []
        return all(self.quota.allows(k, claim, head.gpus) for k in others if self._counts(k, leaf))

    def _counts(self, limit: int, leaf: int) -> bool:
        bits = int(self.o.queues.models[limit])
        return bits == -1 or leaf < 0 or bool(bits & int(self.o.queues.models[leaf]))

    def _room(self, head: _Head, leaf: int, victims: Sequence[int]) -> bool:
        """Whether enough GPUs of the flavor's nodes are free once the victims are gone."""
        free = np.array(self.proposal.columns.free)
        for row in victims:
            np.add.at(free, self.o.gpus.node[self._held[row]], 1)
        share = float(self.o.jobs.gpu_share_requested[head.row])
        if share < 1.0 and not victims:
            return place_job(self.proposal, head.row, head.wanted, allowed=self._nodes(head, leaf)) is not None
        alike = of_one_model(self.o, head.row, self._nodes(head, leaf))
        sets = (mask for nodes in alike for mask in node_sets(self.o, head.row, nodes))
        return any(int(free[mask].sum()) >= head.wanted for mask in sets)

    def _start(self, head: _Head) -> bool:
        if not self._within(head, head.leaf):
            return False
        gpus = place_job(self.proposal, head.row, head.wanted, allowed=self._nodes(head, head.leaf))
        if gpus is None:
            return False
        share = float(min(self.o.jobs.gpu_share_requested[head.row], 1.0))
        self.quota.book(int(self.o.jobs.claim[head.row]), amounts_of(self.o, gpus, share))
        start_on(self.proposal, head.row, gpus)
        return True

    def _note(self, head: _Head) -> None:
        """Record the limit that blocks the job; none if GPUs do."""
        amounts = {
            model: head.gpus
            for model in range(self.quota.models)
            if head.leaf < 0 or int(self.o.queues.models[head.leaf]) >> model & 1
        }
        for model, gpus in list(amounts.items())[:1]:
            broken = self.quota.broken(int(self.o.jobs.claim[head.row]), {model: gpus})
            if broken >= 0:
                self.limited[head.row] = broken

    # -- preemption ------------------------------------------------------------------------------------------

    @cached_property
    def _held(self) -> dict[int, Ints]:
        """Whole GPUs of each running job."""
        job = self.o.gpus.job
        order = np.argsort(job, kind="stable")
        rows, first = np.unique(job[order], return_index=True)
        parts = np.split(order, first[1:])
        return {row: gpus for row, gpus in zip(rows.tolist(), parts, strict=True) if row >= 0}

    @cached_property
    def _running(self) -> list[tuple[int, int]]:
        """(job, its quota) of running jobs that hold whole GPUs of a queue with quota."""
        found = []
        for row in self.o.running.tolist():
            gpus = self._held.get(row)
            if gpus is None:
                continue
            model = int(self.o.gpus.model[gpus[0]])
            for leaf in self._quotas(row):
                if int(self.o.queues.models[leaf]) >> model & 1:
                    found.append((row, leaf))
        return found

    def _stop(self, row: int, by: int) -> None:
        self.quota.book(int(self.o.jobs.claim[row]), {m: -n for m, n in held_amounts(self.o, row).items()}, -1)
        self.proposal.stop((row,))
        self.victims[row] = by

    def _whom_to_stop(self, head: _Head) -> list[int]:
        """Running jobs to stop, the fewest found in this order; none if it may not stop any.

        A job larger than its queue's nominal quota stops others only if the queue may do so while it borrows.
        """
        if head.leaf < 0 or head.queue < 0:
            return []
        q, mine = self.o.queues, float(self.o.jobs.priority[head.row])
        fair = bool(q.numbers.get("fair_sharing"))
        below = -np.inf if fair else min(mine, float(q.borrows_below[head.queue]))
        may_borrow = q.reclaim[head.queue] != NEVER if fair else below > -np.inf
        if head.gpus > self.nominal[head.leaf] + ROUNDING and not may_borrow:
            return []
        candidates = self._candidates(head)
        same = [pair for pair in candidates if pair[1] == head.leaf]
        if fair or len(same) == len(candidates):
            return self._fewest(head, candidates, borrow=True)
        own = self.quota.gpus[head.leaf] < self.nominal[head.leaf] - ROUNDING
        if may_borrow:
            lower = [pair for pair in candidates if pair in same or self.o.jobs.priority[pair[0]] < below]
            return self._fewest(head, candidates if own else lower, borrow=True, below=below)
        return (self._fewest(head, candidates, borrow=False) if own else []) or self._fewest(head, same, borrow=True)

    def _candidates(self, head: _Head) -> list[tuple[int, int]]:
        """Candidates to stop: jobs of other queues first, then lower priority, then last started."""
        jobs, q, mine = self.o.jobs, self.o.queues, float(self.o.jobs.priority[head.row])
        reclaim, within = int(q.reclaim[head.queue]), int(q.within[head.queue])
        found = []
        for row, leaf in self._running:
            if row in self.victims or self.root[leaf] != self.root[head.leaf]:
                continue
            priority = float(jobs.priority[row])
            if leaf == head.leaf:
                newer = within == LOWER_OR_NEWER and priority == mine and jobs.arrival_s[row] > jobs.arrival_s[head.row]
                may = within != NEVER and (priority < mine or bool(newer))
            else:
                borrows = self.quota.gpus[leaf] > self.nominal[leaf] + ROUNDING
                may = borrows and (reclaim == ANY_PRIORITY or (reclaim != NEVER and priority < mine))
            if may:
                found.append((leaf == head.leaf, priority, -float(jobs.started_s[row]), row, leaf))
        return [(row, leaf) for *_, row, leaf in sorted(found)]

    def _fewest(
        self, head: _Head, candidates: Sequence[tuple[int, int]], *, borrow: bool, below: float = np.inf
    ) -> list[int]:
        """Stop candidates in order until the job fits, then drop unneeded ones, last first.

        below: if a job of another queue with at least this priority has to stop, the head may not borrow.
        """
        stopped: list[tuple[int, int]] = []
        fits = False
        for row, leaf in candidates:
            if leaf != head.leaf and not self._may_take(head, row, leaf):
                continue
            borrow = borrow and (leaf == head.leaf or float(self.o.jobs.priority[row]) < below)
            self._count(row, -1)
            stopped.append((row, leaf))
            fits = self._fits(head, stopped, borrow)
            if fits:
                break
        kept = list(stopped) if fits else []
        for pair in reversed(stopped[:-1] if fits else []):
            self._count(pair[0], 1)
            rest = [other for other in kept if other != pair]
            if self._fits(head, rest, borrow):
                kept = rest
            else:
                self._count(pair[0], -1)
        for row, _ in kept if fits else stopped:
            self._count(row, 1)
        return [row for row, _ in kept]

    def _may_take(self, head: _Head, row: int, leaf: int) -> bool:
        """Whether another queue still borrows; with fair sharing, also whether its share stays at least this one's."""
        if self.quota.gpus[leaf] <= self.nominal[leaf] + ROUNDING:
            return False
        if not self.o.queues.numbers.get("fair_sharing"):
            return True
        mine = self._share(head.leaf, head.gpus)
        held = math.fsum(held_amounts(self.o, row).values())
        return self._share(leaf, -held) >= mine - ROUNDING or mine < self._share(leaf) - ROUNDING

    def _count(self, row: int, sign: int) -> None:
        amounts = {model: sign * n for model, n in held_amounts(self.o, row).items()}
        self.quota.book(int(self.o.jobs.claim[row]), amounts, sign)

    def _fits(self, head: _Head, stopped: Sequence[tuple[int, int]], borrow: bool) -> bool:
        return self._within(head, head.leaf, borrow) and self._room(head, head.leaf, [row for row, _ in stopped])
