"""Run a training script for a CUDA GPU on a machine without one: shapes and types, no memory and no arithmetic.

Inside `pretending()` tensors are PyTorch's fake tensors on the CPU. What would differ on a CUDA device is replaced:
device arguments, the lists of `torch.autocast("cuda")`, fused attention and grouped products, which become
operations of one call each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # loaded now: it lists the functions of PyTorch, which are replaced below
import torch.distributed as distributed
import torch.nn.functional as functional
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

LIBRARY = "equipoise"
CPU = torch.device("cpu")

WIDE = frozenset(
    [
        "acos",
        "asin",
        "binary_cross_entropy_with_logits",
        "cosh",
        "cumprod",
        "cumsum",
        "exp",
        "expm1",
        "group_norm",
        "kl_div",
        "l1_loss",
        "layer_norm",
        "log",
        "log10",
        "log1p",
        "log2",
        "log_softmax",
        "mse_loss",
        "nll_loss",
        "norm",
        "pow",
        "__pow__",
        "prod",
        "reciprocal",
        "rsqrt",
        "sinh",
        "smooth_l1_loss",
        "softmax",
        "softmin",
        "softplus",
        "sum",
        "tan",
        "triplet_margin_loss",
    ]
)
"""Functions that autocast on CUDA runs in 32 bits (PyTorch, "CUDA Ops that can autocast to float32")."""

_cross_entropy = functional.cross_entropy


def _is_cuda(device: object) -> bool:
    return device is not None and str(device).startswith("cuda")


class CudaAutocast(torch.amp.autocast_mode.autocast):  # type: ignore[misc]
    """Autocast whose device type "cuda" acts on the CPU's fake tensors, with CUDA's default type."""

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        dtype = torch.float16 if dtype is None and device_type == "cuda" else dtype
        super().__init__("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


def _casts() -> bool:
    return bool(torch.is_autocast_enabled("cpu"))


def _wide(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if half else value


def _trains(args: Any, kwargs: Any) -> bool:
    """Whether a call of `dropout(x, p, training, inplace)` drops anything, and not in place."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    return bool(given.get("training", True) and given.get("p", 0.5) > 0.0 and not given.get("inplace", False))


