"""The work of one recorded operation: its kind, FLOP and bytes of memory traffic. Plain numbers, without PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

READ = "read by the host"
"""The kind of an operation whose value the host waits for."""
RECURRENCE, LINEAR_ALGEBRA = "recurrence", "linear_algebra"
"""Kinds whose time no tensor's size tells: times one after another, and factorisations."""
Pass = Literal["forward", "backward"]


class Shape(NamedTuple):
    """A tensor as an operation sees it. item_bytes: of one element; wide: 32 bits or more of floating point."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    wide: bool

    @property
    def elements(self) -> int:
        """Elements that exist in memory; broadcast ones count once."""
        return math.prod(size for size, stride in zip(self.sizes, self.strides, strict=True) if stride)

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory."""
        return self.elements * self.item_bytes

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions from the outermost to the innermost in memory."""
        return tuple(sorted((d for d, n in enumerate(self.sizes) if n > 1), key=lambda d: -self.strides[d]))

    @property
    def gapless(self) -> bool:
        """Whether its elements lie one after another, in some order of the dimensions."""
        places = sorted((t, n) for n, t in zip(self.sizes, self.strides, strict=True) if n > 1)
        ends = [1, *(t * n for t, n in places)]
        return all(t == end for (t, _), end in zip(places, ends, strict=False))


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """What one call does. kind "": it only makes a view.

    product: (groups, m, n, k) of a matrix product; of an attention (heads of all samples, queries, keys, size); of a
    recurrence its groups are times one after another.
    """

    name: str
    kind: str
    during: Pass
    flop: float = 0.0
    bytes: float = 0.0
    product: tuple[int, int, int, int] | None = None


VIEWS = frozenset(
    [
        "alias",
        "as_strided",
        "chunk",
        "detach",
        "diagonal",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "lift_fresh",
        "narrow",
        "new_empty",
        "new_empty_strided",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
        "view_as_complex",
        "view_as_real",
        "_reshape_alias",
        "_unsafe_view",
    ]
)
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("embedding", "index", "gather", "index_select", "_unsafe_index", "take"), "gather"),
    **dict.fromkeys(
        ["index_put", "index_put_", "_index_put_impl_", "scatter", "scatter_", "_unsafe_index_put"], "scatter"
    ),
    **dict.fromkeys(["index_add", "index_add_", "scatter_add", "scatter_add_"], "scatter_add"),
    "embedding_dense_backward": "embedding_backward",
    **dict.fromkeys(
        [
            "sum",
            "mean",
            "amax",
            "amin",
            "max",
            "min",
            "var_mean",
            "norm",
            "linalg_vector_norm",
            "argmax",
            "any",
            "all",
            "prod",
            "cumsum",
        ],
        "reduction",
    ),
    **dict.fromkeys(("cat", "stack", "chunk_cat", "split_with_sizes_copy"), "concatenation"),
    "all_gather_copy_in": "concatenation",
    **dict.fromkeys(
        [
            "zeros",
            "zero",
            "zero_",
            "fill_",
            "ones",
            "full",
            "zeros_like",
            "new_zeros",
            "full_like",
            "ones_like",
            "new_full",
            "arange",
            "scalar_tensor",
            "new_ones",
        ],
        "fill",
    ),
    **dict.fromkeys(("sort", "topk", "nonzero", "histc", "bincount"), "sort"),
}
NARROW = 512
"""Elements of a row below which norms of rows use the device worse."""
_PARTS = (
    ("attention", "attention"),
    ("mkldnn_rnn_layer", "recurrent"),
    ("batch_norm", "batch_norm"),
    ("layer_norm", "layer_norm"),
    ("rms_norm", "layer_norm"),
    ("group_norm", "group_norm"),
    ("softmax", "softmax"),
    ("pool", "pooling"),
    ("_foreach_norm", "reduction"),
    ("dropout", "dropout"),
    ("bernoulli", "dropout"),
    ("rand", "dropout"),
)
"""Parts of names, and the kinds that they tell; the first that is found."""


def operation(
    name: str, ins: Sequence[Shape], outs: Sequence[Shape], during: Pass, changes: bool, scalars: Sequence[float]
) -> TracedOperation:
    """The operation `name` of PyTorch by its tensors; changes: it writes into its first input; scalars: its numbers."""
    if name in VIEWS:
        return TracedOperation(name, "", during)
    product = _product(name, ins)
    flop = _flop(name, ins, outs, product, bool(scalars and scalars[0]))
    kind = _kind(name, ins, outs, scalars)
    if "attention" in name and "backward" not in name and len(ins[0].sizes) == 4:
        product = ins[0].sizes[0] * ins[0].sizes[1], ins[0].sizes[-2], ins[1].sizes[-2], ins[0].sizes[-1]
    if kind == LINEAR_ALGEBRA:  # about 10 n^3 for the factors of a matrix (Golub and Van Loan, table 8.6.1)
        flop = 10.0 * max((x.elements * min(x.sizes[-2:]) for x in (*ins, *outs) if len(x.sizes) >= 2), default=0.0)
    return TracedOperation(name, kind, during, flop, _bytes(name, ins, outs, changes), product)


def _kind(name: str, ins: Sequence[Shape], outs: Sequence[Shape], scalars: Sequence[float]) -> str:
    back = "_backward" if "backward" in name else ""
    if name == "grouped_product" or name in ("mm", "addmm", "bmm", "baddbmm"):
        return "product_fp32" if ins[0].wide else "product"
    if name in ("convolution", "convolution_backward"):
        x, weight = (ins[1], ins[2]) if back else (ins[0], ins[1])
        inside = x.sizes[1] // max(1, weight.sizes[1])
        form = "_depthwise" if inside == x.sizes[1] > 1 else "_grouped" if inside > 1 else ""
        first = "" if len(x.sizes) != 4 or x.order[-1:] == (1,) or x.sizes[1] == 1 else "_channels_first"
        return f"convolution{form}{first}{back}"
    if name.startswith("attention"):
        size = (ins[1] if back else ins[0]).sizes[-1]
        form = "_dropout" if len(scalars) > 1 and scalars[1] else "" if size in (64, 128) else "_other_size"
        return f"attention{form}{back}"
    if name == RECURRENCE:
        return RECURRENCE
    if name.startswith("_fused_"):
        return "optimiser_fused"
    if name in ("_to_copy", "copy_", "clone", "copy"):
        source, target = ins[-1], outs[0]
        turned = source.order[-1:] != target.order[-1:]
        return "copy_transposed" if turned else "copy" if source.order == target.order else "copy_permuted"
    if _KINDS.get(name) == "reduction":
        x, out = ins[0], outs[0]
        within = bool(x.sizes and out.sizes and x.sizes[-1] == out.sizes[-1] > 1)
        return "reduction_of_rows" if within else "reduction"
    if name in _KINDS:
        return _KINDS[name]
    for part, kind in _PARTS:
        if part in name:
            if kind == "batch_norm" and ins[0].order[-1:] != (1,) and len(ins[0].sizes) == 4:
                kind = "batch_norm_channels_first"
            if kind == "layer_norm" and (ins[1] if back else ins[0]).sizes[-1] < NARROW:
                kind = "layer_norm_narrow"
            return kind + (back if kind != "dropout" else "")
    if name.startswith("_foreach_"):
        return "optimiser_lists"
    if name.strip("_").startswith(("linalg_", "cholesky", "lu_", "triangular_solve", "ormqr", "geqrf")):
        return LINEAR_ALGEBRA
    whole = [x for x in (*ins, *outs) if x.sizes]
    alike = all(x.gapless and x.sizes == whole[0].sizes and x.order == whole[0].order for x in whole)
    return "elementwise" if alike else "elementwise_broadcast"


def kind_on_core(one: TracedOperation) -> str:
    """The kind of an operation on a CPU, where elementwise functions differ and thin products are slow."""
    if one.kind.startswith("elementwise"):
        return f"elementwise_{one.name}"
    thin = one.kind.startswith("product") and one.product is not None and min(one.product[1:3]) < 8
    return f"{one.kind}_thin" if thin else one.kind


def _product(name: str, ins: Sequence[Shape]) -> tuple[int, int, int, int] | None:
    if name == "grouped_product":
        a, b, ends = ins
        groups = ends.sizes[0]
        if len(b.sizes) == 3:
            return groups, max(1, a.sizes[0] // groups), b.sizes[-1], a.sizes[1]
        return groups, a.sizes[0], b.sizes[-1], max(1, a.sizes[1] // groups)
    if name == RECURRENCE:
        (times, batch, _), (inner, out) = ins[0].sizes, ins[1].sizes
        return times, batch, out, inner
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        a, b = ins[-2:]
        return (a.sizes[0] if name[-3:] == "bmm" else 1), a.sizes[-2], b.sizes[-1], a.sizes[-1]
    return None


def _flop(
    name: str, ins: Sequence[Shape], outs: Sequence[Shape], product: tuple[int, int, int, int] | None, causal: bool
) -> float:
    if product is not None:
        return 2.0 * math.prod(product)
    if name == "convolution":
        return 2.0 * math.prod(outs[0].sizes) * math.prod(ins[1].sizes[1:])
    if name == "convolution_backward":
        pieces = sum(len(out.sizes) >= 3 for out in outs)
        return 2.0 * math.prod(ins[0].sizes) * math.prod(ins[2].sizes[1:]) * pieces
    if name.startswith("mkldnn_rnn_layer"):  # every weight meets every sample of every time
        x, *weights = ins[:3]
        return (4.0 if "backward" in name else 2.0) * math.prod(x.sizes[:2]) * sum(w.elements for w in weights)
    if "attention" in name:  # two products forward, five backward (FlashAttention-2, Dao 2023, section 3)
        back = "backward" in name
        q, k = ins[1:3] if back else ins[:2]
        return (10.0 if back else 4.0) * math.prod(q.sizes) * k.sizes[-2] * (0.5 if causal else 1.0)
    return 0.0


def workspace_bytes(name: str, ins: Sequence[Shape]) -> int:
    """What an operation keeps for its backward pass beside its results, of which fake tensors know no size.

    Of an LSTM on a CPU: gates of all times and several copies of states that are as wide as the wider of input and
    state; measured (oneDNN of PyTorch 2.13, ten sizes, within 4 % from ten times on).
    """
    if name != "mkldnn_rnn_layer":
        return 0
    (times, batch, inner), (gates, state) = ins[0].sizes, ins[2].sizes
    return round(4.0 * times * batch * (gates + 11.05 * (1.0 + 1.0 / times) * max(inner, state)))


def _bytes(name: str, ins: Sequence[Shape], outs: Sequence[Shape], changes: bool) -> float:
    """Bytes read and written, each tensor once."""
    out = float(sum(x.memory_bytes for x in outs))
    kind = _KINDS.get(name, "")
    if kind == "gather":
        return 2.0 * out + sum(x.memory_bytes for x in ins[1:])
    if kind == "embedding_backward":
        return out + 3.0 * ins[0].memory_bytes
    if kind.startswith("scatter"):
        return (0.0 if changes else 2.0 * out) + 3.0 * ins[-1].memory_bytes
    if name == "nll_loss_forward":
        return 64.0 * (ins[0].sizes[0] if ins[0].sizes else 1)
    if name == "nll_loss_backward":
        return out
    read = float(sum(x.memory_bytes for x in ins))
    if name.startswith("mkldnn_rnn_layer"):  # weights are read again at every time
        return read + out + (ins[0].sizes[0] - 1) * sum(w.memory_bytes for w in ins[1:3])
    if not changes:
        return read + out
    if name.startswith("_fused_adam"):  # parameter, gradient and two moments; all but the gradient are written
        return read * 7.0 / 4.0
    if name.startswith("_fused_sgd"):
        return read * 5.0 / 3.0
    if name.startswith("_foreach"):
        return read * 1.5
    return read if name in ("copy_", "fill_", "zero_") else read + ins[0].memory_bytes
