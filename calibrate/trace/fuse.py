"""Operations of a compiled step, by a stated rule: chains of pointwise operations and reductions become one kernel.

Inductor's own plan needs a GPU. Here consecutive operations over equally many elements become one kernel, which reads
what comes from before the chain and writes what is read after it. Products, convolutions, attention, sorting and
scattering stay kernels of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from equipoise.calibrate.trace.work import TracedOperation

FUSED = (
    "elementwise",
    "copy",
    "fill",
    "softmax",
    "layer_norm",
    "batch_norm",
    "dropout",
    "reduction",
    "gather",
    "concat",
)
"""Kinds, by the start of their names, that Inductor generates itself."""
ERROR = 0.25
"""Added to the interval of a compiled step; assumed."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes of the storages that an operation reads and writes, by number; elements: of its largest tensor."""

    reads: Mapping[int, int]
    writes: Mapping[int, int]
    elements: int


def fused(operations: Sequence[TracedOperation], flows: Sequence[Flow]) -> tuple[list[TracedOperation], list[int]]:
    """The compiled step's operations, and how many of them are done after each of the given ones.

    Compiled code is queued as the backward pass is, without Python's modules.
    """
    last = {number: k for k, flow in enumerate(flows) for number in flow.reads}
    found: list[TracedOperation] = []
    done: list[int] = []
    chain: list[int] = []

    def close() -> None:
        """End the chain: its kernel is an operation of the step."""
        if not chain:
            return
        inside: set[int] = set()
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        for k in chain:
            read |= {number: size for number, size in flows[k].reads.items() if number not in inside}
            inside |= flows[k].writes.keys()
            written |= flows[k].writes
        kept = sum(size for number, size in written.items() if last.get(number, len(flows)) > chain[-1])
        found.append(TracedOperation("fused", "elementwise", "backward", 0.0, float(sum(read.values()) + kept)))
        chain.clear()

    for k, (one, flow) in enumerate(zip(operations, flows, strict=True)):
        if one.kind.startswith(FUSED):
            if chain and flows[chain[-1]].elements != flow.elements:
                close()
            chain.append(k)
        elif one.kind:
            close()
            found.append(replace(one, during="backward"))
        done.append(len(found) + bool(chain))
    close()
    return found, done
