"""S413: measurements of jobs before and after a change of size or placement, and the rollback.

Kept in S4's memory as plain arrays by job: the last goodput and when it was first seen, the guard's record, and the
GPUs that a watched job held before its change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.policies.allocation.elastic import held_gpus, slowest_models
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import MEMORY_S, NodeState
from equipoise.policies.contract import Memory
from equipoise.policies.kernels.dataflow import match_sorted
from equipoise.policies.kernels.gangs import frozen
from equipoise.policies.kernels.scaling import ScalingColumns, TableColumns, times_of
from equipoise.policies.observation import Bools, Ints, Observation
from equipoise.policies.stages.guard import Verdict, guard_empty, guard_review, guard_watch

_NOTHING: dict[str, Any] = {
    "guard": guard_empty(),
    "goodput_id": np.empty(0, dtype=np.int64),
    "goodput": np.empty(0),
    "goodput_s": np.empty(0),
    "remaining": np.empty(0),
    "undo_id": np.empty(0, dtype=np.int64),
    "undo_offset": np.zeros(1, dtype=np.int64),
    "undo_gpu": np.empty(0, dtype=np.int64),
}


def review(o: Observation, memory: Memory, noise: float, backoff_s: float) -> tuple[Verdict, dict[str, Any]]:
    """Judge watched changes by new measurements of goodput: (verdict, updated memory)."""
    memory = {**_NOTHING, **memory}
    rows = np.sort(o.running)
    rows = rows[~o.jobs.rigid[rows]]
    if not (len(rows) or len(memory["goodput_id"]) or len(memory["guard"]["id"])):
        return Verdict(rows, rows, np.empty(0)), memory
    goodput = o.jobs.goodput_samples_per_s[rows]
    known = match_sorted(memory["goodput_id"], rows) >= 0
    at = np.searchsorted(memory["goodput_id"], rows[known])
    seen, left, since_s = np.full((3, len(rows)), np.nan)
    since_s[:] = -np.inf
    seen[known], left[known] = memory["goodput"][at], memory["remaining"][at]
    since_s[known] = memory["goodput_s"][at]
    remaining = o.jobs.remaining_samples[rows]
    # Where neither differs no step has ended since: nothing was measured.
    fresh = np.isfinite(goodput) & ((goodput != seen) | (np.abs(remaining - left) > 0.0))
    since_s[fresh] = o.time_s
    verdict, record = guard_review(
        memory["guard"],
        rows,
        np.where(fresh, goodput, np.nan),
        o.time_s,
        noise=noise,
        settle_s=o.window_s,
        backoff_s=backoff_s,
    )
    memory |= {"guard": record, "goodput_id": rows, "goodput": goodput, "goodput_s": since_s}
    memory["remaining"] = remaining
    return verdict, memory


def remember_exchanges(o: Observation, memory: dict[str, Any]) -> dict[str, Any]:
    """Measured over estimated time of each job's exchanges, at the last measurement; decays to 1.

    Without it a job that gave up its GPUs, because its links are slower than estimated, would take them again.
    """
    over = np.ones(len(o.jobs))
    if "exchange_over" in memory:
        faded = 0.5 ** (max(o.time_s - memory["exchange_s"], 0.0) / MEMORY_S)
        before = memory["exchange_over"][: len(over)]
        some = np.flatnonzero(before != 1.0)  # few of all that have ever arrived
        over[some] = before[some] ** faded
    if not len(o.speeds):
        return {**memory, "exchange_over": over, "exchange_s": o.time_s}
    job, jobs = o.speeds.job, o.jobs
    here = (o.speeds.gpus == jobs.gpus_held[job]) & (jobs.gpus_held[job] > jobs.gpus_per_worker[job])
    here &= (jobs.exchange_s[job] > 0.0) & (o.speeds.exchange_s > 0.0)
    over[job[here]] = jobs.exchange_s[job[here]] / o.speeds.exchange_s[here]
    return {**memory, "exchange_over": over, "exchange_s": o.time_s}


def corrected(table: TableColumns, o: Observation, memory: Memory) -> TableColumns:
    """Estimates, with the exchange time of jobs that do not exchange now kept from their last exchange."""
    job = table[0]
    alone = o.jobs.gpus_held[job] <= o.jobs.gpus_per_worker[job]
    factor = np.where(alone, memory["exchange_over"][job], 1.0)
    return (*table[:4], frozen(table[4] * factor), table[5])


def measured(o: Observation, memory: Memory, rows: Ints) -> Bools:
    """Whether each job's goodput was measured on its present GPUs; a job with unknown start counts as measured."""
    at = np.searchsorted(memory["goodput_id"], rows)
    at = np.minimum(at, max(len(memory["goodput_id"]) - 1, 0))
    started_s = o.jobs.started_s[rows]
    if not len(memory["goodput_id"]):
        return np.isnan(started_s)
    seen = (memory["goodput_id"][at] == rows) & (memory["goodput_s"][at] > started_s)
    return np.asarray(seen | np.isnan(started_s))


