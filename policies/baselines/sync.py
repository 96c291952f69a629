"""Synchronisation baselines: exchange gradients after every local step, or after a fixed number of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import Kind, Memory, Plan, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.stages.groups import group_workers


def _set_interval(observation: Observation, plan: Plan, name: str, interval: int) -> Plan:
    groups = group_workers(observation)
    rows = groups.rows[groups.sound]
    before = plan.intervals(observation)
    if (before[rows] == interval).all():
        return plan.because(name, f"every interval is {interval}")
    intervals = before.copy()
    intervals[rows] = interval
    changed = int(np.count_nonzero(intervals != before))
    return plan.with_(sync_interval=intervals).because(name, f"sets {changed} intervals to {interval}")


@dataclass(frozen=True)
class EveryStep(Stage):
    """Exchanges gradients after every local step (H = 1)."""

    name: ClassVar[str] = "every-step"
    kind: ClassVar[Kind] = "sync"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers"})

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set every interval to 1."""
        return _set_interval(observation, plan, self.name, 1), memory


@dataclass(frozen=True)
class FixedInterval(Stage):
    """Exchanges gradients after every `interval` local steps (local SGD, Stich 2019)."""

    name: ClassVar[str] = "fixed-h"
    kind: ClassVar[Kind] = "sync"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers"})

    interval: int = 4

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError("interval must be at least 1")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set every interval to `interval`."""
        return _set_interval(observation, plan, self.name, self.interval), memory
