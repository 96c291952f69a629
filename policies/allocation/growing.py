"""Free GPUs for elastic training jobs, by the gain of each given the exchanges of other jobs."""

from __future__ import annotations

import numpy as np

from equipoise.policies.allocation.contention import Exchanges
from equipoise.policies.allocation.elastic import chosen, elastic_columns, on_living_nodes, without_shunned
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import NodeState, Ranking
from equipoise.policies.kernels.gangs import NO_ROWS, NO_VALUES, frozen, new_grants, trimmed, working
from equipoise.policies.kernels.scaling import ElasticColumns, ScalingColumns, TableColumns, grow
from equipoise.policies.observation import Bools, Floats, Ints, Observation


def grow_jobs(
    proposal: Proposal,
    nodes: NodeState,
    ranking: Ranking,
    scaling: ScalingColumns,
    table: TableColumns,
    rows: Ints,
    horizon_s: float,
    margin: float,
) -> tuple[Ints, Floats]:
    """Give free GPUs to elastic jobs that gain from them; returns their rows and the seconds each gains.

    First those that hold less than they ask for, then by descending sum_j R_ij per GPU held. A job in one rack stays
    there, unless it also gains with exchanges across racks.
    """
    o = proposal.observation
    if not len(rows) or not proposal.free:
        return NO_ROWS, NO_VALUES
    columns = elastic_columns(proposal, nodes, rows)
    _, offset, gpu, _, _, requested = columns
    held = np.maximum(np.diff(offset), 1)
    job_of = np.repeat(np.arange(len(rows)), np.diff(offset))
    worth = np.bincount(job_of, weights=ranking.weight[o.gpus.node[gpu]], minlength=len(rows)) / held
    worth = worth * ranking.priority(rows)
    enough = held >= requested * o.jobs.gpus_per_worker[rows]
    order = np.lexsort((rows, -worth, enough))
    able = on_living_nodes(o, columns)
    if len(nodes.model_speed) > 1:  # a job that changes its model releases all its GPUs
        able &= without_shunned(proposal, columns)
    order = order[able[order]]
    columns = chosen(columns, order)
    bound = in_one_rack_and_dear(o, columns)
    grown, gains = [], []
    parts = np.split(np.arange(len(order)), np.unique(np.concatenate((bound, bound + 1)))) if len(bound) else []
    for part in parts or [np.arange(len(order))]:
        for place, rack, estimates in _ways(o, part, bound, columns, table):
            rows, gain_s = _grow(proposal, nodes, scaling, estimates, chosen(columns, place), horizon_s, margin, rack)
            grown.append(rows)
            gains.append(gain_s)
            if len(rows):
                break
    return np.concatenate(grown).astype(np.int64), np.concatenate(gains)


def in_one_rack_and_dear(o: Observation, columns: ElasticColumns) -> Ints:
    """Positions of elastic jobs in one rack whose exchange would take longer across racks."""
    rows, offset, gpu, *_ = columns
    racks = o.nodes.rack
    if not len(racks) or (racks == racks[0]).all() or not len(rows):
        return NO_ROWS
    apart = np.zeros(len(o.jobs), dtype=np.bool_)
    apart[o.speeds.job[o.speeds.apart_exchange_s > o.speeds.exchange_s]] = True
    rack, first = racks[o.gpus.node[gpu]], offset[:-1]
    one = np.minimum.reduceat(rack, first) == np.maximum.reduceat(rack, first)
    return np.flatnonzero(one & apart[rows])


def _ways(
    o: Observation, part: Ints, bound: Ints, columns: ElasticColumns, table: TableColumns
) -> list[tuple[Ints, int, TableColumns]]:
    """Growth options of jobs (positions), in order of preference: (positions, rack or -1, estimates).

    A job in one rack grows there, or else anywhere by the estimates of exchanges across racks.
    """
    if len(part) != 1 or part[0] not in bound:
        return [(part, -1, table)]
    _, offset, gpu, *_ = columns
    rack = int(o.nodes.rack[o.gpus.node[gpu[offset[part[0]]]]])
    apart_s = np.fmax(o.speeds.apart_exchange_s, o.speeds.exchange_s)
    if (np.diff(o.speeds.job) < 0).any():  # as `table_columns`
        apart_s = apart_s[np.argsort(o.speeds.job, kind="stable")]
    here = table[2] == o.jobs.gpus_held[table[0]]  # what is measured is compared with the estimate for one rack
    across = (*table[:4], frozen(np.where(here, table[4], np.fmax(apart_s, table[4]))), table[5])
    return [(part, rack, table), (part, -1, across)]


