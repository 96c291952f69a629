"""A queue manager as one side of the seam: `observe` fills the tables, `apply` turns a plan into changes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from equipoise.live.queue.manager import (
    ManagerError,
    Phase,
    QueueChange,
    QueuedJob,
    QueueManager,
    QueueNode,
    QueueSnapshot,
    Verb,
)
from equipoise.live.queue.options import QueueOptions
from equipoise.live.queue.record import Record
from equipoise.live.queue.rows import JobRows, Machines
from equipoise.policies.contract import Plan, Refusal
from equipoise.policies.observation import RUNNING, WAITING, Observation
from equipoise.policies.queues.ahead import order_of

_DONE_KEPT = 4096  # rows of ended jobs, before the tables are made anew
_SET_KEPT = 64  # nice values per job
_QUEUED_AGAIN_S = 120.0  # Slurm starts no requeued job before


class QueueWorld:
    """The jobs that opted in, and what may be done to them.

    touched: jobs that have a nice value or a start time of ours, in `record`. by_hand: jobs that somebody else
    changed since; they are left alone. Running jobs of others are rows as well, which end by their limits; nothing
    is done to them.
    """

    def __init__(self, manager: QueueManager, options: QueueOptions, record: Record) -> None:
        self.manager, self.options, self.record = manager, options, record
        self.rows = JobRows(options, record.event)
        self.snapshot = QueueSnapshot(math.nan, (), ())
        self.by_hand: set[int] = set()
        self.refused: list[Refusal] = []  # since the last observation
        self.behind = False  # some changes were put off
        self._expected: dict[int, tuple[int, int]] = {}  # nice before and after the last change
        self._until_s: dict[int, float] = {}  # when requeued jobs may start by themselves
        self._machines = Machines()
        self._nodes: tuple[QueueNode, ...] = ()
        self._names: list[str] = []
        self._advised: dict[tuple[str, int], int] = {}
        self._budget, self._paid_s = options.changes_per_s, time.monotonic()
        self._last_s = math.nan

    # -- see -----------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Look at queue and nodes; returns whether there is anything new to decide. Raises ManagerError."""
        before = _news(self._nodes)
        self.snapshot = snapshot = self.manager.snapshot()
        for job in snapshot.jobs:
            self.record.touched.inherit(job)
            self._watch(job)
        changed = self.rows.see(self._seen(), self._waits, snapshot.time_s)
        self._nodes = snapshot.nodes
        return changed or before != _news(snapshot.nodes)

    def _seen(self) -> list[QueuedJob]:
        """Jobs to schedule, and those of others that hold GPUs of the same nodes."""
        mine = {node.name for node in self.snapshot.nodes}
        return [j for j in self.snapshot.jobs if j.mine or (j.phase is Phase.RUNNING and mine.intersection(j.nodes))]

    def needs_new_tables(self) -> bool:
        """Whether the nodes are others than before, or most rows are of ended jobs: then all begins anew."""
        names = [node.name for node in self.snapshot.nodes]
        done = len(self.rows.table) - len(self.rows.jobs)
        return names != self._names or (done > _DONE_KEPT and done > len(self.rows.jobs))

    def make_new_tables(self) -> None:
        """Forget ended jobs, and take the nodes as they are; what policies remember of rows is void then."""
        self._names = [node.name for node in self.snapshot.nodes]
        self.record.event("nodes", nodes=[[n.name, n.gpus, n.gpu_type] for n in self.snapshot.nodes])
        self._machines = Machines()
        self.rows.forget()
        self.rows.see(self._seen(), self._waits, self.snapshot.time_s)

    def _watch(self, job: QueuedJob) -> None:
        """Detect jobs changed by others since this scheduler changed them."""
        was, expected = self._expected.get(job.id, (job.nice, job.nice))
        if job.phase is not Phase.WAITING or job.nice == expected or job.held:
            return
        del self._expected[job.id]
        if job.nice == was:  # the change was not made
            return
        self.by_hand.add(job.id)
        self.record.touched.pop(job.id, None)
        self.record.event("left alone", id=job.id, why=f"nice is {job.nice}, was set to {expected}: changed by others")

    def _leased(self, job: QueuedJob) -> bool:
        return bool(self.record.touched.get(job.id, {}).get("lease")) and not job.held

    def _waits(self, job: QueuedJob) -> bool:
        if job.id not in self.by_hand and self._leased(job):
            return True
        return not job.held and not job.limited and job.eligible_s <= self.snapshot.time_s

    # -- observe -------------------------------------------------------------------------------------------

    def observe(self) -> Observation:
        """All tables, as of the last look."""
        now_s = self.snapshot.time_s
        self.rows.refresh(now_s)
        models, gpus, nodes = self._machines.tables(
            self.snapshot.nodes,
            self.rows.jobs.values(),
            self.rows.row,
            [job for job in self.snapshot.jobs if job.phase is Phase.ENDING],
        )
        window_s = 0.0 if math.isnan(self._last_s) else now_s - self._last_s
        self._last_s = now_s
        found = Observation.of(now_s, window_s, nodes=nodes, gpus=gpus, jobs=self.rows.table, gpu_models=models)
        found.refused = tuple(self.refused)
        self.refused.clear()
        return found

    # -- apply ---------------------------------------------------------------------------------------------

    def apply(self, plan: Plan) -> list[Refusal]:
        """Do what a plan says, or write down what would be done; returns what is refused at once.

        What the manager says against it, the next observation tells.
        """
        refused: list[Refusal] = []
        changes = [*self._stops_and_starts(plan, refused), *self._places(plan)]
        self.carry_out(changes)
        return refused

    def _stops_and_starts(self, plan: Plan, refused: list[Refusal]) -> list[QueueChange]:
        found: list[QueueChange] = []
        if plan.allocation is None:
            return found
        state, allocation = self.rows.table.state, plan.allocation
        for k, row in enumerate(allocation.job.tolist()):
            job = self.rows.jobs[int(self.rows.table.id[row])]
            wanted = len(allocation.gpus_of(k))
            if state[row] == WAITING and job.id in self._until_s:
                found.append(QueueChange(Verb.RELEASE, job.id, why="the policy starts it"))
            elif state[row] == RUNNING and wanted:
                refused.append(Refusal("resize", f"job {job.id}: a running job of {self.manager.name} keeps its GPUs"))
            elif state[row] == RUNNING and not (self.options.requeue and job.requeues and job.mine):
                why = "it is not among the jobs to schedule" if not job.mine else "it was submitted with --no-requeue"
                why = why if self.options.requeue else "requeue is not allowed"
                refused.append(Refusal("stop", f"job {job.id}: {why}"))
            elif state[row] == RUNNING:
                found.append(QueueChange(Verb.REQUEUE, job.id, why="the policy stops it for others"))
        return found

    def _places(self, plan: Plan) -> list[QueueChange]:
        """Changes of nice that bring the jobs that start next to the front."""
        table, jobs = self.rows.table, self.rows.jobs
        now_s, ranked = self.snapshot.time_s, table.id[order_of(plan)].tolist()
        apart = self.by_hand | self.manager.set_directly() if ranked else self.by_hand
        free = {
            job.id: job
            for job in (jobs[int(k)] for k in table.id[table.state == WAITING])
            if job.id not in apart
            and not job.held
            and not job.limited
            and (job.eligible_s <= now_s or self._leased(job))
        }
        order = [free[job] for job in ranked if job in free]
        # A job that still has a start time ahead of it would lose its place to one behind it that has none.
        last = max((k for k, job in enumerate(order) if job.id not in self._until_s), default=0)
        early = [job.id for job in order[:last] if job.id in self._until_s]
        released = [QueueChange(Verb.RELEASE, job, why="stands before a job that may start") for job in early]
        others = [job for job in self.snapshot.jobs if job.phase is Phase.WAITING and job.id not in free]
        return [*released, *exchange(order, list(free.values()), others, self.options.across_qos)]

    def carry_out(self, changes: Sequence[QueueChange]) -> None:
        """Make the changes, in mode `act` and at the allowed rate; else record them once. Raises ManagerError."""
        if self.options.mode != "act":
            news = [c for c in changes if self._advised.get((c.verb, c.job)) != c.value]
            self._advised = {(c.verb, c.job): c.value for c in changes}
            self.record.actions(news, "would")
            return
        changes = self._within_rate(changes)
        if not changes:
            return
        for change in changes:
            self._remember(change)
        self.record.keep_touched()
        try:
            said = self.manager.carry_out(changes)
        except ManagerError:  # what was done is not known: the next look tells, and is not held against anybody
            for change in changes:
                self._expected.pop(change.job, None)
            raise
        self.record.actions(changes, "did")
        if said:
            self.record.event("said", why=said)
            self.refused.append(Refusal("changes", f"{self.manager.name}: {said}"))

    def _within_rate(self, changes: Sequence[QueueChange]) -> Sequence[QueueChange]:
        now_s, rate = time.monotonic(), self.options.changes_per_s
        self._budget = min(self._budget + (now_s - self._paid_s) * rate, max(10.0 * rate, 1.0))
        self._paid_s = now_s
        allowed = int(self._budget)
        self.behind = len(changes) > allowed
        if self.behind:
            self.record.event("put off", why=f"{len(changes) - allowed} changes: at most {rate:g} a second")
        self._budget -= min(len(changes), allowed)
        return changes[:allowed]

    def _remember(self, change: QueueChange) -> None:
        """Record what must be restored, before changing it."""
        nice = self.rows.jobs[change.job].nice
        was = self.record.touched.setdefault(change.job, {"nice": nice, "lease": False, "set": []})
        if change.verb is Verb.PRIORITY:
            self._expected[change.job] = change.was, change.value
            was["set"] = [*dict.fromkeys([*was.get("set", []), change.value])][-_SET_KEPT:]
        elif change.verb is Verb.RELEASE:
            was["lease"] = False
            self._until_s.pop(change.job, None)
        else:  # what is queued again starts by itself after two minutes
            was["lease"] = True
            self._until_s[change.job] = self.snapshot.time_s + _QUEUED_AGAIN_S

    def forget_touched(self) -> None:
        """Clear the record after everything was restored."""
        self.record.touched.clear()
        self.record.keep_touched()
        self._expected.clear()
        self._until_s.clear()

    def forget_ended(self) -> None:
        """Drop from the record what the manager no longer shows; before, a job that is over may be queued again."""
        shown = {job.id for job in self.snapshot.jobs}
        for job in [job for job in self.record.touched if job not in shown]:
            del self.record.touched[job]
        for held in (self._expected, self._until_s):
            for job in [job for job in held if job not in self.rows.jobs]:
                del held[job]
        self.record.keep_touched()


