"""Peak memory of one rank by pipeline stage, whether a plan fits, and the smallest change with which it fits.

States per parameter: weights 2 bytes, gradients, Adam's two moments and a 32-bit copy of the weights, divided by
the ranks of a ZeRO group as its stage says (Rajbhandari et al. 2020, section 3); of an expert, by no more ranks
than hold it (Rajbhandari et al. 2022, DeepSpeed-MoE, section 4). Activations per layer and
token: those of width `hidden` are divided by the tensor group only with sequence parallelism, the inner ones
always; scores only where attention keeps them; recomputation keeps a layer's input alone (Korthikanti et al.
2022, section 4). A stage of a 1F1B schedule holds the activations of as many micro-batches as stages follow it,
itself counted (Narayanan et al. 2021, section 2.2), an interleaved one 1 + (p - 1) / (p v) times that of the
first (Korthikanti et al., appendix C).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from equipoise.sim.llm.hardware import AcceleratorRates
from equipoise.sim.llm.memory_stack import GENERAL, MemoryStack
from equipoise.sim.llm.quantities import ShardingPlan, stage_parameters
from equipoise.sim.llm.shape import NARROW, Layout
from equipoise.sim.llm.stack import Floats

USABLE = 0.97
"""Share of the memory that a driver shows which contexts and communicators leave to tensors: runs at 0.96 of it are
known (torchtitan#1789)."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Peak bytes of one rank of a stage, by what holds them."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    base: float

    @property
    def states(self) -> float:
        """Bytes per parameter times parameters: what no measurement can be below."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """All of it [bytes]."""
        return self.states + self.activations + self.logits + self.base


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Peak memory by stage, with the interval of the largest: `low` and `high` bytes hold it with 90 %."""

    stages: tuple[StageMemory, ...]
    low: float
    high: float
    capacity: float

    @property
    def peak(self) -> float:
        """Bytes of the stage that holds most."""
        return max(stage.total for stage in self.stages)

    @property
    def fullest(self) -> int:
        """The stage that holds most."""
        return max(range(len(self.stages)), key=lambda stage: self.stages[stage].total)

    @property
    def fits(self) -> bool:
        """Whether the expected peak is within the accelerator's usable memory."""
        return self.peak <= self.capacity


def memory(plan: ShardingPlan, stack: MemoryStack, spread: tuple[float, float] = (0.9, 1.1)) -> MemoryEstimate:
    """The estimate of a plan. `spread` is measured / predicted at 5 % and 95 %, as a fit's residuals give it."""
    weights, columns = counts(plan, stack)
    by = columns * stack.vector()
    stages = tuple(
        StageMemory(float(w), float(b[0]), float(b[1]), float(b[2:7].sum()), float(b[7]), float(b[8]))
        for w, b in zip(weights, by, strict=True)
    )
    peak, least = max(stage.total for stage in stages), max(stage.states for stage in stages)
    return MemoryEstimate(stages, max(least, peak * spread[0]), peak * spread[1], usable_bytes(plan.accelerator))


def usable_bytes(accelerator: AcceleratorRates) -> float:
    """What an accelerator's memory leaves to a process [bytes]."""
    return USABLE * accelerator.memory_bytes


def counts(plan: ShardingPlan, stack: MemoryStack) -> tuple[Floats, Floats]:
    """Bytes of weights, shape (stages,), and counts of what `MemoryStack` weighs, shape (stages, 9).

    Software that gathers parameters ahead keeps those of a pipeline stage whole until its last micro-batch.
    """
    la, s = plan.layout, plan.shape
    layers = np.array(plan.stage_layers(), dtype=np.float64)
    common, experts = np.array(stage_parameters(plan)).T
    held = common + experts
    spread = common / la.shard_ranks + experts / la.expert_shard_ranks
    of_optimizer, of_gradients, of_weights = (spread if la.zero >= level else held for level in (1, 2, 3))
    kept = la.pipeline > 1 and stack.gathered_layers > 1.0
    one = held / np.maximum(1, layers) if la.zero == 3 else 0.0 * held
    gathered = one * (layers if kept else np.minimum(stack.gathered_layers, np.maximum(1, layers)))
    summed = gathered if kept else one
    width = 4.0 if la.precision == "fp32" else 2.0
    weights = width * (of_weights + gathered)
    ends = np.zeros(len(layers))
    ends[[plan.head_stage % la.pipeline, plan.loss_stage % la.pipeline]] = 1.0
    around = la.micro_batch * s.sequence / la.context * s.hidden
    rows = [
        of_gradients + summed,
        of_optimizer * (not la.offload),
        *_activations(plan, np.minimum(layers * _in_flight(la), 2.0 if la.offload_activations else np.inf), stack),
        around * ends,
        _logits(plan) * ends,
        np.ones(len(layers)),
    ]
    return weights, np.stack(np.broadcast_arrays(*rows), axis=1)


def _in_flight(la: Layout) -> Floats:
    """Micro-batches whose activations each stage holds at its peak."""
    held = np.minimum(la.micro_batches, la.pipeline - np.arange(la.pipeline))
    return held * (1 + (la.pipeline - 1) / (la.pipeline * la.virtual) if la.virtual > 1 else 1.0)


def _activations(plan: ShardingPlan, kept: Floats, stack: MemoryStack) -> tuple[Floats | float, ...]:
    """Elements of width hidden, those not sharded, inner elements and attention scores of stages by their number
    of layers.

    Experts keep the tokens that they were sent, in their order, and their results. Where a layer is computed again
    its backward pass holds the gradients of its activations beside them, unless they are fused (compiled).
    """
    s, la = plan.shape, plan.layout
    tokens = la.micro_batch * s.sequence / la.context
    moe = s.moe_layers / s.layers
    width = moe * (s.top_k + s.shared_experts) * s.expert_ffn + (1 - moe) * s.ffn
    plain = tokens * s.hidden / (la.tensor if la.sequence_parallel else 1)
    whole = tokens * s.hidden if la.sequence_parallel else 0.0
    inner = tokens * (2 * s.query_width + 2 * s.key_value_width + width * (3 if s.gated else 2)) / la.tensor
    inner += 2 * moe * s.top_k * plain
    scores = tokens * s.attended * s.heads / la.tensor
    if la.recompute == "full":
        again = kept / la.recompute_every
        # A layer's input is one of the tensors of width hidden that `plain_bytes` weighs together.
        return (
            plain * (kept - 0.8 * again + 1),
            whole,
            inner * (kept - again + stack.recomputed_layers),
            scores * (kept - again + 1),
        )
    if la.recompute == "selective" and stack.selective == "operations":
        products = s.hidden + s.query_width + 2 * s.key_value_width + width * (2 if s.gated else 1) + s.hidden
        saved = tokens * (products / 2 + s.query_width) / la.tensor
        # In bytes of 16-bit numbers, where an inner element of the stack stands for several tensors.
        return plain * (kept / 5 + 1), whole, saved * kept * 2.0 / stack.inner_bytes + inner, scores
    return plain * kept, whole, inner * kept, scores * (1 if la.recompute == "selective" else kept)


def _logits(plan: ShardingPlan) -> float:
    s, la = plan.shape, plan.layout
    return la.micro_batch * s.sequence / la.context * s.vocab / la.tensor


def peak_spread(plan: ShardingPlan, measured: tuple[float, float]) -> tuple[float, float]:
    """Measured over predicted peak at 5 % and 95 %: `measured` of layouts that were measured, else the general one."""
    la = plan.layout
    unseen = plan.shape.experts or la.recompute != "none" or la.context > 1 or la.precision in NARROW
    return GENERAL[1] if unseen else measured


def peaks(counted: Iterable[tuple[Floats, Floats]], stack: MemoryStack, stage: int | None = None) -> Floats:
    """Peak bytes of many plans from their `counts`, shape (rows,): of one stage, or (None) of the fullest."""
    vector = stack.vector()
    totals = [weights + columns @ vector for weights, columns in counted]
    return np.array([total.max() if stage is None else total[stage] for total in totals])


def smallest_change(plan: ShardingPlan, stack: MemoryStack) -> ShardingPlan | None:
    """The plan if it fits, else the plan with the first single change that makes it fit; None if there is none.

    Tried in the order of what they cost: sequence parallelism, a sharded optimiser, a smaller micro-batch,
    selective recomputation, full recomputation, sharded parameters, twice the tensor or pipeline ranks, offloading.
    """
    for changed in (plan.layout, *_changes(plan.layout)):
        candidate = replace(
            plan, layout=changed, stages=plan.stages if changed.pipeline == plan.layout.pipeline else ()
        )
        try:
            changed.check(plan.shape)
            fits = memory(candidate, stack).fits
        except ValueError:
            continue
        if fits:
            return candidate
    return None


def _changes(la: Layout) -> Iterator[Layout]:
    if la.tensor > 1 and not la.sequence_parallel:
        yield replace(la, sequence_parallel=True)
    if la.zero == 0 and la.data * la.context > 1:
        yield replace(la, zero=1)
    for micro in range(la.micro_batch - 1, 0, -1):
        if la.micro_batch % micro == 0:
            yield replace(la, micro_batch=micro)
    if la.recompute == "none":
        yield replace(la, recompute="selective")
    if la.recompute != "full":
        yield replace(la, recompute="full")
    if la.zero < 3 and la.data * la.context > 1:
        yield replace(la, zero=3)
    if la.data % 2 == 0:
        for name in ("tensor", "pipeline"):
            yield replace(la, data=la.data // 2, shard=0, **{name: 2 * getattr(la, name)})
    if not la.offload:
        yield replace(la, offload=True)
