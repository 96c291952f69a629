"""The one contract between policies and worlds: Plan, Stage, Policy, check and decide.

    observation = world.observe()
    for stage in policy.stages:
        plan, memory[stage] = stage.refine(observation, plan, memory[stage])
    refused = world.apply(plan)

A stage is a small frozen dataclass: parameters only. What it remembers is passed in and out. `None` in a
plan means "leave as it is"; an empty plan changes nothing.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from equipoise.policies.blame import place_of, with_ids
from equipoise.policies.kernels.placement import allocation_fault
from equipoise.policies.observation import DONE, TABLES, Bools, Floats, Ints, Observation
from equipoise.policies.observation import Refusal as Refusal  # it is a part of this contract, too

CONTRACT_VERSION = 1

Kind = Literal["data", "tasks", "sync", "allocation"]
Memory = Mapping[str, Any]
"""Plain arrays, numbers and strings by name; treated as immutable."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Shards to move: parallel arrays of rows. The owner becomes `worker`, the storage `target`."""

    shard: Ints
    source: Ints
    target: Ints
    worker: Ints


@dataclass(frozen=True, slots=True)
class Allocation:
    """New GPUs of some jobs, in compressed rows: job[k] gets gpu[offset[k]:offset[k+1]].

    An empty set stops the job and puts it back in the queue; jobs not listed keep what they have. Jobs are
    applied in the order listed, all stops before all starts.
    """

    job: Ints
    offset: Ints
    gpu: Ints
    share: Floats

    @classmethod
    def of(cls, entries: Iterable[tuple[int, Iterable[int]]], share: float = 1.0) -> Allocation:
        """Build from (job row, GPU rows) pairs, all with the same share of each GPU."""
        jobs: list[int] = []
        offsets, gpus = [0], list[int]()
        for job, rows in entries:
            jobs.append(job)
            gpus.extend(rows)
            offsets.append(len(gpus))
        return cls(
            np.array(jobs, dtype=np.int64),
            np.array(offsets, dtype=np.int64),
            np.array(gpus, dtype=np.int64),
            np.full(len(gpus), share),
        )

    def gpus_of(self, k: int) -> Ints:
        """GPU rows of the k-th listed job."""
        return self.gpu[self.offset[k] : self.offset[k + 1]]


@dataclass(frozen=True, slots=True)
class Reason:
    """What one stage computed and did, or why it did nothing."""

    stage: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What should change. Dense arrays follow the rows of the observation's tables."""

    moves: Moves | None = None  # shards to move: rows of shards, nodes and workers
    samples_per_step: Ints | None = None  # per row of workers
    fetch_order: Ints | None = None  # rows of shards, first to fetch first
    sync_interval: Ints | None = None  # per row of jobs
    gpu_share: Floats | None = None  # per row of workers
    allocation: Allocation | None = None  # new GPUs of some jobs; none: stop it
    revisit_s: float = math.inf  # decide again at this time at the latest
    reasons: tuple[Reason, ...] = ()  # what each stage computed and did, in order
    gradient_weight: Floats | None = None  # per row of workers: 0 leaves its gradient out, 1 is whole
    suspect: Bools | None = None  # per row of gpus: found unsound, an allocation should replace it
    global_batch: Ints | None = None  # per row of jobs; dealt in the proportions of samples_per_step

    def with_(self, **changes: Any) -> Plan:
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **changes)

    def because(self, stage: str, text: str, **values: Any) -> Plan:
        """A copy with one more reason."""
        return dataclasses.replace(self, reasons=(*self.reasons, Reason(stage, text, values)))

    def samples(self, observation: Observation) -> Ints:
        """Planned samples per step and worker: what is planned, else what is."""
        return (
            observation.workers.samples_per_step if self.samples_per_step is None else self.samples_per_step
        )

    def intervals(self, observation: Observation) -> Ints:
        """Planned synchronisation interval per job: what is planned, else what is."""
        return observation.jobs.sync_interval if self.sync_interval is None else self.sync_interval

    def shares(self, observation: Observation) -> Floats:
        """Planned GPU share per worker: what is planned, else what is."""
        return observation.workers.gpu_share if self.gpu_share is None else self.gpu_share

    def weights(self, observation: Observation) -> Floats:
        """Planned weight of each worker's gradient: what is planned, else what is."""
        return observation.workers.gradient_weight if self.gradient_weight is None else self.gradient_weight

    def changes_nothing(self) -> bool:
        """Whether applying this plan would change nothing."""
        return (
            self.allocation is None
            and self.samples_per_step is None
            and self.moves is None
            and self.sync_interval is None
            and self.gpu_share is None
            and self.gradient_weight is None
            and self.suspect is None
            and self.fetch_order is None
            and self.global_batch is None
        )


