"""The section `queues`: limits, quotas and priorities, in the terms of Slurm and of Kueue."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from equipoise.sim.scenario.names import nearest
from equipoise.sim.scenario.units import Bytes, Count, Float, Int, Positive, Seconds, Section, Span

NotNegative = Annotated[Float, Field(ge=0)]
Number = Annotated[Int, Field(ge=0)]
Preempts = Literal["never", "lower-priority", "lower-or-newer-equal-priority", "any"]


class Tres(Section):
    """Limits on requested cores, memory and nodes; without a request: 0, and the fewest nodes for the GPUs."""

    cpu: NotNegative | None = None  # cores
    mem: Bytes | None = None  # host memory
    node: NotNegative | None = None  # nodes, as requested


class Limits(Section):
    """Limits on running jobs: of all jobs together, of each user, each account, and each job."""

    gpus: NotNegative | None = None  # most GPUs at once of all its jobs
    jobs: Number | None = None  # most running jobs
    gpus_per_user: NotNegative | None = None  # most GPUs at once of a user
    jobs_per_user: Number | None = None  # most running jobs of a user
    gpus_per_account: NotNegative | None = None  # most GPUs at once of an account
    jobs_per_account: Number | None = None  # most running jobs of an account
    gpus_per_job: NotNegative | None = None  # most GPUs of one job
    gpus_of_type: dict[str, NotNegative] = Field(default_factory=dict)  # most GPUs by accelerator or node group
    tres: Tres = Tres.model_construct()  # most cores, memory and nodes of all its jobs
    tres_per_user: Tres = Tres.model_construct()  # most cores, memory and nodes of a user
    tres_per_account: Tres = Tres.model_construct()  # most cores, memory and nodes of an account
    tres_per_job: Tres = Tres.model_construct()  # most cores, memory and nodes of one job


class Account(Limits):
    """An account in a parent account (none: the root), with its fair-share weight."""

    name: str  # name that users and child accounts refer to
    parent: str = ""  # parent account
    shares: NotNegative = 1.0  # fair-share weight among its siblings


class User(Limits):
    """A user in an account (an association of Slurm)."""

    name: str  # name that jobs refer to
    account: str  # account that the user's jobs are charged to; its first one by default
    shares: NotNegative = 1.0  # fair-share weight within the account


class Qos(Limits):
    """A QOS."""

    name: str  # name that jobs and partitions refer to
    priority: NotNegative = 0.0  # priority of its jobs, relative to the largest
    preempts: tuple[str, ...] = ()  # QOS whose running jobs its jobs may preempt
    spared: bool = False  # its jobs are never preempted


class Partition(Limits):
    """A partition: nodes (by group or by name; none: all) that jobs are submitted to."""

    name: str  # name that jobs refer to
    nodes: tuple[str, ...] = ()  # node groups or nodes; none: all
    default: bool = False  # partition of jobs that name none
    tier: Int = 1  # jobs of a higher tier are considered first
    priority: NotNegative = 1.0  # PriorityJobFactor
    qos: str = ""  # QOS whose limits apply to the partition
    accounts: tuple[str, ...] = ()  # accounts whose jobs it takes; none: all
    exclusive: bool = False  # its jobs of a `duration` are given whole nodes
    spared: bool = False  # its jobs are never preempted


class Priority(Section):
    """Slurm's multifactor priority: weights of factors between 0 and 1."""

    age: NotNegative = 0.0  # weight of waiting time
    fairshare: NotNegative = 0.0  # weight of the fair-share factor
    size: NotNegative = 0.0  # weight of the job size (larger first)
    partition: NotNegative = 0.0  # weight of the partition's priority
    qos: NotNegative = 0.0  # weight of the QOS's priority
    max_age: Span = 7 * 86400.0  # waiting time at which the age factor reaches 1
    half_life: Span | Literal["never"] = 7 * 86400.0  # half-life of past usage
    period: Annotated[Seconds, Field(ge=0)] = 0.0  # time between two calculations of age and usage; 0: every decision
    algorithm: Literal["fair-tree", "classic"] = "fair-tree"  # fair-share algorithm
    favour_small: bool = False  # smaller jobs first, not larger ones


class Backfill(Section):
    """Slurm's sched/backfill: how many jobs it plans, how far ahead, and how often; depth 0: no backfill."""

    depth: Number = 500  # jobs considered
    window: Span = 86400.0  # planning horizon
    interval: Span = 30.0  # time between two passes


class Preemption(Section):
    """Slurm's preempt/qos and preempt/partition_prio: a preempted job is requeued and continues from its checkpoint."""

    by: Literal["qos", "partition"] = "qos"  # what decides preemption: `preempts` of the QOS, or the partition's tier
    exempt: Annotated[Seconds, Field(ge=0)] = 0.0  # a job that has run for less is not preempted
    youngest_first: bool = False  # preempt the latest start first; else the lowest priority, then fewest nodes


