"""Fairness between users, accounts and queues under each policy: charts and small tables of a report."""

from __future__ import annotations

from typing import Any

from equipoise.sim.fairness import KINDS, groups
from equipoise.sim.record import read_parquet
from equipoise.study.display import digits, show
from equipoise.study.report.chart import Axis, Chart, ChartSeries, time_unit
from equipoise.study.report.study import RunFolder, Study, first_of_each_policy
from equipoise.study.report.tables import table

LISTED = 20
DRAWN = 400
Runs = list[tuple[str, list[dict[str, Any]]]]


def fairness_charts(study: Study) -> list[Chart]:
    """Waiting against GPU time of users, accounts, queues and partitions, a dot each, where jobs declare them."""
    return [_chart(study, kind, runs) for kind, runs in _by_kind(study)]


def fairness_tables(study: Study) -> str:
    """The same as tables, with finish-time ratios."""
    return "".join(_table(kind, runs) for kind, runs in _by_kind(study))


def _by_kind(study: Study) -> list[tuple[str, Runs]]:
    """(kind, (policy, groups) of the first run of each policy), where there are two groups or more."""
    found = [(folder.policy, _groups(folder)) for folder in first_of_each_policy(study.folders)]
    runs = [(kind, [(policy, of[kind]) for policy, of in found if of.get(kind)]) for kind in KINDS]
    return [(kind, of) for kind, of in runs if of and len(of[0][1]) > 1]


def _groups(folder: RunFolder) -> dict[str, list[dict[str, Any]]]:
    path = folder.path / "jobs.parquet"
    jobs = read_parquet(path) if path.is_file() else {}
    return {kind: groups(jobs, kind) for kind in KINDS} if jobs else {}


def _chart(study: Study, kind: str, runs: Runs) -> Chart:
    unit = time_unit(max(row["queueing_mean_s"] for _, rows in runs for row in rows))
    series = tuple(
        ChartSeries(
            policy,
            [row["service_gpu_s"] / 3600 for row in rows[:DRAWN]],
            [row["queueing_mean_s"] / unit.seconds for row in rows[:DRAWN]],
            colour=study.policies.index(policy),
            labels=[row[kind] for row in rows[:DRAWN]],
        )
        for policy, rows in runs
    )
    told = "; ".join(
        f"{policy}: " + ", ".join(f"{row[kind]} waits {show('_s', row['queueing_mean_s'])}" for row in rows[:3])
        for policy, rows in runs[:4]
    )
    most = max(len(rows) for _, rows in runs)
    return Chart(
        f"fairness-{kind}",
        "scatter",
        f"Waiting by {kind}",
        told,
        Axis("GPU hours held"),
        Axis(f"mean waiting ({unit.name})"),
        series,
        note=f"A dot is one {kind}; the first run of each policy."
        + (f" The {DRAWN} with most GPU time of {most:,}." if most > DRAWN else ""),
    )


def _table(kind: str, runs: Runs) -> str:
    names = [row[kind] for row in runs[0][1]]
    of = [(policy, {row[kind]: row for row in rows}) for policy, rows in runs]
    header = [
        kind,
        "jobs",
        "GPU hours",
        *(f"{policy}: {what}" for policy, _ in of for what in ("waiting", "finish ratio")),
    ]
    lines = []
    for name in names[:LISTED]:
        first = of[0][1][name]
        cells = [name, str(first["jobs"]), f"{first['service_gpu_s'] / 3600:.1f}"]
        for _, rows in of:
            row = rows.get(name)
            cells += (
                ["-", "-"] if row is None else [show("_s", row["queueing_mean_s"]), digits(row["finish_ratio_mean"])]
            )
        lines.append(cells)
    more = f", the {LISTED} of {len(names)} with most GPU time" if len(names) > LISTED else ""
    return table(f"By {kind}{more}: mean waiting, and mean time to completion over time running", header, lines)
