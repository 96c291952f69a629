"""S422 for several GPU models: assigns jobs to models by each job's own speed on them.

The worth of a job on a model is sqrt(p_i A_i) times its speed there relative to its best, less the cost of a
restart, so that a model goes to the jobs that gain most from it, and those that lose little give way. Which jobs run
depends on A_i, on which model on p_i alone: a minute lost on a slow model delays each job by a minute, whatever its
length. Both are decided at once here, so the weight is their geometric mean: with A_i alone a job that is nearly
done keeps a fast GPU of little gain (the mean completion of three job types on three models is a tenth longer). Jobs
of fixed size that run may move; elastic ones have their own rules (`elastic`, `sizes`).
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.allocation.locality import least_delays, with_data
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import NodeState, Ranking, held_models, paces
from equipoise.policies.allocation.sizes import placed
from equipoise.policies.kernels.gangs import NO_ROWS, frozen
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.placement import WHOLE
from equipoise.policies.observation import WAITING, Bools, Floats, Ints, Observation

_WAITING = 200  # waiting jobs, from the first, that are looked at
_RUNNING = 256  # running jobs, from the lowest A, that may move or stop
_PASSES = 8  # of the local search


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


def candidates(proposal: Proposal, ranking: Ranking) -> Ints:
    """Rows of the first undecided waiting jobs that ask for whole GPUs, in order."""
    rows = ranking.waiting[~proposal.touched(ranking.waiting)]
    found: Ints = rows[proposal.observation.jobs.gpu_share_requested[rows] >= WHOLE][:_WAITING]
    return found


def worth_by_model(
    o: Observation,
    ranking: Ranking,
    pace: Floats,
    rows: Ints,
    now: Ints,
    stoppable: Bools,
    reluctance: float,
    horizon_s: float,
) -> Floats:
    """sqrt(p_i A_i) * speed / best speed, less `reluctance` restarts where it moves; -1: impossible (rows, models).

    now: model that each holds, -1 none. A job that stops loses `reluctance` restarts, which raises the worth of
    staying.
    """
    best = np.maximum(pace.max(axis=1), 1e-300)
    left_s = np.nan_to_num(o.jobs.service_s[rows], nan=horizon_s) / best
    cost = reluctance * np.nan_to_num(o.jobs.restart_s[rows]) / np.minimum(np.maximum(left_s, 1.0), horizon_s)
    other = (now[:, None] >= 0) & (now[:, None] != np.arange(pace.shape[1]))
    worth = pace / best[:, None] * np.where(other, np.maximum(1.0 - cost, 0.0)[:, None], 1.0)
    worth += np.where(stoppable, np.minimum(cost, 1.0), 0.0)[:, None]
    own = np.nan_to_num(o.jobs.priority[rows], nan=1.0)
    worth *= np.sqrt(own * ranking.priority(rows))[:, None]
    return np.where((pace > 0.0) & ~(other & (worth <= 0.0)), worth, -1.0)


@jit_in_place
def _improve(worth: Floats, gpus: Ints, stoppable: Bools, now: Ints, room: Ints) -> bool:
    """One pass of the local search: each job in order moves to where it is worth more, replacing another if needed.

    The replaced job must lose less on a model with room, or by stopping. Changes now (jobs,) and room (models,);
    False: no further gain.
    """
    changed = False
    for i in range(gpus.size):
        here = worth[i, now[i]] if now[i] >= 0 else 0.0
        best, best_model, other, other_model = 1e-9 * here, -1, -1, -1
        for m in range(room.size):
            gain = worth[i, m] - here
            if m == now[i] or gain <= best:
                continue
            if room[m] >= gpus[i]:
                best, best_model, other = gain, m, -1
                continue
            for k in range(gpus.size):
                if now[k] != m or k == i or room[m] + gpus[k] < gpus[i]:
                    continue
                if stoppable[k] and gain - worth[k, m] > best:
                    best, best_model, other, other_model = gain - worth[k, m], m, k, -1
                for n in range(room.size):
                    there = room[n] + (gpus[i] if n == now[i] else 0)
                    if n == m or there < gpus[k] or worth[k, n] < 0.0:
                        continue
                    both = gain + worth[k, n] - worth[k, m]
                    if both > best:
                        best, best_model, other, other_model = both, m, k, n
        if best_model < 0:
            continue
        changed = True
        if other >= 0:
            room[now[other]] += gpus[other]
            now[other] = other_model
            if other_model >= 0:
                room[other_model] -= gpus[other]
        if now[i] >= 0:
            room[now[i]] += gpus[i]
        now[i] = best_model
        room[best_model] -= gpus[i]
    return changed


def assign(
    proposal: Proposal,
    nodes: NodeState,
    ranking: Ranking,
    wanted: Ints,
    running: Ints,
    patient: Ints,
    reluctance: float,
    horizon_s: float,
) -> Ints:
    """Start or move jobs on the models where they are worth most; returns the rows of moved jobs.

    wanted: GPUs to start with, by row of the jobs table; running: rows of jobs that may move; patient: rows of jobs
    that may be stopped.
    """
    o, waiting = proposal.observation, candidates(proposal, ranking)
    running = running[np.argsort(ranking.priority(running), kind="stable")[:_RUNNING]]
    rows = np.concatenate((running, waiting)).astype(np.int64)
    if not len(rows):
        return NO_ROWS
    now = held_models(o, rows)
    gpus = np.where(o.jobs.state[rows] == WAITING, wanted[rows], o.jobs.gpus_held[rows])
    room = np.bincount(nodes.model, weights=proposal.columns.free, minlength=len(nodes.model_speed)).astype(np.int64)
    stoppable, then = np.isin(rows, patient), now.copy()
    pace = paces(o, nodes.model_speed, rows)
    for k in np.flatnonzero((now < 0) & with_data(o, rows)).tolist():
        pace[k] /= 1.0 + least_delays(proposal, nodes.model, pace.shape[1], int(rows[k]), int(gpus[k]))
    worth = worth_by_model(o, ranking, pace, rows, now, stoppable, reluctance, horizon_s)
    for _ in range(_PASSES):
        if not _improve(frozen(worth), frozen(gpus), frozen(stoppable), then, room):
            break
    return _carry_out(proposal, nodes, rows, now, then, gpus)


def _carry_out(proposal: Proposal, nodes: NodeState, rows: Ints, now: Ints, then: Ints, gpus: Ints) -> Ints:
    """Apply the changes, releases of moving jobs first; returns the rows that moved."""
    changes = np.flatnonzero(then != now)
    moving = [k for k in changes.tolist() if now[k] >= 0]
    proposal.stop(rows[moving].tolist())
    moving = [k for k in moving if then[k] >= 0]
    moved = []
    for k in [*moving, *(k for k in changes.tolist() if now[k] < 0)]:
        row, gpu = int(rows[k]), placed(proposal, nodes, int(rows[k]), int(gpus[k]), int(then[k]))
        if not len(gpu):
            continue
        if now[k] >= 0:
            proposal.stopped.remove(row)
            moved.append(row)
        proposal.start((np.array([row]), np.array([0, len(gpu)]), gpu, np.ones(len(gpu))))
    return np.array(moved, dtype=np.int64)
