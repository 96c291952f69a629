"""The section `faults` of a scenario."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from equipoise.sim.scenario.units import Count, Float, Positive, Seconds, Section, Span


class JobFailure(Section):
    """Mean time to failure of a job, as studies of clusters give it (Kokolis et al. 2025, figure 7)."""

    gpus: Count  # GPUs of the job
    mttf: Span  # mean time to failure of the job


class Crash(Section):
    """Node crashes: Weibull (shape 1: exponential) time to failure, log-normal repair.

    One of four rates: the mean time between failures of a node (`mtbf`), its failures in a week, the
    GPU-hours between failures of any GPU's node, or the mean time to failure of a job of so many GPUs.
    """

    mtbf: Span | None = None  # mean time between failures of a node
    per_node_week: Positive | None = None  # failures of a node in a week
    gpu_hours: Positive | None = None  # GPU-hours between failures, over all GPUs
    job: JobFailure | None = None
    shape: Positive = 1.0  # shape of the Weibull distribution; 1: exponential
    repair: Seconds = 3600.0  # mean time until the node is back
    repair_cov: Annotated[Float, Field(ge=0)] = 0.5  # spread of the repair times over their mean

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = ("mtbf", "per_node_week", "gpu_hours", "job")
        if sum(getattr(self, way) is not None for way in ways) != 1:
            raise ValueError(f"needs exactly one of {', '.join(map(repr, ways))}")
        return self

    def node_mtbf_s(self, node_gpus: float) -> float:
        """Mean time between failures of a node with so many GPUs (s)."""
        if self.mtbf is not None:
            return self.mtbf
        if self.per_node_week is not None:
            return 7 * 86400.0 / self.per_node_week
        if self.gpu_hours is not None:
            return self.gpu_hours * 3600.0 / node_gpus
        assert self.job is not None
        return self.job.mttf * max(1.0, self.job.gpus / node_gpus)


class FailSlow(Section):
    """Episodes in which a node computes `factor` times slower."""

    mtbf: Span  # mean time between slow spells of a node
    duration: Seconds = 1800.0  # mean duration of a slow spell
    factor: Annotated[Float, Field(gt=1)] = 2.0  # how many times slower


class LinkDegrade(Section):
    """Episodes in which a node's NIC falls to `factor` of its rate."""

    mtbf: Span  # mean time between faults of a node's link
    duration: Seconds = 1800.0  # mean duration of a fault
    factor: Annotated[Float, Field(gt=0, lt=1)] = 0.25  # remaining share of the rate


class RackFailure(Section):
    """A whole rack goes down at once."""

    mtbf: Span  # per rack
    repair: Seconds = 7200.0  # mean time until the rack is back


class Spot(Section):
    """Nodes of the named group are reclaimed after `notice`, and come back after `away`.

    Has no effect where `cost` states a contract other than spot for them.
    """

    group: str  # node group that may be reclaimed
    mtbf: Span  # mean time between reclaims of a node
    notice: Seconds = 120.0  # time between the warning and the loss; 0: jobs cannot save
    away: Seconds = 3600.0  # mean time until a node is back


class CorruptGradient(Section):
    """Episodes in which a GPU corrupts its worker's gradient: NaN, or `factor` times the correct value.

    An exchange that includes it corrupts the model: until the gradient is left out, or the GPU replaced, no sample
    counts. Llama 3 counted 6 silent corruptions in 54 days on 16,384 GPUs: 3e-7 per GPU-hour (Grattafiori et al.
    2024, table 5).
    """

    per_gpu_hour: Positive  # rate of faults
    duration: Span = 3600.0  # mean time until the GPU is healthy again
    factor: Positive | None = None  # none: NaN


class FaultEvent(Section):
    """One planned fault at a given time. `corrupt` is of the node's first GPU."""

    kind: Literal["crash", "slow", "link", "corrupt"]  # what happens
    node: str  # where
    at: Seconds  # when
    duration: Seconds  # how long
    # slow: how many times slower (none: 2); link: remaining share of the rate (none: 0.5); corrupt: factor of the
    # gradient (none: NaN)
    factor: Positive | None = None

    @model_validator(mode="after")
    def _degrades(self) -> Self:
        factor = self.factor
        if factor is None:
            return self
        if self.kind == "crash":
            raise ValueError("factor: a crash has none; leave it out")
        if self.kind == "link" and factor >= 1.0:
            share = f"; {factor:g} times slower is {1.0 / factor:.4g}" if factor > 1.0 else ""
            raise ValueError(f"factor: {factor:g} is not allowed; remaining share of the rate, below 1{share}")
        return self

    @property
    def factor_or_default(self) -> float:
        """The factor in force."""
        return {"slow": 2.0, "link": 0.5}.get(self.kind, math.nan) if self.factor is None else self.factor


class FaultsSpec(Section):
    """Faults of nodes, links, racks and gradients."""

    crash: Crash | None = None
    fail_slow: FailSlow | None = None
    link: LinkDegrade | None = None
    rack: RackFailure | None = None
    spot: Spot | None = None
    corrupt_gradient: CorruptGradient | None = None
    events: tuple[FaultEvent, ...] = ()
