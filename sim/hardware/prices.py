"""Prices: a dated price book, the scenario's own prices, and the cost of a run.

A GPU is rented by the hour or owned: (price - what it is sold for) / (life * utilisation) per hour, the utilisation
being the share of its life in which it is in use. A contract takes a discount off the rent and binds for its term.
Money that is paid before it is used bears simple interest: on half of it on the mean, since it is used up evenly.
Rents of GPUs include their electricity, so energy is charged on the nodes whose GPUs are owned, or on all when the
scenario says so. An unknown price is None or NaN, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from equipoise.policies.observation import Bools, Floats
from equipoise.sim.hardware.contracts import HOUR_S, Bond, bond, of_on_demand, owned_usd_per_h, terms_of
from equipoise.sim.hardware.profile import (
    ByteRate,
    HardwareProfile,
    Kind,
    Measured,
    Sourced,
    file_of,
    price_of,
    read_by,
    scenarios_dir,
)
from equipoise.sim.scenario.errors import read_model
from equipoise.sim.scenario.model import NodeGroup, Scenario, Topology, TreeTopology
from equipoise.sim.scenario.money import Cost, Terms, read_terms
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import SHARE, STORAGE_PRICE, TARIFF


class NetworkPrice(Sourced):
    """What a network costs, by which rents of nodes with another one than usual differ.

    port: of `rate` bytes/s of a node's NICs with their part of a fat tree of two tiers without oversubscription, USD/h;
    upper: share of that for links and switches above the racks, which oversubscription divides; included: bytes/s a
    GPU whose network is part of the GPU's rent, by accelerator.
    """

    port: Annotated[Measured, price_of]
    rate: ByteRate
    upper: Annotated[Measured, read_by(SHARE)]
    included: dict[str, ByteRate] = Field(default_factory=dict)

    def beyond(self, group: NodeGroup, topology: Topology) -> float:
        """USD/h by which a node costs more than its rent says; 0 with the default NIC, or with an unknown usual one."""
        usual, unset = self.included.get(group.accelerator), NodeGroup()
        if usual is None or (group.nic, group.nics) == (unset.nic, unset.nics):
            return 0.0
        above = 1.0 / topology.oversubscription if isinstance(topology, TreeTopology) else 1.0
        ports = group.network * (1.0 - self.upper.value * (1.0 - above)) - group.gpus * usual.value
        return ports / self.rate.value * self.port.value


class PriceBook(Sourced):
    """Prices of one date. Each number may state its own source and kind; the default is the book's.

    gpu_hour: rent of one GPU with its share of the node, by accelerator; discounts: off that rent, by contract
    (`spot`, `reserved 3 y`); tariff: electricity, USD/J; storage: USD/(byte s).
    """

    schema_version: Literal[1] = 1
    name: str
    why: str = ""
    date: str
    kind: Kind = "catalogue"
    gpu_hour: dict[str, Annotated[Measured, price_of]] = Field(default_factory=dict)
    discounts: dict[str, Annotated[Measured, read_by(SHARE)]] = Field(default_factory=dict)
    tariff: Annotated[Measured, read_by(TARIFF)] | None = None
    storage: Annotated[Measured, read_by(STORAGE_PRICE)] | None = None
    network: NetworkPrice | None = None

    @field_validator("discounts")
    @classmethod
    def _of_contracts(cls, discounts: dict[str, Measured]) -> dict[str, Measured]:
        for name in discounts:
            if contract_of(name) is None:
                raise ValueError(f"{name!r} is not a contract with a discount, such as 'spot' or 'reserved 3 y'")
        return discounts

    def discount_of(self, terms: Terms) -> Measured | None:
        """Discount of a contract on the on-demand price; None: not known."""
        wanted = (terms.kind, terms.term_s)
        return next((found for name, found in self.discounts.items() if contract_of(name) == wanted), None)

    @model_validator(mode="after")
    def _dated(self) -> Self:
        if not self.date:
            raise ValueError("date: prices change, so give the date on which they were valid")
        return self


def contract_of(name: str) -> tuple[str, float] | None:
    """(kind, term in s) of a contract that has a discount; None for anything else."""
    read = read_terms(name)
    return None if read is None or read[0] in ("on_demand", "owned") else read


def load_book(name_or_path: str, base: Path | None = None) -> PriceBook:
    """A price book by name, or from a YAML file (in `base`, then in the working folder).

    Raises InputError, one line per mistake.
    """
    path = book_path(name_or_path, base)
    return _load(str(path), path.stat().st_mtime_ns)


def book_path(name_or_path: str, base: Path | None = None) -> Path:
    """The file behind a price book's name or path. Raises InputError when there is none."""
    path = file_of(name_or_path, base, scenarios_dir())
    if path:
        return path
    raise InputError([f"price book {name_or_path!r}: no such file; 'prices' comes with Equipoise"])