@torch.library.custom_op(f"{LIBRARY}::rms_norm", mutates_args=())  # type: ignore[untyped-decorator]
def rms_norm(x: torch.Tensor, weight: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm by one kernel: its result, and one number for each of the rows."""
    raise NotImplementedError


@rms_norm.register_fake  # type: ignore[untyped-decorator]
def _(x: Any, weight: Any, rows: int) -> Any:
    return torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op(f"{LIBRARY}::rms_norm_backward", mutates_args=())  # type: ignore[untyped-decorator]
def rms_norm_backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and of the weight."""
    raise NotImplementedError


@rms_norm_backward.register_fake  # type: ignore[untyped-decorator]
def _(gradient: Any, x: Any, weight: Any, scales: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(weight)


def _keep_norm(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2], output[1])


def _norm_gradients(ctx: Any, gradient: Any, _: Any) -> Any:
    return (*rms_norm_backward(gradient, *ctx.saved_tensors), None)


rms_norm.register_autograd(_norm_gradients, setup_context=_keep_norm)


def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    weight = input.new_ones(tuple(normalized_shape)) if weight is None else weight
    return rms_norm(input, weight, input.numel() // max(1, weight.numel()))[0]


class CannotTraceError(ValueError):
    """The script cannot be traced; one line that says why and what to do."""


def _listed(sizes: Any, value: Any) -> Any:
    """Nested lists of one value, which is read once."""
    return [_listed(sizes[1:], value) for _ in range(sizes[0])] if len(sizes) else value


CHECKS = ("isnan", "isinf", "any", "logical_or")
"""Functions by which scripts look for numbers that are none; a trace finds none."""


class CudaFunctions(TorchFunctionMode):  # type: ignore[misc]
    """Functions of PyTorch as they act on CUDA tensors; on a CPU only device arguments change."""

    def __init__(self, on_cpu: bool) -> None:
        super().__init__()
        self._on_cpu = on_cpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if name == "to":
            args = tuple(CPU if isinstance(a, str | torch.device) and _is_cuda(a) else a for a in args)
        if name in ("cuda", "pin_memory"):
            return args[0]
        if name in CHECKS:
            out = func(*args, **kwargs)
            out.is_check = name in ("isnan", "isinf") or getattr(next(iter(args), None), "is_check", False)
            return out
        if name == "numpy":
            raise CannotTraceError(
                "numpy(): the values of a tensor exist on a GPU only; keep them in PyTorch in the step"
            )
        if self._on_cpu:
            return func(*args, **kwargs)
        if name in ("grouped_mm", "_grouped_mm"):
            return grouped_product(args[0], args[1], kwargs.get("offs", args[2] if len(args) > 2 else None))
        if name == "scaled_dot_product_attention":
            return attend(*args, **kwargs)
        if name == "dropout" and _trains(args, kwargs):
            return torch.native_dropout(args[0], kwargs.get("p", args[1] if len(args) > 1 else 0.5), True)[0]
        if name == "rms_norm":
            return _rms_norm(*args, **kwargs)
        if name in RECURRENT and isinstance(args[2], list | tuple):
            return recurrent(name, *args)
        if name in WIDE and _casts() and not ("softmax" in name and kwargs.get("dtype") is not None):
            args = tuple(_wide(a) for a in args)
        return func(*args, **kwargs)


@torch.library.custom_op(f"{LIBRARY}::attention", mutates_args=())  # type: ignore[untyped-decorator]
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, dropout: float, masked: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fused attention: output (b, h, l, d) and the logarithm of the sums (b, h, l); only its shapes exist."""
    raise NotImplementedError


@attention.register_fake  # type: ignore[untyped-decorator]
def _(q: Any, k: Any, v: Any, causal: bool, dropout: float, masked: bool) -> Any:
    batch, heads, length, _ = q.shape
    out = q.new_empty(batch, length, heads, v.shape[-1]).transpose(1, 2)
    return out, q.new_empty(batch, heads, length, dtype=torch.float32)


@torch.library.custom_op(f"{LIBRARY}::attention_backward", mutates_args=())  # type: ignore[untyped-decorator]
def attention_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    sums: torch.Tensor,
    causal: bool,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v."""
    raise NotImplementedError


@attention_backward.register_fake  # type: ignore[untyped-decorator]
def _(gradient: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, causal: bool, dropout: float) -> Any:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep_attention(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, ctx.causal, ctx.dropout, _ = inputs
    ctx.save_for_backward(q, k, v, *output)


def _attention_gradients(ctx: Any, gradient: Any, _: Any) -> Any:
    found = attention_backward(gradient, *ctx.saved_tensors, ctx.causal, ctx.dropout)
    return (*found, None, None, None)


attention.register_autograd(_attention_gradients, setup_context=_keep_attention)


@torch.library.custom_op(f"{LIBRARY}::grouped_product", mutates_args=())  # type: ignore[untyped-decorator]
def grouped_product(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Products of groups of rows, each with its own matrix (`torch.nn.functional.grouped_mm`)."""
    raise NotImplementedError


@grouped_product.register_fake  # type: ignore[untyped-decorator]
def _(a: Any, b: Any, ends: Any) -> Any:
    if a.dim() == 2 and b.dim() == 3:
        return a.new_empty(a.shape[0], b.shape[-1])
    return a.new_empty(ends.shape[0], a.shape[-2], b.shape[-1])


def _keep_grouped(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _grouped_gradients(ctx: Any, gradient: Any) -> Any:
    a, b, ends = ctx.saved_tensors
    return (
        grouped_product(gradient, b.transpose(-1, -2), ends),
        grouped_product(a.transpose(-1, -2), gradient, ends),
        None,
    )


grouped_product.register_autograd(_grouped_gradients, setup_context=_keep_grouped)


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@torch.library.custom_op(f"{LIBRARY}::recurrence", mutates_args=())  # type: ignore[untyped-decorator]
def recurrence(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """States (times, batch, out) of a recurrent layer, one time after another; x: its gates before that."""
    raise NotImplementedError


@recurrence.register_fake  # type: ignore[untyped-decorator]
def _(x: Any, weight: Any) -> Any:
    return x.new_empty(*x.shape[:-1], weight.shape[1])


def _keep_recurrence(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _recurrence_gradients(ctx: Any, gradient: Any) -> Any:
    x, weight = ctx.saved_tensors
    return recurrence(gradient, weight.t()), x.flatten(0, -2).t() @ gradient.flatten(0, -2)


recurrence.register_autograd(_recurrence_gradients, setup_context=_keep_recurrence)


def recurrent(
    name: str,
    x: Any,
    _: Any,
    weights: Any,
    bias: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> Any:
    """Layers of an LSTM, GRU or RNN as cuDNN runs them: the inputs of all times in one product, then the states."""
    x = x.transpose(0, 1) if batch_first else x
    each, last = len(weights) // (layers * (1 + both)), []
    for layer in range(layers):
        states = []
        for way in range(1 + both):
            into, within, *biases = weights[each * (layer * (1 + both) + way) :][:each]
            gates = functional.linear(x, into, biases[0] + biases[1] if bias else None)
            states.append(recurrence(gates, within.to(gates.dtype)))
        x = torch.cat(states, -1) if both else states[0]
        last += [one[-1] for one in states]
        if train and dropout and layer < layers - 1:
            x = torch.native_dropout(x, dropout, True)[0]
    ends = torch.stack(last)
    return (x.transpose(0, 1) if batch_first else x), *([ends] * (2 if name == "lstm" else 1))


def attend(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention as one fused operation; leading dimensions are one batch."""
    if _casts():
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
    if query.dim() == 4:
        return attention(query, key, value, is_causal, dropout_p, attn_mask is not None)[0]
    lead = query.shape[:-2]
    four = [x.reshape(1, -1, *x.shape[-2:]) for x in (query, key, value)]
    out = attention(*four, is_causal, dropout_p, attn_mask is not None)[0]
    return out.reshape(*lead, query.shape[-2], value.shape[-1])


def cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Cross-entropy under CUDA's autocast: the softmax in the type of its input, the loss in 32 bits."""
    plain = _casts() and input.dtype != torch.float32 and not target.is_floating_point() and not args
    if not plain or kwargs.get("label_smoothing"):
        return _cross_entropy(input, target, *args, **kwargs)
    chances = functional.log_softmax(input, 1, dtype=input.dtype).float()
    kwargs.pop("label_smoothing", None)
    return functional.nll_loss(chances, target, **kwargs)


def apply(module: Any, change: Callable[[Any], Any], recurse: bool = True, *, done: Any = None) -> Any:
    """`Module._apply` for fake tensors, which PyTorch cannot swap in place; shared parameters stay shared."""
    done = {} if done is None else done
    for child in module.children():
        apply(child, change, done=done)
    for store in (module._parameters, module._buffers):
        for name, value in store.items():
            if value is None:
                continue
            if id(value) not in done:
                with torch.no_grad():
                    new = change(value)
                if new is not value and isinstance(value, torch.nn.Parameter):
                    new = torch.nn.Parameter(new, value.requires_grad)
                done[id(value)] = value, new
            store[name] = done[id(value)][1]
    return module


def _nothing(*_: Any, **__: Any) -> None:
    return None


# PyTorch has no shapes for these, and would run them on real tensors.
_shapes = torch.library.Library("aten", "IMPL")
for _name in ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_"):
    _shapes.impl(_name, _nothing, "Meta")

_loader = DataLoader.__init__


def _without_workers(self: Any, *args: Any, **kwargs: Any) -> None:
    """A loader of data in this process: others would not know the fake tensors."""
    _loader(self, *args, **kwargs | {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False})


@dataclass
class Pretence:
    """What the script asked for. compiled: it called `torch.compile`."""

    compiled: bool = False

    def compile(self, model: Any = None, **_: Any) -> Any:
        """`torch.compile`, which is noted: kernels are fused in the record of the step."""
        self.compiled = True
        return (lambda function: function) if model is None else model


class _Event:
    """An event or a stream of CUDA: all work is one stream, and nothing is measured."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.record = self.synchronize = self.wait = self.wait_stream = self.wait_event = _nothing
        self.record_event = _Event

    def elapsed_time(self, _: Any) -> float:
        return 1.0


def _scaled_step(_: Any, optimiser: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    """`GradScaler.step` where no gradient is infinite; it reads whether one is."""
    for found in state["found_inf_per_device"].values():
        found.item()
    return optimiser.step(*args, **kwargs)


class _Replica(torch.nn.Module):  # type: ignore[misc]
    """DistributedDataParallel: one exchange of each gradient, and buckets that hold the gradients once more."""

    def __init__(self, module: torch.nn.Module, *_: Any, gradient_as_bucket_view: bool = False, **__: Any) -> None:
        super().__init__()
        self.module, self.exchanges = module, True
        if distributed.is_initialized() and distributed.get_world_size() > 1:
            trained = [p for p in module.parameters() if p.requires_grad]
            self._buckets = [] if gradient_as_bucket_view else [torch.empty_like(p) for p in trained]
            for parameter in trained:
                parameter.register_post_accumulate_grad_hook(self._exchange)

    def _exchange(self, parameter: torch.Tensor) -> None:
        if self.exchanges:
            distributed.all_reduce(parameter.grad)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without an exchange."""
        self.exchanges = False
        try:
            yield
        finally:
            self.exchanges = True


_mesh = DeviceMesh.__init__


def _real_mesh(self: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
    """A mesh of the fake ranks; its table of ranks is real."""
    with _disable_current_modes():
        if isinstance(known := kwargs.get("_rank_map"), FakeTensor):  # PyTorch's own: 0, 1, 2, ...
            kwargs["_rank_map"] = torch.arange(known.numel(), dtype=torch.int)
        _mesh(self, "cpu" if _is_cuda(device_type) else device_type, *args, **kwargs)


_whole_shapes = ShardingPropagator._propagate_tensor_meta_non_cached


def _unrecorded_shapes(self: Any, schema: Any) -> Any:
    """Shapes of sharded tensors as wholes, which no GPU allocates."""
    with _disable_current_modes():
        return _whole_shapes(self, schema)


@contextmanager
def ranks_of(count: int) -> Iterator[None]:
    """The first of `count` ranks of a process group that exchanges nothing (PyTorch's fake process group)."""
    world = {"WORLD_SIZE": str(count), "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(min(count, 8))}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, world))
        end, start = distributed.destroy_process_group, distributed.init_process_group

        def begin(*_: Any, **__: Any) -> None:
            if not distributed.is_initialized():
                start("fake", store=FakeStore(), rank=0, world_size=count)
                stack.callback(end)

        if count > 1:
            begin()
        stack.enter_context(patch.object(distributed, "init_process_group", begin))
        stack.enter_context(patch.object(distributed, "destroy_process_group", _nothing))
        stack.enter_context(patch.object(DeviceMesh, "__init__", _real_mesh))
        stack.enter_context(patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", _unrecorded_shapes))
        stack.enter_context(patch.object(torch.nn.parallel, "DistributedDataParallel", _Replica))
        yield


@contextmanager
def pretending(ranks: int = 1, device: str = "cuda") -> Iterator[Pretence]:
    """Fake tensors, and PyTorch as it acts on one CUDA device (or CPU), that of the first of `ranks`."""
    functions, pretence = CudaFunctions(device == "cpu"), Pretence()
    engine = torch.autograd.graph._engine_run_backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        with functions:  # calls inside a function of PyTorch do not pass the mode, recomputation has to
            return engine(*args, **kwargs)

    # The inner ones too: transformers calls the outer ones as they were when it was loaded.
    inits = [n for n in vars(torch.nn.init) if n.endswith("_") and (n.startswith("_no_grad_") or n[0] != "_")]
    with ExitStack() as stack:
        stack.enter_context(ranks_of(ranks))
        for name in inits:
            stack.enter_context(patch.object(torch.nn.init, name, lambda tensor, *_, **__: tensor))
        for place in (torch.autograd, torch.autograd.graph):
            stack.enter_context(patch.object(place, "_engine_run_backward", backward))
        stack.enter_context(patch.object(torch.nn.Module, "_apply", apply))
        stack.enter_context(patch.object(FakeTensor, "tolist", lambda x: _listed(x.shape, x.new_zeros(()).item())))
        stack.enter_context(patch.object(DataLoader, "__init__", _without_workers))
        stack.enter_context(patch.object(torch, "compile", pretence.compile))
        stack.enter_context(patch.object(torch.nn.Module, "compile", lambda *_, **__: pretence.compile()))
        if device != "cpu":
            stack.enter_context(_cuda_patches())
        stack.enter_context(patch.object(FakeTensorMode, "__deepcopy__", lambda mode, _: mode, create=True))
        stack.enter_context(FakeTensorMode())
        stack.enter_context(functions)
        yield pretence


@contextmanager
def _cuda_patches() -> Iterator[None]:
    """One CUDA device, and what PyTorch does otherwise there than on a CPU."""
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda *_: True,
        "get_device_capability": lambda *_: (9, 0),
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "reset_peak_memory_stats": _nothing,
        "set_device": _nothing,
        "max_memory_allocated": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "manual_seed_all": _nothing,
        "Event": _Event,
        "Stream": _Event,
        "stream": lambda _: nullcontext(),
        "current_stream": _Event,
        "default_stream": _Event,
    }
    with ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        for place in (torch, torch.amp, torch.amp.autocast_mode):
            stack.enter_context(patch.object(place, "autocast", CudaAutocast))
        stack.enter_context(patch.object(functional, "scaled_dot_product_attention", attend))
        stack.enter_context(patch.object(functional, "cross_entropy", cross_entropy))
        stack.enter_context(patch.object(torch.amp.GradScaler, "_maybe_opt_step", _scaled_step))
        # On CUDA optimisers go over lists of tensors unless told otherwise.
        stack.enter_context(patch.object(optimizer, "_foreach_supported_types", [FakeTensor, torch.nn.Parameter]))
        stack.enter_context(patch.object(optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cpu"]))
        yield
