"""Targets of a cluster: `makespan<=24h`, `cost<=5000 USD`, `goodput>=50 %`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fractions import Fraction

import numpy as np

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.power import node_power
from equipoise.sim.hardware.contracts import acting_faults
from equipoise.sim.hardware.prices import make_prices
from equipoise.sim.hardware.profile import HardwareProfile
from equipoise.sim.network.topology import Topology
from equipoise.sim.record import gpus_class
from equipoise.sim.scenario.model import NodeGroup, Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import (
    MONEY,
    POWER,
    PRICE,
    SHARE,
    TIME,
    Quantity,
    format_joules,
    format_scaled,
    format_seconds,
    format_share,
    format_usd,
)
from equipoise.study.display import OF_FEATURES, WHERE_USED

USD = replace(MONEY, example="5000 USD", plausible=(0.0, math.inf))
_JOULES = {f"{prefix}J": Fraction(10**power) for prefix, power in (("", 0), ("k", 3), ("M", 6), ("G", 9))}
_WATT_HOURS = {f"{p}Wh": Fraction(3600 * 10**power) for p, power in (("", 0), ("k", 3), ("M", 6), ("G", 9))}
ENERGY = Quantity("an amount of energy", "J", "500 kWh", _JOULES | _WATT_HOURS)

_ROUNDING = 1e-9  # of a limit: a wait of an hour may be 3600.0000000000005 s on another processor


@dataclass(frozen=True)
class TargetMeasure:
    """A measure with a target; `key` is its name in results."""

    key: str
    quantity: Quantity
    show: Callable[[float], str]
    of_cluster: bool = False  # known before anything is run


def _of_feature(name: str) -> TargetMeasure:
    """The measure of a feature's metric, whose name ends with its unit."""
    kinds = {"_ratio": (SHARE, format_share), "_s": (TIME, format_seconds), "_usd": (USD, format_usd)}
    unit = next(end for end in kinds if name.endswith(end))
    return TargetMeasure(name, *kinds[unit])


_TIMES = (
    "makespan",
    "done",
    "completion_mean",
    "completion_p50",
    "completion_p95",
    "completion_p99",
    "queueing_mean",
    "queueing_p50",
    "queueing_p95",
    "queueing_p99",
)
MEASURES: dict[str, TargetMeasure] = {
    **{name: TargetMeasure(f"{name}_s", TIME, format_seconds) for name in _TIMES},
    **{
        name.replace("queueing", "wait"): TargetMeasure(f"{name}_s", TIME, format_seconds)
        for name in _TIMES
        if "queueing" in name
    },
    "goodput": TargetMeasure("goodput_ratio", SHARE, format_share),
    "gpu_busy": TargetMeasure("gpu_busy_ratio", SHARE, format_share),
    **{metric.target: _of_feature(metric.name) for metric in OF_FEATURES if metric.target},
    "cost": TargetMeasure("cost_usd", USD, format_usd),
    "committed": TargetMeasure("committed_usd", USD, format_usd),
    "energy": TargetMeasure("energy_j", ENERGY, format_joules),
    "price": TargetMeasure("price_usd_per_h", PRICE, lambda value: f"{format_usd(value)}/h", of_cluster=True),
    "power": TargetMeasure("power_w", POWER, lambda value: format_scaled(value, "W"), of_cluster=True),
}


@dataclass(frozen=True)
class Target:
    """One condition. `limit` is in SI units."""

    measure: TargetMeasure
    at_most: bool
    limit: float
    text: str
    doubt: str = ""  # what was probably meant instead

    def met(self, values: Mapping[str, float]) -> bool:
        """Whether results meet it, up to rounding; an unknown result (no job completed) does not."""
        value = values.get(self.measure.key, math.nan)
        room = _ROUNDING * abs(self.limit)
        return value <= self.limit + room if self.at_most else value >= self.limit - room

    def excess(self, values: Mapping[str, float]) -> float:
        """Relative distance of results from it: 0 when met, 0.5 when 50 % over the limit."""
        value = values.get(self.measure.key, math.nan)
        if self.met(values):
            return 0.0
        if math.isnan(value) or self.limit == 0.0 or value == 0.0:
            return math.inf
        return value / self.limit - 1.0 if self.at_most else self.limit / value - 1.0


