"""CO2 of electricity: a dated file of regions, each with a mean or with the 24 hours of its day."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from equipoise.policies.observation import Floats
from equipoise.sim.hardware.profile import file_of, scenarios_dir
from equipoise.sim.scenario.errors import read_model
from equipoise.sim.scenario.model import Energy
from equipoise.sim.scenario.names import alike
from equipoise.sim.scenario.tree import InputError

DAY_S = 86400.0
_HOUR_S = 3600.0
KWH_J = 3.6e6
Grams = Annotated[float, Field(ge=0)]


class Region(BaseModel):
    """Emissions of a kilowatt-hour (g of CO2), constant or for each hour of the local day."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    mean: Grams | None = None
    hours: tuple[Grams, ...] = ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.mean is None) == (not self.hours) or len(self.hours) not in (0, 24):
            raise ValueError("needs either 'mean' or the 24 'hours' of a day, in g of CO2 per kWh")
        return self

    def day(self) -> Floats:
        """Grams per kWh in each hour, (24,)."""
        return np.array(self.hours) if self.hours else np.full(24, float(self.mean or 0.0))


class CarbonBook(BaseModel):
    """Regions of one date, with where the numbers are from."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    schema_version: Literal[1] = 1
    name: str
    why: str = ""
    date: Annotated[str, Field(min_length=1)]
    source: str = ""
    regions: dict[str, Region]


def carbon_path(name_or_path: str, base: Path | None = None) -> Path:
    """The file behind a name or path (in `base`, then in the working folder). Raises InputError."""
    path = file_of(name_or_path, base, scenarios_dir())
    if path:
        return path
    raise InputError([f"carbon file {name_or_path!r}: no such file; 'carbon' comes with Equipoise"])


def load_carbon(energy: Energy, base: Path | None = None) -> tuple[CarbonBook, Region] | None:
    """The file and the region that the scenario names; None without a region. Raises InputError."""
    if energy.region is None:
        return None
    path = carbon_path(energy.carbon_book, base)
    book = read_carbon(path)
    if energy.region not in book.regions:
        known = sorted(book.regions)
        meant = [one for one in alike(energy.region, known) if one.lower() == energy.region.lower()]
        hint = f"did you mean {meant[0]!r}?" if meant else f"known: {', '.join(known)}"
        raise InputError([f"region {energy.region!r} is not in {path.name}; {hint}"])
    return book, book.regions[energy.region]


def read_carbon(path: Path) -> CarbonBook:
    """The regions of a file. Raises InputError, one line a mistake."""
    return _load(str(path), path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _load(path: str, mtime_ns: int) -> CarbonBook:
    return read_model(Path(path), CarbonBook)


def emitted_kg(start_s: Floats, end_s: Floats, energy_j: Floats, day: Floats, begin_s: float) -> float:
    """CO2 of energy drawn evenly within intervals (n,), where each hour has its own g per kWh (24,).

    begin_s: local time of day at which the simulated time 0 is.
    """
    at = np.concatenate(([0.0], np.cumsum(day) * _HOUR_S))  # integral of the intensity over one day

    def until(time_s: Floats) -> Floats:
        """Integral of the intensity from the midnight before the start, g s / kWh."""
        days, rest_s = np.divmod(time_s + begin_s, DAY_S)
        found: Floats = days * at[-1] + np.interp(rest_s, np.arange(25) * _HOUR_S, at)
        return found

    length_s = end_s - start_s
    here = length_s > 0.0
    mean = np.zeros_like(energy_j)
    mean[here] = (until(end_s[here]) - until(start_s[here])) / length_s[here]
    return float(energy_j @ mean) / KWH_J / 1000.0
