"""Hardware profiles: data of accelerators and fabrics, every number with its origin.

A profile is a YAML file (`scenarios/hardware/*.yaml`, or what calibration writes). Each number is a
`Measured`; in the file it may be bare (`80 GB`), and then takes the `kind` and `source` of its section.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from equipoise.base.files import write_whole
from equipoise.base.sources import root
from equipoise.sim.discover import files
from equipoise.sim.scenario.errors import read_model
from equipoise.sim.scenario.names import alike
from equipoise.sim.scenario.tree import InputError, write_tree
from equipoise.sim.scenario.units import (
    DATA_RATE,
    POWER,
    PRICE,
    SHARE,
    SIZE,
    TEMPERATURE,
    TIME,
    WORK,
    WORK_RATE,
    Float,
    Int,
    Quantity,
)

Kind = Literal["measured", "fitted", "predicted", "catalogue", "assumed"]
Tier = Literal["intra", "inter"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]

NUMBER = Quantity("a number", "1", "0.5", {})
THERMAL_RESISTANCE = Quantity(
    "a thermal resistance", "C/W", "0.07 C/W", {"C/W": Fraction(1), "K/W": Fraction(1)}, above=True
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class Measured(_Part):
    """A number and its origin.

    `low` and `high` bound it (95 % interval of n samples for measured and fitted numbers, 90 % for predicted ones;
    None: not known). `kind`: measured or fitted on a machine, predicted from a trace, `catalogue` (a vendor's
    published figure) or `assumed`.
    """

    value: Float
    low: Float | None = None
    high: Float | None = None
    n: Annotated[Int, Field(ge=0)] = 0
    source: str = ""
    kind: Kind = "catalogue"

    def __float__(self) -> float:
        return self.value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        if not low <= self.value <= high:
            raise ValueError(f"value {self.value:g} is not between low {low:g} and high {high:g}")
        return self


def read_by(quantity: Quantity) -> BeforeValidator:
    """Reads value, low and high in the human units of one quantity."""

    def read(raw: object) -> object:
        """A number with its unit, or a mapping with value and bounds."""
        if isinstance(raw, Mapping):
            bounds = {k: quantity.parse(raw[k]) for k in ("value", "low", "high") if raw.get(k) is not None}
            return {**raw, **bounds}
        return raw if isinstance(raw, Measured) else {"value": quantity.parse(raw)}

    return BeforeValidator(read)


ByteCount = Annotated[Measured, read_by(SIZE)]
ByteRate = Annotated[Measured, read_by(DATA_RATE)]
Duration = Annotated[Measured, read_by(TIME)]
FlopRate = Annotated[Measured, read_by(WORK_RATE)]
FlopCount = Annotated[Measured, read_by(WORK)]
Power = Annotated[Measured, read_by(POWER)]
Temperature = Annotated[Measured, read_by(TEMPERATURE)]
price_of = read_by(PRICE)
Price = Annotated[Measured, price_of]
Number = Annotated[Measured, read_by(NUMBER)]
Efficiency = Annotated[Measured, read_by(replace(SHARE, above=True))]
ThermalResistance = Annotated[Measured, read_by(THERMAL_RESISTANCE)]


class Sourced(_Part):
    """A section that says kind and source of its numbers without their own."""

    source: str = ""
    kind: Kind | None = None

    @model_validator(mode="before")
    @classmethod
    def _hand_down(cls, raw: Any) -> Any:
        return _with_origin(raw, cls, {})


class EfficiencyPoint(_Part):
    """Share of the peak rate reached by one pass of `flop` FLOP."""

    flop: FlopCount
    efficiency: Efficiency


class Accelerator(Sourced):
    """One accelerator. None: not known, which is never treated as 0.

    `flop_per_s` holds dense peak rates by precision; `efficiency` is the share of them reached by size of
    pass; `link_bytes_per_s` is the rate to the other accelerators of a node, one direction, all links.
    Speed on a fraction f of it is (1 + share_kappa) * f / (f + share_kappa); co-located workers slow each
    other by 1 + interference * sum of the others' shares.
    """

    vendor: str = ""
    flop_per_s: Annotated[dict[str, FlopRate], Field(min_length=1)]
    hbm_bytes_per_s: ByteRate
    memory_bytes: ByteCount
    link_bytes_per_s: ByteRate | None = None
    pcie_bytes_per_s: ByteRate | None = None  # to its host and to NICs, one direction
    launch_latency_s: Duration | None = None
    efficiency: tuple[EfficiencyPoint, ...] = ()
    sustained: Number | None = None  # speed of training steps over what the rates say, as those of its relatives do
    share_kappa: Number | None = None
    interference: Number | None = None
    mig: tuple[str, ...] = ()  # profiles of its slices, as 3g.40gb
    idle_w: Power | None = None
    max_w: Power | None = None
    host_w: Power | None = None  # drawn by the node around it: links, NICs, fans
    thermal_c_per_w: ThermalResistance | None = None
    tau_s: Duration | None = None
    throttle_c: Temperature | None = None
    throttle_slope: Number | None = None  # share of the clock lost per degree above throttle_c
    price_usd_per_gpu_h: Price | None = None
    price_date: str | None = None
    _steps: tuple[StepTime, ...] = PrivateAttr(())  # the profile's, of this accelerator

    @model_validator(mode="after")
    def _checked(self) -> Self:
        sizes = [point.flop.value for point in self.efficiency]
        if any(a >= b for a, b in pairwise(sizes)):
            raise ValueError("efficiency: sizes must increase")
        for profile in self.mig:
            if not re.fullmatch(r"[12347]g\.[1-9][0-9]*gb", profile):
                raise ValueError(f"mig: {profile!r} is not a profile such as 3g.40gb, with 1, 2, 3, 4 or 7 slices")
        if self.price_usd_per_gpu_h is not None and not self.price_date:
            raise ValueError("price_usd_per_gpu_h: needs price_date, because prices change")
        return self

    def peak_flop_per_s(self, precision: str) -> float:
        """Dense peak rate (FLOP/s). Raises ValueError when the data sheet states none for `precision`."""
        if precision not in self.flop_per_s:
            raise ValueError(f"no rate for precision {precision!r}; known: {', '.join(self.flop_per_s)}")
        return self.flop_per_s[precision].value

    def step(self, workload: str, precision: str) -> StepTime:
        """The profile's step time of a workload on this accelerator. Raises ValueError, one line, for none."""
        for step in self._steps:
            if (step.workload, step.precision) == (workload, precision):
                return step
        known = ", ".join(f"{s.workload} in {s.precision}" for s in self._steps) or "none"
        raise ValueError(f"no step of {workload!r} in {precision} was measured; known: {known}")

    def efficiency_at(self, flop: float) -> float:
        """Share of the peak that a pass of `flop` FLOP reaches; 1 without a table.

        Linear in log(flop) between the points, flat beyond them (size-dependent efficiency as in Calculon,
        Isaev et al. 2023).
        """
        points = self.efficiency
        if not points:
            return 1.0
        if flop <= points[0].flop.value:
            return points[0].efficiency.value
        for left, right in pairwise(points):
            if flop <= right.flop.value:
                span = math.log(right.flop.value / left.flop.value)
                part = math.log(flop / left.flop.value) / span
                return left.efficiency.value + part * (right.efficiency.value - left.efficiency.value)
        return points[-1].efficiency.value


