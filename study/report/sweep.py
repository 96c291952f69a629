"""A sweep as a study: everything is aggregated by SQL, so 100,000 runs cost no more than their columns.

Points are fixed strata (Cochran 1977, Sampling Techniques, section 5): a mean is the mean over points of the
means over seeds, its variance the sum of the points' variances over the square of their number, its degrees of
freedom those of Satterthwaite. With one seed per point there is no interval; a point that is not random has the
variance 0, and adds no uncertainty.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from equipoise.base.json_values import number
from equipoise.sim.scenario.tree import InputError, read_tree
from equipoise.study.display import METRICS
from equipoise.study.folders import LEDGER, RUNS, reading
from equipoise.study.report.study import (
    UNKNOWN,
    FailedRun,
    Point,
    RunFolder,
    Study,
    StudyRow,
    Trend,
    first_of_each_policy,
    in_order,
    read_config,
    read_run_folder,
    read_tornado,
)
from equipoise.study.runs.store import FIXED, connect, quoted
from equipoise.study.runs.sweep_spec import varied_keys
from equipoise.study.statistics import CONFIDENCE, Interval, t_quantile

POINTS_READ = 20_000
FOLDERS_READ = 1000
FAILURES_SHOWN = 100
TREND_VALUES = 60
POINT_METRICS = (
    "makespan_s",
    "completion_mean_s",
    "queueing_mean_s",
    "cost_usd",
    "gpus",
    "goodput_ratio",
    "idle_ratio",
    "energy_j",
    "completed",
    "jobs",
)
_NUMERIC = ("DOUBLE", "BIGINT", "INTEGER", "FLOAT", "HUGEINT")


def read_sweep_study(path: Path) -> Study:
    """The sweep in a folder. Raises InputError when it cannot be read."""
    try:
        about, failed, failures = _ledger(path)
        with connect(path) as connection:
            return _study(path, connection, about, failed, failures)
    except (duckdb.Error, sqlite3.Error) as error:
        raise InputError([f"{path / LEDGER}: cannot be read: {' '.join(str(error).split())}"]) from error


def _scenario(about: Mapping[str, str]) -> Mapping[str, Any] | None:
    """The scenario of the first point, as stored by the sweep."""
    data = read_tree(about["scenario"], "the sweep's scenario").data if "scenario" in about else None
    return data if isinstance(data, dict) else None


def _ledger(path: Path) -> tuple[dict[str, str], int, tuple[FailedRun, ...]]:
    """Facts about the sweep, the number of failed runs, and the first of them."""
    with reading(path / LEDGER) as db:
        about = dict(db.execute("SELECT key, value FROM about ORDER BY key").fetchall())
        failed = int(db.execute("SELECT count(*) FROM runs WHERE status = 'failed'").fetchone()[0])
        rows = db.execute(
            "SELECT id, point, policy, seed, error FROM runs WHERE status = 'failed' ORDER BY number LIMIT ?",
            (FAILURES_SHOWN,),
        ).fetchall()
    told = [FailedRun(f"point {p}, {policy}, seed {s} ({key})", str(why)) for key, p, policy, s, why in rows]
    return about, failed, tuple(told)


def _study(
    path: Path, db: duckdb.DuckDBPyConnection, about: Mapping[str, str], failed: int, failures: tuple[FailedRun, ...]
) -> Study:
    spec = read_tree(about.get("sweep", "{}"), "the sweep").data
    spec = spec if isinstance(spec, dict) else {}
    _find_exact(db, about, spec)
    columns = {row[0]: str(row[1]) for row in db.execute("DESCRIBE runs").fetchall()}
    varied = [key for key in varied_keys(spec) if key in columns]
    known = (*FIXED, *varied)
    metrics = [name for name, kind in columns.items() if name not in known and kind in _NUMERIC]
    there = [row[0] for row in db.execute("SELECT policy FROM runs GROUP BY policy ORDER BY min(number)").fetchall()]
    policies = tuple(there)
    runs, seeds = db.execute("SELECT count(*), count(DISTINCT seed) FROM runs").fetchall()[0]
    rows = _rows(db, _as_listed(metrics), policies)
    jobs = max((row.value.mean for row in rows if row.metric == "jobs"), default=math.nan)
    judged = "completion_mean_s" if jobs > 1 else "makespan_s"
    folders = _folders(path, db)
    points = _points(db, varied, metrics)
    notes = [f"{runs} runs of {_count(db, 'point')} points"]
    if len(points) == POINTS_READ:
        notes.append(f"trade-off and list of points: the first {POINTS_READ} pairs of point and policy")
    return Study(
        "sweep",
        path,
        str(spec.get("name", path.name)),
        policies,
        int(seeds),
        rows,
        folders,
        first_of_each_policy(folders),
        failures,
        failed,
        tuple(notes),
        points=points,
        trends=_trends(db, varied, judged if judged in metrics else None, policies),
        tornado=read_tornado(path),
        about=about,
        config=read_config(folders) or _scenario(about),
    )


def _find_exact(db: duckdb.DuckDBPyConnection, about: Mapping[str, str], spec: Mapping[str, Any]) -> None:
    """Make the table `exact_points`: those run on one seed by a whole sweep of several seeds.

    These are not random. An unfinished sweep, or one with failed runs there, has no such points.
    """
    seeds = spec.get("seeds", 1)
    whole = "planned" in about and isinstance(seeds, int) and seeds > 1
    rows = int(db.execute("SELECT count(*) FROM runs").fetchall()[0][0])
    one = "HAVING count(*) = count(DISTINCT policy)" if whole and rows == int(about["planned"]) else "HAVING false"
    db.execute(
        f"CREATE OR REPLACE TEMP TABLE exact_points AS SELECT point, true AS exact FROM runs GROUP BY point {one}"
    )


def _as_listed(metrics: Sequence[str]) -> list[str]:
    """Metrics in the order of the other tables, followed by further totals."""
    return [*(m for m in METRICS if m in metrics), *(m for m in metrics if m not in METRICS)]


def _count(db: duckdb.DuckDBPyConnection, column: str) -> int:
    return int(db.execute(f"SELECT count(DISTINCT {quoted(column)}) FROM runs").fetchall()[0][0])


def _stratified(mean: float, variance: float, degrees: float, n: float) -> Interval:
    """Interval of a stratified mean; none without degrees of freedom."""
    if not (math.isfinite(variance) and math.isfinite(degrees) and degrees >= 1):
        flat = variance == 0.0
        return Interval(mean, mean if flat else math.nan, mean if flat else math.nan, int(n))
    half = t_quantile(CONFIDENCE, int(degrees)) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half, int(n))


_STRATA = """
SELECT policy, avg(m), sum(v) / pow(count(*), 2),
       pow(sum(v), 2) / nullif(sum(v * v / nullif(n - 1, 0)), 0), sum(n)
