"""Progress of a running sweep or comparison, read from its ledger."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from equipoise.sim.scenario.tree import InputError
from equipoise.study.display import show
from equipoise.study.folders import LEDGER

FAILURES_SHOWN = 3
_MEANS = {"completion_mean_s": "mean completion time", "makespan_s": "mean makespan"}


@dataclass(frozen=True)
class Standing:
    """Progress of a study.

    planned: total runs, or None where unknown (shards). leaders: (policy, its mean in words).
    """

    name: str
    done: int
    failed: int
    planned: int | None
    metric: str
    leaders: tuple[tuple[str, str], ...]
    failures: tuple[str, ...]

    @property
    def ended(self) -> bool:
        """Whether every planned run has ended."""
        return self.planned is not None and self.done + self.failed >= self.planned

    def text(self, runs_per_s: float = math.nan) -> str:
        """A few lines for a terminal; `runs_per_s` gives the time left."""
        of = "" if self.planned is None else f" of {self.planned}"
        rate = ""
        if runs_per_s > 0:
            rate = f", {runs_per_s:.3g} runs/s"
            if self.planned is not None and not self.ended:
                rate += f", {show('x_s', (self.planned - self.done - self.failed) / runs_per_s)} left"
        lines = [f"{self.name}: {self.done + self.failed}{of} runs, {self.failed} failed{rate}"]
        if self.leaders:
            listed = "; ".join(f"{policy} {value}" for policy, value in self.leaders)
            lines.append(f"{_MEANS[self.metric]} so far: {listed}")
        return "\n".join([*lines, *(f"failed: {text}" for text in self.failures)])


def standing(folder: Path) -> Standing:
    """Progress of the study in `folder`; writes nothing.

    Raises InputError for a missing or damaged study.
    """
    path = folder / LEDGER
    if not path.is_file():
        raise InputError([f"{folder}: no sweep or comparison here yet (no {LEDGER})"])
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            return _standing(folder, db)
    except sqlite3.Error as error:
        raise InputError([f"{path}: cannot be read: {error}"]) from error


def _standing(folder: Path, db: sqlite3.Connection) -> Standing:
    about = dict(db.execute("SELECT key, value FROM about").fetchall())
    counts = dict(db.execute("SELECT status, count(*) FROM runs GROUP BY status").fetchall())
    columns = {row[1] for row in db.execute("PRAGMA table_info(runs)").fetchall()}
    metric = ""
    if {"jobs", "completion_mean_s", "makespan_s"} <= columns:
        jobs = db.execute("SELECT max(jobs) FROM runs").fetchone()[0] or 0
        metric = "completion_mean_s" if jobs > 1 else "makespan_s"
    planned = about.get("planned", "")
    failures = db.execute(
        "SELECT policy, seed, error FROM runs WHERE status = 'failed' ORDER BY number DESC LIMIT ?", (FAILURES_SHOWN,)
    ).fetchall()
    return Standing(
        about.get("name") or folder.name,
        int(counts.get("done", 0)),
        int(counts.get("failed", 0)),
        int(planned) if planned.isdigit() else None,
        metric,
        tuple(_leaders(db, metric)) if metric else (),
        tuple(f"{policy} seed {seed}: {error}" for policy, seed, error in failures),
    )


def _leaders(db: sqlite3.Connection, metric: str) -> Sequence[tuple[str, str]]:
    """(policy, mean so far), shortest first; `metric` is one of our column names, never user input."""
    rows = db.execute(
        f'SELECT policy, avg("{metric}") AS m FROM runs WHERE status = \'done\' AND "{metric}" IS NOT NULL '
        "GROUP BY policy ORDER BY m, policy LIMIT 5"
    ).fetchall()
    return [(policy, show(metric, float(mean))) for policy, mean in rows if mean is not None]