def _grow(
    proposal: Proposal,
    nodes: NodeState,
    scaling: ScalingColumns,
    table: TableColumns,
    columns: ElasticColumns,
    horizon_s: float,
    margin: float,
    rack: int,
) -> tuple[Ints, Floats]:
    """Grow elastic jobs in order, in one rack (-1: anywhere); returns rows and seconds gained.

    A job that would gain nothing on links with exchanges of other jobs grows on nodes without them, if that gains.
    """
    away = proposal.away if rack < 0 else proposal.away | (proposal.observation.nodes.rack != rack)
    others = Exchanges(proposal, nodes, scaling, table)
    rows, gains, crowded = _grow_beside(
        proposal, nodes, scaling, table, columns, np.arange(len(columns[0])), horizon_s, margin, away, others
    )
    for k in crowded:
        closed = away | others.crossed(_held(columns, k))
        more, gain_s, _ = _grow_beside(
            proposal, nodes, scaling, table, columns, np.array([k]), horizon_s, margin, closed, others
        )
        rows, gains = rows + more, gains + gain_s
    return np.array(rows, dtype=np.int64), np.array(gains)


def _grow_beside(
    proposal: Proposal,
    nodes: NodeState,
    scaling: ScalingColumns,
    table: TableColumns,
    columns: ElasticColumns,
    part: Ints,
    horizon_s: float,
    margin: float,
    closed: Bools,
    others: Exchanges,
) -> tuple[list[int], list[float], list[int]]:
    """Grow some jobs (positions), on open nodes only.

    Returns their rows, the seconds each gains, and the positions of those that gain nothing under contention.
    """
    some = chosen(columns, part)
    jobs, offset, gpu, alone_s = _granted(proposal, nodes, scaling, table, some, horizon_s, margin, closed)
    places, grown, gains, crowded = dict(zip(some[0].tolist(), part.tolist(), strict=True)), [], [], []
    for k, row in enumerate(jobs.tolist()):
        place, new = places[row], gpu[offset[k] : offset[k + 1]]
        held = _held(columns, place)
        others.without(row, held)
        gain_s = others.gain_s(row, held, new, float(columns[4][place]), float(alone_s[k]), margin)
        if gain_s > 0.0:
            proposal.resize(row, held, new)
            grown.append(row)
            gains.append(gain_s)
        else:
            crowded.append(place)
        others.beside(row, new if gain_s > 0.0 else held)
    return grown, gains, crowded


def _held(columns: ElasticColumns, k: int) -> Ints:
    return columns[2][columns[1][k] : columns[1][k + 1]]


def _granted(
    proposal: Proposal,
    nodes: NodeState,
    scaling: ScalingColumns,
    table: TableColumns,
    columns: ElasticColumns,
    horizon_s: float,
    margin: float,
    closed: Bools,
) -> tuple[Ints, Ints, Ints, Floats]:
    """Rows of jobs that would grow on open nodes, their GPUs in compressed rows, the seconds gained."""
    o, models = proposal.observation, len(nodes.model_speed)
    open_nodes = proposal.columns.order[~closed[proposal.columns.order]]
    by_model = open_nodes[np.argsort(nodes.model[open_nodes], kind="stable")]
    first = np.searchsorted(nodes.model[by_model], np.arange(models + 1)).astype(np.int64)
    free = np.where(closed, 0, proposal.free_to_grow)
    free = np.bincount(nodes.model, weights=free, minlength=models).astype(np.int64)
    grants, gain_s = new_grants(len(columns[0]), 2 * len(o.gpus) + 1), np.empty(len(columns[0]))
    n = grow(
        columns,
        horizon_s,
        margin,
        o.jobs.memory_bytes,
        working(proposal.columns),
        nodes.model,
        o.gpus.node,
        frozen(by_model),
        first,
        free,
        scaling,
        table,
        grants,
        gain_s,
    )
    job, offset, gpu, _ = trimmed(grants, n)
    return job, offset, gpu, gain_s[:n]
