"""Uneven shares with exactly weighted gradients, however the loss reaches the parameters.

With n_r of B samples on rank r, the gradient of the mean loss over the whole batch is the sum over ranks of
(n_r / B) * g_r, where g_r is the gradient of rank r's own mean loss. Data-parallel training averages what
the ranks contribute, so each must contribute W * n_r / B * g_r: the gradient of its loss times that factor. The
factor is the gradient that `backward` begins with, so all that follows is linear in it: penalties, auxiliary losses,
tied weights, heads outside the wrapped model, synchronised batch normalisation, and each backward pass of an
accumulated step with its own factor. Hooks of the script see weighted gradients. Nothing is done for each parameter,
and `torch.autograd.grad` is not touched.

A loss in half precision cannot hold the factor exactly, and zero times infinity is no zero: in these cases every
gradient is weighted where it is added to `.grad`.
Batch normalisation that is not synchronised sees the local batch only: its statistics depend on the shares.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch.autograd.graph import get_gradient_edge

from equipoise.live.options import Reduction
from equipoise.live.train.wrapped import Replicated

_HALF = (torch.float16, torch.bfloat16)
_weighted: WeakSet[torch.nn.Module] = WeakSet()
_attached: list[WeightedGradients] = []
_plain = torch.autograd.backward


def contribution_scale(samples: float, total: float, ranks: int, reduction: Reduction) -> float:
    """Factor on a rank's gradient: W * n / B for a mean loss, 1 for a summed one; n may be a weight, too."""
    if samples == 0:
        return 0.0
    return ranks * samples / total if reduction == "mean" else 1.0


def is_weighted(module: torch.nn.Module) -> bool:
    """Whether the gradients of this module (the one inside the wrapper) are weighted already."""
    return module in _weighted


class WeightedGradients:
    """Begins each `backward` in a round of the wrapped model with `factor()`; None: no round is running."""

    def __init__(
        self, wrapper: Replicated, leaves: Mapping[str, torch.Tensor], factor: Callable[[], float | None]
    ) -> None:
        """`leaves`: the wrapper's, where gradients are weighted if the loss is in half precision."""
        self._module, self._leaves, self.factor = wrapper.module, leaves, factor
        self.late = 1.0  # the factor that gradients still lack
        self._handles: list[Any] = []
        self._nodes: list[Any] = []  # a parameter does not keep its node, and with it the hook, alive
        _weighted.add(self._module)
        _attached.append(self)
        torch.autograd.backward = _backward

    def close(self) -> None:
        """Stop weighting gradients."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
        _weighted.discard(self._module)
        if self in _attached:
            _attached.remove(self)
        if not _attached:
            torch.autograd.backward = _plain

    def weigh_late(self, factor: float) -> None:
        """Weigh the gradients of the next backward pass one by one. Raises ValueError if they pass between ranks."""
        if factor != 0.0 and any(isinstance(m, torch.nn.SyncBatchNorm) for m in self._module.modules()):
            raise ValueError("loss: half precision is not allowed with SyncBatchNorm; needed: a loss in float32")
        self.late = factor
        for parameter in self._leaves.values() if not self._handles else ():
            if parameter.is_floating_point() or parameter.is_complex():
                self._hook(parameter)

    def _hook(self, parameter: torch.Tensor) -> None:
        def weigh(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor] | None:
            """The gradient times the rank's factor."""
            (gradient,) = gradients
            return None if gradient is None or self.late == 1.0 else (_times(gradient, self.late),)

        frozen = not parameter.requires_grad  # it may be trained later on
        parameter.requires_grad_(True)
        node = get_gradient_edge(parameter).node
        parameter.requires_grad_(not frozen)
        self._nodes.append(node)
        self._handles.append(node.register_prehook(weigh))


def _times(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    """Zero times NaN is NaN: a rank without samples contributes true zeros."""
    return torch.zeros_like(gradient) if factor == 0.0 else gradient * factor


_running = False  # a backward pass is: those inside it (checkpointed activations) have its factor already


@functools.wraps(_plain)
def _backward(tensors: Any, grad_tensors: Any = None, *arguments: Any, **named: Any) -> None:
    """`torch.autograd.backward`, of the loss times the factor of the running round."""
    global _running
    running = [w for w in _attached if not _running and (w.factor() is not None)]
    if not running:
        _plain(tensors, grad_tensors, *arguments, **named)
        return
    factors = {w.factor() for w in running}
    if len(factors) > 1:
        raise RuntimeError("backward in a round of two attached models with different shares; give both one sampler")
    (factor,) = factors
    assert factor is not None
    losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    begins = [None] * len(losses) if grad_tensors is None else grad_tensors
    begins = [begins] if isinstance(begins, torch.Tensor) else list(begins)
    half = factor not in (0.0, 1.0) and any(loss.dtype in _HALF for loss in losses)
    if half or factor == 0.0:
        for w in running:
            w.weigh_late(factor)
    if not half and factor != 1.0:
        begins = [_begin(loss, begin, factor) for loss, begin in zip(losses, begins, strict=True)]
    _running = True
    try:
        _plain(losses, begins, *arguments, **named)
    finally:
        _running = False
        for w in running:
            w.late = 1.0


def _begin(loss: torch.Tensor, begin: Any, factor: float) -> Any:
    if begin is None:
        return torch.full_like(loss, factor) if loss.numel() == 1 else None
    return _times(begin, factor)
