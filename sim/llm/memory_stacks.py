"""Memory constants of known stacks, fitted to public peaks, and how far predictions of unseen families were off.

Sources: the Ultra-Scale Playbook (nanotron, 431 runs), Sailor (Megatron-DeepSpeed without fused attention, 15
runs). No peaks of other stacks are public: `GENERAL` is what Adam in mixed precision and fused attention need, and
its spread how far it is from nanotron's runs, which it was not fitted to; a stack that keeps its scores needs up to
three times it.
"""

from __future__ import annotations

from equipoise.sim.llm.memory import MemoryStack

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
