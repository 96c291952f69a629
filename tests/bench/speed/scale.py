"""A large cluster under S4 with faults: python -m tests.bench.speed.scale [--nodes N] [--jobs N] [--days D] ..."""

from __future__ import annotations

import argparse
import json
import resource

from equipoise.policies.registry import make_policy
from equipoise.sim.run import run
from tests.bench.speed.cases import large_trace, scenario
from tests.bench.speed.yardstick import heapq_events_per_s


def measure(nodes: int, jobs: int, days: float) -> dict[str, float]:
    """Run S4 every 300 s over a large trace with crashes; CPU seconds, memory, decisions."""
    case = scenario(
        cluster={"nodes": [{"count": nodes, "gpus": 8}], "topology": {"kind": "tree", "nodes_per_rack": 16}},
        decide={"every": 300.0, "on_events": False},
        faults={"crash": {"mtbf": 150 * 86400.0, "repair": 7200.0}},
    )
    result = run(case, policy=make_policy("s4"), trace=large_trace(jobs, days, gpus=8 * nodes))
    summary = result.summary()
    return {
        "nodes": nodes,
        "jobs": jobs,
        "days": days,
        "cpu_s": result.cpu_s,
        "decisions": result.totals["decisions"],
        "ms_per_decision": 1e3 * result.cpu_s / result.totals["decisions"],
        "restarts": float(result.jobs["restarts"].sum()),
        "gpu_busy_ratio": summary["gpu_busy_ratio"],
        "completed": summary["completed"],
        "memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    """Print the figures of one size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--once", action="store_true", help="not twice the jobs and days as well")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    measure(64, 200, 0.2)  # compiles
    for times in (1,) if arguments.once else (1, 2):
        jobs = times * arguments.jobs
        row = measure(arguments.nodes, jobs, times * arguments.days)
        row["heapq_events_per_job"] = row["cpu_s"] * heapq_events_per_s() / jobs
        if arguments.json:
            print(json.dumps(row))
        else:
            print("\n".join(f"{name:24} {value:,.4g}" for name, value in row.items()))


if __name__ == "__main__":
    main()
