"""Laws of the step time and of the memory, and a fit that finds known constants."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.llm.fit import PRIORS, FittedStack, fit, left_out_residuals, predict, spread
from equipoise.sim.llm.hardware import ACCELERATORS, NetworkRates
from equipoise.sim.llm.memory import memory, smallest_change, usable_bytes
from equipoise.sim.llm.memory_stack import MemoryStack
from equipoise.sim.llm.quantities import ShardingPlan, quantities
from equipoise.sim.llm.shape import Layout, Transformer
from equipoise.sim.llm.stack import STACKS, Stack
from equipoise.sim.llm.step_time import StepEstimate, step_time, step_times

SHAPE = Transformer(32, 4096, 32, 14_336, 128_256, 4096, kv_heads=8, gated=True)
H100, NETWORK = ACCELERATORS["H100"], NetworkRates(8, 400e9)
POWERS = st.sampled_from([1, 2, 4, 8])


def plan(**layout: object) -> ShardingPlan:
    return ShardingPlan(SHAPE, Layout(**layout), H100, NETWORK)  # type: ignore[arg-type]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tensor, pipeline, data, micro = draw(POWERS), draw(POWERS), draw(POWERS), draw(POWERS)
    virtual = draw(st.sampled_from([1, 2])) if pipeline > 1 else 1
    return Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        virtual=virtual,
        schedule="interleaved" if virtual > 1 else draw(st.sampled_from(["1f1b", "zero-bubble"])),
        sequence_parallel=draw(st.booleans()),
        zero=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        precision=draw(st.sampled_from(["bf16", "fp8"])),
        micro_batch=micro,
        global_batch=data * micro * draw(st.integers(1, 16)),
    )


@given(layouts())
def test_every_part_is_finite_and_none_is_negative(layout: Layout) -> None:
    times = step_time(ShardingPlan(SHAPE, layout, H100, NETWORK), Stack())
    for field in fields(StepEstimate):
        assert 0 <= getattr(times, field.name) < np.inf, field.name
    assert times.total > 0


@given(layouts(), st.integers(2, 4))
def test_more_samples_take_longer(layout: Layout, more: int) -> None:
    larger = replace(layout, global_batch=more * layout.global_batch)
    short, long = (step_time(ShardingPlan(SHAPE, la, H100, NETWORK), Stack()).total for la in (layout, larger))
    assert short < long <= more * short * (1 + 1e-9)


def test_one_accelerator_exchanges_nothing_and_has_no_bubble() -> None:
    times = step_time(plan(global_batch=4), Stack())
    assert times.tensor == times.send == times.bubble == times.exchange == times.context == times.expert == 0


def test_what_is_exchanged_again_is_an_exchange_and_what_is_recomputed_is_computing() -> None:
    """Forward has half of a layer's all-reduces over the tensor group, and is run once more."""
    layout = Layout(tensor=8, global_batch=4)
    whole = replace(layout, recompute="full")
    plain, again = (step_time(ShardingPlan(SHAPE, la, H100, NETWORK), Stack()) for la in (layout, whole))
    assert again.tensor == pytest.approx(1.5 * plain.tensor)
    slow = Stack(tensor_efficiency=Stack().tensor_efficiency / 10)
    assert step_time(ShardingPlan(SHAPE, whole, H100, NETWORK), slow).recompute == again.recompute > 0


def test_the_bubble_is_that_of_the_real_number_of_micro_batches() -> None:
    stack = Stack(send_latency_s=0.0, send_efficiency=1e9, step_s=0.0)
    shape = replace(SHAPE, vocab=1)
    base = ShardingPlan(shape, Layout(pipeline=4, global_batch=8), H100, NETWORK)
    times = step_time(base, stack)
    busy = times.products + times.attention + times.elementwise + times.head
    assert times.bubble / busy == pytest.approx(3 / 8, rel=1e-3)
    chunks = replace(base.layout, schedule="interleaved", virtual=4)
    assert step_time(replace(base, layout=chunks), stack).bubble == pytest.approx(times.bubble / 4, rel=1e-6)


