"""No policy of the field beats the lower bound, on random small clusters of several GPU models."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise import api, studies
from equipoise.sim.loading.file import from_mapping
from equipoise.study.bounds import lower_bound
from equipoise.study.display import digits

POLICIES = (
    "fifo",
    "tiresias",
    "themis",
    "gavel",
    "gavel(objective=makespan)",
    "pollux",
    "sia",
    "optimus",
    "shockwave-like",
    "lucid",
    "zeus+fifo",
    "diloco+fifo",
    "s4",
    "s1+s2+s3+s4",
)
MODELS = ("a100_sxm_40gb", "v100_sxm2_32gb", "t4")


@st.composite
def scenarios(draw):
    groups = [
        {"name": name[0], "count": draw(st.integers(1, 2)), "gpus": draw(st.integers(1, 4)), "accelerator": name}
        for name in draw(st.lists(st.sampled_from(MODELS), min_size=1, max_size=3, unique=True))
    ]
    most = max(group["gpus"] * group["count"] for group in groups)
    rates = [
        {"job_type": "x", "gpu_model": group["accelerator"], "gpus": 1, "rate": draw(st.sampled_from([0.5, 1.0, 4.0]))}
        for group in groups
    ]
    jobs = []
    for k in range(draw(st.integers(1, 6))):
        job = {"name": f"j{k}", "gpus": draw(st.integers(1, most)), "arrival": draw(st.integers(0, 600))}
        if draw(st.booleans()):
            job |= {"duration": draw(st.integers(60, 3000)), "job_type": draw(st.sampled_from(["x", ""]))}
        else:
            job |= {"model": "m", "steps": draw(st.integers(100, 2000)), "global_batch": 32 * job["gpus"]}
            job |= {"learning_rate": draw(st.sampled_from(["adascale", "sqrt", "linear", "none"]))}
            job |= {"workers_min": 1, "workers_max": most, "batch_max": 32 * job["gpus"] * draw(st.integers(1, 8))}
        jobs.append(job)
    model = {
        "kind": "large-products",
        "flop_per_sample": "30 GFLOP",
        "parameters": 25e6,
        "precision": "fp16",
        "noise_scale": 800.0,
    }
    return {
        "schema_version": 1,
        "name": "small",
        "cluster": {"nodes": groups},
        "workload": {"models": {"m": model}, "jobs": jobs, "throughputs": {"rates": rates}},
        "energy": {"policy_caps": draw(st.booleans())},
    }


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=scenarios())
def test_the_bound_is_never_beaten(policy, spec):
    case = from_mapping(spec)
    bound, summary = lower_bound(case), api.run(case, policy=policy).summary()
    assert summary["completed"] == summary["jobs"]
    assert summary["makespan_s"] >= bound.makespan_s * (1 - 1e-9)
    assert summary["completion_mean_s"] >= bound.completion_mean_s * (1 - 1e-9)


def test_the_bound_is_met_where_jobs_run_alone_on_their_best_model():
    rates = [{"job_type": "x", "gpu_model": m, "gpus": 1, "rate": r} for m, r in zip(MODELS, (4, 2, 1), strict=True)]
    spec = {
        "schema_version": 1,
        "name": "alone",
        "cluster": {"nodes": [{"name": m[0], "gpus": 2, "accelerator": m} for m in MODELS]},
        "workload": {
            "jobs": [{"gpus": 2, "duration": 800, "job_type": "x"}],
            "throughputs": {"rates": rates, "reference": "t4"},
        },
    }
    case = from_mapping(spec)
    assert lower_bound(case).completion_mean_s == pytest.approx(200.0)
    assert api.run(case, policy="gavel").summary()["completion_mean_s"] == pytest.approx(200.0)


def test_on_the_quickstart_the_best_policy_is_near_the_bound_and_the_table_says_how_near():
    found = studies.compare("scenarios/quickstart.yaml", ["none", "lb-bsp+adacomm", "s1+s2+s3+s4"], seeds=2)
    over = [cell.over_bound for cell in found.cells if cell.metric == "completion_mean_s"]
    assert 1.0 <= min(over) <= 1.15
    assert min(over) < 1.3 < max(over), "the bound does not follow the policies"
    assert f"{digits(min(over))}" in found.as_table()
