"""A policy in front of a real Slurm: 60 sleeping jobs on 8 GPUs, under the site's FIFO and under policies.

    python -m tests.bench.slurm_runs OUT --policies observe sjf s4 --seed 1 [--scale 0.25] [--spread]

Each policy gets a Slurm of its own, all at once (the jobs only sleep); `observe` is Slurm's own order. Prints the
mean waiting time of each; `equipoise twin OUT/POLICY/journal` compares with the simulation.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from tests.live.queue.real import RealSlurm

JOBS = 60


def workload(seed: int, scale: float, spread: bool) -> list[tuple[float, float, int, str]]:
    """(submission in s, duration in s, GPUs, name) of the jobs: 20 to 120 s.

    spread: over about eight minutes; else all while the first of them holds all GPUs for 30 s.
    """
    random = np.random.default_rng(seed)
    submit_s = np.cumsum(random.exponential(8.0, JOBS)) * scale
    duration_s = random.integers(20, 121, JOBS) * scale
    gpus = random.choice([1, 2, 4], JOBS, p=[0.45, 0.35, 0.2])
    if not spread:
        submit_s, duration_s[0], gpus[0] = 1.0 * (np.arange(JOBS) > 0), 30.0, 8
    rows = zip(submit_s.tolist(), duration_s.tolist(), gpus.tolist(), strict=True)
    return [(*row, f"job-{k:02}") for k, row in enumerate(rows)]


def one(folder: Path, policy: str, jobs: list[tuple[float, float, int, str]], every_s: float) -> None:
    """Submit all jobs to a Slurm of its own, with the policy in front of it, until all have ended."""
    folder.mkdir(parents=True)
    estimates = folder / "estimates.csv"
    with estimates.open("w", newline="") as file:
        csv.writer(file).writerows([("name", "duration_s"), *((name, took) for _, took, _, name in jobs)])
    slurm = RealSlurm(folder / "slurm")
    mode = ["fifo", "--mode", "observe"] if policy == "observe" else [policy, "--mode", "act"]
    command = [
        sys.executable,
        "-m",
        "equipoise.cli",
        "schedule",
        *mode,
        "--partition",
        "main",
        "--every",
        f"{every_s}",
        "--estimates",
        str(estimates),
        "--journal",
        str(folder / "journal"),
    ]
    with (folder / "schedule.log").open("w") as log:
        scheduler = subprocess.Popen(command, env=slurm.env, stdout=log, stderr=subprocess.STDOUT)
    try:
        events = folder / "journal" / "events.jsonl"
        slurm.wait_for(lambda: events.exists() and '"begun"' in events.read_text(), 300.0, "the scheduler decides")
        begin_s = time.monotonic()
        for at_s, took_s, gpus, name in jobs:
            time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
            slurm.submit(took_s, gpus, name)
        slurm.wait_for(lambda: _all_over(slurm), 3600.0, "all jobs have ended")
        time.sleep(3 * every_s)
        scheduler.send_signal(signal.SIGTERM)
        scheduler.wait(60)
        (folder / "jobs.json").write_text(json.dumps(slurm.jobs()))
    finally:
        if scheduler.poll() is None:
            scheduler.kill()
        slurm.stop()


def _all_over(slurm: RealSlurm) -> bool:
    time.sleep(3.0)
    return all(job["State"] == "COMPLETED" for job in slurm.jobs().values())


def waits(folder: Path) -> dict[str, float]:
    """Waiting time (s) of each job by name, from Slurm's own record."""
    jobs = json.loads((folder / "jobs.json").read_text()).values()
    return {job["Name"]: float(job["StartTime"]) - float(job["SubmitTime"]) for job in jobs}


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--policies", nargs="+", default=["observe", "sjf", "s4"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--spread", action="store_true", help="submit over eight minutes, not at once")
    asked = parser.parse_args()
    jobs = workload(asked.seed, asked.scale, asked.spread)
    threads = [
        threading.Thread(target=one, args=(asked.out / policy, policy, jobs, asked.every)) for policy in asked.policies
    ]
    for thread in threads:
        thread.start()
        time.sleep(5.0)
    for thread in threads:
        thread.join()
    base = np.mean(list(waits(asked.out / asked.policies[0]).values()))
    for policy in asked.policies:
        mean_s = np.mean(list(waits(asked.out / policy).values()))
        print(f"{policy}: mean waiting {mean_s:.1f} s, {100 * (1 - mean_s / base):+.1f} % less", flush=True)


if __name__ == "__main__":
    main()
