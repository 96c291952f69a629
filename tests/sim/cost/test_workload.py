"""Step and exchange costs against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.sim.cost.lighter import compressed, pruned_shape, teacher_s
from equipoise.sim.cost.memory import fewest_workers, samples_per_pass
from equipoise.sim.cost.step import (
    checkpoint_bytes,
    flow,
    gradient_bytes,
    make_exchange,
    make_near_exchange,
    make_push,
    memory_need_bytes,
    replica_cost_s,
    replica_shares,
    single_gpu_cost_s,
    state_bytes,
)
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.llm.shape import LatentAttention, Transformer
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


def test_nothing_to_exchange() -> None:
    assert not exchange("ring", [0]).happens
    assert not make_exchange(model(), [0, 1], topology(2), PROFILE, "generic").volume_bytes


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


def test_memory_of_a_replica() -> None:
    case = model(parameters=1e9, precision="bf16", memory={"activation_per_sample": 1e8})
    assert memory_need_bytes(case, 4, 8) == pytest.approx(1e9 * (12 + 2 + 2) + 4e8)
    sharded = model(parameters=1e9, precision="bf16", parallel={"zero": 3})
    assert memory_need_bytes(sharded, 4, 8) == pytest.approx(1e9 * 16 / 8)


def test_a_link_that_carries_two_edges_of_a_ring_lets_half_through() -> None:
    """Ranks in turn on two nodes whose interfaces carry 7 bytes/s: 3.5 for each edge."""
    case = model(gradient=8.0, exchange={"algorithm": "ring", "alpha": ALPHA, "rate": RATE})
    made = make_exchange(case, [0, 1, 0, 1], topology(2, 2, nic=7.0), PROFILE, "generic")
    assert made.alone_s == pytest.approx(6 * ALPHA + 2 * (3 / 4) * 8.0 / 3.5)


def test_a_roofline_by_hand() -> None:
    """Ten samples in passes of four take three; the generic GPU: 100 TFLOP/s in bf16, 1 TB/s, 5 us a launch."""
    keys = {"sample_time": None, "efficiency": 0.5, "samples_per_pass": 4}
    compute = model(**keys, kind="large-products", flop_per_sample=1e12, bytes_per_sample=1e6)
    assert single_gpu_cost_s(compute, GENERIC, 10) == pytest.approx((15e-6, 15e-6 + 10 * 0.02))
    moving = model(**keys, kind="large-products", flop_per_sample=1e12, bytes_per_sample=1e11, fixed_time=0.001)
    assert single_gpu_cost_s(moving, GENERIC, 10) == pytest.approx((0.003, 0.003 + 10 * 0.1))
    again = model(**keys, kind="large-products", flop_per_sample=1e12, memory={"recompute": True})
    assert single_gpu_cost_s(again, GENERIC, 10)[1] == pytest.approx(15e-6 + 10 * 0.02 * 4 / 3)
    prompt = GENERIC.model_copy(update={"launch_latency_s": None})
    assert single_gpu_cost_s(compute, prompt, 10) == pytest.approx((0.0, 10 * 0.02))


def test_a_pruned_and_taught_model_by_hand() -> None:
    """A quarter of the work less; the teacher takes 1e12 FLOP of 5e13 per second and sample."""
    lighter = {"pruned": 0.25, "teacher_flop_per_sample": 1e12}
    taught = model(fixed_time=0.01, efficiency=0.5, lighter=lighter)
    assert single_gpu_cost_s(taught, GENERIC, 10) == pytest.approx((0.01, 0.01 + 0.75 * 0.02 + 10 * 0.02))
    assert teacher_s(taught, GENERIC, 10) == pytest.approx(0.2)
    split = model(fixed_time=0.01, parallel={"tensor": 2, "pipeline": 2, "pipeline_microbatches": 4})
    assert replica_cost_s(split, GENERIC, 10, 1e9) == pytest.approx((0.01 * 1.25 / 4, 0.03 * 1.25 / 4))
    tested = model(fixed_time=0.01, evaluation={"every": 100, "samples": 30})
    assert replica_cost_s(tested, GENERIC, 10, 1e9) == pytest.approx((0.01, 0.03 + 0.02 * 0.3 / 3))


def test_what_a_replicas_gpus_do_not_compute() -> None:
    """Bubble of 1/4 of the work; a stage all-reduces 1e6 bytes of 16 samples at 1e9 bytes/s in 4 ms."""
    keys = {"tensor": 2, "pipeline": 4, "pipeline_microbatches": 12, "tensor_bytes_per_sample": 1e6}
    case = model(parallel=keys)
    total_s = (16 * 0.002 / 8 + 0.004) * 1.25
    assert replica_shares(case, GENERIC, 16, 1e9) == pytest.approx((0.2, 0.004 / total_s))
    assert replica_shares(case, GENERIC, 0, 1e9) == (0.0, 0.0)
    assert replica_shares(model(), GENERIC, 16, 1e9) == (0.0, 0.0)
    free = model(sample_time=0.0, parallel={"tensor": 2})
    assert replica_shares(free, GENERIC, 16, 1e9) == (0.0, 0.0)
    pair = model(parallel={"tensor": 2, "tensor_bytes_per_sample": 1e6})
    assert replica_shares(pair, GENERIC, 16, 1e9) == pytest.approx((0.0, 0.5))  # 16 ms of each


@pytest.mark.parametrize(("zero", "state"), [(0, 6 + 2 + 2), (1, 6 / 8 + 2 + 2), (2, 6 / 8 + 2 / 8 + 2), (3, 10 / 8)])
def test_memory_with_all_levers_by_hand(zero: int, state: float) -> None:
    """Four GPUs hold 3/4 of 1e9 parameters, of 10 bytes with moments in 8 bits, and a teacher of 4e8."""
    case = model(
        parameters=1e9,
        precision="fp8",
        samples_per_pass=4,
        memory={"activation_per_sample": 1e8, "recompute": True, "layers": 16},
        parallel={"tensor": 2, "pipeline": 2, "zero": zero},
        lighter={"pruned": 0.25, "moments": "int8", "teacher_parameters": 4e8},
    )
    need = 187.5e6 * state + 4e8 * 2 / 4 + 4 * 0.75e8 / 4 / 4
    assert memory_need_bytes(case, 10, 8) == pytest.approx(need)
    assert memory_need_bytes(case, 2, 8) == pytest.approx(need - 2 * 0.75e8 / 4 / 4)
    assert checkpoint_bytes(case) == pytest.approx(0.75e9 * (4 + 6))
    assert gradient_bytes(case) == pytest.approx(0.75e9 * 2)
    sizes = {name: state_bytes(model(precision=name)) for name in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")}
    assert sizes == {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}


def test_room_for_samples_and_workers_at_the_border() -> None:
    """17 GB hold one sample beside 16 GB of state; four workers of eight hold a quarter of 256 GB and 1 GB."""
    plain = model(parameters=1e9, memory={"activation_per_sample": 1e9})
    assert [samples_per_pass(plain, n * 1e9, 1) for n in (16, 17, 18, 80)] == [0, 1, 2, 64]
    assert samples_per_pass(model(parameters=1e9, samples_per_pass=3), 16e9, 1) == 3
    assert samples_per_pass(model(parameters=1e9, samples_per_pass=3), 15.9e9, 1) == 0
    sharded = model(parameters=16e9, parallel={"zero": 3}, memory={"activation_per_sample": 1e9})
    found = [fewest_workers(sharded, 8, least, [65e9]) for least in (1, 4, 5, 8, 9)]
    assert found == [4, 4, 5, 8, 9]
    assert fewest_workers(sharded, 8, 2, [33e9]) == 8
    assert fewest_workers(sharded, 8, 2, [32e9]) == 2  # there is no room for any


def test_exchanges_with_rates_by_hand() -> None:
    only_messages = exchange("ring", [0, 1], size=0.0)
    assert (only_messages.alone_s, only_messages.rate_bytes_per_s) == (2 * ALPHA, 0.0)
    assert only_messages.happens
    assert not exchange("ring", [0, 1], size=0.0, alpha=0.0).happens
    assert exchange("ring", [0, 1]).rate_bytes_per_s == pytest.approx(RATE)
    assert exchange("tree", [0, 1, 2]).volume_bytes == 2e8
    few = exchange("parameter-server", [0, 1], servers=4)
    assert few.volume_bytes == 2e8  # no faster than each worker sends its gradient
    three = [0, 0, 1, 1, 2, 2]
    inside_alpha_s, inside_rate = PROFILE.fabric("intra", "all_reduce").constants_at(1e8)
    inside_s = 2 * (inside_alpha_s + 0.5e8 / inside_rate)
    found = exchange("hierarchical", three, compression_time=0.5)
    assert found.alone_s == pytest.approx(inside_s + 4 * ALPHA + 0.5 + 2 * 2 / 3 * 0.5e8 / RATE)
    assert found.usage.tolist() == [2.0] * 6  # two rings beside each other
    for zero, volume in ((0, 0.25), (1, 0.625), (2, 0.625), (3, 1.5 * 0.75)):
        case = model(
            gradient=1e8, parallel={"zero": zero}, exchange={"alpha": ALPHA, "rate": RATE, "compression": 0.25}
        )
        assert make_exchange(case, [0, 1], topology(2), PROFILE, "generic").volume_bytes == volume * 1e8
    fabric = PROFILE.fabric("inter", "all_reduce", "generic")
    alpha_s, rate = fabric.constants_at(1e8)
    listed = [
        make_exchange(model(gradient=1e8, exchange=own), [0, 1], topology(2, nic=1e13), PROFILE, "generic")
        for own in ({"alpha": 0.25}, {"rate": 5e6}, {})
    ]
    assert [each.alone_s for each in listed] == pytest.approx(
        [2 * 0.25 + 1e8 / rate, 2 * alpha_s + 20, 2 * alpha_s + 1e8 / rate]
    )


def test_a_flow_is_held_up_by_its_narrowest_link_or_its_cap() -> None:
    links, usage = np.array([1, 2]), np.array([1.0, 4.0])
    own = topology(1, nic=8.0)
    made = flow(3.0, 10.0, 5.0, links, usage, own)
    assert (made.alone_s, made.rate_bytes_per_s) == (3 + 10 / 2, 2.0)
    assert flow(3.0, 10.0, 1.0, links, usage, own).alone_s == 3 + 10
    assert flow(3.0, 10.0, 5.0, links[:0], usage[:0], own).alone_s == 3 + 2
    assert flow(3.0, 0.0, 5.0, links, usage, own).alone_s == 3


def test_groups_exchange_beside_each_other_as_long_as_the_slowest() -> None:
    """Of a ring of three every link carries 4/3 of the gradient, of one of two as much as the gradient."""
    case = model(gradient=1e8, exchange={"alpha": ALPHA, "rate": 1e9})
    nodes, group = np.array([0, 1, 2, 3, 4]), np.array([0, 0, 1, 1, 1])
    made = make_near_exchange(case, nodes, group, topology(5), PROFILE, "generic")
    assert (made.delay_s, made.volume_bytes) == pytest.approx((4 * ALPHA, 4 / 3 * 1e8))
    assert made.alone_s == pytest.approx(4 * ALPHA + 4 / 3 * 1e8 / 1e9)
    assert sorted(made.usage.tolist()) == pytest.approx([0.75] * 4 + [1.0] * 6)
    free = model(gradient=0.0, exchange={"alpha": ALPHA, "rate": 1e9})
    assert make_near_exchange(free, nodes, group, topology(5), PROFILE, "generic").alone_s == 4 * ALPHA


def test_a_push_and_a_pull_by_hand() -> None:
    """Two servers on one node: the worker's interface carries half of the volume each way."""
    case = model(gradient=1e8, exchange={"alpha": ALPHA, "rate": 1e9})
    near, far = (make_push(case, node, [0, 0], topology(2, 4, nic=1e7), PROFILE, "generic").alone_s for node in (0, 1))
    assert near == pytest.approx(2 * ALPHA + 2e8 / 1e9)
    assert far == pytest.approx(2 * ALPHA + 2e8 / 2e7)
    messages = model(gradient=0.0, exchange={"alpha": ALPHA, "rate": 1e9})
    assert make_push(messages, 1, [0], topology(2), PROFILE, "generic").alone_s == 2 * ALPHA
    nothing = model(gradient=0.0, exchange={"alpha": 0.0, "rate": 1e9})
    assert not make_push(nothing, 1, [0], topology(2), PROFILE, "generic").happens
    bytes_alone = model(gradient=1e8, exchange={"alpha": 0.0, "rate": 1e9})
    assert make_push(bytes_alone, 1, [0], topology(2), PROFILE, "generic").alone_s == pytest.approx(0.2)


def test_what_compression_leaves_and_takes_in_32_bits() -> None:
    """Bytes are per element of four; the generic GPU moves 1 TB/s."""
    made = [
        compressed(model(parameters=2400.0, lighter=own), workers, GENERIC, 1e12, 4)
        for workers, own in (
            (2, {"gradients": "int8"}),
            (8, {"gradients": "top-k", "density": 0.05}),
            (8, {"gradients": "powersgd", "rank": 2}),
        )
    ]
    side = 10  # the root of 2400 / 24 layers
    assert np.allclose(made, [(0.25, 4.5), (0.4, 5.0), (4 / side, 6.0)], rtol=1e-12)


def test_a_pruned_shape_keeps_what_is_not_there_and_at_least_one() -> None:
    latent = LatentAttention(query_rank=0, key_value_rank=6, nope_size=3, rope_size=1, value_size=5)
    shape = Transformer(2, 64, 8, 20, 100, 32, latent=latent)
    assert pruned_shape(shape, 0.0) is shape
    half = pruned_shape(shape, 0.5)
    assert (half.ffn, half.expert_ffn, half.head_size, half.hidden) == (10, 0, 4, 64)
    assert half.latent == LatentAttention(0, 3, 2, 1, 2)
