"""Gavel: shares of time on each GPU model by a linear programme, carried out in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.ranking import gpus_wanted, held_models
from equipoise.policies.allocation.sizes import nothing_printed
from equipoise.policies.baselines.rounds import RoundBased, hand_out, job_speeds, model_counts, open_jobs, work_left
from equipoise.policies.contract import Memory, Plan
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.simplex import maximise
from equipoise.policies.observation import Bools, Floats, Ints, Observation

OBJECTIVES = ("max-min", "makespan", "finish-time", "throughput")
_FILL = 1e-3  # worth of what a job gets beyond the least: enough that no GPU idles, too little to change the least
_APART = 1e-9  # of throughput over need
_DENSE = 256  # classes of jobs up to which the simplex method's dense table takes less time than HiGHS
_HALVINGS = 12  # of the range in which the best finish-time fairness lies


def shares(speed: Floats, gpus: Floats, room: Floats, need: Floats, count: Floats) -> tuple[Floats, float]:
    """(share of time on each GPU model (classes, models), least of throughput over need) of classes of equal jobs.

    Gavel, section 4: maximise z with sum_j speed_ij X_ij >= z need_i, sum_j X_ij <= 1 and
    sum_i count_i gpus_i X_ij <= room_j, X >= 0. speed (classes, models); gpus of a job, need and jobs of each class
    (classes,); room: GPUs (models,). Raises ValueError.
    """
    n, models = speed.shape
    relative = speed / need[:, None]
    best = np.maximum(relative.max(axis=1), 1e-300)
    relative, size = relative / best.min(), n * models
    index = np.arange(size)
    job, model = index // models, index % models
    if n > _DENSE:
        worth = _FILL / count.sum() * count[:, None] * relative / (best / best.min())[:, None]
        return _sparse(relative, count * gpus, room, worth, float(best.min()))
    d = np.zeros((2 * n + models + 1, size + 2))
    d[job, index] = -relative.ravel()
    d[:n, size] = 1.0
    d[:n, -1] = _APART * np.arange(1, n + 1) / n  # else all these bounds meet in one point
    d[n + job, index] = d[n : 2 * n, -1] = 1.0
    d[2 * n + model, index] = (count * gpus)[job]
    d[2 * n : -1, -1] = room
    d[-1, :size] = (_FILL / count.sum() * count[:, None] * relative / (best / best.min())[:, None]).ravel()
    d[-1, size] = 1.0
    x, label = np.empty(size + 1), np.empty(size + 1 + len(d) - 1, dtype=np.int64)
    if maximise(d, label, np.empty(size + 2), x, 100 * len(label)) < 0:
        raise ValueError("no shares of time were found")
    part: Floats = np.clip(x[:-1].reshape(n, models), 0.0, 1.0)
    return part, float(x[-1] * best.min())


def _sparse(relative: Floats, gpus: Floats, room: Floats, worth: Floats, scale: float) -> tuple[Floats, float]:
    """The same programme of thousands of classes by HiGHS: (shares, least); gpus of a whole class (classes,)."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # SciPy is loaded when first used
    from scipy.sparse import csr_array

    n, models = relative.shape
    size, one, index = n * models, np.arange(n), np.arange(n * models)
    job, model = np.divmod(index, models)
    row = np.concatenate((job, one, n + job, 2 * n + model))
    column = np.concatenate((index, np.full(n, size), index, index))
    value = np.concatenate((-relative.ravel(), np.ones(n + size), gpus[job]))
    most = np.concatenate((np.zeros(n), np.ones(n), room))
    table = csr_array((value, (row, column)), shape=(len(most), size + 1))
    with nothing_printed():
        solved = milp(
            -np.append(worth.ravel(), 1.0), bounds=Bounds(0.0, np.inf), constraints=LinearConstraint(table, ub=most)
        )
    if solved.x is None:
        raise ValueError("no shares of time were found")
    part: Floats = np.clip(solved.x[:-1].reshape(n, models), 0.0, 1.0)
    return part, float(solved.x[-1] * scale)


