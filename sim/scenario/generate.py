"""The section `workload.generate`: jobs from a description, drawn anew for each seed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from equipoise.sim.scenario.units import Count, Float, JobRate, Positive, Seconds, Section, Share, Span

Weight = Annotated[Float, Field(ge=0)]


class Arrivals(Section):
    """Arrivals: a Poisson process (poisson), a daily cycle (diurnal), or a profile.

    With `burst` above 1 it is bursts that come so: of that many jobs in the mean (geometric), `within` apart.
    """

    kind: Literal["poisson", "diurnal", "profile"] = "poisson"  # Poisson process, by time of day, or by a profile
    swing: Share = 0.6  # diurnal: the rate varies from 1 - swing to 1 + swing times its mean
    peak: Seconds = 14 * 3600.0  # diurnal: time of day with the highest rate; the first day is a Monday
    weekend: Weight = 1.0  # diurnal: rate of the sixth and seventh day, relative to the others
    every: Span = 3600.0  # profile: duration of each weight
    weights: tuple[Weight, ...] = ()  # profile: relative rates in order, repeated
    burst: Annotated[Float, Field(ge=1)] = 1.0  # mean number of jobs, or requests, in a burst
    within: Seconds = 10.0  # time between arrivals within a burst

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, data: Any) -> Any:
        """`arrivals: diurnal` for short."""
        return {"kind": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _profile_given(self) -> Self:
        if (self.kind == "profile") != bool(self.weights) or (self.weights and not sum(self.weights)):
            raise ValueError("weights: 'profile' needs relative rates that are not all 0; no other kind allows them")
        return self


class Durations(Section):
    """Running times on full-speed GPUs; drawn values are clipped to `low` and `high`.

    lognormal: `median` and `sigma`, of the natural logarithm. pareto: P(longer than t) = (low / t)^alpha.
    quantiles: equally spaced ones from shortest to longest, with the logarithm linear between them.
    """

    kind: Literal["lognormal", "pareto", "quantiles"]  # distribution
    median: Span | None = None  # lognormal
    sigma: Annotated[Float, Field(gt=0, le=10)] | None = None  # lognormal: standard deviation of the natural logarithm
    alpha: Positive | None = None  # pareto: P(longer than t) = (low / t)^alpha
    low: Span = 1.0  # shorter ones are cut to it
    high: Span = 1e9  # longer ones are cut to it
    values: tuple[Span, ...] = ()  # quantiles: equally spaced, ascending

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = {name for name in ("median", "sigma", "alpha", "values") if getattr(self, name)}
        wanted = {"lognormal": {"median", "sigma"}, "pareto": {"alpha"}, "quantiles": {"values"}}[self.kind]
        if given != wanted:
            raise ValueError(
                f"kind {self.kind} needs {' and '.join(sorted(wanted))}, and none of the other kinds' keys"
            )
        if not self.low < self.high:
            raise ValueError(f"low: {self.low:g} s must be below high, {self.high:g} s")
        if self.values and (len(self.values) < 2 or list(self.values) != sorted(self.values)):
            raise ValueError("values: at least two are needed, in ascending order")
        return self


class JobClass(Section):
    """Jobs of one kind. Either `rate`, or `load`: GPU-seconds requested divided by those of the cluster."""

    name: str = "jobs"  # name of the class, used in job names
    rate: JobRate | None = None  # mean arrival rate
    load: Positive | None = None  # GPU-seconds requested divided by those available
    arrivals: Arrivals = Arrivals.model_construct()
    duration: Durations
    gpus: dict[Count, Weight] = Field(default_factory=lambda: {1: 1.0})  # relative frequency by GPU count
    priority: Positive = 1.0  # priority of its jobs

    @field_validator("gpus")
    @classmethod
    def _ascending(cls, gpus: dict[int, float]) -> dict[int, float]:
        return dict(sorted(gpus.items()))

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.rate is None) == (self.load is None):
            raise ValueError("needs either 'rate' (e.g. 400/d) or 'load' (e.g. 0.8)")
        if not sum(self.gpus.values()):
            raise ValueError("gpus: needs a GPU count with a weight above 0")
        return self


class Generate(Section):
    """Jobs of several classes over a time; `scale` multiplies all their rates."""

    length: Span  # length of the period in which jobs arrive
    classes: Annotated[tuple[JobClass, ...], Field(min_length=1)]  # kinds of jobs
    scale: Positive = 1.0  # factor on all rates

    @model_validator(mode="after")
    def _different(self) -> Self:
        names = [kind.name for kind in self.classes]
        for k, name in enumerate(names):
            if name in names[:k]:
                raise ValueError(f"classes.{k}.name: {name!r} is the name of two classes")
        return self
