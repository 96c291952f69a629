"""Synchronisation baselines: every local step, a fixed number of them, or fewer as training gets on."""

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


@dataclass(frozen=True)
class AdaComm(Stage):
    """AdaComm (Wang & Joshi, MLSys 2019): local steps between exchanges, fewer as training gets on.

    Section 4: every `every_s`, tau = ceil(tau_0 sqrt(F / F_0)), with the loss F now and F_0 at the start; where
    that is no less than tau, tau is halved if the loss has not fallen. A stage sees no loss: with the
    Polyak-Lojasiewicz condition held as an equation, F is as the square of the gradient's norm, so the ratio of
    norms takes the place of the root.
    """

    name: ClassVar[str] = "adacomm"
    kind: ClassVar[Kind] = "sync"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers"})

    interval: int = 10  # tau_0
    every_s: float = 60.0

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError("interval must be at least 1")
        if not self.every_s > 0:
            raise ValueError("every_s must be above 0")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set the interval of each job whose time has come."""
        o, groups = observation, group_workers(observation)
        columns = {name: np.full(len(o.jobs), np.nan) for name in ("first", "last", "at_s")}
        for name, column in columns.items():
            old = memory.get(name, column[:0])
            column[: min(len(old), len(column))] = old[: len(column)]
        intervals = plan.intervals(o).copy()
        for k in np.flatnonzero(groups.sound).tolist():
            row = int(groups.rows[k])
            own = o.workers.gradient_norm[groups.first[k] : groups.first[k + 1]]
            norm = float(np.median(own))
            due = not o.time_s < columns["at_s"][row] + self.every_s
            if not (norm > 0 and np.isfinite(norm)) or not due:
                continue
            columns["at_s"][row] = o.time_s
            if np.isnan(columns["first"][row]):
                columns["first"][row], columns["last"][row] = norm, norm
                intervals[row] = self.interval
                continue
            aim = int(np.ceil(self.interval * norm / columns["first"][row] - 1e-9))
            tau = int(intervals[row])
            fell = norm < columns["last"][row]
            intervals[row] = max(1, aim if aim < tau else tau if fell else -(-tau // 2))
            columns["last"][row] = norm
        if np.array_equal(intervals, plan.intervals(o)):
            return plan.because(self.name, "no interval is due to change"), columns
        changed = int(np.count_nonzero(intervals != plan.intervals(o)))
        return plan.with_(sync_interval=intervals).because(self.name, f"sets {changed} intervals"), columns
