"""The section `services`: models that answer requests on GPUs of the same cluster as the jobs."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from equipoise.sim.scenario.generate import Arrivals
from equipoise.sim.scenario.units import Count, Float, Int, RequestRate, Seconds, Section, Share, Span

BATCH_MOST = 4096
"""Requests of the largest batch; more is most likely a number meant for something else."""


class BatchLatency(Section):
    """Time of one batch on one replica, by its number of requests: `measured`, or a line through two figures.

    Between measured batches it is linear. On other GPU models than `of` it takes as much longer as data sheets say
    (a guess, with a note), and a node group's `speed` counts.
    """

    measured: dict[Count, Span] = Field(default_factory=dict)  # time by number of requests; 1 is required
    fixed: Span | None = None  # fixed time of a batch
    per_request: Seconds = 0.0  # added to `fixed` for each request
    # most requests of a batch; none: the largest measured
    most: Annotated[Int, Field(ge=1, le=BATCH_MOST)] | None = None
    of: str | None = None  # accelerator for which times are given; none: the first that the service may use
    cov: Annotated[Float, Field(ge=0, le=5)] = 0.0  # coefficient of variation of the time of a batch (gamma)

    @model_validator(mode="after")
    def _one_curve(self) -> Self:
        if bool(self.measured) == (self.fixed is not None):
            raise ValueError("needs either 'measured' (times by requests of a batch) or 'fixed' and 'per_request'")
        if not self.measured:
            if self.most is None:
                raise ValueError("needs 'most', the requests of the largest batch")
            return self
        if self.per_request:
            raise ValueError("per_request: needs 'fixed'; not allowed with 'measured'")
        sizes = sorted(self.measured)
        if sizes[0] != 1:
            raise ValueError("measured: a batch of 1 is missing; the table begins with it")
        for smaller, larger in pairwise(sizes):
            if self.measured[larger] <= self.measured[smaller]:
                raise ValueError(
                    f"measured.{larger}: {self.measured[larger]:g} s is not more than the "
                    f"{self.measured[smaller]:g} s of {smaller}; a larger batch must take longer"
                )
        if sizes[-1] > BATCH_MOST:
            raise ValueError(f"measured.{sizes[-1]}: a batch has at most {BATCH_MOST} requests")
        if self.most is not None and self.most > sizes[-1]:
            raise ValueError(f"most: {self.most} is beyond the largest measured batch, {sizes[-1]}")
        return self

    @property
    def largest(self) -> int:
        """Requests of the largest batch."""
        return self.most or max(self.measured)


class Requests(Arrivals):
    """Arrival times of requests, drawn for each seed and the same under every policy."""

    rate: RequestRate  # mean request rate; for `diurnal` over whole days or weeks


class LatencyTarget(Section):
    """Latency target including waiting: one of the three percentiles."""

    p50: Span | None = None  # latency target for 50 % of the requests
    p95: Span | None = None  # latency target for 95 % of the requests
    p99: Span | None = None  # latency target for 99 % of the requests

    @model_validator(mode="after")
    def _just_one(self) -> Self:
        if sum(value is not None for value in (self.p50, self.p95, self.p99)) != 1:
            raise ValueError("needs exactly one of 'p50', 'p95', 'p99', e.g. p99: 200 ms")
        return self

    @property
    def key(self) -> str:
        """The percentile that is given."""
        return next(name for name in ("p50", "p95", "p99") if getattr(self, name) is not None)

    @property
    def within_s(self) -> float:
        """The time within which a request counts as goodput (s)."""
        return float(getattr(self, self.key))

    @property
    def share(self) -> float:
        """The share of the requests that has to be answered within it."""
        return int(self.key[1:]) / 100.0


class Replicas(Section):
    """Copies of the service's model, each on GPUs of one node, that take batches from one queue."""

    min: Count = 1  # fewest replicas
    max: Count = 1  # most replicas
    gpus: Count = 1  # GPUs of a replica, all on one node
    start: Seconds = 30.0  # start-up time of a replica; the initial replicas are ready at once

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max: {self.max} replicas are fewer than the {self.min} of 'min'")
        return self


class ServicePlacement(Section):
    """Ownership of the GPUs.

    own: those of `max` replicas are the service's all the time. lent: jobs may have what the replicas do not need
    now. shared: as lent, and a replica has the part `share` of each of its GPUs; jobs that ask for a `gpu_share`
    may have the rest.
    """

    # own: reserved for `max` replicas; lent: jobs use idle ones; shared: as lent, with parts of GPUs
    kind: Literal["own", "lent", "shared"] = "lent"
    preempt: bool = True  # preempt jobs when a replica finds no free GPUs; false: wait for free GPUs
    take_back: Seconds = 30.0  # time to preempt jobs; a job that cannot save by then loses its work
    # shared: share of each GPU of a replica; none: half
    share: Annotated[Share, Field(gt=0, lt=1)] | None = None
    on: tuple[str, ...] = ()  # accelerators or groups of nodes, any of them; none: all

    @model_validator(mode="after")
    def _share_of_shared(self) -> Self:
        if self.kind != "shared" and self.share is not None:
            raise ValueError(f"share: 'shared' uses a part of each GPU; {self.kind!r} uses all of it")
        return self


class Autoscaler(Section):
    """Sets the number of replicas by the requests of the last window and the queue.

    wanted = ceil((requests + waiting) / every / (utilisation x capacity)), within min and max. The capacity of a
    replica is the rate of the largest batch of which two, one after the other, take no longer than the target.
    """

    every: Annotated[Span, Field(ge=0.1)] = 30.0  # time between decisions; also the window of the service's records
    utilisation: Annotated[Share, Field(gt=0, le=1)] = 0.7  # target utilisation of the replicas' capacity
    hold: Seconds = 300.0  # time for which a replica must be unneeded before it is stopped


class Service(Section):
    """A model that answers requests: batches of all waiting requests, on a number of replicas that follows the load."""

    name: Annotated[str, Field(min_length=1)] = "service"  # in results
    batch_latency: BatchLatency
    requests: Requests
    latency: LatencyTarget
    replicas: Replicas = Replicas.model_construct()
    placement: ServicePlacement = ServicePlacement.model_construct()
    autoscaler: Autoscaler = Autoscaler.model_construct()
    share_kappa: Annotated[Float, Field(gt=0)] | None = None  # speed on a part of a GPU, as for a model
    interference: Annotated[Float, Field(ge=0)] | None = None  # slowdown by others on the same GPU, as for a model

    @property
    def kept(self) -> int:
        """Replicas whose GPUs are reserved all the time."""
        return self.replicas.max if self.placement.kind == "own" else self.replicas.min

    @property
    def share(self) -> float:
        """Share that a replica has of each of its GPUs."""
        return (self.placement.share or 0.5) if self.placement.kind == "shared" else 1.0


class ServiceKeys(Section):
    """Keys of a scenario."""

    services: tuple[Service, ...] = ()  # services that answer requests on the same cluster


def services_of(scenario: Any) -> tuple[Service, ...]:
    """The services of a scenario, which has the keys above."""
    found: tuple[Service, ...] = scenario.services
    return found


KEYS = ServiceKeys
