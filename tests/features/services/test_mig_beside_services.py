"""MIG slices of jobs beside a service: no policy is shown a GPU of the service's as free."""

from __future__ import annotations

import pytest

from equipoise.policies.contract import AllocationStage
from equipoise.policies.registry import BUILT_IN, make_stage
from tests.scenarios import scenario, simulate

POLICIES = sorted(name for name in BUILT_IN if isinstance(make_stage(name), AllocationStage))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("placement", ["own", "lent", "shared"])
def test_every_policy_runs_jobs_beside_a_service_on_gpus_that_are_cut(policy: str, placement: str) -> None:
    """Two of four GPUs for two replicas, one job on a whole GPU, and slices of 3/7 and 4/7 on what is left."""
    service = {
        "name": "s",
        "batch_latency": {"fixed": 0.02, "per_request": 0.004, "most": 16},
        "latency": {"p95": 0.4},
        "requests": {"rate": 5.0},
        "replicas": {"min": 2, "max": 2},
        "placement": {"kind": placement},
    }
    slices = [{"name": f"j{k}", "gpus": 1, "gpu_share": part, "duration": 20.0} for k, part in enumerate((0.43, 0.57))]
    case = scenario(
        cluster={"nodes": [{"name": "n", "count": 2, "gpus": 2, "accelerator": "h100_sxm", "sharing": "mig"}]},
        workload={"jobs": [{"name": "whole", "gpus": 1, "duration": 20.0}, *slices, *slices]},
        services=[service],
        decide={"every": 5.0},
        horizon=400.0,
    )
    made = simulate(case, policy, timeline=True)
    assert made.stopped is None
    assert made.summary()["completed"] >= 2
    assert made.totals["serving_gpu_s"] >= (790.0 if placement == "own" else 1.0)
