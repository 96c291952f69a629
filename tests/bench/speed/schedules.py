"""CPU time per rigid job: python -m tests.bench.speed.schedules [--jobs N ...] [--policy NAME ...] [--timeline]"""

from __future__ import annotations

import argparse
import json

from equipoise.policies.registry import make_policy
from equipoise.sim.run import run
from tests.bench.speed.cases import queueing_trace, scenario
from tests.bench.speed.yardstick import heapq_events_per_s

POLICIES = ("fifo", "sjf", "fifo(placement=packed)", "srtf", "las")


def measure(policy: str, jobs: int, repeats: int, *, timeline: bool = False) -> float:
    """Best run-only CPU seconds of a queueing trace on 48 GPUs (on 8-GPU nodes when packed)."""
    packed = "packed" in policy
    cluster = {"nodes": [{"count": 6, "gpus": 8}]} if packed else {"gpus": 48}
    case, trace = scenario(cluster=cluster), queueing_trace(jobs)
    runs = (run(case, policy=make_policy(policy), trace=trace, timeline=timeline) for _ in range(repeats))
    return min(made.cpu_s for made in runs)


def main() -> None:
    """Print one row per policy and size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--policy", nargs="+", default=list(POLICIES))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--timeline", action="store_true", help="record what happens when, too")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    arguments = parser.parse_args()
    rate, rows = heapq_events_per_s(), []
    for policy in arguments.policy:
        measure(policy, 1000, 1)  # compiles
        for jobs in arguments.jobs:
            repeats = arguments.repeats if jobs < 50_000 else 1
            cpu_s = measure(policy, jobs, repeats, timeline=arguments.timeline)
            rows.append(
                {
                    "policy": policy,
                    "jobs": jobs,
                    "cpu_s": cpu_s,
                    "us_per_job": cpu_s / jobs * 1e6,
                    "heapq_events_per_job": cpu_s / jobs * rate,
                }
            )
            if arguments.format == "table":
                print(
                    "{policy:24} {jobs:8} jobs {cpu_s:8.2f} CPU s {us_per_job:8.1f} us/job "
                    "{heapq_events_per_job:8.1f} heapq events/job".format(**rows[-1]),
                    flush=True,
                )
    if arguments.format == "json":
        print(json.dumps({"heapq_events_per_s": rate, "rows": rows}))


if __name__ == "__main__":
    main()
