"""Comparison of several policies on the same seeds: a sweep of one point.

Every policy has the same arrivals, faults and step noise (common random numbers). A metric is the mean
over seeds with a 95 % Student-t interval; the ratio to the first policy is paired by seed; makespan and mean
completion time are also given as a multiple of their lower bound. `docs/metrics.md` defines each metric.
"""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from equipoise.base.files import write_whole
from equipoise.base.json_values import from_json, number, plain
from equipoise.policies.parameters import AnyPolicy
from equipoise.policies.registry import make_policy
from equipoise.sim.record import WASTE, Run, data_frame, read_parquet, undone
from equipoise.sim.run import is_random, run, trace_of
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import format_share
from equipoise.sim.traces.trace import Trace
from equipoise.study.bounds import LowerBound, lower_bound
from equipoise.study.breakdown import BY, breakdown
from equipoise.study.display import METRICS, WHERE_BOUND, WHERE_USED
from equipoise.study.folders import COMPARISON, RUNS, check_free
from equipoise.study.runs.answer import answer
from equipoise.study.runs.make import How, Progress, make
from equipoise.study.runs.orders import Order, Row, Shared, name_of, orders_at
from equipoise.study.runs.store import FIXED, MemoryStore, Store, ledger_with_copy, only_writer
from equipoise.study.runs.until import Until, check_metric, check_policies
from equipoise.study.statistics import (
    CONFIDENCE,
    holm,
    mean_interval,
    paired_difference,
    paired_effect,
    paired_p,
    paired_ratio,
)
from equipoise.study.sure import certainty_of_times, note_of
from equipoise.study.table import Cell, Precision, as_latex, as_text

BOUNDED = ("makespan_s", "completion_mean_s")
_RESIDUE = 1e-12
_TOTALS_TOO = {"makespan_s", "energy_j", "cost_usd", *(f"{use}_usd" for use in WASTE)}
"""Metrics that are also totals of the run."""


class EveryPolicyFailed(RuntimeError):
    """No policy is left to compare; the message is that of the first run that failed."""


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


RUNS_MOST = 50_000
"""Most runs of a comparison, which keeps all in memory: 9 to 19 KiB each."""
ENOUGH = 0.8
"""Share of the time that GPUs compute on a cluster that suits its jobs."""


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


def compare(
    scenario: Scenario,
    policies: Sequence[AnyPolicy],
    seeds: int,
    *,
    trace: Trace | None = None,
    jobs_parallel: int = 1,
    out: Path | None = None,
    progress: Progress | None = None,
    runner: Callable[..., Run] = run,
    until: Until | None = None,
    timeline: bool = False,
    journal: bool = False,
    by: Sequence[str] = (),
) -> Comparison:
    """Run every policy on the same `seeds` seeds (the scenario's and the next ones) and compare.

    policies: stage names joined by `+`, `none`, or Policy objects; ratios refer to the first.
    jobs_parallel: processes; results do not depend on it.
    out: keeps each run in `out/runs/ID/` and the result in `out/comparison.json`; existing runs are not repeated.
    until: seeds are added until its interval is narrow enough, in place of `seeds`. timeline, journal: also keep
    them with each run. by: additional groupings of jobs (study.breakdown.BY); an empty group is left out.

    Raises InputError for an unknown metric in `until` or a folder with another study, ValueError for an empty list
    of policies, duplicates, or counts below 1, PolicyError for an unknown stage, StoreError when `out` cannot be
    written, EveryPolicyFailed.
    """
    _check(policies, seeds, jobs_parallel, until)
    for kind in by:
        if kind not in BY:
            raise InputError([f"--by {kind!r}: allowed: {', '.join(BY)}"])
    runs = len(policies) * (seeds if until is None else until.most)
    if is_random(scenario) and runs > RUNS_MOST:
        raise InputError([f"{runs:,} runs; a comparison has at most {RUNS_MOST:,}; a sweep can have more"])
    trace = trace if trace is not None else trace_of(scenario)
    notes = []
    if seeds > 1 and not is_random(scenario):
        notes.append(f"nothing in this scenario is random, so one seed was run instead of {seeds}")
        seeds, until = 1, None
    orders = list(orders_at(scenario, policies, seeds if until is None else until.most, trace))
    keep = None if out is None else (out / RUNS).resolve()
    shared = Shared(
        keep=keep, runner=runner, timeline=timeline, journal=journal, trace=trace, by=() if out else tuple(by)
    )
    with _store(out) as store:
        store.keep_only(order.id for order in orders)
        store.set_about(study="comparison", name=scenario.name, planned=str(len(orders)))
        chosen, made = make(store, orders, shared, How(jobs_parallel, retry=True, progress=progress), until)
        store.keep_only(order.id for order in chosen)
        comparison = _comparison(
            scenario,
            lower_bound(scenario, trace),
            chosen,
            store.rows(),
            made,
            notes,
            until,
            lambda order, row: _groups(shared.folder(order), row, by),
        )
        if out is not None:
            write_whole(out / COMPARISON, comparison.as_json())
    return comparison