def _news(nodes: Sequence[QueueNode]) -> list[tuple[str, bool, int]]:
    """Changes of nodes that need a decision: the GPUs of a job that ended come free some time after it."""
    return [(node.name, node.up, node.gpus_used) for node in nodes]


def whom(snapshot: QueueSnapshot, options: QueueOptions) -> list[str]:
    """Lines that say which jobs will be put in another order, and at whose cost."""
    waiting = [j for j in snapshot.jobs if j.mine and j.phase is Phase.WAITING and j.gpus and not j.held]
    lines = []
    for partition in sorted({job.partition for job in waiting}):
        own = [job for job in waiting if job.partition == partition]
        qos = sorted({job.qos for job in own})
        for some in [qos] if options.across_qos else [[name] for name in qos]:
            jobs = [job for job in own if job.qos in some]
            lines.append(
                f"partition {partition}, QOS {', '.join(some)}: {len(jobs)} waiting jobs of "
                f"{len({job.user for job in jobs})} users are put in another order among themselves"
            )
        if options.across_qos and len(qos) > 1:
            lines.append(f"partition {partition}: --across-qos lets jobs of a higher QOS wait behind others")
    return lines


_MOST_NICE = 2**31 - 4


def class_of(job: QueuedJob) -> tuple[str, str]:
    """Partition and QOS: jobs that differ in one of them were put in order by the site."""
    return job.partition, job.qos


