"""S4's `optimal` mode: sizes and GPU models of jobs that maximise goodput, by an integer programme.

After Sia (Jayaram Subramanya et al. 2023, section 3): each job has configurations (workers, GPU model) of
which at most one is chosen, the GPUs of each model bound all choices, and the worth of a configuration is
its goodput relative to the job's own request. Here worth is weighted by the job's priority, which grows while
it waits, and a change costs its restart. SciPy is loaded when first used.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from equipoise.policies.allocation.elastic import chosen, elastic_columns, elastic_rows, on_living_nodes
from equipoise.policies.allocation.locality import own_room, with_data
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import NodeState, Ranking, paces
from equipoise.policies.kernels.gangs import NO_ROWS, frozen, place_gang, working
from equipoise.policies.kernels.placement import WEIGHTED, WHOLE
from equipoise.policies.kernels.scaling import ElasticColumns, ScalingColumns, TableColumns, times_of
from equipoise.policies.observation import Bools, Floats, Ints, Observation

_WAITING = 200
"""Number of first waiting jobs in the programme."""
SEARCH_LIMIT = 1000
"""Branch-and-bound nodes of the programme; 160 jobs on 64 GPUs of three models need one, the most expensive."""
WALL_LIMIT_S = 120.0
"""Wall-time limit for a programme whose first relaxation does not end; far above normal times."""
_TIME_LIMIT, _OTHER = 1, 4
"""Statuses of `scipy.optimize.milp`, which has no separate one for the node limit."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Configurations of jobs: parallel arrays, one entry per configuration."""

    row: Ints  # of the jobs table, per job
    index: Ints  # position in `row`
    workers: Ints
    gpus: Ints
    model: Ints
    stays: Bools  # what the job holds now
    worth: Floats


@contextmanager
def nothing_printed() -> Iterator[None]:
    """Redirect standard output, to which HiGHS sometimes prints a line whatever its options are."""
    try:
        kept = os.dup(1)
    except OSError:  # it is closed
        yield
        return
    c, null = ctypes.CDLL(None), os.open(os.devnull, os.O_WRONLY)
    c.fflush(None)
    os.dup2(null, 1)
    try:
        yield
    finally:
        c.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(null)