UNCHANGED = Plan()


@dataclass(frozen=True)
class Stage(ABC):
    """One pluggable decision. Subclasses are frozen dataclasses whose fields are their parameters."""

    name: ClassVar[str]
    kind: ClassVar[Kind]
    needs: ClassVar[frozenset[str]] = frozenset(TABLES)
    """Tables of the observation that the stage reads; a world may hand out the others empty."""

    def initial(self) -> Memory:
        """Memory before the first decision."""
        return {}

    @abstractmethod
    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Refine `plan` from what is observed; returns the new plan and the new memory.

        Must not modify `observation`, `plan` or `memory`, and must be deterministic.
        """


@dataclass(frozen=True)
class AllocationStage(Stage):
    """A stage that hands out GPUs, and states what its name means."""

    kind: ClassVar[Kind] = "allocation"
    order: ClassVar[str]  # which job is considered first
    blocking: ClassVar[str]  # what happens when the first does not fit
    preemption: ClassVar[str]  # whether and when a running job is stopped
    places: ClassVar[str] = ""  # where gangs go, when there is no `placement` parameter that says it
    starvation: ClassVar[str] = ""  # whether a job may wait for as long as others arrive
    starts_only: ClassVar[bool] = False
    """It only ever starts waiting jobs on free GPUs: a world need not ask when none waits or nothing is free."""


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

    @property
    def allocates(self) -> bool:
        """Whether some stage hands out GPUs."""
        return any(stage.kind == "allocation" for stage in self.stages)


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
        """Carry out a feasible plan; returns what is refused at once, the rest the next observation tells."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision, complete: it replays from (observation, memory_before) alone."""

    observation: Observation
    plan: Plan
    memory_before: Mapping[str, Memory]
    memory: dict[str, Memory]


def refine(policy: Policy, observation: Observation, memory: Mapping[str, Memory]) -> Decision:
    """Run every stage once and check what each one changed.

    Raises StageError when a stage raises or its plan is not feasible.
    """
    plan, after = UNCHANGED, dict(memory)
    for key, stage in policy.keyed:
        try:
            answer = stage.refine(observation, plan, memory.get(key, {}))
        except (Exception, SystemExit) as error:  # a stage must not end the program either
            text = f"{type(error).__name__}: {error}{place_of(stage, error.__traceback__)}"
            raise StageError(stage.name, text, observation.time_s) from error
        if not _is_answer(answer):
            raise StageError(
                stage.name, f"refine must return (plan, memory){place_of(stage)}", observation.time_s
            )
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
    policy: Policy, world: World, memory: Mapping[str, Memory], refine: Refine = refine
) -> tuple[Decision, list[Refusal]]:
    """Observe, refine, apply: the loop body shared by both worlds; `refine` says how a policy is asked."""
    decision = refine(policy, world.observe(), memory)
    return decision, world.apply(decision.plan)


def check(plan: Plan, observation: Observation, before: Plan = UNCHANGED) -> str | None:
    """The single feasibility rule: the first problem of `plan`, or None.

    Fields that are the same objects as in `before` have been checked already and are skipped.
    """
    for name, value, checked in zip(_RULES, _parts(plan), _parts(before), strict=True):
        if value is None or value is checked:
            continue
        problem = _RULES[name](value, observation, plan)
        if problem:
            return f"{name}: {problem}"
    if math.isnan(plan.revisit_s) or plan.revisit_s <= observation.time_s:
        return f"revisit_s: {plan.revisit_s} is not after now ({observation.time_s})"
    return None


def _dense(values: Any, rows: int, kind: str, what: str) -> str | None:
    if not isinstance(values, np.ndarray) or values.shape != (rows,):
        return f"needs one value per row of {what} ({rows})"
    if values.dtype.kind != kind:
        return f"has dtype {values.dtype}"
    return None


