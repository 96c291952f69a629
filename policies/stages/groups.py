"""Shared code of the data, task and sync stages: workers grouped by job, memory by worker, links, moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.contract import Memory, Moves, Plan
from equipoise.policies.kernels.dataflow import LinkArrays, match_sorted, may_move, to_fetch
from equipoise.policies.observation import Bools, Floats, Ints, Observation, Paths


@dataclass(frozen=True, slots=True)
class WorkersByJob:
    """Running training jobs: job row rows[k] has the worker rows first[k] .. first[k + 1] - 1."""

    rows: Ints
    first: Ints
    count: Ints  # workers of each job
    sound: Bools  # a training job whose workers' nodes are all up

    def spread(self, per_job: NDArray[Any]) -> NDArray[Any]:
        """One value per job, repeated for each of its workers."""
        return np.repeat(per_job, self.count)


def group_workers(observation: Observation) -> WorkersByJob:
    """Group the workers table, which is sorted by job."""
    job, up = observation.workers.job, observation.nodes.up
    first = np.empty(1 + len(job), dtype=np.int64)
    ends = np.flatnonzero(job[1:] != job[:-1]) + 1
    jobs = len(ends) + (len(job) > 0)
    first = first[: 1 + jobs]
    first[0], first[1:jobs], first[jobs] = 0, ends, len(job)
    rows = job[first[:-1]]
    sound = ~observation.jobs.rigid[rows]
    if not up.all() and jobs:
        sound &= np.logical_and.reduceat(up[observation.workers.node], first[:-1])
    return WorkersByJob(rows, first, first[1:] - first[:-1], sound)


def carry(memory: Memory, observation: Observation, defaults: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """Columns of `memory` realigned to today's workers; a new or moved worker starts from `defaults`.

    The result holds fresh arrays, with the keys `id` and `gpu` that the next call needs.
    """
    ids, gpu = observation.workers.id, observation.workers.gpu
    columns: dict[str, NDArray[Any]] = {"id": ids, "gpu": gpu.copy()}
    if "id" in memory and np.array_equal(memory["id"], ids) and np.array_equal(memory["gpu"], gpu):
        for name, default in defaults.items():  # as nearly always
            columns[name] = memory[name].copy() if name in memory else np.full(len(ids), default)
        return columns
    at = match_sorted(memory["id"], ids) if "id" in memory else np.full(len(ids), -1, dtype=np.int64)
    if "id" in memory and len(memory["id"]):
        at[memory["gpu"][at] != gpu] = -1
    known = at >= 0
    for name, default in defaults.items():
        values = np.full(len(ids), default)
        if name in memory:
            values[known] = memory[name][at[known]]
        columns[name] = values
    return columns


def links_of(observation: Observation, *, measured: bool = True) -> LinkArrays:
    """Transfer rates between nodes: measured ones in `paths`, else the free part of the slower interface.

    An interface counts as at least 1 % free; one of unknown rate is no limit.
    """
    nodes, paths = observation.nodes, observation.paths
    free = 1.0 - np.clip(or_else(nodes.nic_busy_ratio), 0.0, 0.99)
    nic = np.where(nodes.nic_bytes_per_s > 0, nodes.nic_bytes_per_s * free, np.inf)
    if not measured:
        paths = Paths()
    key = paths.source * len(nodes) + paths.target
    order: slice | Ints = slice(None)
    if not (key[1:] > key[:-1]).all():
        order = np.argsort(key, kind="stable")
    # Copies, writable like all else here: one compiled version of each kernel serves both cases.
    return LinkArrays(key[order], np.array(paths.bytes_per_s[order]), np.array(paths.latency_s[order]), nic)


def room_bytes(observation: Observation, plan: Plan) -> Floats:
    """Free storage per node once the planned moves have arrived; infinite where it is unknown."""
    free = observation.nodes.storage_free_bytes
    room: Floats = np.where(np.isnan(free), np.inf, free)
    if plan.moves is not None:
        room -= moved_bytes(observation, plan.moves, incoming=True)
    return room


def moved_bytes(observation: Observation, moves: Moves, *, incoming: bool) -> Floats:
    """Bytes per node that `moves` bring in, or take out, over the network."""
    away = (moves.source != moves.target) & (moves.source >= 0)
    end = moves.target if incoming else moves.source
    size = observation.shards.bytes[moves.shard[away]]
    return np.bincount(end[away], weights=size, minlength=len(observation.nodes)).astype(np.float64)


def bytes_to_fetch(observation: Observation) -> tuple[Floats, Floats]:
    """Bytes of shards not at their owner: (to send, to receive) per node, (nodes,) each."""
    shards, nodes = observation.shards, len(observation.nodes)
    sent, received = np.zeros(nodes), np.zeros(nodes)
    to_fetch(shards.worker, shards.node, shards.local, shards.bytes, observation.workers.node, sent, received)
    return sent, received


def free_shards(observation: Observation, plan: Plan) -> Bools:
    """Shards that a plan may still move: owned, not started, stored on a living node, not moved already."""
    shards = observation.shards
    free = np.empty(len(shards), dtype=np.bool_)
    may_move(shards.worker, shards.node, shards.started, observation.nodes.up, free)
    if plan.moves is not None:
        free[plan.moves.shard] = False
    return free


def owned_after(observation: Observation, plan: Plan) -> Floats:
    """Samples that each worker owns after the planned moves, (workers,)."""
    owned: Floats = observation.workers.samples_owned.copy()
    if plan.moves is not None:
        shards = observation.shards
        samples = shards.samples[plan.moves.shard].astype(np.float64)
        np.subtract.at(owned, shards.worker[plan.moves.shard], samples)
        np.add.at(owned, plan.moves.worker, samples)
    return owned


def append_moves(plan: Plan, observation: Observation, rows: Ints, owners: Ints) -> Plan:
    """`plan` with the shards `rows` moved to the workers `owners`, after the moves it has."""
    if not len(rows):
        return plan
    parts = (rows, observation.shards.node[rows], observation.workers.node[owners], owners)
    if plan.moves is not None:
        before = plan.moves
        parts = tuple(  # type: ignore[assignment]
            np.concatenate(pair)
            for pair in zip((before.shard, before.source, before.target, before.worker), parts, strict=True)
        )
    return plan.with_(moves=Moves(*parts))


def or_else(values: Floats, instead: float = 0.0) -> Floats:
    """`instead` where a value is unknown (NaN); a quarter of the time of np.nan_to_num, which also replaces
    infinities."""
    return np.where(np.isnan(values), instead, values)


def measurement_noise(observation: Observation, groups: WorkersByJob) -> Floats:
    """Relative standard error of the step times over the window, the largest of each job; 0 if unknown."""
    workers = observation.workers
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = np.maximum(observation.window_s / (workers.step_s + or_else(workers.wait_s)), 1.0)
        error = np.nan_to_num(workers.step_cov / np.sqrt(steps), nan=0.0, posinf=0.0)
    return np.maximum.reduceat(error, groups.first[:-1])
