"""Checks of a scenario's power caps, heat and prices against the hardware profile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from equipoise.sim.cluster.power import host_w
from equipoise.sim.hardware.carbon import load_carbon
from equipoise.sim.hardware.contracts import terms_of
from equipoise.sim.hardware.prices import PriceBook, load_book
from equipoise.sim.hardware.profile import Accelerator, HardwareProfile
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.names import unknown
from equipoise.sim.scenario.tree import InputError, KeyPath
from equipoise.sim.scenario.units import format_seconds

Problem = tuple[KeyPath, str]

_THERMAL = ("thermal_c_per_w", "tau_s", "throttle_c", "throttle_slope")


def energy_problems(scenario: Scenario, profile: HardwareProfile, base: Path | None) -> Iterator[Problem]:
    """(key path, what is wrong) of the sections `energy`, `thermal` and `cost`."""
    used = {g.accelerator: profile.accelerator(g.accelerator) for g in scenario.cluster.groups}
    yield from _caps(scenario, profile, used)
    if scenario.thermal is not None:
        for name, accelerator in used.items():
            missing = [key for key in (*_THERMAL, "idle_w", "max_w") if getattr(accelerator, key) is None]
            if missing:
                yield ("thermal",), f"hardware profile {profile.name!r} does not state the {missing[0]} of {name}"
    yield from money_problems(scenario, profile, base)


def _caps(scenario: Scenario, profile: HardwareProfile, used: dict[str, Accelerator]) -> Iterator[Problem]:
    energy = scenario.energy
    asked = [k for k in ("power_cap", "cluster_power_cap") if getattr(energy, k) is not None]
    asked += ["policy_caps"] if energy.policy_caps else []
    for name, accelerator in used.items():
        if asked and (accelerator.idle_w is None or accelerator.max_w is None):
            yield ("energy", asked[0]), f"hardware profile {profile.name!r} does not state the power of {name}"
            return
        idle_w = 0.0 if accelerator.idle_w is None else accelerator.idle_w.value
        if energy.power_cap is not None and energy.power_cap <= idle_w:
            text = f"{energy.power_cap:g} W must be above the idle power of {name}, {idle_w:g} W"
            yield ("energy", "power_cap"), text
    if energy.cluster_power_cap is not None:
        least_w = 0.0
        for group in scenario.cluster.groups:
            idle = used[group.accelerator].idle_w
            around_w = host_w(group, profile)
            if math.isnan(around_w):
                text = f"the power of the hosts of {group.name!r} is not known; give them 'host_power'"
                yield ("energy", "cluster_power_cap"), text
                return
            least_w += group.count * (group.gpus * (0.0 if idle is None else idle.value) + around_w)
        if energy.cluster_power_cap <= least_w:
            text = f"{energy.cluster_power_cap:g} W must be above the idle power of the cluster, {least_w:g} W"
            yield ("energy", "cluster_power_cap"), text


def money_problems(scenario: Scenario, profile: HardwareProfile, base: Path | None) -> Iterator[Problem]:
    """(key path, what is wrong) of prices, contracts and the CO2 of electricity."""
    cost = scenario.cost
    for section in ("gpu_hour", "capex"):
        for name in getattr(cost, section):
            if name not in profile.accelerators:
                yield ("cost", section, name), unknown("accelerator", name, profile.accelerators)
    try:
        book = load_book(cost.book, base)
    except InputError as error:
        yield from ((("cost", "book"), line) for line in error.lines)
    else:
        yield from _terms(scenario, book)
    try:
        load_carbon(scenario.energy, base)
    except InputError as error:
        yield from ((("energy", "region"), line) for line in error.lines)


def _terms(scenario: Scenario, book: PriceBook) -> Iterator[Problem]:
    """Problems with contracts: unknown subjects, owned GPUs without a price, unknown discounts."""
    cost, groups = scenario.cost, scenario.cluster.groups
    names = {group.name for group in groups} | {group.accelerator for group in groups}
    for name, terms in cost.terms.items():
        at = ("cost", "terms", name)
        if name not in names:
            there = ", ".join(sorted(names))
            yield at, f"no node group or accelerator of the cluster is called {name!r}; known: {there}"
        elif terms.kind == "owned":
            bought = {group.accelerator for group in groups if terms_of(group, cost)[0] == name}
            if missing := sorted(bought - set(cost.capex)):
                yield at, f"owned GPUs need their price: cost.capex.{missing[0]}.price"
        elif terms.kind != "on_demand" and terms.discount is None and book.discount_of(terms) is None:
            term = "" if terms.kind == "spot" else f" {format_seconds(terms.term_s)}"
            known = ", ".join(book.discounts) or "none"
            yield (at, f"no discount known for {terms.kind}{term}; give 'discount' (price book {book.name!r}: {known})")
