"""SQL views of a folder: a sweep, a comparison, or one run directory.

`runs` has a row per run, `jobs` a row per run and job, and if timelines were kept `segments`, `holdings`,
`usage`, `links`, `events` and `gpus` have their rows, each with the `id` of its run. A condition on `id` reads
that run's file only, and one on `job_id` the few row groups that can hold the job (Parquet statistics and Bloom
filters), so that one job's slice of ten million rows takes a fraction of a second.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from equipoise.sim.record import TIMELINE_TABLES


def text(path: Path | str) -> str:
    """A path, or any text, as an SQL string."""
    return "'" + str(path).replace("'", "''") + "'"


def add_kept(connection: duckdb.DuckDBPyConnection, pattern: Path, *, several: bool) -> None:
    """Add views of the run directories that match a glob pattern, if such files exist."""
    files = {"jobs": pattern / "jobs.parquet"}
    files |= {name: pattern / "timeline" / f"{name}.parquet" for name in TIMELINE_TABLES}
    for name, path in files.items():
        if connection.execute(f"SELECT 1 FROM glob({text(path)}) LIMIT 1").fetchall():
            _add_view(connection, name, path, several)


def _add_view(connection: duckdb.DuckDBPyConnection, name: str, files: Path, several: bool) -> None:
    """The rows of all these files, with the name of the run directory as `id`."""
    run_id = f"parse_path(filename)[{-2 if name == 'jobs' else -3}]"
    only = ""
    if several:  # of an earlier study in this folder there may be more
        found = f"SELECT {run_id} AS id FROM (SELECT file AS filename FROM glob({text(files)}))"
        former = f"SELECT 1 FROM ({found}) WHERE id NOT IN (SELECT id FROM runs) LIMIT 1"
        if connection.execute(former).fetchall():
            only = f" WHERE {run_id} IN (SELECT id FROM runs)"
    connection.execute(
        f"CREATE VIEW {name} AS SELECT {run_id} AS id, * EXCLUDE (filename) "
        f"FROM read_parquet({text(files)}, filename = true, union_by_name = true){only}"
    )
