"""MLPerf Storage: utilisation of accelerators fed from storage, and MLPerf HPC: staging by many jobs at once.

Utilisation: c / (c + x) with c the seconds of computing a batch and x the stall that is left when storage keeps up,
by workload, from half of the systems; of a workload that none of them has, the part of c that it is of others.
Naive: no stall. The benchmark's rules ask for 90 %, so that rows lie between 90 and 100 %.

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

from equipoise.study.validation.rows import Cells, read_rows
from equipoise.study.validation.score import Line, Score, judge, line, of_splits, spread_of
from equipoise.study.validation.splits import bucket, fitted_half

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
    return read_rows(data / INPUT, _fed)


def _fed(t: Cells) -> Fed:
    if not t["workload"]:
        raise ValueError("workload: empty")
    return Fed(
        f"{t['submitter']} {t['system']}",
        f"{t['submitter']} {t['system']} {t['workload']} {t['accelerator']} {t['accelerators']}",
        f"{t['workload']} {t['accelerator']}",
        t.measured("compute_time_s"),
        t.measured("au_percent") / 100,
    )


def run_input(data: Path) -> list[Line]:
    """Half of the systems predict the utilisation on the others."""
    rows = read_input(data)
    scores = of_splits(lambda split: _input(rows, split))
    return [line("MLPerf Storage: half of the systems -> utilisation", 0.08, scores)]


def _input(rows: Sequence[Fed], split: int) -> Score:
    known = [r for r in rows if fitted_half(r.system, split)]
    if not known:
        raise ValueError("all systems are held out")
    stalls: dict[str, list[float]] = defaultdict(list)
    for r in known:
        stalls[r.workload].append(r.compute_s * (1 / r.utilisation - 1))
    part = float(np.median([1 / r.utilisation - 1 for r in known]))
    asked = [r for r in rows if not fitted_half(r.system, split)]

    def guess(of: Sequence[Fed]) -> np.ndarray:
        """Utilisation by the stalls of each workload."""
        stall = [float(np.median(stalls[r.workload])) if r.workload in stalls else part * r.compute_s for r in of]
        return np.array([r.compute_s / (r.compute_s + x) for r, x in zip(of, stall, strict=True)])

    residuals = np.log([r.utilisation for r in known] / guess(known))
    factors = spread_of(residuals, [r.system for r in known])
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
    for point, seconds in read_rows(data / STAGING, _staged):
        found[point].append(seconds)
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


def _staged(text: Cells) -> tuple[tuple[str, ...], float] | None:
    """(submitter, system, scaling, benchmark, nodes) and seconds of a run that staged."""
    if not text["staging_s"]:
        return None
    text.measured("nodes")
    place = tuple(text[name] for name in ("submitter", "system", "scaling", "benchmark", "nodes"))
    return place, text.measured("staging_s")


def run_staging(data: Path) -> list[Line]:
    """Runs alone and one contended point of a system predict its other contended points."""
    points = read_staging(data)
    scores = of_splits(lambda split: _staging(points, split))
    return [line("MLPerf HPC staging: alone, one contended point -> many jobs at once", 0.20, scores)]


def _staging(points: Sequence[Staged], split: int) -> Score:
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
        raise ValueError("no system has a run alone and two contended points")
    keys, guess, naive, measured = zip(*rows, strict=True)
    no_interval = (np.nan, np.nan)
    found = judge(keys, np.array(guess), np.array(naive), np.array(measured), no_interval)
    return Score(found.rows, found.error, found.naive, np.nan, points=None)
