"""What `size` is asked, the candidates that it tries, and its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from equipoise.policies.parameters import AnyPolicy
from equipoise.sim.llm.certainty import StepCertainty
from equipoise.sim.record import Run
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from equipoise.study.questions.targets import NodeSupply, Target, with_rent
from equipoise.study.sure import certainty_of_times, chance

Objective = Literal["nodes", "price", "cost"]


@dataclass(frozen=True)
class Candidate:
    """One choice of values, before anything is run."""

    values: Mapping[str, Any]
    scenario: Scenario
    nodes: int
    price_usd_per_h: float
    standing_usd_per_h: float  # of the nodes that are paid for all the time
    power_w: float
    bound_s: Mapping[str, float]
    missing: str = ""  # unavailable part
    after_s: float = 0.0  # until it is delivered

    @property
    def known(self) -> dict[str, float]:
        """Results known without a run; for times and cost the lower bounds."""
        done_s = self.after_s + self.bound_s["makespan_s"]
        values = {**self.bound_s, "done_s": done_s, "price_usd_per_h": self.price_usd_per_h, "power_w": self.power_w}
        return with_rent(values, self.standing_usd_per_h)

    def score(self, objective: Objective) -> tuple[float, float, int]:
        """Sort key, least first; for cost, from the lower bound."""
        first = {"nodes": self.nodes, "price": self.price_usd_per_h, "cost": self.known["cost_usd"]}[objective]
        price = 0.0 if math.isnan(self.price_usd_per_h) else self.price_usd_per_h
        return float(first), price, self.nodes


@dataclass(frozen=True)
class Trial:
    """A candidate with its runs (seeds ascending)."""

    candidate: Candidate
    results: tuple[Mapping[str, float], ...]
    met: int

    @property
    def runs(self) -> int:
        """Number of runs made."""
        return len(self.results)

    def mean(self, key: str) -> float:
        """Mean of a result over the runs."""
        return math.fsum(result[key] for result in self.results) / self.runs

    @cached_property
    def certainty(self) -> StepCertainty | None:
        """How sure its times are; None where every step was measured."""
        return certainty_of_times(self.candidate.scenario)

    def chance(self, targets: Sequence[Target]) -> float:
        """Chance that all targets are met, over the errors of predicted steps and its runs; NaN without either."""
        if self.certainty is None or not self.runs:
            return math.nan
        spread, after_s = self.certainty.spread, self.candidate.after_s
        each = [
            min(
                chance(t.measure.key, t.at_most, t.limit, r.get(t.measure.key, math.nan), spread, _fixed(t, after_s))
                for t in targets
            )
            for r in self.results
        ]
        return math.fsum(each) / len(each)

    def chance_at_least(self, confidence: float = 0.95, sizes: int = 1) -> float:
        """Lower limit of the chance that a run meets the targets (Clopper and Pearson 1934, one-sided).

        sizes: number of candidates. The limits of all of them hold together (Bonferroni), so the limit of the chosen
        one does.
        """
        if self.met == 0:
            return 0.0
        from scipy.special import betaincinv  # takes a while to load, and every command loads this file

        return float(betaincinv(self.met, self.runs - self.met + 1, (1.0 - confidence) / sizes))


def _fixed(target: Target, after_s: float) -> float:
    """The part of a target's result that no step changes: the delivery of nodes."""
    return after_s if target.measure.key == "done_s" else 0.0


@dataclass(frozen=True, repr=False)
class Answer:
    """The answer. `best` is None when no candidate meets the targets; then `closest` misses least.

    `closest` has no runs when every candidate was excluded without one. `sizes`: candidates in all.
    `impossible`: the error of each invalid size, such as a job larger than the cluster.
    """

    best: Trial | None
    closest: Trial | None
    tried: int
    excluded: int
    deterministic: bool
    sizes: int
    spares: int | None = None
    impossible: tuple[str, ...] = ()
    without_spares: Trial | None = None
    trials: tuple[Trial, ...] = ()

    def __repr__(self) -> str:
        found = self.best or self.closest
        values = "" if found is None else named(found.candidate.values)
        which = "nothing" if found is None else f"best {values}" if self.best else f"none, closest {values}"
        return f"<Answer: {which}; {self.tried} of {self.sizes} sizes were run>"

    @property
    def chance_at_least(self) -> float:
        """Share of runs that meet the targets with `best`, at least, with 95 % confidence; 0 without one."""
        return 0.0 if self.best is None else self.best.chance_at_least(sizes=self.sizes)


@dataclass(frozen=True)
class Question:
    """A question for `size`.

    vary: values by dotted key. targets: all must be met, in at least a share `confidence` of the runs. objective:
    fewest nodes, lowest price per hour, or lowest cost until all jobs are done.
    """

    file: Path
    vary: Mapping[str, Sequence[Any]]
    targets: Sequence[Target]
    policy: AnyPolicy | None = None  # None: the scenario's own
    seeds: int = 5
    confidence: float = 0.95
    objective: Objective = "nodes"
    overrides: Sequence[str] = ()
    trace: str | None = None
    jobs: int = 1
    grow: bool = False  # training jobs grow and shrink with the cluster
    every: bool = False  # run every size, not only until the first that meets the targets
    available: Mapping[str, NodeSupply] = field(default_factory=dict)  # by accelerator; any number of the others
    runner: Callable[..., Run] = field(default=run, compare=False)

    def asks_for(self, *keys: str) -> bool:
        """Whether a target or the objective needs one of these results."""
        wanted = {target.measure.key for target in self.targets}
        wanted |= {"price": {"price_usd_per_h"}, "cost": {"cost_usd"}, "nodes": set()}[self.objective]
        return not wanted.isdisjoint(keys)


def named(values: Mapping[str, Any]) -> str:
    """Varied values as text."""
    return ", ".join(f"{key}={value}" for key, value in values.items())


def needed(confidence: float, runs: int) -> int:
    """Runs that must meet the targets."""
    return math.ceil(confidence * runs - 1e-9)
