"""Cost of a large model's step on one replica: maps a `transformer` section to `sim.llm`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from equipoise.sim.hardware.profile import Accelerator, Measured
from equipoise.sim.llm import hardware
from equipoise.sim.llm.memory import USABLE, memory
from equipoise.sim.llm.memory_stack import COMPILED, EAGER, MemoryStack
from equipoise.sim.llm.quantities import ShardingPlan, quantities
from equipoise.sim.llm.shape import NARROW
from equipoise.sim.llm.stack import Stack
from equipoise.sim.llm.step_time import exchange, replicas_s, step_time
from equipoise.sim.scenario.model import Model
from equipoise.sim.scenario.models.model import Bound, TransformerSpec

IN_PASS = ("products", "attention", "elementwise", "host", "head", "recompute", "tensor", "context", "expert", "send")
IN_STEP = ("bubble", "optimizer", "fixed")
INSIDE = ("tensor", "context", "expert", "send")
"""What the GPUs of one replica send each other, in a pass."""


def section(model: Model) -> tuple[TransformerSpec, Bound]:
    """The section and what loading derived. Raises ValueError when the scenario was not loaded from plain data."""
    spec = model.transformer
    if spec is None or spec.bound is None:
        raise ValueError("transformer: its costs are not derived yet; load the scenario with equipoise.load")
    return spec, spec.bound


def accelerator_of(
    accelerator: Accelerator, precision: str, fabric_bytes_per_s: float, spec: TransformerSpec
) -> hardware.AcceleratorRates:
    """A profile's accelerator as `sim.llm` needs it: data-sheet rates, of which each stack reaches a share.

    A measured rate already contains the loss. It is divided by the share of the data sheet that is reached on the
    accelerator the stack of `spec` was fitted on; otherwise the loss would count twice.

    Raises ValueError when it states no rate for the precision.
    """
    accelerator.peak_flop_per_s(precision)
    plain = "fp32" if precision == "fp32" else "fp16" if precision == "fp16" else "bf16"
    accelerator.peak_flop_per_s(plain)
    fitted_on = fitted_gpu(spec)
    best = PRODUCT_OF_SHEET.get(fitted_on, PRODUCT_OF_SHEET[""])
    rate = (2.0 if precision == "fp32" else 1.0) * _by_sheet(accelerator.flop_per_s[plain], best)
    fp8, faster = accelerator.flop_per_s.get("fp8"), accelerator.sustained.value if accelerator.sustained else 1.0
    reached = reached_share(accelerator, fitted_on)
    return hardware.AcceleratorRates(
        "",
        reached * rate,
        reached * _by_sheet(fp8, best) if fp8 else 0.0,
        accelerator.memory_bytes.value,
        faster * _by_sheet(accelerator.hbm_bytes_per_s, MEMORY_OF_SHEET),
        fabric_bytes_per_s,
    )


PRODUCT_OF_SHEET = {"A100": 0.87, "H100": 0.80, "H200": 0.77, "": 0.8}
"""What the best 16-bit product of a GPU reaches of its data sheet, by that on which a stack was fitted: Bekman, ML
engineering, "maximum achievable matmul FLOPS" (A100 271.2 of 312, H100 794.5 of 989 TFLOP/s); on an H200 measured
(docs/validation-gpu.md)."""
MEMORY_OF_SHEET = 0.9
"""What the best traffic reaches: on an H200 reading 0.91, the driver's copy 0.89 (docs/validation-gpu.md)."""


def _by_sheet(rate: Measured, reached: float) -> float:
    """The data-sheet rate of a measured one."""
    return rate.value / reached if rate.kind == "measured" else rate.value


FITTED_EFFICIENCY = {"H100": 0.77, "H200": 0.77, "": 0.7}
"""Share of the peak that large products reach on the GPU that a stack was fitted on: medians of the kernel table of
NVIDIA aiconfigurator; "": round, for other GPUs and for accelerators whose own share is assumed."""
_LARGE_FLOP = 1e12


