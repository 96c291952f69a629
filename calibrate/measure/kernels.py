"""Costs of single operations on a GPU through PyTorch, from which training steps are composed.

Linear layers in the three layouts in which they occur, attention, convolutions, kernels that move memory, each kind
at several sizes, and the host's time for one operation. Device times: all calls are queued before the first begins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from equipoise.calibrate.measure.measure import Measure, Outcome
from equipoise.calibrate.measure.operations import trace
from equipoise.calibrate.measure.timing import LEAST_REPEATS, MOST_REPEATS, time_calls
from equipoise.calibrate.measure.training import FRAMEWORK, one_step, use_precision
from equipoise.calibrate.samples import Scalar

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]
Make = Callable[[str, Any], Call]
"""make(device, dtype) returns a function that runs the operation once, on separate operands."""
IMAGE_CHANNELS = 3
# (rows, outputs, inputs) of linear layers.
LINEARS = (
    (4096, 1024, 1024),
    (16384, 4096, 1024),
    (16384, 1024, 4096),
    (8192, 8192, 2048),
    (32, 8192, 8192),
    (32768, 1024, 1024),
    (8192, 2048, 2048),
    (2048, 3072, 1024),
    (4096, 32768, 1024),
    (96, 4096, 8192),
)
# (batch, heads, length, depth), causal.
ATTENTIONS = (
    (8, 16, 512, 64),
    (64, 16, 512, 64),
    (4, 16, 2048, 64),
    (2, 16, 1024, 128),
    (8, 16, 2048, 128),
    (2, 16, 4096, 128),
    (16, 8, 256, 64),
)
# (batch, channels in, channels out, pixels along each side, stride); kernels of 3 x 3.
CONVOLUTIONS = (
    (32, 3, 64, 128, 1),
    (32, 64, 64, 128, 1),
    (32, 64, 128, 128, 2),
    (16, 128, 128, 64, 1),
    (64, 256, 512, 32, 2),
    (64, 512, 512, 16, 1),
    (64, 512, 1024, 16, 2),
    (4, 64, 64, 64, 1),
    (4, 256, 256, 32, 1),
    (32, 128, 256, 64, 2),
    (64, 256, 256, 32, 1),
)
PARTS = ("forward", "input", "weight")
ELEMENTS = (2**16, 2**20, 2**23, 2**26)
# Bytes moved per element by operation; arrays are fp32 but for the second of "cast" and "mixed", and "sum".
MOVED = {
    "add": 12,
    "exp": 8,
    "cast": 6,
    "mixed": 10,
    "strided": 8,
    "transposed": 8,
    "list": 8,
    "update": 28,
    "sum": 2,
    "norm": 8,
    "norm_backward": 12,
    "batch_norm": 8,
    "batch_norm_backward": 12,
    "softmax": 8,
    "softmax_backward": 12,
}
IN_BF16 = ("add", "exp", "strided", "batch_norm", "batch_norm_backward")
"""Operations whose operands autocast leaves in bf16."""
TENSORS = 8  # in a list
ROTATED_BYTES = 256 * 2**20  # several times an L2
MOST_SETS = 6
STRETCH_S, MOST_CALLS = 1e-3, 20
LARGEST_BUDGET_S = 0.015
CLOCKS_PER_S = 2e9  # of a GPU, at most about


def kernel_measures(quick: bool) -> list[Measure]:
    """All measurements, none repeated by round; empty if PyTorch is not installed for CUDA."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    precisions = ("tf32", "bf16") if quick else ("fp32", "tf32", "bf16")
    found = [m for precision in precisions for m in _products(precision, 3 if quick else None)]
    return [*found, *_moves(ELEMENTS[quick:])]


