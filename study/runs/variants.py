"""Changed copies of one scenario, all run on the same seeds: what sensitivity and limits are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.policies.registry import make_policy
from equipoise.policies.sources import code_hash
from equipoise.sim.record import Run
from equipoise.sim.run import is_random, run, run_identity
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.traces.read import Trace
from equipoise.study.runs.engines import engine
from equipoise.study.runs.orders import Order, Row, Shared
from equipoise.study.runs.warm import warm

Progress = Callable[[int, int, str], None]
"""Called as progress(runs done, runs in all, name of the variant)."""


@dataclass(frozen=True)
class Variant:
    """One scenario to run under one policy; `name` is for people."""

    name: str
    scenario: Scenario
    policy: str


@dataclass(frozen=True)
class Outcome:
    """The rows of one variant, seeds ascending. `failed` says why, where a run failed."""

    variant: Variant
    rows: tuple[Row, ...]

    @property
    def failed(self) -> str | None:
        """The first error, if any run failed."""
        return next((str(row["error"]) for row in self.rows if row["status"] != "done"), None)

    def values(self, key: str) -> list[float]:
        """A result of every seed. Raises KeyError when the runs do not have it."""
        return [float(row[key]) for row in self.rows]


@dataclass(frozen=True)
class Means:
    """How variants are run.

    seeds: how many, from the first variant's own on. folders: where traces are looked up. jobs: processes.
    """

    seeds: int = 5
    trace: Trace | None = None
    folders: tuple[Path, ...] = ()
    jobs: int = 1
    runner: Callable[..., Run] = run
    progress: Progress | None = None


DEFAULT = Means()


def run_all(variants: Sequence[Variant], means: Means) -> list[Outcome]:
    """Run every variant on the same seeds, equal ones once; in the order of `variants`.

    When nothing is random in any variant, one seed is run. Raises PolicyError for an unknown stage.
    """
    seeds = means.seeds if any(is_random(variant.scenario) for variant in variants) else 1
    first = variants[0].scenario.seed
    orders: dict[str, Order] = {}
    ids: list[list[str]] = []
    for number, variant in enumerate(variants):
        made = [_order(variant, seed, number, means.trace) for seed in range(first, first + seeds)]
        orders |= {order.id: order for order in reversed(made) if order.id not in orders}
        ids.append([order.id for order in made])
    rows: dict[str, Row] = {}
    shared = Shared(means.folders, code_hash(), runner=means.runner)
    if means.jobs > 1:
        warm(variant.policy for variant in variants)
    with engine(shared, min(means.jobs, len(orders))) as workers:
        for row in workers.rows(sorted(orders.values(), key=lambda order: (order.point, order.seed))):
            rows[row["id"]] = row
            if means.progress is not None:
                means.progress(len(rows), len(orders), variants[row["point"]].name)
    return [
        Outcome(variant, tuple(rows[key] for key in keys))
        for variant, keys in zip(variants, ids, strict=True)
    ]


def _order(variant: Variant, seed: int, number: int, trace: Trace | None) -> Order:
    key = run_identity(variant.scenario, make_policy(variant.policy), seed, trace)
    return Order(key, number, number, variant.policy, seed, variant.scenario.model_dump_json(), {})


def policy_text(scenario: Scenario, chosen: str | None) -> str:
    """The policy asked for, else the scenario's, as text. Raises PolicyError for one that there is not."""
    if chosen is not None:
        make_policy(chosen)
        return chosen
    return make_policy(list(scenario.policy)).name