def test_full_recomputation_is_one_more_forward() -> None:
    stack = Stack(
        host_s_per_layer=0.0, host_s_per_pass=0.0, attention_efficiency=1e9, elementwise_bytes=0.0, score_bytes=0.0
    )
    times = step_time(plan(global_batch=1, recompute="full"), stack)
    assert times.recompute == pytest.approx(times.products / 3, rel=1e-3)


def test_sharded_parameters_are_gathered_for_every_micro_batch() -> None:
    slow = NetworkRates(8, 1e9)
    stack = Stack(overlap=1.0)
    few, many = (
        step_time(ShardingPlan(SHAPE, Layout(data=16, zero=3, global_batch=16 * n), H100, slow), stack).exchange
        for n in (1, 4)
    )
    assert many == pytest.approx(4 * few)
    whole = [
        step_time(ShardingPlan(SHAPE, Layout(data=16, global_batch=16 * n), H100, slow), stack).exchange for n in (1, 4)
    ]
    assert whole[1] == pytest.approx(whole[0])


def test_a_tensor_group_over_two_nodes_is_slower() -> None:
    shape = replace(SHAPE, heads=64, head_size=64, kv_heads=16)
    inside = step_time(ShardingPlan(shape, Layout(tensor=8, global_batch=1), H100, NETWORK), Stack()).tensor
    across = step_time(ShardingPlan(shape, Layout(tensor=16, global_batch=1), H100, NETWORK), Stack()).tensor
    assert across > 2 * inside


@given(layouts())
def test_more_tensor_ranks_never_need_more_memory(layout: Layout) -> None:
    shape = replace(SHAPE, heads=64, head_size=64, kv_heads=64)
    narrow, wide = (
        memory(ShardingPlan(shape, replace(layout, tensor=t), H100, NETWORK), MemoryStack()).peak
        for t in (layout.tensor, 2 * layout.tensor)
    )
    assert wide <= narrow


@given(layouts())
def test_zero_stages_and_recomputation_never_need_more_memory(layout: Layout) -> None:
    def peak(**change: object) -> float:
        changed = replace(layout, **change)  # type: ignore[arg-type]
        return memory(ShardingPlan(SHAPE, changed, H100, NETWORK), MemoryStack()).peak

    assert peak(zero=0) >= peak(zero=1) >= peak(zero=2)
    assert peak(recompute="none") >= peak(recompute="selective")
    assert peak(offload=True) < peak(offload=False)


def test_the_smallest_change_that_fits() -> None:
    stack = MemoryStack()
    assert smallest_change(plan(tensor=8, zero=1, data=8, global_batch=8, sequence_parallel=True), stack) is not None
    tight = plan(data=64, global_batch=64, micro_batch=1)
    assert not memory(tight, stack).fits
    changed = smallest_change(tight, stack)
    assert changed is not None
    assert changed.layout.zero == 1
    assert memory(changed, stack).fits
    huge = ShardingPlan(replace(SHAPE, layers=2000), Layout(), H100, NETWORK)
    assert smallest_change(huge, stack) is None


