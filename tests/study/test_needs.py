import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies.physics import hidden_s, speed_at
from equipoise.sim.cost.step import replica_cost_s
from equipoise.sim.hardware.profile import Accelerator, Fabric, HardwareProfile
from equipoise.sim.scenario.model import ClusterSpec, JobSpec, Model
from equipoise.study.needs import (
    Capacity,
    best_efficiency,
    best_interval_s,
    never_worse_when_larger,
    target_samples,
    worker_range,
)

CARD = {
    "flop_per_s": {"bf16": 1e14},
    "hbm_bytes_per_s": 1e12,
    "memory_bytes": 80e9,
    "launch_latency_s": 1e-4,
    "efficiency": [
        {"flop": 1e9, "efficiency": 0.1},
        {"flop": 1e11, "efficiency": 0.6},
        {"flop": 1e12, "efficiency": 0.4},
    ],
}
INSIDE = {"tier": "intra", "collective": "all_reduce", "alpha_s": 1e-5, "bytes_per_s": 1e11}
PROFILE = HardwareProfile.model_validate({"name": "made up", "accelerators": {"card": CARD}})


def capacity(*nodes, **cluster):
    named = [{"accelerator": "card"} | node for node in nodes]
    return Capacity(ClusterSpec.model_validate({"nodes": named} | cluster), PROFILE)


def fitted(**changes):
    return Model.model_validate({"fixed_time": 0.0, "sample_time": 1e-3} | changes)


def job(**changes):
    return JobSpec.model_validate({"model": "m", "gpus": 8, "steps": 100, "global_batch": 96} | changes)


def test_eight_nodes_of_two_speeds_by_hand():
    # 4 full and 4 half-speed GPUs make 6: 96 ms of work a step take 16 ms, the fast ones 16 samples each.
    cluster = capacity({"count": 4}, {"name": "slow", "count": 4, "speed": 0.5})
    fastest_s, gpu_s = cluster.training(job(), fitted())
    assert fastest_s == pytest.approx(100 * 0.016, rel=1e-8)
    assert gpu_s == pytest.approx([9.6, 19.2], rel=1e-8)


def test_a_fixed_cost_per_pass_is_paid_by_every_worker_that_takes_part():
    # 4 GPUs, 10 ms a pass: 96 samples in 4 parts of 24 take 34 ms. One alone would take 106 ms.
    fastest_s, gpu_s = capacity({"count": 4}).training(job(), fitted(fixed_time=0.01))
    assert fastest_s == pytest.approx(100 * 0.034, rel=1e-8)
    assert gpu_s == pytest.approx([100 * 0.106], rel=1e-8)


def test_input_pipeline_bounds_the_duration_not_the_gpu_seconds():
    fastest_s, gpu_s = capacity({"count": 4, "ingest": 500.0}).training(job(), fitted())
    assert fastest_s == pytest.approx(9600 / (4 * 500), rel=1e-8)
    assert gpu_s == pytest.approx([9.6], rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0.5, 0.8, 1.0, 1.7]), min_size=1, max_size=3),
    st.integers(1, 9),
    st.sampled_from([0.0, 1e-3, 2e-2]),
    st.sampled_from([None, 2, 3]),
)
def test_no_deal_of_the_batch_beats_the_shortest_step(speeds, batch, fixed, per_pass):
    model = fitted(fixed_time=fixed, samples_per_pass=per_pass)
    cluster = capacity(*({"name": f"n{k}", "speed": s} for k, s in enumerate(speeds)))
    fastest_s, gpu_s = cluster.training(job(global_batch=batch, steps=1, gpus=len(speeds)), model)
    card, least_s, least_gpu_s = PROFILE.accelerator("card"), np.inf, np.inf
    for dealt in itertools.product(range(batch + 1), repeat=len(speeds)):
        if sum(dealt) != batch:
            continue
        work = [replica_cost_s(model, card, b, 1e9)[1] / s for b, s in zip(dealt, speeds, strict=True)]
        least_s = min(least_s, max(work))
        weighted = sum(w * s for w, s in zip(work, speeds, strict=True)) / max(speeds)
        least_gpu_s = min(least_gpu_s, weighted)
    assert fastest_s <= least_s * (1 + 1e-12)
    assert gpu_s.min() <= least_gpu_s * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 64), st.sampled_from([1e8, 3e10, 1e12]), st.integers(1, 60))