def read_target(text: str) -> Target:
    """A target such as `completion_p95<=2h`. Raises InputError with the allowed forms."""
    match = re.fullmatch(r"\s*([a-z0-9_]+)\s*(?:\[([^\]]+)\])?\s*(<=|>=|=<|=>|≤|≥|<|>)\s*([^<>=≤≥]+?)\s*", text)
    if match is None or match[1] not in MEASURES:
        raise InputError([f"target {text!r}: {_wanted(text)}"])
    measure = MEASURES[match[1]]
    if match[2] is not None:
        if not re.search(r"_p\d\d_s$", measure.key) and measure.key not in WHERE_USED:
            raise InputError([f"target {text!r}: only percentiles of waits and completions have classes of jobs"])
        size = re.fullmatch(r"\s*([0-9]+)\s*gpus?\s*", match[2], re.IGNORECASE)
        name = gpus_class(int(size[1])) if size is not None else match[2].strip()
        measure = replace(measure, key=f"{measure.key}[{name}]")
    try:
        limit = measure.quantity.parse(match[4])
    except ValueError as error:
        raise InputError([f"target {text!r}: {error}"]) from error
    at_most = match[3] in ("<=", "=<", "≤", "<")
    doubt = ""
    if measure.quantity is TIME and re.fullmatch(r"[0-9.]+", match[4]) and measure.key not in WHERE_USED:
        meant = f"if hours were meant, write {match[4]}h"
        if limit >= 30.0:
            meant = f"if minutes or hours were meant, write {match[4]}min or {match[4]}h"
        doubt = f"target {text!r}: {match[4]} was read as {match[4]} s; {meant}"
    of = f"[{match[2].strip()}]" if match[2] else ""
    value = match[4].replace(" ", "")
    return Target(measure, at_most, limit, f"{match[1]}{of}{'<=' if at_most else '>='}{value}", doubt)


_ALSO_CALLED = {
    "time": "makespan",
    "days": "makespan",
    "duration": "makespan",
    "training_time": "makespan",
    "wait": "wait_p95",
    "jct": "completion_mean",
    "budget": "cost",
    "price_per_hour": "price",
    "usd": "cost",
    "money": "cost",
    "utilisation": "gpu_busy",
    "utilization": "gpu_busy",
    "usage": "gpu_busy",
    "queue": "wait_p95",
    "queueing": "wait_p95",
    "capacity": "power",
    **{metric.also_called: metric.target for metric in OF_FEATURES if metric.also_called},
}
"""Other names of measures."""


def _wanted(text: str) -> str:
    """The format of a target, with the name that was probably intended."""
    if len(re.findall("[<>≤≥]", text)) > 1:
        return "give each target its own --target"
    name = re.match(r"[\w -]+", text.strip())
    spelled = re.sub(r"[\s-]+", "_", name[0].strip()) if name is not None else ""
    spelled = spelled.lower().replace("waiting", "wait")
    turned = "_".join(reversed(spelled.split("_")))  # p95_wait
    close = [_ALSO_CALLED.get(spelled, turned)]
    close = close if close[0] in MEASURES else get_close_matches(spelled, MEASURES, n=1)
    names = f"names: {', '.join(MEASURES)}"
    if close and not text.strip().startswith(close[0]):
        names = f"did you mean {close[0]!r}?"
    return f"write NAME<=VALUE or NAME>=VALUE; {names}"


def price_usd_per_h(scenario: Scenario, profile: HardwareProfile) -> float:
    """Price of the whole cluster, as `sim.hardware.prices` finds it: of its nodes, else of their accelerators.

    Raises InputError when one has none, or the price book cannot be read.
    """
    prices = make_prices(scenario, profile)
    if not prices.known:
        node = int(np.flatnonzero(np.isnan(prices.usd_per_h))[0])
        group = _group_of(node, scenario)
        wanted = f"give node group {group.name!r} a 'price', or cost.gpu_hour one for the accelerator"
        raise InputError([f"no price known for accelerator {group.accelerator!r}: {wanted}"])
    return float(prices.usd_per_h.sum())


