"""Sequential stopping: seeds are added until an interval is narrow enough, or a maximum is reached.

Repeated looks at the data with optional stopping make ordinary intervals too narrow (Armitage, McPherson and Rowe
1969). So the looks are few and planned, at numbers of seeds that grow by half each time, and the error probability
is split equally between them (Bonferroni's inequality; spending functions: Lan and DeMets 1983): with K looks every
interval has level 1 - 0.05 / K. All K then cover the true value together with at least 95 %, so the one at the
stopping time does too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import SHARE, format_share
from equipoise.study.display import METRICS
from equipoise.study.runs.orders import Order
from equipoise.study.runs.store import Store
from equipoise.study.statistics import CONFIDENCE, Interval, mean_interval, paired_ratio

METRIC = "completion_mean_s"
FEWEST, MOST = 3, 100
GROWTH = 1.5
_ALLOWED = "write ci:SHARE[:METRIC[:ratio]], e.g. ci:2% or ci:1%:makespan_s:ratio"


@dataclass(frozen=True)
class Until:
    """When to stop adding seeds.

    share: largest half width of the interval relative to its middle, above 0 and below 1.
    metric: a name of `Run.summary`. of_ratio: the condition is on the paired ratio to the first policy, not on the
    mean. first, most: seeds at the first and at the last look.
    """

    share: float
    metric: str = METRIC
    of_ratio: bool = False
    first: int = 5
    most: int = MOST

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise InputError([f"--until: half width {format_share(self.share)}; allowed is 0 to 100 %"])
        if self.first < FEWEST:
            raise InputError([f"--until: begins with {self.first} seeds; at least {FEWEST} are needed"])
        if self.most < self.first:
            raise InputError([f"--until: at most {self.most} seeds, but begins with {self.first}; raise --max-seeds"])

    @property
    def looks(self) -> tuple[int, ...]:
        """Seeds at each look, ascending, from `first` to `most`."""
        found = [self.first]
        while found[-1] < self.most:
            found.append(min(self.most, math.ceil(GROWTH * found[-1])))
        return tuple(found)

    @property
    def level(self) -> float:
        """Level of the interval at each look, such that all of them together hold with 95 %."""
        return 1.0 - (1.0 - CONFIDENCE) / len(self.looks)

    @property
    def text(self) -> str:
        """The condition in words."""
        what = f"ratio of {self.metric} to the first policy" if self.of_ratio else self.metric
        return f"95 % interval of {what} within ±{format_share(self.share)}"

    def reached(self, values: Mapping[str, Sequence[float]]) -> float:
        """The widest relative half width over policies; infinite where there is no interval.

        values: results of `metric` by policy, the first policy first, paired by position.
        """
        names = list(values)
        chosen = names[1:] if self.of_ratio else names
        widths = [relative_half_width(self._interval(values[name], values[names[0]])) for name in chosen]
        return max(widths, default=0.0)

    def met(self, values: Mapping[str, Sequence[float]]) -> bool:
        """Whether the intervals of all policies are narrow enough."""
        return self.reached(values) <= self.share

    def _interval(self, values: Sequence[float], first: Sequence[float]) -> Interval:
        if self.of_ratio:
            return paired_ratio(values, first, self.level)
        return mean_interval(values, self.level)


def relative_half_width(interval: Interval) -> float:
    """Half width over the middle: 0 for no spread at all, infinite when unknown or around zero."""
    half = interval.half_width
    if math.isnan(half):
        return math.inf
    if half == 0.0:
        return 0.0
    return half / abs(interval.mean) if interval.mean else math.inf


def read_until(text: str, first: int, most: int = MOST) -> Until:
    """`ci:SHARE[:METRIC[:ratio]]` as a condition. Raises InputError with the allowed forms."""
    kind, *parts = text.split(":")
    if kind.strip() != "ci" or not 1 <= len(parts) <= 3 or (len(parts) == 3 and parts[2].strip() != "ratio"):
        raise InputError([f"--until {text!r}: {_ALLOWED}"])
    try:
        share = SHARE.parse(parts[0].strip())
    except ValueError as error:
        raise InputError([f"--until {text!r}: {error}"]) from error
    until = Until(share, parts[1].strip() if len(parts) > 1 else METRIC, len(parts) == 3, first, most)
    check_metric(until)
    return until


def check_policies(until: Until, policies: Sequence[str]) -> None:
    """Raises InputError when a ratio is asked for and there is nothing to compare with."""
    if until.of_ratio and len(policies) < 2:
        raise InputError(["--until: a ratio needs a second policy; leave out ':ratio', or name one more"])


def check_metric(until: Until) -> None:
    """Raises InputError when runs have no such metric."""
    if until.metric not in METRICS:
        raise InputError([f"--until: unknown metric {until.metric!r}; known: {', '.join(METRICS)}"])


Values = dict[str, list[float]]
"""Results of one metric by policy, the first policy first, paired by seed."""


def looks(store: Store, orders: Sequence[Order], until: Until | None) -> Iterator[list[Order]]:
    """The runs needed at each look; the next look begins when those are made.

    orders: all possible runs, with `until.most` seeds per point. Only runs of earlier looks decide, so a second
    start needs the same runs, independent of existing ones.
    """
    if until is None:
        yield list(orders)
        return
    rank = ranks(orders)
    single = one_seed(orders, rank)
    seeds = {order.point: until.first for order in orders}
    still = set(seeds)
    for count in until.looks:
        seeds |= dict.fromkeys(still, count)
        chosen = [order for order in orders if rank[order.id] < seeds[order.point]]
        yield chosen
        found = values_by_point(chosen, store.results(until.metric))
        # A point where every run failed, or has no such metric, would not get better by more seeds.
        still = {point for point in still - single if any(found[point].values()) and not until.met(found[point])}
        if not still:
            return


def ranks(orders: Iterable[Order]) -> dict[str, int]:
    """Place of each run's seed in its point, by id: 0 for the first seed."""
    orders = list(orders)
    first: dict[int, int] = {}
    for order in orders:
        first[order.point] = min(order.seed, first.get(order.point, order.seed))
    return {order.id: order.seed - first[order.point] for order in orders}


