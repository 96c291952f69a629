"""Whole runs in which a sub-step of S4 was found wanting: what it costs, and what could be had."""

import math

import numpy as np
import pytest

from equipoise import run
from equipoise.policies.allocation.near import delays
from equipoise.policies.observation import Jobs, Nodes, Observation, Stores


def scenario(nodes, model, jobs, **more):
    """A scenario of one model `m` with steps of 1 ms and 1 ms per sample, decided every minute."""
    model = {
        "fixed_time": "1 ms",
        "sample_time": "1 ms",
        "exchange": {"alpha": "30 us", "rate": "1 Gbit/s"},
    } | model
    return {
        "schema_version": 1, "name": "row", "cluster": {"nodes": nodes}, "decide": {"every": "60 s"},
        "workload": {"models": {"m": model}, "jobs": [{"model": "m", **job} for job in jobs]}, **more,
    }  # fmt: skip


def simulated(spec, policy):
    """(run, GPUs of each holding of the first job in order, as tuples)."""
    made = run(spec, policy=policy, timeline=True)
    held = made.timeline["holdings"]
    gpus = [tuple(held["gpu"][held["segment"] == k].tolist()) for k in range(int(held["segment"].max()) + 1)]
    return made, gpus


EIGHT = [{"name": "n", "count": 8, "gpus": 1, "nic": "1 Gbit/s"}]
BOTH = pytest.mark.parametrize("policy", ["s4", "s4(mode=optimal)"])


@BOTH
def test_b_an_idle_cluster_starts_a_job_where_its_data_is(policy):
    """193.5 s on the first two nodes, 18.8 s on the two that store the data."""
    data = {
        "samples": 24000,
        "sample_size": "1 MB",
        "shards": 48,
        "placement": {"kind": "nodes", "nodes": ["n-6", "n-7"]},
    }
    job = {"gpus": 2, "epochs": 1, "global_batch": 32, "data": data}
    made, gpus = simulated(scenario(EIGHT, {"gradient": "1 MB"}, [job]), policy)
    assert gpus == [(6, 7)]
    assert made.totals["makespan_s"] == pytest.approx(18.8, rel=0.01)


def test_b_the_delay_of_each_node_follows_data_and_links():
    """d: seconds of fetching per second of work; each of what it is made of changes it alone."""

    def delay(nic=1e9, busy=0.0, ratio=1.0, input_bytes=1e12, service_s=1000.0, gpus=1):
        o = Observation.of(
            nodes=Nodes.of(
                gpus=[2, 2], gpus_free=[2, 2], nic_bytes_per_s=[1e9, nic], nic_busy_ratio=[0.0, busy]
            ),
            jobs=Jobs.of(id=[0], input_bytes=[input_bytes], service_s=[service_s]),
            stores=Stores.of(job=[0, 0], node=[0, 1], ratio=[1.0, 1.0 - ratio]),
        )
        return delays(o, 0, gpus, np.array([0, 1])).tolist()

    assert delay()[0] == 0.0
    assert delay()[1] == pytest.approx(1.0)
    assert delay(nic=5e8)[1] == pytest.approx(2.0)
    assert delay(nic=4e9)[1] == pytest.approx(1.0), "the other end is no faster"
    assert delay(busy=0.5)[1] == pytest.approx(2.0)
    assert delay(ratio=0.25)[1] == pytest.approx(0.25)
    assert delay(input_bytes=2e12)[1] == delay(service_s=500.0)[1] == pytest.approx(2.0)
    assert delay(gpus=4)[1] == pytest.approx(1.0), "half of the data goes there, all of it comes from node 0"


@BOTH
def test_d_a_lone_job_whose_exchange_is_dear_takes_one_gpu(policy):
    """1,433 s on all eight GPUs, 257 s on one; nothing has been measured when it starts."""
    job = {"gpus": 8, "workers_min": 1, "workers_max": 8, "steps": 1000, "global_batch": 256}
    made, gpus = simulated(scenario(EIGHT, {"gradient": "100 MB"}, [job]), policy)
    assert [len(held) for held in gpus] == [1]
    assert made.totals["makespan_s"] == pytest.approx(257.0)


@BOTH
def test_d_a_running_job_shrinks_where_that_pays(policy):
    """Its links become fifty times slower: what is measured makes the job give up GPUs."""
    job = {"gpus": 8, "workers_min": 1, "workers_max": 8, "steps": 4000, "global_batch": 256}
    spec = scenario(EIGHT, {"gradient": "10 MB"}, [job])
    spec["faults"] = {"events": [
        {"kind": "link", "node": f"n-{k}", "at": "61 s", "duration": "1 d", "factor": 50.0} for k in range(8)
    ]}  # fmt: skip
    _, gpus = simulated(spec, policy)
    assert len(gpus[0]) > 1
    assert len(gpus[-1]) == 1
    assert len(gpus) == 2


@BOTH
def test_e_sizes_settle(policy):
    """4, 1, 4, 1, ... GPUs: 25 allocations in 5,746 s under optimal, 25,304 s on four GPUs under formula."""
    four = [{**EIGHT[0], "count": 4}]
    job = {"gpus": 4, "workers_min": 1, "workers_max": 4, "steps": 20000, "global_batch": 256}
    made, gpus = simulated(scenario(four, {"gradient": "100 MB"}, [job]), policy)
    assert len(gpus) <= 2
    assert float(np.nansum(made.jobs["restart_gpu_s"])) <= 120.0
    assert made.totals["makespan_s"] == pytest.approx(5140.0, rel=0.02)
    assert math.isfinite(made.jobs["completion_s"][0])
