"""The shape of a transformer in a traced step: its blocks are the products that repeat between attentions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise, product
from typing import Any

from equipoise.calibrate.trace.record import StepTrace
from equipoise.sim.llm.shape import Transformer

CLOSE = 0.01
"""Relative difference of the counts of parameters up to which a shape is taken for the traced model."""


def transformer_of(trace: StepTrace) -> dict[str, Any] | None:
    """Fields of the dense decoder whose products and parameters are the trace's; None where there is no such one."""
    forward = [one for one in trace.operations if one.during == "forward" and one.product is not None]
    at = [k for k, one in enumerate(forward) if one.kind.startswith("attention")]
    between = [tuple(one.product for one in forward[a + 1 : b]) for a, b in pairwise(at)]
    attention = forward[at[0]].product if at else None
    if attention is None or len(set(between)) != 1 or attention[0] % trace.batch:
        return None
    groups, length, _, size = attention
    rows, heads = trace.batch * length, groups // trace.batch
    products = [(n, k) for one in between[0] if one is not None and one[1] == rows for _, _, n, k in [one]]
    last = forward[-1].product
    if len(products) < 4 or last is None or products[0][1] != heads * size:
        return None
    hidden = products[0][0]
    found: list[Transformer] = []
    for gated in (False, True):
        feed, inputs = products[1 : 3 + gated], products[3 + gated :]
        width = feed[0][0]
        right = feed == [(width, hidden)] * (1 + gated) + [(hidden, width)] and {k for _, k in inputs} == {hidden}
        key_value = sum(n for n, _ in inputs) - heads * size
        if right and key_value > 0 and key_value % (2 * size) == 0:
            sizes = {"layers": len(at), "hidden": hidden, "heads": heads, "ffn": width, "vocab": last[2]}
            sizes |= {"kv_heads": key_value // (2 * size), "head_size": size, "sequence": length}
            found += _variants(sizes | {"gated": gated})
    nearest = min(found, key=lambda one: abs(one.parameters - trace.parameters), default=None)
    if nearest is None or abs(nearest.parameters / trace.parameters - 1.0) > CLOSE:
        return None
    return {key: value for key, value in asdict(nearest).items() if value}


def _variants(sizes: dict[str, Any]) -> Iterator[Transformer]:
    """The shape with each choice that products do not show, and the count of parameters does."""
    for tied, norm, bias, places in product((False, True), ("rms", "layer"), ("", "bias", "qkv_bias"), (False, True)):
        more: dict[str, Any] = {"tied": tied, "norm": norm, "learned_positions": sizes["sequence"] if places else 0}
        if bias:
            more[bias] = True
        yield Transformer(**sizes, **more)