def _products(precision: str, first: int | None) -> Iterator[Measure]:
    """Products in a precision, and the host's time for an operation; of so many shapes of each kind."""

    def alone(kind: str, part: str, product: tuple[int, int, int], make: Make) -> Measure:
        """One of them."""
        m, n, k = product
        by = "library" if kind == "gemm" else "framework"
        size = 2 if precision == "bf16" else 4
        return Measure(
            kind,
            {"precision": precision, "m": m, "n": n, "k": k, "part": part, by: FRAMEWORK},
            partial(_times, "cuda", precision, size * (m * k + k * n + m * n), make),
            once=True,
        )

    for layer in LINEARS[:first]:
        for part in PARTS:
            yield alone("gemm", part, product_of(part, *layer), partial(linear, part, *layer))
    for shape in ATTENTIONS[:first]:
        batch, heads, length, depth = shape
        for part in ("forward", "backward"):
            product = batch * heads * length, length // 2, depth
            yield alone("attention", part, product, partial(attention, part, shape))
    for convolved in CONVOLUTIONS[:first]:
        batch, into, out, side, stride = convolved
        for part in PARTS[:: 2 if into == IMAGE_CHANNELS else 1]:  # images need no gradient
            product = product_of(part, batch * (side // stride) ** 2, out, 9 * into)
            yield alone("convolution", part, product, partial(convolution, part, convolved))
    what: dict[str, Scalar] = {"precision": precision, "framework": FRAMEWORK}
    yield Measure("dispatch", what, partial(_dispatch, "cuda", precision), once=True)


def _moves(sizes: Sequence[int]) -> Iterator[Measure]:
    """Operations that move memory, on so many elements."""
    for precision, part, operations in (("fp32", 1, tuple(MOVED)), ("bf16", 2, IN_BF16)):
        for operation in operations:
            for elements in sizes:
                moved = MOVED[operation] * elements // part
                yield Measure(
                    "elementwise",
                    {
                        "operation": operation,
                        "precision": precision,
                        "bytes": moved,
                        "array_bytes": 4 * elements // part,
                        "framework": FRAMEWORK,
                    },
                    partial(_times, "cuda", precision, moved, partial(moving, operation, elements)),
                    once=True,
                )


def product_of(part: str, rows: int, outputs: int, inputs: int) -> tuple[int, int, int]:
    """(m, n, k) of a layer's forward, or of the gradient of its input or weight."""
    shapes = {"forward": (rows, outputs, inputs), "input": (rows, inputs, outputs), "weight": (outputs, inputs, rows)}
    return shapes[part]


def linear(part: str, rows: int, outputs: int, inputs: int, device: str, dtype: torch.dtype) -> Call:
    """One product of a linear layer, in the layout in which autograd computes it."""
    import torch

    shapes = {"x": (rows, inputs), "w": (outputs, inputs), "dy": (rows, outputs)}
    pair = {"forward": ("x", "w"), "input": ("dy", "w"), "weight": ("dy", "x")}[part]
    first, second = (torch.randn(shapes[name], device=device, dtype=dtype) for name in pair)
    if part == "forward":
        return lambda: torch.mm(first, second.t())
    return lambda: torch.mm(first.t() if part == "weight" else first, second)


def attention(part: str, shape: tuple[int, int, int, int], device: str, dtype: torch.dtype) -> Call:
    """Causal attention by the kernel that PyTorch chooses, or its gradients."""
    import torch

    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    attend = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True)
    if part == "forward":
        return attend
    out = attend()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def convolution(part: str, shape: tuple[int, int, int, int, int], device: str, dtype: torch.dtype) -> Call:
    """A convolution of 3 x 3, or the gradient of its input or weight."""
    import torch

    batch, into, out, side, stride = shape
    x, w = (torch.randn(s, device=device, dtype=dtype) for s in ((batch, into, side, side), (out, into, 3, 3)))
    geometry = [stride, stride], [1, 1], [1, 1], False, [0, 0], 1
    if part == "forward":
        return lambda: torch.ops.aten.convolution(x, w, None, *geometry)
    dy = torch.randn(batch, out, side // stride, side // stride, device=device, dtype=dtype)
    wanted = [part == "input", part == "weight", False]
    return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, *geometry, wanted)


def moving(operation: str, elements: int, device: str, dtype: torch.dtype) -> Call:
    """An operation on arrays of so many elements that moves MOVED bytes of each."""
    import torch

    random = partial(torch.randn, device=device, dtype=dtype)
    aten = torch.ops.aten
    rows = random(elements // 1024, 1024)
    if operation == "add":
        return partial(torch.add, rows, random(rows.shape))
    if operation == "exp":
        return partial(torch.exp, rows)
    if operation == "cast":
        return partial(rows.to, torch.bfloat16)
    if operation == "mixed":
        return partial(torch.add, rows, random(rows.shape).to(torch.bfloat16))
    if operation == "strided":
        return partial(rows.view(-1, 64, 16, 64).transpose(1, 2).clone, memory_format=torch.contiguous_format)
    if operation == "transposed":
        return partial(rows.view(-1, 8192).t().clone, memory_format=torch.contiguous_format)
    if operation == "sum":
        return partial(rows.to(torch.bfloat16).sum, 0)
    if operation in ("list", "update"):
        return _list_of(operation, [random(elements // TENSORS) for _ in range(TENSORS)])
    if operation.startswith("softmax"):
        long = rows.view(-1, 8192)
        out = torch.log_softmax(long, -1)
        if operation == "softmax":
            return partial(torch.log_softmax, long, -1)
        return partial(aten._log_softmax_backward_data, random(out.shape), out, -1, dtype)
    images = operation.startswith("batch_norm")
    x = (rows.view(-1, 64, 32, 32) if images else rows).requires_grad_()
    weight, bias = (torch.ones(64 if images else 1024, device=device, requires_grad=True) for _ in range(2))
    means = [torch.zeros(64, device=device) for _ in range(2)]  # running mean and variance
    norm: Callable[[], torch.Tensor] = (
        partial(torch.nn.functional.batch_norm, x, *means, weight, bias, training=True)
        if images
        else partial(torch.nn.functional.layer_norm, x, (1024,), weight, bias)
    )
    if not operation.endswith("backward"):
        return norm
    out = norm()
    gradient = random(out.shape)
    return lambda: torch.autograd.grad(out, (x, weight, bias), gradient, retain_graph=True)


def _list_of(operation: str, weights: list[Any]) -> Call:
    """Optimisers' kernels on lists: one pass of a plain update, or AdamW in one kernel."""
    import torch

    if operation == "list":
        return partial(torch._foreach_mul_, weights, 0.999)
    gradients, means, squares = ([torch.rand_like(w) for w in weights] for _ in range(3))
    steps = [torch.ones((), device=weights[0].device) for _ in weights]
    constants = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    return partial(
        torch._fused_adamw_, weights, gradients, means, squares, [], steps, amsgrad=False, maximize=False, **constants
    )


def _times(device: str, precision: str, moved_bytes: int, make: Make, budget_s: float) -> Outcome:
    """Seconds of one call on the device; operands are rotated, as a step finds them used a while ago."""
    import torch

    use_precision(device, precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    sets = min(max(math.ceil(ROTATED_BYTES / max(moved_bytes, 1)), 1), MOST_SETS)
    turn = cycle([make(device, dtype) for _ in range(sets)])

    def once() -> None:
        """One call on the next operands."""
        next(turn)()

    for _ in range(sets):
        once()
    if device == "cpu":
        return time_calls(once, budget_s)
    times = _queued_s(once, min(budget_s, LARGEST_BUDGET_S))
    turn = cycle(())
    torch.cuda.empty_cache()  # measurements past PyTorch need the memory too
    return times


def _queued_s(once: Call, budget_s: float) -> Sequence[float]:
    """Seconds of one call between two events, behind a kernel that waits until all calls are queued."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    once()
    host_s = time.perf_counter() - start
    torch.cuda.synchronize()
    calls = min(max(math.ceil(STRETCH_S / (time.perf_counter() - start)), 2), MOST_CALLS)
    held_clocks = int(2.0 * CLOCKS_PER_S * (host_s * calls + 1e-4))
    times: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(times) < LEAST_REPEATS or (time.perf_counter() < deadline and len(times) < MOST_REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(held_clocks)
        begin.record()
        for _ in range(calls):
            once()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / calls)
    return tuple(times)


def _dispatch(device: str, precision: str, budget_s: float) -> Outcome:
    """The host's seconds for one operation: steps of a model so small that the device waits for it."""
    import torch
    from torch import nn

    use_precision(device, precision)
    with torch.device(device):
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
        layers.append(nn.Flatten())
        for _ in range(8):
            layers += [nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()]
        model, x, target = nn.Sequential(*layers), torch.randn(8, 4, 4, 4), torch.randint(0, 64, (8,))
    step = one_step(device, precision, model, x, target)
    step()
    operations = sum(o.count for o in trace(step))
    return tuple(t / operations for t in time_calls(step, min(budget_s, 0.3)))