class FabricRange(_Part):
    """alpha-beta constants that hold from `from_bytes` on."""

    from_bytes: ByteCount
    alpha_s: Duration
    bytes_per_s: ByteRate


class Fabric(Sourced):
    """One collective on one tier: `alpha_s` per message and the highest rate B that a flow reaches.

    `pieces` refine them by message size. `accelerator` "" means any.
    """

    tier: Tier
    collective: Collective
    accelerator: str = ""
    alpha_s: Duration
    bytes_per_s: ByteRate
    pieces: tuple[FabricRange, ...] = ()

    @model_validator(mode="after")
    def _sorted(self) -> Self:
        if any(a.from_bytes.value >= b.from_bytes.value for a, b in pairwise(self.pieces)):
            raise ValueError("pieces: from_bytes must increase")
        return self

    def constants_at(self, size_bytes: float) -> tuple[float, float]:
        """(alpha in s, rate in bytes/s) that hold for messages of `size_bytes`."""
        alpha, rate = self.alpha_s.value, self.bytes_per_s.value
        for piece in self.pieces:
            if size_bytes >= piece.from_bytes.value:
                alpha, rate = piece.alpha_s.value, piece.bytes_per_s.value
        return alpha, rate


class StepTime(Sourced):
    """Time of one forward-backward pass of a workload: alpha_s + beta_s * samples.

    `residual_cov` is the coefficient of variation of measured over fitted steps, `overlap` the exponent gamma
    with which a step hides its exchange (`policies.physics.overlapped_s`).
    """

    workload: str
    accelerator: str
    precision: str
    alpha_s: Duration
    beta_s: Duration
    residual_cov: Number | None = None
    overlap: Number | None = None


