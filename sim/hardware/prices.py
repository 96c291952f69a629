"""Money: a dated price book, what a scenario changes of it, and what a run costs.

A GPU is rented by the hour or owned: capex / (life * utilisation) per hour, the utilisation being the share of
its life in which it is in use. Rents of GPUs include their electricity, so energy is charged on the nodes whose
GPUs are owned, or on all when the scenario says so. An unknown price is None or NaN, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from equipoise.policies.observation import Bools, Floats
from equipoise.sim.hardware.profile import HardwareProfile, Kind, Measured, is_path, price_of, scenarios_dir
from equipoise.sim.scenario.errors import read_model
from equipoise.sim.scenario.model import Cost, NodeGroup, Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import STORAGE_PRICE, TARIFF, Quantity

HOUR_S = 3600.0


def _number(quantity: Quantity) -> BeforeValidator:
    def read(raw: object) -> object:
        """A number with its unit, or a mapping that holds one."""
        if isinstance(raw, Mapping):
            return {**raw, "value": quantity.parse(raw.get("value"))}
        return raw if isinstance(raw, Measured) else {"value": quantity.parse(raw)}

    return BeforeValidator(read)


class PriceBook(BaseModel):
    """Prices of one date. Each number may state its own source and kind, else has those of the book.

    gpu_hour: rent of one GPU with its share of the node, by accelerator; tariff: electricity, USD/J; storage:
    USD/(byte s); network: USD/h per node, beyond what the GPUs' prices include.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    name: str
    why: str = ""
    date: str
    kind: Kind = "catalogue"
    source: str = ""
    gpu_hour: dict[str, Annotated[Measured, price_of]] = {}
    tariff: Annotated[Measured, _number(TARIFF)] | None = None
    storage: Annotated[Measured, _number(STORAGE_PRICE)] | None = None
    network: Annotated[Measured, price_of] | None = None

    @model_validator(mode="before")
    @classmethod
    def _hand_down(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        origin = {k: raw[k] for k in ("kind", "source") if isinstance(raw.get(k), str)}

        def with_origin(value: Any) -> Any:
            """The price with the kind and source of its section."""
            return {**origin, **value} if isinstance(value, Mapping) else {**origin, "value": value}

        done = dict(raw)
        if isinstance(raw.get("gpu_hour"), Mapping):
            done["gpu_hour"] = {name: with_origin(value) for name, value in raw["gpu_hour"].items()}
        return done | {
            k: with_origin(raw[k]) for k in ("tariff", "storage", "network") if raw.get(k) is not None
        }

    @model_validator(mode="after")
    def _dated(self) -> Self:
        if not self.date:
            raise ValueError("date: prices change, so say of when they are")
        return self


def load_book(name_or_path: str, base: Path | None = None) -> PriceBook:
    """A price book by name, or from a YAML file (beside `base`, then in the working folder).

    Raises InputError, one line per mistake.
    """
    path = book_path(name_or_path, base)
    return _load(str(path), path.stat().st_mtime_ns)


def book_path(name_or_path: str, base: Path | None = None) -> Path:
    """The file behind a price book's name or path. Raises InputError when there is none."""
    named = scenarios_dir() / f"{name_or_path}.yaml"
    found = [base / name_or_path] if base else []
    for candidate in [*found, Path(name_or_path)] if is_path(name_or_path) else [named]:
        if candidate.is_file():
            return candidate
    raise InputError([f"price book {name_or_path!r}: no such file; 'prices' is the one that comes along"])


@lru_cache(maxsize=16)
def _load(path: str, mtime_ns: int) -> PriceBook:
    return read_model(Path(path), PriceBook)


@dataclass(frozen=True)
class Prices:
    """What a cluster costs. usd_per_h (nodes,): of a node with all its GPUs; None or NaN: not known."""

    usd_per_h: Floats
    gpus: Floats
    usd_per_j: float | None  # None: not known, or part of the nodes' prices
    usd_per_byte_s: float | None
    note: str = ""
    pays_energy: Bools | None = (
        None  # (nodes,), whether electricity is charged there; None: alike on all nodes
    )

    @property
    def usd_per_gpu_s(self) -> Floats:
        """Price of one GPU-second, by node; NaN: not known. A node without GPUs sells none: 0."""
        rate: Floats = np.where(self.gpus > 0, self.usd_per_h / np.maximum(self.gpus, 1.0) / HOUR_S, 0.0)
        return rate

    @property
    def known(self) -> bool:
        """Whether every node has a price."""
        return not bool(np.isnan(self.usd_per_h).any())

    @property
    def uniform(self) -> bool:
        """Whether a GPU-second costs the same everywhere, electricity included."""
        return self.known and self.pays_energy is None and bool(np.ptp(self.usd_per_gpu_s) == 0.0)


def group_usd_per_h(
    group: NodeGroup, cost: Cost, book: PriceBook, profile: HardwareProfile
) -> tuple[float | None, str]:
    """(USD/h of one node of a group, where the price is from); None: not known.

    In order: the group's price, the scenario's rent, the scenario's capex, the price book, the profile.
    """
    model, network = group.accelerator, cost.network
    if network is None:
        network = book.network.value if book.network is not None else 0.0
    if group.price is not None:
        return group.price, "scenario"
    if model in cost.gpu_hour:
        return group.gpus * cost.gpu_hour[model] + network, "scenario"
    if model in cost.capex:
        owned = cost.capex[model]
        return group.gpus * owned.price / (owned.life / HOUR_S * owned.utilisation) + network, "owned"
    listed = book.gpu_hour.get(model) or profile.accelerator(model).price_usd_per_gpu_h
    return (None, "") if listed is None else (group.gpus * listed.value + network, "book")


def make_prices(scenario: Scenario, profile: HardwareProfile) -> Prices:
    """Prices of a scenario's cluster. Raises InputError for a price book that cannot be read."""
    cost, groups = scenario.cost, scenario.cluster.groups
    book = load_book(cost.book)
    priced = [group_usd_per_h(group, cost, book, profile) for group in groups]
    per_node = [math.nan if usd is None else usd for usd, _ in priced]
    origins = {origin for _, origin in priced}
    count = [group.count for group in groups]
    tariff = scenario.energy.tariff
    if tariff is None:
        tariff = book.tariff.value if book.tariff is not None else None
    charged = "owned" in origins if cost.energy == "auto" else cost.energy == "separate"
    owned = [origin == "owned" for _, origin in priced]
    some = cost.energy == "auto" and any(owned) and not all(owned)
    storage = cost.storage
    if storage is None and book.storage is not None:
        storage = book.storage.value
    return Prices(
        np.repeat(per_node, count),
        np.repeat([float(group.gpus) for group in groups], count),
        (math.nan if tariff is None else tariff) if charged else None,
        storage,
        f"prices of {book.date} ({book.kind}, {book.name})" if "book" in origins else "",
        np.repeat(owned, count) if some else None,
    )
