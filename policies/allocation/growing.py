"""Free GPUs for elastic training jobs, by the gain of each."""

from __future__ import annotations

import numpy as np

from equipoise.policies.allocation.elastic import chosen, elastic_columns, on_living_nodes, without_shunned
from equipoise.policies.allocation.locality import input_s
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import NodeState, Ranking
from equipoise.policies.kernels.gangs import NO_ROWS, NO_VALUES, frozen, new_grants, trimmed, working
from equipoise.policies.kernels.scaling import ElasticColumns, ScalingColumns, TableColumns, grow
from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.policies.quotas.limits import allowed_nodes

_MOST = 16  # first elastic jobs that may grow in a decision


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
    """Give free GPUs to elastic jobs that surely gain from them; returns their rows and the seconds each gains.

    First those that hold less than they ask for, then by descending sum_j R_ij per GPU held. A job in one rack stays
    there.
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
    columns = chosen(columns, order[able[order]][:_MOST])
    grown, gains = list[int](), list[float]()
    for k, row in enumerate(columns[0].tolist()):
        one = chosen(columns, np.array([k]))
        closed, rack = ~allowed_nodes(o, row), o.nodes.rack[o.gpus.node[one[2]]]
        if (rack == rack[0]).all():
            closed |= o.nodes.rack != rack[0]
        new, gain_s = _granted(proposal, nodes, scaling, table, one, horizon_s, margin, closed)
        if not len(new):
            continue
        left_s = o.jobs.remaining_samples[row] / max(float(o.jobs.goodput_samples_per_s[row]), 1e-9)
        if input_s(o, row, *np.unique(o.gpus.node[new], return_counts=True)) > (1.0 - margin) * left_s:
            continue  # it would wait for its input
        proposal.resize(row, one[2], new)
        grown.append(row)
        gains.append(gain_s)
    return np.array(grown, dtype=np.int64), np.array(gains)


def _granted(
    proposal: Proposal,
    nodes: NodeState,
    scaling: ScalingColumns,
    table: TableColumns,
    columns: ElasticColumns,
    horizon_s: float,
    margin: float,
    closed: Bools,
) -> tuple[Ints, float]:
    """GPUs with which one job would grow on open nodes, none where it would not, and the seconds gained."""
    o, models = proposal.observation, len(nodes.model_speed)
    open_nodes = proposal.columns.order[~closed[proposal.columns.order]]
    by_model = open_nodes[np.argsort(nodes.model[open_nodes], kind="stable")]
    first = np.searchsorted(nodes.model[by_model], np.arange(models + 1)).astype(np.int64)
    free = np.where(closed, 0, proposal.columns.free)
    free = np.bincount(nodes.model, weights=free, minlength=models).astype(np.int64)
    grants, gain_s = new_grants(1, 2 * len(o.gpus) + 1), np.empty(1)
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
    return trimmed(grants, n)[2], float(gain_s[0]) if n else 0.0