def one_seed(orders: Iterable[Order], rank: Mapping[str, int]) -> set[int]:
    """Points that are not random, which are run on one seed."""
    most: dict[int, int] = {}
    for order in orders:
        most[order.point] = max(rank[order.id], most.get(order.point, 0))
    return {point for point, highest in most.items() if highest == 0}


def values_by_point(orders: Iterable[Order], results: Mapping[str, float]) -> dict[int, Values]:
    """Results by point and policy on the seeds that all policies of the point have a result for.

    A policy without any result is left out.
    """
    table: dict[int, dict[str, dict[int, float]]] = {}
    for order in orders:
        by_seed = table.setdefault(order.point, {}).setdefault(order.policy, {})
        if order.id in results:
            by_seed[order.seed] = results[order.id]
    found: dict[int, Values] = {}
    for point, policies in table.items():
        some = {policy: by_seed for policy, by_seed in policies.items() if by_seed}
        common = set.intersection(*map(set, some.values())) if some else set()
        found[point] = {policy: [by_seed[k] for k in sorted(common)] for policy, by_seed in some.items()}
    return found


def how_it_ended(store: Store, chosen: Sequence[Order], until: Until) -> tuple[list[str], tuple[int, ...]]:
    """(notes, points where the condition does not hold)."""
    single = one_seed(chosen, ranks(chosen))
    found = values_by_point(chosen, store.results(until.metric))
    found = {point: values for point, values in found.items() if point not in single}
    missed = sorted(point for point, values in found.items() if not (values and until.met(values)))
    notes = [f"{until.text}: reached at {len(found) - len(missed)} of {len(found)} points"]
    if missed:
        shown = ", ".join(map(str, missed[:10])) + (", ..." if len(missed) > 10 else "")
        notes.append(f"not reached with {until.most} seeds at point {shown}")
    notes.append(f"for 95 % intervals after {len(until.looks)} looks use level {until.level:.5g}")
    return notes, tuple(missed)


def whole_points(orders: Sequence[Order], shard: int, shards: int) -> Iterator[Order]:
    """Every `shards`-th point with all its runs, beginning with the `shard`-th (from 1)."""
    return (order for order in orders if order.point % shards == shard - 1)
