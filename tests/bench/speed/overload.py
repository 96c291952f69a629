"""CPU time per job of an overloaded queue over that of an idle cluster: python -m tests.bench.speed.overload

The same jobs, one by one, come at a rate that half of the cluster can serve, and at three times what all of it
can, so that they wait for hours. Makespans and sums of completion times are printed in full: a faster queue must
decide the same.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from equipoise.policies.registry import make_policy
from equipoise.sim.run import run
from tests.bench.speed.cases import queueing_trace, scenario

POLICIES = ("fifo", "srtf", "las")
GPUS = 448
IDLE, OVERLOADED = 0.5, 3.0
"""GPU time asked for over GPU time there is, until the last job arrives."""
MOST = 2.5
"""A job of an overloaded queue may cost at most so many times one of an idle cluster."""


def measure(policy: str, jobs: int, load: float, repeats: int) -> dict[str, Any]:
    """Best CPU time (us) per job of a run, the mean wait (h), the makespan (s) and the sum of completions (s)."""
    case, trace = scenario(cluster={"gpus": GPUS}), queueing_trace(jobs, GPUS, load, 0.0)
    made = [run(case, policy=make_policy(policy), trace=trace, timeline=False) for _ in range(repeats)]
    return {
        "us_per_job": min(r.cpu_s for r in made) / jobs * 1e6,
        "decisions": made[0].totals["decisions"],
        "mean_wait_h": float(made[0].jobs["queueing_s"].mean()) / 3600.0,
        "makespan_s": made[0].summary()["makespan_s"],
        "completion_sum_s": float(made[0].jobs["completion_s"].sum()),
    }


def main() -> None:
    """Print one row per policy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--policy", nargs="+", default=list(POLICIES))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--load", type=float, default=OVERLOADED)
    parser.add_argument("--format", choices=["table", "json"], default="table")
    arguments = parser.parse_args()
    rows = []
    for policy in arguments.policy:
        measure(policy, 1000, arguments.load, 1)  # compiles
        idle = measure(policy, arguments.jobs, IDLE, arguments.repeats)
        full = measure(policy, arguments.jobs, arguments.load, arguments.repeats)
        rows.append(
            {"policy": policy, "idle": idle, "overloaded": full, "ratio": full["us_per_job"] / idle["us_per_job"]}
        )
        if arguments.format == "table":
            print(
                f"{policy:6} idle {idle['us_per_job']:7.1f} us a job, overloaded {full['us_per_job']:7.1f}"
                f" ({full['decisions']:.0f} decisions, mean wait {full['mean_wait_h']:.2f} h): "
                f"ratio {rows[-1]['ratio']:.2f} (at most {MOST}); makespan {full['makespan_s']!r} s, "
                f"completions {full['completion_sum_s']!r} s",
                flush=True,
            )
    if arguments.format == "json":
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
