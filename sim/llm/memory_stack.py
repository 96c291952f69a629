"""What software stacks keep in memory: bytes by element of each kind, and how far measured peaks are from predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from equipoise.sim.llm.stack import Floats


@dataclass(frozen=True, slots=True)
class MemoryStack:
    """Bytes a software stack keeps, per element of each kind; fields are floats.

    `gradient_bytes` and `optimizer_bytes` are per parameter, `plain_bytes` per activation of width hidden,
    `gathered_bytes` per such activation of one layer that is gathered from the tensor group, `inner_bytes` per
    other activation, `score_bytes` per attention score, `head_bytes` per activation of width hidden around the
    head, which no rank divides, `logit_bytes` per logit, `base_bytes` per process (buffers of collectives,
    workspaces, fragments). These are fitted; `gathered_layers` with sharded parameters are whole at once, a layer
    that is computed again holds the inner activations of `recomputed_layers`, and `selective` is what selective
    recomputation drops: attention scores, or the results of every other operation.
    """

    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    plain_bytes: float = 10.0
    gathered_bytes: float = 4.0
    inner_bytes: float = 2.0
    score_bytes: float = 0.01
    head_bytes: float = 4.0
    logit_bytes: float = 8.0
    base_bytes: float = 2e9
    gathered_layers: float = 1.0
    recomputed_layers: float = 2.0
    selective: Literal["scores", "operations"] = "scores"

    def with_bytes(self, values: Mapping[str, float]) -> MemoryStack:
        """With other values of fitted constants, by their names."""
        return replace(self, **{name: values.get(name, getattr(self, name)) for name in FITTED})

    def vector(self) -> Floats:
        """The fitted constants, in the order of the columns of `counts`."""
        return np.array([getattr(self, name) for name in FITTED])


FITTED = tuple(name for name in MemoryStack.__dataclass_fields__ if name.endswith("_bytes"))


GENERAL: tuple[MemoryStack, tuple[float, float]] = (MemoryStack(), (0.73, 1.60))
EAGER = MemoryStack(
    optimizer_bytes=10.0, inner_bytes=2.9, logit_bytes=16.0, gathered_layers=2.0, selective="operations"
)
"""Sharded 32-bit weights (FSDP), counted from what the operations of a Llama layer save: queries and keys in 32 bits
beside their rotated copies, four tensors of a gated feed-forward; logits in 16 and 32 bits, their log-softmax and the
gradients of both. On peaks of torchtitan within 3 % (its other layouts are kept)."""
COMPILED = MemoryStack(
    optimizer_bytes=10.0,
    plain_bytes=6.0,
    inner_bytes=1.5,
    logit_bytes=12.0,
    gathered_layers=2.0,
    selective="operations",
)
"""The same through torch.compile, which FP8 products need: what is between products is computed again, and the logits
have no copy in 32 bits."""
UNFITTED = {
    "fsdp-eager/A100": EAGER,
    "fsdp-eager/H100": EAGER,
    "fsdp-compiled/A100": COMPILED,
    "fsdp-compiled/H100": COMPILED,
    "pytorch-compiled/H200": MemoryStack(recomputed_layers=1.0),
}
"""Stacks whose memory is counted, not fitted; others take `GENERAL`."""
MEMORY_STACKS: dict[str, tuple[MemoryStack, tuple[float, float]]] = {
    "nanotron/H100": (
        MemoryStack(
            gradient_bytes=6.0,
            optimizer_bytes=12.0,
            plain_bytes=40.0,
            gathered_bytes=8.214,
            inner_bytes=1.015,
            score_bytes=0.005485,
            head_bytes=78.76,
            logit_bytes=10.07,
            base_bytes=9.07e7,
        ),
        (0.779, 1.237),
    ),
    "megatron-deepspeed/A100": (
        MemoryStack(
            gradient_bytes=4.231,
            optimizer_bytes=16.13,
            plain_bytes=10.12,
            gathered_bytes=4.0,
            inner_bytes=2.015,
            score_bytes=5.268,
            head_bytes=4.026,
            logit_bytes=12.85,
            base_bytes=4.275e9,
        ),
        GENERAL[1],
    ),
}
"""By stack: constants, and (5 %, 95 %) of measured / predicted for families left out of the fit; of fewer than three
families, as of Sailor's two models, the general ones."""
STAGE_MEASURED = {"nanotron/H100": 0}
"""The one pipeline stage whose peaks were measured, of stacks where it was not the fullest."""
