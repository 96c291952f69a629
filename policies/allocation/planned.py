"""S4's `optimal` mode for few jobs: the options of each job, and the first starts of the best schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.policies.allocation.elastic import (
    chosen,
    elastic_columns,
    elastic_rows,
    held_gpus,
    on_living_nodes,
    slowest_models,
)
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import NodeState, Ranking, gpus_wanted, paces
from equipoise.policies.allocation.schedules import Busy, Schedule, StartOption, best_schedule, useful
from equipoise.policies.allocation.sizes import one_model, placed, sizes_up_to
from equipoise.policies.kernels.gangs import NO_ROWS, frozen
from equipoise.policies.kernels.placement import WHOLE
from equipoise.policies.kernels.scaling import ScalingColumns, TableColumns, times_of
from equipoise.policies.observation import Floats, Ints

_JOBS = 6  # more than these are left to the integer programme
_PLACEMENTS = 20_000  # looked at before the integer programme has to do


def plan_jobs(
    proposal: Proposal,
    nodes: NodeState,
    ranking: Ranking,
    scaling: ScalingColumns,
    table: TableColumns,
    able: Ints,
    patient: Ints,
    margin: float,
) -> Schedule:
    """Apply the first starts of the best schedule of all jobs; changes of running jobs must save `margin`.

    able: rows of running jobs that may change size; patient: rows of those that may be stopped. Raises TimeoutError
    or ValueError, with nothing changed, for too many jobs or no schedule.
    """
    o = proposal.observation
    movable = np.union1d(able, patient[o.jobs.gpu_share_requested[patient] >= WHOLE])
    columns = elastic_columns(proposal, nodes, movable[~proposal.touched(movable)])
    columns = chosen(columns, np.flatnonzero(on_living_nodes(o, columns) & one_model(proposal, columns)))
    waiting = ranking.waiting[o.jobs.gpu_share_requested[ranking.waiting] >= WHOLE]
    running, offset, held, model, *_ = columns
    if len(running) + len(waiting) > _JOBS:
        raise TimeoutError(f"more than {_JOBS} jobs")
    rows = np.concatenate((running, waiting)).astype(np.int64)
    if not len(rows):
        raise ValueError("no job may change or start")
    options = _options(proposal, nodes, rows, offset, model, able, patient, scaling, table)
    busy, capacity = _room(proposal, nodes, running, scaling, table)
    weight = np.nan_to_num(o.jobs.priority[rows], nan=1.0)
    stay = [[i for i in own if i.stays] or own for own in options]
    kept = best_schedule(stay, weight, busy, capacity, _PLACEMENTS)
    best = best_schedule(options, weight, busy, capacity, _PLACEMENTS)
    if not best.cost < kept.cost * (1.0 - margin):
        options, best = stay, kept
    picked = [options[k][i] for k, i in enumerate(best.chosen)]
    _carry_out(proposal, nodes, rows, offset, held, picked, best.begin_s)
    if proposal.allocation() is not None or len(o.running):
        proposal.leave(rows)
    return best


def _options(
    proposal: Proposal,
    nodes: NodeState,
    rows: Ints,
    offset: Ints,
    now_model: Ints,
    able: Ints,
    patient: Ints,
    scaling: ScalingColumns,
    table: TableColumns,
) -> list[list[StartOption]]:
    """The options of each job (running ones first), each with its duration (s)."""
    o, jobs, models = proposal.observation, proposal.observation.jobs, len(nodes.model_speed)
    result = []
    for k, row in enumerate(rows.tolist()):
        runs, per = k < len(offset) - 1, 1 if jobs.rigid[row] else max(int(jobs.gpus_per_worker[row]), 1)
        at_once = runs and row not in patient
        left_s = float(np.nan_to_num(jobs.service_s[row], nan=3600.0))
        held = int(offset[k + 1] - offset[k]) // per if runs else 0
        sizes = [held or int(gpus_wanted(o, rows[k : k + 1])[0]) // per]
        if len(elastic_rows(o, rows[k : k + 1])) and (not runs or row in able):
            sizes = sizes_up_to(o, row)
        here = int(now_model[k]) if runs else 0
        own = []
        for model in range(models):
            time_s = _times_s(proposal, nodes, row, held, here, sizes, model, left_s, scaling, table)
            for size, lasts_s in zip(sizes, time_s.tolist(), strict=True):
                stays = runs and size == held and model == here
                cost_s = 0.0 if stays or not runs else float(np.nan_to_num(jobs.restart_s[row]))
                own.append(StartOption(size, size * per, model, lasts_s + cost_s, stays, at_once))
                if stays and not at_once:  # stopped, and started again later
                    again_s = float(np.nan_to_num(jobs.restart_s[row]))
                    own.append(StartOption(size, size * per, model, lasts_s + again_s))
        result.append(useful(own))
    return result


def _times_s(
    proposal: Proposal,
    nodes: NodeState,
    row: int,
    held: int,
    here: int,
    sizes: Sequence[int],
    model: int,
    left_s: float,
    scaling: ScalingColumns,
    table: TableColumns,
) -> Floats:
    """Time (s) left with each number of workers on a GPU model; `left_s` is the one at the requested size."""
    o = proposal.observation
    if o.jobs.rigid[row]:
        pace = float(paces(o, nodes.model_speed, np.array([row]))[0, model])
        return np.full(len(sizes), left_s / pace if pace > 0.0 else np.inf)
    fastest = int(np.nan_to_num(nodes.model_speed, nan=1.0).argmax())
    asked = int(gpus_wanted(o, np.array([row]))[0]) // max(int(o.jobs.gpus_per_worker[row]), 1)
    none, many = np.zeros(1, dtype=np.int64), np.zeros(len(sizes), dtype=np.int64)
    asked_s, step_s = np.empty(1), np.empty(len(sizes))
    rows, best = frozen(np.array([row])), np.array([fastest])
    times_of(rows, none, best, none, np.array([asked]), best, scaling, table, asked_s)
    workers, there = np.array(sizes, dtype=np.int64), np.full(len(sizes), model)
    times_of(rows, np.array([held]), np.array([here]), many, workers, there, scaling, table, step_s)
    return left_s * step_s / asked_s


def _room(
    proposal: Proposal, nodes: NodeState, running: Ints, scaling: ScalingColumns, table: TableColumns
) -> tuple[list[Busy], list[int]]:
    """GPUs held by other jobs, and the total of each GPU model that can be allocated."""
    o, models = proposal.observation, len(nodes.model_speed)
    free = proposal.columns.free if len(o.waiting) else proposal.free_to_grow
    capacity = np.bincount(nodes.model, weights=free, minlength=models)
    capacity += np.bincount(o.gpus.model[np.isin(proposal.holder, running)], minlength=models)
    busy = []
    others = np.setdiff1d(np.unique(proposal.holder[proposal.holder >= 0]), running)
    offset, gpu = held_gpus(proposal.holder, others)
    for k, (row, model) in enumerate(zip(others.tolist(), slowest_models(o, nodes, offset, gpu), strict=True)):
        left_s = float(np.nan_to_num(o.jobs.service_s[row], nan=np.inf))
        if not o.jobs.rigid[row] and np.isfinite(left_s):
            size = int(offset[k + 1] - offset[k]) // max(int(o.jobs.gpus_per_worker[row]), 1)
            left_s = float(
                _times_s(proposal, nodes, row, size, int(model), [size], int(model), left_s, scaling, table)[0]
            )
        held = np.bincount(o.gpus.model[gpu[offset[k] : offset[k + 1]]], minlength=models)
        capacity += held
        busy += [Busy(left_s, int(count), m) for m, count in enumerate(held.tolist()) if count]
    return busy, capacity.astype(int).tolist()


def _carry_out(
    proposal: Proposal,
    nodes: NodeState,
    rows: Ints,
    offset: Ints,
    gpu: Ints,
    picked: Sequence[StartOption],
    begin_s: Sequence[float],
) -> None:
    """Apply the starts of now, releases first. A job that cannot be placed is unchanged."""
    o, running = proposal.observation, len(offset) - 1

    def rank(k: int) -> tuple[int, int]:
        """Sort key: running jobs first, then those that grow least."""
        held = offset[k + 1] - offset[k] if k < running else 0
        return (k >= running, int(picked[k].gpus - held))

    elsewhere = set()
    for k in range(running):
        here = int(o.gpus.model[gpu[offset[k]]])
        if not picked[k].stays and (begin_s[k] > 0.0 or picked[k].model != here):
            proposal.stop([int(rows[k])])
            elsewhere.add(int(rows[k]))
    for k in sorted(range(len(rows)), key=rank):
        option, row = picked[k], int(rows[k])
        if option.stays or begin_s[k] > 0.0:
            continue
        held = gpu[offset[k] : offset[k + 1]] if k < running and row not in elsewhere else NO_ROWS
        if len(held) >= option.gpus:
            proposal.resize(row, held, held[: option.gpus])
            continue
        new = placed(proposal, nodes, row, option.gpus - len(held), option.model)
        if len(new) and len(held):
            proposal.resize(row, held, np.concatenate((held, new)))
        elif len(new):
            if row in elsewhere:
                proposal.stopped.remove(row)
            proposal.start((np.array([row]), np.array([0, len(new)]), new, np.ones(len(new))))
