"""Data baselines: leave the data where it is, or assign shards to workers on the nodes that store them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import Kind, Memory, Plan, Stage
from equipoise.policies.observation import Ints, Observation
from equipoise.policies.stages.groups import WorkersByJob, append_moves, free_shards, group_workers


@dataclass(frozen=True)
class Static(Stage):
    """Leaves data where it is."""

    name: ClassVar[str] = "static"
    kind: ClassVar[Kind] = "data"
    needs: ClassVar[frozenset[str]] = frozenset()

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Change nothing."""
        return plan.because(self.name, "data stays where it is"), memory


@dataclass(frozen=True)
class Locality(Stage):
    """Assigns unstarted shards to a worker on the node that stores them, with balanced numbers of shards.

    A shard goes to the worker with the fewest shards on the storing node, if that has no more than the present owner
    has without it; no data is sent over the network.
    """

    name: ClassVar[str] = "locality"
    kind: ClassVar[Kind] = "data"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers", "shards"})

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Add moves of ownership to `plan`."""
        shards, workers = observation.shards, observation.workers
        groups = group_workers(observation)
        away = free_shards(observation, plan)
        away[away] = workers.node[shards.worker[away]] != shards.node[away]
        rows = np.flatnonzero(away)
        owners = _local_owners(observation, groups, rows)
        moved = owners >= 0
        text = f"{int(moved.sum())} of {len(rows)} shards stored elsewhere find a worker there"
        return append_moves(plan, observation, rows[moved], owners[moved]).because(self.name, text), memory


def _local_owners(observation: Observation, groups: WorkersByJob, rows: Ints) -> Ints:
    """New owner of each shard in `rows` on the node that stores it, or -1."""
    shards, workers = observation.shards, observation.workers
    owned = np.bincount(shards.worker[shards.worker >= 0], minlength=len(workers))
    hosts: dict[tuple[int, int], list[int]] = {}
    for worker in np.flatnonzero(groups.spread(groups.sound)).tolist():
        hosts.setdefault((int(workers.job[worker]), int(workers.node[worker])), []).append(worker)
    chosen = np.full(len(rows), -1, dtype=np.int64)
    for n, row in enumerate(rows.tolist()):
        there = hosts.get((int(shards.job[row]), int(shards.node[row])), [])
        best = min(there, key=lambda worker: (owned[worker], worker), default=-1)
        if best >= 0 and owned[best] < owned[shards.worker[row]]:
            owned[shards.worker[row]] -= 1
            owned[best] += 1
            chosen[n] = best
    return chosen
