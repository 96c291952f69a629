"""Synchronisation baselines: an exchange every step, every fixed number of steps, or at intervals that shrink over
training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import Kind, Memory, Plan, Stage
from equipoise.policies.observation import Ints, Observation
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


def _set_levels(o: Observation, plan: Plan, name: str, near: int, far: int | Ints, single: int | Ints) -> Plan:
    """Near workers exchange every `near` steps, all workers every `near * far`; jobs with one level every `single`."""
    groups = group_workers(o)
    rows = groups.rows[groups.sound]
    two = ~np.isnan(o.jobs.near_exchange_s[rows])
    intervals, every = plan.intervals(o).copy(), plan.far(o).copy()
    intervals[rows] = np.where(two, near, np.broadcast_to(single, len(o.jobs))[rows])
    every[rows] = np.where(two, np.broadcast_to(far, len(o.jobs))[rows], 1)
    if np.array_equal(intervals, plan.intervals(o)) and np.array_equal(every, plan.far(o)):
        return plan.because(name, "every interval is already as planned")
    changed = int(np.count_nonzero((intervals != plan.intervals(o)) | (every != plan.far(o))))
    return plan.with_(sync_interval=intervals, far_every=every).because(name, f"sets {changed} intervals")


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
class HierarchicalLocalSgd(Stage):
    """Hierarchical local SGD (Lin et al., ICLR 2020, section 5): near workers exchange often, all workers rarely.

    Workers of one node, or one rack where the job spans several, exchange every `interval` local steps (the paper's
    H), all of them at every `far_every`-th exchange (H^b). Jobs with one level (all workers near, or none): every
    `interval`.
    """

    name: ClassVar[str] = "hierarchical-local-sgd"
    kind: ClassVar[Kind] = "sync"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers"})

    interval: int = 2
    far_every: int = 8

    def __post_init__(self) -> None:
        if self.interval < 1 or self.far_every < 1:
            raise ValueError("interval and far_every must be at least 1")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set both intervals."""
        return _set_levels(observation, plan, self.name, self.interval, self.far_every, self.interval), memory


@dataclass(frozen=True)
class DiLoCo(Stage):
    """DiLoCo (Douillard et al. 2023): islands that train independently and exchange every `interval` steps.

    An island is a group of near workers, which exchange at every step; the islands do so every `interval` (500 in
    the paper), and a worker without near ones is an island of one. Until `warm_up` of the training is done, all
    workers exchange at every step: the paper starts from a model trained for 24,000 of its 88,000 steps, and finds
    an equally good model without. The gain of its outer optimiser (Nesterov momentum) is not part of the drift law
    here: give the model a `drift` fitted with it.
    """

    name: ClassVar[str] = "diloco"
    kind: ClassVar[Kind] = "sync"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers"})

    interval: int = 500
    warm_up: float = 24 / 88

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError("interval must be at least 1")
        if not 0.0 <= self.warm_up <= 1.0:
            raise ValueError("warm_up must be 0 to 1")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set both intervals of the jobs that have warmed up, 1 for the others."""
        every = np.where(observation.jobs.progress < self.warm_up, 1, self.interval)
        return _set_levels(observation, plan, self.name, 1, every, every), memory


@dataclass(frozen=True)
class AdaComm(Stage):
    """AdaComm (Wang & Joshi, MLSys 2019): local steps between exchanges, fewer as training progresses.

    Section 4: every `every_s`, tau = ceil(tau_0 sqrt(F / F_0)), with the loss F now and F_0 at the start; where
    that is no less than tau, tau is halved if the loss has not fallen. A stage sees no loss: with the
    Polyak-Lojasiewicz condition held as an equation, F is as the square of the gradient's norm, so the ratio of
    norms replaces the root.
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
        """Set the interval of each job whose update is due."""
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