@lru_cache(maxsize=16)
def _load(path: str, mtime_ns: int) -> PriceBook:
    return read_model(Path(path), PriceBook)


@dataclass(frozen=True)
class Prices:
    """Prices of a cluster. usd_per_h (nodes,): of a node with all its GPUs; None or NaN: not known."""

    usd_per_h: Floats
    gpus: Floats
    usd_per_j: float | None  # None: not known, or part of the nodes' prices
    usd_per_byte_s: float | None
    note: str = ""
    pays_energy: Bools | None = None  # (nodes,), whether electricity is charged there; None: alike on all nodes
    bonds: tuple[Bond, ...] = ()

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


def _on_demand(
    group: NodeGroup, cost: Cost, book: PriceBook, profile: HardwareProfile, topology: Topology
) -> tuple[float | None, str]:
    """(USD/h of the GPUs of one node without any contract, where the price is from); None: not known.

    In order: the group's price (with its network), the scenario's rent, the price book, the profile. Only the last two
    follow the network, by the book, unless the scenario states what it costs.
    """
    if group.price is not None:
        return group.price, "scenario"
    if group.accelerator in cost.gpu_hour:
        return group.gpus * cost.gpu_hour[group.accelerator], "scenario"
    listed = book.gpu_hour.get(group.accelerator) or profile.accelerator(group.accelerator).price_usd_per_gpu_h
    if listed is None:
        return None, ""
    beyond = 0.0 if book.network is None or cost.network is not None else book.network.beyond(group, topology)
    return max(0.0, group.gpus * listed.value + beyond), "network" if beyond else "book"


def group_price(
    group: NodeGroup, cost: Cost, book: PriceBook, profile: HardwareProfile, topology: Topology, gpus: int
) -> tuple[float | None, str, Bond | None]:
    """(USD/h of one node, source of the price, committed payments of its contract); None: not known, or none.

    gpus: all under the group's contract; a commitment is shared evenly among them.
    """
    _, terms = terms_of(group, cost)
    own, network = group.count * group.gpus, cost.network or 0.0
    if terms.kind == "owned":
        bought = cost.capex[group.accelerator]
        paid = own * bought.price
        return group.gpus * owned_usd_per_h(bought) + network, "owned", Bond(paid, paid, bought.life)
    listed, origin = _on_demand(group, cost, book, profile, topology)
    around = 0.0 if group.price is not None else network
    if listed is None or terms.kind == "on_demand":
        return (None if listed is None else listed + around), origin, None
    discount = terms.discount
    if discount is None:
        if (found := book.discount_of(terms)) is None:
            return None, "", None
        discount = found.value
    usd_per_h = listed * of_on_demand(terms, discount, gpus)
    return usd_per_h + around, origin, bond(terms, discount, group.count * listed, gpus)


def make_prices(scenario: Scenario, profile: HardwareProfile) -> Prices:
    """Prices of a scenario's cluster. Raises InputError for a price book that cannot be read."""
    cost, groups = scenario.cost, scenario.cluster.groups
    book = load_book(cost.book)
    count = [group.count for group in groups]
    keys = [terms_of(group, cost)[0] for group in groups]
    under = {key: sum(g.count * g.gpus for g, k in zip(groups, keys, strict=True) if k == key) for key in keys}
    topology = scenario.cluster.topology
    priced = [group_price(g, cost, book, profile, topology, under[k]) for g, k in zip(groups, keys, strict=True)]
    per_node = [math.nan if usd is None else usd for usd, _, _ in priced]
    origins = {origin for _, origin, _ in priced}
    tariff = scenario.energy.tariff
    if tariff is None:
        tariff = book.tariff.value if book.tariff is not None else None
    charged = "owned" in origins if cost.energy == "auto" else cost.energy == "separate"
    owned = [origin == "owned" for _, origin, _ in priced]
    some = cost.energy == "auto" and any(owned) and not all(owned)
    storage = cost.storage
    if storage is None and book.storage is not None:
        storage = book.storage.value
    apart = ", rents adjusted to the rate of the nodes' NICs" if "network" in origins else ""
    return Prices(
        np.repeat(per_node, count),
        np.repeat([float(group.gpus) for group in groups], count),
        (math.nan if tariff is None else tariff) if charged else None,
        storage,
        f"prices of {book.date} ({book.kind}, {book.name}){apart}" if {"book", "network"} & origins else "",
        np.repeat(owned, count) if some else None,
        tuple(bound for _, _, bound in priced if bound is not None),
    )
