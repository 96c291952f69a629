"""The changes that a policy plans: shard moves, batch split, intervals, shares, weights, GPUs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from equipoise.policies.observation import Bools, Floats, Ints, Observation


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


BY_CLOCK = "wall_time_limit_s"
"""Key of a reason's values: the wall-time limit that was reached, so another machine may decide differently."""


@dataclass(frozen=True, slots=True)
class Reason:
    """What a stage computed and did, or why it did nothing."""

    stage: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What should change. Dense arrays follow the rows of the observation's tables."""

    moves: Moves | None = None  # shards to move, with new owner and storage node
    samples_per_step: Ints | None = None  # per row of workers
    fetch_order: Ints | None = None  # rows of shards, in order of fetching
    sync_interval: Ints | None = None  # per row of jobs
    gpu_share: Floats | None = None  # per row of workers
    allocation: Allocation | None = None  # new GPUs of some jobs; no GPUs: stop the job
    revisit_s: float = math.inf  # decide again at this time at the latest
    reasons: tuple[Reason, ...] = ()  # what each stage computed and did, in order
    gradient_weight: Floats | None = None  # per row of workers: from 0 (gradient left out) to 1 (full weight)
    suspect: Bools | None = None  # per row of gpus: suspect: an allocation should replace it
    global_batch: Ints | None = None  # per row of jobs; split in the proportions of samples_per_step
    far_every: Ints | None = None  # per row of jobs: exchanges per exchange of all workers
    accumulation: Ints | None = None  # per row of jobs: fewest passes per step
    push_interval: Ints | None = None  # per row of workers: local steps between its pushes
    learning_rate: Floats | None = None  # per row of jobs: factor on its own rate, which belongs to `batch_given`
    power_cap_w: Floats | None = None  # per row of nodes: cap of each of its GPUs
    told: int = 0  # waiting jobs that get a status message, if that takes scheduler time

    def with_(self, **changes: Any) -> Plan:
        """A copy with some fields replaced."""
        return Plan(**{**dict(zip(_FIELDS, _values_of(self), strict=True)), **changes})

    def because(self, stage: str, text: str, **values: Any) -> Plan:
        """A copy with one more reason."""
        return self.with_(reasons=(*self.reasons, Reason(stage, text, values)))

    def samples(self, observation: Observation) -> Ints:
        """Samples per step and worker: the planned values, else the present ones."""
        return observation.workers.samples_per_step if self.samples_per_step is None else self.samples_per_step

    def intervals(self, observation: Observation) -> Ints:
        """Synchronisation interval per job: the planned values, else the present ones."""
        return observation.jobs.sync_interval if self.sync_interval is None else self.sync_interval

    def far(self, observation: Observation) -> Ints:
        """Exchanges per exchange of all workers, by job: the planned values, else the present ones."""
        return observation.jobs.far_every if self.far_every is None else self.far_every

    def pushes(self, observation: Observation) -> Ints:
        """Local steps between two pushes of each worker: the planned values, else the present ones."""
        return observation.workers.push_interval if self.push_interval is None else self.push_interval

    def shares(self, observation: Observation) -> Floats:
        """GPU share per worker: the planned values, else the present ones."""
        return observation.workers.gpu_share if self.gpu_share is None else self.gpu_share

    def weights(self, observation: Observation) -> Floats:
        """Weight of each worker's gradient: the planned values, else the present ones."""
        return observation.workers.gradient_weight if self.gradient_weight is None else self.gradient_weight

    def changes_nothing(self) -> bool:
        """Whether applying this plan would change nothing."""
        if self.allocation is not None:  # the usual change, and asked at every decision
            return False
        return self is UNCHANGED or all(getattr(self, name) is None for name in CHANGES)


_FIELDS = tuple(field.name for field in dataclasses.fields(Plan))
_values_of = attrgetter(*_FIELDS)  # three times as fast as dataclasses.replace, which every stage would call

CHANGES = (
    "moves",
    "samples_per_step",
    "fetch_order",
    "sync_interval",
    "gpu_share",
    "gradient_weight",
    "suspect",
    "global_batch",
    "learning_rate",
    "far_every",
    "accumulation",
    "push_interval",
    "power_cap_w",
    "allocation",
)
"""Fields of a plan that change something, in the order in which they are checked."""

UNCHANGED = Plan()