def best_sizes(gpus: Ints, model: Ints, worth: Floats, index: Ints, must: Bools, room: Ints, limit_s: float) -> Bools:
    """Configurations (entries) of highest total worth: at most one per job `index`, exactly one if `must`.

    Those on GPU model m use at most room[m] GPUs in total. Raises ValueError when HiGHS has not proved an optimum
    within SEARCH_LIMIT nodes of its search (the same on every machine), or there is no solution; TimeoutError
    after `limit_s` of wall time, which also bounds presolving and the first relaxation.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    n, jobs = len(gpus), len(must)
    one = csr_array((np.ones(n), (index, np.arange(n))), shape=(jobs, n))
    held = csr_array((gpus.astype(np.float64), (model, np.arange(n))), shape=(len(room), n))
    with nothing_printed():
        solved = milp(
            -worth,
            integrality=np.ones(n, dtype=np.int64),
            bounds=Bounds(0.0, 1.0),
            constraints=[LinearConstraint(one, lb=must.astype(np.float64), ub=1.0), LinearConstraint(held, ub=room)],
            options={"node_limit": SEARCH_LIMIT, "time_limit": limit_s},
        )
    if solved.status == _TIME_LIMIT:
        raise TimeoutError(f"no optimum within {limit_s:g} s")
    if solved.status == _OTHER and "limit reached" in solved.message:
        raise ValueError(f"no optimum within {SEARCH_LIMIT} nodes of its search")
    if solved.x is None:
        raise ValueError(str(solved.message))
    return np.asarray(solved.x > 0.5)


def sizes_up_to(o: Observation, row: int) -> list[int]:
    """Candidate worker counts of an elastic job: all up to 8, 1 and 1.5 times powers of two, and both ends.

    Workers without a micro-batch each are of no use.
    """
    jobs = o.jobs
    fewest, most = int(jobs.workers_min[row]), int(jobs.workers_max[row])
    most = max(min(most, int(jobs.global_batch[row]) // max(int(jobs.micro_batch[row]), 1)), fewest)
    steps = {size << k for k in range(most.bit_length()) for size in (2, 3)}
    return sorted(size for size in {fewest, most, *range(1, 9), *steps} if fewest <= size <= most)


def choices(
    proposal: Proposal,
    nodes: NodeState,
    ranking: Ranking,
    scaling: ScalingColumns,
    table: TableColumns,
    elastic: ElasticColumns,
    waits: Ints,
    horizon_s: float,
    reluctance: float,
) -> Choices:
    """Configurations of running jobs that may change, and of waiting jobs (positions in the ranking)."""
    jobs, models = proposal.observation.jobs, len(nodes.model_speed)
    running, offset, _, now_model, cost_s, requested = elastic
    waiting = ranking.waiting[waits]
    row = np.concatenate((running, waiting))
    per = np.maximum(jobs.gpus_per_worker[row], 1)
    held = np.concatenate((np.diff(offset), np.zeros(len(waiting), dtype=np.int64)))
    requested = np.concatenate((requested, ranking.wanted[waits] // per[len(running) :]))
    entries: list[tuple[int, int, int, int]] = []
    for k, j in enumerate(row.tolist()):
        request = int(requested[k])
        if jobs.rigid[j]:
            request = int(jobs.gpus_requested[j])
            sizes = [request]
        else:
            sizes = sizes_up_to(proposal.observation, j)
            sizes = sorted({*sizes, request, *([int(held[k] // per[k])] if held[k] else [])})
        entries += [(k, size, model, request) for size in sizes for model in range(models)]
    index, workers, model, _ = (np.array(part, dtype=np.int64) for part in zip(*entries, strict=True))
    gpus = workers * np.where(jobs.rigid[row], 1, per)[index]
    here = np.concatenate((now_model, np.zeros(len(waiting), dtype=np.int64)))
    stays = (held[index] > 0) & (gpus == held[index]) & (model == here[index])
    asked = np.array([size == request for _, size, _, request in entries])
    pace = paces(proposal.observation, nodes.model_speed, row)
    speed = _relative_speed(row, held // per, here, index, workers, model, asked, jobs.rigid[row], scaling, table, pace)
    a = ranking.priority(row)
    cost = np.concatenate((cost_s, np.zeros(len(waiting))))
    over_s = np.full(len(row), horizon_s)
    fixed = np.flatnonzero(jobs.rigid[row] | (jobs.workers_max[row] <= jobs.workers_min[row]))
    cost[fixed] *= reluctance
    left_s = np.nan_to_num(jobs.service_s[row[fixed]], nan=horizon_s) / np.maximum(pace[fixed].max(axis=1), 1e-9)
    over_s[fixed] = np.clip(left_s, 1.0, horizon_s)
    left = np.maximum(1.0 - np.where(stays, 0.0, cost[index]) / over_s[index], 0.0)
    able = speed > 0.0
    return Choices(
        row, index[able], workers[able], gpus[able], model[able], stays[able], (a[index] * speed * left)[able]
    )


def _relative_speed(
    row: Ints,
    held: Ints,
    here: Ints,
    index: Ints,
    workers: Ints,
    model: Ints,
    asked: Bools,
    rigid: Bools,
    scaling: ScalingColumns,
    table: TableColumns,
    pace: Floats,
) -> Floats:
    """Speed of each configuration relative to the requested size on the best GPU model; 0: it cannot run there."""
    time_s = np.empty(len(index))
    times_of(
        frozen(row), frozen(held), frozen(here), frozen(index), frozen(workers), frozen(model), scaling, table, time_s
    )
    there = pace[index, model]
    with np.errstate(divide="ignore"):
        time_s = np.where(rigid[index], 1.0 / there, time_s)
    time_s[there <= 0.0] = np.inf
    reference = np.full(len(row), np.inf)
    np.minimum.at(reference, index[asked], time_s[asked])
    return np.asarray(reference[index] / time_s)


def _carry_out(proposal: Proposal, nodes: NodeState, elastic: ElasticColumns, c: Choices, picked: Ints) -> None:
    """Apply the chosen configurations: stops, shrinks, moves, then the others.

    A job that cannot be placed, because another job gets the missing GPUs, is unchanged.
    """
    rows, offset, gpu, now_model, *_ = elastic
    running = len(rows)
    proposal.stop(np.delete(rows, c.index[picked][c.index[picked] < running]).tolist())
    changes = [k for k in picked.tolist() if not c.stays[k]]
    fewer = [k for k in changes if c.index[k] < running]
    moving = [k for k in fewer if _fixed(proposal, int(rows[c.index[k]]))]
    proposal.stop([int(rows[c.index[k]]) for k in moving])
    for k in [*fewer, *fewer, *changes]:
        at, wanted, model = int(c.index[k]), int(c.gpus[k]), int(c.model[k])
        row = int(c.row[at])
        if row in proposal.given:
            continue
        held = gpu[offset[at] : offset[at + 1]] if at < running and k not in moving else NO_ROWS
        same = len(held) and model == now_model[at]
        if same and wanted <= len(held):
            proposal.resize(row, held, held[:wanted])
            continue
        extra = wanted - (len(held) if same else 0)
        new = placed(proposal, nodes, row, extra, model)
        if not len(new):
            continue
        if len(held):
            proposal.resize(row, held, np.concatenate((held, new)) if same else new)
            continue
        if k in moving:
            proposal.stopped.remove(row)
        proposal.start((np.array([row]), np.array([0, len(new)]), new, np.ones(len(new))))


def _fixed(proposal: Proposal, row: int) -> bool:
    jobs = proposal.observation.jobs
    return bool(jobs.rigid[row] or jobs.workers_max[row] <= jobs.workers_min[row])


def placed(proposal: Proposal, nodes: NodeState, row: int, gpus: int, model: int) -> Ints:
    """This many free GPUs of one model, close to the job's data or else on the heaviest nodes; none if too few."""
    o, need = proposal.observation, float(proposal.observation.jobs.memory_bytes[row])
    rooms = [proposal.columns]
    if with_data(o, np.array([row]))[0]:
        rooms.insert(0, own_room(proposal, row, gpus))
    for columns in rooms:
        order = columns.order
        only = frozen(order[nodes.model[order] == model])
        out = np.empty(gpus, dtype=np.int64)
        room = working(columns._replace(group=NO_ROWS, order=only))
        if place_gang(room, gpus, 1.0, need, WEIGHTED, out, False):
            return out
    return NO_ROWS