class HardwareProfile(_Part):
    """Accelerators by name and fabrics, with the conditions under which they were measured.

    `steps` are training steps timed on the machine. `figures` are measured numbers by name, the unit (SI) at
    its end: `calibrate --check` measures them again, second methods are compared with them; no run reads them.
    """

    schema_version: Literal[1] = 1
    name: str
    why: str = ""
    kind: Kind = "catalogue"
    source: str = ""
    date: str = ""
    conditions: dict[str, str | int | float | bool | None] = {}
    versions: dict[str, str] = {}
    accelerators: dict[str, Accelerator] = {}
    fabrics: tuple[Fabric, ...] = ()
    steps: tuple[StepTime, ...] = ()
    figures: dict[str, Number] = {}
    node_base_w: Power | None = None  # a node without its accelerators; each adds `host_w`
    storage_read_bytes_per_s: ByteRate | None = None  # of a node's own disk, past the page cache

    @model_validator(mode="before")
    @classmethod
    def _hand_down(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        origin = {k: raw[k] for k in ("kind", "source") if isinstance(raw.get(k), str)}
        raw = dict(raw)
        if isinstance(raw.get("accelerators"), Mapping):
            raw["accelerators"] = {k: _with_origin(v, Accelerator, origin) for k, v in raw["accelerators"].items()}
        if isinstance(raw.get("fabrics"), list | tuple):
            raw["fabrics"] = [_with_origin(v, Fabric, origin) for v in raw["fabrics"]]
        if isinstance(raw.get("steps"), list | tuple):
            raw["steps"] = [_with_origin(v, StepTime, origin) for v in raw["steps"]]
        for name in ("node_base_w", "storage_read_bytes_per_s"):
            if raw.get(name) is not None:
                raw[name] = _number_origin(raw[name], origin)
        if isinstance(raw.get("figures"), Mapping):
            raw["figures"] = {k: _number_origin(v, origin) for k, v in raw["figures"].items()}
        return raw

    @model_validator(mode="after")
    def _share_steps(self) -> Self:
        for name, accelerator in self.accelerators.items():
            accelerator._steps = tuple(step for step in self.steps if step.accelerator == name)
        return self

    def accelerator(self, name: str) -> Accelerator:
        """The accelerator of that name. Raises ValueError with the known names."""
        if name not in self.accelerators:
            close = alike(name, list(self.accelerators))
            hint = (
                f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(self.accelerators) or 'none'}"
            )
            raise ValueError(f"no accelerator {name!r} in hardware profile {self.name!r}; {hint}")
        return self.accelerators[name]

    def fabric(self, tier: Tier, collective: Collective = "all_reduce", accelerator: str = "") -> Fabric | None:
        """Constants of a collective on a tier: of that accelerator, else of any; None when not known."""
        for wanted in (accelerator, ""):
            for fabric in self.fabrics:
                if (fabric.tier, fabric.collective, fabric.accelerator) == (tier, collective, wanted):
                    return fabric
        return None


