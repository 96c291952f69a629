"""The time of one training step, by part, from a plan's quantities and a stack's constants.

One function of arrays does all: `step_times` for many rows, `step_time` for one. The parts add up to the step,
so that pipeline bubble and tensor exchange are uses of GPU time of their own. Sources: products at a rate and an
overhead each, and their memory roofline (Williams et al. 2009); causal attention (Dao et al. 2022: backward 2.5
times forward); tensor all-reduces, pipeline bubble and interleaving (Narayanan et al. 2021); recomputation as
one more forward (Chen et al. 2016; selective: Korthikanti et al. 2022, section 5); sharded parameters
(Rajbhandari et al. 2020; Zhao et al. 2023); overlap as a power mean (Qiao et al. 2021); ring bandwidth terms
(Patarasuk & Yuan 2009).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from equipoise.sim.llm.quantities import ALL_TO_ALL_S, Quantities, ShardingPlan, quantities
from equipoise.sim.llm.stack import Floats, Number, Stack


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """Seconds of one step by part; arrays of shape (rows,) from `step_times`, floats from `step_time`.

    All parts are times of the slowest rank's critical path and sum to `total`. `recompute` is computing alone,
    `host` what the launching host adds where a layer is faster than its launch, `exchange` what of gradients and
    sharded parameters is not hidden.
    """

    products: Number
    attention: Number
    elementwise: Number
    host: Number
    head: Number
    recompute: Number
    tensor: Number
    context: Number
    expert: Number
    send: Number
    bubble: Number
    exchange: Number
    optimizer: Number
    fixed: Number

    @property
    def total(self) -> Number:
        """The whole step [s]."""
        total: Number = 0.0
        for field in fields(self):
            total = total + getattr(self, field.name)
        return total

    def at_speed(self, speed: float) -> StepEstimate:
        """The parts on nodes of this speed; what shows of the exchange stays."""
        parts = {f.name: getattr(self, f.name) / speed for f in fields(self) if f.name != "exchange"}
        return StepEstimate(**parts, exchange=self.exchange)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Seconds of one layer, one micro-batch, forward and backward, and forward again where all is recomputed.

    `again` is the computing that recomputation adds; what it exchanges again is part of the exchanges.
    """

    products: Floats
    attention: Floats
    elementwise: Floats
    again: Floats
    tensor: Floats
    context: Floats
    expert: Floats

    @property
    def total(self) -> Floats:
        """Seconds of all parts together."""
        own = self.products + self.attention + self.elementwise + self.again
        return own + self.tensor + self.context + self.expert


def step_time(plan: ShardingPlan, stack: Stack) -> StepEstimate:
    """The step time of one plan, by part [s]. Raises ValueError on a layout that cannot hold its shape."""
    times = step_times(quantities([plan]), stack)
    return StepEstimate(*(float(np.ravel(getattr(times, f.name))[0]) for f in fields(times)))


def step_times(q: Quantities, c: Stack) -> StepEstimate:
    """The step times of all rows, by part [s], shape (rows,) each."""
    layer, send = _layer(q, c), _send(q, c)
    pace, paced_layers, stage, others = _pace(q, c, layer.total)
    hops = np.maximum(q.stages - 2, 0)  # one less than stages, and the pace has one with each micro-batch
    moved = q.host_bytes / HOST_LINK  # activations go to the host and back while a stage computes
    most = np.maximum(np.maximum(q.plain_layers, q.head_layers), q.loss_layers)
    beside, others = np.maximum(stage, most * moved), np.maximum(others, (q.layers - most) * moved)
    bubble = c.bubble * q.bubble_share * (others + hops * send)
    shown = _sharded(q, c, beside)
    n = q.micro_batches
    passes = n * paced_layers
    return StepEstimate(
        products=passes * layer.products,
        attention=passes * layer.attention,
        elementwise=passes * layer.elementwise,
        host=n * (beside - pace),
        head=n * (pace - paced_layers * layer.total),
        recompute=passes * layer.again,
        tensor=passes * layer.tensor,
        context=passes * layer.context,
        expert=passes * layer.expert,
        send=n * send * np.where(q.virtual > 1, c.send_exposed * q.virtual, 1.0),
        bubble=bubble,
        exchange=n * shown + _gradients(q, c, beside),
        optimizer=_optimizer(q, c),
        fixed=c.step_s + 0.0 * n,
    )


