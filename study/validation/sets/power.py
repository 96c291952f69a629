"""MLPerf power of H100 nodes: energy of a run from what an idle node and one benchmark draw.

Law: a node draws its idle power while a run starts and loads, then its busy power; the idle share of a run of T
seconds is S / (S + T), since what loads longer also runs longer. Idle power is the lowest seen of the kind of node,
busy power the highest of the benchmark's runs; S makes the benchmark's mean power right and is drawn half-way, in
the logarithm, towards `START_S`. One line counts every node of every run, one every system and benchmark once: a
system of 64 nodes makes half of the rows. Naive: the benchmark's mean power all the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.study.validation.rows import Cells, read_rows
from equipoise.study.validation.score import Line, Score, judge, line, of_splits, spread_of_others
from equipoise.study.validation.splits import bucket

FILE = "power/mlperf_power_summary.csv.gz"
GROUP = ("round", "submitter", "system", "benchmark")
START_S = 60.0
IDLE_SHARES = (1e-3, 0.95)
"""Bounds of the idle share of the runs that S is learned from."""


@dataclass(frozen=True, slots=True)
class PowerRun:
    """One node of one run: seconds, mean power, and quantiles of its readings [W]."""

    key: str
    kind: str
    benchmark: str
    seconds: float
    mean_w: float
    low_w: float
    high_w: float


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """A kind of node: idle and busy power [W], and the idle seconds of a long run."""

    idle_w: float
    busy_w: float
    start_s: float

    def energy_j(self, seconds: float) -> float:
        """Energy of a run of that length."""
        idle_s = seconds * self.start_s / (self.start_s + seconds)
        return idle_s * self.idle_w + (seconds - idle_s) * self.busy_w


def read(data: Path) -> list[PowerRun]:
    """Every node of every run. Raises FileNotFoundError, KeyError."""
    return read_rows(data / FILE, _run)


def _run(text: Cells) -> PowerRun | None:
    if not text["unit"].startswith("node"):
        return None
    system, kind = (" ".join(text[name] for name in GROUP[:n]) for n in (len(GROUP), 2))
    figures = (text.measured(name) for name in ("duration_s", "w_mean", "w_p05", "w_p95"))
    return PowerRun(system, kind, text["benchmark"], *figures)


def medians(rows: Sequence[PowerRun]) -> list[PowerRun]:
    """One run per system and benchmark: medians over its nodes and repetitions."""
    found: dict[str, list[PowerRun]] = defaultdict(list)
    for row in rows:
        found[row.key].append(row)

    def middle(group: Sequence[PowerRun], name: str) -> float:
        """Median of one column."""
        return float(np.median([getattr(r, name) for r in group]))

    names = ("seconds", "mean_w", "low_w", "high_w")
    return [
        PowerRun(key, group[0].kind, group[0].benchmark, *(middle(group, name) for name in names))
        for key, group in found.items()
    ]


def learn(known: Sequence[PowerRun], idle_w: float) -> MeasuredNode:
    """A kind of node from its idle power and the runs of one benchmark."""
    seconds, mean, high = (np.array([getattr(r, name) for r in known]) for name in ("seconds", "mean_w", "high_w"))
    idle = np.clip((high - mean) / np.maximum(high - idle_w, 1e-9), *IDLE_SHARES)
    start_s = np.exp(np.median(np.log(idle / (1 - idle) * seconds)))
    return MeasuredNode(idle_w, float(np.median(high)), float(np.sqrt(start_s * START_S)))


def run(data: Path) -> list[Line]:
    """Idle and one benchmark of every kind of node, chosen by a hash, predict the energy of the others."""
    rows = read(data)
    each = medians(rows)
    what = "MLPerf power: idle and one benchmark -> energy of the others"
    return [
        line(f"{what}, every node", 0.07, of_splits(lambda split: _score(each, rows, split))),
        line(f"{what}, systems count once", 0.07, of_splits(lambda split: _score(each, each, split))),
    ]


def _score(each: Sequence[PowerRun], counted: Sequence[PowerRun], split: int) -> Score:
    """Fit nodes on `each` and predict those of `counted`."""
    rows: list[tuple[str, float, float, float]] = []
    for kind in sorted({r.kind for r in each}):
        runs = [r for r in each if r.kind == kind]
        names = sorted({r.benchmark for r in runs})
        chosen = min(names, key=lambda name: bucket(f"{kind} {name}", split, 2**32))
        known = [r for r in runs if r.benchmark == chosen]
        node, mean_w = learn(known, min(r.low_w for r in runs)), float(np.median([r.mean_w for r in known]))
        rest = (r for r in counted if r.kind == kind and r.benchmark != chosen)
        rows += [(r.key, node.energy_j(r.seconds), mean_w * r.seconds, r.mean_w * r.seconds) for r in rest]
    if not rows:
        raise ValueError("no kind of node has two benchmarks")
    keys, *columns = zip(*rows, strict=True)
    guess, naive, measured = (np.array(column) for column in columns)
    benchmarks = [key.split()[-1] for key in keys]
    return judge(keys, guess, naive, measured, spread_of_others(np.log(measured / guess), benchmarks))
