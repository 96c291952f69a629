"""The one contract between policies and worlds: Stage, Policy, World and decide; with Plan and check, its parts.

    observation = world.observe()
    for stage in policy.stages:
        plan, memory[stage] = stage.refine(observation, plan, memory[stage])
    refused = world.apply(plan)

A stage is a small frozen dataclass: parameters only. Its memory is passed in and out. `None` in a
plan means "leave as it is"; an empty plan changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

from equipoise.policies.blame import place_of, with_ids
from equipoise.policies.feasibility import check as check  # parts of this contract, too
from equipoise.policies.observation import TABLES, Observation
from equipoise.policies.observation import Refusal as Refusal
from equipoise.policies.plan import UNCHANGED as UNCHANGED
from equipoise.policies.plan import Allocation as Allocation
from equipoise.policies.plan import Moves as Moves
from equipoise.policies.plan import Plan as Plan
from equipoise.policies.plan import Reason as Reason

CONTRACT_VERSION = 1

Kind = Literal["data", "tasks", "sync", "power", "allocation"]
Memory = Mapping[str, Any]
"""Plain arrays, numbers and strings by name; treated as immutable."""


@dataclass(frozen=True)
class Stage(ABC):
    """One pluggable decision. Subclasses are frozen dataclasses whose fields are their parameters."""

    name: ClassVar[str]
    kind: ClassVar[Kind]
    needs: ClassVar[frozenset[str]] = frozenset(TABLES)
    """Tables of the observation that the stage reads; a world may leave the others empty."""

    def initial(self) -> Memory:
        """Memory before the first decision."""
        return {}

    @abstractmethod
    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Refine `plan` from the observation; returns the new plan and the new memory.

        Must not modify `observation`, `plan` or `memory`, and must be deterministic.
        """


@dataclass(frozen=True)
class AllocationStage(Stage):
    """A stage that allocates GPUs and states its order, blocking and preemption."""

    kind: ClassVar[Kind] = "allocation"
    order: ClassVar[str]  # which job is considered first
    blocking: ClassVar[str]  # what happens if the first job does not fit
    preemption: ClassVar[str]  # whether and when a running job is stopped
    places: ClassVar[str] = ""  # placement of gangs, if there is no `placement` parameter
    starvation: ClassVar[str] = ""  # whether a job may wait for as long as others arrive
    fidelity: ClassVar[str] = ""  # how far it is what it is named after: exact, faithful, like, or not compared
    starts_only: ClassVar[bool] = False
    """It only starts waiting jobs on free GPUs: a world need not ask it when no job waits or no GPU is free."""
    honours: ClassVar[tuple[str, ...]] = ("limits", "partitions", "GPU types", "topology required")
    """Parts of a scenario's `queues` that it respects, and `job priority`; every policy respects these four."""
    keeps_limits: ClassVar[bool] = False
    """It respects limits, partitions and GPU types itself, and also sees jobs that may not start now."""


@dataclass(frozen=True)
class Policy:
    """A named list of stages, refined in order."""

    name: str
    stages: tuple[Stage, ...]

    def initial(self) -> dict[str, Memory]:
        """Memory of every stage before the first decision, keyed by position and name."""
        return {key: stage.initial() for key, stage in self.keyed}

    @cached_property
    def keyed(self) -> tuple[tuple[str, Stage], ...]:
        """Stages with the key of their memory."""
        return tuple((f"{i}:{stage.name}", stage) for i, stage in enumerate(self.stages))


class StageError(Exception):
    """A stage raised, or returned a plan that is not feasible."""

    def __init__(self, stage: str, problem: str, time_s: float) -> None:
        super().__init__(f"stage {stage} at {time_s:.6g} s: {problem}")
        self.stage, self.problem, self.time_s = stage, problem, time_s


class World(Protocol):
    """The two sides of the seam: the simulator and a live training job."""

    def observe(self) -> Observation:
        """The state now."""

    def apply(self, plan: Plan) -> list[Refusal]:
        """Apply a feasible plan; returns immediate refusals, later ones are in the next observation."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision, complete: it replays from (observation, memory_before) alone."""

    observation: Observation
    plan: Plan
    memory_before: Mapping[str, Memory]
    memory: dict[str, Memory]


def refine(policy: Policy, observation: Observation, memory: Mapping[str, Memory]) -> Decision:
    """Run every stage once and check its changes.

    Raises StageError when a stage raises or its plan is not feasible.
    """
    plan, after = UNCHANGED, dict(memory)
    for key, stage in policy.keyed:
        try:
            answer = stage.refine(observation, plan, memory.get(key, {}))
        except (Exception, SystemExit) as error:  # a stage must not end the program
            text = f"{type(error).__name__}: {error}{place_of(stage, error.__traceback__)}"
            raise StageError(stage.name, text, observation.time_s) from error
        if not _is_answer(answer):
            raise StageError(stage.name, f"refine must return (plan, memory){place_of(stage)}", observation.time_s)
        refined, after[key] = answer
        try:
            problem = check(refined, observation, before=plan) if refined is not plan else None
        except Exception as error:  # such as a list where an array belongs
            problem = f"{type(error).__name__}: {error}"
        if problem:
            text = f"infeasible plan: {with_ids(problem, observation)}{place_of(stage)}"
            raise StageError(stage.name, text, observation.time_s)
        plan = refined
    return Decision(observation, plan, memory, after)


def _is_answer(answer: object) -> bool:
    whole = isinstance(answer, tuple) and len(answer) == 2
    return whole and isinstance(answer[0], Plan) and isinstance(answer[1], Mapping)  # type: ignore[index]


Refine = Callable[[Policy, Observation, Mapping[str, Memory]], Decision]


def decide(
    policy: Policy, world: World, memory: Mapping[str, Memory], refine: Refine = refine, seen: Observation | None = None
) -> tuple[Decision, list[Refusal]]:
    """Observe, refine, apply: the loop body of the simulator, of live training and of live queues.

    refine: how the policy is run; if it raises, the world is unchanged. seen: the observation at the start of an
    asynchronous decision (`live/decide/decider.py`).
    """
    decision = refine(policy, world.observe() if seen is None else seen, memory)
    return decision, world.apply(decision.plan)