FROM (SELECT policy, point, avg(value) AS m, count(*) AS n,
             CASE WHEN count(*) > 1 THEN var_samp(value) / count(*)
                  WHEN bool_or(exact) THEN 0 END AS v
      FROM ({source}) LEFT JOIN exact_points USING (point) GROUP BY ALL)
GROUP BY policy
"""
# A point with one seed in which something is random has no known variance: then that of the mean is not known.
_WHOLE = "CASE WHEN count(v) = count(*) THEN sum(v) END"


def _intervals(db: duckdb.DuckDBPyConnection, source: str) -> dict[str, Interval]:
    """Stratified mean by policy of `source`, a query with columns policy, point, value."""
    query = _STRATA.replace("sum(v) / pow", f"{_WHOLE} / pow").format(source=source)
    return {
        policy: _stratified(number(mean), number(variance), number(degrees), n)
        for policy, mean, variance, degrees, n in db.execute(query).fetchall()
    }


def _good(metric: str) -> str:
    """SQL condition that a run has that metric."""
    return f"status = 'done' AND isfinite({quoted(metric)})"


def _rows(db: duckdb.DuckDBPyConnection, metrics: Sequence[str], policies: Sequence[str]) -> tuple[StudyRow, ...]:
    found: list[StudyRow] = []
    for metric in metrics:
        column = quoted(metric)
        values = _intervals(db, f"SELECT policy, point, {column} AS value FROM runs WHERE {_good(metric)}")
        ratios = _ratios(db, metric, policies[0]) if len(policies) > 1 else {}
        found += [
            StudyRow(metric, policy, values[policy], ratios.get(policy, UNKNOWN))
            for policy in policies
            if policy in values
        ]
    return tuple(found)


def _ratios(db: duckdb.DuckDBPyConnection, metric: str, first: str) -> dict[str, Interval]:
    """Ratio to the policy `first`, paired by point and seed: geometric mean, where all values are positive."""
    column, quote = quoted(metric), first.replace("'", "''")
    source = (
        f"SELECT a.policy, a.point, ln(a.{column} / b.{column}) AS value FROM runs a JOIN runs b "
        f"ON a.point = b.point AND a.seed = b.seed AND b.policy = '{quote}' "
        f"WHERE a.status = 'done' AND b.status = 'done' AND a.{column} > 0 AND b.{column} > 0 "
        f"AND isfinite(a.{column}) AND isfinite(b.{column})"
    )
    least = db.execute(f"SELECT min({column}) FROM runs WHERE {_good(metric)}").fetchall()[0][0]
    if least is None or not least > 0:
        return {}
    return {
        policy: Interval(math.exp(i.mean), math.exp(i.low), math.exp(i.high), i.n)
        for policy, i in _intervals(db, source).items()
    }


def _points(db: duckdb.DuckDBPyConnection, varied: Sequence[str], metrics: Sequence[str]) -> tuple[Point, ...]:
    """Means of the metrics of each point under each policy, the first `POINTS_READ`."""
    wanted = [m for m in metrics if m in POINT_METRICS]
    means = "".join(f", avg(CASE WHEN isfinite({quoted(m)}) THEN {quoted(m)} END)" for m in wanted)
    values = "".join(f", any_value({quoted(key)})" for key in varied)
    found = db.execute(
        f"SELECT point, policy{values}{means} FROM runs WHERE status = 'done' GROUP BY point, policy "
        f"ORDER BY point, min(number) LIMIT {POINTS_READ}"
    ).fetchall()
    split = 2 + len(varied)
    return tuple(
        Point(
            int(row[0]),
            str(row[1]),
            {key: _text(value) for key, value in zip(varied, row[2:split], strict=True)},
            {m: number(value) for m, value in zip(wanted, row[split:], strict=True)},
        )
        for row in found
    )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)


def _trends(
    db: duckdb.DuckDBPyConnection, varied: Sequence[str], metric: str | None, policies: Sequence[str]
) -> tuple[Trend, ...]:
    """Mean of the metric over each varied key that takes 2 to 60 values."""
    if metric is None:
        return ()
    trends = []
    for key in varied:
        if _count(db, key) > TREND_VALUES:
            continue
        found = db.execute(
            f"SELECT {quoted(key)}, policy, avg({quoted(metric)}) FROM runs WHERE {_good(metric)} "
            f"AND {quoted(key)} IS NOT NULL GROUP BY ALL"
        ).fetchall()
        means = {(_text(value), policy): number(mean) for value, policy, mean in found}
        values = sorted({value for value, _ in means}, key=in_order)
        if len(values) < 2:
            continue
        halves = _halves(db, key, metric)
        trends.append(
            Trend(
                key,
                metric,
                tuple(values),
                {p: [means.get((v, p), math.nan) for v in values] for p in policies},
                {p: [halves.get((v, p), math.nan) for v in values] for p in policies},
            )
        )
    return tuple(trends)


def _halves(db: duckdb.DuckDBPyConnection, key: str, metric: str) -> dict[tuple[str, str], float]:
    """Half the interval of each mean over a varied key, by (value, policy); each point is a stratum."""
    listed = f"SELECT DISTINCT {quoted(key)} FROM runs WHERE {quoted(key)} IS NOT NULL ORDER BY ALL"
    found: dict[tuple[str, str], float] = {}
    for number_, (value,) in enumerate(db.execute(listed).fetchall()):
        source = (
            f"SELECT policy, point, {quoted(metric)} AS value FROM runs WHERE {_good(metric)} AND {quoted(key)} = "
            f"({listed} LIMIT 1 OFFSET {number_})"
        )
        found |= {(_text(value), policy): i.half_width for policy, i in _intervals(db, source).items()}
    return found


def _folders(path: Path, db: duckdb.DuckDBPyConnection) -> tuple[RunFolder, ...]:
    """Run directories that were kept, in the order of the sweep, at most `FOLDERS_READ`."""
    if not (path / RUNS).is_dir():
        return ()
    order = db.execute(
        f"SELECT id, policy, seed, point FROM runs ORDER BY point, seed, number LIMIT {FOLDERS_READ}"
    ).fetchall()
    found = []
    for key, policy, seed, point in order:
        folder = read_run_folder(path / RUNS / str(key), policy, f"{policy}, point {point}, seed {seed}")
        if folder is not None:
            found.append(folder)
    return tuple(found)