def _check_samples(samples: Ints, observation: Observation, plan: Plan) -> str | None:
    workers, jobs = observation.workers, observation.jobs
    problem = _dense(samples, len(workers), "i", "workers")
    if problem:
        return problem
    if (samples < 0).any():
        return f"worker {int(np.argmin(samples))} gets {int(samples.min())} samples"
    over = (samples > workers.samples_max) & (samples != workers.samples_per_step)
    if over.any():
        worker = int(np.argmax(over))
        return f"worker {worker} gets {samples[worker]} samples, memory holds {workers.samples_max[worker]}"
    dealt = np.bincount(workers.job, weights=samples, minlength=len(jobs))
    changed = workers.job[samples != workers.samples_per_step]
    touched = np.flatnonzero(np.bincount(changed, minlength=len(jobs)))
    wrong = touched[dealt[touched] != jobs.global_batch[touched]]
    if len(wrong):
        job = int(wrong[0])
        return f"job row {job} deals {int(dealt[job])} of a global batch of {jobs.global_batch[job]}"
    few = touched[dealt[touched] < jobs.batch_reference[touched]]
    if len(few):
        return f"job row {few[0]} deals {int(dealt[few[0]])}, fewer than its reference batch"
    return None


def _check_interval(interval: Ints, observation: Observation, plan: Plan) -> str | None:
    problem = _dense(interval, len(observation.jobs), "i", "jobs")
    if problem:
        return problem
    if (interval < 1).any():
        return f"job row {int(np.argmin(interval))} has interval {int(interval.min())}, at least 1 is needed"
    return None


def _check_share(share: Floats, observation: Observation, plan: Plan) -> str | None:
    workers = observation.workers
    problem = _dense(share, len(workers), "f", "workers")
    if problem:
        return problem
    bad = ~((share > 0) & (share <= 1))
    if bad.any():
        return f"worker {int(np.argmax(bad))} has share {share[np.argmax(bad)]}, allowed is 0 < share <= 1"
    used = np.bincount(workers.gpu, weights=share, minlength=len(observation.gpus))
    held = np.bincount(workers.gpu, weights=workers.gpu_share, minlength=len(observation.gpus))
    room = np.maximum(held, held + observation.gpus.share_free)
    over = used > room + 1e-9
    if over.any():
        gpu = int(np.argmax(over))
        return f"GPU {gpu} is shared out {used[gpu]:.4f} times, {room[gpu]:.4f} is there"
    return None


def _check_weight(weight: Floats, observation: Observation, plan: Plan) -> str | None:
    workers = observation.workers
    problem = _dense(weight, len(workers), "f", "workers")
    if problem:
        return problem
    bad = ~((weight >= 0) & (weight <= 1))
    if bad.any():
        return (
            f"worker {int(np.argmax(bad))} has weight {weight[np.argmax(bad)]}, allowed is 0 <= weight <= 1"
        )
    counted = np.bincount(workers.job, weights=weight)
    silent = np.setdiff1d(workers.job, np.flatnonzero(counted))
    if len(silent):
        return f"job row {int(silent[0])} is left without any gradient"
    return None


def _check_batch(batch: Ints, observation: Observation, plan: Plan) -> str | None:
    jobs = observation.jobs
    problem = _dense(batch, len(jobs), "i", "jobs")
    if problem:
        return problem
    wrong = (batch != jobs.global_batch) & ((batch < jobs.batch_reference) | (batch > jobs.batch_max))
    if wrong.any():
        job = int(np.argmax(wrong))
        return f"job row {job} gets a batch of {batch[job]}, allowed: {_allowed_batches(observation, job)}"
    return None


def _allowed_batches(observation: Observation, job: int) -> str:
    jobs = observation.jobs
    if jobs.batch_max[job] <= jobs.batch_reference[job]:
        return f"its own, {jobs.global_batch[job]}: it has no batch_max"
    return f"{jobs.batch_reference[job]} to {jobs.batch_max[job]}"


def _check_suspect(suspect: Bools, observation: Observation, plan: Plan) -> str | None:
    return _dense(suspect, len(observation.gpus), "b", "gpus")


def _all_different(rows: Ints, count: int) -> bool:
    """Whether no row (0 .. count - 1) is listed twice."""
    listed = np.zeros(count, dtype=np.bool_)
    listed[rows] = True
    return int(np.count_nonzero(listed)) == len(rows)


