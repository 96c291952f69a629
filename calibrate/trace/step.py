"""The law of a training step: the host queues operations, the GPU runs them in order, each waits for the other.

An operation begins when it is queued and the one before has ended (as in Daydream, Zhu et al., USENIX ATC 2020,
section 4). A value that the host reads lets the host wait until the GPU has done all before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.calibrate.trace.rates import OperationRates
from equipoise.calibrate.trace.work import READ, TracedOperation

STEPS = 3
"""Steps in a row; the last one counts, as the host may run ahead of the GPU."""


@dataclass(frozen=True)
class StepTimes:
    """step_s: from one step's end to the next one's; host_s, gpu_s: work of each; by_kind: of the GPU, in s."""

    step_s: float
    host_s: float
    gpu_s: float
    by_kind: dict[str, float]

    @property
    def limit(self) -> str:
        """What a faster step would need most: "host", "products" or "memory"."""
        if self.host_s > self.gpu_s:
            return "host"
        products = sum(
            s for kind, s in self.by_kind.items() if kind.startswith(("product", "convolution", "attention"))
        )
        return "products" if products > self.gpu_s / 2.0 else "memory"


def step_times(operations: Sequence[TracedOperation], rates: OperationRates) -> StepTimes:
    """Times of a step made of these operations."""
    by_kind: dict[str, float] = defaultdict(float)
    for one in operations:
        by_kind[one.kind] += rates.seconds(one)
    by_kind.pop("", None)
    (step_s,) = reached_s(operations, rates)
    host_s = rates.host.step_s + sum(queueing_s(one, rates) for one in operations)
    return StepTimes(step_s, host_s, sum(by_kind.values()), dict(by_kind))


def reached_s(operations: Sequence[TracedOperation], rates: OperationRates, marks: Sequence[int] = ()) -> list[float]:
    """Seconds from the end of the step before until that many operations (ascending) have run; last, until all have."""
    work = [(queueing_s(one, rates), rates.seconds(one), one.kind == READ) for one in operations]
    host = gpu = begun = 0.0
    reached: list[float] = []
    for step in range(STEPS):
        if step == STEPS - 1:
            begun = max(host, gpu)
        host += rates.host.step_s
        for k, (queue_s, gpu_s, waits) in enumerate(work, start=1):
            host += queue_s
            if waits:
                host = max(host, gpu)
            elif gpu_s:
                gpu = max(gpu, host) + gpu_s
            while step == STEPS - 1 and len(reached) < len(marks) and marks[len(reached)] <= k:
                reached.append(max(0.0, gpu - begun))
    return [*reached, max(host, gpu) - begun]


def queueing_s(one: TracedOperation, rates: OperationRates) -> float:
    """Seconds of the host to queue an operation."""
    if not one.kind:
        return rates.host.view_s
    return rates.host.backward_s if one.during == "backward" else rates.host.forward_s