def way_back(proposal: Proposal, memory: Memory, row: int) -> Ints | None:
    """The GPUs that a job held before its watched change, if available; else None."""
    o, k = proposal.observation, int(np.searchsorted(memory["undo_id"], row))
    if k == len(memory["undo_id"]) or memory["undo_id"][k] != row:
        return None
    gpus: Ints = memory["undo_gpu"][memory["undo_offset"][k] : memory["undo_offset"][k + 1]]
    there = (proposal.holder[gpus] == row) | ((proposal.holder[gpus] == -1) & o.nodes.up[o.gpus.node[gpus]])
    return gpus if there.all() else None


def watch(
    proposal: Proposal,
    nodes: NodeState,
    scaling: ScalingColumns,
    table: TableColumns,
    memory: dict[str, Any],
    undone: Ints,
) -> dict[str, Any]:
    """Watch all jobs but `undone` whose GPUs change now, for any reason; returns the memory with their former GPUs.

    The goodput must not fall; that of a job which gives up GPUs must not fall below the expected value.
    """
    o = proposal.observation
    rows = proposal.resized()
    if not len(rows):
        return memory
    rows = np.setdiff1d(rows, undone)
    rows = rows[~o.jobs.rigid[rows]]
    if not len(rows):
        return memory
    offset, gpu = held_gpus(o.gpus.job, rows)
    new_offset, new_gpu = held_gpus(proposal.holder, rows)
    per = np.maximum(o.jobs.gpus_per_worker[rows], 1)
    now, then = np.diff(offset) // per, np.diff(new_offset) // per
    model, new_model = slowest_models(o, nodes, offset, gpu), slowest_models(o, nodes, new_offset, new_gpu)
    step_s, new_step_s = np.empty(len(rows)), np.empty(len(rows))
    every = np.arange(len(rows))
    for sizes, models, result_s in ((now, model, step_s), (then, new_model, new_step_s)):
        times_of(frozen(rows), now, model, every, sizes, models, scaling, table, result_s)
    expected = o.jobs.goodput_samples_per_s[rows] * np.fmin(step_s / new_step_s, 1.0)
    expected = np.where(measured(o, memory, rows), expected, np.nan)
    record = guard_watch(memory["guard"], rows, expected, o.time_s, now.astype(np.float64))
    return {**memory, "guard": record, **_joined(memory, rows, offset, gpu, record["id"])}


def _joined(memory: dict[str, Any], rows: Ints, offset: Ints, gpu: Ints, watched: Ints) -> dict[str, Any]:
    """GPUs for a rollback: new ones of `rows`, and the remembered ones of other jobs that are still watched."""
    entries = dict(zip(rows.tolist(), np.split(gpu, offset[1:-1]), strict=True))
    old = zip(memory["undo_id"].tolist(), np.split(memory["undo_gpu"], memory["undo_offset"][1:-1]), strict=False)
    entries = {row: gpus for row, gpus in old if row in watched and row not in entries} | entries
    order = sorted(entries)
    count = [len(entries[row]) for row in order]
    return {
        "undo_id": np.array(order, dtype=np.int64),
        "undo_offset": np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(count, dtype=np.int64))),
        "undo_gpu": np.concatenate([np.empty(0, dtype=np.int64), *(entries[row] for row in order)]),
    }
