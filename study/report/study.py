"""A folder of results in one data structure: a run, a comparison or a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from equipoise.base.numerals import strict_float
from equipoise.sim.scenario.tree import InputError, read_text, read_tree
from equipoise.sim.scenario.units import DATA_RATE, SHARE, SIZE, TIME
from equipoise.study.folders import MANIFEST, read_json, read_manifest
from equipoise.study.report.timeline import has_timeline
from equipoise.study.statistics import CONFIDENCE, Interval

UNKNOWN = Interval(math.nan, math.nan, math.nan, 0)
SENSITIVITY = "sensitivity.json"


@dataclass(frozen=True)
class FailedRun:
    """A run that ended without a result."""

    what: str
    error: str


@dataclass(frozen=True)
class RunFolder:
    """One run directory."""

    path: Path
    policy: str
    seed: int
    manifest: Mapping[str, Any]
    label: str

    @property
    def timeline(self) -> bool:
        """Whether it has a timeline."""
        return has_timeline(self.path)

    @property
    def journal(self) -> Path | None:
        """Its record of decisions, if there is one."""
        path = self.path / "journal.jsonl"
        return path if path.is_file() else None


@dataclass(frozen=True)
class StudyRow:
    """One metric under one policy, as in `docs/metrics.md`; unknown numbers are NaN."""

    metric: str
    policy: str
    value: Interval
    ratio: Interval = UNKNOWN
    bound: float = math.nan
    over_bound: float = math.nan


@dataclass(frozen=True)
class Point:
    """One choice of a sweep under one policy: the varied values as text, and means of the metrics."""

    number: int
    policy: str
    values: Mapping[str, str]
    means: Mapping[str, float]


@dataclass(frozen=True)
class Trend:
    """Mean of the main metric over the values of one varied key: means[policy][k] at values[k]."""

    key: str
    metric: str
    values: tuple[str, ...]
    means: Mapping[str, Sequence[float]]
    halves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of the 95 % intervals; NaN: not known


@dataclass(frozen=True)
class Study:
    """All data of a report.

    policies: ratios refer to the first. folders: run directories with per-job records. detail: those of them to show
    in detail. exact: the scenario is not random. gpus: of the cluster, NaN when unknown or different. level: of the
    intervals. about: facts in the ledger of a sweep. answer: of a comparison. points, trends: of a sweep. tornado: of
    a sensitivity study. unit: the unit of `seeds`, by which results are paired: seeds, or traces.
    """

    kind: Literal["run", "comparison", "sweep"]
    path: Path
    title: str
    policies: tuple[str, ...]
    seeds: int
    rows: tuple[StudyRow, ...]
    folders: tuple[RunFolder, ...]
    detail: tuple[RunFolder, ...]
    failures: tuple[FailedRun, ...] = ()
    failed: int = 0
    notes: tuple[str, ...] = ()
    noise_free: bool = False
    exact: bool = False
    gpus: float = math.nan
    level: float = CONFIDENCE
    points: tuple[Point, ...] = ()
    trends: tuple[Trend, ...] = ()
    tornado: Mapping[str, Any] | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    unit: str = "seed"
    answer: str = ""

    def row(self, metric: str, policy: str) -> StudyRow | None:
        """That metric under that policy, or None."""
        return next((row for row in self.rows if (row.metric, row.policy) == (metric, policy)), None)

    def mean(self, metric: str, policy: str) -> float:
        """Its mean; NaN when unknown."""
        row = self.row(metric, policy)
        return row.value.mean if row is not None else math.nan

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics in order."""
        return tuple(dict.fromkeys(row.metric for row in self.rows))

    @property
    def main_metric(self) -> str:
        """The main metric: the makespan for one job, else the mean completion time."""
        jobs = max((self.mean("jobs", policy) for policy in self.policies), default=math.nan)
        return "completion_mean_s" if jobs > 1 else "makespan_s"


def read_run_folder(path: Path, policy: str = "", label: str = "") -> RunFolder | None:
    """The run directory at `path`, or None when there is none.

    policy: its name in the study, if different from the name in the run.
    """
    if not (path / MANIFEST).is_file() or not (path / "jobs.parquet").is_file():
        return None
    manifest = read_manifest(path)
    policy, seed = policy or str(manifest.get("policy", "")), int(manifest.get("seed", 0))
    return RunFolder(path, policy, seed, manifest, label or f"{policy}, seed {seed}")


def read_tornado(path: Path) -> Mapping[str, Any] | None:
    """The sensitivity study in the folder of the results, or None. Raises InputError when it is damaged."""
    file = path / SENSITIVITY
    if not file.is_file():
        return None
    content = read_json(file)
    keys = {"key", "low_value", "high_value", "low", "high"}
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and keys <= row.keys() for row in rows):
        raise InputError([f"{file}: is damaged: needs metric, base and rows with {', '.join(sorted(keys))}"])
    return content


def read_config(folders: Sequence[RunFolder]) -> Mapping[str, Any] | None:
    """The resolved scenario of the first run directory, or None when it is not there."""
    for folder in folders[:1]:
        path = folder.path / "config.yaml"
        if path.is_file():
            data = read_tree(read_text(path), str(path)).data
            return data if isinstance(data, dict) else None
    return None


def first_of_each_policy(folders: Sequence[RunFolder], most: int = 8) -> tuple[RunFolder, ...]:
    """The first run of each policy, of the first few policies."""
    first: dict[str, RunFolder] = {}
    for folder in folders:
        first.setdefault(folder.policy, folder)
    return tuple(first.values())[:most]


def in_order(text: str) -> tuple[float, str]:
    """Key to sort by: numbers and quantities by size ("30 min" before "3 h"), then other text."""
    for quantity in (strict_float, TIME.parse, DATA_RATE.parse, SIZE.parse, SHARE.parse):
        try:
            return quantity(text), text
        except ValueError:
            continue
    return math.inf, text
