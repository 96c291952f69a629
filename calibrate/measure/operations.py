"""Traces a training step by operation: matrix products, convolutions, attention, memory traffic.

PyTorch runs a step once and every operation is recorded as it is dispatched (forward, backward and optimiser), so
any module can be described, timed or not. The description is plain numbers: it is stored
among the samples and costed without PyTorch (`calibrate.fit.compose`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Kind = Literal[
    "memory",
    "product",
    "convolution",
    "attention",
    "function",
    "attention_backward",
    "cast",
    "mixed",
    "strided",
    "list",
    "update",
    "sum",
    "norm",
    "norm_backward",
    "batch_norm",
    "batch_norm_backward",
    "softmax",
    "softmax_backward",
    "product_input",
    "product_weight",
    "convolution_input",
    "convolution_weight",
    "transposed",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
PRODUCTS: tuple[Kind, ...] = (
    "product",
    "product_input",
    "product_weight",
    "convolution",
    "convolution_input",
    "convolution_weight",
    "attention",
    "attention_backward",
)
FUNCTIONS = ("softmax", "gelu", "silu", "tanh", "sigmoid", "exp", "erf", "log", "pow", "norm")
SOFTMAX_PASSES = {False: 3, True: 2}
"""Times that each element is read: largest, sum of exponentials, result; backward: sum, result."""
BATCH_NORM_CHANNELS = 64
"""Where how many there are was not noted, and where batch normalisation was timed."""
COLUMNS = ("kind", "m", "n", "k", "element_bytes", "moved_bytes", "count")


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """One operation, done `count` times in a step.

    Products have the shape (m, k) x (k, n) and elements of `element_bytes`; convolutions and attention are
    given as the products that they amount to, a convolution's bias (its gradient) as the bytes that it moves.
    Other operations read and write `moved_bytes`; those of kind "function" compute an exponential or the like for
    each element, which a CPU needs longer for; "transposed" ones read along one dimension and write along another.
    A softmax along a dimension that is not the last has `k` elements that a GPU's thread goes through one after
    the other, in several passes; batch normalisation has `n` channels.
    """

    kind: Kind
    m: int = 0
    n: int = 0
    k: int = 0
    element_bytes: int = 4
    moved_bytes: int = 0
    count: int = 1


def as_columns(operations: Iterable[TimedOperation]) -> dict[str, list[float]]:
    """The operations as parallel columns of numbers, as samples keep them."""
    rows = [(KINDS.index(o.kind), o.m, o.n, o.k, o.element_bytes, o.moved_bytes, o.count) for o in operations]
    return {name: [float(row[c]) for row in rows] for c, name in enumerate(COLUMNS)}


def from_columns(columns: Mapping[str, Sequence[float]]) -> list[TimedOperation]:
    """The inverse of `as_columns`. Raises ValueError for invalid columns."""
    if set(columns) != set(COLUMNS) or len({len(column) for column in columns.values()}) != 1:
        raise ValueError(f"operations need equally long columns {', '.join(COLUMNS)}")
    found = []
    for kind, *numbers in zip(*(columns[name] for name in COLUMNS), strict=True):
        if not 0 <= int(kind) < len(KINDS):
            raise ValueError(f"operations: unknown kind {kind:g}")
        found.append(TimedOperation(KINDS[int(kind)], *(int(v) for v in numbers)))
    return found


def trace(step: Callable[[], object]) -> list[TimedOperation]:
    """Run `step` once and record PyTorch's dispatched operations; equal operations are counted together.

    Counts are separate before, in and after the backward pass, since a GPU's host may be ahead in one but not another.
    Views, and tensors that are only allocated, cost nothing and are left out.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: Counter[tuple[int, TimedOperation]] = Counter()
    part = 0

    class Noting(TorchDispatchMode):  # type: ignore[misc] # PyTorch's types are not read
        """Records every operation that moves data."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal part
            result = function(*args, **(kwargs or {}))
            backward = torch._C._current_autograd_node() is not None
            part = 1 if backward else 2 * (part > 0)
            found.update((part, o) for o in _operations(function, args, kwargs or {}, result))
            return result

    with Noting():
        step()
    return [replace(o, count=count) for (_, o), count in found.items()]


def _operations(function: Any, args: Any, kwargs: Any, result: Any) -> list[TimedOperation]:
    """The operations, each of count 1, that one dispatched call amounts to."""
    name = function.name().removeprefix("aten::").split(".")[0]
    ins, outs = _tensors((args, kwargs)), _tensors(result) or _written(function, args)
    if name.startswith(("empty", "new_empty")) or not outs or _is_view(function, ins, outs):
        return []
    rule = _RULES.get(name.rstrip("_"))
    if rule is not None:
        return rule(args, ins, outs)
    if "scaled_dot_product" in name or "efficient_attention" in name or "flash_attention" in name:
        return _attention(ins, "backward" in name, bool(_argument("is_causal", function, args, kwargs)))
    moved = _bytes(ins) + _bytes(outs)
    if "softmax" in name:
        return _softmax("backward" in name, _argument("dim", function, args, kwargs), ins, outs[0], moved)
    if name.startswith("_fused_"):  # the schema says that gradients are written, which they are not
        moved -= _bytes(_tensors(_argument("grads", function, args, kwargs)))
    kind = _moving(name, ins, outs)
    channels = ins[0].shape[1] if kind.startswith("batch_norm") else 0
    size = outs[0].element_size() if kind == "transposed" else 4
    return [TimedOperation(kind, n=channels, element_bytes=size, moved_bytes=moved)]


def _moving(name: str, ins: list[Any], outs: list[Any]) -> Kind:
    """The kind of an operation that moves memory: kernels of each kind move it at a rate of their own."""
    for part, kind in _NAMED:
        if name.startswith(part):
            return kind
    norm: Kind | None = "batch_norm" if "batch_norm" in name else "norm" if "_norm" in name else None
    if norm is not None and not name.startswith("linalg"):
        return ("batch_norm_backward" if norm == "batch_norm" else "norm_backward") if "backward" in name else norm
    if any(part in name for part in FUNCTIONS):
        return "function"
    whole = [t for t in (*ins, *outs) if t.shape == outs[0].shape and _stored(t) == t.numel()]
    if len({t.element_size() for t in whole}) > 1:
        return "cast" if len(whole) == 2 else "mixed"
    if len({t.stride() for t in whole}) < 2:
        return "memory"
    return "strided" if len({_innermost(t) for t in whole}) < 2 else "transposed"


def _innermost(tensor: Any) -> int:
    """The dimension along which elements lie together in memory."""
    return min((d for d in range(tensor.dim()) if tensor.shape[d] > 1), key=tensor.stride, default=0)


def _softmax(backward: bool, dim: int, ins: list[Any], out: Any, moved: int) -> list[TimedOperation]:
    """Along the last dimension threads share a row; along another one each goes through its own in turn.

    The kernel reads a copy in order of what is not.
    """
    last = dim % out.dim() == out.dim() - 1
    turns = 0 if last else out.shape[dim] * SOFTMAX_PASSES[backward]
    first = [] if ins[0].is_contiguous() else [_transposed(ins[0])]
    return [*first, TimedOperation("softmax_backward" if backward else "softmax", k=turns, moved_bytes=moved)]


def _transposed(tensor: Any) -> TimedOperation:
    """A copy in order."""
    size = tensor.element_size()
    return TimedOperation("transposed", element_bytes=size, moved_bytes=2 * size * tensor.numel())


def _tensors(value: Any) -> list[Any]:
    """All tensors in nested arguments."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in _tensors(item)] if isinstance(value, list | tuple) else []


