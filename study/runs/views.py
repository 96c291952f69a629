"""What can be asked in SQL of a folder: a sweep, a comparison, or one run directory.

`runs` has a row per run, `jobs` a row per run and job, and where timelines were kept `segments`, `holdings`,
`usage`, `links`, `events` and `gpus` have their rows, each with the `id` of its run. A condition on `id` reads
that run's file only, and one on `job_id` the few row groups that can hold the job (Parquet statistics and Bloom
filters), so that one job's slice of ten million rows takes a fraction of a second.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from equipoise.sim.record import TIMELINE_TABLES

COMPARISON, SUMMARY = "comparison.json", "summary.json"


def text(path: Path) -> str:
    """A path as an SQL string."""
    return "'" + str(path).replace("'", "''") + "'"


def add_kept(connection: duckdb.DuckDBPyConnection, pattern: Path, identity: str) -> None:
    """Views of the run directories that match a glob pattern; none where there are no such files.

    identity: SQL for the run's id from the column `folder`, the run directory's path.
    """
    _view(connection, "jobs", pattern / "jobs.parquet", identity, depth=1)
    for name in TIMELINE_TABLES:
        _view(connection, name, pattern / "timeline" / f"{name}.parquet", identity, depth=2)


def _view(connection: duckdb.DuckDBPyConnection, name: str, files: Path, identity: str, depth: int) -> None:
    if not connection.execute(f"SELECT 1 FROM glob({text(files)}) LIMIT 1").fetchall():
        return
    run_id = identity.format(parts=f"parse_path(filename)[:-{depth + 1}]")  # of the run directory
    found = f"SELECT {run_id} AS id FROM (SELECT file AS filename FROM glob({text(files)}))"
    former = f"SELECT 1 FROM ({found}) WHERE id NOT IN (SELECT id FROM runs) LIMIT 1"
    strange = identity != OF_RUN and bool(connection.execute(former).fetchall())
    connection.execute(
        f"CREATE VIEW {name} AS SELECT {run_id} AS id, * EXCLUDE (filename) "
        f"FROM read_parquet({text(files)}, filename = true, union_by_name = true)"
        + (
            f" WHERE {run_id} IN (SELECT id FROM runs)" if strange else ""
        )  # of an earlier study in this folder
    )


OF_SWEEP = "{parts}[-1]"  # OUT/runs/ID
OF_COMPARISON = "{parts}[-2] || '/' || {parts}[-1]"  # OUT/POLICY/seed-N
OF_RUN = "({parts})[-1]"  # any folder


def add_comparison(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Views of a comparison: `runs` from `comparison.json`, the rest from what was kept of each run.

    The id of a run is the name of its directory, `POLICY/seed-N`.
    """
    from equipoise.study.runs.execute import Task  # loads the simulator

    content = f"read_json({text(folder / COMPARISON)}, maximum_object_size = 1000000000)"
    policies = connection.execute(f"SELECT unnest(policies) FROM {content}").fetchall()
    connection.execute("CREATE TABLE folders_ (policy VARCHAR, folder VARCHAR)")
    for (policy,) in policies:
        connection.execute(
            "INSERT INTO folders_ VALUES (?, ?)", [policy, Task(policy, 0).folder(Path()).parts[0]]
        )
    connection.execute(
        "CREATE VIEW runs AS SELECT f.folder || '/seed-' || r.seed AS id, r.policy AS policy, r.seed AS seed, "
        f"r.identity AS identity, unnest(r.metrics) FROM (SELECT unnest(runs) AS r FROM {content}) "
        "JOIN folders_ f ON f.policy = r.policy"
    )
    add_kept(connection, folder / "*" / "seed-*", OF_COMPARISON)


def add_run(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Views of one run directory: `runs` has its one row."""
    connection.execute(
        f"CREATE VIEW runs AS SELECT * EXCLUDE (totals, notes) FROM read_json({text(folder / SUMMARY)})"
    )
    add_kept(connection, folder, OF_RUN)
