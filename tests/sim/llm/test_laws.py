"""Laws that hold for every layout of every kind of model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.llm.hardware import ACCELERATORS, Network
from equipoise.sim.llm.layout import Layout
from equipoise.sim.llm.memory import MemoryStack, memory
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.shape import LatentAttention, Transformer

SHAPES = (
    Transformer(20, 1024, 16, 4096, 50_000, 4096, tied=True, norm="layer", bias=True, learned_positions=4096),
    Transformer(18, 2048, 16, 8192, 128_256, 4096, kv_heads=8, gated=True),
    Transformer(16, 1024, 16, 0, 32_000, 4096, gated=True, experts=8, top_k=2, expert_ffn=2048),
    Transformer(
        17, 1024, 16, 8192, 32_000, 4096, gated=True, experts=12, top_k=3, expert_ffn=512, shared_experts=1,
        dense_layers=3, latent=LatentAttention(384, 128, 64, 32, 64),
    ),
)  # fmt: skip
"""Dense and tied, dense and grouped, experts, experts beside dense layers with latent attention."""
POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def plans(draw: st.DrawFn) -> ShardingPlan:
    shape = draw(st.sampled_from(SHAPES))
    data = draw(st.sampled_from([1, 2, 3, 4, 8, 24]))
    tensor, context, micro = draw(POWERS), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    pipeline = draw(st.integers(1, 8))
    virtual = draw(st.integers(1, shape.layers // pipeline)) if pipeline > 1 else 1
    ranks = data * context * tensor
    experts = [n for n in range(1, shape.experts + 1) if shape.experts % n == 0 and ranks % n == 0]
    layout = Layout(
        data=data,
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        expert=draw(st.sampled_from(experts or [1])),
        virtual=virtual,
        schedule="interleaved" if virtual > 1 else draw(st.sampled_from(["1f1b", "zero-bubble"])),
        sequence_parallel=draw(st.booleans()),
        zero=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        precision=draw(st.sampled_from(["bf16", "fp8"])),
        micro_batch=micro,
        global_batch=data * micro * draw(st.integers(1, 16)),
    )
    return ShardingPlan(shape, layout, ACCELERATORS["H100"], Network(8, 400e9))


@given(plans())
def test_all_gpus_together_hold_every_state_once(plan: ShardingPlan) -> None:
    """Weights 2, gradients 4, optimiser 12 bytes a parameter; just once where they are sharded over all ranks.

    A tied embedding is held by the first stage and once more by the last. Sharded weights and their gradients are
    whole for one layer at a time.
    """
    la, shape = plan.layout, plan.shape
    parameters = shape.parameters + (shape.vocab * shape.hidden if shape.tied and la.pipeline > 1 else 0)
    layer = max(shape.dense_layer_parameters, shape.moe_layer_parameters)
    around = (shape.embedding_parameters + shape.head_parameters + layer) / la.tensor
    stages = memory(plan, MemoryStack()).stages
    for name, width, sharded_from in (("optimizer", 12, 1), ("gradients", 4, 2), ("weights", 2, 3)):
        held = sum(getattr(stage, name) for stage in stages) / width * la.gpus / la.pipeline
        assert held >= parameters * (1 - 1e-9), name
        if la.zero >= sharded_from:
            whole = around * la.gpus if la.zero == 3 and name != "optimizer" else 0.0
            assert held <= (parameters + whole) * (1 + 1e-9), name
