"""The jobs of a queue as rows of a table: a row never changes its number, and ended jobs keep theirs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from equipoise.live.queue.manager import Phase, QueuedJob, QueueNode
from equipoise.live.queue.options import QueueOptions
from equipoise.policies.observation import DONE, RUNNING, WAITING, Gpus, Ints, Jobs, Nodes, resize, writable
from equipoise.policies.queues.ahead import FREE_NEXT

Tell = Callable[..., None]
"""Called as tell(event, **values)."""


class JobRows:
    """Fills the jobs table from looks at the queue and tells what happened between them.

    A job has a row once it has been eligible. One that then may not start (held by hand, kept by a limit of the
    site) counts as not there until it may.
    """

    def __init__(self, options: QueueOptions, tell: Tell) -> None:
        self.options, self.tell = options, tell
        self.table = Jobs()
        self.row: dict[int, int] = {}
        self.jobs: dict[int, QueuedJob] = {}  # by id, as last seen, all that have not ended
        self.ended = 0  # jobs whose end was seen
        self._told: set[tuple[int, float]] = set()  # job and start (0: arrival) of what was told
        self._before_gpu_s: dict[int, float] = {}  # attained before the last start, by id

    def see(self, jobs: Iterable[QueuedJob], waits: Callable[[QueuedJob], bool], now_s: float) -> bool:
        """Take in all jobs as they are now; returns whether a policy would see anything else than before.

        waits(job): whether a waiting job may start as soon as a policy says so.
        """
        seen, fresh, changed = set(), [], False
        for job in jobs:
            if job.gpus < 1:
                continue
            over = job.phase in (Phase.ENDED, Phase.ENDING)
            if over and job.id in self.jobs:
                changed |= self._end(job, now_s, job.state)
            elif not over:
                seen.add(job.id)
                state = _state(job, waits)
                if job.id in self.row:
                    changed |= self._move(job, state, now_s)
                elif state != DONE:
                    fresh.append((job, state))
                self.jobs[job.id] = job
        for gone in [job for job in self.jobs if job not in seen]:
            changed |= self._end(self.jobs[gone], now_s, "gone")
        self._append(fresh, now_s)
        return changed or bool(fresh)

    def _append(self, fresh: list[tuple[QueuedJob, int]], now_s: float) -> None:
        first = len(self.table)
        latest_s = float(self.table.arrival_s[-1]) if first else -math.inf
        came = sorted((_arrival_s(job, latest_s, now_s), job.id, job, state) for job, state in fresh)
        resize(self.table, first + len(came))
        for row, (arrival_s, _, job, state) in enumerate(came, first):
            self.row[job.id] = row
            estimate_s, source = self._estimate(job)
            started_s = job.start_s if state == RUNNING else math.nan
            for name, value in (
                ("id", job.id),
                ("arrival_s", arrival_s),
                ("state", state),
                ("rigid", True),
                ("gpus_requested", job.gpus),
                ("gpus_held", job.gpus if state == RUNNING else 0),
                ("started_s", started_s),
                ("queued_since_s", arrival_s if state == WAITING else started_s),
                ("waited_s", max(started_s - arrival_s, 0.0) if state == RUNNING else 0.0),
            ):
                self._set(row, name, value)
            self._estimated(row, estimate_s)
            if self._news(job.id, 0.0):
                self.tell(
                    "job",
                    id=job.id,
                    name=job.name,
                    user=job.user,
                    account=job.account,
                    partition=job.partition,
                    qos=job.qos,
                    limit_s=job.limit_s,
                    gpus=job.gpus,
                    submit_s=job.submit_s,
                    arrival_s=_arrival_s(job, -math.inf, now_s),
                    estimate_s=estimate_s,
                    estimate_from=source,
                    **({} if job.mine else {"mine": False}),
                )
            if state == RUNNING:
                self._tell_start(job)

    def _news(self, job: int, start_s: float) -> bool:
        if (job, start_s) in self._told:
            return False
        self._told.add((job, start_s))
        return True

    def _tell_start(self, job: QueuedJob) -> None:
        if self._news(job.id, job.start_s):
            self.tell("start", id=job.id, start_s=job.start_s, nodes=list(job.nodes))

    def forget(self) -> None:
        """Begin with an empty table; the next `see` fills it with what has not ended."""
        self.table, self.row, self.jobs = Jobs(), {}, {}

    def _estimated(self, row: int, estimate_s: float) -> None:
        """Write an estimate, which is the same on all GPUs, as a time limit is."""
        self._set(row, "duration_s", estimate_s)
        self._set(row, "service_s", estimate_s)
        self._set(row, "limit_left_s", _bound_s(estimate_s))

    def _set(self, row: int, name: str, value: Any) -> None:
        writable(self.table, name)[row] = value

    def _estimate(self, job: QueuedJob) -> tuple[float, str]:
        """(duration in s, NaN when unknown, where it comes from)."""
        given = self.options.estimates.get(job.name)
        if given is not None:
            return given, "estimates"
        return (job.limit_s, "time limit") if math.isfinite(job.limit_s) else (math.nan, "none")

    def _move(self, job: QueuedJob, state: int, now_s: float) -> bool:
        """Take over a job's new state; returns whether it is one."""
        row, before = self.row[job.id], self.jobs.get(job.id)
        was = int(self.table.state[row])
        ran_on = was == RUNNING and state == RUNNING and before is not None and job.start_s != before.start_s
        if state == was and not ran_on:
            return state == WAITING and before is not None and self._asks_anew(row, job, before)
        if was == RUNNING:  # it was queued again, or has started anew meanwhile
            self._stopped(row, job, before.start_s if before is not None else now_s, now_s)
        if state == RUNNING:
            since_s = float(self.table.queued_since_s[row])
            self._set(row, "waited_s", self.table.waited_s[row] + max(job.start_s - since_s, 0.0))
            self._set(row, "started_s", job.start_s)
            self._set(row, "gpus_held", job.gpus)
            self._tell_start(job)
        elif was == DONE:
            self._set(row, "queued_since_s", now_s)
        self._set(row, "state", state)
        return True

    def _asks_anew(self, row: int, job: QueuedJob, before: QueuedJob) -> bool:
        """Take over what its user has changed about a waiting job; returns whether anything was."""
        if (job.gpus, job.limit_s) == (before.gpus, before.limit_s):
            return False
        estimate_s, source = self._estimate(job)
        self._set(row, "gpus_requested", job.gpus)
        self._estimated(row, estimate_s)
        self.tell("changed", id=job.id, gpus=job.gpus, estimate_s=estimate_s, estimate_from=source)
        return True

    def _stopped(self, row: int, job: QueuedJob, start_s: float, now_s: float) -> None:
        """A running job is back in the queue, and begins anew unless it has a checkpoint."""
        done_s = max(now_s - start_s, 0.0)
        kept_s = done_s if self.options.restart_s is not None else 0.0
        attained_gpu_s = self._before_gpu_s.get(job.id, 0.0) + done_s * job.gpus
        self._before_gpu_s[job.id] = attained_gpu_s
        self._set(row, "attained_gpu_s", attained_gpu_s)
        self._estimated(row, max(float(self.table.duration_s[row]) - kept_s, 0.0))
        self._set(row, "queued_since_s", now_s)
        self._set(row, "gpus_held", 0)
        self.tell("requeued", id=job.id, start_s=start_s, end_s=now_s)

    def _end(self, job: QueuedJob, now_s: float, state: str) -> bool:
        """Record the end of a job; returns whether a policy had seen it."""
        del self.jobs[job.id]
        row = self.row.get(job.id)
        end_s = job.end_s if math.isfinite(job.end_s) else now_s
        if math.isfinite(job.start_s) and job.nodes:  # it may have started and ended between two looks
            self._tell_start(job)
        self.ended += job.mine
        self.tell("end", id=job.id, start_s=job.start_s, end_s=end_s, state=state)
        if row is None:
            return False
        self._set(row, "state", DONE)
        self._set(row, "gpus_held", 0)
        self._set(row, "progress", 1.0)
        return True

    def refresh(self, now_s: float) -> None:
        """Write what changes by itself while jobs run: time left, GPU time attained, what a stop would cost."""
        table, options = self.table, self.options
        running = np.flatnonzero(table.state == RUNNING)
        ran_s = np.maximum(now_s - table.started_s[running], 0.0)
        left_s = np.maximum(table.duration_s[running] - ran_s, 0.0)
        writable(table, "service_s")[running] = left_s
        writable(table, "limit_left_s")[running] = np.nan_to_num(left_s, nan=math.inf, posinf=math.inf)
        before_gpu_s = [self._before_gpu_s.get(job, 0.0) for job in table.id[running].tolist()]
        writable(table, "attained_gpu_s")[running] = before_gpu_s + ran_s * table.gpus_held[running]
        may = np.array([self._requeues(row) for row in running.tolist()], dtype=np.bool_)
        cost_s = ran_s if options.restart_s is None else np.full(len(running), options.restart_s)
        writable(table, "restart_s")[running] = np.where(may, cost_s, np.inf)

    def _requeues(self, row: int) -> bool:
        job = self.jobs.get(int(self.table.id[row]))
        return self.options.requeue and job is not None and job.requeues and job.mine


