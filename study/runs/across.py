"""One comparison over several traces in place of seeds, and one table over several scenarios."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from equipoise.base.json_values import plain
from equipoise.base.tables import aligned
from equipoise.sim.record import data_frame
from equipoise.study.display import MAIN_OF_FEATURES, METRICS, UNKNOWN, digits, label, plus_minus, show
from equipoise.study.needs import LowerBound
from equipoise.study.runs.comparison import Comparison, Result
from equipoise.study.statistics import (
    CONFIDENCE,
    Interval,
    holm,
    paired_effect,
    paired_p,
    paired_ratio,
    stratified_ratio,
)
from equipoise.study.table import latex_table

SEEDS, SCENARIOS = "all, over seeds", "all, over scenarios"
"""Names of the rows over all scenarios: for these scenarios, and for others of their kind."""
SHOWN = (
    "completion_mean_s",
    "completion_p95_s",
    "makespan_s",
    "queueing_mean_s",
    "goodput_ratio",
    "cost_usd",
    *MAIN_OF_FEATURES,
)
"""Metrics in a printed table over scenarios."""


def across(comparisons: Mapping[str, Comparison]) -> Comparison:
    """All traces together, by name: of each policy and trace the means over its seeds, paired by trace.

    Intervals and tests are over traces: they apply to other traces of their kind, for any number of seeds. A policy
    that failed on one of them is left out. Raises ValueError when none is left.
    """
    made = list(comparisons.values())
    policies = _everywhere(made)
    results = tuple(
        _result(policy, number, name, one)
        for policy in policies
        for number, (name, one) in enumerate(comparisons.items())
    )
    bound = LowerBound(
        float(np.mean([one.bound.makespan_s for one in made])),
        float(np.mean([one.bound.completion_mean_s for one in made])),
        any(one.bound.noise_free for one in made),
    )
    failures = tuple(f"{name}: {line}" for name, one in comparisons.items() for line in one.failures)
    return Comparison(
        "all traces", policies, tuple(range(len(made))), results, bound, (), failures=failures, unit="trace"
    )


def _everywhere(made: Sequence[Comparison]) -> tuple[str, ...]:
    """The policies in every comparison. Raises ValueError when there is none."""
    policies = tuple(policy for policy in made[0].policies if all(policy in one.policies for one in made))
    if not policies:
        raise ValueError("no policy has run everywhere")
    return policies


def _result(policy: str, number: int, name: str, one: Comparison) -> Result:
    runs = one.of(policy)
    groups = [key for key in runs[0].groups if all(key in run.groups for run in runs)]
    return Result(
        policy,
        number,
        name,
        {
            metric: float(np.mean([run.metrics[metric] for run in runs]))
            for metric in METRICS
            if all(metric in run.metrics for run in runs)
        },
        groups={key: float(np.mean([run.groups[key] for run in runs])) for key in groups},
    )


@dataclass(frozen=True)
class ComparisonLine:
    """One metric on one scenario, or on all of them, under one policy; NaN where unknown."""

    metric: str
    scenario: str
    policy: str
    pairs: int
    value: Interval  # of one scenario; scenarios differ by too much for a mean of all
    ratio: Interval  # to the first policy
    p: float  # after Holm: over scenarios and policies, or over the policies of a row over all
    effect: float

    def row(self) -> dict[str, Any]:
        """The line as plain data."""
        return {
            "metric": self.metric,
            "scenario": self.scenario,
            "policy": self.policy,
            "pairs": self.pairs,
            "mean": self.value.mean,
            "low": self.value.low,
            "high": self.value.high,
            "ratio": self.ratio.mean,
            "ratio_low": self.ratio.low,
            "ratio_high": self.ratio.high,
            "p": self.p,
            "effect": self.effect,
        }


_NONE = Interval(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True, repr=False)
class Together:
    """Policies on several scenarios: one table with ratios and tests by scenario, and over all of them.

    comparisons: by name of the scenario, all with the same policies in the same order. The rows over all give each
    scenario the same weight: `SEEDS` has the geometric mean of the scenarios' ratios with its interval over seeds,
    `SCENARIOS` pairs the means of scenarios, as a sample of many of their kind.
    """

    comparisons: Mapping[str, Comparison]

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """Those that have run on every scenario; ratios are to the first. Raises ValueError when none has."""
        return _everywhere(list(self.comparisons.values()))

    @cached_property
    def lines(self) -> tuple[ComparisonLine, ...]:
        """Lines by metric in the order of `Run.summary`, then scenario (all last), then policy."""
        known = [m for m in METRICS if all(self._known(m, one) for one in self.comparisons.values())]
        return tuple(line for metric in known for line in self._of(metric))

    def _known(self, metric: str, one: Comparison) -> bool:
        return all(metric in result.metrics for policy in self.policies for result in one.of(policy))

    def _of(self, metric: str) -> list[ComparisonLine]:
        values = {
            name: {p: [r.metrics[metric] for r in one.of(p)] for p in self.policies}
            for name, one in self.comparisons.items()
        }
        first, others = self.policies[0], self.policies[1:]
        cells = {
            (name, cell.policy): cell
            for name, one in self.comparisons.items()
            for cell in one.cells
            if cell.metric == metric
        }
        raw = [paired_p(values[name][p], values[name][first]) for name in values for p in others]
        adjusted = iter(holm(raw).tolist())
        found = []
        for name in values:
            for policy in self.policies:
                cell, p = cells[name, policy], math.nan if policy == first else next(adjusted)
                found.append(ComparisonLine(metric, name, policy, cell.value.n, cell.value, cell.ratio, p, cell.effect))
        return [*found, *self._over_seeds(metric, values), *self._over_scenarios(metric, values)]

    def _over_seeds(self, metric: str, values: Mapping[str, Mapping[str, list[float]]]) -> list[ComparisonLine]:
        exact = [not one.random for one in self.comparisons.values()]
        reference = [values[name][self.policies[0]] for name in values]
        found = [stratified_ratio([values[n][p] for n in values], reference, exact) for p in self.policies]
        return self._over(metric, SEEDS, [r for r, _, _ in found], [p for _, p, _ in found], [d for *_, d in found])

    def _over_scenarios(self, metric: str, values: Mapping[str, Mapping[str, list[float]]]) -> list[ComparisonLine]:
        mean = {p: [float(np.mean(values[name][p])) for name in values] for p in self.policies}
        first = mean[self.policies[0]]
        ratios = [paired_ratio(mean[p], first) for p in self.policies]
        effects = [paired_effect(mean[p], first) for p in self.policies]
        return self._over(metric, SCENARIOS, ratios, [paired_p(mean[p], first) for p in self.policies], effects)

    def _over(
        self, metric: str, scenario: str, ratio: Sequence[Interval], p: Sequence[float], effect: Sequence[float]
    ) -> list[ComparisonLine]:
        tested = [math.nan, *holm(p[1:]).tolist()]
        return [
            ComparisonLine(metric, scenario, policy, ratio[k].n, _NONE, ratio[k], tested[k], effect[k])
            for k, policy in enumerate(self.policies)
        ]

    @property
    def failures(self) -> tuple[str, ...]:
        """One line per run that failed; policies with such a run are left out."""
        return tuple(f"{name}: {text}" for name, one in self.comparisons.items() for text in one.failures)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per metric, scenario and policy."""
        return [line.row() for line in self.lines]

    def to_df(self) -> Any:
        """`rows` as a pandas DataFrame. Raises MissingError where pandas is not installed."""
        return data_frame(self.rows())

    def __repr__(self) -> str:
        return f"<{', '.join(self.policies)} on {', '.join(self.comparisons)}>"

    @property
    def title(self) -> str:
        """The title of the table."""
        n = sum(len(one.seeds) for one in self.comparisons.values())
        return (
            f"{len(self.comparisons)} scenarios, {n} pairs of runs: mean ± 95 % interval; ratio to "
            f"{self.policies[0]}, Cohen's d; * p < 0.05, ** p < 0.01 after Holm"
        )

    def texts(self, shown: Sequence[str] = SHOWN) -> list[list[str]]:
        """The table as texts: a header, and for each of these metrics a row per scenario and the rows over all."""
        rows = [["", *self.policies]]
        for metric in dict.fromkeys(line.metric for line in self.lines if line.metric in shown):
            mine = [line for line in self.lines if line.metric == metric]
            if all(not line.value.mean > 0 for line in mine if line.value is not _NONE):
                continue
            rows.append([label(metric), *[""] * len(self.policies)])
            for name in dict.fromkeys(line.scenario for line in mine):
                cells = [_shown(line) for line in mine if line.scenario == name]
                if any(cell.rstrip("*") != UNKNOWN for cell in cells[1:]) or len(cells) == 1:
                    rows.append([f"  {name}", *cells])
        return rows

    @cached_property
    def answer(self) -> str:
        """Which policy is fastest over all scenarios, by how much and at what cost; "" where none can be said."""
        known = {(line.metric, line.policy): line.ratio for line in self.lines if line.scenario == SEEDS}
        times = [p for p in self.policies if math.isfinite(known["completion_mean_s", p].mean)]
        if len(times) < 2:
            return ""
        best = min(times, key=lambda policy: known["completion_mean_s", policy].mean)
        ratio, cost = known["completion_mean_s", best], known.get(("cost_usd", best))
        said = f"{digits(ratio.mean)}{plus_minus(ratio.half_width)} times that of {self.policies[0]}"
        if best == self.policies[0]:
            return f"No policy is faster than {best} over {len(self.comparisons)} scenarios."
        price = f", at {digits(cost.mean)} times its cost" if cost is not None and math.isfinite(cost.mean) else ""
        return f"Over {len(self.comparisons)} scenarios {best} has the shortest mean completion, {said}{price}."

    def as_table(self, width: int = 100, wide: bool = False) -> str:
        """Plain text: scenarios as rows, policies as columns; wide: more metrics. `width` is ignored."""
        right = [False, *(True for _ in self.policies)]
        head = [self.answer, ""] if self.answer else []
        texts = self.texts(SHOWN if wide else ("completion_mean_s", "makespan_s", "cost_usd"))
        return "\n".join([*head, self.title, "", *aligned(texts, right)]) + "\n"

    def as_latex(self) -> str:
        """The table in LaTeX (booktabs)."""
        return latex_table(self.title, self.texts())

    def as_json(self) -> str:
        """The table as JSON; unknown values are null."""
        content = {
            "schema_version": 1,
            "scenarios": list(self.comparisons),
            "policies": self.policies,
            "confidence": CONFIDENCE,
            "rows": self.rows(),
            "failures": self.failures,
        }
        return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def _shown(line: ComparisonLine) -> str:
    """A value of a scenario; over all, the ratio with its interval and effect."""
    stars = "*" * ((line.p < 0.05) + (line.p < 0.01))
    if line.value is not _NONE:
        return show(line.metric, line.value.mean, line.value.half_width) + stars
    if not math.isfinite(line.ratio.mean):
        return UNKNOWN
    effect = f" (d {digits(line.effect, 2)})" if math.isfinite(line.effect) else ""
    return f"x{digits(line.ratio.mean)}{plus_minus(line.ratio.half_width)}{effect}{stars}"
