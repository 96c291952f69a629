"""S4's view of nodes and jobs: S411 state of nodes, S412 priority of jobs, and the ratios R_ij of S422."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipoise.policies.contract import Memory
from equipoise.policies.kernels.allocation import (
    ClaimColumns,
    contention,
    count_enough,
    demand_by_size,
    entitlements,
    gpus_by_memory,
    lateness,
    mean_by,
    model_speeds,
    priorities,
    remote_share,
)
from equipoise.policies.kernels.gangs import frozen
from equipoise.policies.kernels.placement import WHOLE
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.quotas.limits import Quota

RANKED = 2048
"""Number of waiting jobs that are ranked; the others follow unranked."""
UNKNOWN_S = 3600.0
"""Time of a job that has no estimate."""
_RESPONSE = 4.0  # weight of the response ratio in A
_DEMAND = 0.1  # exponent of data and compute demand in A
_LEAD_S = 360000.0  # initial waiting time of every job: larger values favour short jobs
_PATIENCE_S = 86400.0  # waiting time that adds 1 to A
MEMORY_S = 600.0
"""Half-life of the measurements of a node, or of an exchange, that is idle now."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """S411, per node."""

    model: Ints
    efficiency: Floats  # share of time its GPUs were busy; NaN unknown
    speed: Floats  # relative to the fastest GPU model
    model_speed: Floats  # per GPU model
    ratio: Floats  # measured speed over that of its GPU model
    seen_s: Floats  # when it was last measured

    def values(self) -> dict[str, Any]:
        """Values for the reason of the plan."""
        finite = self.efficiency[np.isfinite(self.efficiency)]
        return {
            "s411_efficiency": float(finite.mean()) if len(finite) else np.nan,
            "s411_slowest_node": int(self.speed.argmin()) if len(self.speed) else -1,
            "s411_slowest_speed": float(self.speed.min()) if len(self.speed) else np.nan,
        }


def node_state(o: Observation, memory: Memory, *, measured: bool = True) -> NodeState:
    """Efficiency and speed of each node; what was measured of one without workers fades to its GPU model's speed.

    A node that was never measured counts as the median of the measured ones with its GPU model. `measured`: use
    measured speeds; else the speed is that of the GPU model.
    """
    nodes, gpus, speeds = o.nodes, o.gpus, o.speeds
    models = max(len(o.gpu_models), 1)
    model = np.zeros(len(nodes), dtype=np.int64)
    if len(gpus) and models > 1:
        model = gpus.model[_between(nodes.first_gpu, 0, len(gpus) - 1)]
        model = _between(model, 0, models - 1)
    model_speed = np.full(models, np.nan)
    if len(speeds):
        model_speed, count = np.zeros(models), np.zeros(models, dtype=np.int64)
        first, best = np.full(len(o.jobs), -1, dtype=np.int64), np.zeros(len(o.jobs))
        model_speeds(speeds.job, speeds.gpu_model, speeds.gpus, speeds.samples_per_s, first, best, model_speed, count)
    ratio = np.ones(len(nodes))
    seen_s = _last_measured_s(o, memory)
    if measured and not np.isnan(nodes.speed_ratio).all():
        ratio = 1.0 + (nodes.speed_ratio - 1.0) * 0.5 ** (np.maximum(o.time_s - seen_s, 0.0) / MEMORY_S)
        for m in range(models):
            mine = ratio[(model == m) & ~np.isnan(ratio)]
            ratio[(model == m) & np.isnan(ratio)] = min(float(np.median(mine)), 1.0) if len(mine) else 1.0
    speed: Floats = np.where(np.isnan(model_speed), 1.0, model_speed)[model] * ratio
    efficiency = np.full(len(nodes), np.nan)
    if len(gpus) and np.isfinite(gpus.sm_active_ratio).any():
        efficiency = _mean_by(gpus.node, gpus.sm_active_ratio, len(nodes))
    return NodeState(model, efficiency, speed, model_speed, ratio, seen_s)


def _last_measured_s(o: Observation, memory: Memory) -> Floats:
    """Time (s) at which a worker last ran on each node; now where none is known to have."""
    seen_s = np.full(len(o.nodes), o.time_s)
    old_s = memory.get("node_seen_s")
    if old_s is not None and len(old_s) == len(o.nodes):
        seen_s = old_s.copy()
        seen_s[o.workers.node] = o.time_s
    return seen_s


def _between(value: Ints, least: Ints | int, most: Ints | int) -> Ints:
    """As `np.clip`, in half the time for a thousand values."""
    found: Ints = np.minimum(np.maximum(value, least), most)
    return found


def _mean_by(index: Ints, value: Floats, size: int) -> Floats:
    mean = np.empty(size)
    mean_by(index, frozen(value), mean, np.empty(size, dtype=np.int64))
    return mean


@dataclass(frozen=True, slots=True)
class Patience:
    """A job is overdue when its total wait is longer than min(after_s + slowdown * duration, longest_s)."""

    after_s: float
    slowdown: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """S412 and S422: the first waiting jobs in order, running jobs ascending, and weights of nodes."""

    waiting: Ints
    waiting_a: Floats
    ratio: Floats  # sum_j R_ij over the GPUs asked for, of `waiting`
    wanted: Ints  # GPUs asked for, of `waiting`
    running: Ints
    running_a: Floats
    overdue: Ints  # waiting jobs that are overdue, the longest first; not only of `waiting`
    weight: Floats  # per node: speed over contention, so that R_ij = A_i * min(wanted_i, free_j) * weight_j

    def priority(self, rows: Ints) -> Floats:
        """A of ranked jobs, by row."""
        known, a = (np.concatenate((self.running, self.waiting)), np.concatenate((self.running_a, self.waiting_a)))
        order = np.argsort(known, kind="stable")
        return np.asarray(a[order[np.searchsorted(known[order], rows)]])


def gpus_wanted(o: Observation, rows: Ints) -> Ints:
    """GPUs that jobs get when they start: the request of a rigid job, else the nearest number of whole workers."""
    jobs = o.jobs
    asked, rigid = jobs.gpus_requested[rows], jobs.rigid[rows]
    if rigid.all():
        return asked
    per = np.maximum(jobs.gpus_per_worker[rows], 1)
    workers = _between(asked // per, jobs.workers_min[rows], jobs.workers_max[rows])
    return np.where(rigid, asked, workers * per).astype(np.int64)


def paces(o: Observation, model_speed: Floats, rows: Ints) -> Floats:
    """Seconds of a job's estimated time done per second on each GPU model: (rows, models); 0: it cannot run there.

    This is the listed speed of a rigid job; that of a training job is relative to the first model it is listed on,
    for which its time is estimated, exchanges included. Without listed speeds: `model_speed` (models,).
    """
    jobs, speeds, models = o.jobs, o.speeds, len(o.gpu_models)
    pace = np.tile(np.nan_to_num(model_speed, nan=1.0), (len(rows), 1))
    place = np.full(len(jobs), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    asked = np.zeros(len(jobs), dtype=np.int64)
    asked[rows] = gpus_wanted(o, rows)
    here = np.flatnonzero((place[speeds.job] >= 0) & (speeds.gpus == asked[speeds.job]))
    here = here[speeds.samples_per_s[here] > 0.0]
    job, at = speeds.job[here], place[speeds.job[here]]
    every = np.maximum(jobs.sync_interval[job], 1) * np.maximum(jobs.global_batch[job], 1)
    exchange_s = np.where(jobs.rigid[job], 0.0, np.nan_to_num(speeds.exchange_s[here]) / every)
    own = np.zeros((len(rows), models))
    own[at, speeds.gpu_model[here]] = 1.0 / (1.0 / speeds.samples_per_s[here] + exchange_s)
    listed = own.any(axis=1)
    reference = own[np.arange(len(rows)), (own > 0.0).argmax(axis=1)] if models else np.ones(len(rows))
    reference = np.where(jobs.rigid[rows], 1.0, reference)
    pace[listed] = own[listed] / reference[listed, None]
    return pace * _fits(o, rows)


def held_models(o: Observation, rows: Ints) -> Ints:
    """GPU model of one of the whole GPUs of each job row; -1 none."""
    model = np.full(len(o.jobs), -1, dtype=np.int64)
    held = np.flatnonzero(o.gpus.job >= 0)
    model[o.gpus.job[held]] = o.gpus.model[held]
    found: Ints = model[rows]
    return found


def _own_service_s(o: Observation, model_speed: Floats, rows: Ints) -> Floats:
    """Remaining time (s) of jobs (rows) where they run, or where they are fastest; by row of the jobs table."""
    pace, now = paces(o, model_speed, rows), held_models(o, rows)
    speed = np.where(now < 0, pace.max(axis=1), pace[np.arange(len(rows)), now])
    service_s = o.jobs.service_s.copy()
    service_s[rows] /= np.where(speed > 0.0, speed, 1.0)
    return frozen(service_s)


def _fits(o: Observation, rows: Ints) -> Bools:
    """Whether each job may run on each GPU model, and some of its GPUs have the memory: (rows, models)."""
    most = np.full(len(o.gpu_models), -np.inf)
    np.maximum.at(most, o.gpus.model, np.nan_to_num(o.gpus.memory_bytes, nan=np.inf))
    bit = np.left_shift(1, np.arange(len(most)))
    fits = ~(most < np.nan_to_num(o.jobs.memory_bytes[rows])[:, None])
    return np.asarray(fits & ((o.jobs.gpu_types[rows][:, None] & bit) != 0))


def rank(
    o: Observation,
    nodes: NodeState,
    patience: Patience,
    reserved: int = -1,
    *,
    arrival_order: bool = False,
    use: bool = True,
) -> Ranking:
    """Priorities of all jobs, the contention on each node, and the waiting jobs by their ratio.

    The job row `reserved`, if still waiting, comes after the overdue ones. `arrival_order`: priorities are the time
    since arrival; without `use` the contention is not computed.
    """
    jobs = o.jobs
    running = np.sort(o.running)
    rows = np.concatenate((o.waiting, running)).astype(np.int64)
    wanted = gpus_wanted(o, rows)
    fewest = np.where(jobs.rigid[rows], wanted, jobs.workers_min[rows] * jobs.gpus_per_worker[rows])
    fit = _gpus_enough(o, jobs.memory_bytes[rows]) >= fewest
    fit[len(o.waiting) :] = True
    service_s = jobs.service_s if len(o.gpu_models) < 2 else _own_service_s(o, nodes.model_speed, rows)
    claims = (jobs.state, service_s, jobs.duration_s, jobs.queued_since_s, jobs.waited_s)
    a, n, worth = np.empty(len(rows)), len(o.waiting), _worth(o, rows, fit)
    priorities(rows, worth, claims, o.time_s, _RESPONSE, _LEAD_S, _PATIENCE_S, UNKNOWN_S, a)
    if arrival_order:
        a = np.where(fit, o.time_s - np.nan_to_num(jobs.arrival_s[rows]) + 1.0, 0.0)
    able = rows[:n][fit[:n]]
    overdue = _overdue(able, claims, o.time_s, patience)
    if reserved in able and reserved not in overdue:
        overdue = frozen(np.append(overdue, reserved))
    free = o.nodes.gpus_free
    wanted, waiting_a, running_a = wanted[:n], a[:n], a[n:]
    by_size, ratio = np.empty(int(max(free.max(initial=0), 0)) + 1), np.empty(n)
    demand_by_size(wanted, waiting_a, by_size)
    weight = nodes.speed.copy()
    if use:
        weight /= np.maximum(_contention(o, by_size, running, running_a), 1e-300)
    weight = np.where(o.nodes.up, np.minimum(weight, 1e300), 0.0)
    entitlements(wanted, waiting_a, free, weight, np.empty(len(by_size)), ratio)
    ratio = ratio / np.maximum(wanted, 1)
    order = _first(ratio, waiting_a, o.waiting)
    return Ranking(o.waiting[order], waiting_a[order], ratio[order], wanted[order], running, running_a, overdue, weight)


def _worth(o: Observation, rows: Ints, fit: Bools) -> Floats:
    """The part of A_i that is constant while a job waits: p_i * ((D_i/D) * (C_i/C))^0.1 * M / (M + m_i).

    p is priority, D and C data and compute demand over their geometric means (a job without one counts as the mean),
    M the memory of a GPU and m the job's need. 0: it fits on no GPU.
    """
    jobs = o.jobs
    worth = np.where(np.isnan(jobs.priority[rows]), 1.0, jobs.priority[rows])
    data, compute = jobs.data_demand_bytes[rows], jobs.compute_demand_flops[rows]
    if (data > 0.0).any() or (compute > 0.0).any():
        worth *= (_over_mean(data) * _over_mean(compute)) ** _DEMAND
    need = jobs.memory_bytes[rows]
    if need.any():
        need = np.nan_to_num(need)
    if need.any() and np.isfinite(o.gpus.memory_bytes).any():
        available = float(np.nanmean(o.gpus.memory_bytes))
        worth *= available / (available + need)
    return np.where(fit, worth, 0.0)


def _over_mean(demand: Floats) -> Floats:
    """Each demand over the geometric mean of the known ones; 1 where unknown."""
    known = demand > 0.0
    ratio = np.ones(len(demand))
    if known.any():
        ratio[known] = demand[known] / np.exp(np.log(demand[known]).mean())
    return ratio


def _overdue(rows: Ints, claims: ClaimColumns, now_s: float, patience: Patience) -> Ints:
    """The overdue jobs among some waiting ones, the longest overdue first, then ascending."""
    late_s = np.empty(len(rows))
    lateness(rows, claims, now_s, patience.after_s, patience.slowdown, patience.longest_s, UNKNOWN_S, late_s)
    late = np.flatnonzero(late_s > 0.0)
    return frozen(rows[late[np.lexsort((rows[late], -late_s[late]))]])


def without_saved(o: Observation, patience: Patience) -> tuple[Observation, Bools]:
    """(the observation, jobs that may not grow) that leaves room under the limits of overdue jobs.

    A job that a limit holds back has no reservation. Once it is overdue, waiting jobs that count under that limit are
    hidden, unless they end before running ones have left room for it or are overdue for longer, and running ones may
    not grow.
    """
    jobs, held, q = o.jobs, o.held, o.queues
    saved, hidden = np.zeros(len(jobs), dtype=np.bool_), np.zeros(len(jobs), dtype=np.bool_)
    if not len(held) or not len(q.claims):
        return o, saved
    late_s = np.full(len(jobs), -np.inf)
    for rows in (held, o.waiting):
        waited_s = np.nan_to_num(jobs.waited_s[rows]) + np.maximum(o.time_s - jobs.queued_since_s[rows], 0.0)
        duration_s = np.nan_to_num(jobs.duration_s[rows], nan=UNKNOWN_S)
        late_s[rows] = waited_s - np.minimum(patience.after_s + patience.slowdown * duration_s, patience.longest_s)
    late = held[(late_s[held] > 0.0) & (jobs.claim[held] >= 0)]
    quota = Quota.now(o) if len(late) else None
    for row, gpus in zip(late.tolist(), gpus_wanted(o, late).tolist(), strict=True):
        assert quota is not None
        need = gpus * min(float(jobs.gpu_share_requested[row]), 1.0)
        limit = quota.first(int(jobs.claim[row]), need)
        if limit < 0:  # other nodes than it may use are free under its limits
            continue
        under = np.array([any(limit in quota.chain(k) for k in quota.leaves(c)) for c in range(len(q.claims))])
        mine = (jobs.claim >= 0) & under[jobs.claim]
        runs = o.running[mine[o.running]]
        runs = runs[np.argsort(jobs.service_s[runs], kind="stable")]
        left = quota.left(limit) + np.cumsum((jobs.gpus_held * np.minimum(jobs.gpu_share_requested, 1.0))[runs])
        enough = (left >= need) & (quota.left_jobs(limit) + np.arange(1, len(runs) + 1) >= 1)
        free_s = jobs.service_s[runs[int(enough.argmax())]] if enough.any() else 0.0
        saved |= mine
        hidden |= mine & ~(jobs.service_s <= free_s) & (late_s <= late_s[row])
    return (replace(o, waiting=o.waiting[~hidden[o.waiting]]) if hidden.any() else o), saved


def _contention(o: Observation, by_size: Floats, running: Ints, running_a: Floats) -> Floats:
    workers, jobs = o.workers, o.jobs
    job_a = np.zeros(len(jobs))
    job_a[running] = running_a
    share = np.where(workers.gpu_share >= WHOLE, 1.0, workers.gpu_share)
    held = share * jobs.gpus_per_worker[workers.job].astype(np.float64)
    delay, sums = np.empty(len(workers)), np.empty(len(o.nodes))
    remote_share(o.shards.worker, o.shards.bytes, o.shards.local, np.empty(len(workers)), delay)
    trains = np.zeros(len(jobs), dtype=np.bool_)
    trains[workers.job] = True
    contention(
        o.nodes.gpus,
        o.nodes.gpus_free,
        by_size,
        o.gpus.node,
        o.gpus.job,
        job_a,
        trains,
        workers.job,
        workers.node,
        held,
        delay,
        sums,
    )
    return sums


def _gpus_enough(o: Observation, need_bytes: Floats) -> Ints:
    """For each need, how many GPUs that are up have that much memory; unknown memory is enough."""
    if not need_bytes.max(initial=0.0) > np.fmin.reduce(o.gpus.memory_bytes, initial=np.inf):
        return np.full(len(need_bytes), o.nodes.gpus[o.nodes.up].sum(), dtype=np.int64)  # all have it
    kind, count = np.empty(len(o.gpus)), np.empty(len(o.gpus), dtype=np.int64)
    n = gpus_by_memory(o.gpus.memory_bytes, o.gpus.node, o.nodes.up, kind, count)
    enough = np.empty(len(need_bytes), dtype=np.int64)
    count_enough(need_bytes, kind[:n], count[:n], enough)
    return enough


def _first(ratio: Floats, a: Floats, row: Ints) -> Ints:
    """Positions of the first jobs by descending ratio, then A, then ascending row; without A, jobs are left out."""
    able = np.flatnonzero(a > 0.0)
    if len(able) > RANKED:
        key = ratio[able] if (ratio > 0.0).any() else a[able]
        able = able[np.argpartition(-key, RANKED)[:RANKED]]
    return able[np.lexsort((row[able], -a[able], -ratio[able]))]
