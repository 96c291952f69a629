"""A sweep whose points get as many seeds as their intervals need: which runs each look asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from equipoise.study.runs.orders import Order
from equipoise.study.runs.until import Until

Values = dict[str, list[float]]
"""Results of one metric by policy, the first policy first, paired by seed."""


class Results(Protocol):
    """What a store must tell."""

    def results(self, metric: str) -> Mapping[str, float]:
        """The metric of every run that has it, by id."""


def looks(store: Results, orders: Sequence[Order], until: Until | None) -> Iterator[list[Order]]:
    """The runs that are wanted at each look; the next look begins when those are made.

    orders: all that may be made, with `until.most` seeds per point. Only runs of earlier looks decide, so a
    second start asks for the same runs whatever is there already.
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
        still = {
            point for point in still - single if any(found[point].values()) and not until.met(found[point])
        }
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
    """Points with nothing random in them, which are run on one seed."""
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


def how_it_ended(store: Results, chosen: Sequence[Order], until: Until) -> tuple[list[str], tuple[int, ...]]:
    """(notes for people, points where the condition does not hold)."""
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
