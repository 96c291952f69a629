"""Small plans worked out by hand: what a step computes, sends and keeps, and its time by part."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from equipoise.sim.llm.fit import PRIORS
from equipoise.sim.llm.fit_memory import BOUNDS
from equipoise.sim.llm.hardware import ACCELERATORS, AcceleratorRates, NetworkRates
from equipoise.sim.llm.layout import Layout
from equipoise.sim.llm.memory import MemoryStack, _changes, counts, memory, peaks
from equipoise.sim.llm.memory_stacks import GENERAL, MEMORY_STACKS
from equipoise.sim.llm.quantities import Quantities, ShardingPlan, quantities, stage_parameters
from equipoise.sim.llm.search import Found, Search, _layouts, _variants, describe, search, why
from equipoise.sim.llm.shape import LatentAttention, Transformer
from equipoise.sim.llm.stack import Stack
from equipoise.sim.llm.step_time import StepEstimate, step_times

ACCELERATOR = AcceleratorRates("small", 1000.0, 3000.0, 1e6, 700.0, 60.0)
DENSE = ShardingPlan(
    Transformer(7, 8, 4, 20, 100, 32, kv_heads=2, head_size=3, gated=True),
    Layout(
        data=4,
        tensor=2,
        context=2,
        pipeline=3,
        sequence_parallel=True,
        zero=2,
        recompute="selective",
        micro_batch=3,
        global_batch=24,
        offload=True,
    ),
    ACCELERATOR,
    NetworkRates(4, 100.0),
    frozen_parameters=60.0,
    exchange_kept=0.5,
    compression_s=0.25,
)
"""48 tokens a micro-batch and rank; 24 elements of queries, keys and values; stages of 3, 2, 2 layers."""
EXPERTS = ShardingPlan(
    Transformer(
        5,
        8,
        8,
        20,
        100,
        32,
        head_size=3,
        tied=True,
        norm="layer",
        bias=True,
        experts=4,
        top_k=2,
        expert_ffn=10,
        shared_experts=1,
        dense_layers=1,
    ),
    Layout(
        data=4,
        tensor=8,
        pipeline=2,
        expert=2,
        virtual=2,
        schedule="interleaved",
        zero=3,
        shard=2,
        recompute="full",
        precision="fp8",
        global_batch=8,
    ),
    ACCELERATOR,
    NetworkRates(4, 50.0),
    head_stage=-2,
)
"""32 tokens, each through three experts of width 10; a tensor group over two nodes; stages of 3, 2 layers."""
LATENT = ShardingPlan(
    Transformer(4, 8, 2, 20, 100, 32, tied=True, qk_norm=True, latent=LatentAttention(3, 5, 2, 1, 4)),
    Layout(pipeline=2, schedule="zero-bubble", precision="fp32", micro_batch=2, global_batch=4),
    ACCELERATOR,
    NetworkRates(4, 100.0),
)
"""64 tokens; weights (3, 8), (6, 3), (6, 8), (12, 5), (8, 8) and of the feed-forward (20, 8), (8, 20)."""
BY_HAND: dict[str, tuple[object, object, object]] = {
    "peak": (1000, 1000, 500),
    "fp8": (0, 1, 0),
    "fp8_peak": (3000, 3000, 3000),
    "memory_rate": (700, 700, 700),
    "product_flop": (
        [9216, 4608, 15_360, 7680, 0, 0, 0, 0],
        [4608, 1536, 1920, 1920, 0, 0, 0, 0],
        [3072, 2304, 6144, 7680, 8192, 20_480, 20_480, 0],
    ),
    "product_bytes": (
        [1728, 1056, 2624, 1504, 0, 0, 0, 0],
        [784, 304, 452, 452, 0, 0, 0, 0],
        [1456, 1188, 1888, 2296, 2176, 3904, 3904, 0],
    ),
    "product_count": (4, 4, 7),
    "attention_flop": (18_432, 6144, 28_672),
    "score_elements": (3072, 1024, 4096),
    "elementwise_elements": (48 * (4 + 18), 32 * (8 + 3.375), 64 * (8 + 14)),
    "layer_parameters": (784 / 2, 1090 / 8 + 712 / 16, 566),
    "head_parameters": (400, 100, 800),
    "recompute_full": (0, 1, 0),
    "recompute_selective": (1, 0, 0),
    "tensor_ranks": (2, 8, 1),
    "tensor_bytes": (768, 896, 0),
    "tensor_steps": (0, 14, 0),
    "pipelined_ranks": (1, 7, 0),
    "link_tensor": (60, 50, 60),
    "context_bytes": (576, 0, 0),
    "link_context": (60, 60, 60),
    "expert_bytes": (0, 0.8 * 1024 / 2, 0),
    "link_expert": (60, 60, 60),
    "moe_share": (0, 0.8, 0),
    "head_flop": (38_400, 6400, 102_400),
    "head_elements": (2400, 400, 6400),
    "stages": (3, 2, 2),
    "virtual": (1, 2, 1),
    "bubble_share": (1, 1 / 2, 1 / 3),
    "layers": (7, 5, 4),
    "plain_layers": (3, 0, 2),
    "head_layers": (2, 3, 2),
    "loss_layers": (2, 2, 2),
    "loss_apart": (0, 1, 0),
    "micro_batches": (2, 2, 2),
    "send_bytes": (384, 512, 1024),
    "link_send": (25, 12.5, 60),
    "stage_parameters": (1576, 617, 2 * 566 + 808),
    "exchange_share": (7 / 8, 528 / 2 / 617, 0),
    "exchange_hops": (3, 1, 0),
    "link_exchange": (50, 12.5, 60),
    "gradient_bytes": (2, 2, 4),
    "sharded_passes": (2, 3, 0),
    "exchange_kept": (0.5, 1, 1),
    "compression_s": (0.25, 0, 0),
    "optimizer_parameters": (197, 528 / 2 + 89, 1940),
    "offload_bytes": (788, 0, 0),
    "tokens_per_step": (768, 256, 128),
    "gpus": (48, 64, 2),
}


def test_what_a_step_computes_and_sends() -> None:
    found = quantities([DENSE, EXPERTS, LATENT])
    told = {f.name: getattr(found, f.name).tolist() for f in fields(Quantities)}
    assert told.keys() == BY_HAND.keys()
    for name, by_hand in BY_HAND.items():
        assert np.allclose(told[name], by_hand, rtol=1e-12, atol=0), (name, told[name])
    assert stage_parameters(DENSE) == ((1576, 0), (784, 0), (1188, 0))
    outside = (2 * 1090 + 1228 + 800 + 16) / 8, 2 * 1090 / 8  # one layer of the first stage has no experts
    assert stage_parameters(EXPERTS) == tuple((held, 2 * 712 / 16) for held in outside)
    with_embedding = 2 * 566 + 808  # once more, for the head
    assert stage_parameters(LATENT) == ((2 * 566 + 800, 0), (with_embedding, 0))


def test_what_changes_with_the_layout() -> None:
    def made(plan: ShardingPlan, **layout: object) -> dict[str, float]:
        found = quantities([replace(plan, layout=replace(plan.layout, **layout))])  # type: ignore[arg-type]
        return {f.name: getattr(found, f.name).tolist()[0] for f in fields(Quantities)}

    parallel = made(EXPERTS, sequence_parallel=True, expert=4)
    assert parallel["expert_bytes"] == pytest.approx(0.8 * 1024 / 8 * 3 / 4)
    assert parallel["link_expert"] == 60  # four in a node
    assert made(DENSE, pipeline=1)["pipelined_ranks"] == 0
    spread = made(LATENT, data=4, global_batch=8, zero=1)
    assert (spread["link_send"], spread["optimizer_parameters"]) == (25, 1940 / 4)
    assert replace(LATENT, layout=Layout(pipeline=4, global_batch=4)).stage_layers() == (1, 1, 1, 1)


def test_flop_of_a_token_with_experts() -> None:
    """Five layers of 768 weights in attention; one of 320 beside it, four of three experts and a router."""
    found = EXPERTS.shape.forward_flop_per_token()
    assert (found.projections, found.scores, found.head) == (2 * 5 * 768, 2 * 5 * 32 * 24, 2 * 100 * 8)
    assert found.feed_forward == 2 * (320 + 4 * (3 * 160 + 32))
    assert EXPERTS.shape.train_flop_per_token() == 3 * (7680 + 7680 + 4736 + 1600)


def test_what_every_stage_keeps() -> None:
    """Columns: gradients, moments, width hidden, such kept whole, inner, scores, around the head, logits, one."""
    weights, kept = counts(DENSE)
    assert weights.tolist() == [2 * (held + 10) for held in (1576, 784, 1188)]
    assert kept.tolist() == [
        [197, 0, 192 * 6, 384, 2304 * 6, 3072, 0, 0, 1],
        [98, 0, 192 * 4, 384, 2304 * 4, 3072, 0, 0, 1],
        [148.5, 0, 192 * 2, 384, 2304 * 2, 3072, 384, 2400, 1],
    ]
    weights, kept = counts(EXPERTS)
    first, last = 528 / 2 + 89, 272.5 / 2 + 89  # two ranks hold the same experts, one of each shard
    assert np.allclose(weights, [2 * (first + 617 / 3), 2 * (last + 361.5 / 2)], rtol=1e-12)
    assert np.allclose(
        kept,
        [
            [first + 617 / 3, first, 256 * (7.5 / 5 + 1), 0, 608, 1024, 256, 400, 1],
            [last + 361.5 / 2, last, 256 * (2.5 / 5 + 1), 0, 608, 1024, 256, 400, 1],
        ],
        rtol=1e-12,
    )
    weights, kept = counts(LATENT)  # nothing is sharded or recomputed; heads of 4 elements
    assert weights.tolist() == [4 * 1932, 4 * 1940]
    inner = 64 * (2 * 8 + 2 * 8 + 2 * 20)
    assert kept.tolist() == [
        [1932, 1932, 512 * 4, 0, inner * 4, 4096 * 4, 0, 0, 1],
        [1940, 1940, 512 * 2, 0, inner * 2, 4096 * 2, 512, 6400, 1],
    ]


def test_memory_by_what_holds_it() -> None:
    stack = MemoryStack(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    found = memory(DENSE, stack, (0.5, 2.0))
    first, last = found.stages[0], found.stages[2]
    assert (first.weights, first.gradients, first.optimizer) == (3172, 197, 0)
    assert (first.activations, first.logits, first.base) == (3 * 1152 + 4 * 384 + 5 * 13_824 + 6 * 3072, 0, 9)
    assert (last.activations, last.logits) == (3 * 384 + 4 * 384 + 5 * 4608 + 6 * 3072 + 7 * 384, 8 * 2400)
    assert last.total == 2396 + 148.5 + last.activations + 19_200 + 9
    assert found.peak == first.total == 3172 + 197 + 92_544 + 9
    assert (found.low, found.high, found.capacity) == (found.peak / 2, found.peak * 2, 0.97e6)
    assert peaks([counts(DENSE)], stack).tolist() == [95_922]
    assert peaks([counts(DENSE)], stack, 2).tolist() == [last.total]
    room = 970_000 - 95_922
    assert memory(DENSE, replace(stack, base_bytes=9.0 + room)).fits
    assert not memory(DENSE, replace(stack, base_bytes=10.0 + room)).fits


def test_changes_are_tried_in_the_order_of_what_they_cost() -> None:
    plain = Layout(data=4, tensor=2, micro_batch=4, global_batch=16)
    assert list(_changes(plain)) == [
        replace(plain, sequence_parallel=True),
        replace(plain, zero=1),
        replace(plain, micro_batch=2),
        replace(plain, micro_batch=1),
        replace(plain, recompute="selective"),
        replace(plain, recompute="full"),
        replace(plain, zero=3),
        replace(plain, data=2, tensor=4),
        replace(plain, data=2, pipeline=2),
        replace(plain, offload=True),
    ]
    least = Layout(recompute="full", offload=True)
    assert not list(_changes(least))
    assert list(_changes(replace(least, context=2))) == [
        replace(least, context=2, zero=1),
        replace(least, context=2, zero=3),
    ]
    spread = replace(least, data=3, tensor=2, sequence_parallel=True, zero=2, global_batch=3)
    assert list(_changes(spread)) == [replace(spread, zero=3)]
    assert list(_changes(replace(spread, zero=3, recompute="selective"))) == [replace(spread, zero=3)]


def rows(**given: list[float]) -> Quantities:
    """Three rows; what is not given is 0, and 1 for a link."""
    n = 3
    fill = {f.name: np.full(n, 1.0 if f.name.startswith("link") else 0.0) for f in fields(Quantities)}
    return Quantities(**{**fill, **{name: np.array(value, dtype=float) for name, value in given.items()}})


def test_the_time_of_a_step_by_part() -> None:
    """Three stages with chunks, all recomputed; two in fp8 with the loss apart and sharded parameters; one rank.

    A layer of the first takes 18 (products: 5 of rates, 1 of overheads, times 3), 9.8 (scores: 2.8 times 3.5),
    12, 10.8 (forward again), 42 (six all-reduces of 7), 4, 12: 108.6 s; the host needs 260 s for the two layers
    of the longest stage. One of the second takes 21 + 7 + 2 = 30 s, and its last stage 30 + 3 + 8 = 41 s.
    """
    q = rows(
        peak=[100, 100, 100],
        fp8=[0, 1, 0],
        fp8_peak=[1000, 400, 0],
        memory_rate=[10, 10, 10],
        product_flop=[[100, 50], [300, 100], [100, 50]],
        product_bytes=[[10, 30], [10, 30], [10, 30]],
        product_count=[2, 2, 2],
        attention_flop=[20, 50, 0],
        score_elements=[10, 0, 0],
        elementwise_elements=[5, 0, 0],
        layer_parameters=[20, 0, 0],
        head_parameters=[10, 10, 0],
        recompute_full=[1, 0, 0],
        recompute_selective=[0, 1, 0],
        tensor_ranks=[2, 1, 1],
        tensor_bytes=[8, 0, 0],
        tensor_steps=[4, 0, 0],
        pipelined_ranks=[1, 0, 0],
        link_tensor=[4, 4, 4],
        context_bytes=[4, 0, 0],
        link_context=[8, 8, 8],
        expert_bytes=[6, 0, 0],
        link_expert=[6, 6, 6],
        head_flop=[100, 100, 100],
        head_elements=[4, 6, 4],
        stages=[3, 2, 1],
        virtual=[2, 1, 1],
        bubble_share=[0.5, 1, 1],
        layers=[5, 2, 1],
        plain_layers=[2, 1, 0],
        head_layers=[1, 1, 1],
        loss_layers=[1, 1, 1],
        loss_apart=[0, 1, 0],
        micro_batches=[4, 2, 1],
        send_bytes=[12, 0, 0],
        link_send=[4, 1, 1],
        stage_parameters=[738, 4, 1],
        exchange_share=[0.5, 0.5, 0],
        exchange_hops=[3, 1, 0],
        link_exchange=[12, 12, 12],
        gradient_bytes=[2, 2, 2],
        sharded_passes=[0, 3, 0],
        exchange_kept=[0.5, 1, 1],
        compression_s=[1, 0, 1],
        optimizer_parameters=[20, 10, 10],
        offload_bytes=[64e9, 0, 0],
    )
    stack = Stack(
        matmul_efficiency=0.5,
        fp8_efficiency=0.25,
        matmul_overhead_s=0.5,
        attention_efficiency=0.25,
        score_bytes=2.0,
        elementwise_bytes=4.0,
        accumulate_bytes=3.0,
        host_s_per_layer=np.array([50.0, 1.0, 1.0]),
        host_s_per_pass=np.array([100.0, 2.0, 2.0]),
        host_s_per_tensor_rank=10.0,
        tensor_efficiency=0.5,
        tensor_latency_s=1.0,
        tensor_hop_s=0.5,
        send_efficiency=0.75,
        send_latency_s=2.0,
        send_exposed=0.25,
        exchange_efficiency=0.5,
        exchange_latency_s=2.0,
        overlap=np.array([2.0, 1.0, 2.0]),
        bubble=0.5,
        head_bytes=5.0,
        optimizer_bytes=7.0,
        step_s=3.0,
    )
    found = step_times(q, stack)
    by_hand = {
        "products": (8 * 18, 2 * 21, 18),
        "attention": (8 * 9.8, 2 * 7, 0),
        "elementwise": (8 * 12, 0, 0),
        "host": (4 * (260 - 217.2), 0, 0),
        "head": (0, 2 * 11, 6 + 2),
        "recompute": (8 * 10.8, 2 * 2, 0),
        "tensor": (8 * 42, 0, 0),
        "context": (8 * 4, 0, 0),
        "expert": (8 * 12, 0, 0),
        "send": (4 * 12 * 0.5, 2 * 4, 0),
        "bubble": (0.25 * (440 + 12), 0.5 * 39, 0),  # the host needs 440 s for the others' layers
        "exchange": (130 / 3, 2 * 14, 0),  # 130 s beside 520 / 3: 3, 4, 5 times 130 / 3
        "optimizer": (14 + 2, 7, 7),
        "fixed": (3, 3, 3),
    }
    for name, seconds in by_hand.items():
        assert np.allclose(getattr(found, name), seconds, rtol=1e-9, atol=1e-9), name
    assert np.allclose(found.total, [sum(part[k] for part in by_hand.values()) for k in range(3)])


def test_layouts_that_are_tried() -> None:
    """By (tensor, pipeline, context): passes of every size that divides, three recomputations, ZeRO 1 and 3."""
    shape = Transformer(4, 64, 4, 64, 100, 8192)
    tried = list(_layouts(shape, 2, 4, 4, "bf16"))
    assert Counter((la.tensor, la.pipeline, la.context) for la in tried) == {
        (1, 1, 1): 1 * 2 * 3,
        (1, 1, 2): 2 * 2 * 3,
        (1, 2, 1): 3 * 3,
        (1, 2, 2): 5 * 3,
        (1, 4, 1): 3 * 3,
        (2, 1, 1): 2 * 2 * 3,
        (2, 1, 2): 3 * 2 * 3,
        (2, 2, 1): 5 * 3,
    }
    assert {la.gpus for la in tried} == {4}
    assert Counter(la.virtual for la in tried if la.pipeline == 2) == {1: 8 * 3, 2: 5 * 3}
    assert {la.sequence_parallel == (la.tensor > 1) for la in tried} == {True}
    assert len(list(_layouts(shape, 1, 1, 1, "bf16"))) == 3  # one rank shards nothing
    deep = Transformer(24, 64, 4, 64, 100, 128)
    chunks = _variants(Layout(pipeline=2, global_batch=2), deep)
    assert [la.virtual for la in chunks] == [1, 6, 12]
    mixed = replace(deep, experts=4, top_k=1, expert_ffn=8)
    assert [la.expert for la in _variants(Layout(data=2, global_batch=2), mixed)] == [1, 2]


def test_the_search_keeps_what_fits_and_times_it() -> None:
    shape = Transformer(2, 64, 4, 128, 100, 64)
    machine = AcceleratorRates("m", 1e12, 0.0, 1e6, 1e9, 1e9)
    stack = MemoryStack(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)  # 2 bytes a parameter, and one
    held = 2 * shape.parameters
    roomy = replace(machine, memory_bytes=2.0 * held)
    found = search(shape, roomy, NetworkRates(1, 1e9), 1, 1, Stack(), stack)
    assert (found.tried, len(found.found), found.smallest_bytes) == (3, 3, held + 1)
    assert [f.plan.layout.recompute for f in found.found] == ["none", "selective", "full"]
    assert [f.peak_bytes for f in found.found] == [held + 1] * 3
    seconds = [f.seconds for f in found.found]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[2]
    full = replace(stack, base_bytes=970_000.0 - held)
    assert len(search(shape, machine, NetworkRates(1, 1e9), 1, 1, Stack(), full).found) == 3
    none = search(shape, replace(machine, memory_bytes=held / 2), NetworkRates(1, 1e9), 1, 1, Stack(), stack)
    assert none == Search((), 3, held + 1)
    with pytest.raises(ValueError, match="no layout of 2 accelerators divides 1 sequences"):
        search(replace(shape, layers=1), roomy, NetworkRates(1, 1e9), 2, 1, Stack(), stack)


def test_why_a_layout_is_the_best_is_said_in_a_sentence() -> None:
    def made(seconds: float, send: float, **layout: int) -> Found:
        times = StepEstimate(seconds - send, *[0.0] * 8, send, *[0.0] * 4)
        plan = replace(DENSE, layout=Layout(**layout, global_batch=16))  # type: ignore[arg-type]
        return Found(plan, times, 0.0)

    alike = made(2.5, 0.0, data=4, micro_batch=2)
    best, other = made(2.0, 0.5, data=4), made(3.0, 1.25, data=2, pipeline=2)
    text = "dp 4, zero 0, micro-batch 1: 2 s a step, the fastest of 3 layouts that fit of 7"
    assert why(Search((best, alike, other), 7, 0.0)) == (
        f"{text}; pp 2, dp 2, zero 0, micro-batch 1 is 50 % slower, most of it by 0.75 s more send"
    )
    assert why(Search((best, alike), 7, 0.0)) == text.replace("of 3", "of 2")
    full = Layout(
        data=2,
        tensor=2,
        context=2,
        pipeline=2,
        expert=2,
        virtual=2,
        schedule="interleaved",
        zero=1,
        recompute="full",
        micro_batch=4,
        global_batch=8,
    )
    words = "tp 2, pp 2, cp 2, ep 2, dp 2, zero 1, 2 chunks a stage, full recomputation, micro-batch 4"
    assert describe(full) == words


def test_accelerators_are_those_of_the_data_sheets() -> None:
    """TFLOP/s dense in 16 bits and in fp8, GB/s of memory, and of NVLink in both directions."""
    told = {
        name: (a.flop_per_s / 1e12, a.fp8_flop_per_s / 1e12, a.memory_bytes_per_s / 1e9, 2 * a.link_bytes_per_s / 1e9)
        for name, a in ACCELERATORS.items()
    }
    assert told == {
        "V100-32GB": (125, 0, 897, 300),
        "A100-40GB": (312, 0, 1555, 600),
        "A100-80GB": (312, 0, 2039, 600),
        "H100": (989, 1979, 3350, 900),
        "H200": (989, 1979, 4800, 900),
        "GH200": (989, 1979, 4000, 900),
        "B200": (2250, 4500, 7700, 1800),
        "GB200": (2500, 5000, 8000, 1800),
    }


def test_each_limit_of_a_layout_and_a_shape() -> None:
    """What is just allowed is, what is just beyond it is refused."""
    shape = Transformer(4, 8, 4, 8, 10, 12, experts=4, top_k=4, expert_ffn=1, dense_layers=3)
    Layout(tensor=4, context=4, expert=4).check(shape)
    Layout(data=4, expert=4, global_batch=4).check(shape)
    for layout, message in (
        (Layout(tensor=3), "tensor: 3 does not divide the 4 heads"),
        (Layout(context=5), "context: 5 does not divide the sequence of 12 tokens"),
        (Layout(data=3, expert=3, global_batch=3), "expert: 3 does not divide the 4 experts"),
        (Layout(data=3, expert=4, global_batch=3), "expert: 4 does not divide the 3 ranks of a pipeline stage"),
    ):
        with pytest.raises(ValueError, match=message):
            layout.check(shape)
    for wrong, message in (
        ({"virtual": 2, "schedule": "interleaved"}, "virtual: needs pipeline > 1"),
        ({"schedule": "interleaved"}, "virtual: 1 does not go with"),
        ({"data": 4, "micro_batch": 2, "global_batch": 12}, "global_batch: 12 is not a multiple"),
        ({"data": 2, "context": 2, "global_batch": 2, "shard": 3}, r"shard: 3 does not divide data x context"),
        ({"zero": -1}, "zero: -1 is not"),
    ):
        with pytest.raises(ValueError, match=message):
            Layout(**wrong)  # type: ignore[arg-type]
    assert Layout(data=2, context=2, global_batch=2, shard=2).shard_ranks == 2
    assert Layout(data=2, context=2, global_batch=2).shard_ranks == 4
    for change, message in (
        ({"layers": 0}, "layers: 0 is not at least 1"),
        ({"dense_layers": 4}, "dense_layers: 4 leaves no layer with experts"),
        ({"top_k": 0}, "top_k: 0 is not between 1 and experts"),
        ({"top_k": 5}, "top_k: 5 is not between 1 and experts"),
        ({"expert_ffn": 0}, "expert_ffn: routed experts need a width"),
        ({"ffn": 0}, "ffn: the dense layers need a width"),
        ({"learned_positions": -1}, "learned_positions: -1 is negative"),
        ({"experts": 0}, "top_k: needs experts >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(shape, **change)  # type: ignore[arg-type]
    assert replace(shape, ffn=0, dense_layers=0).moe_layers == 4
    assert replace(shape, ffn=1).moe_layers == 1


def test_what_is_usual_lies_within_what_is_possible() -> None:
    """No share is above 1 and no time of a part is longer than a fifth of a second."""
    assert PRIORS.keys() == {f.name for f in fields(Stack)}
    for name, prior in PRIORS.items():
        assert 0 < prior.low < prior.centre <= prior.high, name
        assert prior.low <= getattr(Stack(), name) <= prior.high, name
        assert name not in ("send_exposed", "bubble") or prior.high <= 2 * prior.centre, name
        assert not name.endswith("efficiency") or prior.high <= 1, name
        assert not name.endswith("_s") or prior.high <= 0.2, name
        assert max(prior.weight, prior.label_weight) < 1, name
    for field in fields(MemoryStack):
        low, high = BOUNDS[field.name]
        assert 0 < low < high, field.name
        for stack in (MemoryStack(), *(known for known, _ in MEMORY_STACKS.values())):
            assert field.name == "score_bytes" or low <= getattr(stack, field.name) <= high, field.name
    assert all(0.7 < low < 1 < high < 1.7 for _, (low, high) in (GENERAL, *MEMORY_STACKS.values()))