def _written(function: Any, args: Any) -> list[Any]:
    """What a call without a result writes in place (optimisers on lists of tensors)."""
    pairs = zip(function._schema.arguments, args, strict=False)
    return _tensors([value for a, value in pairs if a.alias_info is not None and a.alias_info.is_write])


def _bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the elements in memory: what is given twice or repeated by a stride of 0 counts once."""
    distinct = {(t.data_ptr(), t.numel(), t.element_size()): t for t in tensors}.values()
    return sum(_stored(t) * t.element_size() for t in distinct)


def _stored(tensor: Any) -> int:
    return math.prod(n for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s or not n)


def _memory(moved_bytes: int) -> TimedOperation:
    return TimedOperation("memory", moved_bytes=moved_bytes)


def _is_view(function: Any, ins: list[Any], outs: list[Any]) -> bool:
    """Whether the results only look at the arguments' memory, which the call does not write."""
    if function._schema.is_mutable or not ins:
        return False
    held = {t.untyped_storage()._cdata for t in ins}
    return all(t.untyped_storage()._cdata in held for t in outs)


def _product(m: int, n: int, k: int, like: Any, kind: Kind = "product") -> TimedOperation:
    return TimedOperation(kind, m, n, k, like.element_size())


def _mm(args: Any, ins: list[Any], outs: list[Any]) -> list[TimedOperation]:
    left, right = ins[-2], ins[-1]
    return [_product(left.shape[0], right.shape[1], left.shape[1], left, _layout(left, right))]


