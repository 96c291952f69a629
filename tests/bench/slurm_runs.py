"""Policies in front of a real, shared Slurm: ten mixes of 60 sleeping jobs of four users, measured and foretold.

    python -m tests.bench.slurm_runs OUT [--mixes usual bursts] [--seeds 1 2] [--policies observe s4] [--at-once 8]
    python -m tests.bench.slurm_runs OUT --table

Each run has a Slurm of its own (four nodes of eight GPUs, backfill, multifactor with fair share, QOS and age), so that
many run at once: the jobs only sleep. `observe` is Slurm's own order; what it foretells for a policy is the twin of its
record. A run that is there already is not made again. --table writes the mean waiting times of OUT to slurm_runs.csv,
and from these the table of docs/schedule.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.policies.registry import make_policy
from equipoise.study.twin.queue import NEAR_S, Orders, orders, read_queue
from tests.live.queue.real import USERS, RealSlurm

JOBS = 60
POLICIES = "observe", "s4", "sjf", "easy"
RESULTS, PAGE = Path(__file__).with_suffix(".csv"), Path(__file__).parents[2] / "docs" / "schedule.md"
_WAITS = "measured_s", "foretold_s", "urgent_s", "urgent_foretold_s"
COLUMNS = ["mix", "seed", "policy", *_WAITS, "within_5s", "stepped_back"]


class Mix(NamedTuple):
    """How jobs come; `limit`: GPUs of a user in QOS normal, 0 for none; loose: time limits over run times."""

    limit: int = 16
    urgent: float = 0.15
    loose: tuple[float, ...] = (1.0, 2.0, 4.0)
    bursts: int = 0
    tasks: int = 1  # of an array; every second job is one where there are several
    partitions: tuple[str, ...] = ("main",)


MIXES = {
    "usual": Mix(),
    "nothing urgent": Mix(urgent=0.0),
    "30 % urgent": Mix(urgent=0.3),
    "exact time limits": Mix(loose=(1.0,)),
    "loose time limits": Mix(loose=(4.0, 8.0, 16.0)),
    "three bursts": Mix(bursts=3),
    "no limit of a user": Mix(limit=0),
    "limit that binds": Mix(limit=8),
    "arrays": Mix(tasks=5),
    "two partitions": Mix(partitions=("main", "other")),
}


class Row(NamedTuple):
    """One job, or one array."""

    submit_s: float
    took_s: float
    gpus: int
    tasks: int
    options: tuple[str, ...]


def workload(mix: Mix, seed: int) -> list[Row]:
    """Jobs that run 20 to 90 s on 1 to 8 GPUs, over 150 s; Slurm's time limits are whole minutes."""
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    at_s, left, burst = 0.0, JOBS, JOBS // mix.bursts if mix.bursts else 0
    while left:
        tasks = min(left, mix.tasks if random.random() < 0.5 else 1)
        took_s, gpus = int(random.integers(20, 91)), int(random.choice([1, 2, 4, 8], p=[0.3, 0.3, 0.25, 0.15]))
        if mix.loose == (1.0,):  # as exact as whole minutes allow
            took_s = int(random.choice([57, 57, 117]))
        gap_s, loose = random.exponential(2.5) * tasks, random.choice(mix.loose)
        user, urgent = random.choice(len(USERS), p=[0.4, 0.3, 0.2, 0.1]), random.random() < mix.urgent
        partition = random.choice(mix.partitions)
        at_s = 60.0 * ((JOBS - left) // burst) if burst else at_s + gap_s
        options = (
            f"--uid={USERS[user]}",
            f"--qos={'urgent' if urgent else 'normal'}",
            f"--time={math.ceil(took_s * loose / 60.0)}",
            f"--partition={partition}",
            *([f"--array=0-{tasks - 1}"] if tasks > 1 else []),
        )
        rows.append(Row(at_s, took_s, gpus, tasks, options))
        left -= tasks
    return rows


def one(folder: Path, policy: str, mix: Mix, seed: int, every_s: float = 2.0) -> None:
    """Submit all jobs to a Slurm of its own, with the policy in front of it, until all have ended."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    nodes, limit = dict.fromkeys(("n1", "n2", "n3", "n4"), 8), f"gres/gpu={mix.limit}" if mix.limit else ""
    slurm = RealSlurm(folder / "slurm", "sched/backfill", "priority/multifactor", 1, nodes, accounts=limit)
    mode = ["fifo", "--mode", "observe"] if policy == "observe" else [policy, "--mode", "act", "--judge-every", "60"]
    command = [sys.executable, "-m", "equipoise.cli", "schedule", *mode, "--partition", "main", "--every", f"{every_s}"]
    with (folder / "schedule.log").open("w") as log:
        journal = str(folder / "journal")
        scheduler = subprocess.Popen([*command, "--journal", journal], env=slurm.env, stdout=log, stderr=log)
    try:
        events = folder / "journal" / "events.jsonl"
        slurm.wait_for(lambda: events.exists() and '"begun"' in events.read_text(), 300.0, "the scheduler decides")
        begin_s = time.monotonic()
        for number, job in enumerate(workload(mix, seed)):
            time.sleep(max(0.0, begin_s + job.submit_s - time.monotonic()))
            slurm.submit(job.took_s, job.gpus, f"job-{number:02}", *job.options, by="--gpus")
        slurm.wait_for(lambda: _all_over(slurm), 3600.0, "all jobs have ended")
        time.sleep(3 * every_s)
        scheduler.send_signal(signal.SIGTERM)
        scheduler.wait(120)
        (folder / "jobs.json").write_text(json.dumps(slurm.jobs()))
    finally:
        if scheduler.poll() is None:
            scheduler.kill()
        slurm.stop()
        shutil.rmtree(folder / "slurm", ignore_errors=True)


def _all_over(slurm: RealSlurm) -> bool:
    time.sleep(3.0)
    return all(job["State"] == "COMPLETED" for job in slurm.jobs().values())


def make(out: Path, wanted: Sequence[tuple[str, int, str]], at_once: int) -> None:
    """Make the runs that are missing, some at once."""
    missing: SimpleQueue[tuple[str, int, str]] = SimpleQueue()
    for key in wanted:
        if not (_folder(out, *key) / "jobs.json").exists():
            missing.put(key)

    def work() -> None:
        """Make one run after the other."""
        while True:
            try:
                mix, seed, policy = missing.get_nowait()
            except Empty:
                return
            try:
                one(_folder(out, mix, seed, policy), policy, MIXES[mix], seed)
            except Exception as error:  # the next call makes it
                print(f"{mix}, seed {seed}, {policy}: {error}", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
        time.sleep(5.0)
    for thread in threads:
        thread.join()


def _folder(out: Path, mix: str, seed: int, policy: str) -> Path:
    return out / f"{mix}-{seed}".replace(" ", "_").replace("%", "percent") / policy


def results(out: Path) -> list[dict[str, str]]:
    """Mean waiting times (s) of each run, measured and foretold from the record under Slurm's own order."""
    rows = []
    for mix, seed, policy in product(MIXES, (1, 2), POLICIES):
        folder, seen = _folder(out, mix, seed, policy), _folder(out, mix, seed, "observe")
        if not all((some / "jobs.json").exists() for some in (folder, seen)):
            continue
        chosen = make_policy("fifo" if policy == "observe" else policy)
        foretold, found = (orders(read_queue(some / "journal", chosen), chosen) for some in (seen, folder))
        told_s = foretold.own_s if policy == "observe" else foretold.steered_s
        near = np.abs(found.same_s - found.measured_s) <= NEAR_S
        events = (folder / "journal" / "events.jsonl").read_text()
        means_s = found.measured_s.mean(), told_s.mean(), *_urgent(found.measured_s, found), *_urgent(told_s, foretold)
        values = [*(f"{mean_s:.1f}" for mean_s in means_s), f"{near.mean():.2f}", str(int("stepped back" in events))]
        rows.append(dict(zip(COLUMNS, [mix, str(seed), policy, *values], strict=True)))
    return rows


def _urgent(waits_s: Floats, found: Orders) -> tuple[float]:
    return (float(waits_s[found.urgent].mean()) if found.urgent.any() else math.nan,)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """The table of docs/schedule.md: means of the seeds, and foretold ones in parentheses."""
    heads = ["mix", "Slurm's own order", *(f"`{policy}`" for policy in POLICIES[1:])]
    lines = [" | ".join(heads), "|".join(["---"] * len(heads))]
    for mix in MIXES:
        cells, own_s = [mix], 0.0
        for policy in POLICIES:
            some = [row for row in rows if (row["mix"], row["policy"]) == (mix, policy)]
            if not some:
                cells.append("")
                continue
            measured_s, told_s = (np.mean([float(r[key]) for r in some]) for key in ("measured_s", "foretold_s"))
            own_s = own_s or float(measured_s)
            change = "" if policy == "observe" else f", {round(100 * (measured_s / own_s - 1)):+d} %"
            cells.append(f"{measured_s:.0f} s ({told_s:.0f} s){change}")
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)


def write_table(out: Path) -> None:
    """Write slurm_runs.csv, and the table of the page."""
    rows = results(out)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    before, _, rest = PAGE.read_text().partition("| mix | ")
    PAGE.write_text(before + table(rows) + "\n" + rest.partition("\n\n")[2])


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--mixes", nargs="+", default=list(MIXES), choices=list(MIXES))
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        return write_table(asked.out)
    wanted = [(mix, seed, policy) for policy in asked.policies for seed in asked.seeds for mix in asked.mixes]
    return make(asked.out, wanted, asked.at_once)


if __name__ == "__main__":
    main()
