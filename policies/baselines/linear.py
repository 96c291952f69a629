"""A learnt order of the queue: waiting jobs by a weighted sum of what is known of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.ranking import gpus_wanted
from equipoise.policies.baselines.queueing import NONE_STARTS, NONE_WAITS, PLANNED, unchanged, with_allocation
from equipoise.policies.contract import Allocation, AllocationStage, Memory, Plan
from equipoise.policies.kernels.gangs import frozen, request_columns, room_columns, start_in_order
from equipoise.policies.kernels.placement import PLACEMENTS
from equipoise.policies.observation import Floats, Ints, Observation

FEATURES = ("service", "gpus", "waited", "response", "one node")
_HOUR_S = 3600.0


def features(o: Observation, rows: Ints) -> Floats:
    """What is known of some jobs, (rows, FEATURES), each of the order of 1; 0 is typical or unknown.

    service: log10 of the estimated time left in hours. gpus: log10 of the GPUs that it starts with. waited: log10 of 1
    and the hours waited. response: log10 of 1 and the time waited over the time left. one node: 1 if a node has enough
    GPUs.
    """
    jobs, gpus = o.jobs, gpus_wanted(o, rows)
    service_h = np.maximum(np.nan_to_num(jobs.service_s[rows], nan=_HOUR_S), 1.0) / _HOUR_S
    waited_h = np.nan_to_num(jobs.waited_s[rows]) + np.maximum(o.time_s - jobs.queued_since_s[rows], 0.0)
    waited_h = np.nan_to_num(waited_h) / _HOUR_S
    found = np.empty((len(rows), len(FEATURES)))
    found[:, 0] = np.log10(service_h)
    found[:, 1] = np.log10(np.maximum(gpus, 1))
    found[:, 2] = np.log10(1.0 + waited_h)
    found[:, 3] = np.log10(1.0 + waited_h / service_h)
    found[:, 4] = gpus <= o.nodes.gpus.max(initial=0)
    return found


@dataclass(frozen=True)
class Linear(AllocationStage):
    """Starts waiting jobs by the highest weighted sum of their features, on the fewest nodes.

    The weights are made to be learnt (`equipoise.gym`); the default starts the jobs of least GPU time first. Order:
    (weighted sum, arrival). Blocking: a job that cannot be placed now is passed over. Preemption: never.
    """

    name: ClassVar[str] = "linear"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs"})
    order: ClassVar[str] = "weighted sum of features, then arrival"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    starvation: ClassVar[str] = "a job may wait for as long as others arrive"
    preemption: ClassVar[str] = "never"
    places: ClassVar[str] = "packed"
    starts_only: ClassVar[bool] = True

    weights: tuple[float, ...] = (-1.0, -1.0, 0.0, 0.0, 0.0)  # of service, gpus, waited, response, one node

    def __post_init__(self) -> None:
        if len(self.weights) != len(FEATURES):
            raise ValueError(f"weights: {len(self.weights)} numbers; one for each of {', '.join(FEATURES)}")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs in that order."""
        waiting = observation.waiting
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not len(waiting):
            return unchanged(plan, self.name, NONE_WAITS), memory
        order = np.argsort(-(features(observation, waiting) @ np.array(self.weights)), kind="stable")
        requests, room = request_columns(observation), room_columns(observation)
        grants, _ = start_in_order(frozen(waiting[order]), False, PLACEMENTS["packed"], requests, room)
        if not len(grants[0]):
            return unchanged(plan, self.name, NONE_STARTS), memory
        return with_allocation(plan, self.name, len(waiting), Allocation(*grants)), memory