def reached_share(accelerator: Accelerator, fitted_on: str = "") -> float:
    """Rate of products over the data sheet's, relative to that of the fit: by the share of the peak that is reached (1
    where it is not stated), and by what the accelerator sustains beyond its relatives."""
    faster = accelerator.sustained.value if accelerator.sustained else 1.0
    points = accelerator.efficiency
    known = bool(points) and points[-1].efficiency.kind != "assumed"
    fitted = FITTED_EFFICIENCY.get(fitted_on if known else "", FITTED_EFFICIENCY[""])
    return faster * min(1.0, accelerator.efficiency_at(_LARGE_FLOP) / fitted)


def fitted_gpu(spec: TransformerSpec) -> str:
    """The GPU that a model's stack was fitted on, "" for a file."""
    return spec.stack.rpartition("/")[2] if isinstance(spec.stack, str) else ""


def plan_of(
    model: Model,
    accelerator: Accelerator,
    fabric_bytes_per_s: float,
    replicas: int | None = None,
    passes: int = 1,
    links: hardware.GroupLinks | None = None,
) -> ShardingPlan:
    """The plan of `replicas` replicas (None: as declared), each with `passes` micro-batches, gradients compressed.

    links: where its ranks have been placed. Raises ValueError.
    """
    dp = replicas or section(model)[1].dp
    machine = accelerator_of(accelerator, model.precision, fabric_bytes_per_s, section(model)[0])
    plan = _plain_plan(model, machine, dp, passes, links)
    kept = exchange_kept(plan.layout.zero, model.exchange.compression)
    return replace(plan, exchange_kept=kept, compression_s=model.exchange.compression_time)


def exchange_kept(zero: int, gradient_kept: float) -> float:
    """Bytes of an exchange over those without compression, which leaves `gradient_kept` of a gradient's.

    Parameters are gathered whole: half of the bytes of ZeRO 1 and 2, two thirds of ZeRO 3 (Rajbhandari et al. 2020,
    section 7).
    """
    of_gradients = (1.0, 1 / 2, 1 / 2, 1 / 3)[zero]
    return 1.0 - of_gradients * (1.0 - gradient_kept)


def _plain_plan(
    model: Model,
    machine: hardware.AcceleratorRates,
    replicas: int,
    passes: int,
    links: hardware.GroupLinks | None = None,
) -> ShardingPlan:
    """The plan of `replicas` replicas, each with `passes` micro-batches, before gradients are compressed."""
    spec, bound = section(model)
    batch = replicas * passes * bound.layout.micro_batch
    return ShardingPlan(
        spec.shape(),
        bound.layout.layout(replicas, batch, model.precision),
        machine,
        hardware.NetworkRates(bound.node_gpus, bound.nic, bound.gpu_nic, bound.rack_gpus, bound.rack, links),
    )


def stack_in_force(model: Model) -> Stack:
    """The constants, with a measured step's factor limited so that no link exceeds its rate.

    All times are multiplied by the factor; below the exchange's efficiency it would have links beyond their rate.
    """
    spec, bound = section(model)
    return capped(spec.constants(), bound.factor)


def capped(stack: Stack, factor: float) -> Stack:
    """Constants whose exchange, its time multiplied by `factor`, keeps to the rate of its links."""
    return replace(stack, exchange_efficiency=np.minimum(stack.exchange_efficiency, factor))


def exchange_s(plan: ShardingPlan, stack: Stack) -> float:
    """Seconds of all exchanges of a step with other replicas, without overlap."""
    q = quantities([plan])
    bytes_, latency_s = (float(part[0]) for part in exchange(q, stack))
    times = plan.layout.micro_batches if q.sharded_passes[0] > 0 else 1
    once_s = bytes_ / (float(stack.exchange_efficiency) * float(q.link_exchange[0])) + latency_s
    return times * once_s + float(replicas_s(q, stack)[0])


