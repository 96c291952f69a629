"""A traced model in a scenario: data-parallel training on as many GPUs as wanted.

The model gets a step in a hardware profile: a line through two traced batches, and the exponent with which its
exchange overlaps it, from the moments at which its gradients are complete. Memory is the line through both peaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from equipoise.base.files import write_whole
from equipoise.calibrate.trace.blocks import transformer_of
from equipoise.calibrate.trace.predict import StepPrediction
from equipoise.calibrate.trace.rates import OperationRates
from equipoise.calibrate.trace.record import StepTrace
from equipoise.calibrate.trace.step import Send, exchanging_s
from equipoise.policies.physics import overlapped_each
from equipoise.sim.hardware.profile import HardwareProfile, Measured, StepTime, load_profile, save_profile
from equipoise.sim.scenario.tree import write_tree

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""Buckets of DistributedDataParallel (PyTorch, `torch.nn.parallel.DistributedDataParallel`, bucket_cap_mb)."""
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Exchange times, in steps without exchange, at which the exponent of overlap is fitted."""
LARGEST_EXPONENT = 20.0
GPUS_PER_NODE = 8
STACK = "pytorch/H200"
"""Of a model by its shape."""


@dataclass(frozen=True)
class TracedLine:
    """Two traced batches of a model on one GPU: step = alpha_s + beta_s * samples between them."""

    few: StepPrediction
    many: StepPrediction

    def values(self, name: str) -> tuple[float, float]:
        """(at no sample, per sample) of step_s, or of an attribute of the traces; proportional rather than negative."""
        a, b = self.few, self.many
        at_a, at_b = (p.times.step_s if name == "step_s" else getattr(p.trace, name) for p in (a, b))
        slope = max(0.0, (at_b - at_a) / (b.trace.batch - a.trace.batch))
        fixed = at_a - slope * a.trace.batch
        return (fixed, slope) if fixed >= 0.0 else (0.0, at_b / b.trace.batch)

    def step(self) -> StepTime:
        """The line as a step of a hardware profile; the interval is the wider one of both predictions."""
        rates, wide = self.few.rates, 1.0 + max(self.few.error, self.many.error)
        batches = f"{self.few.trace.batch} and {self.many.trace.batch}"
        source = f"operations traced at batches {batches}, rates of {rates.name}"

        def predicted(value: float) -> Measured:
            return Measured(value=value, low=value / wide, high=value * wide, n=2, source=source, kind="predicted")

        fixed_s, sample_s = self.values("step_s")
        gamma = Measured(value=overlap(self.many.trace, rates), source=source, kind="fitted")
        return StepTime(
            workload=self.few.model,
            accelerator=self.few.place,
            precision="bf16",
            source=source,
            kind="predicted",
            alpha_s=predicted(fixed_s),
            beta_s=predicted(sample_s),
            overlap=gamma,
        )


def exchanges(trace: StepTrace) -> list[Send]:
    """The exchanges of a step: of `fully_shard` as traced, else of DistributedDataParallel's buckets as they fill."""
    if sharded(trace):
        return [Send(at, size, "gather" in name) for at, name, size in trace.sent]
    found: list[Send] = []
    filled, limit = 0, FIRST_BUCKET_BYTES
    for at, size in trace.gradients:
        filled += size
        if filled >= limit:
            found.append(Send(at, filled))
            filled, limit = 0, BUCKET_BYTES
    return [*found, Send(trace.gradients[-1][0], filled)]


def sharded(trace: StepTrace) -> bool:
    """Whether ranks gather parameters."""
    return any("gather" in name for name in trace.exchanged)


def overlap(trace: StepTrace, rates: OperationRates) -> float:
    """Exponent gamma of (L^g + X^g)^(1/g) nearest to the exchanges of the trace at several rates of the network."""
    sends = exchanges(trace)
    step_s = exchanging_s(trace.operations, rates)
    exchange_s = np.array(RATIOS) * step_s
    total = sum(send.bytes for send in sends)
    with_exchange = [exchanging_s(trace.operations, rates, sends, total / s) for s in exchange_s]

    def error(gamma: float) -> float:
        return float(np.square(np.log(overlapped_each(step_s, exchange_s, gamma) / with_exchange)).sum())

    return float(minimize_scalar(error, bounds=(1.0, LARGEST_EXPONENT), method="bounded").x)


