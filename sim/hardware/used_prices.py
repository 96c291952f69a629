"""The prices used for a scenario, each with its source and date."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from equipoise.sim.hardware.contracts import HOUR_S, terms_of
from equipoise.sim.hardware.prices import PriceBook, load_book
from equipoise.sim.hardware.profile import HardwareProfile, Measured, load_profile
from equipoise.sim.scenario.model import NodeGroup, Scenario
from equipoise.sim.scenario.money import Cost, Terms

J_PER_KWH = 3.6e6
GB_MONTH_BYTE_S = 1e9 * 365.0 / 12.0 * 24.0 * HOUR_S
GIVEN = "given"
"""The origin of what the scenario says itself; a price of a book or profile has the kind that is written there."""


@dataclass(frozen=True)
class UsedPrice:
    """One price: its subject, unit, origin (given or looked up), and the date of the source."""

    what: str
    value: float
    unit: str
    origin: str
    source: str = "the scenario"
    date: str = ""

    @property
    def short(self) -> str:
        """The price in a line: `h100_sxm 3 USD per GPU hour (catalogue, 2026-05)`."""
        when = f", {self.date}" if self.date else ""
        return f"{self.what} {self.value:.6g} {self.unit} ({self.origin}{when})"


def used_prices(scenario: Scenario, base: Path | None = None) -> list[UsedPrice]:
    """Prices that apply to the nodes, contracts, electricity, storage and network of a scenario.

    base: the folder in which a price book or profile of the scenario's own is looked for first. What has no price
    is left out. Raises InputError for a book or profile that cannot be read.
    """
    book = load_book(scenario.cost.book, base)
    profile = load_profile(scenario.cluster.hardware, base)
    cost, groups = scenario.cost, [group for group in scenario.cluster.groups if group.gpus]
    found = [price for group in groups for price in _of_group(group, cost, book, profile)]
    owned = any(terms_of(group, cost)[1].kind == "owned" for group in groups)
    if cost.energy == "separate" or (owned and cost.energy == "auto"):
        found += _either("electricity", scenario.energy.tariff, book.tariff, J_PER_KWH, "USD/kWh", book.date)
    if any(job.data is not None for job in scenario.workload.jobs):
        found += _either("storage", cost.storage, book.storage, GB_MONTH_BYTE_S, "USD/GB-month", book.date)
    found += _either("network of a node", cost.network, book.network, 1.0, "USD/h", book.date)
    return list(dict.fromkeys(found))


def _of_group(group: NodeGroup, cost: Cost, book: PriceBook, profile: HardwareProfile) -> Iterator[UsedPrice]:
    """The price of a group's GPUs, and the discount of its contract."""
    name, (_, terms) = group.accelerator, terms_of(group, cost)
    if terms.kind == "owned":
        yield UsedPrice(name, cost.capex[name].price, "USD to buy a GPU", GIVEN)
        return
    unit = "USD per GPU hour"
    if group.price is not None:
        yield UsedPrice(f"nodes {group.name}", group.price, "USD per node hour", GIVEN)
    elif name in cost.gpu_hour:
        yield UsedPrice(name, cost.gpu_hour[name], unit, GIVEN)
    elif (listed := book.gpu_hour.get(name)) is not None:
        yield _listed(name, listed, 1.0, unit, book.date)
    elif (listed := profile.accelerator(name).price_usd_per_gpu_h) is not None:
        yield _listed(name, listed, 1.0, unit, profile.date)
    if terms.kind != "on_demand":
        yield from _discount(name, terms, book)


def _discount(name: str, terms: Terms, book: PriceBook) -> Iterator[UsedPrice]:
    what, unit = f"{name} {terms.kind}", "% off the price on demand"
    if terms.discount is not None:
        yield UsedPrice(what, 100.0 * terms.discount, unit, GIVEN)
    elif (listed := book.discount_of(terms)) is not None:
        yield _listed(what, listed, 100.0, unit, book.date)


def _either(
    what: str, given: float | None, listed: Measured | None, factor: float, unit: str, date: str
) -> Iterator[UsedPrice]:
    """The scenario's price, else the book's."""
    if given is not None:
        yield UsedPrice(what, given * factor, unit, GIVEN)
    elif listed is not None:
        yield _listed(what, listed, factor, unit, date)


def _listed(what: str, listed: Measured, factor: float, unit: str, date: str) -> UsedPrice:
    return UsedPrice(what, listed.value * factor, unit, listed.kind, listed.source, date)
