"""Task baseline: equal shares of the global batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import Kind, Memory, Plan, Stage
from equipoise.policies.kernels.deal import deal_by_share
from equipoise.policies.observation import Observation
from equipoise.policies.stages.groups import group_workers


@dataclass(frozen=True)
class Equal(Stage):
    """Deals each job's global batch equally, in whole micro-batches; lower ranks take what is left over."""

    name: ClassVar[str] = "equal"
    kind: ClassVar[Kind] = "tasks"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers"})

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set samples_per_step where it is not equal already."""
        workers, jobs, groups = observation.workers, observation.jobs, group_workers(observation)
        batch = jobs.global_batch[groups.rows]
        size = groups.spread(np.diff(groups.first))
        nothing = np.zeros(len(workers))
        dealt, _ = deal_by_share(
            groups.first, groups.sound & (batch > 0), 1 / size, nothing, nothing,
            plan.samples(observation), workers.samples_max, batch, jobs.micro_batch[groups.rows],
        )  # fmt: skip
        if np.array_equal(dealt, plan.samples(observation)):
            return plan.because(self.name, "shares are equal"), memory
        return plan.with_(samples_per_step=dealt).because(self.name, "deals equal shares"), memory
