"""Schema of a sweep file, and its points.

A point is one choice of values for the varied keys of the scenario. Every point is run under every policy and
on every seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from equipoise.sim.loading.file import ATTEMPTS, leave_out
from equipoise.sim.scenario.errors import describe
from equipoise.sim.scenario.tree import InputError, KeyPath, Tree, read_text, read_tree
from equipoise.sim.scenario.units import Float, Int

Point = dict[str, Any]
"""Values by dotted key of the scenario."""

RESERVED = {"policy": "'policies'", "seed": "'seeds'", "schema_version": "nothing: it is fixed"}
Count = Annotated[Int, Field(ge=1)]
RUNS_MOST = 2_000_000
"""Most runs of one sweep; each is planned before the first is made."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class Range(_Section):
    """Values from `low` to `high`, both included; `unit` is appended to each, e.g. "Gbit/s"."""

    low: Float
    high: Float
    scale: Literal["linear", "log"] = "linear"
    integer: bool = False
    unit: str = ""
    steps: Annotated[Int, Field(ge=2)] | None = None

    @field_validator("low", "high", mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        number, space, unit = str(value).strip().partition(" ")
        if isinstance(value, str) and space:
            raise ValueError(f"{value!r} is not a number; write {number}, and add 'unit: {unit.strip()}'")
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError("a log scale needs low above 0")
        return self

    def at(self, share: float) -> Any:
        """The value at `share` (0 to 1) of the range; an integer range is cut into equal cells."""
        low, high = (self.low, self.high + 1.0) if self.integer else (self.low, self.high)
        value = low * math.exp(share * math.log(high / low)) if self.scale == "log" else low + share * (high - low)
        if self.integer:
            whole = min(math.floor(value), int(self.high))
            return f"{whole} {self.unit}" if self.unit else whole
        return f"{value:.9g} {self.unit}" if self.unit else float(f"{value:.9g}")

    def grid(self) -> list[Any]:
        """`steps` values, both ends included."""
        assert self.steps is not None
        exact = self.model_copy(update={"integer": False, "unit": ""})
        values = [exact.at(k / (self.steps - 1)) for k in range(self.steps)]
        if self.integer:
            values = list(dict.fromkeys(round(value) for value in values))
        return [f"{value:.9g} {self.unit}" if self.unit else value for value in values]


class Grid(_Section):
    """Every combination of all values; a range needs `steps`."""

    kind: Literal["grid"] = "grid"


class List(_Section):
    """The given points, nothing else."""

    kind: Literal["list"]
    points: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]


class Random(_Section):
    """Points drawn independently."""

    kind: Literal["random"]
    points: Count
    seed: Annotated[Int, Field(ge=0)] = 0


class LatinHypercube(_Section):
    """Points such that each key takes every one of `points` equal cells once (McKay et al. 1979)."""

    kind: Literal["latin-hypercube"]
    points: Count
    seed: Annotated[Int, Field(ge=0)] = 0


Choices = Annotated[tuple[Any, ...], Field(min_length=1)]


