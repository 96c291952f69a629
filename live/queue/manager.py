"""Interface of a queue manager: a snapshot of queue and nodes, and what can be done to jobs. Slurm is implemented."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol


class Phase(StrEnum):
    """Phase of a job as a policy sees it."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"  # over, and its GPUs are not free yet
    ENDED = "ended"


class QueuedJob(NamedTuple):
    """One job as the manager shows it. Times are UTC seconds since 1970, NaN where there is none.

    eligible_s: from when the manager itself would start it; NaN: never so far. priority: the higher, the earlier;
    nice is part of it, so that priority + nice is the manager's own. held: does not start until it is released.
    limited: the site's limits keep it waiting. mine: it is among the jobs to schedule, and may be changed; others
    hold GPUs while they run. ref: its name in commands; of an array, of the tasks that this entry stands for.
    array: id of its array, 0 without one.
    """

    id: int
    name: str
    user: str
    phase: Phase
    state: str
    gpus: int
    nodes: tuple[str, ...]
    submit_s: float
    eligible_s: float
    start_s: float
    end_s: float
    limit_s: float
    priority: int
    nice: int
    held: bool
    limited: bool
    mine: bool
    requeues: bool  # it may be stopped and started again
    reason: str
    partition: str = ""
    qos: str = ""
    ref: str = ""
    array: int = 0
    account: str = ""


class QueueNode(NamedTuple):
    """One node: `gpus_used` counts those of every job on it, ours or not."""

    name: str
    gpus: int
    gpus_used: int
    up: bool
    cores: int
    memory_bytes: int
    gpu_type: str


class QueueSnapshot(NamedTuple):
    """All jobs, and the nodes that those to schedule may get. time_s: UTC seconds since 1970."""

    time_s: float
    jobs: tuple[QueuedJob, ...]
    nodes: tuple[QueueNode, ...]


class Verb(StrEnum):
    """What can be done to a job."""

    PRIORITY = "priority"  # value: its nice; not done if the job is held, or its nice is not `was`, by then
    RESTORE = "restore"  # value: its nice; a hold stays as it is
    RELEASE = "release"
    REQUEUE = "requeue"


class QueueChange(NamedTuple):
    """One thing to do to one job. was: the nice value before."""

    verb: Verb
    job: int
    value: int = 0
    was: int = 0
    why: str = ""


class ManagerError(Exception):
    """The manager did not answer, or not in time. One line."""


class NotAllowedError(ManagerError):
    """The manager does not allow changes to this user."""


class QueueManager(Protocol):
    """A queue manager that can be steered."""

    name: str

    def snapshot(self) -> QueueSnapshot:
        """Queue and nodes now. Raises ManagerError."""

    def set_directly(self) -> frozenset[int]:
        """Waiting jobs whose priority somebody has set to a number. Raises ManagerError."""

    def carry_out(self, changes: Sequence[QueueChange]) -> str:
        """Do all of this, in order; returns what the manager said against it, "" for nothing.

        What has taken effect the next snapshot tells. Raises ManagerError when nothing is known, NotAllowedError
        when a change is not allowed.
        """