def grid() -> list[ShardingPlan]:
    plans = []
    for layers, hidden in ((12, 1024), (24, 2048), (32, 4096)):
        shape = Transformer(layers, hidden, hidden // 64, 4 * hidden, 50_000, 2048)
        for tensor in (1, 2, 8):
            for pipeline in (1, 4):
                for micro in (1, 4):
                    layout = Layout(data=4, tensor=tensor, pipeline=pipeline, micro_batch=micro, global_batch=128)
                    plans.append(ShardingPlan(shape, layout, H100, NETWORK))
    return plans


def test_a_fit_finds_known_constants() -> None:
    truth = Stack(matmul_efficiency=0.55, elementwise_bytes=40.0, tensor_efficiency=0.4, tensor_latency_s=60e-6)
    q = quantities(grid())
    measured = np.asarray(step_times(q, truth).total)
    fitted = fit(q, measured, {})
    assert np.median(np.abs(predict(fitted, q, {}) / measured - 1)) < 0.005
    assert fitted.common["matmul_efficiency"] == pytest.approx(0.55, rel=0.1)
    assert fitted.common["tensor_efficiency"] == pytest.approx(0.4, rel=0.2)


def test_a_label_never_seen_gets_the_common_value() -> None:
    centre = {name: prior.centre for name, prior in PRIORS.items()}
    fitted = FittedStack(centre, {("elementwise_bytes", "slow"): 2.0})
    assert fitted.value("elementwise_bytes", "slow") == 2 * fitted.value("elementwise_bytes", "other")


def test_an_interval_of_few_families_reaches_their_worst_residual() -> None:
    assert spread(np.log([0.8, 1.0, 1.25]), ["a", "b", "c"]) == pytest.approx((0.8, 1.25))
    many = np.linspace(-1, 1, 2001)
    low, high = spread(many, [str(i) for i in range(2001)])
    assert (np.log(low), np.log(high)) == pytest.approx((-0.9, 0.9), abs=0.01)


def test_an_interval_lies_between_the_residuals_by_hand() -> None:
    """Ten families: of half a tenth to each end and one to come, 0.175 of the weight is left out on each side."""
    low, high = spread(np.arange(10) / 10, [str(k) for k in range(10)], 0.5)
    assert np.log([low, high]) == pytest.approx([0.125, 0.775])
    twice = spread(np.repeat(np.arange(10) / 10, 2), [str(k // 2) for k in range(20)], 0.5)
    assert np.log(twice[0]) == pytest.approx(0.1)  # both of a family count half


def test_residuals_are_of_a_fit_without_the_family() -> None:
    q = quantities(grid())
    measured = np.asarray(step_times(q, Stack()).total)
    families = [str(i // 12) for i in range(len(measured))]
    measured = measured * np.where(np.array(families) == "2", 1.5, 1.0)
    fitted = fit(q, measured, {})
    left = left_out_residuals(q, measured, {}, families, fitted)
    assert np.median(left[24:]) > 0.2
    with pytest.raises(ValueError, match="families: at least two"):
        left_out_residuals(q, measured, {}, ["a"] * len(measured), fitted)


def test_known_stacks_predict_a_plausible_utilisation() -> None:
    for name, stack in STACKS.items():
        accelerator = ACCELERATORS["H100" if name.endswith("H100") else "A100-80GB"]
        layout = Layout(data=8, tensor=4, sequence_parallel=True, micro_batch=2, global_batch=256)
        one = ShardingPlan(SHAPE, layout, accelerator, NETWORK)
        flop = SHAPE.train_flop_per_token() * layout.global_batch * SHAPE.sequence / layout.gpus
        assert 0.2 < flop / (step_time(one, stack).total * accelerator.flop_per_s) < 0.7, name


def test_memory_of_accelerators_is_what_their_drivers_show() -> None:
    """A vendor's GB are GiB, less what drivers keep, GDDR6 less 1 / 16; what ran at 81.5 GB fits an H100."""
    catalogue = load_profile("catalogue").accelerators
    told = {
        "v100_sxm2_32gb": 32,
        "a100_sxm_40gb": 40,
        "a100_sxm_80gb": 80,
        "h100_sxm": 80,
        "h100_pcie": 80,
        "h200_sxm": 141,
        "b200": 180,
        "l40s": 45,
        "a10": 22.5,
        "t4": 15,
        "mi300x": 192,
        "tpu_v5e": 16,
    }
    assert catalogue.keys() >= told.keys()
    for name, size in told.items():
        assert 0.97 <= catalogue[name].memory_bytes.value / (size * 2**30) <= 0.995, name
    for name, known in (("V100-32GB", "v100_sxm2_32gb"), ("A100-40GB", "a100_sxm_40gb"), ("H200", "h200_sxm")):
        assert ACCELERATORS[name].memory_bytes == pytest.approx(catalogue[known].memory_bytes.value, rel=1e-4)
    assert usable_bytes(H100) > 81.5e9


def test_elements_of_a_layer_with_shared_experts_by_hand() -> None:
    """Gate, up and their product of 6 routed and 2 shared experts of width 100, and the queries; and the stream."""
    experts = replace(SHAPE, experts=16, top_k=6, shared_experts=2, expert_ffn=100)
    q = quantities([ShardingPlan(shape, Layout(), H100, NETWORK) for shape in (SHAPE, experts)])
    each = [4096 * (4096 + (3 * width + 4096) / 2) for width in (14_336, 8 * 100)]
    assert q.elementwise_elements.tolist() == each
