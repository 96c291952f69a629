"""What a cluster must achieve, in a planner's words: `makespan<=24h`, `cost<=5000 USD`, `goodput>=50 %`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from sim.hardware import HardwareProfile
from sim.scenario import Scenario
from sim.units import (
    POWER,
    PRICE,
    SHARE,
    TIME,
    Quantity,
    format_scaled,
    format_seconds,
    format_share,
    format_usd,
)
from sim.yaml_tree import InputError

_MONEY = {"USD": Fraction(1), "$": Fraction(1), "kUSD": Fraction(1000), "MUSD": Fraction(10**6)}
USD = Quantity("an amount of money", "USD", "5000 USD", _MONEY)


@dataclass(frozen=True)
class Measure:
    """Something that a target can be set for; `key` is its name in results."""

    key: str
    quantity: Quantity
    show: Callable[[float], str]
    of_cluster: bool = False  # known before anything is run


_TIMES = (
    "makespan",
    "completion_mean",
    "completion_p50",
    "completion_p95",
    "completion_p99",
    "queueing_mean",
)
MEASURES: dict[str, Measure] = {
    **{name: Measure(f"{name}_s", TIME, format_seconds) for name in _TIMES},
    "goodput": Measure("goodput_ratio", SHARE, format_share),
    "gpu_busy": Measure("gpu_busy_ratio", SHARE, format_share),
    "cost": Measure("cost_usd", USD, format_usd),
    "price": Measure("price_usd_per_h", PRICE, lambda value: f"{format_usd(value)}/h", of_cluster=True),
    "power": Measure("power_w", POWER, lambda value: format_scaled(value, "W"), of_cluster=True),
}


@dataclass(frozen=True)
class Target:
    """One condition. `limit` is in SI units."""

    measure: Measure
    at_most: bool
    limit: float
    text: str

    def met(self, values: Mapping[str, float]) -> bool:
        """Whether results meet it; what is unknown (no job completed) does not."""
        value = values[self.measure.key]
        return value <= self.limit if self.at_most else value >= self.limit

    def excess(self, values: Mapping[str, float]) -> float:
        """How far results are from it: 0 when met, 0.5 when half as much again as allowed."""
        value = values[self.measure.key]
        if self.met(values):
            return 0.0
        if math.isnan(value) or self.limit == 0.0 or value == 0.0:
            return math.inf
        return value / self.limit - 1.0 if self.at_most else self.limit / value - 1.0


def read_target(text: str) -> Target:
    """A target such as `completion_p95<=2h`. Raises InputError with what is allowed."""
    match = re.fullmatch(r"\s*([a-z0-9_]+)\s*(<=|>=)\s*(.+?)\s*", text)
    if match is None or match[1] not in MEASURES:
        raise InputError([f"target {text!r}: write NAME<=VALUE or NAME>=VALUE; names: {', '.join(MEASURES)}"])
    measure = MEASURES[match[1]]
    try:
        limit = measure.quantity.parse(match[3])
    except ValueError as error:
        raise InputError([f"target {text!r}: {error}"]) from error
    return Target(measure, match[2] == "<=", limit, text.replace(" ", ""))


def price_usd_per_h(scenario: Scenario, profile: HardwareProfile) -> float:
    """Price of the whole cluster: of its nodes, else of their accelerators.

    Raises InputError when one has none.
    """
    total = 0.0
    for group in scenario.cluster.groups:
        price = group.price
        if price is None:
            per_gpu = profile.accelerator(group.accelerator).price_usd_per_gpu_h
            if per_gpu is None:
                wanted = f"give node group {group.name!r} a 'price'"
                raise InputError([f"no price known for accelerator {group.accelerator!r}: {wanted}"])
            price = group.gpus * per_gpu.value
        total += group.count * price
    return total


def power_w(scenario: Scenario, profile: HardwareProfile) -> float:
    """Highest power of the cluster's accelerators, capped if the scenario caps it, times PUE.

    Raises InputError when it is not known.
    """
    total = 0.0
    for group in scenario.cluster.groups:
        highest = profile.accelerator(group.accelerator).max_w
        if highest is None:
            raise InputError([f"no highest power known for accelerator {group.accelerator!r}"])
        each = min(highest.value, scenario.energy.power_cap or math.inf)
        total += group.count * group.gpus * each
    return total * scenario.energy.pue


def with_cost(values: Mapping[str, float], price: float) -> dict[str, float]:
    """Results with `cost_usd`: the whole cluster rented for the makespan."""
    return {**values, "cost_usd": price * values["makespan_s"] / 3600.0}
