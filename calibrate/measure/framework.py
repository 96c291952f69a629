"""Costs of single operations through PyTorch on one core, from which training steps on a CPU are composed."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

from equipoise.calibrate.measure.measure import Measure, Outcome
from equipoise.calibrate.measure.timing import time_calls
from equipoise.calibrate.measure.training import ONE_CORE, use_precision
from equipoise.calibrate.samples import CPU_TIME

KIB = 2**10
# (m, n, k): squares, and the thin ones that small batches, weight gradients and convolutions make.
QUICK_SHAPES = (
    (16, 16, 16),
    (64, 64, 64),
    (256, 256, 256),
    (512, 512, 512),
    (8, 512, 512),
    (64, 1024, 1024),
    (512, 1024, 16),
    (2048, 16, 64),
    (16, 64, 2048),
)
FULL_SHAPES = (
    *QUICK_SHAPES,
    (32, 32, 32),
    (128, 128, 128),
    (1024, 1024, 1024),
    (8, 10, 1024),
    (10, 1024, 64),
    (1024, 1024, 8),
    (8192, 16, 144),
    (16, 144, 8192),
    (1024, 512, 128),
    (128, 512, 1024),
    (512, 32, 64),
    (4, 1024, 512),
)
QUICK_ARRAYS = tuple(KIB * 16**k for k in range(4))  # 1 KiB to 4 MiB
FULL_ARRAYS = tuple(64 * 4**k for k in range(10))  # 64 B to 16 MiB
# (batch, channels in, channels out, pixels along each side); kernels of 3 x 3.
CONVOLUTIONS = {
    True: ((8, 16, 32, 16), (32, 8, 8, 16), (16, 32, 32, 8)),
    False: ((8, 16, 32, 16), (32, 8, 8, 16), (16, 32, 32, 8), (32, 16, 16, 32), (8, 3, 16, 32)),
}
INNER_S = 1e-3  # one timed stretch: far above the clock's resolution
ROTATED_BYTES = 64 * KIB * KIB
MOST_SETS = 16


def framework_measures(quick: bool) -> list[Measure]:
    """Products, additions and exponentials by PyTorch on one core; none where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return []
    products = [
        Measure(
            "gemm",
            {"precision": "fp32", "m": m, "n": n, "k": k, "library": ONE_CORE, "clock": CPU_TIME},
            partial(_product, m, n, k),
            weight=0.3,
        )
        for m, n, k in (QUICK_SHAPES if quick else FULL_SHAPES)
    ]
    elementwise = [
        Measure(
            "elementwise",
            {"operation": name, "bytes": arrays * size, "array_bytes": size, "framework": ONE_CORE},
            partial(_elementwise, name, arrays - 1, size),
            weight=0.3,
        )
        for size in (QUICK_ARRAYS if quick else FULL_ARRAYS)
        for name, arrays in (("add", 3), ("exp", 2))
    ]
    # A convolution with its two gradients; m, n, k are the product that it amounts to.
    convolutions = [
        Measure(
            "convolution",
            {"precision": "fp32", "m": batch * side * side, "n": out, "k": 9 * into, "framework": ONE_CORE},
            partial(_convolution, batch, into, out, side),
            weight=0.3,
        )
        for batch, into, out, side in CONVOLUTIONS[quick]
    ]
    return [*products, *elementwise, *convolutions]


def _convolution(batch: int, into: int, out: int, side: int, budget_s: float) -> Outcome:
    import torch

    use_precision("cpu", "fp32")
    x, w, dy = (
        torch.randn(shape) for shape in ((batch, into, side, side), (out, into, 3, 3), (batch, out, side, side))
    )
    geometry = [1, 1], [1, 1], [1, 1], False, [0, 0], 1

    def once() -> None:
        """Forward, and the gradients of input and weight."""
        torch.ops.aten.convolution(x, w, None, *geometry)
        torch.ops.aten.convolution_backward(dy, x, w, None, *geometry, [True, True, False])

    return _stretches(once, budget_s)


def _product(m: int, n: int, k: int, budget_s: float) -> Outcome:
    import torch

    return _times(torch.mm, [(m, k), (k, n)], (m, n), budget_s)


def _elementwise(name: str, inputs: int, array_bytes: int, budget_s: float) -> Outcome:
    import torch

    shape = (array_bytes // 4,)
    return _times(getattr(torch, name), [shape] * inputs, shape, budget_s)


def _times(
    function: Callable[..., Any], inputs: list[tuple[int, ...]], output: tuple[int, ...], budget_s: float
) -> Outcome:
    """CPU seconds of one call, batched; operands are rotated, as a step finds them used a while ago."""
    import torch

    use_precision("cpu", "fp32")
    elements = sum(math.prod(shape) for shape in (*inputs, output))
    sets = max(min(ROTATED_BYTES // (4 * elements), MOST_SETS), 1)
    made = [(*(torch.randn(shape) for shape in inputs), torch.empty(output)) for _ in range(sets)]
    turn = cycle(made)

    def once() -> None:
        """One call on the next operands."""
        *operands, out = next(turn)
        function(*operands, out=out)

    for _ in range(sets):
        once()
    return _stretches(once, budget_s)


def _stretches(once: Callable[[], None], budget_s: float) -> Outcome:
    """CPU seconds of one call, from stretches of many."""
    once()
    start = time.process_time()
    once()
    inner = max(1, math.ceil(INNER_S / max(time.process_time() - start, 1e-7)))

    def batch() -> None:
        """As many calls as one timed stretch takes."""
        for _ in range(inner):
            once()

    return tuple(t / inner for t in time_calls(batch, budget_s, clock=time.process_time))
