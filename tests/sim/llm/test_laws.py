"""Laws that hold for every layout of every kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from equipoise.sim.llm.fit import PRIORS
from equipoise.sim.llm.hardware import ACCELERATORS, NetworkRates
from equipoise.sim.llm.memory import memory
from equipoise.sim.llm.memory_stack import MemoryStack
from equipoise.sim.llm.quantities import ShardingPlan, quantities
from equipoise.sim.llm.shape import LatentAttention, Layout, Transformer
from equipoise.sim.llm.stack import STACKS, Floats, Stack
from equipoise.sim.llm.step_time import step_times

SHAPES = (
    Transformer(20, 1024, 16, 4096, 50_000, 4096, tied=True, norm="layer", bias=True, learned_positions=4096),
    Transformer(18, 2048, 16, 8192, 128_256, 4096, kv_heads=8, gated=True),
    Transformer(16, 1024, 16, 0, 32_000, 4096, gated=True, experts=8, top_k=2, expert_ffn=2048),
    Transformer(
        17,
        1024,
        16,
        8192,
        32_000,
        4096,
        gated=True,
        experts=12,
        top_k=3,
        expert_ffn=512,
        shared_experts=1,
        dense_layers=3,
        latent=LatentAttention(384, 128, 64, 32, 64),
    ),
)
"""Dense and tied, dense and grouped, experts, experts beside dense layers with latent attention."""


def random_plan(random: Random) -> ShardingPlan:
    """A plan that mixes all keys of a layout, on machines of any speed."""
    shape = random.choice(SHAPES)
    data, tensor, context = (random.choice([1, 2, 3, 4, 8, 24]), random.choice([1, 2, 4, 8]), random.choice([1, 2]))
    pipeline, micro = random.randint(1, 8), random.choice([1, 2])
    virtual = random.randint(1, shape.layers // pipeline) if pipeline > 1 else 1
    ranks = data * context * tensor
    experts = [n for n in range(1, shape.experts + 1) if shape.experts % n == 0 and ranks % n == 0]
    recompute = random.choice(["none", "selective", "full"])
    layout = Layout(
        data=data,
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        expert=random.choice(experts or [1]),
        virtual=virtual,
        schedule="interleaved" if virtual > 1 else random.choice(["1f1b", "zero-bubble"]),
        sequence_parallel=random.random() < 0.5,
        zero=random.randint(0, 3),
        recompute=recompute,
        recompute_every=random.choice([1, 2, 3]) if recompute == "full" else 1,
        offload_activations=random.random() < 0.1,
        overlap_experts=random.random() < 0.3,
        fused_attention=random.random() < 0.7,
        precision=random.choice(["bf16", "fp8", "mxfp8", "nvfp4"]),
        micro_batch=micro,
        global_batch=data * micro * random.randint(1, 16),
    )
    machine = random.choice([ACCELERATORS["H100"], ACCELERATORS["B200"]])
    machine = replace(machine, memory_bytes_per_s=machine.memory_bytes_per_s * 4 ** random.uniform(-1, 1))
    return ShardingPlan(
        shape, layout, machine, NetworkRates(random.choice([4, 8]), 400e9 * 10 ** random.uniform(-2, 0))
    )


@pytest.mark.parametrize("seed", range(500))
def test_all_gpus_together_hold_every_state_once(seed: int) -> None:
    """Weights 2, gradients 4, optimiser 12 bytes a parameter; just once where they are sharded over all ranks.

    A tied embedding is held by the first stage and once more by the last. Sharded weights and their gradients are
    whole for one layer at a time.
    """
    plan = random_plan(Random(seed))
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


def timed(found: Sequence[ShardingPlan], stack: Stack) -> Floats:
    """The seconds of every step."""
    return np.asarray(step_times(quantities(found), stack).total)


def random_stack(random: Random) -> Stack:
    return Stack(**{name: prior.low * (prior.high / prior.low) ** random.random() for name, prior in PRIORS.items()})


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 1500), *(pytest.param(k, 3000, marks=pytest.mark.long) for k in range(1, 6))]
)
def test_better_hardware_is_never_slower_and_a_pipeline_no_quicker_than_the_same_work_in_a_row(
    seed: int, count: int
) -> None:
    """With every shipped stack and one of random constants, each 1.1 to 4 times as fast in one respect.

    One micro-batch passes the stages one after the other: what they compute and send takes no less than on one.
    """
    random = Random(seed)
    found = [random_plan(random) for _ in range(count)]
    faster = {
        "rate": lambda a, by: replace(a, flop_per_s=by * a.flop_per_s, fp8_flop_per_s=by * a.fp8_flop_per_s),
        "memory": lambda a, by: replace(a, memory_bytes_per_s=by * a.memory_bytes_per_s),
        "link": lambda a, by: replace(a, link_bytes_per_s=by * a.link_bytes_per_s),
    }
    factors = [1.0 + 3.0 * random.random() ** 2 + 0.1 for _ in found]
    better = {
        name: [replace(p, accelerator=change(p.accelerator, by)) for p, by in zip(found, factors, strict=True)]
        for name, change in faster.items()
    }
    better["network"] = [
        replace(p, network=NetworkRates(p.network.node_gpus, by * p.network.node_bytes_per_s))
        for p, by in zip(found, factors, strict=True)
    ]
    staged = [
        replace(p, layout=replace(p.layout, data=1, context=1, zero=0, expert=1, global_batch=p.layout.micro_batch))
        for p in found
    ]
    alone = [replace(p, layout=replace(p.layout, pipeline=1, virtual=1, schedule="1f1b")) for p in staged]
    for stack in (*STACKS.values(), random_stack(random)):
        before = timed(found, stack)
        for name, plans_ in better.items():
            slower = np.flatnonzero(timed(plans_, stack) > before * (1 + 1e-9))
            assert not len(slower), (name, stack, found[slower[0]], factors[slower[0]])
        updated = replace(stack, optimizer_bytes=0.0)  # stages update their parameters side by side
        short = np.flatnonzero(timed(staged, updated) < timed(alone, updated) * (1 - 1e-9))
        assert not len(short), (stack, staged[short[0]])
