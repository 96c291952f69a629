"""The law of a training step: the host queues operations, the GPU runs them in order, each waits for the other.

An operation begins when it is queued and the one before has ended (as in Daydream, Zhu et al., USENIX ATC 2020,
section 4). A value that the host reads lets the host wait until the GPU has done all before it. A CPU core is both:
its step is the sum of its operations.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from equipoise.calibrate.trace.rates import OperationRates
from equipoise.calibrate.trace.work import LINEAR_ALGEBRA, READ, RECURRENCE, TracedOperation

COMPUTE = ("product", "convolution", "attention", RECURRENCE, LINEAR_ALGEBRA)
"""Beginnings of kinds that compute more than they read and write."""
STEPS = 3
"""Steps in a row; the last one counts, as the host may run ahead of the GPU."""


class Send(NamedTuple):
    """An exchange before operation `at`. gathers: what comes next needs it, and it waits for no gradient."""

    at: int
    bytes: float
    gathers: bool = False


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
        products = sum(s for kind, s in self.by_kind.items() if kind.startswith(COMPUTE))
        return "products" if products > self.gpu_s / 2.0 else "memory"


def step_times(operations: Sequence[TracedOperation], rates: OperationRates) -> StepTimes:
    """Times of a step made of these operations."""
    by_kind: dict[str, float] = defaultdict(float)
    for one in operations:
        if one.kind:
            by_kind[rates.named(one)] += rates.seconds(one)
    by_kind.pop(READ, None)
    step_s = exchanging_s(operations, rates)
    host_s = rates.host.step_s + sum(queueing_s(one, rates) for one in operations)
    return StepTimes(step_s, host_s, sum(by_kind.values()), dict(by_kind))


def exchanging_s(
    operations: Sequence[TracedOperation], rates: OperationRates, sends: Sequence[Send] = (), rate: float = math.inf
) -> float:
    """Seconds from one step's end to the next one's, with exchanges at `rate` bytes/s, one after another."""
    before: dict[int, list[Send]] = defaultdict(list)
    for send in sends:
        before[send.at].append(send)
    needed = max((send.at for send in sends), default=-1)
    host = gpu = link = begun = 0.0
    for step in range(STEPS):
        if step == STEPS - 1:
            begun = max(host, gpu)
        host += rates.host.step_s
        for k in range(len(operations) + 1):
            for send in before.get(k, ()):
                link = max(link, host if send.gathers else gpu) + send.bytes / rate
                if send.gathers:
                    gpu = max(gpu, link)
            if k == needed:
                gpu = max(gpu, link)
            if k == len(operations):
                break
            one = operations[k]
            host += queueing_s(one, rates)
            gpu_s = rates.seconds(one)
            if one.kind == READ:
                host = max(host, gpu)
            elif rates.serial:
                host = gpu = host + gpu_s
            elif gpu_s:
                gpu = max(gpu, host) + gpu_s
    return max(host, gpu) - begun


def queueing_s(one: TracedOperation, rates: OperationRates) -> float:
    """Seconds of the host to queue an operation."""
    if not one.kind:
        return rates.host.view_s
    return rates.host.backward_s if one.during == "backward" else rates.host.forward_s
