"""Contracts for GPUs: the hourly cost under each, and the payments they commit to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from equipoise.sim.scenario.model import FaultsSpec, NodeGroup, Scenario
from equipoise.sim.scenario.money import YEAR_S, Capex, Cost, Terms

HOUR_S = 3600.0
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Bond:
    """Payments committed to by a contract or purchase: `usd`, of which `upfront_usd` at its begin.

    term_s: after which the same is due once more, if the run goes on.
    """

    usd: float
    upfront_usd: float
    term_s: float

    def due(self, span_s: float) -> tuple[float, float]:
        """(total USD, USD paid in advance) of the terms that a run of `span_s` touches."""
        times = max(1, math.ceil(span_s / self.term_s - _ROUNDING))
        return times * self.usd, times * self.upfront_usd


def terms_of(group: NodeGroup, cost: Cost) -> tuple[str, Terms]:
    """(key, contract) of a group: its own contract, else its accelerator's, else that of its prices."""
    for key in (group.name, group.accelerator):
        if key in cost.terms:
            return key, cost.terms[key]
    rented = group.price is not None or group.accelerator in cost.gpu_hour
    owned = not rented and group.accelerator in cost.capex
    return group.accelerator, Terms(kind="owned" if owned else "on_demand")


def acting_faults(scenario: Scenario) -> FaultsSpec:
    """The faults of a scenario, without reclaims where a contract other than spot is stated for their group."""
    faults, cost = scenario.faults, scenario.cost
    group = next((g for g in scenario.cluster.groups if faults.spot and g.name == faults.spot.group), None)
    if group is None:
        return faults
    key, terms = terms_of(group, cost)
    stated = key in cost.terms or terms.kind == "owned"
    return faults.model_copy(update={"spot": None}) if stated and terms.kind != "spot" else faults


def owned_usd_per_h(owned: Capex) -> float:
    """Cost of an hour of use of an owned GPU: straight-line depreciation, and interest on the mean value."""
    hours = owned.life / HOUR_S * owned.utilisation
    interest = owned.price * (1.0 + owned.residual) / 2.0 * owned.interest * owned.life / YEAR_S
    return (owned.price * (1.0 - owned.residual) + interest) / hours


def of_on_demand(terms: Terms, discount: float, gpus: int) -> float:
    """Price of a GPU hour relative to that on demand, on the mean over `gpus` GPUs under a contract.

    What is paid in advance is used up evenly, so interest is due on half of it. Of a commitment to fewer GPUs the
    others are had on demand; to more, those that are not there are paid for, too.
    """
    if terms.kind == "spot":
        return 1.0 - discount
    bound = gpus if terms.gpus is None else terms.gpus
    interest = terms.upfront * terms.interest * terms.term_s / YEAR_S / 2.0
    return (bound * (1.0 - discount) * (1.0 + interest) + max(0, gpus - bound)) / max(gpus, 1)


def bond(terms: Terms, discount: float, usd_per_h: float, gpus: int) -> Bond | None:
    """Committed payments for GPUs at `usd_per_h` on demand, among `gpus` under the same contract."""
    if terms.kind == "spot":
        return None
    part = 1.0 if terms.gpus is None else terms.gpus / max(gpus, 1)
    usd = part * usd_per_h * (1.0 - discount) * terms.term_s / HOUR_S
    return Bond(usd, terms.upfront * usd, terms.term_s)
