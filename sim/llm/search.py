"""Search for the fastest layout that fits, by the step time and memory of every sensible one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from math import sqrt

import numpy as np

from equipoise.sim.llm.hardware import AcceleratorRates, NetworkRates
from equipoise.sim.llm.memory import counts, peak_spread, peaks, usable_bytes
from equipoise.sim.llm.memory_stack import MemoryStack
from equipoise.sim.llm.quantities import ShardingPlan, quantities
from equipoise.sim.llm.shape import Layout, Precision, Recompute, Transformer
from equipoise.sim.llm.stack import Stack
from equipoise.sim.llm.step_time import StepEstimate, stall, step_times

MICRO_BATCHES = (1, 2, 4, 8, 16)
CHUNKS = 3
"""Most numbers of chunks per stage that are tried: one a layer, then the largest that divides its layers."""
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Found:
    """A layout that fits: its plan, step [s] by part, and peak memory [bytes]."""

    plan: ShardingPlan
    times: StepEstimate
    peak_bytes: float

    @property
    def seconds(self) -> float:
        """The whole step [s]."""
        return float(self.times.total)


@dataclass(frozen=True, slots=True)
class Search:
    """Layouts that fit, the fastest first; `tried` counts all, `smallest_bytes` is the least peak met."""

    found: tuple[Found, ...]
    tried: int
    smallest_bytes: float


def search(
    shape: Transformer,
    accelerator: AcceleratorRates,
    network: NetworkRates,
    gpus: int,
    global_batch: int,
    stack: Stack,
    memory: MemoryStack,
    precision: Precision = "bf16",
    speed: float = 1.0,
    spread: tuple[float, float] = (1.0, 1.0),
) -> Search:
    """Layouts of `gpus` accelerators for `global_batch` sequences, by their mean step with the stalls of pipelines.

    Raises ValueError where none is possible at all.

    `speed` is that of the nodes: all but the exchange takes 1 / speed of its time. `spread` is measured over predicted
    peak, at 5 % and 95 %, where the stack's layouts were measured. Layouts that fit with 50 % or more come back, or,
    if there are none, those whose predicted peak fits. Tensor ranks stay inside a node; optimiser state is sharded;
    sequence parallelism goes with tensor parallelism.
    """
    plans = [
        ShardingPlan(shape, layout, accelerator, network)
        for layout in _layouts(shape, network.node_gpus, gpus, global_batch, precision)
    ]
    if not plans:
        raise ValueError(f"no layout of {gpus} accelerators fits {global_batch} sequences and the model's shape")
    peak = peaks([counts(plan, memory) for plan in plans], memory)
    median = np.array([sqrt(low * high) for low, high in (peak_spread(plan, spread) for plan in plans)])
    usable = usable_bytes(accelerator)
    fitting = np.flatnonzero(peak * median <= usable).tolist() or np.flatnonzero(peak <= usable).tolist()
    if not fitting:
        return Search((), len(plans), float(peak.min()))
    kept = [plans[i] for i in fitting]
    q = quantities(kept)
    times, (chance, longer_s) = step_times(q, stack).at_speed(speed), stall(q, stack)
    order = np.argsort(np.asarray(times.total) + chance * longer_s, kind="stable").tolist()
    found = tuple(Found(kept[i], _row(times, i), float(peak[fitting[i]])) for i in order)
    return Search(found, len(plans), float(peak.min()))


def _row(times: StepEstimate, row: int) -> StepEstimate:
    return StepEstimate(*(float(np.asarray(getattr(times, f.name))[row]) for f in fields(times)))


def _layouts(
    shape: Transformer, node_gpus: int, gpus: int, global_batch: int, precision: Precision
) -> Iterator[Layout]:
    depths = range(1, shape.layers + 1)
    for tensor, pipeline, context in product(_divisors(node_gpus), depths, (1, 2, 4, 8)):
        replica = tensor * pipeline * context
        if gpus % replica or (context > 1 and shape.sequence < 4096 * context):
            continue
        data = gpus // replica
        for micro, recompute, zero in product(MICRO_BATCHES, RECOMPUTE, (1, 3)):
            if global_batch % (data * micro) or (zero == 3 and (pipeline > 1 or data * context == 1)):
                continue
            base = Layout(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                sequence_parallel=tensor > 1,
                zero=zero,
                recompute=recompute,
                precision=precision,
                micro_batch=micro,
                global_batch=global_batch,
            )
            yield from _variants(base, shape)


def _variants(base: Layout, shape: Transformer) -> Iterator[Layout]:
    """With and without chunks, and for experts with every degree of expert parallelism."""
    most, longest = shape.layers // base.pipeline, -(-shape.layers // base.pipeline)
    chunks = [1]
    if base.pipeline > 1 and base.micro_batches % base.pipeline == 0:
        even = {k for k in _divisors(longest) if k <= most}
        chunks += sorted({*even, most}, reverse=True)[: CHUNKS - 1]
    experts = _divisors(shape.experts) if shape.experts else [1]
    for virtual, expert in product(sorted(set(chunks)), experts):
        made = replace(base, virtual=virtual, schedule="interleaved" if virtual > 1 else "1f1b", expert=expert)
        try:
            made.check(shape)
        except ValueError:
            continue
        yield made


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def why(result: Search) -> str:
    """One sentence that compares the best layout with the next of another kind, by the part that differs most."""
    best = result.found[0]
    text = (
        f"{describe(best.plan.layout)}: {best.seconds:.4g} s a step, the fastest of {len(result.found)} "
        f"layouts that fit of {result.tried}"
    )
    other = next((f for f in result.found if _kind(f) != _kind(best)), None)
    if other is None:
        return text
    loses, more_s = max(
        ((f.name, getattr(other.times, f.name) - getattr(best.times, f.name)) for f in fields(StepEstimate)),
        key=lambda pair: pair[1],
    )
    slower = other.seconds / best.seconds - 1
    return (
        f"{text}; {describe(other.plan.layout)} is {100 * slower:.2g} % slower, most of it by {more_s:.2g} s "
        f"more {loses}"
    )


def _kind(found: Found) -> tuple[int, ...]:
    la = found.plan.layout
    return la.tensor, la.pipeline, la.context, la.zero


def describe(la: Layout) -> str:
    """A layout in a few words."""
    degrees = (("tp", la.tensor), ("pp", la.pipeline), ("cp", la.context), ("ep", la.expert))
    parts = [f"{name} {n}" for name, n in degrees if n > 1] + [f"dp {la.data}", f"zero {la.zero}"]
    parts += [f"{la.virtual} chunks a stage"] if la.virtual > 1 else []
    parts += [f"{la.recompute} recomputation"] if la.recompute != "none" else []
    return ", ".join([*parts, f"micro-batch {la.micro_batch}"])
