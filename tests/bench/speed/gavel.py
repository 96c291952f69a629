"""CPU time and solver calls of Gavel's max-min fairness over a trace of its form: python -m tests.bench.speed.gavel

As in the paper's simulation (section 7): 984 jobs of 26 types arrive at random on 36 GPUs of each of three models,
70 % ask for one GPU, the others for 2, 4 or 8; the data are our own.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from equipoise.policies.baselines import gavel
from equipoise.policies.registry import make_policy
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from tests.bench.speed.cases import scenario

MODELS = ("a100_sxm_40gb", "v100_sxm2_32gb", "t4")
MOST_S = 4.0


def case(jobs: int = 984) -> Scenario:
    """The cluster, the rates of 26 types of work, and the jobs."""
    rng = np.random.default_rng(20260105)
    rates = []
    for kind in range(26):
        old, middle = 1.0, rng.uniform(1.5, 4.0)
        rate = dict(zip(MODELS, (middle * rng.uniform(1.2, 3.0), middle, old), strict=True))
        rates += [{"job_type": f"type-{kind}", "gpu_model": m, "gpus": 1, "rate": r} for m, r in rate.items()]
    arrival_s = np.cumsum(rng.exponential(900.0, jobs))
    work = [
        {
            "name": f"job-{k}",
            "arrival": f"{arrival_s[k]:.0f} s",
            "job_type": f"type-{rng.integers(26)}",
            "gpus": int(rng.choice([1, 2, 4, 8], p=[0.7, 0.1, 0.15, 0.05])),
            "duration": f"{60 * 10 ** rng.uniform(1.5, 4):.0f} s",
        }
        for k in range(jobs)
    ]
    return scenario(
        cluster={"nodes": [{"name": model, "count": 9, "gpus": 4, "accelerator": model} for model in MODELS]},
        workload={"throughputs": {"reference": MODELS[1], "rates": rates}, "jobs": work},
    )


def main() -> None:
    """Print how many programmes a replay solves, their CPU time and that of the replay, without compiling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=984)
    parser.add_argument("--policy", default="gavel")
    asked = parser.parse_args()
    policy = make_policy(asked.policy)
    run(case(20), policy=policy)  # compiles
    spent, plain = list[float](), gavel.shares

    def timed(*values: Any) -> Any:
        """The same, its CPU time noted."""
        begin_s = time.process_time()
        found = plain(*values)
        spent.append(time.process_time() - begin_s)
        return found

    gavel.shares = timed
    made = run(case(asked.jobs), policy=policy, timeline=False)
    print(
        f"{asked.policy}: {len(spent)} programmes in {sum(spent):.2f} CPU s (at most {MOST_S}), the whole replay "
        f"{made.cpu_s:.2f} CPU s, {made.totals['decisions']:.0f} decisions"
    )


if __name__ == "__main__":
    main()