def _layout(left: Any, right: Any) -> Kind:
    """By which operands hold the summed dimension together: both in a linear layer's forward (x w').

    The first in the gradient of its input (dy w), none in that of its weight (dy' x); kernels differ.
    """
    if left.stride(-1) != 1 and left.stride(-2) == 1:
        return "product_weight"
    return "product_input" if right.stride(-1) == 1 and right.stride(-2) != 1 else "product"


def _bmm(args: Any, ins: list[Any], outs: list[Any]) -> list[TimedOperation]:
    left, right = ins[-2], ins[-1]
    rows = left.shape[0] * left.shape[1]  # as one product with the batch in the rows
    return [_product(rows, right.shape[2], left.shape[2], left, _layout(left, right))]


def _convolution(args: Any, ins: list[Any], outs: list[Any]) -> list[TimedOperation]:
    out, weight = outs[0], ins[1]
    return [replace(_implicit_product(out, weight), moved_bytes=2 * _bytes(outs) if len(ins) > 2 else 0)]


def _implicit_product(out: Any, weight: Any) -> TimedOperation:
    """The product that a convolution amounts to: pixels x channels out, summed over channels in x kernel."""
    pixels = out.numel() // out.shape[1]
    return _product(pixels, weight.shape[0], math.prod(weight.shape[1:]), weight, "convolution")


def _convolution_backward(args: Any, ins: list[Any], outs: list[Any]) -> list[TimedOperation]:
    """Gradients of the input (unless not asked for) and of the weight, each as much work as the forward."""
    grad_out, weight = ins[0], ins[2]
    forward = _implicit_product(grad_out, weight)
    m, n, k, size = forward.m, forward.n, forward.k, forward.element_bytes
    wanted = args[-1]
    found = [TimedOperation("convolution_input", m, k, n, size)] if wanted[0] else []
    bias = _bytes(ins[:1]) if wanted[2] else 0
    return [*found, TimedOperation("convolution_weight", n, k, m, size, bias)] if wanted[1] else found


def _attention(ins: list[Any], backward: bool, causal: bool) -> list[TimedOperation]:
    """Scores and their use: two products forward, five backward (Dao et al. 2022, algorithm 4).

    Where a place only sees those before it, half of them are left out.
    """
    query, key = ins[1:3] if backward else ins[:2]  # the backward's first is the gradient
    batch, heads, length, depth = query.shape
    rows, others = batch * heads * length, key.shape[2]
    if causal:
        others = (others + 1) // 2
    kind: Kind = "attention_backward" if backward else "attention"
    scores = _product(rows, others, depth, query, kind)
    use = _product(rows, depth, others, query, kind)
    return [scores, use, scores, use, use] if backward else [scores, use]


def _argument(name: str, function: Any, args: Any, kwargs: Any) -> Any:
    """What a call was given as that argument; None without."""
    names = [argument.name for argument in function._schema.arguments]
    return dict(zip(names, args, strict=False)).get(name, kwargs.get(name))


def _picked(args: Any, ins: list[Any], outs: list[Any]) -> list[TimedOperation]:
    """A loss that reads one element of each row."""
    return [_memory(2 * _bytes(ins[1:2]) + _bytes(outs))]


def _picked_backward(args: Any, ins: list[Any], outs: list[Any]) -> list[TimedOperation]:
    return [_memory(_bytes(outs))]  # zeros but for these elements


def _embedding(args: Any, ins: list[Any], outs: list[Any]) -> list[TimedOperation]:
    return [_memory(2 * _bytes(outs))]  # only the rows that are looked up are read


_NAMED: tuple[tuple[str, Kind], ...] = (
    ("_foreach_norm", "function"),
    ("_foreach", "list"),
    ("_fused_", "update"),
    ("sum", "sum"),
)
_RULES: dict[str, Callable[[Any, list[Any], list[Any]], list[TimedOperation]]] = {
    "mm": _mm,
    "addmm": _mm,
    "bmm": _bmm,
    "baddbmm": _bmm,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "embedding": _embedding,
    "nll_loss_forward": _picked,
    "nll_loss2d_forward": _picked,
    "nll_loss_backward": _picked_backward,
    "nll_loss2d_backward": _picked_backward,
}