@contextmanager
def _store(out: Path | None) -> Iterator[Store]:
    """The store of a comparison: its folder, or memory."""
    if out is None:
        yield MemoryStore()
        return
    check_free(out, "comparison")
    with only_writer(out), ledger_with_copy(out) as ledger:
        yield ledger


def _comparison(
    scenario: Scenario,
    bound: LowerBound,
    orders: Sequence[Order],
    rows: Sequence[Row],
    made: set[str],
    notes: Sequence[str],
    until: Until | None,
    groups: Callable[[Order, Row], Mapping[str, float]],
) -> Comparison:
    """The requested runs, without policies that have a failed run."""
    by_id = {row["id"]: row for row in rows}  # two policies can be the same in other words
    bad = [order for order in orders if by_id[order.id]["status"] == "failed"]
    out = {order.policy for order in bad}
    policies = tuple(dict.fromkeys(order.policy for order in orders if order.policy not in out))
    failures = tuple(f"{o.policy} seed {o.seed} failed: {by_id[o.id]['error']}" for o in bad)
    if not policies:
        raise EveryPolicyFailed(failures[0])
    results = tuple(
        Result.of(o, by_id[o.id], o.id not in made, groups(o, by_id[o.id])) for o in orders if o.policy not in out
    )
    precision, level = None, CONFIDENCE
    if until is not None:
        values = {p: [r.metrics[until.metric] for r in results if r.policy == p] for p in policies}
        precision = Precision(until.metric, until.of_ratio, until.share, until.reached(values))
        level = until.level
    return Comparison(
        scenario.name,
        policies,
        tuple(dict.fromkeys(o.seed for o in orders)),
        results,
        bound,
        (*notes, *_never_waits(results), *_predicted(scenario, results), *_notes(results)),
        level,
        precision,
        failures,
        is_random(scenario),
    )


def _groups(folder: Path | None, row: Row, by: Sequence[str]) -> Mapping[str, float]:
    """The breakdown of one run, from its directory or, if not kept, its row."""
    if not by:
        return {}
    if folder is None:
        found: Mapping[str, float] = row["groups"]
        return found
    return breakdown(read_parquet(folder / "jobs.parquet"), by)


def _check(given: Sequence[AnyPolicy], seeds: int, jobs_parallel: int, until: Until | None) -> None:
    if not given:
        raise ValueError("no policy to compare: name at least one")
    policies = [name_of(policy) for policy in given]
    if len(set(policies)) < len(policies):
        double = next(p for k, p in enumerate(policies) if p in policies[:k])
        raise ValueError(f"policy {double!r} is named twice")
    for name, count in (("seeds", seeds), ("jobs", jobs_parallel)):
        if count < 1:
            raise ValueError(f"{name}: {count} is not allowed, at least 1 is needed")
    for policy in given:
        if isinstance(policy, str):
            make_policy(policy)
    if until is not None:
        check_metric(until)
        check_policies(until, policies)


def _never_waits(results: Sequence[Result]) -> list[str]:
    """A note if no job ever waits, so the order of the queue does not matter."""
    known = [result.metrics for result in results]
    if len({r.policy for r in results}) < 2 or any(m["queueing_mean_s"] > 0 or not m["jobs"] > 1 for m in known):
        return []
    gpus, busy = results[0].totals.get("gpus", math.nan), known[0]["gpu_busy_ratio"]
    if not (gpus > 1 and busy < ENOUGH):
        return []
    return [
        f"no job ever waits: the {gpus:.0f} GPUs compute {format_share(busy)} of the time; "
        f"{max(1, math.ceil(gpus * busy / ENOUGH))} would {format_share(ENOUGH)}"
    ]


def _predicted(scenario: Scenario, results: Sequence[Result]) -> list[str]:
    """Intervals of times and cost of the first policy, where steps are predicted."""
    mine = [r.metrics for r in results if r.policy == results[0].policy]
    means = {name: math.fsum(metrics.get(name, math.nan) for metrics in mine) / len(mine) for name in METRICS}
    said = note_of(certainty_of_times(scenario), results[0].policy, means)
    return [said] if said else []


def _notes(results: Sequence[Result]) -> list[str]:
    """Notes that all runs share, then those of each policy's first run."""
    shared = [note for note in results[0].notes if all(note in result.notes for result in results)]
    firsts = {result.policy: result for result in reversed(results)}
    own = [
        f"{first.policy} seed {first.seed}: {note}"
        for first in reversed(firsts.values())
        for note in first.notes
        if note not in shared
    ]
    return [*shared, *own]