def _check_moves(moves: Moves, observation: Observation, plan: Plan) -> str | None:
    shards, workers, nodes = observation.shards, observation.workers, observation.nodes
    for name, rows, size in (
        ("shard", moves.shard, len(shards)),
        ("worker", moves.worker, len(workers)),
        ("target", moves.target, len(nodes)),
    ):
        if len(rows) != len(moves.shard) or ((rows < 0) | (rows >= size)).any():
            return f"{name} rows must be {len(moves.shard)} values in 0..{size - 1}"
    if not _all_different(moves.shard, len(shards)):
        return "a shard is moved twice"
    if shards.started[moves.shard].any():
        return f"shard row {int(moves.shard[np.argmax(shards.started[moves.shard])])} has been started"
    if (moves.source != shards.node[moves.shard]).any():
        return "source is not the node that stores the shard"
    if (workers.node[moves.worker] != moves.target).any():
        return "target is not the node of the new owner"
    if (workers.job[moves.worker] != shards.job[moves.shard]).any():
        return "the new owner belongs to another job"
    if not nodes.up[moves.target].all():
        return f"node {int(moves.target[np.argmin(nodes.up[moves.target])])} is down"
    away = moves.source != moves.target
    load = np.bincount(moves.target[away], weights=shards.bytes[moves.shard[away]], minlength=len(nodes))
    full = load > np.where(np.isnan(nodes.storage_free_bytes), np.inf, nodes.storage_free_bytes)
    if full.any():
        return f"node {int(np.argmax(full))} has no room for the shards moved to it"
    return None


def _check_fetch_order(order: Ints, observation: Observation, plan: Plan) -> str | None:
    rows = len(observation.shards)
    if ((order < 0) | (order >= rows)).any() or not _all_different(order, rows):
        return f"needs different rows of shards (0..{len(observation.shards) - 1})"
    return None


_ALLOCATION_FAULTS = {
    1: "job row {0} does not exist or is listed twice",
    2: "job row {0} is done",
    3: "GPU {1} for job row {0} does not exist",
    4: "GPU {1} for job row {0} is on a node that is down",
    5: "GPU {1} is booked beyond its free share (job row {0})",
    6: "job row {0} is rigid and must get exactly the GPUs it asks for, or none",
    7: "job row {0} must get whole workers, between its fewest and its most",
    8: "GPU {1} has too little memory for job row {0}",
    9: "GPU {1} is listed twice for job row {0}",
    10: "share on GPU {1} for job row {0} must be above 0 and at most 1",
    11: "offsets do not match the listed jobs and GPUs",
    12: "GPU {1} is of another model than the first of job row {0}, whose gang must not mix GPU models",
}


_FIRST = np.zeros(1, dtype=np.int64)


def _check_allocation(allocation: Allocation, observation: Observation, plan: Plan) -> str | None:
    jobs, gpus, workers = observation.jobs, observation.gpus, observation.workers
    listed, order = allocation.job, _FIRST
    if listed.size > 1:
        listed = np.sort(listed)
    if allocation.gpu.size != 1:
        order = allocation.gpu.argsort()
    code, job, gpu = allocation_fault(
        allocation.job, allocation.offset, allocation.gpu, allocation.share, listed, order,
        jobs.state, jobs.rigid, jobs.gpus_requested, jobs.gpus_per_worker, jobs.workers_min, jobs.workers_max,
        jobs.memory_bytes, jobs.one_gpu_model, gpus.model, gpus.node, gpus.job, gpus.share_free,
        gpus.memory_bytes, observation.nodes.up,
        workers.job, workers.gpu, workers.gpu_share, DONE,
    )  # fmt: skip
    return _ALLOCATION_FAULTS[code].format(job, gpu) if code else None


_RULES: dict[str, Any] = {
    "moves": _check_moves,
    "samples_per_step": _check_samples,
    "fetch_order": _check_fetch_order,
    "sync_interval": _check_interval,
    "gpu_share": _check_share,
    "gradient_weight": _check_weight,
    "suspect": _check_suspect,
    "global_batch": _check_batch,
    "allocation": _check_allocation,
}
_parts = attrgetter(*_RULES)