def replica_cost_s(
    model: Model,
    accelerator: Accelerator,
    samples: int,
    fabric_bytes_per_s: float,
    links: hardware.GroupLinks | None = None,
) -> tuple[float, float]:
    """(fixed, total) seconds of one step of one replica at speed 1, without the exchange; a sample is a sequence.

    Bubble, update and what is done once a step are fixed; the rest grows with the micro-batches.
    """
    if samples == 0:
        return 0.0, 0.0
    spec, bound = section(model)
    passes = -(-samples // bound.layout.micro_batch)
    filled = min(passes, bound.layout.pp)
    plan = plan_of(model, accelerator, fabric_bytes_per_s, passes=filled, links=links)
    pass_s, step_s, _, _ = _costs(plan, stack_in_force(model), spec.replica_links)
    return bound.factor * step_s, bound.factor * (step_s + passes * pass_s)


def replica_shares(
    model: Model,
    accelerator: Accelerator,
    samples: int,
    fabric_bytes_per_s: float,
    links: hardware.GroupLinks | None = None,
) -> tuple[float, float]:
    """Shares of `replica_cost_s` that are (pipeline bubble, exchanges inside the replica)."""
    if samples == 0:
        return 0.0, 0.0
    spec, bound = section(model)
    passes = -(-samples // bound.layout.micro_batch)
    filled = min(passes, bound.layout.pp)
    plan = plan_of(model, accelerator, fabric_bytes_per_s, passes=filled, links=links)
    pass_s, step_s, bubble_s, inside_s = _costs(plan, stack_in_force(model), spec.replica_links)
    total_s = step_s + passes * pass_s
    return bubble_s / total_s, passes * inside_s / total_s


@lru_cache(maxsize=256)
def _costs(plan: ShardingPlan, stack: Stack, links: float) -> tuple[float, float, float, float]:
    """Seconds of (a micro-batch, the rest of a step, the bubble, exchanges inside a replica per micro-batch).

    links: rate of the exchanges inside over what the plan's links give; the bubble grows as a micro-batch does.
    """
    times, passes = step_time(plan, stack), plan.layout.micro_batches
    pass_s, step_s, bubble_s, inside_s = (
        math.fsum(float(getattr(times, name)) for name in names) / n
        for names, n in ((IN_PASS, passes), (IN_STEP, 1), (("bubble",), 1), (INSIDE, passes))
    )
    if links == 1.0:
        return pass_s, step_s, bubble_s, inside_s
    longer_s = pass_s + inside_s * (1.0 / links - 1.0)
    filled_s = bubble_s * longer_s / pass_s
    return longer_s, step_s + filled_s - bubble_s, filled_s, inside_s / links


def memory_need_bytes(model: Model, samples: int, replicas: int) -> float:
    """Memory that a GPU of the fullest stage needs, including the driver's [bytes]."""
    spec, bound = section(model)
    size = bound.layout.micro_batch
    passes = -(-max(samples, -(-bound.global_batch // replicas)) // size)  # a pipeline keeps several of them
    machine = hardware.AcceleratorRates("", 1.0, 1.0, 1.0, 1.0, 1.0)  # memory does not depend on how fast it is
    plan = _plain_plan(model, machine, replicas, passes)
    return memory(plan, memory_stack(spec, model)).peak / USABLE


def memory_stack(spec: TransformerSpec, model: Model) -> MemoryStack:
    """The memory constants of this model's software stack."""
    stack = spec.memory_constants()
    if stack is EAGER and model.precision in NARROW:
        stack = COMPILED
    if spec.optimizer == "adam-16bit":
        return replace(stack, gradient_bytes=2.0, optimizer_bytes=4.0)
    if spec.optimizer == "muon":
        return replace(stack, optimizer_bytes=stack.optimizer_bytes - MOMENT)
    return stack


MOMENT = 4.0
"""Bytes per parameter of a moment, of which Muon keeps one (Jordan et al. 2024); Adam's for embeddings is left out."""
