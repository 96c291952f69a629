"""FLOP, bytes and counts of a step from shape, layout, accelerator and network, without fitted constants.

A `Quantities` holds one number per row in every array, so that many plans are timed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from equipoise.sim.llm.hardware import AcceleratorRates, NetworkRates
from equipoise.sim.llm.shape import NARROW, Layout, Transformer
from equipoise.sim.llm.stack import Floats

PRODUCTS = 8
"""Most products of one layer: four of a dense one, up to five of latent attention and two of experts beside."""


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """One row: a shape, a layout, and the machines. `stages` holds the layers of each pipeline stage, head
    excluded.

    Empty `stages`: layers are split evenly, and the first stages take the remainder. `head_stage` and `loss_stage` are
    where the logits and the loss are computed, counted from the end (-1: the last). Of the bytes of
    an exchange `exchange_kept` are left by compression, which takes `compression_s`.
    """

    shape: Transformer
    layout: Layout
    accelerator: AcceleratorRates
    network: NetworkRates
    stages: tuple[int, ...] = ()
    head_stage: int = -1
    loss_stage: int = -1
    exchange_kept: float = 1.0
    compression_s: float = 0.0

    def stage_layers(self) -> tuple[int, ...]:
        """Layers of every pipeline stage; those of further tokens are in the last.

        Raises ValueError where a chunk would have none.
        """
        p, chunks, more = self.layout.pipeline, self.layout.pipeline * self.layout.virtual, self.shape.mtp_layers
        if self.stages:
            return self.stages
        if chunks > self.shape.layers:
            raise ValueError(f"pipeline: {chunks} chunks are more than the {self.shape.layers} layers")
        each, rest = divmod(self.shape.layers, p)
        return tuple(each + (i < rest) + (more if i == p - 1 else 0) for i in range(p))


@dataclass(frozen=True, slots=True)
class Quantities:
    """Numbers of rows, every array of shape (rows,) but `product_*`, (rows, PRODUCTS).

    Per layer, rank and micro-batch, forward: `product_flop`, `product_bytes`, `attention_flop`, `score_elements`,
    `elementwise_elements`, `tensor_bytes` (one all-reduce), `expert_bytes` (one all-to-all), `routed_bytes` (memory
    traffic of ordering tokens by expert and back). Rates are in units per second; `link_*` are bytes per second of the
    link that a group spans. `replica_bytes`: of the exchange between groups that each hold all parameters sharded
    (HSDP); `host_bytes`: of a layer's activations, to host memory and back. The FLOP of experts count as many as
    wide products would do in their time.
    """

    peak: Floats
    fp8: Floats
    fp8_peak: Floats
    memory_rate: Floats
    product_flop: Floats
    product_bytes: Floats
    product_count: Floats
    attention_flop: Floats
    score_elements: Floats
    scores_written: Floats
    elementwise_elements: Floats
    layer_parameters: Floats
    head_parameters: Floats
    recompute_full: Floats
    recompute_selective: Floats
    tensor_ranks: Floats
    tensor_bytes: Floats
    tensor_steps: Floats
    pipelined_ranks: Floats
    link_tensor: Floats
    context_bytes: Floats
    link_context: Floats
    expert_bytes: Floats
    link_expert: Floats
    routed_bytes: Floats
    expert_away: Floats
    expert_hidden: Floats
    head_flop: Floats
    head_elements: Floats
    stages: Floats
    virtual: Floats
    bubble_share: Floats
    layers: Floats
    plain_layers: Floats
    head_layers: Floats
    loss_layers: Floats
    loss_apart: Floats
    micro_batches: Floats
    send_bytes: Floats
    link_send: Floats
    stage_parameters: Floats
    exchange_share: Floats
    exchange_hops: Floats
    link_exchange: Floats
    gradient_bytes: Floats
    sharded_passes: Floats
    exchange_kept: Floats
    compression_s: Floats
    optimizer_parameters: Floats
    offload_bytes: Floats
    replica_bytes: Floats
    link_replica: Floats
    host_bytes: Floats
    tokens_per_step: Floats
    gpus: Floats
    nodes: Floats

    def take(self, rows: Sequence[int]) -> Quantities:
        """The rows of these indices."""
        index = np.asarray(rows)
        return Quantities(*(getattr(self, f.name)[index] for f in fields(self)))


def quantities(plans: Iterable[ShardingPlan]) -> Quantities:
    """The quantities of these plans, in their order. Raises ValueError on a layout that cannot hold its shape."""
    rows = [_row(plan) for plan in plans]
    names = [f.name for f in fields(Quantities)]
    return Quantities(*(np.array([row[name] for row in rows], dtype=np.float64) for name in names))


def _row(plan: ShardingPlan) -> dict[str, object]:
    plan.layout.check(plan.shape)
    return {
        **_rates(plan),
        **_layer(plan),
        **_groups(plan),
        **_pipeline(plan),
        **_exchange(plan),
        "tokens_per_step": plan.layout.global_batch * plan.shape.sequence,
        "gpus": plan.layout.gpus,
        "nodes": math.ceil(plan.layout.gpus / plan.network.node_gpus),
    }


def _rates(plan: ShardingPlan) -> dict[str, object]:
    a, precision = plan.accelerator, plan.layout.precision
    over_fp8 = NARROW.get(precision, 0.0)
    if over_fp8 and not a.fp8_flop_per_s:
        raise ValueError(f"precision: {a.name} has no fp8")
    peak = a.flop_per_s / 2 if precision == "fp32" else a.flop_per_s
    fp8_peak = over_fp8 * a.fp8_flop_per_s
    return {"peak": peak, "fp8": over_fp8 > 0, "fp8_peak": fp8_peak, "memory_rate": a.memory_bytes_per_s}


def _layer(plan: ShardingPlan) -> dict[str, object]:
    s, la = plan.shape, plan.layout
    tokens = la.micro_batch * s.sequence / la.context
    products = [(tokens, n, k, 1.0, 1.0) for n, k in s.attention_products()]
    moe = s.moe_layers / s.layers
    held = s.experts / (la.expert * la.expert_tensor / la.tensor) + s.shared_experts
    half = _half_rate(plan)
    for n, k in s.feed_forward_products(s.expert_ffn if moe else s.ffn):
        rows = tokens * (s.top_k + s.shared_experts if moe else 1)
        products.append((rows, n, k, held, _narrow(n, k, half)) if moe else (rows, n, k, 1.0, 1.0))
    width = (s.top_k + s.shared_experts) * s.expert_ffn if moe else s.ffn
    plain = s.hidden / (la.tensor if la.sequence_parallel else 1)
    inner = (width * (3 if s.gated else 1) + s.query_width) / la.tensor
    flop = [2.0 * m * n * k / la.tensor * slower for m, n, k, _, slower in products]
    moved = [2.0 * (m * n / la.tensor + m * k / la.tensor + each * n * k / la.tensor) for m, n, k, each, _ in products]
    pad = [0.0] * (PRODUCTS - len(products))
    return {
        "product_flop": flop + pad,
        "product_bytes": moved + pad,
        "product_count": len(products),
        "attention_flop": 2.0 * tokens * s.attended * s.score_width / la.tensor,
        "score_elements": tokens * s.attended * s.heads / la.tensor,
        "scores_written": not la.fused_attention,
        "elementwise_elements": tokens * (plain + inner / 2),
        "layer_parameters": sum(_layer_parameters(plan)),
        "head_parameters": s.vocab * s.hidden / la.tensor,
        "recompute_full": (la.recompute == "full") / la.recompute_every,
        "recompute_selective": la.recompute == "selective",
        "head_flop": 2.0 * tokens * s.hidden * s.vocab / la.tensor * (1 + s.mtp_layers),
        "head_elements": tokens * s.vocab / la.tensor * (1 + s.mtp_layers),
    }


HALF_RATE = 170.0
"""Length of sums at which products of 16-bit numbers lose half of the rate of long ones: `calibrate predict`'s fit to
181 shapes on an H100 (`calibrate/trace/measured`)."""
HALF_RATE_FP8 = 650.0
"""Of 8-bit ones on an H100, 980 on a B200: medians over outputs of at least 2048 x 1024 of the kernel table of NVIDIA
aiconfigurator (16 bits there: 230 and 210). In between and beyond as the root of the peak rate."""
WIDE = 4096.0


def _half_rate(plan: ShardingPlan) -> float:
    if plan.layout.precision not in NARROW:
        return HALF_RATE
    return HALF_RATE_FP8 * math.sqrt(plan.accelerator.fp8_flop_per_s / 1979e12)


def _narrow(n: int, k: int, half: float) -> float:
    """How much longer the products of an expert take than wide ones: forward sums over k, backward over n and rows."""
    forward, backward = ((1.0 + half / min(size, WIDE)) / (1.0 + half / WIDE) for size in (k, n))
    return (forward + backward + 1.0) / 3.0


def kept_bytes(plan: ShardingPlan, tokens: float) -> float:
    """Bytes that a layer keeps of `tokens` for its backward pass, in 16 bits: five of width hidden, and inner ones."""
    s, la = plan.shape, plan.layout
    moe = s.moe_layers / s.layers
    width = moe * (s.top_k + s.shared_experts) * s.expert_ffn + (1 - moe) * s.ffn
    inner = 2 * s.query_width + 2 * s.key_value_width + width * (3 if s.gated else 2)
    if la.recompute == "full":
        return 2.0 * tokens * s.hidden / (la.tensor if la.sequence_parallel else 1)
    return 2.0 * tokens * (5 * s.hidden / (la.tensor if la.sequence_parallel else 1) + inner / la.tensor)


def _link(plan: ShardingPlan, ranks: int, stride: int, senders: int = 0) -> tuple[float, int]:
    """Bytes/s of one rank in a ring of `ranks` ranks `stride` apart, and how many nodes it spans.

    Within a node: the accelerator's own link. Across nodes: the node's NICs, and across racks their uplink, shared
    by the `stride` rings that run side by side. `senders` ranks of a ring drive the NICs (0: all that a node has).
    """
    net, own = plan.network, plan.accelerator.link_bytes_per_s
    if ranks * stride <= net.node_gpus or ranks == 1:
        return own, 1
    beside = min(stride, net.node_gpus)
    driven = net.gpu_nic_bytes_per_s * (senders or max(1, net.node_gpus // beside))
    rate = min(own, net.node_bytes_per_s / beside, driven)
    if net.rack_gpus and ranks * stride > net.rack_gpus:
        rate = min(rate, net.rack_bytes_per_s / min(stride, net.rack_gpus))
    return rate, math.ceil(ranks * stride / net.node_gpus)


ALL_TO_ALL = 0.68
ALL_TO_ALL_S = 30e-6
"""Share of a GPU's links, and time beside, of an all-to-all inside a node: 16 to 512 MB on 8 A100, H100 and B200, 0.70,
0.72 and 0.66, in the table of NCCL operations of NVIDIA aiconfigurator."""


def _all_to_all(plan: ShardingPlan, ranks: int) -> float:
    """Bytes/s of one rank that sends equally to `ranks` neighbours, while all ranks of its node do so."""
    net, rate = plan.network, ALL_TO_ALL * plan.accelerator.link_bytes_per_s
    if ranks <= net.node_gpus:
        return rate
    away = (ranks - net.node_gpus) / (ranks - 1)  # of what a rank sends, to other nodes
    rate = min(rate / (1.0 - away) if away < 1.0 else math.inf, net.gpu_nic_bytes_per_s / away)
    rate = min(rate, net.node_bytes_per_s / (net.node_gpus * away))
    if net.rack_gpus and ranks > net.rack_gpus:
        far = (ranks - net.rack_gpus) / (ranks - 1)
        rate = min(rate, net.rack_bytes_per_s / (net.rack_gpus * far))
    return rate


def _groups(plan: ShardingPlan) -> dict[str, object]:
    s, la = plan.shape, plan.layout
    tokens = la.micro_batch * s.sequence / la.context
    link_tensor, nodes = _link(plan, la.tensor, 1)
    placed = plan.network.links
    contiguous = _link(plan, la.context, la.tensor, 1)[0], _all_to_all(plan, la.expert)
    link_context, link_expert = (placed.context, placed.expert) if placed else contiguous
    moe = s.moe_layers / s.layers
    around = 2.0 * tokens * 2 * s.key_value_width / la.tensor * (la.context - 1)
    routed = 2.0 * tokens * s.hidden * s.top_k / (la.tensor if la.sequence_parallel else 1)
    return {
        "tensor_ranks": la.tensor,
        "tensor_bytes": 2.0 * (la.tensor - 1) / la.tensor * 2.0 * tokens * s.hidden,
        "tensor_steps": 2 * (la.tensor - 1) if nodes > 1 else 0,
        "pipelined_ranks": la.tensor - 1 if la.pipeline > 1 and la.gpus > plan.network.node_gpus else 0,
        "link_tensor": placed.tensor if placed else link_tensor,
        "context_bytes": around,
        "link_context": link_context,
        "expert_bytes": moe * routed * (la.expert - 1) / la.expert,
        "link_expert": link_expert,
        "expert_away": la.expert > plan.network.node_gpus,
        "expert_hidden": la.overlap_experts,
        "routed_bytes": moe * routed * (8.0 if la.expert > 1 else 4.0),
    }


def _pipeline(plan: ShardingPlan) -> dict[str, object]:
    """Layers of the longest stage without head and loss, and of the stages with them.

    A tensor rank sends the activations that it holds: its part with sequence parallelism, else all. Chunks and
    deferred work fill a bubble with other micro-batches: with fewer of them than stages, a stage waits for what
    is missing in full, so that one micro-batch passes all stages in a row.
    """
    s, la = plan.shape, plan.layout
    layers = plan.stage_layers()
    head, loss = plan.head_stage % la.pipeline, plan.loss_stage % la.pipeline
    plain = [n for i, n in enumerate(layers) if i not in (head, loss)]
    stride = la.tensor * la.context * la.data
    placed = plan.network.links
    tokens = la.micro_batch * s.sequence / la.context
    share = {"1f1b": 1.0, "interleaved": 1.0 / la.virtual, "zero-bubble": 1.0 / 3.0}[la.schedule]
    short = max(0, la.pipeline - la.micro_batches) / max(1, la.pipeline - 1)
    return {
        "stages": la.pipeline,
        "virtual": la.virtual,
        "bubble_share": short + (1.0 - short) * share,
        "layers": sum(layers),
        "plain_layers": max(plain, default=0),
        "head_layers": layers[head],
        "loss_layers": layers[loss],
        "loss_apart": head != loss,
        "micro_batches": la.micro_batches,
        "send_bytes": 2.0 * tokens * s.hidden / (la.tensor if la.sequence_parallel else 1),
        "link_send": placed.send if placed else _link(plan, la.pipeline, stride, 1)[0],
    }


def _layer_parameters(plan: ShardingPlan) -> tuple[float, float]:
    """Parameters of one layer on one rank: those of all ranks alike, and its experts; of a model with experts, of a
    layer with them."""
    s, la = plan.shape, plan.layout
    if not s.experts:
        return s.dense_layer_parameters / la.tensor, 0.0
    experts = s.experts * s.feed_forward_parameters(s.expert_ffn)
    return (s.moe_layer_parameters - experts) / la.tensor, experts / (la.expert * la.expert_tensor)


def _expert_layers(plan: ShardingPlan) -> list[int]:
    """Layers with experts of every pipeline stage; the model's first layers, chunk after chunk, have none."""
    layers, virtual = plan.stage_layers(), plan.layout.virtual
    if not plan.shape.experts:
        return [0] * len(layers)
    found, dense = list(layers), plan.shape.dense_layers
    for _ in range(virtual):
        for stage, held in enumerate(layers):
            taken = min(dense, found[stage], math.ceil(held / virtual))
            found[stage] -= taken
            dense -= taken
    return found