def exchange(
    order: Sequence[QueuedJob], waiting: Sequence[QueuedJob], others: Sequence[QueuedJob] = (), across_qos: bool = False
) -> list[QueueChange]:
    """Changes of nice after which the jobs of `order` come first in their class, in order; none where they do.

    order: some of `waiting`, first to start first. others: further jobs that wait. A class is a partition and a QOS,
    or with across_qos a partition: its jobs keep the priorities that they have together.
    """
    classes: dict[tuple[str, ...], list[QueuedJob]] = {}
    for job in waiting:
        classes.setdefault(class_of(job)[: 1 if across_qos else 2], []).append(job)
    found = []
    for key, members in classes.items():
        ids = {job.id for job in members}
        top = max(job.priority for job in members)
        above = (job.priority for job in (*waiting, *others) if job.priority > top and job.id not in ids)
        first = [job for job in order if class_of(job)[: len(key)] == key]
        found += _exchange(first, members, min(above, default=math.inf))
    return found


def _exchange(order: Sequence[QueuedJob], waiting: Sequence[QueuedJob], below: float) -> list[QueueChange]:
    """Changes within one class; below: what no priority may reach.

    Jobs of equal priority are told apart by up to one point each; where that would reach `below`, fewer are placed.
    """
    while order:
        first = {job.id for job in order}
        rest = [job for job in waiting if job.id not in first]
        if _in_order(order, max((job.priority for job in rest), default=-1)):
            return []
        ranked = sorted((job.priority for job in waiting), reverse=True)
        floor = ranked[len(order)] if rest else -1
        places: list[int] = []
        for value in reversed(ranked[: len(order)]):
            floor = max(value, floor + 1)
            places.append(floor)
        if floor < below:
            return _changes(order, rest, places[::-1], ranked)
        order = order[:-1]
    return []


def _changes(
    order: Sequence[QueuedJob], rest: Sequence[QueuedJob], places: Sequence[int], ranked: Sequence[int]
) -> list[QueueChange]:
    moved = list(zip(order, places, strict=True))
    above = sorted((job for job in rest if job.priority > ranked[len(order)]), key=_place)
    free = sorted((job.priority for job in order), reverse=True)[len(order) - len(above) :] if above else []
    moved += zip(above, free, strict=True)
    why = [*(f"place {k + 1}" for k in range(len(order))), *["gives way"] * len(above)]
    found = [
        QueueChange(Verb.PRIORITY, job.id, job.nice + job.priority - place, job.nice, reason)
        for (job, place), reason in zip(moved, why, strict=True)
        if job.priority != place
    ]
    return found if all(abs(change.value) <= _MOST_NICE for change in found) else []


def _place(job: QueuedJob) -> tuple[int, int]:
    """What a manager sorts waiting jobs by."""
    return -job.priority, job.id


def _in_order(order: Sequence[QueuedJob], highest: int) -> bool:
    """Whether these jobs come first already, in this order; highest: the priority of the others."""
    values = [job.priority for job in order]
    return all(a > b for a, b in zip(values, [*values[1:], highest], strict=True))