def standing_usd_per_h(scenario: Scenario, profile: HardwareProfile) -> float:
    """Price of the nodes that are always paid: the least price of an hour. Raises as `price_usd_per_h`."""
    price_usd_per_h(scenario, profile)
    rates, first, found = make_prices(scenario, profile).usd_per_h, 0, list[float]()
    spot = acting_faults(scenario).spot
    for group in scenario.cluster.groups:
        if not group.may_be_away and (spot is None or spot.group != group.name):
            found.append(float(rates[first : first + group.count].sum()))
        first += group.count
    return math.fsum(found)


def _group_of(node: int, scenario: Scenario) -> NodeGroup:
    for group in scenario.cluster.groups:
        if node < group.count:
            return group
        node -= group.count
    raise IndexError(f"node {node} is not in the cluster")


def power_w(scenario: Scenario, profile: HardwareProfile) -> float:
    """Highest power of the site: GPUs at full load and nodes' base power, capped as the scenario says, times PUE.

    Raises InputError when it is not known.
    """
    for group in scenario.cluster.groups:
        if profile.accelerator(group.accelerator).max_w is None:
            raise InputError([f"no highest power known for accelerator {group.accelerator!r}"])
    cluster = Cluster(scenario.cluster, profile, Topology(scenario.cluster, profile))
    power = node_power(cluster)
    if np.isnan(power.base_w).any():
        raise InputError(["the power of the hosts is not known; give each node group 'host_power'"])
    each_w = np.minimum(power.max_w, scenario.energy.power_cap or math.inf)
    total_w = float((cluster.nodes.gpus * each_w + power.base_w).sum())
    return min(total_w, scenario.energy.cluster_power_cap or math.inf) * scenario.energy.pue


def with_rent(values: Mapping[str, float], price: float) -> dict[str, float]:
    """The results known without a run, with a lower bound of `cost_usd`: rent for the least makespan."""
    return {**values, "cost_usd": price * values["makespan_s"] / 3600.0}


@dataclass(frozen=True)
class NodeSupply:
    """Supply of one accelerator: most GPUs, and delivery time (s)."""

    gpus: float = math.inf
    after_s: float = 0.0


def read_supply(text: str) -> tuple[str, NodeSupply]:
    """`h100_sxm=256`, `l40s=1024 in 30 d` or `l40s=in 30 d` as (accelerator, supply). Raises InputError."""
    match = re.fullmatch(r"\s*([\w.-]+)\s*=\s*([0-9]+)?\s*(?:in\s+(.+?))?\s*", text)
    if match is None or (match[2] is None and match[3] is None):
        raise InputError([f"--available {text!r}: write ACCELERATOR=GPUS, or ACCELERATOR=GPUS in TIME"])
    try:
        after_s = TIME.parse(match[3]) if match[3] is not None else 0.0
    except ValueError as error:
        raise InputError([f"--available {text!r}: {error}"]) from error
    return match[1], NodeSupply(math.inf if match[2] is None else float(match[2]), after_s)


def supplied(scenario: Scenario, available: Mapping[str, NodeSupply]) -> tuple[str, float]:
    """(unavailable part of the cluster, "" if all is available; time until the last GPU is delivered, s)."""
    wanted: dict[str, int] = {}
    for group in scenario.cluster.groups:
        wanted[group.accelerator] = wanted.get(group.accelerator, 0) + group.count * group.gpus
    late_s = 0.0
    for name, gpus in sorted(wanted.items()):
        supply = available.get(name, NodeSupply())
        if gpus > supply.gpus:
            return f"{gpus} GPUs of {name} are needed, {supply.gpus:g} are available", 0.0
        late_s = max(late_s, supply.after_s) if gpus else late_s
    return "", late_s