def movable(proposal: Proposal, ranking: Ranking, blocked: Bools, reluctance: float) -> Ints:
    """Rows of running jobs of fixed size, on whole GPUs (up) of one model, that may change the model or stop.

    `blocked` (per ranked running job) are excluded, and so are those that have worked less than `reluctance`
    restarts since their last start.
    """
    o, jobs = proposal.observation, proposal.observation.jobs
    rows = ranking.running[~blocked & ~proposal.touched(ranking.running)]
    rows = rows[jobs.rigid[rows] | (jobs.workers_max[rows] <= jobs.workers_min[rows])]
    rows = rows[jobs.gpu_share_requested[rows] >= WHOLE]
    worked_s = o.time_s - jobs.started_s[rows]
    rows = rows[~(worked_s < (1.0 + reluctance) * np.nan_to_num(jobs.restart_s[rows]))]
    held = np.flatnonzero((proposal.holder >= 0) & o.nodes.up[o.gpus.node])
    job, model = proposal.holder[held], o.gpus.model[held]
    count = np.bincount(job, minlength=len(jobs))
    low, high = np.full(len(jobs), len(o.gpu_models)), np.full(len(jobs), -1)
    np.minimum.at(low, job, model)
    np.maximum.at(high, job, model)
    found: Ints = rows[(count[rows] == jobs.gpus_held[rows]) & (low[rows] == high[rows])]
    return found


def one_model(proposal: Proposal, elastic: ElasticColumns) -> Bools:
    """Whether each job's GPUs are all of one model; other jobs keep their GPUs."""
    _, offset, gpu, model, *_ = elastic
    job = np.repeat(np.arange(len(model)), np.diff(offset))
    other = proposal.observation.gpus.model[gpu] != model[job]
    return np.asarray(np.bincount(job, weights=other, minlength=len(model)) == 0)


def resize_optimally(
    proposal: Proposal,
    nodes: NodeState,
    ranking: Ranking,
    scaling: ScalingColumns,
    table: TableColumns,
    blocked: Bools,
    fixed: Ints,
    patient: Ints,
    waits: bool,
    horizon_s: float,
    reluctance: float,
    limit_s: float,
) -> int:
    """Give each job the size and GPU model of the integer programme; returns the number of configurations.

    `blocked` (per ranked running job) keep their GPUs; fixed: rows of running jobs of fixed size that may change
    their GPU model, and stop if they are also `patient`; without `waits`, waiting jobs are left out and free GPUs
    are kept for one of them. Raises TimeoutError or ValueError, with nothing changed, as `best_sizes` does.
    """
    o = proposal.observation
    able = elastic_rows(o, ranking.running[~blocked & ~proposal.touched(ranking.running)])
    elastic = elastic_columns(proposal, nodes, np.concatenate((able, fixed)))
    elastic = chosen(elastic, np.flatnonzero(on_living_nodes(o, elastic) & one_model(proposal, elastic)))
    whole = o.jobs.gpu_share_requested[ranking.waiting] >= WHOLE
    first = np.flatnonzero(whole)[:_WAITING] if waits else NO_ROWS
    if not len(elastic[0]) and not len(first):
        return 0
    c = choices(proposal, nodes, ranking, scaling, table, elastic, first, horizon_s, reluctance)
    free = proposal.columns.free
    if not waits:  # what is free is reserved
        free = np.zeros_like(free)
    room = np.bincount(nodes.model, weights=free, minlength=len(nodes.model_speed))
    room += np.bincount(o.gpus.model[elastic[2]], minlength=len(room))
    must = np.arange(len(c.row)) < len(elastic[0])
    must &= ~np.isin(c.row, np.intersect1d(fixed, patient))
    picked = np.flatnonzero(best_sizes(c.gpus, c.model, c.worth, c.index, must, room, limit_s))
    _carry_out(proposal, nodes, elastic, c, picked)
    return len(c.index)
