"""S413 by node: growing jobs avoid nodes onto which a change did harm, longer each time."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.contract import Memory
from equipoise.policies.observation import Bools, Ints, Observation


def remember_nodes(
    proposal: Proposal, memory: dict[str, Any], before: Memory, kept: Ints, rejected: Ints, noise: float
) -> dict[str, Any]:
    """The memory with the nodes that changes of `kept` and `rejected` jobs (rows) added.

    before: the watched changes. After a rollback, the job and the nodes are blocked for the guard's back-off, twice
    as long at each repeated failure, and at least until its cost is under `noise` of the time.
    """
    if not len(kept) and not len(rejected):
        return memory
    o, guard = proposal.observation, memory["guard"]
    failures, until_s = (column.copy() for column in _record(o, memory))
    blocked_s = guard["blocked_until_s"].copy()
    for row in kept.tolist():
        failures[_taken(proposal, memory, row)] = 0
    for row in rejected.tolist():
        k, nodes = int(np.searchsorted(guard["id"], row)), _taken(proposal, memory, row)
        first_s = (blocked_s[k] - o.time_s) * 0.5 ** (guard["failures"][k] - 1)
        least_s = o.time_s + trial_s(o, before, row) / noise if noise > 0.0 else o.time_s
        blocked_s[k] = max(blocked_s[k], least_s)
        until_s[nodes] = np.maximum(o.time_s + first_s * np.exp2(np.minimum(failures[nodes], 60)), least_s)
        failures[nodes] += 1
    return {**memory, "guard": {**guard, "blocked_until_s": blocked_s}, "shunned": failures, "shunned_until_s": until_s}


def trial_s(o: Observation, before: Memory, row: int) -> float:
    """Time (s) that a job has lost through its watched change: lower goodput, and two restarts."""
    k = int(np.searchsorted(before["id"], row))
    after = float(np.nan_to_num(o.jobs.goodput_samples_per_s[row]))
    lost_s = (o.time_s - float(before["since_s"][k])) * (1.0 - after / float(before["before"][k]))
    return max(lost_s, 0.0) + 2.0 * float(np.nan_to_num(o.jobs.restart_s[row]))


def avoided(o: Observation, memory: Memory) -> Bools:
    """Whether each node is avoided now."""
    return np.asarray(o.time_s < _record(o, memory)[1])


def _record(o: Observation, memory: Memory) -> tuple[Ints, Any]:
    if len(memory.get("shunned", ())) == len(o.nodes):
        return memory["shunned"], memory["shunned_until_s"]
    return np.zeros(len(o.nodes), dtype=np.int64), np.full(len(o.nodes), -np.inf)


def _taken(proposal: Proposal, memory: Memory, row: int) -> Ints:
    """Nodes that a job's watched change has added."""
    o, k = proposal.observation, int(np.searchsorted(memory["undo_id"], row))
    if k == len(memory["undo_id"]) or memory["undo_id"][k] != row:
        return np.empty(0, dtype=np.int64)
    before = memory["undo_gpu"][memory["undo_offset"][k] : memory["undo_offset"][k + 1]]
    now = o.gpus.node[o.gpus.job == row]
    return np.setdiff1d(now, o.gpus.node[before])
