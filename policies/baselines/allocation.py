"""Allocation baselines; each states its order, blocking, placement and preemption."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.backfill import backfill
from equipoise.policies.allocation.preemption import remaining_bars
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.baselines.attained_levels import next_demotion_s, next_promotion, promoted
from equipoise.policies.baselines.queueing import (
    NONE_FREE,
    NONE_STARTS,
    NONE_WAITS,
    PLANNED,
    preempt_from_queue,
    start_from_queue,
    unchanged,
    with_allocation,
)
from equipoise.policies.baselines.sorted_queue import key_columns, keys_of, queue_now
from equipoise.policies.contract import Allocation, AllocationStage, Memory, Plan
from equipoise.policies.kernels.gangs import (
    NO_ROWS,
    ascending,
    frozen,
    joined,
    request_columns,
    room_columns,
    some_room,
    start_in_order,
    total,
)
from equipoise.policies.kernels.placement import PLACEMENTS
from equipoise.policies.observation import Floats, Observation


@dataclass(frozen=True)
class _Placed(AllocationStage):
    """An allocation stage with a placement rule: `counted`, `packed` or `any` (`policies.kernels.placement`)."""

    placement: str = "any"

    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs"})

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement {self.placement!r} is none of {', '.join(PLACEMENTS)}")


def _why_none(observation: Observation) -> str:
    return NONE_STARTS if some_room(observation.nodes.gpus_free, observation.gpus.share_free) else NONE_FREE


@dataclass(frozen=True)
class Fifo(_Placed):
    """First in, first out.

    Order: (arrival, id). Blocking: the first job that cannot be placed blocks all behind it. Preemption: never.
    """

    name: ClassVar[str] = "fifo"
    order: ClassVar[str] = "arrival, then id"
    blocking: ClassVar[str] = "strict: stops at the first that does not fit"
    starvation: ClassVar[str] = "never: a job waits for those before it only"
    fidelity: ClassVar[str] = "exact, by job, on 1,435 jobs of Philly"
    preemption: ClassVar[str] = "never"
    starts_only: ClassVar[bool] = True
    strict: ClassVar[bool] = True

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs in order of arrival."""
        waiting = observation.waiting
        if not len(waiting):
            return unchanged(plan, self.name, NONE_WAITS), memory
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        rule = PLACEMENTS[self.placement]
        grants, _ = start_in_order(
            frozen(waiting), self.strict, rule, request_columns(observation), room_columns(observation)
        )
        if not len(grants[0]):
            return unchanged(plan, self.name, _why_none(observation)), memory
        return with_allocation(plan, self.name, len(waiting), Allocation(*grants)), memory


@dataclass(frozen=True)
class FifoGreedy(Fifo):
    """First in, first out, passing over what does not fit.

    Order: (arrival, id). Blocking: a job that cannot be placed now is passed over. Preemption: never.
    """

    name: ClassVar[str] = "fifo-greedy"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    starvation: ClassVar[str] = "a gang may wait for as long as smaller jobs arrive"
    strict: ClassVar[bool] = False


@dataclass(frozen=True)
class Sjf(_Placed):
    """Shortest job first, by the estimated duration of the whole job.

    Order: (duration estimate, id); an unknown duration comes last. Blocking: the first job that cannot be placed
    blocks all behind it. Preemption: never.
    """

    name: ClassVar[str] = "sjf"
    order: ClassVar[str] = "duration estimate, then id"
    blocking: ClassVar[str] = "strict: stops at the first that does not fit"
    starvation: ClassVar[str] = "a long job may wait for as long as shorter ones arrive"
    fidelity: ClassVar[str] = "exact, by job, on 1,435 jobs of Philly"
    preemption: ClassVar[str] = "never"
    starts_only: ClassVar[bool] = True
    strict: ClassVar[bool] = True

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs, shortest first."""
        jobs, waiting = observation.jobs, len(observation.waiting)
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not waiting:
            return unchanged(plan, self.name, NONE_WAITS), memory
        columns = key_columns(observation, jobs.duration_s, jobs.id)
        memory = queue_now(memory, observation, columns)
        allocation, memory = start_from_queue(observation, memory, columns, self.strict, PLACEMENTS[self.placement])
        if allocation is None:
            return unchanged(plan, self.name, _why_none(observation)), memory
        return with_allocation(plan, self.name, waiting, allocation), memory


@dataclass(frozen=True)
class SjfGreedy(Sjf):
    """Shortest job first, passing over what does not fit.

    Order: (duration estimate, id). Blocking: a job that cannot be placed now is passed over. Preemption:
    never.
    """

    name: ClassVar[str] = "sjf-greedy"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    starvation: ClassVar[str] = "a long job or a gang may wait for as long as shorter or smaller ones arrive"
    strict: ClassVar[bool] = False


@dataclass(frozen=True)
class Easy(_Placed):
    """EASY backfill (Lifka 1995): first in, first out, with one reservation.

    Order: (arrival, id). Blocking: the first job that cannot be placed reserves the earliest time at which
    the estimated ends of running jobs let it start; a later job starts if it fits now and, by its estimate,
    ends before that time or leaves the reservation possible. Preemption: never.
    """

    name: ClassVar[str] = "easy"
    order: ClassVar[str] = "arrival, then id"
    blocking: ClassVar[str] = "backfill: passes over what does not fit where that does not delay the first"
    starvation: ClassVar[str] = "never: the first has a reservation"
    preemption: ClassVar[str] = "never"
    starts_only: ClassVar[bool] = True

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs in order of arrival, then backfill behind the first that is blocked."""
        waiting, rule = frozen(observation.waiting), PLACEMENTS[self.placement]
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not len(waiting):
            return unchanged(plan, self.name, NONE_WAITS), memory
        if not some_room(observation.nodes.gpus_free, observation.gpus.share_free):
            return unchanged(plan, self.name, NONE_FREE), memory
        requests, room = request_columns(observation), room_columns(observation)
        first, _ = start_in_order(waiting, True, rule, requests, room)
        parts, reserved_s, rest = [first], math.nan, waiting[len(first[0]) :]
        if len(rest) > 1:
            proposal = Proposal(observation)
            proposal.start(first)
            running = np.sort(np.concatenate((observation.running, first[0])))
            second, reserved_s = backfill(
                observation,
                rest,
                observation.jobs.service_s,
                rule,
                running,
                proposal.holder,
                requests,
                proposal.columns,
            )
            parts.append(second)
        grants = joined(parts)
        if not len(grants[0]):
            return unchanged(plan, self.name, NONE_STARTS), memory
        allocation = Allocation(*grants)
        return with_allocation(plan, self.name, len(waiting), allocation, reserved_s=reserved_s), memory


