"""Changed copies of one scenario, all run on the same seeds, for sensitivity and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.sim.record import Run
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.seeds import is_random
from equipoise.sim.traces.trace import Trace
from equipoise.study.runs.make import How, Progress, make
from equipoise.study.runs.orders import Row
from equipoise.study.runs.perform import Shared, orders_at
from equipoise.study.runs.store import MemoryStore


@dataclass(frozen=True)
class Variant:
    """One scenario to run under one policy; `name` is for display."""

    name: str
    scenario: Scenario
    policy: str


@dataclass(frozen=True)
class VariantOutcome:
    """The rows of one variant, seeds ascending. `failed` is the error of a failed run."""

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
class RunOptions:
    """Options for running variants.

    seeds: how many, from the first variant's own on. folders: where traces are looked up. jobs: processes.
    """

    seeds: int = 5
    trace: Trace | None = None
    folders: tuple[Path, ...] = ()
    jobs: int = 1
    runner: Callable[..., Run] = run
    progress: Progress | None = None


DEFAULT = RunOptions()


def run_all(variants: Sequence[Variant], options: RunOptions) -> list[VariantOutcome]:
    """Run every variant on the same seeds, equal ones once; in the order of `variants`.

    When nothing is random in any variant, one seed is run. Raises PolicyError for an unknown stage.
    """
    seeds = options.seeds if any(is_random(variant.scenario) for variant in variants) else 1
    asked = [
        list(orders_at(v.scenario, [v.policy], seeds, options.trace, point=k, number=k * seeds))
        for k, v in enumerate(variants)
    ]
    orders = {order.id: order for one in reversed(asked) for order in one}  # the first of equal ones
    store = MemoryStore()
    how = How(options.jobs, progress=options.progress, label=lambda row: variants[row["point"]].name)
    ordered = sorted(orders.values(), key=lambda order: order.number)
    make(store, ordered, Shared(options.folders, runner=options.runner), how)
    rows = {row["id"]: row for row in store.rows()}
    return [
        VariantOutcome(variant, tuple(rows[order.id] for order in one))
        for variant, one in zip(variants, asked, strict=True)
    ]
