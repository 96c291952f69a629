"""A policy in front of a real, shared Slurm: 60 sleeping jobs of four users, under the site's own order and policies.

    python -m tests.bench.slurm_runs OUT --policies observe s4 sjf --seed 1 [--no-limit]

Each policy gets a Slurm of its own (four nodes of four GPUs, backfill, multifactor with fair share, QOS and age, eight
GPUs a user), all at once: the jobs only sleep. `observe` is Slurm's own order. Prints the mean waiting time of each,
and of the jobs of QOS urgent; `equipoise twin OUT/POLICY/journal` compares with the simulation. A run that is there
already is not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.live.queue.real import USERS, RealSlurm

JOBS = 60


class Row(NamedTuple):
    """One job; its limit is loose, as users' are."""

    submit_s: float
    took_s: float
    gpus: int
    name: str
    user: str
    qos: str
    limit_min: int


def workload(seed: int) -> list[Row]:
    """Mix A: 60 jobs over six minutes that run 20 to 120 s on 1 to 8 GPUs; every seventh is urgent."""
    random = np.random.default_rng(seed)
    submit_s = np.cumsum(random.exponential(6.0, JOBS))
    took_s = random.integers(20, 121, JOBS)
    gpus = random.choice([1, 2, 4, 8], JOBS, p=[0.3, 0.3, 0.25, 0.15])
    loose = random.choice([1.0, 2.0, 4.0], JOBS)
    users = random.choice(len(USERS), JOBS, p=[0.4, 0.3, 0.2, 0.1])
    urgent = random.random(JOBS) < 1 / 7
    return [
        Row(
            float(submit_s[k]),
            float(took_s[k]),
            int(gpus[k]),
            f"job-{k:02}",
            USERS[users[k]],
            "urgent" if urgent[k] else "normal",
            math.ceil(took_s[k] * loose[k] / 60.0),
        )
        for k in range(JOBS)
    ]


def one(folder: Path, policy: str, jobs: list[Row], every_s: float, limit: str) -> None:
    """Submit all jobs to a Slurm of its own, with the policy in front of it, until all have ended."""
    folder.mkdir(parents=True)
    nodes = dict.fromkeys(("n1", "n2", "n3", "n4"), 4)
    slurm = RealSlurm(folder / "slurm", "sched/backfill", "priority/multifactor", nodes=nodes, accounts=limit)
    mode = ["fifo", "--mode", "observe"] if policy == "observe" else [policy, "--mode", "act"]
    command = [sys.executable, "-m", "equipoise.cli", "schedule", *mode, "--partition", "main", "--every", f"{every_s}"]
    with (folder / "schedule.log").open("w") as log:
        journal = str(folder / "journal")
        scheduler = subprocess.Popen([*command, "--journal", journal], env=slurm.env, stdout=log, stderr=log)
    try:
        events = folder / "journal" / "events.jsonl"
        slurm.wait_for(lambda: events.exists() and '"begun"' in events.read_text(), 300.0, "the scheduler decides")
        begin_s = time.monotonic()
        for job in jobs:
            time.sleep(max(0.0, begin_s + job.submit_s - time.monotonic()))
            more = (f"--uid={job.user}", f"--qos={job.qos}", f"--time={job.limit_min}")
            slurm.submit(job.took_s, job.gpus, job.name, *more, by="--gpus")
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
    parser.add_argument("--policies", nargs="+", default=["observe", "s4", "sjf"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--no-limit", action="store_true", help="no limit of eight GPUs a user")
    asked = parser.parse_args()
    jobs, limit = workload(asked.seed), "" if asked.no_limit else "gres/gpu=8"
    missing = [policy for policy in asked.policies if not (asked.out / policy / "jobs.json").exists()]
    threads = [
        threading.Thread(target=one, args=(asked.out / policy, policy, jobs, asked.every, limit)) for policy in missing
    ]
    for thread in threads:
        thread.start()
        time.sleep(5.0)
    for thread in threads:
        thread.join()
    urgent = [job.name for job in jobs if job.qos == "urgent"]
    base = 0.0
    for policy in asked.policies:
        found = {name.strip(): wait for name, wait in waits(asked.out / policy).items()}
        mean_s, urgent_s = float(np.mean(list(found.values()))), float(np.mean([found[name] for name in urgent]))
        base = base or mean_s
        change = 100 * (mean_s / base - 1)
        print(f"{policy}: mean waiting {mean_s:.1f} s ({change:+.1f} %), urgent {urgent_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