def stall(q: Quantities, c: Stack) -> tuple[Floats, Floats]:
    """Chance that a pipeline stalls, and the seconds that a step then takes longer, shape (rows,); 0 without stages.

    A slot of the schedule waits on each side of a stage; the chance grows by half with each doubling of the nodes.
    """
    chance = np.minimum(0.5, c.stall_chance * (1.0 + 0.5 * np.log2(np.maximum(1.0, q.nodes))))
    slots = q.micro_batches + q.stages - 1
    piped = q.stages > 1
    return np.where(piped, chance, 0.0), np.where(piped, c.stall_s * np.minimum(q.stages - 1, 2) * slots, 0.0)


def _rate(q: Quantities, c: Stack) -> Floats:
    return np.asarray(np.where(q.fp8 > 0, c.fp8_efficiency * q.fp8_peak, c.matmul_efficiency * q.peak))


def _layer(q: Quantities, c: Stack) -> _Layer:
    rate = _rate(q, c)[:, None]
    each = np.maximum(q.product_flop / rate, q.product_bytes / q.memory_rate[:, None]).sum(axis=1)
    products = each + q.product_count * c.matmul_overhead_s
    backward = 2.0 * each + 2.0 * q.product_count * c.matmul_overhead_s
    score_bytes = np.where(q.scores_written > 0, np.maximum(c.score_bytes, SCORE_BYTES), c.score_bytes)
    attention = q.attention_flop / (c.attention_efficiency * q.peak) + score_bytes * q.score_elements / q.memory_rate
    moved = (c.elementwise_bytes * q.elementwise_elements + q.routed_bytes) / q.memory_rate
    tensor = _tensor(q, c)
    link = c.exchange_efficiency * q.link_context
    context = 3.0 * q.context_bytes / link
    expert_link = np.where(q.expert_away > 0, c.exchange_efficiency, 1.0) * q.link_expert  # the share of NICs
    expert = 4.0 * (q.expert_bytes / expert_link + np.where(q.expert_bytes > 0, ALL_TO_ALL_S, 0.0))
    expert = (1.0 + q.recompute_full / 2.0) * expert
    forward = products + attention + moved
    half = c.selective_products  # of the products, with all that is between them, in place of attention
    again = (1.0 - 2.0 * half) * attention + half * (products + 2.0 * moved)
    again = q.recompute_full * forward + q.recompute_selective * again
    beside = products + backward + 3.5 * attention + 3.0 * moved + again
    return _Layer(
        products=products + backward,
        attention=3.5 * attention,
        elementwise=3.0 * moved + _kept_bytes(q, c) / q.memory_rate,
        again=again,
        tensor=(4.0 + 2.0 * q.recompute_full) * tensor,
        context=(1.0 + q.recompute_full / 3.0) * context,
        expert=np.where(q.expert_hidden > 0, np.maximum(0.0, expert - beside), expert),
    )


def _kept_bytes(q: Quantities, c: Stack) -> Floats:
    """Memory traffic of a layer's parameters in a micro-batch: gradients summed, sharded ones copied and cast."""
    return np.asarray(q.layer_parameters * (c.accumulate_bytes + c.shard_bytes * q.sharded_passes))


def _host(q: Quantities, c: Stack, layers: Floats, passes: Number) -> Floats:
    """Host time to launch these layers; a lower bound, because the host runs ahead of the device."""
    each = c.host_s_per_layer + c.host_s_per_tensor_rank * q.pipelined_ranks
    return np.asarray(layers * each * (1 + q.recompute_full / 3) + passes * c.host_s_per_pass)


def _tensor(q: Quantities, c: Stack) -> Floats:
    """One all-reduce of a layer's activations over the tensor group, 0 for one rank."""
    latency = np.where(q.tensor_ranks > 1, c.tensor_latency_s, 0.0) + c.tensor_hop_s * q.tensor_steps
    return np.asarray(q.tensor_bytes / (c.tensor_efficiency * q.link_tensor) + latency)