def scenarios_dir() -> Path:
    """Folder of the scenarios and hardware profiles that come with the software."""
    return root() / "scenarios"


def shipped() -> list[Path]:
    """Scenarios, sweeps and price books that come with the software, those of features last."""
    return [*sorted(scenarios_dir().glob("*.yaml")), *files("scenarios/*.yaml")]


def list_profiles() -> list[str]:
    """Names of the hardware profiles that come with the software."""
    return sorted(path.stem for path in (scenarios_dir() / "hardware").glob("*.yaml"))


def load_profile(name_or_path: str | Path, base: Path | None = None) -> HardwareProfile:
    """A profile by name, or from a YAML file (looked up in `base`, then in the working folder).

    Raises InputError, one line per mistake.
    """
    path = profile_path(name_or_path, base)
    return _load(str(path), path.stat().st_mtime_ns)


def is_path(name_or_path: str) -> bool:
    """Whether the text is a path, not the name of a built-in profile."""
    return name_or_path.endswith((".yaml", ".yml")) or os.sep in name_or_path


def file_of(name_or_path: str, base: Path | None, shipped: Path) -> Path | None:
    """The file behind a path, looked for in `base` first, or behind the name of one in the folder `shipped`."""
    named = [base / name_or_path] if base else []
    found = [*named, Path(name_or_path)] if is_path(name_or_path) else [shipped / f"{name_or_path}.yaml"]
    return next((candidate for candidate in found if candidate.is_file()), None)


def profile_path(name_or_path: str | Path, base: Path | None = None) -> Path:
    """The file behind a profile's name or path. Raises InputError when there is none."""
    text = str(name_or_path)
    path = file_of(text, base, scenarios_dir() / "hardware")
    if path:
        return path
    if is_path(text):
        raise InputError([f"hardware profile {text!r}: no such file"])
    known = ", ".join(list_profiles()) or "none"
    raise InputError([f"unknown hardware profile {text!r}; known: {known}, or the path of a YAML file"])


@lru_cache(maxsize=16)
def _load(path: str, mtime_ns: int) -> HardwareProfile:
    return read_model(Path(path), HardwareProfile)


def save_profile(profile: HardwareProfile, path: str | Path) -> None:
    """Write a profile as YAML that `load_profile` reads back equal; the file appears whole or not at all."""
    # Kind and source of every number are written out: left out, they would be taken from their section.
    data = profile.model_dump(mode="json", exclude_none=True)
    write_whole(Path(path), write_tree(data))


def _with_origin(section: Any, model: type[BaseModel], outer: Mapping[str, str]) -> Any:
    """Copies the section's kind and source (or the outer ones) to its numbers without their own."""
    if not isinstance(section, Mapping):
        return section
    origin = {**outer, **{k: section[k] for k in ("kind", "source") if section.get(k)}}
    plain = {"vendor", "source", "kind", "price_date", "tier", "collective", "accelerator"}
    plain |= {"workload", "precision", "mig", "schema_version", "name", "why", "date"}
    numbers = [k for k in model.model_fields if k in section and k not in plain]
    return {**section, **{k: _number_origin(section[k], origin) for k in numbers}}


def _number_origin(raw: Any, origin: Mapping[str, str]) -> Any:
    if isinstance(raw, Mapping):
        if "value" in raw:
            return {**origin, **raw}
        return {k: _number_origin(v, origin) for k, v in raw.items()}
    if isinstance(raw, list | tuple):
        return [_number_origin(item, origin) for item in raw]
    return {"value": raw, **origin} if isinstance(raw, int | float | str) and not isinstance(raw, bool) else raw
