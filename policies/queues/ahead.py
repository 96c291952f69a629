"""The jobs that a policy would start next, found by running the policy on tables in which running jobs have ended.

A queue manager starts the next job the moment that GPUs come free, long before a policy is asked again. So it has
to know the order in advance. A stage behind the policy's own makes it: it carries the plan out on copies of the
tables, lets the job end that ends first by its estimate, asks again, and so on. The policy asked there begins with
what it remembers now (a reservation, say), so it decides each time a second time, for its memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import Allocation, Kind, Memory, Plan, Policy, Stage, refine
from equipoise.policies.observation import DONE, RUNNING, WAITING, Observation, Table, writable

ORDER = "order"
FREE_NEXT = -3
"""Stands in `Gpus.job` for jobs that are over and have not given their GPUs back."""
_UNKNOWN_S = 3600.0  # a job without any estimate ends so much later


@dataclass(frozen=True)
class Ahead(Stage):
    """The last stage of a policy that drives a queue: says in a reason which waiting jobs start next, in order.

    `values["order"]` are job rows: those that the plan starts, then those that would follow within `horizon_s`, but
    `least` of them, where so many wait, and no more than `most`.
    """

    name: ClassVar[str] = "ahead"
    kind: ClassVar[Kind] = "allocation"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs"})

    policy: Policy
    horizon_s: float = 60.0
    least: int = 8
    most: int = 128

    def initial(self) -> Memory:
        """That of the policy."""
        return self.policy.initial()

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """The plan with one more reason; it changes nothing else."""
        order = _started(plan.allocation, observation)
        memory = refine(self.policy, observation, memory).memory
        if len(observation.waiting) > len(order) and len(order) < self.most:
            order = _Future(observation, plan.allocation).starts(self, order, memory)
        rows = np.array(order[: self.most], dtype=np.int64)
        text = f"the next {len(rows)} of {len(observation.waiting)}"
        return plan.because(self.name, text, **{ORDER: rows}), memory


def with_order(policy: Policy) -> Policy:
    """The policy with `Ahead` behind its stages."""
    return Policy(policy.name, (*policy.stages, Ahead(policy)))


def order_of(plan: Plan) -> list[int]:
    """Job rows, first to start first, that `Ahead` has left in a plan."""
    return next((list(map(int, reason.values[ORDER])) for reason in plan.reasons if ORDER in reason.values), [])


def _started(allocation: Allocation | None, o: Observation) -> list[int]:
    """Rows of the waiting jobs that an allocation starts, in its order."""
    if allocation is None:
        return []
    given = allocation.job[np.diff(allocation.offset) > 0]
    return [int(row) for row in given if o.jobs.state[row] == WAITING]


class _Future:
    """Copies of the tables in which time goes on."""

    def __init__(self, o: Observation, allocation: Allocation | None) -> None:
        copies = {name: _copy(table) for name, table in (("nodes", o.nodes), ("gpus", o.gpus), ("jobs", o.jobs))}
        self.seen = replace(o, refused=(), **copies)  # type: ignore[arg-type]
        self.jobs, self.gpus = copies["jobs"], copies["gpus"]
        self.free = writable(copies["nodes"], "gpus_free")
        self.state, self.left_s = writable(self.jobs, "state"), writable(self.jobs, "service_s")
        self._carry_out(allocation)

    def starts(self, ahead: Ahead, order: list[int], memory: Mapping[str, Memory]) -> list[int]:
        """`order` and the starts that follow, in order. Raises StageError as the policy does."""
        begin_s = self.seen.time_s
        for _ in range(4 * ahead.most):
            enough = len(order) >= ahead.least and self.seen.time_s > begin_s + ahead.horizon_s
            if enough or len(order) >= ahead.most or not len(self.seen.waiting) or not self._end_first():
                break
            decision = refine(ahead.policy, self.seen, memory)
            memory = decision.memory
            order += [row for row in _started(decision.plan.allocation, self.seen) if row not in order]
            self._carry_out(decision.plan.allocation)
        return order

    def _end_first(self) -> bool:
        """Let time go on until a running job has ended, or one that is over gives its GPUs back; whether any."""
        if (self.seen.gpus.job == FREE_NEXT).any():
            self._release(FREE_NEXT, DONE)
            self._refresh(math.nextafter(self.seen.time_s, math.inf))
            return True
        running = self.seen.running
        if not len(running):
            return False
        left_s = np.nan_to_num(self.left_s[running], nan=_UNKNOWN_S, posinf=_UNKNOWN_S)
        step_s = max(float(left_s.min()), 0.0)
        writable(self.jobs, "attained_gpu_s")[running] += step_s * self.seen.jobs.gpus_held[running]
        self.left_s[running] = np.maximum(left_s - step_s, 0.0)
        for row in running[left_s <= step_s].tolist():
            self._release(row, DONE)
        self._refresh(self.seen.time_s + max(step_s, math.ulp(self.seen.time_s)))
        return True

    def _carry_out(self, allocation: Allocation | None) -> None:
        if allocation is not None:
            rows = allocation.job.tolist()
            for row in rows:
                if self.state[row] == RUNNING:
                    self._release(row, WAITING)
            for k, row in enumerate(rows):
                if len(gpus := allocation.gpus_of(k)):
                    writable(self.gpus, "job")[gpus] = row
                    writable(self.gpus, "share_free")[gpus] = 0.0
                    np.subtract.at(self.free, self.seen.gpus.node[gpus], 1)
                    self.state[row] = RUNNING
                    writable(self.jobs, "gpus_held")[row] = len(gpus)
                    writable(self.jobs, "started_s")[row] = self.seen.time_s
        self._refresh(self.seen.time_s)

    def _release(self, row: int, state: int) -> None:
        held = np.flatnonzero(self.seen.gpus.job == row)
        writable(self.gpus, "job")[held] = -1
        nodes = self.seen.gpus.node[held]
        up = self.seen.nodes.up[nodes]
        writable(self.gpus, "share_free")[held] = up
        np.add.at(self.free, nodes[up], 1)
        if row == FREE_NEXT:
            return
        self.state[row] = state
        writable(self.jobs, "gpus_held")[row] = 0
        if state == WAITING:
            writable(self.jobs, "queued_since_s")[row] = self.seen.time_s

    def _refresh(self, time_s: float) -> None:
        self.seen.time_s = time_s
        self.seen.waiting = np.flatnonzero(self.state[: len(self.seen.jobs)] == WAITING)
        self.seen.running = np.flatnonzero(self.state[: len(self.seen.jobs)] == RUNNING)


def _copy(table: Table) -> Table:
    return type(table).of(**table.as_dict())
