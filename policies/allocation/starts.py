"""S422 for waiting jobs: the GPUs that let a job end soonest, by one estimate of its time on them.

The estimate counts the GPU model, nodes that were measured slow, the time to fetch data that is stored elsewhere and
to prepare it on the hosts, and for an elastic job its number of workers. Where nothing is quicker by more than `SURE`,
the job gets the GPUs that EASY would take, or else the fewest and slowest, on the fewest nodes and in one rack, so that
fast GPUs and whole nodes stay free. A job waits for GPUs of another model where that is surely quicker.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.policies.allocation.elastic import elastic_columns, elastic_rows, held_gpus, slower, slowest_models
from equipoise.policies.allocation.locality import fetch_s_of, input_s, slower_apart, with_data
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import NodeState, gpus_wanted, paces
from equipoise.policies.allocation.widths import sizes_between
from equipoise.policies.kernels.gangs import NO_ROWS, RequestColumns, frozen, request_columns, start_in_order
from equipoise.policies.kernels.placement import ANY, WEIGHTED, WHOLE
from equipoise.policies.kernels.scaling import Scaling, ScalingColumns, TableColumns, times_of
from equipoise.policies.observation import RUNNING, Bools, Floats, Ints
from equipoise.policies.quotas.limits import allowed_nodes

_OWN = 16  # first jobs that are placed each for itself...
_OWN_NODES = 20_000  # ... and fewer on more nodes than this over their number
SURE = 0.1  # relative difference between two estimates that counts
_WAIT = 0.7  # of the time with the GPUs that are free, below which a job waits for others


class GpuChoice(NamedTuple):
    """GPUs on which a job could start: its time there (s), their number, their worth, and their nodes.

    alone_s is the time without what its exchanges lose between these nodes, which a job does not wait to avoid; easy:
    EASY would take these.
    """

    time_s: float
    alone_s: float
    gpus: int
    worth: float
    nodes: Ints
    easy: bool


class Starts:
    """Starts jobs of one decision."""

    def __init__(self, proposal: Proposal, nodes: NodeState, scaling: ScalingColumns, table: TableColumns) -> None:
        self.proposal, self.nodes, self.scaling, self.table = proposal, nodes, scaling, table
        self.intervals = Scaling(*scaling).sync_interval
        o = proposal.observation
        self.worth: Floats = np.where(np.isnan(nodes.model_speed), 1.0, nodes.model_speed)[nodes.model]
        self.ratio: Floats = np.maximum(nodes.ratio, 1e-3)
        self.models = len(nodes.model_speed)
        self._frees: Floats | None = None
        self.racks = len(o.nodes) > 0 and bool((o.nodes.rack != o.nodes.rack[0]).any())

    def start(self, queue: Ints, strict: bool, requests: RequestColumns, may_wait: bool) -> int:
        """Start jobs of `queue` (rows) in order; `strict`: up to the first that cannot. Returns the number started."""
        own = self._own(queue)
        if not own.any():
            return len(self._bulk(queue, strict, requests))
        begun, at = 0, 0
        while at < len(queue):
            end = at + 1 if own[at] else at + int(np.argmax(np.append(own[at:], True)))
            part = frozen(queue[at:end])
            started = (
                self._one(int(part[0]), requests, may_wait) if own[at] else len(self._bulk(part, strict, requests))
            )
            begun += started
            if strict and started < len(part):
                break
            at = end
        return begun

    def _bulk(self, part: Ints, strict: bool, requests: RequestColumns) -> Ints:
        grants, _ = start_in_order(frozen(part), strict, WEIGHTED, requests, self.proposal.columns)
        return self.proposal.start(grants)

    def _own(self, queue: Ints) -> Bools:
        """Whether each job is placed for itself: the first few, of those for which places can differ."""
        o = self.proposal.observation
        own = np.ones(len(queue), dtype=np.bool_)
        if self.models < 2 and (self.ratio == 1.0).all():
            own = with_data(o, queue) | np.isin(queue, elastic_rows(o, queue))
            if self.racks:  # a rigid job's exchanges are not known
                own |= ~o.jobs.rigid[queue]
        own[np.flatnonzero(own)[max(min(_OWN, _OWN_NODES // max(len(o.nodes), 1)), 1) :]] = False
        return np.asarray(own)

    def _one(self, row: int, requests: RequestColumns, may_wait: bool) -> int:
        """Start a job where it ends soonest; 1, or 0 where it cannot or is to wait."""
        proposal, o = self.proposal, self.proposal.observation
        found = self.options(row, requests)
        if not found:
            return 0
        best_s = min(option.time_s for option in found)
        later_s, gpus = self._later(row) if may_wait else (np.inf, NO_ROWS)
        waited_s = max(o.time_s - float(o.jobs.queued_since_s[row]), 0.0)
        if later_s + waited_s < _WAIT * min(option.alone_s for option in found):
            assert self._frees is not None
            self._frees[gpus] = later_s
            proposal.leave(np.array([row]))
            return 0
        alike = [option for option in found if option.time_s <= (1.0 + SURE) * best_s]
        asked, alone = int(gpus_wanted(o, np.array([row]))[0]), self._alone()

        def rank(k: GpuChoice) -> tuple[int, bool, bool, float, int, float]:
            """One rack comes first, then what EASY would take, then what leaves most to others."""
            racks = len(np.unique(o.nodes.rack[k.nodes])) if self.racks else 1
            return racks, not k.easy, alone and k.gpus != asked, k.worth, len(k.nodes), k.time_s

        for option in sorted(alike, key=rank):
            sizes = o.jobs.gpus_requested.copy()
            sizes[row] = option.gpus
            here = np.zeros(len(o.nodes), dtype=np.bool_)
            here[option.nodes] = True
            only = proposal.columns._replace(order=frozen(option.nodes), up=frozen(proposal.columns.up & here))
            own = (requests[0], frozen(sizes), *requests[2:])
            grants, _ = start_in_order(np.array([row]), True, WEIGHTED, own, only)
            if len(proposal.start(grants)):
                if self._frees is not None:
                    self._frees[grants[2]] = option.time_s
                return 1
        return len(self._bulk(np.array([row]), True, requests))

    def options(self, row: int, requests: RequestColumns) -> list[GpuChoice]:
        """GPUs on which a job could start now: those of EASY first, then of each model, or else of several."""
        o, jobs, nodes = self.proposal.observation, self.proposal.observation.jobs, self.nodes
        free, share = self.proposal.columns.free, float(jobs.gpu_share_requested[row])
        if share < WHOLE:
            free = np.bincount(o.gpus.node, self.proposal.columns.room >= share - 1e-9, len(free)).astype(np.int64)
        usable = np.where(allowed_nodes(o, row) & o.nodes.up, free, 0)
        per = 1 if jobs.rigid[row] else max(int(jobs.gpus_per_worker[row]), 1)
        easy = start_in_order(np.array([row]), True, ANY, requests, self.proposal.columns)[0][2]
        sizes = self._sizes(row, int(requests[1][row]), per)
        times, found = self._times_s(row, [*sizes, len(easy)], per), list[GpuChoice]()
        if len(easy):
            found = self._on(row, free, [len(easy)], times[-1:], np.unique(o.gpus.node[easy]), True)
        for m in range(self.models):
            found += self._on(row, usable, sizes, times, np.flatnonzero((usable > 0) & (nodes.model == m)))
        if len(found) > 1 and len(set(nodes.model[found[0].nodes])) > 1:  # at the pace of the slowest
            rest = found[1:]
            return found if found[0].time_s < _WAIT * min(k.time_s for k in rest) else rest
        if not found and self.models > 1 and not jobs.one_gpu_model[row]:
            found += self._on(row, usable, sizes, times, np.flatnonzero(usable > 0))
        return found

    def _sizes(self, row: int, gpus: int, per: int) -> list[int]:
        """Numbers of GPUs to start with: the request, or fewer for an elastic job, or more where no other waits."""
        o, jobs = self.proposal.observation, self.proposal.observation.jobs
        if not len(elastic_rows(o, np.array([row]))):
            return [int(gpus_wanted(o, np.array([row]))[0])]
        asked = min(max(gpus // per, int(jobs.workers_min[row])), int(jobs.workers_max[row]))
        most = int(jobs.workers_max[row]) if self._alone() else asked
        return [size * per for size in sizes_between(int(jobs.workers_min[row]), most)]

    def _alone(self) -> bool:
        """Whether no other job waits."""
        waiting = self.proposal.observation.waiting
        return bool(self.proposal.touched(waiting).sum() >= len(waiting) - 1)

    def _times_s(self, row: int, sizes: list[int], per: int) -> Floats:
        """Time (s) left with each number of GPUs on each GPU model; infinite where it cannot run."""
        o = self.proposal.observation
        rows, n = frozen(np.array([row])), self.models
        pace = paces(o, self.nodes.model_speed, rows)[0]
        left_s = float(np.nan_to_num(o.jobs.service_s[row], nan=3600.0))
        with np.errstate(divide="ignore"):
            times = np.tile(left_s / np.maximum(pace, 0.0), (len(sizes), 1))
        if o.jobs.rigid[row]:
            return times
        asked = int(gpus_wanted(o, rows)[0]) // per
        workers = np.repeat(np.array([*sizes, asked * per]) // per, n)
        model, zero = np.tile(np.arange(n), len(sizes) + 1), np.zeros(1, dtype=np.int64)
        step_s = np.empty(len(workers))
        times_of(rows, zero, zero, np.zeros_like(workers), workers, model, self.scaling, self.table, step_s)
        steps = step_s.reshape(-1, n)
        return np.where(np.isfinite(times), times * steps[:-1] / steps[-1], np.inf)

    def _on(
        self, row: int, free: Ints, sizes: list[int], times: Floats, some: Ints, easy: bool = False
    ) -> list[GpuChoice]:
        """Options on some nodes with these free GPUs: one rack, the fewest nodes, and the quickest."""
        o, found = self.proposal.observation, list[GpuChoice]()
        total = int(free[some].sum())
        for size, by_model in zip(sizes, times, strict=False):
            time_s = by_model[self.nodes.model[some]]
            if total < size or not time_s.max(initial=0.0) < np.inf:
                continue
            work_s = time_s / self.ratio[some]
            fetches = with_data(o, np.array([row]))[0]
            own_s = np.maximum(work_s, fetch_s_of(o, row, size, some)) if fetches else work_s
            sets = [some, _quickest(some, free, own_s, size)]
            if self.racks:
                rack = np.bincount(o.nodes.rack[some], free[some]).astype(np.int64)
                enough = np.flatnonzero(rack >= size)
                if len(enough):
                    sets.insert(0, some[o.nodes.rack[some] == enough[rack[enough].argmin()]])
            reads = self.proposal.columns.weight if o.jobs.input_bytes[row] > 0.0 else None
            for part in sets:
                chosen = _fewest(part, free[part], size, None if reads is None else reads[part])
                if any(np.array_equal(chosen, old.nodes) and old.gpus == size for old in found):
                    continue
                at, taken = np.searchsorted(some, chosen), _taken(free[chosen], size)
                alone_s = max(float(work_s[at].max()), input_s(o, row, chosen, taken))
                apart_s = float(work_s[at].max()) * self._slower(row, size, chosen)
                worth = float((taken * self.worth[chosen]).sum())
                found.append(GpuChoice(max(alone_s, apart_s), alone_s, size, worth, chosen, easy))
        return found

    def _slower(self, row: int, gpus: int, chosen: Ints) -> float:
        o = self.proposal.observation
        if o.jobs.rigid[row] or len(chosen) < 2:
            return 1.0
        return slower_apart(o, row, gpus, int(self.intervals[row]), chosen)

    def shortest_s(self, row: int) -> float:
        """Time (s) of a job on the model that is best for it."""
        o = self.proposal.observation
        pace = paces(o, self.nodes.model_speed, np.array([row]))[0].max()
        left_s = float(np.nan_to_num(o.jobs.service_s[row], nan=3600.0))
        return left_s / pace if pace > 0.0 else np.inf

    def _later(self, row: int) -> tuple[float, Ints]:
        """Time (s) until the job ends if it waits for its request on another model than those it can have, and where.

        The GPUs are those that come free first; jobs that are to wait for them before this one are counted.
        """
        o = self.proposal.observation
        if self.models < 2:
            return np.inf, NO_ROWS
        gpus = int(gpus_wanted(o, np.array([row]))[0])
        pace = paces(o, self.nodes.model_speed, np.array([row]))[0]
        own_s = float(np.nan_to_num(o.jobs.service_s[row], nan=3600.0))
        if self._frees is None:
            running = np.sort(np.concatenate((o.running, self.proposal.started())))
            left_s = takes_s_of(
                self.proposal, self.nodes, running, NO_ROWS, request_columns(o), self.scaling, self.table
            )
            ends_s = np.nan_to_num(left_s, nan=np.inf)[np.maximum(self.proposal.holder, 0)]
            ends_s = np.where(self.proposal.holder == -1, 0.0, ends_s)
            ends_s[(self.proposal.holder < -1) | ~o.nodes.up[o.gpus.node]] = np.inf
            self._frees = ends_s
        allowed = allowed_nodes(o, row)[o.gpus.node]
        best_s, best = np.inf, NO_ROWS
        for m in range(self.models):
            places = np.flatnonzero(allowed & (o.gpus.model == m))
            if not pace[m] > 0.0 or len(places) < gpus:
                continue
            soonest = places[np.argpartition(self._frees[places], gpus - 1)[:gpus]]
            free_s = float(self._frees[soonest].max())
            if free_s > 0.0 and free_s + own_s / pace[m] < best_s:  # else it can have them now
                best_s, best = free_s + own_s / pace[m], soonest
        return best_s, best


def takes_s_of(
    proposal: Proposal,
    nodes: NodeState,
    running: Ints,
    queue: Ints,
    requests: RequestColumns,
    scaling: ScalingColumns,
    table: TableColumns,
) -> Floats:
    """Time (s) that jobs will run, by row of the jobs table, with their present GPUs or those at start.

    Restart costs are included. Waiting jobs count with the slowest GPU model that they may get.
    """
    o, jobs = proposal.observation, proposal.observation.jobs
    takes_s = jobs.service_s.copy()
    measured_s = jobs.remaining_samples[running] / np.maximum(jobs.goodput_samples_per_s[running], 1e-9)
    rows = np.concatenate((running, queue)).astype(np.int64)
    ran_s = np.where(jobs.state[rows] == RUNNING, np.nan_to_num(o.time_s - jobs.started_s[rows]), 0.0)
    again = jobs.attained_gpu_s[rows] > jobs.gpus_held[rows] * ran_s * (1.0 + 1e-9)
    restart_s = np.nan_to_num(jobs.restart_s[rows])
    begins_s = np.where(again, np.maximum(restart_s - ran_s, 0.0), 0.0)
    begins_s = np.where(np.isin(rows, proposal.resized()), restart_s, begins_s)  # moved by this decision
    if len(o.gpu_models) > 1:
        pace = paces(o, nodes.model_speed, rows)
        slowest = np.where(pace > 0.0, pace, np.inf).min(axis=1)
        offset, gpu = held_gpus(proposal.holder, running)
        own = pace[np.arange(len(running)), slowest_models(o, nodes, offset, gpu)]
        slowest[: len(running)] = np.where((np.diff(offset) > 0) & (own > 0.0), own, slowest[: len(running)])
        by_limit = takes_s[rows] >= jobs.limit_left_s[rows]  # a limit is the same on all GPUs
        takes_s[rows] /= np.where(np.isfinite(slowest) & ~by_limit, slowest, 1.0)
        takes_s[rows] = np.minimum(takes_s[rows], jobs.limit_left_s[rows])
    held, waits = elastic_rows(o, running), elastic_rows(o, queue)
    if len(held) or len(waits):
        columns = elastic_columns(proposal, nodes, held)
        takes_s[held] *= slower(columns, np.diff(columns[1]), o, scaling, table)
        columns = elastic_columns(proposal, nodes, waits)
        takes_s[waits] *= slower(columns, requests[1][waits], o, scaling, table)
    takes_s[running] = np.fmax(takes_s[running], measured_s)
    takes_s[rows] += begins_s
    return takes_s


def _quickest(nodes: Ints, free: Ints, own_s: Floats, gpus: int) -> Ints:
    """The nodes on which a job takes least that have enough free GPUs in sum, with those like the last of them."""
    order = np.argsort(own_s, kind="stable")
    enough = int(np.searchsorted(np.cumsum(free[nodes[order]]), gpus))
    return np.asarray(nodes[own_s <= (1.0 + SURE) * own_s[order[min(enough, len(order) - 1)]]])


def _taken(free: Ints, gpus: int) -> Ints:
    """GPUs that a job takes of each node with these free ones, from the emptiest on."""
    order = np.argsort(-free, kind="stable")
    taken = np.zeros(len(free), dtype=np.int64)
    taken[order] = np.diff(np.minimum(np.cumsum(free[order]), gpus), prepend=0)
    return taken


def _fewest(nodes: Ints, free: Ints, gpus: int, weight: Floats | None = None) -> Ints:
    """The fewest of these nodes with enough free GPUs, and of the last the fullest that has enough, or the heaviest.

    weight: of nodes, for a job that reads its data and so shares their hosts.
    """
    value = -free if weight is None else weight
    enough = np.flatnonzero(free >= gpus)
    if len(enough):
        return np.asarray(nodes[enough[[value[enough].argmax()]]])
    order = np.lexsort((np.arange(len(free)), -value, -free))
    last = int(np.searchsorted(np.cumsum(free[order]), gpus))
    missing = gpus - int(free[order[:last]].sum())
    rest = order[last:]
    fit = rest[free[rest] >= missing]
    chosen = np.append(order[:last], fit[[value[fit].argmax()]] if len(fit) else rest[:1])
    return np.sort(nodes[chosen])
