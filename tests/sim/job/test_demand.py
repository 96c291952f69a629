"""Jobs of a trace that are given a workload."""

from pathlib import Path

import pytest

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.job.demand import make_demand
from equipoise.sim.network.topology import Topology
from equipoise.sim.traces.read import read_trace
from tests.scenarios import model, scenario


@pytest.mark.parametrize(("steps_max", "steps", "batch"), [(2000, 400, 64), (50, 50, 512)])
def test_a_job_of_a_trace_that_trains_takes_as_long_as_the_trace_says(
    tmp_path: Path, steps_max: int, steps: int, batch: int
) -> None:
    """128 s on two GPUs at 10 ms a sample: 400 steps of 64 samples, or 50 of eight times as many."""
    path = tmp_path / "t.csv"
    path.write_text("job_id,arrival_s,gpus,duration_s\n1,0,2,128\n")
    training = {"count": 1, "models": ["m"], "global_batch": 64, "steps_max": steps_max}
    case = scenario(workload={"models": {"m": model()}, "trace": {"file": str(path), "training": training}})
    profile = load_profile(case.cluster.hardware)
    cluster = Cluster(case.cluster, profile, Topology(case.cluster, profile))
    job = make_demand(case, read_trace(path), cluster).training[0]
    assert (job.steps, job.global_batch) == (steps, batch)
