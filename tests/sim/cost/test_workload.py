"""Step and exchange costs against closed forms."""

from __future__ import annotations

import math

import pytest

from equipoise.sim.cost.step import make_exchange, replica_cost_s, single_gpu_cost_s
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import ClusterSpec, Model

PROFILE = load_profile("catalogue")
GENERIC = PROFILE.accelerator("generic")
ALPHA, RATE = 1e-5, 1e9


def model(**keys: object) -> Model:
    base: dict[str, object] = {"sample_time": 0.002, "exchange": {"alpha": ALPHA, "rate": RATE}}
    return Model.model_validate(base | keys)


def topology(nodes: int, gpus: int = 1, nic: float = 1.25e10) -> Topology:
    return Topology(ClusterSpec.model_validate({"nodes": [{"count": nodes, "gpus": gpus, "nic": nic}]}))


def exchange(algorithm: str, nodes: list[int], size: float = 1e8, **keys: object):
    spec = {"algorithm": algorithm, "alpha": ALPHA, "rate": RATE} | keys
    case = model(gradient=size, exchange=spec)
    return make_exchange(case, nodes, topology(max(nodes) + 1, 4), PROFILE, "generic")


@pytest.mark.parametrize("n", [2, 3, 8, 17])
def test_uncontended_exchange_times(n: int) -> None:
    nodes, size = list(range(n)), 1e8
    assert exchange("ring", nodes).alone_s == pytest.approx(2 * (n - 1) * ALPHA + 2 * (n - 1) / n * size / RATE)
    rounds = math.ceil(math.log2(n))
    sent = {2: 1.0, 3: 1.5}.get(n, 2.0)  # gradients, by the busiest node: S/2 up and S/2 to each of its children
    assert exchange("tree", nodes).alone_s == pytest.approx(2 * rounds * ALPHA + sent * size / RATE)
    for servers in (1, 2):
        expected = 2 * (ALPHA + size * max(n / servers, 1) / RATE)
        assert exchange("parameter-server", nodes, servers=servers).alone_s == pytest.approx(expected)


def test_hierarchical_exchange_sends_a_part_over_the_network() -> None:
    nodes, size = [0, 0, 0, 0, 1, 1, 1, 1], 1e8
    inside = PROFILE.fabric("intra", "all_reduce")
    alpha, rate = inside.constants_at(size)
    expected = 2 * 3 * (alpha + size / 4 / rate) + 2 * 1 * ALPHA + 2 * (1 / 2) * size / 4 / RATE
    assert exchange("hierarchical", nodes).alone_s == pytest.approx(expected)
    flat = exchange("ring", [0, 1, 2])
    assert exchange("hierarchical", [0, 1, 2]).alone_s == flat.alone_s


def test_a_slow_link_and_compression_and_zero_change_the_exchange() -> None:
    case = model(gradient=1e8)
    slow = make_exchange(case, [0, 1], topology(2, nic=1e8), PROFILE, "generic")
    assert slow.alone_s == pytest.approx(2 * ALPHA + 1e8 / 1e8)
    packed = exchange("ring", [0, 1], compression=0.1, compression_time=0.03)
    assert packed.alone_s == pytest.approx(2 * ALPHA + 0.03 + 1e7 / RATE)
    sharded = make_exchange(model(gradient=1e8, parallel={"zero": 3}), [0, 1], topology(2), PROFILE, "generic")
    assert sharded.volume_bytes == pytest.approx(1.5e8)


def test_fitted_step_counts_passes() -> None:
    case = model(fixed_time=0.01, samples_per_pass=8)
    assert single_gpu_cost_s(case, GENERIC, 20) == pytest.approx((0.03, 0.03 + 20 * 0.002))
    assert single_gpu_cost_s(case, GENERIC, 0) == (0.0, 0.0)


def test_roofline_takes_the_slower_of_compute_and_memory() -> None:
    base = {"sample_time": None, "fixed_time": 0.0, "precision": "bf16"}
    h100 = PROFILE.accelerator("h100_sxm")
    compute = model(**base, kind="large-products", flop_per_sample=1e12)
    peak = h100.peak_flop_per_s("bf16") * h100.efficiency_at(8e12)
    assert single_gpu_cost_s(compute, h100, 8)[1] == pytest.approx(8e12 / peak)
    memory = model(**base, kind="large-products", flop_per_sample=1.0, bytes_per_sample=1e9)
    assert single_gpu_cost_s(memory, h100, 8)[1] == pytest.approx(8e9 / h100.hbm_bytes_per_s.value)
    again = model(**base, kind="large-products", flop_per_sample=1e12, memory={"recompute": True})
    assert single_gpu_cost_s(again, h100, 8)[1] > 1.3 * single_gpu_cost_s(compute, h100, 8)[1]


def test_model_parallel_replicas_pay_bubble_and_reductions() -> None:
    case = model(parallel={"tensor": 2, "pipeline": 4, "pipeline_microbatches": 12, "tensor_bytes_per_sample": 1e6})
    _, total = replica_cost_s(case, GENERIC, 16, 1e9)
    bubble = 1 + 3 / 12
    assert total == pytest.approx(16 * 0.002 / 8 * bubble + 2 * 0.5 * 1e6 * 16 / 1e9 / 4 * bubble)
