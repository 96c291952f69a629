"""MLPerf Storage: utilisation of accelerators fed from storage, and MLPerf HPC: staging by many jobs at once.

Utilisation: c / (c + x) with c the seconds of computing a batch and x the stall that is left when storage keeps up,
by workload, from half of the systems. Naive: no stall. The benchmark's rules ask for 90 %, so that rows lie between
90 and 100 %.

Staging: jobs at once share the file system's rate: a job takes its time alone or J D, whichever is longer, with J
jobs and D the seconds of the file system for one job's data. D comes from one contended point of the system and
benchmark; the time alone from runs by themselves. Naive: as if alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.sim.llm.interval import spread
from equipoise.study.validation.rows import read_csv
from equipoise.study.validation.score import Line, Score, judge, line
from equipoise.study.validation.splits import SPLITS, bucket, fitted_half

INPUT = "storage/mlperf_storage_input.csv.gz"
STAGING = "storage/mlperf_hpc_staging.csv.gz"


@dataclass(frozen=True, slots=True)
class Fed:
    """A run of accelerators that are fed: its system, what it trains, seconds of a batch, measured utilisation."""

    system: str
    key: str
    workload: str
    compute_s: float
    utilisation: float


def read_input(data: Path) -> list[Fed]:
    """Rows that state workload and computing time. Raises FileNotFoundError, KeyError."""
    return [
        Fed(
            f"{t['submitter']} {t['system']}",
            f"{t['submitter']} {t['system']} {t['workload']} {t['accelerator']} {t['accelerators']}",
            f"{t['workload']} {t['accelerator']}",
            float(t["compute_time_s"]),
            float(t["au_percent"]) / 100,
        )
        for t in read_csv(data / INPUT)
        if t["workload"] and t["compute_time_s"] and t["au_percent"]
    ]


def run_input(data: Path) -> list[Line]:
    """Half of the systems predict the utilisation on the others."""
    rows = read_input(data)
    return [
        line("MLPerf Storage: half of the systems -> utilisation", 0.08, [_input(rows, s) for s in SPLITS])
    ]


def _input(rows: Sequence[Fed], split: int) -> Score:
    known = [r for r in rows if fitted_half(r.system, split)]
    stalls: dict[str, list[float]] = defaultdict(list)
    for r in known:
        for name in (r.workload, ""):
            stalls[name].append(r.compute_s * (1 / r.utilisation - 1))
    asked = [r for r in rows if not fitted_half(r.system, split)]

    def guess(of: Sequence[Fed]) -> np.ndarray:
        """Utilisation by the stalls of each workload."""
        stall = [float(np.median(stalls.get(r.workload) or stalls[""])) for r in of]
        return np.array([r.compute_s / (r.compute_s + x) for r, x in zip(of, stall, strict=True)])

    residuals = np.log([r.utilisation for r in known] / guess(known))
    factors = spread(residuals, [r.system for r in known])
    measured = np.array([r.utilisation for r in asked])
    return judge([r.key for r in asked], guess(asked), np.ones(len(asked)), measured, factors)


@dataclass(frozen=True, slots=True)
class Staged:
    """Jobs of a system that stage at once: median seconds of one."""

    system: str
    key: str
    nodes: float
    jobs: int
    seconds: float


def read_staging(data: Path) -> list[Staged]:
    """Every point with staging times: runs by themselves (one job) and many at once."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for t in read_csv(data / STAGING):
        if t["staging_s"]:
            found[tuple(t[n] for n in ("submitter", "system", "scaling", "benchmark", "nodes"))].append(
                float(t["staging_s"])
            )
    return [
        Staged(
            f"{submitter} {system.split('_')[0]} {benchmark}",
            f"{submitter} {system} {benchmark} {nodes}",
            float(nodes),
            len(times) if scaling == "weak" else 1,
            float(np.median(times)),
        )
        for (submitter, system, scaling, benchmark, nodes), times in found.items()
    ]


def run_staging(data: Path) -> list[Line]:
    """Runs alone and one contended point of a system predict its other contended points."""
    points = read_staging(data)
    scores = [s for s in (_staging(points, split) for split in SPLITS) if s is not None]
    what = "MLPerf HPC staging: alone, one contended point -> many jobs at once"
    return [line(what, 0.20, scores)] if scores else []


def _staging(points: Sequence[Staged], split: int) -> Score | None:
    rows: list[tuple[str, float, float, float]] = []
    for system in sorted({p.system for p in points}):
        own = [p for p in points if p.system == system]
        alone = [p for p in own if p.jobs == 1]
        many = sorted((p for p in own if p.jobs > 1), key=lambda p: bucket(p.key, split, 2**32))
        if not alone or len(many) < 2:
            continue
        each_s = many[0].seconds / many[0].jobs
        for p in many[1:]:
            nearest = min(alone, key=lambda other: abs(np.log(other.nodes / p.nodes)))
            rows.append((p.key, max(nearest.seconds, p.jobs * each_s), nearest.seconds, p.seconds))
    if not rows:
        return None
    keys, guess, naive, measured = zip(*rows, strict=True)
    no_interval = (np.nan, np.nan)
    found = judge(keys, np.array(guess), np.array(naive), np.array(measured), no_interval)
    return Score(found.rows, found.error, found.naive, np.nan, points=None)
