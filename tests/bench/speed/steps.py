"""CPU time per worker and step of one noisy job: python -m tests.bench.speed.steps [--format json]"""

from __future__ import annotations

import argparse
import json

from equipoise.policies.registry import make_policy
from equipoise.sim.run import run
from tests.bench.speed.cases import scenario
from tests.bench.speed.yardstick import heapq_events_per_s

SIZES = ((64, 10_000), (4_096, 500))
ORACLE_STEPS = {64: 100, 4_096: 2}


def measure(workers: int, steps: int, repeats: int, *, event_by_event: bool = False) -> float:
    """Best run-only CPU seconds per worker-step, with jitter, waits and busy times counted."""
    case = scenario(
        cluster={"nodes": [{"count": workers, "gpus": 1}]},
        workload={
            "models": {"m": {"sample_time": 0.01, "parameters": 1e7, "overlap": 1.7}},
            "jobs": [{"gpus": workers, "model": "m", "steps": steps, "global_batch": 8 * workers}],
        },
        noise={"step_cov": 0.2},
    )
    policy = make_policy("fifo")
    runs = [run(case, policy=policy, event_by_event=event_by_event).cpu_s for _ in range(repeats)]
    return min(runs) / workers / steps


def main() -> None:
    """Print one row per size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", choices=["table", "json"], default="table")
    arguments = parser.parse_args()
    measure(64, 10, 1)  # compiles
    measure(64, 2, 1, event_by_event=True)
    rate, rows = heapq_events_per_s(), []
    for workers, steps in SIZES:
        fast = measure(workers, steps, 5)
        oracle = measure(workers, ORACLE_STEPS[workers], 1, event_by_event=True)
        row = {
            "workers": workers,
            "steps": steps,
            "ns_per_worker_step": fast * 1e9,
            "heapq_events_per_worker_step": fast * rate,
            "oracle_over_fast": oracle / fast,
        }
        rows.append(row)
        if arguments.format == "table":
            print(
                "{workers:5} workers x {steps:6} steps {ns_per_worker_step:7.2f} ns/worker-step "
                "{heapq_events_per_worker_step:7.4f} heapq events, event by event {oracle_over_fast:6.0f} times "
                "as long".format(**row),
                flush=True,
            )
    if arguments.format == "json":
        print(json.dumps({"heapq_events_per_s": rate, "rows": rows}))


if __name__ == "__main__":
    main()