class Cohort(Section):
    """A cohort of queues that lend to each other, in a parent cohort."""

    name: str  # name that queues and cohorts refer to
    parent: str = ""  # parent cohort
    gpus: dict[str, NotNegative] | NotNegative = 0.0  # the cohort's own quota, shared by its queues
    borrow: dict[str, NotNegative] | NotNegative | None = None  # most GPUs by type that may be borrowed
    lend: dict[str, NotNegative] | NotNegative | None = None  # most GPUs by type that may be lent
    weight: Positive = 1.0  # weight in fair sharing


class Queue(Section):
    """A cluster queue of Kueue; a quota is a number of GPUs, or one for each flavor."""

    name: str  # name that jobs refer to
    cohort: str = ""  # cohort that shares its quota
    count: Count = 1  # copies are NAME-0, NAME-1, ...
    gpus: dict[str, NotNegative] | NotNegative  # nominal quota by GPU type
    borrow: dict[str, NotNegative] | NotNegative | None = None  # most GPUs borrowed; none: as many as the cohort has
    lend: dict[str, NotNegative] | NotNegative | None = None  # most GPUs lent; none: all
    order: Literal["best-effort", "strict"] = "best-effort"  # strict: no job passes one that does not fit
    reclaim: Preempts = "never"  # jobs of other queues that may be preempted to reclaim its quota
    within: Preempts = "never"  # jobs of the queue itself that may be preempted
    # jobs of other queues that may be preempted while borrowing
    borrow_within: Literal["never", "lower-priority"] = "never"
    borrow_within_most: Float | None = None  # highest priority preempted while borrowing; none: any below the job's own
    weight: Positive = 1.0  # weight in fair sharing
    names: tuple[str, ...] = ()  # further names that jobs use: its local queues

    @model_validator(mode="after")
    def _preempts(self) -> Self:
        if self.within == "any":
            raise ValueError("'within: any' is not allowed; 'any' is a value of 'reclaim' only")
        if self.reclaim == "lower-or-newer-equal-priority":
            raise ValueError("'reclaim' must be never, lower-priority or any")
        if self.borrow_within != "never" and self.reclaim == "never":
            raise ValueError("'borrow_within' needs 'reclaim': without it no job of another queue is preempted")
        if self.borrow_within_most is not None and self.borrow_within == "never":
            raise ValueError("'borrow_within_most' needs 'borrow_within: lower-priority'")
        return self


class QueuesSpec(Section):
    """Declared queues. Jobs, and columns of a trace, name user, account, partition, qos and queue."""

    accounts: tuple[Account, ...] = ()
    users: tuple[User, ...] = ()
    partitions: tuple[Partition, ...] = ()
    qos: tuple[Qos, ...] = ()
    priority: Priority | None = None
    backfill: Backfill | None = None
    preemption: Preemption | None = None
    cohorts: tuple[Cohort, ...] = ()
    queues: tuple[Queue, ...] = ()
    flavors: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # accelerators or node groups of each flavor
    fair_sharing: bool = False  # share borrowed quota by weight
    gpu_types: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # by GPU type of a trace's jobs
    too_large: Literal["refuse", "leave-out"] = "refuse"  # handling of jobs that can never start under a limit

    @model_validator(mode="after")
    def _names(self) -> Self:
        for what in ("accounts", "partitions", "qos", "cohorts", "queues"):
            names = [part.name for part in getattr(self, what)]
            if double := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what}: {double[0]!r} appears twice")
        self._known("accounts", "parent", {a.name for a in self.accounts})
        self._known("users", "account", {a.name for a in self.accounts})
        self._known("partitions", "qos", {q.name for q in self.qos})
        known = {q.name for q in self.qos}
        for k, qos in enumerate(self.qos):
            if strange := sorted(set(qos.preempts) - known):
                raise ValueError(f"qos.{k}.preempts: {strange[0]!r} is not declared")
        self._known("cohorts", "parent", {c.name for c in self.cohorts})
        self._known("queues", "cohort", {c.name for c in self.cohorts})
        for what in ("accounts", "cohorts"):
            self._no_circle(what)
        if sum(part.default for part in self.partitions) > 1:
            raise ValueError("partitions: more than one is 'default'")
        return self

    def _known(self, what: str, key: str, known: set[str]) -> None:
        for k, part in enumerate(getattr(self, what)):
            name = getattr(part, key)
            if name and name not in known:
                raise ValueError(f"{what}.{k}.{key}: {name!r} is not declared; {nearest(name, sorted(known))}")

    def _no_circle(self, what: str) -> None:
        parents = {part.name: part.parent for part in getattr(self, what)}
        for name in parents:
            seen, at = {name}, parents[name]
            while at:
                if at in seen:
                    raise ValueError(f"{what}: {name!r} is its own ancestor")
                seen.add(at)
                at = parents[at]
