"""Compile the kernels once, here, before other processes start and would each compile them at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from policies import make_policy
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