def _state(job: QueuedJob, waits: Callable[[QueuedJob], bool]) -> int:
    if job.phase is Phase.RUNNING:
        return RUNNING
    return WAITING if job.phase is Phase.WAITING and waits(job) else DONE


def _bound_s(estimate_s: float) -> float:
    """Infinite where a job has no estimate."""
    return math.inf if math.isnan(estimate_s) else estimate_s


def _arrival_s(job: QueuedJob, latest_s: float, now_s: float) -> float:
    """Arrival time in this queue; rows are in this order, so it is not before an earlier row's."""
    eligible_s = job.eligible_s if math.isfinite(job.eligible_s) and job.eligible_s <= now_s else job.submit_s
    return max(job.submit_s, eligible_s, latest_s)


FOREIGN = -2
"""Stands in `Gpus.job` for jobs that the queue does not show."""


class Machines:
    """Which GPUs jobs hold. Which of a node's GPUs, only the manager knows: a job keeps those it is given here."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, float], list[int]] = {}  # rows in `gpus` by job and start

    def tables(
        self,
        nodes: tuple[QueueNode, ...],
        jobs: Iterable[QueuedJob],
        row: Mapping[int, int],
        ending: Iterable[QueuedJob] = (),
    ) -> tuple[tuple[str, ...], Gpus, Nodes]:
        """(GPU models, GPUs, nodes) now. jobs: all that have not ended; row: of a job in the jobs table.

        ending: those that are over and still hold GPUs.
        """
        next_free = Counter(name for job in ending for name in job.nodes for _ in range(_share(job, name)))
        count = np.array([node.gpus for node in nodes], dtype=np.int64)
        first = np.cumsum(count) - count
        of_node = np.repeat(np.arange(len(nodes)), count)
        up = np.array([node.up for node in nodes], dtype=np.bool_)
        part_of = {node.name: slice(first[k], first[k] + count[k]) for k, node in enumerate(nodes)}
        holder = self._holders(len(of_node), part_of, [job for job in jobs if job.id in row], row)
        for node in nodes:
            part = holder[part_of[node.name]]
            unseen = node.gpus_used - int(np.count_nonzero(part >= 0))
            taken = np.flatnonzero(part < 0)[: max(unseen, 0)]
            part[taken] = FOREIGN
            part[taken[: next_free[node.name]]] = FREE_NEXT
        models = tuple(dict.fromkeys(node.gpu_type or "gpu" for node in nodes)) or ("gpu",)
        kind = np.array([models.index(node.gpu_type or "gpu") for node in nodes], dtype=np.int64)
        free = (holder == -1) & up[of_node]
        gpus = Gpus.of(node=of_node, model=kind[of_node], job=holder, share_free=free.astype(np.float64))
        columns: dict[str, Any] = {
            "gpus": count,
            "first_gpu": first,
            "gpus_free": np.bincount(of_node[free], minlength=len(nodes)),
            "up": up,
            "cores": [float(node.cores) for node in nodes],
            "memory_bytes": [float(node.memory_bytes) for node in nodes],
        }
        return models, gpus, Nodes.of(**columns)

    def _holders(self, size: int, part_of: Mapping[str, slice], jobs: list[QueuedJob], row: Mapping[int, int]) -> Ints:
        """The job row that holds each GPU, -1 none, (gpus,)."""
        holder = np.full(size, -1, dtype=np.int64)
        running = {(job.id, job.start_s): job for job in jobs if job.phase is Phase.RUNNING}
        self._held = {key: gpus for key, gpus in self._held.items() if key in running}
        for (job_id, _), gpus in self._held.items():
            holder[gpus] = row[job_id]
        for key, job in running.items():
            if key not in self._held:
                self._held[key] = []
                places = {name: part_of[name] for name in job.nodes if name in part_of}
                for name, part in places.items():
                    taken = part.start + np.flatnonzero(holder[part] == -1)[: _share(job, name)]
                    holder[taken] = row[job.id]
                    self._held[key] += taken.tolist()
        return holder


def _share(job: QueuedJob, name: str) -> int:
    """GPUs that a job holds on one of its nodes, dealt evenly: the first nodes have one more."""
    return job.gpus // len(job.nodes) + (job.nodes.index(name) < job.gpus % len(job.nodes))