def test_no_pass_beats_the_least_seconds_per_sample_of_a_roofline(batch, per_pass, flop, samples):
    model = Model.model_validate(
        {"kind": "large-products", "flop_per_sample": flop, "bytes_per_sample": 1e6, "samples_per_pass": per_pass}
    )
    _, gpu_s = capacity({}).training(job(global_batch=batch, steps=1, gpus=1), model)
    taken = min(samples, batch)
    real = replica_cost_s(model, PROFILE.accelerator("card"), taken, 1e9)[1]
    assert gpu_s[0] / batch <= real / taken * (1 + 1e-12)


@given(st.floats(0.01, 1.0), st.floats(0.01, 2.0))
def test_no_fraction_of_a_gpu_beats_the_least_gpu_seconds(share, kappa):
    _, shared = capacity({}).training(job(gpus=1), fitted(share_kappa=kappa))
    _, whole = capacity({}).training(job(gpus=1), fitted())
    assert shared[0] <= whole[0] * share / speed_at(share, kappa) * (1 + 1e-12)


RING = {"gradient": 100e6, "drift": 0.01, "exchange": {"alpha": 1e-3, "rate": 1e9}}


def test_exchange_by_hand():
    # 8 workers: 14 messages of 1 ms and 175 MB at 1 GB/s, 189 ms; one card at 500 MB/s makes it 364 ms.
    work_s = 0.012
    for nic, exchange_s in ((2e9, 0.189), (0.5e9, 0.364)):
        cluster = capacity({"count": 7, "nic": 2e9}, {"name": "last", "nic": nic})
        fastest_s, _ = cluster.training(job(), fitted(**RING))
        assert fastest_s == pytest.approx(100 * best_interval_s(work_s, exchange_s, 1.0, 0.01), rel=1e-8)
    assert best_interval_s(work_s, 0.189, 1.0, 0.01) < work_s + 0.189 / 10


def test_workers_of_one_node_exchange_inside_it():
    profile = PROFILE.model_copy(update={"fabrics": (Fabric.model_validate(INSIDE),)})
    spec = {"nodes": [{"accelerator": "card", "count": 2, "gpus": 4, "nic": 1e6}]}
    cluster = Capacity(ClusterSpec.model_validate(spec), profile)
    model = fitted(gradient=100e6, drift=1.0)
    fastest_s, _ = cluster.training(job(gpus=4), model)
    assert fastest_s == pytest.approx(100 * (0.024 + 6 * 1e-5 + 0.15 / 100), rel=1e-8)


@given(
    st.floats(1e-3, 1.0),
    st.floats(0.0, 5.0),
    st.floats(1.0, 8.0),
    st.sampled_from([0.0, 1e-3, 0.05, 0.7, 1.0, 3.0]),
    st.integers(1, 400),
)
def test_no_interval_beats_the_best(work_s, exchange_s, overlap, drift, interval):
    last = hidden_s(work_s, exchange_s, overlap)
    per_step = (interval * work_s + exchange_s - last) / interval * (1 + drift * (interval - 1))
    assert best_interval_s(work_s, exchange_s, overlap, drift) <= per_step * (1 + 1e-12)


def test_more_workers_than_asked_count_only_when_the_job_is_elastic():
    assert worker_range(job(), fitted()) == (8, 8)
    assert worker_range(job(workers_min=2, workers_max=20), fitted()) == (2, 20)
    assert worker_range(job(), fitted(parallel={"tensor": 2, "pipeline": 2})) == (2, 2)
    four, eight = ({"count": n} for n in (4, 8))
    assert capacity(eight).training(job(gpus=4), fitted())[0] == capacity(four).training(job(), fitted())[0]


def test_best_efficiency():
    # M0 = 48 of M = 96 with phi = 48: (48 + 48) / (48 + 96) = 2/3.
    model = fitted(noise_scale=48.0)
    assert best_efficiency(job(batch_reference=48), model) == pytest.approx(2 / 3)
    assert best_efficiency(job(batch_reference=48), fitted()) == 1.0
    # An epoch of 240: 96 + 96 + 48, and the last batch is the reference batch itself.
    uneven = job(batch_reference=48, data={"samples": 240})
    assert best_efficiency(uneven, model) == pytest.approx((192 * 2 / 3 + 48) / 240)


@pytest.mark.parametrize(
    ("target", "samples"),
    [
        ({"steps": 10}, 960.0),
        ({"steps": None, "samples": 77}, 77.0),
        ({"steps": None, "epochs": 1.5, "data": {"samples": 40}}, 60.0),
    ],
)
def test_targets(target, samples):
    assert target_samples(job(**target)) == samples


def test_efficiency_curve_is_raised_to_its_running_maximum():
    raised = never_worse_when_larger(Accelerator.model_validate(CARD))
    assert [p.efficiency.value for p in raised.efficiency] == [0.1, 0.6, 0.6]
