"""Jobs of a trace that are given a workload."""

import math
from pathlib import Path

import numpy as np
import pytest

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.job.demand import Demand, make_demand
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import read_trace
from equipoise.sim.traces.trace import make_trace
from tests.scenarios import model, scenario

PROFILE = load_profile("catalogue")


def cluster_of(case: Scenario) -> Cluster:
    return Cluster(case.cluster, PROFILE, Topology(case.cluster, PROFILE))


@pytest.mark.parametrize(("steps_max", "steps", "batch"), [(2000, 400, 64), (50, 50, 512)])
def test_a_job_of_a_trace_that_trains_takes_as_long_as_the_trace_says(
    tmp_path: Path, steps_max: int, steps: int, batch: int
) -> None:
    """128 s on two GPUs at 10 ms a sample: 400 steps of 64 samples, or 50 of eight times as many."""
    path = tmp_path / "t.csv"
    path.write_text("job_id,arrival_s,gpus,duration_s\n1,0,2,128\n")
    training = {"count": 1, "models": ["m"], "global_batch": 64, "steps_max": steps_max}
    case = scenario(workload={"models": {"m": model()}, "trace": {"file": str(path), "training": training}})
    job = make_demand(case, read_trace(path), cluster_of(case)).training[0]
    path.write_text("job_id,arrival_s,gpus,duration_s\n1,0,1,128\n")
    alone = make_demand(case, read_trace(path), cluster_of(case)).training[0]
    assert (alone.gpus, alone.workers_max, alone.steps) == (1, 2, {400: 200, 50: 50}[steps])
    assert (job.steps, job.global_batch) == (steps, batch)


def test_time_limits_act_as_given_and_those_of_a_trace_not_before_its_jobs_ended() -> None:
    limits = {"time_limit_s": np.array([8.0, 3.0, np.nan, 0.0])}
    trace = make_trace(np.arange(4), np.zeros(4), np.ones(4, int), np.full(4, 5.0), columns=limits)
    jobs = [{"duration": 9.0, "time_limit": 5.0}]
    for estimate, thought in (("duration", [5, 5, 5, 5, 5]), ("time-limit", [5, 8, 3, 5, 5])):
        case = scenario(workload={"jobs": jobs}, decide={"estimate": estimate})
        found = make_demand(case, trace, cluster_of(case))
        assert found.duration_s.tolist() == [9, 5, 5, 5, 5]
        assert found.limit_s.tolist() == [5, 8, 5, math.inf, math.inf]
        assert found.estimates_s(np.ones(5)).tolist() == thought


def test_jobs_that_may_start_with_what_a_limit_allows_stay_and_others_are_left_out() -> None:
    """Three GPUs: of a duration job that may shrink and of a training job the fewest count."""
    jobs = [
        {"name": "a", "gpus": 2, "duration": 11.0, "priority": 5},
        {"name": "b", "gpus": 4, "duration": 12.0},
        {"name": "c", "gpus": 5, "duration": 13.0, "gpus_min": 3, "priority": 7},
        {"name": "d", "gpus": 6, "model": "m", "global_batch": 12, "steps": 9, "workers_min": 3, "cpus": 4},
        {"name": "e", "gpus": 4, "model": "m", "global_batch": 12, "steps": 9},
    ]
    listed = [{"arrival": 20.0 - k, "qos": "q"} | job for k, job in enumerate(jobs)]

    def made(*rows: int) -> Demand:
        case = scenario(
            cluster={"nodes": [{"count": 2, "gpus": 4}]},
            workload={"models": {"m": model()}, "jobs": [listed[row] for row in rows]},
            queues={"qos": [{"name": "q", "gpus": 3}], "too_large": "leave-out"},
        )
        return make_demand(case, None, cluster_of(case))

    found = made(0, 1, 2, 3, 4)
    assert found.name == ["d", "c", "a"]
    assert found.arrival_s.tolist() == [17, 18, 20]
    assert found.gpus.tolist() == [6, 5, 2]
    assert found.duration_s.tolist()[1:] == [13, 11]
    assert found.priority.tolist() == [1, 7, 5]
    assert found.id.tolist() == [3, 2, 0]
    assert ([*found.training], found.shrinks) == ([0], {1: (3, 1)})
    assert found.mixes.tolist() == [True, False, False]
    told = "jobs that start with fewer GPUs than requested, because a limit allows no more: 2"
    assert found.notes == (told, "2 jobs left out: they can never start; first e: the limit QOS q allows 3")
    assert found.claims.smaller == {0: 3, 1: 3}
    assert found.columns["qos"].tolist() == ["q"] * 3
    assert found.claims.claim.tolist() == [0] * 3
    assert len(found.checkpoint) == len(found.paces.kind) == len(found.gpu_share) == 3
    assert made(0).notes == ()
    with pytest.raises(InputError, match="queues: no job is left, because the limits let none of them start"):
        made(1, 4)