def write_scenario(found: Sequence[StepPrediction], folder: Path, hardware: str) -> Path:
    """Write NAME.hardware.yaml and NAME.yaml: a scenario of two nodes that trains the model; returns its path.

    `found`: predictions of one model, of two batches or more on each GPU. Raises ValueError for fewer.
    """
    lines = []
    for gpu in dict.fromkeys(one.place for one in found):
        of = sorted((one for one in found if one.place == gpu), key=lambda one: one.trace.batch)
        if of[0].trace.batch == of[-1].trace.batch:
            raise ValueError("a scenario needs two batches of each model: give --batch twice")
        lines.append(TracedLine(of[0], of[-1]))
    name, first = found[0].model, lines[0]
    profile: HardwareProfile = load_profile(hardware).model_copy(
        update={"name": f"{name} on {hardware}", "steps": tuple(line.step() for line in lines)}
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_profile(profile, folder / f"{name}.hardware.yaml")
    write_whole(folder / f"{name}.yaml", write_tree(_scenario(first, name)))
    return folder / f"{name}.yaml"


def _by_layers(trace: StepTrace, name: str) -> dict[str, Any]:
    """The model by its shape alone, for tensor and pipeline parallelism; none where no blocks repeat."""
    shape = transformer_of(trace) if trace.ranks == 1 else None
    if shape is None:
        return {}
    section = {**shape, "layout": {"micro_batch": trace.batch}, "stack": STACK}
    return {f"{name}-layers": {"precision": "bf16", "transformer": section}}


def _scenario(line: TracedLine, name: str) -> dict[str, Any]:
    trace = line.many.trace
    gradient = float(sum(size for _, size in trace.gradients))
    held, each = line.values("peak_bytes")
    gpus = trace.ranks if trace.ranks > 1 else 2 * GPUS_PER_NODE
    parallel = {}
    if sharded(trace):
        # ZeRO 3 is simulated as 3/2 of an all-reduce, which sends all bytes twice; its ranks divide all that is held.
        gradient, parallel = sum(trace.exchanged.values()) / 3.0, {"parallel": {"zero": 3}}
        held *= trace.ranks
    elif trace.ranks == 1:
        held += gradient  # DistributedDataParallel's buckets hold the gradient again
    saved = trace.saved_bytes * (trace.ranks if sharded(trace) else 1)
    state = max(0.0, held / trace.parameters - 4.0)  # the simulator counts weights and gradients in 16 bits
    per_node = min(GPUS_PER_NODE, gpus)
    return {
        "schema_version": 1,
        "name": name,
        "why": f"{name}, traced at {line.few.trace.batch} and {trace.batch} samples a GPU: best known in between",
        "cluster": {
            "hardware": f"{name}.hardware.yaml",
            "nodes": [
                {
                    "name": "node",
                    "count": -(-gpus // per_node),
                    "gpus": per_node,
                    "accelerator": line.few.place,
                    "nics": per_node,
                    "nic": "400 Gbit/s",
                }
            ],
        },
        "workload": {
            "models": {
                **_by_layers(trace, name),
                name: {
                    "step": name,
                    "precision": "bf16",
                    "parameters": trace.parameters,
                    "gradient": gradient,
                    **parallel,
                    "memory": {
                        "optimizer_bytes_per_parameter": float(f"{state:.6g}"),
                        "activation_per_sample": float(f"{each:.6g}"),
                    },
                },
            },
            "jobs": [
                {
                    "name": name,
                    "gpus": gpus,
                    "model": name,
                    "steps": 1000,
                    "global_batch": gpus * trace.batch,
                    "checkpoint": {"size": float(f"{saved:.6g}")},
                }
            ],
        },
    }
