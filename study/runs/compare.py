"""Several policies on the same seeds, and what differs between them.

Every policy meets the same arrivals, faults and step noise (common random numbers). A metric is the mean
over seeds with a 95 % Student-t interval; the ratio to the first policy is paired by seed; makespan and mean
completion time also stand as a multiple of what no policy can beat. `docs/metrics.md` defines each metric.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from equipoise.policies.registry import PolicyError, make_policy
from equipoise.sim.run import is_random, run, trace_of
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.traces.read import Trace
from equipoise.study.bounds import Bound, lower_bound
from equipoise.study.report.text import render
from equipoise.study.runs.execute import Failure, Job, Progress, Result, Runner, Task, execute
from equipoise.study.runs.until import Until, check_metric, check_policies
from equipoise.study.statistics import CONFIDENCE, Interval, mean_interval, paired_difference, paired_ratio

BOUNDED = ("makespan_s", "completion_mean_s")
_RESIDUE = 1e-12


@dataclass(frozen=True)
class Cell:
    """One metric under one policy: mean over seeds, ratio to the first policy, multiple of the bound."""

    metric: str
    policy: str
    value: Interval
    ratio: Interval
    bound: float  # NaN: there is none for this metric
    over_bound: float
    difference: Interval  # to the first policy, paired by seed

    def row(self) -> dict[str, Any]:
        """The cell as one flat row; what is unknown is NaN."""
        return {
            "metric": self.metric,
            "policy": self.policy,
            "seeds": self.value.n,
            "mean": self.value.mean,
            "low": self.value.low,
            "high": self.value.high,
            "ratio": self.ratio.mean,
            "ratio_low": self.ratio.low,
            "ratio_high": self.ratio.high,
            "difference": self.difference.mean,
            "difference_low": self.difference.low,
            "difference_high": self.difference.high,
            "bound": self.bound,
            "over_bound": self.over_bound,
        }


@dataclass(frozen=True)
class Precision:
    """How `compare(..., until=...)` ended: the relative half width asked for and that reached."""

    metric: str
    of_ratio: bool
    wanted: float
    reached: float

    @property
    def met(self) -> bool:
        """Whether it is as narrow as was asked for."""
        return self.reached <= self.wanted


@dataclass(frozen=True)
class Comparison:
    """Results of all policies on all seeds (`results`: policy by policy, seeds ascending).

    level: of each interval; above 95 % where seeds were added until one was narrow enough (study.runs.until).
    precision: the condition and how it ended, when there was one.
    failures: one line per run that failed; policies with such a run are left out of all the rest.
    """

    scenario_name: str
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    results: tuple[Result, ...]
    bound: Bound
    notes: tuple[str, ...]
    level: float = CONFIDENCE
    precision: Precision | None = None
    failures: tuple[str, ...] = ()

    def of(self, policy: str) -> tuple[Result, ...]:
        """Results of one policy, seeds ascending."""
        return tuple(result for result in self.results if result.policy == policy)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every metric under every policy, metrics in the order of `Run.summary`."""
        return tuple(
            self._cell(metric, policy) for metric in self.results[0].metrics for policy in self.policies
        )

    def _cell(self, metric: str, policy: str) -> Cell:
        mine, first = self._values(metric, policy), self._values(metric, self.policies[0])
        value = mean_interval(mine, self.level)
        bound = getattr(self.bound, metric) if metric in BOUNDED and self._all_done(policy) else math.nan
        over = value.mean / bound if bound > 0 else math.nan
        ratio, difference = paired_ratio(mine, first, self.level), paired_difference(mine, first, self.level)
        return Cell(metric, policy, value, ratio, bound, over, difference)

    def _values(self, metric: str, policy: str) -> list[float]:
        values = [result.metrics[metric] for result in self.of(policy)]
        # A share that is nothing but rounding (total less parts) must not become a ratio.
        residue = _RESIDUE if metric.endswith("_ratio") else 0.0
        return [0.0 if abs(value) < residue else value for value in values]

    def _all_done(self, policy: str) -> bool:
        # A run that leaves jobs undone can end before the bound for doing all of them.
        return all(r.metrics["completed"] == r.metrics["jobs"] for r in self.of(policy))

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per metric and policy."""
        return [cell.row() for cell in self.cells]

    def as_table(self, width: int = 100) -> str:
        """Plain text: metrics as rows, policies as columns, human units."""
        return render(self, width)

    def _repr_html_(self) -> str:
        from equipoise.study.report.notebook import comparison_html

        return comparison_html(self)

    def as_json(self) -> str:
        """Everything, for programs; what is unknown is null."""
        content = {
            "schema_version": 1,
            "scenario": self.scenario_name,
            "policies": self.policies,
            "seeds": self.seeds,
            "confidence": CONFIDENCE,
            "bound": asdict(self.bound),
            "notes": self.notes,
            "rows": self.rows(),
            "runs": [result.row() for result in self.results],
            "failures": self.failures,
        }
        if self.precision is not None:
            content["until"] = {**asdict(self.precision), "level": self.level}
        return json.dumps(_plain(content), indent=2, allow_nan=False) + "\n"

    def as_csv(self) -> str:
        """One line per metric and policy; what is unknown is empty."""
        text, rows = io.StringIO(), self.rows()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: "" if value != value else value for key, value in row.items()} for row in rows)
        return text.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def compare(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: int,
    *,
    trace: Trace | None = None,
    jobs_parallel: int = 1,
    out: Path | None = None,
    progress: Progress | None = None,
    runner: Runner = run,
    until: Until | None = None,
    timeline: bool = False,
    journal: bool = False,
) -> Comparison:
    """Run every policy on the same `seeds` seeds (the scenario's and the next ones) and compare.

    policies: stage names joined by `+`, or `none`; the first is the one that ratios refer to.
    jobs_parallel: processes; results do not depend on it.
    out: keeps each run in `out/POLICY/seed-N/` and the result in `out/comparison.json`; runs that are
        complete there and have the same identity are read instead of computed.
    until: seeds are added until its interval is narrow enough, in place of `seeds`.
    timeline, journal: keep them, too, with each run.

    Raises InputError for an unknown metric in `until`, ValueError for an empty or double list of policies or
    counts below 1, PolicyError for an unknown stage, and whatever a run raises.
    """
    _check(policies, seeds, jobs_parallel)
    if until is not None:
        check_policies(until, policies)
    trace = trace if trace is not None else trace_of(scenario)
    notes = []
    if seeds > 1 and not is_random(scenario):
        notes.append(f"nothing in this scenario is random, so one seed was run instead of {seeds}")
        seeds, until = 1, None
    bound = lower_bound(scenario, trace)
    job = Job(scenario, trace, out, runner, timeline, journal)
    looks = (seeds,) if until is None else until.looks
    made: dict[Task, Result] = {}
    failed: list[Failure] = []
    for count in looks:
        numbers = tuple(range(scenario.seed, scenario.seed + count))
        tasks = [Task(policy, seed) for policy in policies for seed in numbers]
        failed += _add(made, job, tasks, jobs_parallel, progress)
        policies, tasks = _whole(policies, tasks, failed)
        precision = None if until is None else _precision(until, policies, made)
        if precision is None or precision.met:
            break
    results = [made[task] for task in tasks]
    comparison = Comparison(
        scenario.name, tuple(policies), numbers, tuple(results), bound, (*notes, *_notes(results, tasks)),
        CONFIDENCE if until is None else until.level, precision, tuple(failure.line for failure in failed),
    )  # fmt: skip
    if out is not None:
        _write(out / "comparison.json", comparison.as_json())
    return comparison


def _add(
    made: dict[Task, Result], job: Job, tasks: Sequence[Task], processes: int, progress: Progress | None
) -> list[Failure]:
    """Make the tasks that are not made yet; returns those that failed."""
    before, missing = len(made), [task for task in tasks if task not in made]

    def tell(done: int, total: int, label: str) -> None:
        if progress is not None:
            progress(before + done, before + total, label)

    results, failures = execute(job, missing, processes, tell)
    made.update(results)
    return failures


def _whole(
    policies: Sequence[str], tasks: Sequence[Task], failed: Sequence[Failure]
) -> tuple[list[str], list[Task]]:
    """Policies of which no run failed, and their tasks. Raises RunFailed when there is none left."""
    out = {failure.task.policy for failure in failed}
    if out and out >= set(policies):
        raise failed[0].error
    return [p for p in policies if p not in out], [task for task in tasks if task.policy not in out]


def _precision(until: Until, policies: Sequence[str], made: dict[Task, Result]) -> Precision:
    check_metric(until, next(iter(made.values())).metrics)
    values = {
        policy: [result.metrics[until.metric] for task, result in made.items() if task.policy == policy]
        for policy in policies
    }
    return Precision(until.metric, until.of_ratio, until.share, until.reached(values))


def _check(policies: Sequence[str], seeds: int, jobs_parallel: int) -> None:
    if not policies:
        raise ValueError("no policy to compare: name at least one")
    if len(set(policies)) < len(policies):
        double = next(p for k, p in enumerate(policies) if p in policies[:k])
        raise ValueError(f"policy {double!r} is named twice")
    for name, count in (("seeds", seeds), ("jobs", jobs_parallel)):
        if count < 1:
            raise ValueError(f"{name}: {count} is not allowed, at least 1 is needed")
    for policy in policies:
        make_policy(policy)


def _notes(results: Sequence[Result], tasks: Sequence[Task]) -> list[str]:
    """Notes that all runs share, then those of each policy's first run."""
    shared = [note for note in results[0].notes if all(note in result.notes for result in results)]
    own, seen = [], set()
    for task, result in zip(tasks, results, strict=True):
        if task.policy not in seen:
            own += [f"{task.label}: {note}" for note in result.notes if note not in shared]
        seen.add(task.policy)
    return [*shared, *own]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


__all__ = ["Cell", "Comparison", "PolicyError", "compare"]
