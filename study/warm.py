"""Compiling the kernels: once before other processes start, or by a second process while the first one works.

Compiled kernels stay in a cache on disk, so all this happens once per version of the software.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from policies import make_policy
from policies.contract import Allocation, AllocationStage, Memory, Plan, Policy
from policies.jit import cache_dir
from policies.observation import Observation
from sim.run import run
from sim.scenario import Scenario

_SMALL: dict[str, Any] = {
    "schema_version": 1,
    "name": "warm-up",
    "cluster": {"nodes": [{"count": 2, "gpus": 2}, {"name": "slow", "count": 2, "gpus": 2, "speed": 0.5}]},
    "workload": {
        "models": {
            "model": {
                "fixed_time": 1e-3,
                "sample_time": 1e-3,
                "parameters": 1e6,
                "overlap": 2.0,
                "noise_scale": 100.0,
                "drift": 0.01,
            }
        },
        "jobs": [
            {
                "name": "training",
                "count": 2,
                "model": "model",
                "gpus": 4,
                "steps": 40,
                "global_batch": 32,
                "data": {"samples": 640, "sample_size": 1000, "shards": 16},
            },
            {"name": "rigid", "count": 3, "spacing": 1.0, "gpus": 2, "duration": 5.0},
        ],
    },
    "decide": {"every_steps": 5},
    "noise": {"step_cov": 0.1},
    "faults": {"events": [{"kind": "slow", "node": "slow-0", "at": 1.0, "duration": 2.0}]},
}


def warm(policies: Iterable[str]) -> None:
    """Make one small run under each policy, which leaves its kernels compiled in the cache on disk."""
    scenario = Scenario.model_validate(_SMALL)
    for policy in dict.fromkeys(policies):
        run(scenario, policy=make_policy(policy), seed=0)


@contextmanager
def compiling_ahead(policies: Iterable[str]) -> Iterator[None]:
    """While the first run compiles the simulator's kernels, let a second process compile the stages'.

    Does nothing when kernels have been compiled before, or on a machine with one processor.
    """
    names = list(dict.fromkeys(policies))
    if (cpu_count() or 1) < 2 or any(cache_dir().rglob("periods.advance-*.nbi")):
        yield
        return
    print("compiling kernels, this once", file=sys.stderr)
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "study.warm", *names]
    helper = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        helper.kill()  # what it has not compiled by now is not needed
        helper.wait()


@dataclass(frozen=True)
class _Plainly(AllocationStage):
    """Starts what fits, without kernels."""

    name: ClassVar[str] = "plainly"
    order: ClassVar[str] = "arrival, then id"
    blocking: ClassVar[str] = "strict"
    preemption: ClassVar[str] = "never"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        free = np.flatnonzero(observation.gpus.share_free == 1.0)
        if not len(observation.waiting) or observation.jobs.gpus_requested[observation.waiting[0]] > len(
            free
        ):
            return plan, memory
        row = int(observation.waiting[0])
        gpus = free[: int(observation.jobs.gpus_requested[row])]
        return plan.with_(allocation=Allocation.of([(row, gpus.tolist())])), memory


def compile_stages(policies: Iterable[str]) -> None:
    """Compile the kernels of all stages of these policies, and as few others as possible."""
    stages = {stage.name: stage for name in policies for stage in make_policy(name).stages}
    raw = copy.deepcopy(_SMALL)
    del raw["noise"]  # no noise, and nothing on the network: those kernels are the first process's
    raw["workload"]["models"]["model"]["parameters"] = 0
    raw["workload"]["jobs"][0]["data"]["replicas"] = 4
    scenario = Scenario.model_validate(raw)
    last_first = tuple(reversed([stage for stage in stages.values() if stage.name != "fifo"]))
    run(scenario, policy=Policy("compile", (_Plainly(), *last_first)), seed=0, event_by_event=True)


if __name__ == "__main__":
    compile_stages(sys.argv[1:])
