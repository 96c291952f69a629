"""S222: the batch of a job whose user lets it change, worked by hand, and in the simulator."""

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.registry import make_policy, make_stage
from equipoise.policies.stages.batches import _goodput, best_batches
from equipoise.policies.stages.groups import group_workers
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from tests.policies.observations import change, one_job


def job(batch_max, *, phi=1000.0, samples_max=10_000):
    """Four workers with 8 samples each of 32; a step takes 0.1 s and 0.01 s a sample, nothing to exchange."""
    seen = one_job([100.0] * 4, batch=32, samples=[8] * 4, fixed_s=0.1, samples_max=[samples_max] * 4)
    asks = {"batch_reference": [32], "batch_max": [batch_max], "noise_scale": [phi], "exchange_s": [0.0]}
    return change(seen, "jobs", **asks)


def planned(observation):
    plan, _ = make_stage("s2").refine(observation, UNCHANGED, {})
    assert check(plan, observation) is None
    return plan.global_batch


def test_the_batch_is_that_of_most_goodput():
    """M / (0.1 + 0.01 M / 4) at (1000 + 32) / (1000 + M) is most at M = sqrt(1000 * 40) = 200."""
    seen = job(1024)
    ((batch, gain),) = best_batches(seen, group_workers(seen)).values()

    def worth(m):
        return m / (0.1 + 0.0025 * m) * 1032 / (1000 + m)

    assert worth(batch) >= 0.98 * worth(200)
    assert gain == pytest.approx(worth(batch) / worth(32) - 1)
    assert planned(seen)[0] == batch


@pytest.mark.parametrize(
    "seen", [job(0), job(32), job(1024, phi=np.nan), job(1024, phi=1.0), job(1024, samples_max=8)],
    ids=["fixed", "no room", "noise not known", "one sample says all", "no memory"],
)  # fmt: skip
def test_the_batch_stays(seen):
    assert planned(seen) is None


@pytest.mark.parametrize(
    ("held", "passes", "batch"), [(8, 1, None), (64, 1, 200), (64, 8, 200), (2**40, 0, 200)]
)
def test_each_further_pass_costs_its_fixed_part(held, passes, batch):
    """Where memory holds 8 samples of each worker, the step of 64 takes 0.2 s and 0.16: 178 samples/s become 172.

    In 8 passes that a plan asks for, 0.1 s is the fixed part of all; a layout's passes are in its own times.
    """
    seen = change(change(job(1024), "workers", samples_per_pass=held), "jobs", accumulation=[passes])
    found = planned(seen)
    if batch is None:
        assert found is None
    else:
        assert found[0] == pytest.approx(batch, rel=0.25)


def test_a_batch_that_memory_would_cut_into_passes_stays():
    case = from_mapping({
        "schema_version": 1, "name": "passes",
        "cluster": {"nodes": [{"gpus": 4, "accelerator": "t4"}]},
        "workload": {
            "models": {"m": {"fixed_time": "100 ms", "sample_time": "1 ms", "parameters": 1e6, "noise_scale": 2000,
                             "samples_per_pass": 16}},
            "jobs": [{"gpus": 4, "model": "m", "steps": 300, "global_batch": 64, "batch_max": 2048}],
        },
        "decide": {"every": "3 s"},
    })  # fmt: skip
    plain, larger = (run(case, policy=make_policy(name)) for name in ("none", "s2"))
    assert larger.summary()["makespan_s"] <= plain.summary()["makespan_s"]


def test_an_earlier_stage_keeps_its_batch():
    seen = job(1024)
    plan, _ = make_stage("s2").refine(seen, UNCHANGED.with_(global_batch=np.array([64])), {})
    assert plan.global_batch.tolist() == [64]


def test_a_job_ends_sooner_though_each_sample_counts_for_less():
    case = from_mapping({
        "schema_version": 1, "name": "batch",
        "cluster": {"nodes": [{"gpus": 4, "accelerator": "t4"}]},
        "workload": {
            "models": {
                "m": {"fixed_time": "100 ms", "sample_time": "1 ms", "parameters": 1e6, "noise_scale": 2000}
            },
            "jobs": [{"gpus": 4, "model": "m", "steps": 3000, "global_batch": 64, "batch_max": 2048}],
        },
        "decide": {"every": "30 s"},
    })  # fmt: skip
    plain, larger = (run(case, policy=make_policy(name)) for name in ("none", "s2"))
    assert larger.summary()["makespan_s"] < 0.8 * plain.summary()["makespan_s"]
    assert larger.jobs["samples"][0] > 1.2 * plain.jobs["samples"][0], (
        "efficiency below 1: more samples are needed"
    )
    assert larger.jobs["steps"][0] < plain.jobs["steps"][0]


@pytest.mark.parametrize(
    ("gamma", "interval", "step_s"),
    [(2.0, 1, 2**0.5), (1.0, 1, 2.0), (0.0, 1, 2.0), (np.nan, 1, 2.0), (1.0, 4, 1.25), (2.0, 0, 2**0.5)],
)
def test_the_goodput_of_a_batch_counts_its_exchange(gamma, interval, step_s):
    """20 samples of two workers take 1 s, an exchange as long; at its own batch each counts whole."""
    columns = {"gamma": gamma, "sync_interval": interval, "exchange_s": 1.0, "noise_scale": 1000.0}
    seen = one_job([10.0, 10.0], batch=20, job=columns | {"batch_reference": 20, "batch_max": 40})
    assert _goodput(seen, 0, slice(0, 2), np.array([20])).tolist() == pytest.approx([20 / step_s])


def test_a_batch_fits_up_to_what_each_worker_can_take():
    seen = one_job(
        [10.0, 10.0], batch=20, samples_max=[10, 10], job={"exchange_s": 0.0, "batch_reference": 20}
    )
    assert np.isfinite(_goodput(seen, 0, slice(0, 2), np.array([20, 22]))).tolist() == [True, False]
