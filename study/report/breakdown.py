"""Results by size of job: who waits and who finishes late, which a mean over all jobs hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import duckdb

from equipoise.study.display import show
from equipoise.study.report.study import Study
from equipoise.study.report.tables import columns, table
from equipoise.study.report.timeline import literal

POLICIES_SHOWN = 6
EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Largest GPU counts of the classes."""
MEASURES = (
    ("queueing_s", "Waiting by GPUs of the job"),
    ("completion_s - arrival_s", "Completion time by GPUs of the job"),
)


def by_size(study: Study) -> str:
    """Two tables as HTML: waiting and completion time by GPUs of the job; "" where all jobs are of one size."""
    policies = columns(study)[:POLICIES_SHOWN] if study.folders else []
    of = {p: [f.path / "jobs.parquet" for f in study.folders if f.policy == p] for p in policies}
    if not all(of.values()) or not policies:
        return ""
    made = []
    for column, title in MEASURES:
        found = {p: _classes(paths, column) for p, paths in of.items()}
        sizes = sorted({size for classes in found.values() for size in classes})
        if len(sizes) < 2:
            return ""
        rows = [_row(size, [found[p].get(size) for p in policies]) for size in sizes]
        made.append(table(f"{title}: mean, and 95th percentile below it", ("GPUs", "jobs", *policies), rows))
    return "".join(made)


def _row(size: int, cells: Sequence[tuple[int, float, float] | None]) -> list[str]:
    jobs = next((cell[0] for cell in cells if cell is not None), 0)
    shown = [
        "-" if cell is None or math.isnan(cell[1]) else f"{show('x_s', cell[1])}\n{show('x_s', cell[2])}"
        for cell in cells
    ]
    return [_name(size), f"{jobs:,}", *shown]


def _name(size: int) -> str:
    """The class that ends at `size`: "1", "3 to 4", "over 1024"."""
    if size > EDGES[-1]:
        return f"over {EDGES[-1]}"
    k = EDGES.index(size)
    least = EDGES[k - 1] + 1 if k else 1
    return str(size) if least == size else f"{least} to {size}"


def _classes(paths: Sequence[Path], column: str) -> dict[int, tuple[int, float, float]]:
    """(jobs, mean, 95th percentile) of completed jobs by the largest GPU count of their class, runs pooled."""
    edges = " ".join(f"WHEN gpus <= {edge} THEN {edge}" for edge in EDGES)
    query = (
        f"SELECT CASE {edges} ELSE {EDGES[-1] + 1} END AS size, count(*), avg(v), quantile_cont(v, 0.95) "
        f"FROM (SELECT gpus, {column} AS v FROM read_parquet([{', '.join(literal(p) for p in paths)}]) "
        "WHERE NOT isnan(completion_s)) GROUP BY size"
    )
    with duckdb.connect(config={"threads": "2"}) as db:
        return {
            int(size): (int(n), float(mean), float(p95))
            for size, n, mean, p95 in db.execute(query).fetchall()
        }
