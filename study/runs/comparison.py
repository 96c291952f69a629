"""The results of several policies on the same seeds: every metric with its interval, as text, table, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import Any

from equipoise.base.json_values import from_json, number, plain
from equipoise.sim.record import WASTE, data_frame, undone
from equipoise.study.display import METRICS, WHERE_BOUND, WHERE_USED
from equipoise.study.needs import LowerBound
from equipoise.study.runs.answer import answer
from equipoise.study.runs.orders import Order, Row
from equipoise.study.runs.store import FIXED
from equipoise.study.statistics import (
    CONFIDENCE,
    holm,
    mean_interval,
    paired_difference,
    paired_effect,
    paired_p,
    paired_ratio,
)
from equipoise.study.table import Cell, Precision, as_latex, as_text

BOUNDED = ("makespan_s", "completion_mean_s")
_RESIDUE = 1e-12
_TOTALS_TOO = {"makespan_s", "energy_j", "cost_usd", *(f"{use}_usd" for use in WASTE)}
"""Metrics that are also totals of the run."""


@dataclass(frozen=True)
class Result:
    """The metrics of one run in a comparison, without its tables."""

    policy: str
    seed: int
    identity: str
    metrics: Mapping[str, float]
    notes: tuple[str, ...] = ()
    totals: Mapping[str, float] = field(default_factory=dict)
    reused: bool = False
    groups: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, order: Order, row: Row, reused: bool, groups: Mapping[str, float]) -> Result:
        """The result of an order from its row; a missing number is NaN."""
        notes = row.get("notes", ())
        known = {
            k: v for k, v in row.items() if k not in FIXED and k not in ("notes", "groups") and v is not None and v == v
        }
        return cls(
            order.policy,
            order.seed,
            order.id,
            {
                name: float(known.get(name, math.nan))
                for name in METRICS
                if name in known or name not in (*WHERE_BOUND, *WHERE_USED)
            },
            tuple(from_json(notes) if isinstance(notes, str) else notes),
            {name: v for name, v in known.items() if name not in METRICS or name in _TOTALS_TOO},
            reused,
            groups,
        )

    def row(self) -> dict[str, Any]:
        """The result as plain data, without whether it was reused, so that it depends on inputs only."""
        return {
            "policy": self.policy,
            "seed": self.seed,
            "identity": self.identity,
            "metrics": dict(self.metrics),
            "totals": dict(self.totals),
        }


@dataclass(frozen=True, repr=False)
class Comparison:
    """Results of all policies on all seeds (`results`: policy by policy, seeds ascending).

    level: of each interval; above 95 % where seeds were added until one was narrow enough (study.runs.until).
    precision: the stopping condition and its result, if given. unit: the pairing unit of results: seeds, or traces
    (study.runs.across). failures: one line per failed run; policies with such a run are left out of all else.
    """

    scenario_name: str
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    results: tuple[Result, ...]
    bound: LowerBound
    notes: tuple[str, ...]
    level: float = CONFIDENCE
    precision: Precision | None = None
    failures: tuple[str, ...] = ()
    random: bool = True
    unit: str = "seed"

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Comparison:
        """A comparison from the output of `as_json`, without its groups of jobs.

        Raises KeyError, TypeError or ValueError for damaged data.
        """
        results = tuple(
            Result(
                str(run["policy"]),
                int(run["seed"]),
                str(run["identity"]),
                {str(name): number(value) for name, value in run["metrics"].items()},
                totals={str(name): number(value) for name, value in (run.get("totals") or {}).items()},
            )
            for run in content["runs"]
        )
        policies = tuple(map(str, content["policies"]))
        if sorted(policies) != sorted({result.policy for result in results}):
            raise ValueError("its policies are not those of its runs")
        if not all({"completed", "jobs"} <= result.metrics.keys() for result in results):
            raise ValueError("a run has no metrics")
        bound = {name: number(content["bound"][name]) for name in ("makespan_s", "completion_mean_s")}
        return cls(
            scenario_name=str(content["scenario"]),
            policies=policies,
            seeds=tuple(map(int, content["seeds"])),
            results=results,
            bound=LowerBound(**bound, noise_free=bool(content["bound"]["noise_free"])),
            notes=tuple(map(str, content["notes"])),
            failures=tuple(map(str, content["failures"])),
            random=content.get("random") is not False,
        )

    def of(self, policy: str) -> tuple[Result, ...]:
        """Results of one policy, seeds ascending."""
        return tuple(result for result in self.results if result.policy == policy)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every metric under every policy, metrics in the order of `Run.summary`."""
        return self._cells_of(METRICS)

    @cached_property
    def group_cells(self) -> tuple[Cell, ...]:
        """The cells of each requested group of jobs, in the order of the first policy."""
        return self._cells_of(tuple(dict.fromkeys(name for result in self.results for name in result.groups)))

    def _cells_of(self, metrics: Sequence[str]) -> tuple[Cell, ...]:
        return tuple(
            self._cell(metric, policy, p)
            for metric in metrics
            if metric not in WHERE_USED or any(metric in result.metrics for result in self.results)
            for policy, p in zip(self.policies, self._p(metric), strict=True)
        )

    def _p(self, metric: str) -> list[float]:
        """p value of the difference of each policy from the first; NaN for the first and without a test."""
        first = self._values(metric, self.policies[0])
        found = [paired_p(self._values(metric, policy), first) for policy in self.policies[1:]]
        return [math.nan, *holm(found).tolist()]

    def _cell(self, metric: str, policy: str, p: float) -> Cell:
        mine, first = self._values(metric, policy), self._values(metric, self.policies[0])
        value = mean_interval(mine, self.level)
        bound = getattr(self.bound, metric) if metric in BOUNDED and self._all_done(policy) else math.nan
        over = value.mean / bound if bound > 0 else math.nan
        ratio, difference = paired_ratio(mine, first, self.level), paired_difference(mine, first, self.level)
        return Cell(metric, policy, value, ratio, bound, over, difference, p, paired_effect(mine, first))

    def _values(self, metric: str, policy: str) -> list[float]:
        values = [
            (result.metrics if metric in METRICS else result.groups).get(metric, math.nan) for result in self.of(policy)
        ]
        # A share that is nothing but rounding (total less parts) must not become a ratio.
        residue = _RESIDUE if metric.endswith("_ratio") else 0.0
        return [0.0 if abs(value) < residue else value for value in values]

    def _all_done(self, policy: str) -> bool:
        # A run that leaves jobs undone can end before the bound for doing all of them.
        return all(undone(r.metrics) == 0.0 for r in self.of(policy))

    @cached_property
    def answer(self) -> str:
        """Which policy is fastest, by how much and at what cost, in one sentence; "" where none can be said."""
        left = {p: int(max(undone(r.metrics) for r in self.of(p))) for p in self.policies if self.of(p)}
        jobs = max((int(r.metrics["jobs"]) for r in self.results), default=0)
        return answer(self.cells, self.policies, jobs, left)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per metric and policy."""
        return [cell.row() for cell in (*self.cells, *self.group_cells)]

    def to_df(self) -> Any:
        """`rows` as a pandas DataFrame. Raises MissingError where pandas is not installed."""
        return data_frame(self.rows())

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} runs failed" if self.failures else ""
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        return f"<Comparison of {self.scenario_name!r}: {', '.join(self.policies)}; {seeds}{failed}>"

    def as_table(self, width: int = 100, wide: bool = False) -> str:
        """Plain text: metrics as rows (wide: all of them), policies as columns, readable units."""
        n = len(self.seeds)
        runs = f"{n} {self.unit}s, mean ± 95 % interval, ratios paired by {self.unit}" if n > 1 else f"one {self.unit}"
        ended = "" if self.precision is None else f"\n{self.precision.text(self.policies[0])}"
        title = f"{self.scenario_name}: {runs}{ended}"
        title = f"{textwrap.fill(self.answer, width)}\n\n{title}" if self.answer else title
        cells = (*self.cells, *self.group_cells)
        return as_text(title, cells, self.notes, self.bound.noise_free, width, wide)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.as_table())}</pre>"

    def as_json(self) -> str:
        """All results as JSON; unknown values are null."""
        content = {
            "schema_version": 1,
            "answer": self.answer,
            "scenario": self.scenario_name,
            "policies": self.policies,
            "seeds": self.seeds,
            "confidence": CONFIDENCE,
            "random": self.random,
            "bound": asdict(self.bound),
            "notes": self.notes,
            "rows": self.rows(),
            "runs": [result.row() for result in self.results],
            "failures": self.failures,
        }
        if self.precision is not None:
            content["until"] = {**asdict(self.precision), "level": self.level}
        return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"

    def as_latex(self) -> str:
        """A table for a paper; the others against the first policy."""
        cells = (*self.cells, *self.group_cells)
        several = f"{len(self.seeds)} {self.unit}s, paired"
        return as_latex(f"{self.scenario_name}: {several if len(self.seeds) > 1 else f'one {self.unit}'}", cells)

    def as_csv(self) -> str:
        """One line per metric and policy; unknown values are empty."""
        text, rows = io.StringIO(), self.rows()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: "" if value != value else value for key, value in row.items()} for row in rows)
        return text.getvalue()
