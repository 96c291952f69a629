"""How users, accounts and queues fared under each policy, as small tables of a report."""

from __future__ import annotations

from typing import Any

from equipoise.sim.fairness import KINDS, groups
from equipoise.sim.record import read_parquet
from equipoise.study.display import digits, show
from equipoise.study.report.study import RunFolder, Study, first_of_each_policy
from equipoise.study.report.tables import table

LISTED = 20


def fairness_tables(study: Study) -> str:
    """A table for users, accounts, queues and partitions each, where jobs tell; the first run of each policy."""
    folders = first_of_each_policy(study.folders)
    found = [(folder, _groups(folder)) for folder in folders]
    return "".join(
        _table(kind, [(folder.policy, of[kind]) for folder, of in found if of.get(kind)]) for kind in KINDS
    )


def _groups(folder: RunFolder) -> dict[str, list[dict[str, Any]]]:
    path = folder.path / "jobs.parquet"
    jobs = read_parquet(path) if path.is_file() else {}
    return {kind: groups(jobs, kind) for kind in KINDS} if jobs else {}


def _table(kind: str, runs: list[tuple[str, list[dict[str, Any]]]]) -> str:
    names = [row[kind] for row in runs[0][1]] if runs else []
    if len(names) < 2:
        return ""
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
                ["-", "-"]
                if row is None
                else [show("_s", row["queueing_mean_s"]), digits(row["finish_ratio_mean"])]
            )
        lines.append(cells)
    more = f", the {LISTED} of {len(names)} with most service" if len(names) > LISTED else ""
    return table(
        f"By {kind}{more}: mean waiting, and mean time to completion over time running", header, lines
    )