class SweepSpec(_Section):
    """A whole sweep."""

    schema_version: Literal[1]
    name: str
    why: str = ""
    scenario: str
    trace: str | None = None
    policies: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Count = 1
    parameters: dict[str, Range | Choices] = {}
    sampling: Annotated[Grid | List | Random | LatinHypercube, Field(discriminator="kind")] = Grid()

    @field_validator("policies")
    @classmethod
    def _different(cls, policies: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(policies)) < len(policies):
            raise ValueError("a policy is named twice")
        return policies

    @field_validator("sampling", mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _keys(self) -> Self:
        listed = self.sampling.points if isinstance(self.sampling, List) else ()
        for key in dict.fromkeys([*self.parameters, *(key for point in listed for key in point)]):
            if key in RESERVED:
                raise ValueError(f"parameters: {key!r} cannot be varied here; use {RESERVED[key]}")
        if isinstance(self.sampling, List) and self.parameters:
            raise ValueError("sampling: a list has its values in 'points', so 'parameters' must be empty")
        if isinstance(self.sampling, Random | LatinHypercube) and not self.parameters:
            raise ValueError(f"sampling: {self.sampling.kind} needs 'parameters' to draw")
        for key, values in self.parameters.items():
            if isinstance(self.sampling, Grid) and isinstance(values, Range) and values.steps is None:
                raise ValueError(f"parameters: {key}: a range in a grid needs 'steps'")
        return self

    @property
    def runs_most(self) -> int:
        """Most runs of this sweep: points x policies x seeds."""
        sampling = self.sampling
        if isinstance(sampling, List):
            points = len(sampling.points)
        elif isinstance(sampling, Grid):
            points = math.prod(_count(values) for values in self.parameters.values())
        else:
            points = sampling.points
        return points * len(self.policies) * self.seeds

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if self.runs_most > RUNS_MOST:
            raise ValueError(f"{self.runs_most:,} runs; at most {RUNS_MOST:,} are possible")
        return self

    def points(self) -> list[Point]:
        """All points, in a fixed order."""
        sampling = self.sampling
        if isinstance(sampling, List):
            return [dict(point) for point in sampling.points]
        if isinstance(sampling, Grid):
            return list(_grid(self.parameters))
        generator = np.random.Generator(np.random.Philox(key=sampling.seed))
        if isinstance(sampling, Random):
            shares = generator.random((sampling.points, len(self.parameters)))
        else:
            shares = latin_hypercube(sampling.points, len(self.parameters), generator)
        return [
            {key: _value(values, row[k]) for k, (key, values) in enumerate(self.parameters.items())}
            for row in shares.tolist()
        ]


def varied_keys(spec: Mapping[str, Any]) -> list[str]:
    """The keys that a sweep's file, as it was read, varies."""
    keys = list(spec.get("parameters") or {})
    sampling = spec.get("sampling")
    for point in (sampling.get("points") or []) if isinstance(sampling, dict) else []:
        keys += list(point) if isinstance(point, dict) else []
    return list(dict.fromkeys(str(key) for key in keys))


def place_of(spec: SweepSpec, number: int, key: str | None = None, value: Any = None) -> KeyPath:
    """Position of a value of a point in its file, or of the section that makes the point."""
    if isinstance(spec.sampling, List):
        return ("sampling", "points", number, *(() if key is None else (key,)))
    if key is None:
        return ("parameters",) if spec.parameters else ("scenario",)
    values = spec.parameters[key]
    listed = () if isinstance(values, Range) else values
    at = [k for k, one in enumerate(listed) if (type(one), one) == (type(value), value)]  # true is not 1 here
    return ("parameters", key, *at[:1])


def _count(values: Range | Sequence[Any]) -> int:
    """Values of a key in a grid, at most."""
    return (values.steps or 1) if isinstance(values, Range) else len(values)


def _grid(parameters: Mapping[str, Range | Sequence[Any]]) -> Iterator[Point]:
    values = [v.grid() if isinstance(v, Range) else list(v) for v in parameters.values()]
    for chosen in product(*values):
        yield dict(zip(parameters, chosen, strict=True))


def _value(values: Range | Sequence[Any], share: float) -> Any:
    return values.at(share) if isinstance(values, Range) else values[int(share * len(values))]


def latin_hypercube(points: int, keys: int, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Shares in 0..1 (points, keys): each column has one value in each of `points` equal cells."""
    cells = np.stack([generator.permutation(points) for _ in range(keys)], axis=1)
    return (cells + generator.random((points, keys))) / points


def read_sweep(path: str | Path) -> tuple[SweepSpec, Tree]:
    """The sweep in a file, and the positions of its values. Raises InputError, one line per mistake."""
    tree = read_tree(read_text(Path(path)), str(path))
    if not isinstance(tree.data, dict):
        raise InputError([tree.error((), "a sweep is a section with keys such as 'scenario' and 'policies'")])
    try:
        return SweepSpec.model_validate(tree.data), tree
    except ValidationError as error:
        raise InputError(describe(error, tree, SweepSpec)) from error


def what_can_be_read(path: str | Path) -> SweepSpec | None:
    """The sweep in a file without the values that are wrong, to check the others; None where too little is left."""
    data = read_tree(read_text(Path(path)), str(path)).data
    for _ in range(ATTEMPTS):
        try:
            return SweepSpec.model_validate(data)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                leave_out(data, item["loc"])
    return None
