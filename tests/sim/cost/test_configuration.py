"""What a step costs on the workers that a job has, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cost.configuration import Configuration
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.network.topology import Topology
from tests.scenarios import model, scenario

PROFILE = load_profile("catalogue")
TWO = {"name": "a", "count": 2, "gpus": 2, "speed": 0.5, "ingest": 100.0, "cores": 4, "local_read": 1e6, "nic": 1e8}
FOUR = {"name": "b", "gpus": 4, "cores": 8, "nic": 1e8}
EXCHANGE = {"alpha": 0.001, "rate": 1e9}
DATA = {"samples": 50, "sample_size": 1000}


def made(
    gpus: int,
    *,
    topology: dict[str, Any] | None = None,
    batch: int = 12,
    kind: str = "generic",
    data: dict[str, Any] | None = DATA,
    **keys: Any,
) -> Configuration:
    """A job on two nodes of two slow GPUs and one of four; 0.1 s a pass, 0.01 s a sample of 1,000 bytes."""
    nodes = [{"accelerator": "generic"} | TWO, {"accelerator": kind} | FOUR]
    cluster = {"nodes": nodes, "topology": topology or {"kind": "star"}}
    spec = {"gpus": gpus, "model": "m", "steps": 5, "global_batch": batch, "data": data}
    own = model(fixed_time=0.1, gradient=3e8, exchange=EXCHANGE) | keys
    case = scenario(cluster=cluster, workload={"models": {"m": own}, "jobs": [spec]})
    built = Cluster(case.cluster, PROFILE, Topology(case.cluster, PROFILE))
    return Configuration(0, case.workload.jobs[0], case.workload.models["m"], built)


def placed(config: Configuration, gpu: list[int], share: list[float] | None = None) -> Configuration:
    on = np.array(gpu)
    config.place(config.cluster.book(0, on, np.array(share or [1.0] * len(gpu))))
    config.cluster.workers[:] = np.bincount(config.nodes, minlength=3)
    return config


def test_a_worker_is_as_fast_as_its_node_its_gpu_and_its_share() -> None:
    """Node 0 runs at a quarter, GPU 0 takes 1.25 times as long; half of GPU 1 is 2/3 as fast, beside a quarter."""
    config = made(3, preprocess_time=0.02, share_kappa=1.0, interference=0.5)
    config.cluster.slow[0], config.cluster.gpu_time[0] = 2.0, 1.25
    config.cluster.book(7, np.array([1]), np.array([0.25]))
    placed(config, [0, 1, 4], [1.0, 0.5, 1.0]).work_out()
    scale = np.array([5.0, 4 * 1.5 * 1.125, 1.0])
    assert config.samples.tolist() == [4, 4, 4]
    assert config.scale == pytest.approx(scale)
    assert config.compute_s == pytest.approx(0.14 * scale)
    assert config.fixed_s() == pytest.approx(0.1 * scale)
    assert config.ingest == pytest.approx([50, 50, 400])  # of a node's 100; of eight cores that take 20 ms
    assert config.input_s == pytest.approx([0.08, 0.08, 0.01])
    assert config.seconds_per_sample() == pytest.approx(0.14 * scale / 4)
    listed_s = config.listed_s(np.array([2.0, 2.0, 8.0]))
    assert listed_s[[0, 2]] == pytest.approx([0.12, 0.18])
    assert math.isnan(listed_s[1])
    assert config.weight.tolist() == config.busy_weight.tolist() == [1.0, 0.5, 1.0]
    assert config.data_bytes == 50_000
    config.set_samples(np.array([12, 0, 0]))
    assert np.isnan(config.listed_s(np.ones(3))).all()
    config.work_out()
    assert config.seconds_per_sample()[0] == pytest.approx(0.22 * 5 / 12)
    assert config.seconds_per_sample()[1:].tolist() == [math.inf, math.inf]
    assert np.isnan(config.listed_s(np.ones(3))).tolist() == [False, True, True]


def test_a_disk_that_reads_slowly_is_shared_by_the_workers_of_a_node() -> None:
    config = placed(made(3), [0, 1, 4])
    assert config.shares_input  # of node 0
    config.work_out()
    assert config.ingest.tolist() == [50, 50, math.inf]
    config.cluster.workers[0] = 50
    config.work_out()
    assert config.ingest == pytest.approx([20, 20, math.inf])  # 1e6 bytes/s, 1,000 a sample, 50 workers
    assert not placed(made(2), [4, 5]).shares_input
    reads_nothing = placed(made(2, data=None), [0, 1])
    assert not reads_nothing.shares_input
    assert reads_nothing.data_bytes == 0.0
    assert placed(made(2, preprocess_time=1e-9), [4, 5]).shares_input


def test_a_spoilt_gradient_counts_nothing_and_one_left_out_is_not_counted() -> None:
    config = placed(made(3, lighter={"samples_factor": 1.25}), [0, 1, 4])
    credits = []
    for weight, spoilt in ((1, 1.0), (0, 1.0), (0, math.nan), (1, math.nan), (1, 1.5)):
        config.cluster.corrupt[4] = spoilt
        config.set_gradient_weight(np.array([1.0, 1.0, weight]))
        config.work_out()
        credits.append(config.credit)
    assert credits == pytest.approx([0.8, 0.8 * 2 / 3, 0.8 * 2 / 3, 0, 0])
    config.cluster.corrupt[:] = 1.0
    assert not config.stale
    config.set_gradient_weight(np.array([1.0, 0.5, 1.0]))
    assert config.stale
    config.work_out()
    assert config.credit == pytest.approx(0.8 * 10 / 12)


def test_further_passes_and_evaluations_lengthen_a_step() -> None:
    config = placed(made(3, evaluation={"every": 120, "time": 6.0}), [4, 5, 6])
    for passes, fixed_s in ((1, 0.1), (2, 0.2), (3, 0.2), (4, 0.4), (9, 0.4)):
        config.set_accumulation(passes)
        assert config.cost_s(0, 4, 3) == pytest.approx((fixed_s + 0.6, fixed_s + 0.04 + 0.6)), passes
    assert config.cost_s(0, 0, 3) == (0.0, 0.0)
    config.set_accumulation(1)
    config.set_batch(24)
    assert config.samples.tolist() == [8, 8, 8]
    assert config.cost_s(0, 8, 3) == pytest.approx((0.1 + 1.2, 0.18 + 1.2))


def test_exchanges_of_the_workers_and_of_those_on_a_node() -> None:
    """A ring of three over nodes: 4/3 of 3e8 bytes at 1e8 bytes/s; of two in a node: 3e8 at 1e9."""
    config = placed(made(3), [0, 1, 4])
    config.work_out()
    assert config.exchange.alone_s == pytest.approx(4 * 0.001 + 4.0)
    assert config.near.alone_s == pytest.approx(2 * 0.001 + 0.3)
    assert config.far_ratio == 0.5
    assert placed(made(2), [4, 5]).far_ratio == 1.0  # all are near
    assert config.pushes == []
    pushing = placed(made(3, exchange=EXCHANGE | {"algorithm": "async-parameter-server", "servers": 2}), [0, 1, 4])
    pushing.work_out()
    # Both servers are on node 0: half of 6e8 bytes through node 2's interface each way.
    assert [push.alone_s for push in pushing.pushes] == pytest.approx([0.602, 0.602, 3.002])
    assert not pushing.near.happens
    spread = placed(made(4, exchange=pushing.model.exchange.model_dump()), [0, 1, 4, 5])
    spread.work_out()  # a server on each node: a quarter of the volume goes each way between them
    assert [push.alone_s for push in spread.pushes] == pytest.approx([1.502] * 4)


def test_an_exchange_is_estimated_on_the_fewest_nodes() -> None:
    """Four workers fit into the large node; six need another; halves in two racks cross the network."""
    config = made(4)
    assert config.exchange_estimate_s(0, 4) == pytest.approx(6 * 0.001 + 1.5 * 0.3)
    assert config.exchange_estimate_s(0, 6) == pytest.approx(10 * 0.001 + 10 / 6 * 3)
    assert config.exchange_estimate_s(0, 8) == pytest.approx(14 * 0.001 + 14 / 8 * 3)
    assert config.exchange_estimate_s(0, 1) == 0.0
    two = made(4, kind="h100_sxm")  # three on its two nodes, though the others would hold them all
    assert two.exchange_estimate_s(0, 3) == pytest.approx(4 * 0.001 + 4 / 3 * 3)
    assert two.exchange_estimate_s(1, 3) == pytest.approx(4 * 0.001 + 4 / 3 * 0.3)
    assert placed(two, [1, 4])._accelerator == "generic"
    assert math.isnan(config.exchange_estimate_s(0, 9))
    assert math.isnan(config.exchange_estimate_s(0, 0))
    assert math.isnan(config.exchange_estimate_s(0, 4, True))  # all are in one rack
    racks = made(4, topology={"kind": "tree", "nodes_per_rack": 1})
    assert racks.exchange_estimate_s(0, 4, True) == pytest.approx(6 * 0.001 + 4.5)
    assert racks.exchange_estimate_s(0, 5, True) == pytest.approx(8 * 0.001 + 4.8)
    assert math.isnan(racks.exchange_estimate_s(0, 9, True))  # four beside five: there are four elsewhere


def test_replicas_of_several_gpus_wait_in_their_pipeline() -> None:
    """A bubble of 1/4 of the work: a fifth of two GPUs; a replica on two nodes is as slow as its slowest GPU."""
    config = placed(made(4, parallel={"pipeline": 2, "pipeline_microbatches": 4}), [4, 5, 6, 7])
    config.cluster.gpu_time[5] = 2.0
    config.work_out()
    assert config.divided
    assert config.gpu.tolist() == [4, 6]
    assert config.samples.tolist() == [6, 6]
    assert config.bubble_weight == pytest.approx([0.4, 0.4])
    assert config.inside_weight.tolist() == [0, 0]
    assert config.busy_weight == pytest.approx([1.6, 1.6])
    assert config.compute_s == pytest.approx([2 * 0.1, 0.1])  # 0.16 s times 1.25 over two GPUs
    inside = placed(made(2, parallel={"tensor": 2, "tensor_bytes_per_sample": 4e9}), [4, 5])
    inside.work_out()  # 48e9 bytes at 300e9 bytes/s, beside 0.11 s of work
    assert inside.inside_weight == pytest.approx([2 * 0.16 / 0.27])
    assert inside.busy_weight == pytest.approx([2 * 0.11 / 0.27])
    assert placed(made(4, parallel={"tensor": 2}), [0, 4, 5, 6]).fabric_bytes_per_s == 1e8
    assert placed(made(4, parallel={"tensor": 2}), [4, 5, 6, 7]).fabric_bytes_per_s == 300e9
    assert placed(made(4, parallel={"pipeline": 2}), [0, 4, 5, 6]).fabric_bytes_per_s == 300e9


def test_memory_left_at_the_present_deal() -> None:
    """80 GB hold 64 samples beside 16 GB; a worker with more computes them in passes and fills it."""
    config = placed(made(2, batch=80, parameters=1e9, memory={"activation_per_sample": 1e9}), [4, 5])
    config.set_samples(np.array([70, 10]))
    most, free = config.pass_limits()
    assert most.tolist() == [64, 64]
    assert free == pytest.approx([0.0, 54e9], abs=1.0)
    assert config.cost_s(0, 64, 2) == pytest.approx((0.1, 0.74))
    assert config.cost_s(0, 65, 2) == pytest.approx((0.2, 0.85))
    assert config.fewest == 1
