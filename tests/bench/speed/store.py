"""How fast stored results can be asked: python -m tests.bench.speed.store [--runs 100000] [--rows 10000000]

A group-by over the runs of a sweep, and one job's slice of a timeline, both as `equipoise query` and
`study.runs.store.connect` ask them; what is measured is the statement, on an open connection, the worst of several.
Rows are drawn here, written by the ledger's own export and to the timeline's own schema.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from equipoise.base.database import database
from equipoise.study.runs.store import Ledger, connect
from equipoise.study.runs.views import text

GROUP_BY = (
    'SELECT policy, "noise.step_cov", avg(makespan_s), quantile_cont(completion_p95_s, 0.9) FROM runs GROUP BY ALL'
)
SLICE = "SELECT * FROM segments WHERE id = 'run-1' AND job_id = {job} ORDER BY segment"
_STRETCHES = 10
_USES = ("busy", "input_stall", "barrier_wait", "exposed_communication", "restart", "lost_to_faults")


def fill_ledger(folder: Path, runs: int) -> None:
    """A ledger of `runs` runs with the columns of a real sweep."""
    rng = np.random.default_rng(1)
    names = [f"metric_{k}_ratio" for k in range(30)]
    values = rng.random((runs, len(names) + 2)).tolist()
    rows = (
        {
            "id": f"{k:016x}",
            "number": k,
            "point": k // 40,
            "policy": f"policy-{k % 4}",
            "seed": k // 4 % 10,
            "status": "done",
            "attempts": 1,
            "cpu_s": 0.1,
            "wall_s": 0.1,
            "noise.step_cov": k // 40 % 7 / 10,
            "makespan_s": 1e4 * values[k][0],
            "completion_p95_s": 5e3 * values[k][1],
            **dict(zip(names, values[k][2:], strict=True)),
        }
        for k in range(runs)
    )
    with Ledger(folder) as ledger:
        ledger.put_all(rows)
        ledger.export()


def fill_timeline(folder: Path, run: str, rows: int, *, shuffled: bool = False) -> int:
    """`segments.parquet` of a run with `rows` rows; returns the number of jobs.

    shuffled: ids are not in the order of the rows, as in a trace with ids of its own.
    """
    target = folder / "runs" / run / "timeline" / "segments.parquet"
    target.parent.mkdir(parents=True)
    jobs = max(1, rows // _STRETCHES)
    job = f"(i // {_STRETCHES}) * 7919 % {jobs}" if shuffled else f"i // {_STRETCHES}"
    uses = ", ".join(f"random() AS {use}_gpu_s" for use in _USES)
    with database() as connection:
        connection.execute(
            f"COPY (SELECT ({job})::BIGINT AS job_id, (i % {_STRETCHES})::INTEGER AS segment, "
            "CASE WHEN i % 2 = 0 THEN 'queued' ELSE 'running' END AS state, i * 1.0 AS start_s, "
            "i + random() AS end_s, 8::INTEGER AS gpus, 1::INTEGER AS nodes, "
            f"(i * 31 % 4096)::INTEGER AS first_gpu, 'completed' AS end_reason, {uses} "
            f"FROM range({rows}) t(i)) TO {text(target)} "
            "(FORMAT parquet, COMPRESSION zstd)"
        )
    return jobs


def worst_s(connection: duckdb.DuckDBPyConnection, statements: list[str]) -> float:
    """The longest of the statements, in wall seconds; the first run of each counts."""
    longest = 0.0
    for sql in statements:
        began_s = time.perf_counter()
        connection.execute(sql).fetchall()
        longest = max(longest, time.perf_counter() - began_s)
    return longest


def measure(runs: int, rows: int, others: int) -> dict[str, float]:
    """Times of a group-by and of slices; `others`: more kept runs, which a slice must not read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill_ledger(folder, runs)
        jobs = fill_timeline(folder, "run-1", rows)
        for k in range(others):
            fill_timeline(folder, f"other-{k}", 1000)
        with connect(folder) as connection:
            grouped_s = worst_s(connection, [GROUP_BY] * 5)
            asked = [SLICE.format(job=jobs * k // 7) for k in range(7)]
            sliced_s = worst_s(connection, asked)
        with tempfile.TemporaryDirectory() as second:
            fill_ledger(Path(second), 1)
            fill_timeline(Path(second), "run-1", rows, shuffled=True)
            with connect(second) as connection:
                shuffled_s = worst_s(connection, asked)
    return {
        "runs": runs,
        "group_by_ms": 1e3 * grouped_s,
        "timeline_rows": rows,
        "kept_runs": others + 1,
        "slice_ms": 1e3 * sliced_s,
        "slice_of_shuffled_ids_ms": 1e3 * shuffled_s,
    }


def main() -> None:
    """Print one measurement as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--others", type=int, default=100, help="further kept runs")
    given = parser.parse_args()
    print(json.dumps(measure(given.runs, given.rows, given.others), indent=2))


if __name__ == "__main__":
    main()
