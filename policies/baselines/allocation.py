"""Allocation baselines. One name means one thing: each states order, blocking, placement and preemption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.baselines.queueing import (
    planned_already,
    request_columns,
    room_columns,
    some_room,
    start_from_queue,
    start_in_order,
    with_starts,
)
from policies.baselines.sorted_queue import key_columns, queue_now
from policies.contract import Allocation, AllocationStage, Memory, Plan
from policies.observation import Observation
from policies.placement import PLACEMENTS


@dataclass(frozen=True)
class _Placed(AllocationStage):
    """An allocation stage with a placement rule: `counted`, `packed` or `any` (see `policies.placement`)."""

    placement: str = "any"

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement {self.placement!r} is none of {', '.join(PLACEMENTS)}")


@dataclass(frozen=True)
class Fifo(_Placed):
    """First in, first out.

    Order: (arrival, id). Blocking: the first job that cannot be placed holds up all behind it. Preemption:
    never.
    """

    name: ClassVar[str] = "fifo"
    order: ClassVar[str] = "arrival, then id"
    blocking: ClassVar[str] = "strict: stops at the first that does not fit"
    preemption: ClassVar[str] = "never"
    strict: ClassVar[bool] = True

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs in order of arrival."""
        waiting = observation.waiting
        if not len(waiting):
            return plan, memory
        if plan.allocation is not None:
            return planned_already(plan, self.name), memory
        started, job, offset, gpu, share, _ = start_in_order(
            waiting,
            self.strict,
            PLACEMENTS[self.placement],
            request_columns(observation),
            room_columns(observation),
        )
        if not started:
            return plan, memory
        return with_starts(plan, self.name, len(waiting), Allocation(job, offset, gpu, share)), memory


@dataclass(frozen=True)
class FifoGreedy(Fifo):
    """First in, first out, passing over what does not fit.

    Order: (arrival, id). Blocking: a job that cannot be placed now is passed over. Preemption: never.
    """

    name: ClassVar[str] = "fifo-greedy"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    strict: ClassVar[bool] = False


@dataclass(frozen=True)
class Sjf(_Placed):
    """Shortest job first, by the estimated duration of the whole job.

    Order: (duration estimate, id); an unknown duration comes last. Blocking: the first job that cannot be
    placed holds up all behind it. Preemption: never.
    """

    name: ClassVar[str] = "sjf"
    order: ClassVar[str] = "duration estimate, then id"
    blocking: ClassVar[str] = "strict: stops at the first that does not fit"
    preemption: ClassVar[str] = "never"
    strict: ClassVar[bool] = True

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs, shortest first."""
        jobs, waiting = observation.jobs, len(observation.waiting)
        if plan.allocation is not None:
            return planned_already(plan, self.name), memory
        if not waiting:
            return plan, memory
        columns = key_columns(observation, jobs.duration_s, jobs.id)
        memory = queue_now(memory, observation, columns)
        if not some_room(observation.nodes.gpus_free, observation.gpus.share_free):
            return plan, memory
        allocation, memory = start_from_queue(
            observation, memory, columns, self.strict, PLACEMENTS[self.placement]
        )
        if allocation is None:
            return plan, memory
        return with_starts(plan, self.name, waiting, allocation), memory


@dataclass(frozen=True)
class SjfGreedy(Sjf):
    """Shortest job first, passing over what does not fit.

    Order: (duration estimate, id). Blocking: a job that cannot be placed now is passed over. Preemption:
    never.
    """

    name: ClassVar[str] = "sjf-greedy"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    strict: ClassVar[bool] = False
