"""How far policies are what they are named after: python -m tests.bench.fidelity [--write]

The authors' published completion times of every job beside ours, on the same jobs (`../shared/data`).
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

import equipoise
from equipoise.study.validation.sets import shockwave

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
PAGE = ROOT / "docs" / "fidelity.md"
ORDERS = ("fifo", "fifo-greedy", "sjf", "sjf-greedy")
EXACT, CLOSE = 0.001, 0.05


class Case(NamedTuple):
    """Completion (s) and arrival (s) of every job, by the authors and by us."""

    policy: str
    source: str
    arrival_s: np.ndarray
    theirs_s: np.ndarray
    ours_s: np.ndarray


def orders(data: Path) -> Iterator[Case]:
    """One virtual cluster of Philly on 48 GPUs, under orders of a queue whose schedule two simulators agree on."""
    nodes = [{"name": "node", "count": 1, "gpus": 48}]
    trace = data / "schedules" / "C1_philly_0e4a51.csv.gz"
    case = {"schema_version": 1, "name": "C1", "cluster": {"nodes": nodes}, "workload": {"trace": {"file": str(trace)}}}
    free = {"restart": {"initialisation": 0, "detection": 0, "checkpoint_write": 0}}
    for policy in ORDERS:
        run = equipoise.run(case | free, policy=policy)
        with gzip.open(data / "schedules" / f"ref_C1_{policy}.csv.gz", "rt", newline="") as file:
            rows = {row["job_id"]: float(row["completion_s"]) for row in csv.DictReader(file)}
        theirs = np.array([rows[str(name)] for name in run.jobs["name"]])
        yield Case(policy, "Philly, 1,435 jobs, 48 GPUs", run.jobs["arrival_s"], theirs, run.jobs["completion_s"])


def rounds(data: Path) -> Iterator[Case]:
    """The jobs of Shockwave's evaluation in its authors' simulator, which has Gavel's policies too."""
    times: dict[str, dict[int, float]] = {}
    with gzip.open(data / shockwave.TIMES, "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row["mode"] == "simulation" and row["policy"] != "allox":  # no policy of ours has its name
                times.setdefault(row["policy"], {})[int(row["job_id"])] = float(row["jct_s"])
    for name, own in sorted(times.items()):
        jobs = [job for job in shockwave.read_jobs(data, name) if job.number in own]
        ours = shockwave.completions_s(jobs, shockwave.POLICIES[name])
        arrival = np.array([job.arrival_s for job in jobs])
        theirs, mine = (np.array([found[job.number] for job in jobs]) for found in (own, ours))
        source = f"Shockwave's simulator ({name})"
        yield Case(shockwave.POLICIES[name], source, arrival, arrival + theirs, arrival + mine)


def rows(data: Path) -> Iterator[list[str]]:
    """The table."""
    yield ["policy", "input", "mean, authors", "ours", "makespan, authors", "ours", "rank correlation", "verdict"]
    for case in (*orders(data), *rounds(data)):
        means = [float((done - case.arrival_s).mean()) / 3600.0 for done in (case.theirs_s, case.ours_s)]
        ends = [float(done.max() - case.arrival_s.min()) / 3600.0 for done in (case.theirs_s, case.ours_s)]
        rank = float(spearmanr(case.theirs_s - case.arrival_s, case.ours_s - case.arrival_s)[0])
        off = max(abs(b / a - 1.0) for a, b in (means, ends))
        verdict = "exact" if off < EXACT and rank > 0.9999 else "faithful" if off < CLOSE and rank > 0.9 else "like"
        cells = [f"{value:.2f} h" for value in (*means, *ends)]
        yield [f"`{case.policy}`", case.source, *cells, f"{rank:.3f}", verdict]


def main() -> None:
    """Print the table, or write it into its page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fidelity")
    parser.add_argument("--write", action="store_true")
    found = list(rows(DATA))
    found.insert(1, ["---"] * len(found[0]))
    table = "\n".join(f"| {' | '.join(row)} |" for row in found)
    if parser.parse_args().write:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->")
        PAGE.write_text(f"{head}<!-- table -->\n\n{table}\n{rest[rest.index('<!-- end -->') - 1 :]}", encoding="utf-8")
    else:
        print(table)


if __name__ == "__main__":
    main()
