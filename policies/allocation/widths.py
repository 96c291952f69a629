"""Best width of an elastic job: the number of workers with the shortest step, exchanges included."""

from __future__ import annotations

import numpy as np

from equipoise.policies.allocation.elastic import chosen, elastic_columns, on_living_nodes
from equipoise.policies.allocation.locality import input_s
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import NodeState
from equipoise.policies.kernels.gangs import NO_ROWS, NO_VALUES, frozen
from equipoise.policies.kernels.scaling import ScalingColumns, TableColumns, times_of
from equipoise.policies.observation import Floats, Ints

_EVERY = 16  # sizes up to this many workers are all looked at, above that powers of two and both ends


def sizes_between(fewest: int, most: int) -> list[int]:
    """Candidate numbers of workers."""
    if most - fewest < _EVERY:
        return list(range(fewest, most + 1))
    return [fewest, *(1 << k for k in range(most.bit_length()) if fewest < 1 << k < most), most]


def quickest(
    rows: Ints, fewest: Ints, most: Ints, now: Ints, model: Ints, scaling: ScalingColumns, table: TableColumns
) -> tuple[Ints, Floats]:
    """(workers, step in s) of the quickest size of each job in fewest..most workers; the smallest of equals.

    `now` are the workers at which each was measured, `model` its present or planned GPU model.
    """
    options = [sizes_between(int(a), int(b)) for a, b in zip(fewest, most, strict=True)]
    index = np.repeat(np.arange(len(rows)), [len(sizes) for sizes in options])
    workers = np.array([size for sizes in options for size in sizes], dtype=np.int64)
    step_s = np.empty(len(index))
    times_of(frozen(rows), frozen(now), frozen(model), index, workers, model[index], scaling, table, step_s)
    first = np.searchsorted(index, np.arange(len(rows)))
    least_s = np.minimum.reduceat(step_s, first) if len(rows) else NO_VALUES
    best = np.full(len(rows), np.iinfo(np.int64).max)
    ties = step_s <= least_s[index]
    np.minimum.at(best, index[ties], workers[ties])
    return best, least_s


def narrow_jobs(
    proposal: Proposal,
    nodes: NodeState,
    rows: Ints,
    scaling: ScalingColumns,
    table: TableColumns,
    horizon_s: float,
    margin: float,
) -> Ints:
    """Shrink running elastic jobs (rows) that are quicker with fewer workers, all on one node; returns their rows.

    The time saved on the remaining work, at most `horizon_s`, must exceed the restart cost, and a step must shorten
    by at least `margin`. Fewer workers on several nodes may exchange over the same slow link.
    """
    o = proposal.observation
    columns = elastic_columns(proposal, nodes, rows)
    columns = chosen(columns, np.flatnonzero(on_living_nodes(o, columns)))
    rows, offset, gpu, model, cost_s, requested = columns
    if not len(rows):
        return NO_ROWS
    per = np.maximum(o.jobs.gpus_per_worker[rows], 1)
    now = np.diff(offset) // per
    job, place = np.repeat(np.arange(len(rows)), np.diff(offset)), o.gpus.node[gpu]
    _, at, count = np.unique(job * len(o.nodes) + place, return_inverse=True, return_counts=True)
    count = count[at.reshape(-1)]
    order = np.lexsort((gpu, place, -count, job))  # those on the node with most of them first
    gpu, place = gpu[order], place[order]
    most = np.maximum.reduceat(count, offset[:-1]) // per
    fewest = np.minimum(o.jobs.workers_min[rows], now)
    best, then_s = quickest(rows, fewest, np.maximum(most, fewest), now, model, scaling, table)
    _, now_s = quickest(rows, now, now, now, model, scaling, table)
    _, asked_s = quickest(rows, requested, requested, now, model, scaling, table)
    left_s = o.jobs.service_s[rows] * now_s / asked_s
    left_s = np.fmin(np.where(np.isnan(left_s), horizon_s, left_s), horizon_s)
    pays = (left_s * (1.0 - then_s / now_s) > cost_s) & (then_s <= now_s * (1.0 - margin)) & (best <= most)
    for k in np.flatnonzero(pays).tolist():
        held, row = gpu[offset[k] : offset[k + 1]], int(rows[k])
        kept = held[: best[k] * per[k]]
        pays[k] = input_s(o, row, *np.unique(o.gpus.node[kept], return_counts=True)) <= left_s[k]
        if pays[k]:
            proposal.resize(row, held, kept)
    return rows[pays]