@dataclass(frozen=True)
class Srtf(_Placed):
    """Shortest remaining time first, preemptive.

    Order: (estimated remaining time, id); an unknown time comes last. Blocking: a job that cannot be placed
    even by preemption is passed over. Preemption: a waiting job stops those running jobs, longest first,
    whose remaining time less their `restart_s` is still longer than its own; those it does not need for
    its placement keep running. By definition long jobs may wait for as long as shorter ones arrive.
    """

    name: ClassVar[str] = "srtf"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs", "workers"})
    order: ClassVar[str] = "estimated remaining time, then id"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    starvation: ClassVar[str] = "a long job or a gang may wait for as long as shorter or smaller ones arrive"
    preemption: ClassVar[str] = "stops longer jobs where that gains more than their restart costs"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs, least remaining time first, in place of running ones with more."""
        jobs = observation.jobs
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not len(observation.waiting):
            return unchanged(plan, self.name, NONE_WAITS), memory
        columns = key_columns(observation, jobs.service_s, jobs.id)
        queue = queue_now(memory, observation, columns, memory.get("again", NO_ROWS))
        running = ascending(observation.running)
        bar = remaining_bars(running, jobs.service_s, jobs.restart_s)
        allocation, stopped, _, queue = preempt_from_queue(
            observation, queue, columns, PLACEMENTS[self.placement], running, bar
        )
        if not len(allocation.job):
            return unchanged(plan, self.name, NONE_STARTS), queue
        waiting, stops = len(observation.waiting), len(stopped)
        return with_allocation(plan, self.name, waiting, allocation, stops), queue


@dataclass(frozen=True)
class Las(_Placed):
    """Tiresias-like (Gu et al. 2019, 2D-LAS): least attained service in discrete queues, each in order of arrival.

    Order: (queue, arrival, id); a job's queue is the number of `thresholds_gpu_s` that its attained
    GPU-seconds have reached. Blocking: a job that cannot be placed even by preemption is passed over.
    Preemption: a waiting job stops running jobs of later queues, last queue and latest arrival first; never
    jobs of its own queue.

    No job starves because of its attained service: `promote` seconds of waiting deduct one second of it on all
    its GPUs, in whole quanta of the first threshold, so that a job eventually returns to the first queue (0: never).
    A gang may wait there for as long as smaller jobs of that queue arrive. `revisit_s` requests the decision at
    which a job changes queue and another could gain: nothing is polled.
    """

    thresholds_gpu_s: tuple[float, ...] = (3600.0, 36000.0)
    promote: float = 256.0

    name: ClassVar[str] = "las"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs", "workers"})
    order: ClassVar[str] = "queue by attained GPU-seconds, then arrival, then id"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    starvation: ClassVar[str] = "a gang may wait for as long as smaller jobs of its queue arrive"
    preemption: ClassVar[str] = "stops jobs of later queues"

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = np.diff((0.0, *self.thresholds_gpu_s))
        if not len(steps) or not (steps > 0).all():
            raise ValueError("thresholds_gpu_s must be ascending, above 0")
        if not self.promote >= 0:
            raise ValueError("promote must be at least 0")

    @cached_property
    def _thresholds(self) -> Floats:
        return frozen(np.array(self.thresholds_gpu_s, dtype=np.float64))

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs of the first queues in place of running jobs of later ones."""
        jobs = observation.jobs
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not len(observation.waiting):
            return unchanged(plan, self.name, NONE_WAITS), memory
        relief = 1.0 / self.promote if self.promote > 0 else 0.0
        columns = key_columns(observation, jobs.attained_gpu_s, NO_ROWS, self._thresholds, relief)
        again, promotion = promoted(observation, memory, columns)
        queue = queue_now(memory, observation, columns, again)
        running = ascending(observation.running)
        bar = keys_of(running, columns)
        allocation, stopped, lowest, queue = preempt_from_queue(
            observation, queue, columns, PLACEMENTS[self.placement], running, bar
        )
        promotion = min(promotion, next_promotion(stopped, columns), key=itemgetter(0))
        revisit_s = min(plan.revisit_s, promotion[0])
        if queue["waiting"] or len(stopped):
            demotion_s = next_demotion_s(
                running,
                jobs.gpus_held,
                frozen(allocation.job),
                len(stopped),
                jobs.gpus_requested,
                jobs.gpu_share_requested,
                lowest,
                total(observation.nodes.gpus_free) - len(allocation.gpu),
                columns,
            )
            revisit_s = min(revisit_s, demotion_s)
        queue = {**queue, "promotion": promotion}
        if not len(allocation.job):
            return unchanged(plan, self.name, NONE_STARTS).with_(revisit_s=revisit_s), queue
        waiting, stops = len(observation.waiting), len(stopped)
        return with_allocation(plan, self.name, waiting, allocation, stops, revisit_s), queue
