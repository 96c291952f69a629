"""Task baselines: equal shares of the global batch, and shares by predicted speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import Kind, Memory, Plan, Stage
from equipoise.policies.kernels.batch_split import deal_by_share, slowest_step
from equipoise.policies.observation import Observation
from equipoise.policies.stages.groups import carry, group_workers


@dataclass(frozen=True)
class Equal(Stage):
    """Splits each job's global batch equally, in whole micro-batches; lower ranks get the remainder."""

    name: ClassVar[str] = "equal"
    kind: ClassVar[Kind] = "tasks"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers"})

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set samples_per_step where it is not already equal."""
        workers, jobs, groups = observation.workers, observation.jobs, group_workers(observation)
        batch = jobs.global_batch[groups.rows]
        size = groups.spread(np.diff(groups.first))
        nothing = np.zeros(len(workers))
        dealt, _ = deal_by_share(
            groups.first,
            groups.sound & (batch > 0),
            1 / size,
            nothing,
            nothing,
            plan.samples(observation),
            workers.samples_max,
            batch,
            jobs.micro_batch[groups.rows],
        )
        if np.array_equal(dealt, plan.samples(observation)):
            return plan.because(self.name, "shares are equal"), memory
        return plan.with_(samples_per_step=dealt).because(self.name, "splits the batch equally"), memory


@dataclass(frozen=True)
class LbBsp(Stage):
    """LB-BSP (Chen et al., SoCC 2020): parts of the batch in proportion to each worker's predicted speed.

    Semi-dynamic balancing: x_i = X v_i / sum(v) with the speed v_i (samples/s) that worker i is predicted to have
    (section 3), so that all reach the barrier together; between two adjustments the split is fixed. The paper
    predicts v with a recurrent network (NARX); here it is an exponential mean, its simpler alternative. The split
    changes where the slowest step gets shorter by `margin`.
    """

    name: ClassVar[str] = "lb-bsp"
    kind: ClassVar[Kind] = "tasks"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers"})

    memory: float = 0.5  # weight of what was predicted before
    margin: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 <= self.memory < 1.0:
            raise ValueError("memory must be at least 0 and below 1")
        if not self.margin >= 0.0:
            raise ValueError("margin must not be negative")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Predict speeds and split the batch by them."""
        workers, jobs, groups = observation.workers, observation.jobs, group_workers(observation)
        if not len(workers):
            return plan.because(self.name, "nobody trains"), memory
        state = carry(memory, observation, {"speed": np.nan})
        seen = np.divide(
            1.0,
            workers.response_s_per_sample,
            where=workers.response_s_per_sample > 0,
            out=np.full(len(workers), np.nan),
        )
        mixed = self.memory * state["speed"] + (1.0 - self.memory) * seen
        state["speed"] = np.where(np.isnan(seen), state["speed"], np.where(np.isnan(mixed), seen, mixed))
        speed, now, first = state["speed"], plan.samples(observation), groups.first
        total = groups.spread(np.add.reduceat(speed, first[:-1]))
        measured = np.logical_and.reduceat(seen > 0, first[:-1])  # else the deal in force stays
        batch = jobs.global_batch[groups.rows]
        nothing, measured_at = np.zeros(len(workers)), workers.samples_per_step
        response_s = np.nan_to_num(workers.response_s_per_sample, nan=1.0)
        dealt, _ = deal_by_share(
            first,
            groups.sound & measured & (batch > 0),
            speed / total,
            nothing,
            nothing,
            now,
            workers.samples_max,
            batch,
            jobs.micro_batch[groups.rows],
        )
        before_s, after_s = (slowest_step(first, response_s, nothing, measured_at, deal) for deal in (now, dealt))
        pays = groups.spread(after_s < before_s * (1.0 - self.margin))
        samples = np.where(pays, dealt, now)
        if np.array_equal(samples, now):
            return plan.because(self.name, "the present split is as good"), state
        return plan.with_(samples_per_step=samples).because(self.name, "splits the batch by predicted speed"), state