def stage_parameters(plan: ShardingPlan) -> tuple[tuple[float, float], ...]:
    """Parameters held by one rank of every pipeline stage: outside and inside routed experts.

    The first are held by all data and context ranks alike, the second by `Layout.expert_copies` ranks.
    """
    s, la = plan.shape, plan.layout
    layers, routed = plan.stage_layers(), _expert_layers(plan)
    common, experts = _layer_parameters(plan)
    dense = s.dense_layer_parameters / la.tensor
    held = [with_ * common + (n - with_) * dense for n, with_ in zip(layers, routed, strict=True)]
    held[0] += s.embedding_parameters / la.tensor
    last = plan.head_stage % len(layers)
    shared = s.tied and last != 0
    held[last] += (s.head_parameters + (s.vocab * s.hidden if shared else 0)) / la.tensor
    return tuple((other, n * experts) for other, n in zip(held, routed, strict=True))


def _exchange(plan: ShardingPlan) -> dict[str, object]:
    """Gradient and parameter exchange of the stage that holds most, over the ranks that hold the same."""
    la = plan.layout
    common, experts = max(stage_parameters(plan), key=sum)
    held = common + experts
    ranks = la.shard_ranks if la.zero == 3 else la.data * la.context
    copies = la.expert_shard_ranks if la.zero == 3 else la.expert_copies
    link, _ = _link(plan, ranks, la.tensor)
    passes = {0: 0, 1: 0, 2: 2, 3: 3}[la.zero]
    width = 4.0 if la.precision == "fp32" else 2.0
    groups = la.data * la.context // ranks
    tokens = la.micro_batch * plan.shape.sequence / la.context
    updated = common / la.shard_ranks + experts / la.expert_shard_ranks if la.zero >= 1 else held
    return {
        "stage_parameters": held,
        "exchange_share": (common * (ranks - 1) / ranks + experts * (copies - 1) / copies) / held,
        "exchange_hops": math.log2(ranks) if ranks > 1 else 0.0,
        "link_exchange": link,
        "gradient_bytes": width,
        "sharded_passes": passes,
        "exchange_kept": plan.exchange_kept,
        "compression_s": plan.compression_s,
        "optimizer_parameters": updated,
        "offload_bytes": 4.0 * updated if la.offload else 0.0,
        "replica_bytes": width * 2.0 * (groups - 1) / groups * held / ranks,
        "link_replica": _link(plan, groups, la.tensor * ranks)[0],
        "host_bytes": 2.0 * kept_bytes(plan, tokens) if la.offload_activations else 0.0,
    }