@dataclass(frozen=True)
class Gavel(RoundBased):
    """Gavel-like (Narayanan et al., OSDI 2020): heterogeneity-aware shares of time, carried out in rounds.

    Throughputs by job type and GPU model give the share of time X of each job on each model (section 4):
    `max-min` maximises the least throughput over that of an equal share of the cluster, times the job's GPUs over
    its priority (4.1); `makespan` the least throughput over work left (4.2); `finish-time` minimises the worst time
    of a job here over that on its own equal part of the cluster (Themis' rho), found by halving; `throughput` the
    sum of throughputs times priorities: whole shares by descending worth of a GPU. Equal jobs are one
    class of the programme, which is solved anew only when the jobs, their speeds or priorities, or the GPUs have
    changed. In each round the pairs of job and model with the least time received for their share come first
    (section 5); GPUs left over go to the jobs that run fastest on them. Pairs of jobs on one GPU are not modelled.
    Of the authors' results `max-min` is met within 1.5 %, `makespan` differs by 25 to 35 %, `throughput` by 25 %.

    Order: share of time due over time received, on each GPU model. Preemption: at the end of each round.
    """

    name: ClassVar[str] = "gavel"
    order: ClassVar[str] = "share of time due on a GPU model over time received there"
    starvation: ClassVar[str] = "never: a job that has received no time comes first"
    fidelity: ClassVar[str] = "faithful for finish-time; like for makespan and throughput; not compared for max-min"

    honours: ClassVar[tuple[str, ...]] = (*RoundBased.honours, "job priority")

    objective: str = "max-min"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective: {self.objective!r} is not one of {', '.join(OBJECTIVES)}")
        if self.objective in ("makespan", "finish-time"):
            object.__setattr__(self, "honours", RoundBased.honours)

    def decide(self, o: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Solve for the shares of time if needed, and run the jobs furthest behind theirs."""
        rows = open_jobs(o)
        room, had_s = model_counts(o, rows), self._had(o, memory)
        speed, gpus = job_speeds(o, rows), gpus_wanted(o, rows)
        speed = np.where(gpus[:, None] <= room, speed, 0.0)
        able = speed.max(axis=1, initial=0.0) > 0
        rows, speed, gpus = rows[able], speed[able], gpus[able]
        solved, known = int(memory.get("solved", 0)), memory.get("share")
        asks = (rows, gpus, room, speed, o.jobs.priority[rows])
        same = known is not None and all(map(_equal, memory["asks"], asks))
        if not same and len(rows):
            known, solves = self._shares(o, rows, speed, gpus, room)
            solved += solves
        share = known if known is not None and len(rows) else np.zeros(speed.shape)
        age_s = np.maximum(o.time_s - o.jobs.arrival_s[rows], 0.0)[:, None] + self.round_s
        due = share * age_s / (had_s[rows] + 1e-3 * self.round_s)
        grants = _first_due(rows, due, speed, gpus, room.copy())
        memory = {"share": share, "asks": asks, "solved": solved, "had_s": had_s, "time_s": o.time_s}
        return hand_out(o, plan, self.name, grants, solved=solved), memory

    def _had(self, o: Observation, memory: Memory) -> Floats:
        """Time (s) that each job has run on each GPU model: (jobs, models)."""
        had_s = np.zeros((len(o.jobs), len(o.gpu_models)))
        old = memory.get("had_s")
        if old is not None and old.shape[1] == had_s.shape[1] and len(old) <= len(had_s):
            had_s[: len(old)] = old
            job = np.arange(len(had_s))
            model = held_models(o, job)
            job = job[model >= 0]
            since_s = np.fmax(o.jobs.started_s[job], memory["time_s"])
            had_s[job, model[job]] += np.maximum(o.time_s - since_s, 0.0)
        return had_s

    def _shares(self, o: Observation, rows: Ints, speed: Floats, gpus: Ints, room: Ints) -> tuple[Floats, int]:
        """Share of time of each job on each model, and how many programmes were solved."""
        equal = np.maximum(speed @ (room / max(room.sum(), 1)), 1e-300)
        weight = np.nan_to_num(o.jobs.priority[rows], nan=1.0)
        if self.objective == "throughput":
            return _worthiest(speed * np.maximum(weight, 1e-9)[:, None] / gpus[:, None], gpus, room), 0
        if self.objective == "max-min":
            return _by_class(speed, gpus, room, equal * np.maximum(weight, 1e-9) / gpus), 1
        left = work_left(o, rows, speed)
        if self.objective == "makespan":
            return _by_class(speed, gpus, room, left), 1
        age_s = np.maximum(o.time_s - o.jobs.arrival_s[rows], 0.0)
        alone_s = age_s + left / (equal * np.minimum(1.0, room.sum() / (len(rows) * gpus)))
        return _fairest(speed, gpus.astype(np.float64), room.astype(np.float64), left, age_s, alone_s)


def _equal(before: Floats | Ints, now: Floats | Ints) -> bool:
    """Whether two arrays are equal; unknown values (NaN) are equal."""
    if before.shape != now.shape:
        return False
    same = before == now
    return bool(same.all() or (same | ((before != before) & (now != now))).all())


def _worthiest(worth: Floats, gpus: Ints, room: Ints) -> Floats:
    """Whole shares (rows, models) by descending worth of a GPU, while there is room."""
    part, left = np.zeros(worth.shape), room.copy()
    for place in np.argsort(-worth, axis=None, kind="stable").tolist():
        job, model = divmod(place, worth.shape[1])
        if worth[job, model] > 0 and not part[job].any() and gpus[job] <= left[model]:
            part[job, model] = 1.0
            left[model] -= gpus[job]
    return part


def _classes(alike: Floats) -> tuple[Floats, Ints, Floats]:
    """(distinct rows, index of the distinct row of each row, counts), as `np.unique` of rows."""
    order = np.lexsort(alike.T[::-1])  # in a tenth of its time
    differs = np.ones(len(order), dtype=np.bool_)
    differs[1:] = (alike[order[1:]] != alike[order[:-1]]).any(axis=1)
    which = np.empty_like(order)
    which[order] = np.cumsum(differs) - 1
    return alike[order[differs]], which, np.bincount(which).astype(np.float64)


def _by_class(speed: Floats, gpus: Ints, room: Ints, need: Floats) -> Floats:
    """`shares` of each job; equal jobs are solved for as one class."""
    models = speed.shape[1]
    one, which, count = _classes(np.column_stack((speed, gpus.astype(np.float64), need)))
    return shares(one[:, :models], one[:, models], room.astype(np.float64), one[:, -1], count)[0][which]


def _fairest(
    speed: Floats, gpus: Floats, room: Floats, left: Floats, age_s: Floats, alone_s: Floats
) -> tuple[Floats, int]:
    """Shares under which the largest of (age + left / throughput) / alone_s is least: halving, a programme each.

    Of many jobs, equal ones are one class.
    """
    ones, which = np.ones(len(left)), np.arange(len(left))
    if len(left) > _DENSE:
        models = speed.shape[1]
        one, which, ones = _classes(np.column_stack((speed, gpus, left, age_s, alone_s)))
        speed, (gpus, left, age_s, alone_s) = one[:, :models], one[:, models:].T
    low = float((age_s / alone_s).max())
    part, least = shares(speed, gpus, room, left, ones)  # of the least makespan: a place to begin
    high = float(((age_s + 1.0 / max(least, 1e-300)) / alone_s).max())
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        within_s = middle * alone_s - age_s
        if (within_s <= 0).any():
            low = middle
            continue
        tried, reached = shares(speed, gpus, room, left / within_s, ones)
        if reached >= 1.0 - 1e-9:
            part, high = tried, middle
        else:
            low = middle
    return part[which], _HALVINGS + 1


def _first_due(rows: Ints, due: Floats, speed: Floats, gpus: Ints, room: Ints) -> Ints:
    """(job row, model, GPUs) of the next round: by descending `due`, then the fastest jobs on the rest.

    Equals come in order of job row and model: rows ascend.
    """
    taken = np.zeros(len(rows), dtype=np.bool_)
    parts = [_given(due, due > 1e-9, speed, gpus, room, taken)]
    if (gpus[~taken] <= room.max(initial=0)).any():
        best = np.maximum(speed.max(axis=1, initial=0.0), 1e-300)[:, None]
        parts.append(_given(speed / best, speed > 0, speed, gpus, room, taken))
    job, model = np.concatenate(parts, axis=1)
    return np.column_stack((rows[job], model, gpus[job]))


def _given(worth: Floats, able: Bools, speed: Floats, gpus: Ints, room: Ints, taken: Bools) -> Ints:
    """(2, pairs): the able pairs of job and model that get GPUs, by descending worth; see `_give`."""
    at = np.flatnonzero(able)
    at = at[np.argsort(-worth.ravel()[at], kind="stable")]
    pairs, given = np.stack(np.divmod(at, worth.shape[1])), np.zeros(len(at), dtype=np.bool_)
    _give(pairs[0], pairs[1], speed.ravel()[at], gpus, room, taken, given)
    return pairs[:, given]


@jit_in_place
def _give(job: Ints, model: Ints, speed: Floats, gpus: Ints, room: Ints, taken: Bools, given: Bools) -> None:
    """Mark the pairs that get GPUs, in order, while GPUs last; room (models,) is modified."""
    for k in range(job.size):
        i, m = job[k], model[k]
        if not taken[i] and gpus[i] <= room[m] and speed[k] > 0.0:
            taken[i] = given[k] = True
            room[m] -= gpus[i]
