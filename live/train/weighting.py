"""Uneven shares with exactly weighted gradients, however the loss reaches the parameters.

With n_r of B samples on rank r, the gradient of the mean loss over the whole batch is the sum over ranks of
(n_r / B) * g_r, where g_r is the gradient of rank r's own mean loss. Data-parallel training averages what
the ranks contribute, so each must contribute W * n_r / B * g_r. That factor is applied in the graph's last
node before `.grad`: behind the script's own hooks on the parameter, before anything is accumulated, clipped
or exchanged. So it holds for fused and chunked losses, tied weights, penalties and auxiliary losses, and each
backward pass of an accumulated step has its own factor. `torch.autograd.grad` is not touched.

Only where a gradient passes from rank to rank inside backward does the factor come too late. Synchronised
batch normalisation does that, and its gradient is weighted before it and freed of the weight behind it (a rank
without samples still shows it one). A loss that gathers features from other ranks is the script's own
business, as are parameters that the wrapped model does not hold or leaves out of the exchange: their
gradients are neither exchanged nor weighted. Batch normalisation that is not synchronised sees the local
batch only: its statistics, and so the result, depend on the shares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from equipoise.live.options import Reduction
from equipoise.live.train.wrapped import Replicated

_weighted: WeakSet[torch.nn.Module] = WeakSet()


def contribution_scale(samples: float, total: float, ranks: int, reduction: Reduction) -> float:
    """Factor on a rank's gradient: W * n / B for a mean loss, 1 for a summed one; n may be a weight, too.

    A summed loss is already weighted by its samples (averaged over ranks, as plain data-parallel training
    does), so only a rank that holds no samples is switched off.
    """
    if samples == 0:
        return 0.0
    return ranks * samples / total if reduction == "mean" else 1.0


def is_weighted(module: torch.nn.Module) -> bool:
    """Whether the gradients of this module (the one inside the wrapper) are weighted already."""
    return module in _weighted


class WeightedGradients:
    """Multiplies each gradient of a wrapped model by `factor()` at the moment it is added to `.grad`.

    `own_weights`: the loss is summed, or normalised by the script. The stand-in sample of a rank without
    samples must then count for nothing, while a penalty must count in full. What comes through the model's
    outputs is the sample's; anything else could be either, and raises ValueError in the backward pass.
    """

    def __init__(
        self,
        wrapper: Replicated,
        leaves: Mapping[str, torch.Tensor],
        factor: Callable[[], float],
        *,
        own_weights: bool = False,
    ) -> None:
        """`leaves`: the wrapper's, where gradients are weighted."""
        self._module, self._factor, self._own_weights = wrapper.module, factor, own_weights
        self._handles: list[Any] = []
        self._nodes: list[Any] = []  # a parameter does not keep its node, and with it the hook, alive
        found = self._module.named_modules()
        synchronised = {name: m for name, m in found if isinstance(m, torch.nn.SyncBatchNorm)}
        for module in synchronised.values():
            self._handles.append(module.register_forward_pre_hook(self._enter))
            self._handles.append(module.register_forward_hook(self._leave))
        for name, parameter in leaves.items():
            inside = name.rpartition(".")[0] in synchronised  # weighted by `_leave`
            if not inside and (parameter.is_floating_point() or parameter.is_complex()):
                self._weigh(name, parameter)
        if own_weights:
            self._handles.append(wrapper.model.register_forward_hook(self._mute))
        _weighted.add(self._module)

    def close(self) -> None:
        """Stop weighting gradients."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
        _weighted.discard(self._module)

    def _weigh(self, name: str, parameter: torch.Tensor) -> None:
        def weigh(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor] | None:
            """The gradient times the rank's factor."""
            (gradient,), factor = gradients, self._factor()
            if gradient is None or factor == 1.0:
                return None
            if factor == 0.0 and self._own_weights and _is_something(gradient):
                raise ValueError(
                    f"loss_reduction: 'sum' is not allowed for this loss, of which a part reaches {name} past the "
                    "model's outputs: without samples it may be a penalty's or nothing; 'mean' weights both"
                )
            return (_times(gradient, factor),)

        frozen = not parameter.requires_grad  # it may be trained later on
        parameter.requires_grad_(True)
        node = get_gradient_edge(parameter).node
        parameter.requires_grad_(not frozen)
        self._nodes.append(node)
        self._handles.append(node.register_prehook(weigh))

    def _enter(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs, *others = arguments
        if not inputs.requires_grad:
            return arguments
        inputs = inputs.view_as(inputs)  # what else uses the tensor is none of the layer's business
        inputs.register_hook(lambda gradient: _times(gradient, _inverse(self._factor())))
        return inputs, *others

    def _leave(self, module: torch.nn.Module, arguments: tuple[Any, ...], outputs: torch.Tensor) -> None:
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: _times(gradient, self._factor()))

    def _mute(self, module: torch.nn.Module, arguments: tuple[Any, ...], outputs: Any) -> None:
        if torch.is_grad_enabled() and self._factor() == 0.0:
            for tensor in _tensors(outputs):
                if tensor.grad_fn is not None:
                    tensor.register_hook(torch.zeros_like)


def _times(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    """Zero times NaN is NaN: a rank without samples contributes true zeros."""
    return torch.zeros_like(gradient) if factor == 0.0 else gradient * factor


def _inverse(factor: float) -> float:
    return 0.0 if factor == 0.0 else 1.0 / factor


def _is_something(gradient: torch.Tensor) -> bool:
    """Whether it holds a number other than zero. NaN is what a stand-in sample may leave of zeros."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool((values.abs() > 0).any())


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """All tensors in lists, tuples, dicts and dataclasses."""
    for leaf in pytree.tree_leaves(outputs):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors([getattr(leaf, f.name) for f in dataclasses.fields(leaf)])
