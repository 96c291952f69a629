"""Memory constants of known stacks, fitted to public peaks, and how far predictions of unseen families were off.

Sources: the Ultra-Scale Playbook (nanotron, 431 runs), Sailor (Megatron-DeepSpeed without fused attention, 15
runs). No peaks of other stacks are public: `GENERAL` is what Adam in mixed precision and fused attention need, and
its spread how far it is from nanotron's runs, which it was not fitted to; a stack that keeps its scores needs up to
three times it.
"""

from __future__ import annotations

from equipoise.sim.llm.memory import MemoryStack

Spread = tuple[float, float]
GENERAL: tuple[MemoryStack, Spread] = (MemoryStack(), (0.73, 1.60))
MEMORY_STACKS: dict[str, tuple[MemoryStack, Spread]] = {
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
        (0.975, 1.039),
    ),
}
"""By stack: constants, and (5 %, 95 %) of measured / predicted for families left out of the fit."""
STAGE_MEASURED = {"nanotron/H100": 0}
"""The one pipeline stage whose peaks were measured, of stacks where it was not the fullest."""
