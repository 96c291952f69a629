"""The public benchmark: ten fixed cases, five seeds, and the results of the policies that come with the software.

A score is the geometric mean over the cases of mean completion time over that under `fifo`, paired by seed. The
cases and the published results are in `scenarios/bench`.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from equipoise.policies.parameters import AnyPolicy
from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.sim.inputs import drawn_jobs, trace_of
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.scenario.model import Scenario
from equipoise.study.bounds import lower_bound
from equipoise.study.folders import check_free
from equipoise.study.runs.make import How, make
from equipoise.study.runs.orders import Order, Row
from equipoise.study.runs.perform import Shared, orders_at
from equipoise.study.runs.store import Ledger, MemoryStore, Store, ledger_with_copy, only_writer
from equipoise.study.statistics import Interval, stratified_ratio

REFERENCE = "fifo"
SEEDS = 5
METRIC = "completion_mean_s"

Times = dict[tuple[str, str], dict[int, float]]
"""Mean completion time (s) by seed, of each (policy, case)."""


@dataclass(frozen=True)
class Ranked:
    """One policy of the table: its score, and its ratio to the reference in each case."""

    policy: str
    score: Interval
    ratios: Mapping[str, float]


def folder() -> Path:
    """Folder of the cases and of the published results."""
    return scenarios_dir() / "bench"


def cases(draw: str = "") -> dict[str, Scenario]:
    """The cases by name, with the first seed of a draw; the public ones have seeds 1 to 5."""
    first = int.from_bytes(hashlib.sha256(draw.encode()).digest()[:3], "big") if draw else 1
    files = sorted(folder().glob("*.yaml"))
    return {file.stem: read_scenario(file).scenario.model_copy(update={"seed": first}) for file in files}


def published() -> Times:
    """Results on the public seeds that come with the software."""
    times: Times = {}
    with (folder() / "results.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            times.setdefault((row["policy"], row["case"]), {})[int(row["seed"])] = float(row[METRIC])
    return times


def measure(given: Mapping[str, Scenario], policies: Sequence[AnyPolicy], out: Path | None, how: How) -> Sequence[Row]:
    """The runs of all policies in all cases, in order; those that `out` has already are not made again.

    Raises InputError for a folder with another study, PolicyError, EngineError, and StoreError.
    """
    orders: list[Order] = []
    for k, (name, case) in enumerate(given.items()):
        made = orders_at(case, policies, SEEDS, trace_of(case), point=k, values={"case": name}, number=len(orders))
        orders += list(made)
    with _store(out) as store:
        store.keep_only(order.id for order in orders)
        store.set_about(study="sweep", name="benchmark", planned=str(len(orders)), scenario=orders[0].scenario)
        make(store, orders, Shared(), how)
        return store.rows()


@contextmanager
def _store(out: Path | None) -> Iterator[Store]:
    if out is None:
        yield MemoryStore()
        return
    check_free(out, "sweep")
    with only_writer(out), ledger_with_copy(out) as ledger:
        assert isinstance(ledger, Ledger)
        yield ledger


def times_of(rows: Sequence[Row]) -> Times:
    """Mean completion times of the runs that ended."""
    times: Times = {}
    for row in rows:
        value = row.get(METRIC)
        if row["status"] == "done" and value is not None and math.isfinite(value):
            times.setdefault((row["policy"], row["case"]), {})[row["seed"]] = float(value)
    return times


def table(times: Times, names: Sequence[str]) -> list[Ranked]:
    """The policies with a result for every seed of every case, best first."""
    seeds = sorted({seed for found in times.values() for seed in found})
    lines = []
    for policy in dict.fromkeys(policy for policy, _ in times):
        own = [times.get((policy, case), {}) for case in names]
        if any(seed not in found for found in own for seed in seeds):
            continue
        mine = [[found[seed] for seed in seeds] for found in own]
        first = [[times[REFERENCE, case][seed] for seed in seeds] for case in names]
        exact = [len(set(a)) == len(set(b)) == 1 for a, b in zip(mine, first, strict=True)]
        score, _, _ = stratified_ratio(mine, first, exact)
        ratios = {
            case: math.exp(sum(math.log(a / b) for a, b in zip(*pair, strict=True)) / len(seeds))
            for case, *pair in zip(names, mine, first, strict=True)
        }
        lines.append(Ranked(policy, score, ratios))
    return sorted(lines, key=lambda line: (line.score.mean, line.policy))


def bounds(given: Mapping[str, Scenario], times: Times) -> dict[str, float]:
    """Per case, the lower bound of the mean completion time over that of the reference: no ratio can be below it.

    The geometric mean over the seeds, as of a policy; it ignores step noise.
    """
    found = {}
    for name, case in given.items():
        first = times[REFERENCE, name]
        each = [lower_bound(case, drawn_jobs(case, seed, trace_of(case))).completion_mean_s for seed in first]
        logs = [math.log(least / first_s) for least, first_s in zip(each, first.values(), strict=True)]
        found[name] = math.exp(sum(logs) / len(logs))
    return found


def answer(lines: Sequence[Ranked], asked: Collection[str]) -> Iterator[str]:
    """Rank and score of the policies asked for, or of the best, in sentences."""
    for rank, line in enumerate(lines, 1):
        if line.policy in asked or (rank == 1 and not set(asked) - {REFERENCE}):
            score = line.score
            sure = f" (95 %: {score.low:.3f} to {score.high:.3f})" if score.low < score.high else ""
            yield (
                f"{line.policy} ranks {rank} of {len(lines)}: jobs take {score.mean:.3f} times{sure} as long as under "
                f"{REFERENCE}, as geometric mean of {len(line.ratios)} cases."
            )


def as_rows(lines: Sequence[Ranked], least: Mapping[str, float]) -> Iterator[list[str]]:
    """The table as text: a row for the names, one for each policy, and one for the bounds."""
    names = list(least)
    yield ["rank", "policy", "score", "95 %", *names]
    for rank, line in enumerate(lines, 1):
        score = line.score
        interval = f"{score.low:.3f} to {score.high:.3f}" if score.low < score.high else "exact"
        yield [str(rank), line.policy, f"{score.mean:.3f}", interval, *(f"{line.ratios[name]:.2f}" for name in names)]
    yield ["", "bound", "", "", *(f"{least[name]:.2f}" for name in names)]
