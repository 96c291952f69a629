"""Comparison of several policies on the same seeds: a sweep of one point.

Every policy has the same arrivals, faults and step noise (common random numbers). A metric is the mean
over seeds with a 95 % Student-t interval; the ratio to the first policy is paired by seed; makespan and mean
completion time are also given as a multiple of their lower bound. `docs/metrics.md` defines each metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from equipoise.base.files import write_whole
from equipoise.policies.parameters import AnyPolicy
from equipoise.policies.registry import make_policy
from equipoise.sim.inputs import trace_of
from equipoise.sim.record import Run, read_parquet
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import format_share
from equipoise.sim.seeds import is_random
from equipoise.sim.traces.trace import Trace
from equipoise.study.bounds import lower_bound
from equipoise.study.breakdown import BY, breakdown
from equipoise.study.display import METRICS
from equipoise.study.folders import COMPARISON, RUNS, check_free
from equipoise.study.needs import LowerBound
from equipoise.study.runs.comparison import Comparison, Result
from equipoise.study.runs.make import How, Progress, make
from equipoise.study.runs.orders import Order, Row, name_of
from equipoise.study.runs.perform import Shared, orders_at
from equipoise.study.runs.store import MemoryStore, Store, ledger_with_copy, only_writer
from equipoise.study.runs.until import Until, check_metric, check_policies
from equipoise.study.statistics import CONFIDENCE
from equipoise.study.sure import certainty_of_times, note_of
from equipoise.study.table import Precision

RUNS_MOST = 50_000
"""Most runs of a comparison, which keeps all in memory: 9 to 19 KiB each."""
ENOUGH = 0.8
"""Share of the time that GPUs compute on a cluster that suits its jobs."""


class EveryPolicyFailed(RuntimeError):
    """No policy is left to compare; the message is that of the first run that failed."""


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