def _pace(q: Quantities, c: Stack, layer: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Of the slowest stage: its device's seconds per micro-batch, its layers, its seconds; and those of the others.

    Stages are plain ones, of which the longest counts by itself, the head's, and the loss's where it is apart. Each
    takes as long as its device or its host, whichever is slower.
    """
    head, loss, apart = _head(q, c), _loss(q, c), q.loss_apart > 0
    logits = 4.0 * q.head_elements / (c.send_efficiency * q.link_tensor)
    plain = q.stages - 1 - apart
    rest = np.where(plain > 1, q.layers - q.plain_layers - q.head_layers - apart * q.loss_layers, 0.0)
    layers = np.stack([q.plain_layers, q.head_layers, q.loss_layers, rest])
    passes = np.stack([plain > 0, np.ones_like(plain), apart, np.maximum(plain - 1, 0)])
    device = passes[:3] * layers[:3] * layer
    device[1] += head + np.where(apart, 0.0, loss)
    device[2] += apart * (loss + logits)
    slower = np.maximum(device, passes[:3] * _host(q, c, layers[:3], 1.0))
    further = np.maximum(rest * layer, _host(q, c, rest, passes[3]))
    slowest, rows = slower.argmax(axis=0), np.arange(len(plain))
    stage = slower[slowest, rows]
    return device[slowest, rows], layers[slowest, rows], stage, slower.sum(axis=0) + further - stage


def _head(q: Quantities, c: Stack) -> Floats:
    """Time of the logits, forward and backward; always in 16 bits."""
    accumulate = c.accumulate_bytes * q.head_parameters / q.memory_rate
    return np.asarray(3.0 * q.head_flop / (c.matmul_efficiency * q.peak) + accumulate)


def _loss(q: Quantities, c: Stack) -> Floats:
    """The loss of the logits, forward and backward, at memory bandwidth."""
    return np.asarray(c.head_bytes * q.head_elements / q.memory_rate)


def _send(q: Quantities, c: Stack) -> Floats:
    """Activations to the next stage and gradients back, per micro-batch and chunk; 0 for one stage."""
    once = c.send_latency_s + q.send_bytes / (c.send_efficiency * q.link_send)
    return np.asarray(np.where(q.stages > 1, 2.0 * once, 0.0))


def _shown(compute: Floats, exchange: Floats, overlap: Number) -> Floats:
    """Exposed part of an exchange that overlaps with compute: the power mean less the compute."""
    peak = np.maximum(np.maximum(compute, exchange), 1e-30)
    sum_ = (compute / peak) ** overlap + (exchange / peak) ** overlap
    return np.asarray(peak * sum_ ** (1.0 / overlap) - compute)


def exchange(q: Quantities, c: Stack) -> tuple[Floats, Floats]:
    """Bytes that a rank sends in one exchange, and its latency with that of compression [s], shape (rows,) each.

    Where parameters are sharded there is one exchange in every micro-batch (gathers and a scatter), else one of
    the whole gradients in every step.
    """
    sharded = q.sharded_passes > 0
    passes = np.where(sharded, q.sharded_passes, 2.0)
    hops = np.where(sharded, q.sharded_passes * q.layers, 1.0) * q.exchange_hops
    bytes_ = passes * q.gradient_bytes * q.stage_parameters * q.exchange_share * q.exchange_kept
    return bytes_, np.where(q.exchange_share > 0, hops * c.exchange_latency_s + q.compression_s, 0.0)


def _exchange_s(q: Quantities, c: Stack) -> Floats:
    bytes_, latency = exchange(q, c)
    return np.asarray(bytes_ / (c.exchange_efficiency * q.link_exchange) + latency)


def _sharded(q: Quantities, c: Stack, stage: Floats) -> Floats:
    """Exposed part of the gathers and scatters of one micro-batch with sharded parameters; else 0."""
    return np.where(q.sharded_passes > 0, _shown(stage, _exchange_s(q, c), c.overlap), 0.0)


def _gradients(q: Quantities, c: Stack, stage: Floats) -> Floats:
    """The exchange of whole gradients once a step, beside the last backward pass (two thirds of a stage).

    Sharded gradients are exchanged between the groups that each hold all of them.
    """
    whole = np.where(q.sharded_passes > 0, replicas_s(q, c), _exchange_s(q, c))
    return np.where(whole > 0, _shown(stage * 2 / 3, whole, c.overlap), 0.0)


def replicas_s(q: Quantities, c: Stack) -> Floats:
    """Seconds of the exchange of sharded gradients between groups of ranks; 0 with one group."""
    return np.where(q.sharded_passes > 0, q.replica_bytes / (c.exchange_efficiency * q.link_replica), 0.0)


SCORE_BYTES = 9.83
"""Memory traffic per score of a forward pass where attention writes them, fitted to Megatron-DeepSpeed on A100."""
HOST_LINK = 32e9
"""Bytes per second between a GPU and its host: PCIe 4.0 x16."""


def _optimizer(q: Quantities, c: Stack) -> Floats:
    """The update, at memory bandwidth; an offloaded one over the host link."""
    return np.asarray(c.optimizer_bytes * q.optimizer_parameters / q.memory_rate + q.offload_bytes / HOST_LINK)
