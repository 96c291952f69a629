"""Results by size of job and by type of GPU, which a mean over all jobs hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.base.database import database
from equipoise.study.display import show
from equipoise.study.report.study import Study
from equipoise.study.report.tables import columns, table
from equipoise.study.report.timeline import literal

POLICIES_SHOWN = 6
EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Largest GPU counts of the classes."""
MEASURES = (("queueing_s", "Waiting"), ("completion_s - arrival_s", "Completion time"))
_SIZE = " ".join(f"WHEN gpus <= {edge} THEN {edge}" for edge in EDGES)
Cell = tuple[int, float, float]


def by_size(study: Study) -> str:
    """Two tables as HTML: waiting and completion time by GPUs of the job; "" where all jobs are of one size."""
    return _tables(study, f"CASE {_SIZE} ELSE {EDGES[-1] + 1} END", "GPUs", "GPUs of the job")


def by_type(study: Study) -> str:
    """The tables by the type of GPU that jobs ran on; "" where all GPUs are of one type."""
    return _tables(study, "ran_on", "type of GPU", "type of GPU")


def _tables(study: Study, key: str, head: str, title: str) -> str:
    policies = columns(study)[:POLICIES_SHOWN] if study.folders else []
    of = {p: [f.path / "jobs.parquet" for f in study.folders if f.policy == p] for p in policies}
    if not all(of.values()) or not policies:
        return ""
    made = []
    for column, what in MEASURES:
        found = {p: _classes(paths, key, column) for p, paths in of.items()}
        names = sorted({name for classes in found.values() for name in classes})
        if len(names) < 2:
            return ""
        rows = [_row(name, [found[p].get(name) for p in policies]) for name in names]
        made.append(table(f"{what} by {title}: mean, and 95th percentile below it", (head, "jobs", *policies), rows))
    return "".join(made)


def _row(name: int | str, cells: Sequence[Cell | None]) -> list[str]:
    counts = sorted({0 if cell is None else cell[0] for cell in cells})
    jobs = f"{counts[0]:,}" + (f" to {counts[-1]:,}" if len(counts) > 1 else "")
    shown = [
        "-" if cell is None or math.isnan(cell[1]) else f"{show('x_s', cell[1])}\n{show('x_s', cell[2])}"
        for cell in cells
    ]
    return [_name(name) if isinstance(name, int) else name, jobs, *shown]


def _name(size: int) -> str:
    """The class that ends at `size`: "1", "3 to 4", "over 1024"."""
    if size > EDGES[-1]:
        return f"over {EDGES[-1]}"
    k = EDGES.index(size)
    least = EDGES[k - 1] + 1 if k else 1
    return str(size) if least == size else f"{least} to {size}"


def _classes(paths: Sequence[Path], key: str, column: str) -> dict[Any, Cell]:
    """(jobs, mean, 95th percentile) of completed jobs by class, runs pooled; empty where the key is unknown."""
    of = f"read_parquet([{', '.join(literal(p) for p in paths)}], union_by_name=true)"
    query = (
        f"SELECT name, count(*), avg(v), quantile_cont(v, 0.95) FROM (SELECT {key} AS name, {column} AS v "
        f"FROM {of} WHERE NOT isnan(completion_s)) WHERE name IS NOT NULL GROUP BY name"
    )
    with database() as db:
        known = {row[0] for row in db.execute(f"DESCRIBE SELECT * FROM {of}").fetchall()}
        if key.isidentifier() and key not in known:
            return {}
        return {name: (int(n), float(mean), float(p95)) for name, n, mean, p95 in db.execute(query).fetchall()}
