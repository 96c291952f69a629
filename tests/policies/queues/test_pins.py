"""Two groups of nodes with one accelerator, and a job that names one of them: it runs on that one alone."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.policies.contract import AllocationStage
from equipoise.policies.registry import BUILT_IN, make_policy, make_stage
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError

POLICIES = sorted(name for name in BUILT_IN if isinstance(make_stage(name), AllocationStage))
GROUPS = [{"name": name, "count": 2, "gpus": 4} for name in ("g0", "g1", "g2")]
ON = {"g0": {0, 1}, "g1": {2, 3}, "g2": {4, 5}}


def nodes_of(policy: str, jobs: list[dict[str, Any]], **sections: Any) -> dict[str, set[int]]:
    """Nodes on which each job ever held GPUs, of those that have run."""
    models = {"m": {"sample_time": 0.01, "exchange": {"alpha": 0.0, "rate": 1e10}}}
    text = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": GROUPS},
        "decide": {"every": 5.0},
        "workload": {"models": models, "jobs": jobs},
        "horizon": 1e5,
    }
    made = run(from_mapping(text | sections), policy=make_policy(policy), timeline=True)
    assert made.stopped is None
    assert made.timeline is not None
    held, found = made.timeline["holdings"], {name: set[int]() for name in made.jobs["name"].tolist()}
    names = dict(zip(made.jobs["job_id"].tolist(), made.jobs["name"].tolist(), strict=True))
    for job, gpu in zip(held["job_id"].tolist(), held["gpu"].tolist(), strict=True):
        found[names[job]].add(gpu // 4)
    assert all(found.values())
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_of_half_a_gpu_stay_on_the_group_that_they_name(policy: str) -> None:
    """Policies that hand out whole GPUs to such jobs, and those that share them: none is booked twice."""
    jobs = [{"name": "half", "gpus": 1, "gpu_share": 0.5, "duration": 20.0, "gpu_types": ["g1"], "count": 4}]
    assert set().union(*nodes_of(policy, jobs).values()) <= ON["g1"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_stays_on_the_groups_that_it_names(policy: str) -> None:
    jobs = [
        {"name": "any", "gpus": 2, "duration": 30.0},
        {"name": "one", "gpus": 2, "duration": 40.0, "gpu_types": ["g1"], "count": 5, "spacing": 3.0},
        {"name": "two", "gpus": 4, "duration": 20.0, "gpu_types": ["g2", "g1"], "arrival": 8.0},
        {"name": "all", "gpus": 4, "duration": 20.0, "gpu_types": ["generic"], "arrival": 9.0},
        {
            "name": "train",
            "gpus": 2,
            "model": "m",
            "global_batch": 64,
            "steps": 50,
            "gpu_types": ["g2"],
            "workers_min": 1,
            "workers_max": 8,
            "arrival": 4.0,
        },
    ]
    found = nodes_of(policy, jobs)
    for name, nodes in found.items():
        allowed = {"o": ON["g1"], "tw": ON["g1"] | ON["g2"], "tr": ON["g2"]}
        assert nodes <= next((on for start, on in allowed.items() if name.startswith(start)), set(range(6)))


@pytest.mark.parametrize("policy", ["fifo", "easy", "s4", "kueue", "multifactor"])
def test_a_queue_gives_the_nodes_of_its_flavors(policy: str) -> None:
    queues = {
        "flavors": {"spot": ["g1"], "own": ["g2"]},
        "queues": [{"name": "a", "gpus": {"spot": 8}}, {"name": "b", "gpus": {"own": 8}}],
    }
    jobs = [{"name": name, "gpus": 2, "duration": 20.0, "queue": name} for name in ("a", "b")]
    found = nodes_of(policy, jobs, queues=queues)
    assert found["a"] <= ON["g1"]
    assert found["b"] <= ON["g2"]


def test_a_limit_of_one_of_several_groups_with_one_accelerator_is_refused() -> None:
    queues = {"accounts": [{"name": "x"}], "users": [{"name": "ann", "account": "x", "gpus_of_type": {"g1": 1}}]}
    jobs = [{"name": "a", "gpus": 1, "duration": 5.0, "user": "ann", "account": "x"}]
    with pytest.raises(InputError, match="gpus_of_type: other groups have the accelerator of 'g1'; name the"):
        nodes_of("fifo", jobs, queues=queues)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_elastic_job_starts_with_what_its_limit_allows(policy: str) -> None:
    """Four GPUs asked for, two allowed, one enough: 30 s of work take 60 s on two GPUs, under any policy."""
    jobs = [
        {"name": "e", "gpus": 4, "model": "m", "global_batch": 64, "steps": 100, "workers_min": 1, "workers_max": 4},
        {"name": "r", "gpus": 4, "duration": 30.0, "gpus_min": 1, "arrival": 50.0},
    ]
    queues = {"accounts": [{"name": "x", "gpus_per_user": 2}], "too_large": "leave-out"}
    text = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": GROUPS},
        "decide": {"every": 5.0},
        "queues": queues,
        "workload": {
            "models": {"m": {"sample_time": 0.01, "exchange": {"alpha": 0.0, "rate": 1e10}}},
            "jobs": [job | {"user": "ann", "account": "x"} for job in jobs],
        },
    }
    made = run(from_mapping(text), policy=make_policy(policy), timeline=True)
    assert made.summary()["completed"] == 2
    assert made.timeline is not None
    assert made.timeline["segments"]["gpus"].max() == 2
    assert "jobs that start with fewer GPUs than requested, because a limit allows no more: 2" in made.notes
