"""Training jobs that can change size: their GPUs, and their step time as a function of their workers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import NodeState, Ranking, gpus_wanted
from equipoise.policies.kernels.gangs import NO_ROWS, NO_VALUES, frozen, holdings, reordered, working
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.placement import WHOLE
from equipoise.policies.kernels.scaling import (
    ElasticColumns,
    ScalingColumns,
    TableColumns,
    shrink_for,
    speedups_of,
    times_of,
)
from equipoise.policies.observation import Bools, Floats, Ints, Observation


def elastic_rows(o: Observation, rows: Ints) -> Ints:
    """The job rows that train on whole GPUs with a variable number of workers."""
    jobs = o.jobs
    able = ~jobs.rigid[rows]
    if not able.any():  # as where all jobs are rigid: nothing else needs to be looked at
        return NO_ROWS
    able &= jobs.workers_max[rows] > jobs.workers_min[rows]
    return rows[able & (jobs.gpu_share_requested[rows] >= WHOLE)]


def scaling_columns(o: Observation, interval: Ints) -> ScalingColumns:
    """The parts of `Scaling`, in its order; interval: the planned one of each job.

    A step takes at least as long as the hosts of a job take to prepare its input.
    """
    jobs, workers = o.jobs, o.workers
    fed = np.bincount(workers.job, workers.input_samples_per_s, len(jobs))
    work_s = np.fmax(jobs.work_s, np.where(fed > 0.0, jobs.global_batch / np.maximum(fed, 1e-300), 0.0))
    return (
        jobs.global_batch,
        jobs.micro_batch,
        jobs.gpus_per_worker,
        jobs.workers_min,
        jobs.workers_max,
        frozen(interval),
        frozen(np.where(np.isnan(jobs.work_s), jobs.work_s, work_s)),
        jobs.exchange_s,
        jobs.exchange_alone_s,
        jobs.gamma,
        jobs.service_s,
    )


def table_columns(o: Observation, nodes: NodeState) -> TableColumns:
    """The parts of `Table`, in its order; a job is no faster than its hosts, at their present rate for each GPU."""
    speeds, workers = o.speeds, o.workers
    fed = np.bincount(workers.job, workers.input_samples_per_s, len(o.jobs)) / np.maximum(o.jobs.gpus_held, 1)
    most = np.where(fed > 0.0, fed, np.inf)[speeds.job] * speeds.gpus
    columns = (
        speeds.job,
        speeds.gpu_model,
        speeds.gpus,
        frozen(np.minimum(speeds.samples_per_s, most)),
        speeds.exchange_s,
    )
    if (np.diff(speeds.job) < 0).any():
        order = np.argsort(speeds.job, kind="stable")
        columns = tuple(frozen(column[order]) for column in columns)  # type: ignore[assignment]
    return (*columns, frozen(nodes.model_speed))


@jit_in_place
def _best_first(offset: Ints, gpu: Ints, gpu_node: Ints, speed: Floats, on_node: Ints) -> None:
    """Order each job's GPUs: fastest nodes first, among them those with most of its GPUs, then by row.

    on_node is scratch: zero per node.
    """
    for i in range(offset.size - 1):
        first, end = offset[i], offset[i + 1]
        for e in range(first, end):
            on_node[gpu_node[gpu[e]]] += 1
        for e in range(first + 1, end):
            g, at = gpu[e], e
            while at > first:
                a, b = gpu_node[g], gpu_node[gpu[at - 1]]
                if speed[a] != speed[b]:
                    sooner = speed[a] > speed[b]
                elif on_node[a] != on_node[b]:
                    sooner = on_node[a] > on_node[b]
                else:
                    sooner = g < gpu[at - 1]
                if not sooner:
                    break
                gpu[at] = gpu[at - 1]
                at -= 1
            gpu[at] = g
        for e in range(first, end):
            on_node[gpu_node[gpu[e]]] = 0


@jit_in_place
def _slowest(offset: Ints, gpu: Ints, gpu_model: Ints, model_speed: Floats, model: Ints) -> None:
    for i in range(model.size):
        model[i] = 0
        for e in range(offset[i], offset[i + 1]):
            m = gpu_model[gpu[e]]
            if e == offset[i] or model_speed[m] < model_speed[model[i]]:
                model[i] = m


def slowest_models(o: Observation, nodes: NodeState, offset: Ints, gpu: Ints) -> Ints:
    """GPU model of the slowest GPU in each compressed row."""
    model = np.empty(len(offset) - 1, dtype=np.int64)
    _slowest(offset, gpu, o.gpus.model, frozen(nodes.model_speed), model)
    return model


def held_gpus(holder: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """GPUs that each job row holds alone by `holder` (job row per GPU), in compressed rows: (offset, gpu)."""
    if not len(rows):  # looking at every GPU takes a while
        return np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64)
    ascending = np.sort(rows)
    offset, gpu = holdings(ascending, holder)
    return reordered(offset, gpu, np.searchsorted(ascending, rows).astype(np.int64))


def elastic_columns(proposal: Proposal, nodes: NodeState, rows: Ints) -> ElasticColumns:
    """The parts of `Elastic`, in its order, for elastic jobs (rows) that hold GPUs now."""
    o = proposal.observation
    offset, gpu = held_gpus(proposal.holder if len(rows) else NO_ROWS, rows)
    _best_first(offset, gpu, o.gpus.node, frozen(nodes.speed), np.zeros(len(o.nodes), dtype=np.int64))
    if proposal.avoided is not None:  # these go first
        job = np.repeat(np.arange(len(rows)), np.diff(offset))
        gpu = gpu[np.lexsort((np.arange(len(gpu)), proposal.avoided[gpu], job))]
    model = slowest_models(o, nodes, offset, gpu)
    waiting = o.jobs.gpus_held[rows] == 0
    cost_s = np.where(waiting, 0.0, np.nan_to_num(o.jobs.restart_s[rows]))
    requested = gpus_wanted(o, rows) // np.maximum(o.jobs.gpus_per_worker[rows], 1)
    return rows, offset, gpu, model, cost_s, requested


def chosen(columns: ElasticColumns, order: Ints) -> ElasticColumns:
    """A selection of the elastic jobs (positions), in that order."""
    rows, offset, gpu, model, cost_s, requested = columns
    offset, gpu = reordered(offset, gpu, order)
    return rows[order], offset, gpu, model[order], cost_s[order], requested[order]


def on_living_nodes(o: Observation, columns: ElasticColumns) -> Bools:
    """Whether each elastic job holds whole workers, all on nodes that are up."""
    job, offset, gpu, *_ = columns
    up = o.nodes.up[o.gpus.node[gpu]]
    dead = np.bincount(np.repeat(np.arange(len(job)), np.diff(offset)), weights=~up, minlength=len(job))
    held = np.diff(offset)
    whole: Bools = held % np.maximum(o.jobs.gpus_per_worker[job], 1) == 0
    living: Bools = (dead == 0) & (held > 0) & whole
    return living


def without_shunned(proposal: Proposal, columns: ElasticColumns) -> Bools:
    """Whether each elastic job holds no avoided GPU, so that the GPUs that it gives up can be allocated."""
    _, offset, gpu, *_ = columns
    if proposal.avoided is None:
        return np.ones(len(offset) - 1, dtype=np.bool_)
    job = np.repeat(np.arange(len(offset) - 1), np.diff(offset))
    return np.asarray(np.bincount(job, weights=proposal.avoided[gpu], minlength=len(offset) - 1) == 0)


def shrink_jobs(
    proposal: Proposal,
    nodes: NodeState,
    ranking: Ranking,
    scaling: ScalingColumns,
    table: TableColumns,
    rows: Ints,
    waits: Ints,
    horizon_s: float,
) -> Ints:
    """Start waiting jobs (positions in the ranking) on GPUs that elastic jobs give up, where that pays off.

    A waiting job gains the time until as many GPUs are free, at most its own duration. A loss is weighted by
    priority and by the relative utilisation of the job's GPUs. Returns the rows of the jobs that gave up GPUs.
    """
    o, shrunk = proposal.observation, []
    columns = elastic_columns(proposal, nodes, rows)
    columns = chosen(columns, np.flatnonzero(on_living_nodes(o, columns) & without_shunned(proposal, columns)))
    for k in waits.tolist():
        rows, offset, held, *_ = columns
        if not len(rows):
            break
        row = int(ranking.waiting[k])
        claim = ranking.priority(rows) * _busy(offset, nodes.efficiency[o.gpus.node[held]])
        service_s = float(np.nan_to_num(o.jobs.service_s[row], nan=horizon_s))
        gain_s = min(service_s, horizon_s, free_in_s(proposal, columns, int(ranking.wanted[k]), scaling, table))
        share = min(float(o.jobs.gpu_share_requested[row]), 1.0)
        kept, gpu = np.empty(len(rows), dtype=np.int64), np.empty(int(ranking.wanted[k]), dtype=np.int64)
        worth_s, memory_bytes = float(ranking.waiting_a[k]) * gain_s, float(o.jobs.memory_bytes[row])
        room = (horizon_s, working(proposal.columns), o.gpus.node, scaling, table, kept, gpu)
        one_model = bool(o.jobs.one_gpu_model[row])
        if not shrink_for(len(gpu), share, memory_bytes, one_model, worth_s, columns, claim, *room):
            continue
        gpus = kept * o.jobs.gpus_per_worker[rows]
        given = gpus < np.diff(offset)
        for i in np.flatnonzero(given).tolist():
            now = held[offset[i] : offset[i + 1]]
            proposal.resize(int(rows[i]), now, now[: gpus[i]])
            shrunk.append(int(rows[i]))
        columns = chosen(columns, np.flatnonzero(~given))
        proposal.start((np.array([row]), np.array([0, len(gpu)]), gpu, np.full(len(gpu), share)))
    return np.array(shrunk, dtype=np.int64)


def free_in_s(
    proposal: Proposal, columns: ElasticColumns, gpus: int, scaling: ScalingColumns, table: TableColumns
) -> float:
    """Time (s) until this many GPUs are free, if jobs end as expected at their present sizes; infinite: never."""
    o = proposal.observation
    left_s = np.nan_to_num(o.jobs.service_s, nan=np.inf)
    left_s[columns[0]] = _left_s(o, columns, scaling, table)
    return _free_by(proposal, left_s, gpus)


def _left_s(o: Observation, columns: ElasticColumns, scaling: ScalingColumns, table: TableColumns) -> Floats:
    """Time left (s) of each elastic job at its present size; infinite where unknown."""
    service_s: Floats = np.nan_to_num(o.jobs.service_s[columns[0]], nan=np.inf)
    return service_s * slower(columns, np.diff(columns[1]), o, scaling, table)


def slower(columns: ElasticColumns, gpus: Ints, o: Observation, scaling: ScalingColumns, table: TableColumns) -> Floats:
    """Step time of each elastic job on these GPU counts, relative to the size it asks for."""
    rows, offset, _, model, _, requested = columns
    per = np.maximum(o.jobs.gpus_per_worker[rows], 1)
    now, every = np.diff(offset) // per, np.arange(len(rows))
    then_s, asked_s = np.empty(len(rows)), np.empty(len(rows))
    times_of(frozen(rows), now, model, every, gpus // per, model, scaling, table, then_s)
    times_of(frozen(rows), now, model, every, requested, model, scaling, table, asked_s)
    return then_s / asked_s


def _free_by(proposal: Proposal, left_s: Floats, gpus: int) -> float:
    """Time (s) until this many GPUs are free, if each job ends after `left_s` (jobs,); infinite: never."""
    o = proposal.observation
    ends_s = np.where(proposal.holder == -1, 0.0, left_s[np.maximum(proposal.holder, 0)])
    ends_s[(proposal.holder < -1) | ~o.nodes.up[o.gpus.node]] = np.inf
    if proposal.avoided is not None:
        ends_s[proposal.avoided] = np.inf
    return float(np.partition(ends_s, gpus - 1)[gpus - 1]) if gpus <= len(ends_s) else math.inf


def _busy(offset: Ints, efficiency: Floats) -> Floats:
    """Mean efficiency of each job's GPUs relative to all jobs: it decides which job gives up GPUs first.

    Whether a change pays off follows from step times, which include waiting.
    """
    known = np.nan_to_num(efficiency, nan=1.0)
    total = np.add.reduceat(np.append(known, 0.0), offset[:-1])
    mean: Floats = np.maximum(total / np.maximum(np.diff(offset), 1), 0.1)
    return mean / max(float(mean.mean()), 0.1) if len(mean) else mean


def parallel_work(proposal: Proposal, nodes: NodeState, scaling: ScalingColumns, table: TableColumns) -> dict[str, Any]:
    """S423: estimated efficiency of parallel work before and after; NaN where no job trains."""
    o = proposal.observation
    rows = np.sort(o.running)
    rows = rows[~o.jobs.rigid[rows]]
    before = _speedups(o, nodes, rows, held_gpus(o.gpus.job, rows), scaling, table)
    efficiency = _efficiency(*before)
    values = {"s423_efficiency_before": efficiency, "s423_efficiency_after": efficiency}
    if proposal.stopped or proposal.given:
        gone = np.zeros(len(o.jobs), dtype=np.bool_)
        gone[proposal.stopped] = gone[list(proposal.given)] = True
        stay = ~gone[rows]
        given = [(row, *hold) for row, hold in proposal.given.items() if not o.jobs.rigid[row]]
        row = np.array([row for row, _, _ in given], dtype=np.int64)
        end = np.cumsum([0, *(len(gpu) for _, gpu, _ in given)])
        whole = np.concatenate((NO_VALUES, *(share for _, _, share in given))) >= WHOLE
        gpu = np.concatenate((NO_ROWS, *(gpu for _, gpu, _ in given)))[whole]
        offset = np.concatenate(([0], np.cumsum(whole)))[end].astype(np.int64)
        after = _speedups(o, nodes, row, (offset, gpu), scaling, table)
        joined = (np.concatenate((old[stay], more)) for old, more in zip(before, after, strict=True))
        values["s423_efficiency_after"] = _efficiency(*joined)
    return values


def _efficiency(speedups: Floats, workers: Ints) -> float:
    """Mean over workers of their jobs' speed-up per worker, 0..1."""
    count = int(workers.sum())
    return math.fsum(speedups.tolist()) / count if count else math.nan


def _speedups(
    o: Observation, nodes: NodeState, rows: Ints, held: tuple[Ints, Ints], scaling: ScalingColumns, table: TableColumns
) -> tuple[Floats, Ints]:
    """(estimated speed-up over one worker, workers) of each job (row) with the GPUs of its compressed row."""
    offset, gpu = held
    per, speedup = np.maximum(o.jobs.gpus_per_worker[rows], 1), np.zeros(len(rows))
    workers, now = np.diff(offset) // per, o.jobs.gpus_held[rows] // per
    speedups_of(rows, workers, now, slowest_models(o, nodes, offset, gpu), scaling, table, speedup)
    return speedup, workers
