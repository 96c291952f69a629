"""One interface to DistributedDataParallel and PyTorch's `fully_shard`, which exchange gradients.

Under `fully_shard` (FSDP2, on a mesh of one dimension or, replicated and sharded, of two) a rank holds a part of
every parameter. Its gradient arrives whole at the gathered parameter, which PyTorch keeps from round to round; from
there it is summed and cut into the ranks' parts. So a weight at the gathered parameter comes before any exchange.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree


class Replicated:
    """A model wrapped in DistributedDataParallel: every rank holds the whole of it."""

    sharded = False

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model: Any = model

    @property
    def module(self) -> torch.nn.Module:
        """The model itself."""
        module: torch.nn.Module = self.model.module
        return module

    def leaves(self) -> dict[str, torch.Tensor]:
        """Where gradients of this rank's samples are added up before they are exchanged, by name."""
        ignored = self.model.parameters_to_ignore
        return {name: p for name, p in self.module.named_parameters() if name not in ignored}

    def part(self, rank: int, ranks: int) -> tuple[int, int]:
        """(index, number of parts): the part of the exchanged gradients that this rank measures."""
        return rank, ranks

    def exchanged(self) -> Iterator[torch.Tensor]:
        """Gradients after the exchange, of the parameters that this rank holds."""
        return (p.grad for p in self.leaves().values() if p.requires_grad and p.grad is not None)

    def exchange(self, wanted: bool) -> None:
        """Exchange gradients in backward, or leave them as they are."""
        if self.model.require_backward_grad_sync != wanted:
            self.model.require_backward_grad_sync = wanted

    def exchanges_inside(self) -> bool:
        """Whether the script's own code exchanges gradients inside the backward pass: a communication hook."""
        return self.sharded or bool(getattr(self.model, "_comm_hooks", ()))

    def watch(self, begin: Callable[[], None], end: Callable[[], None]) -> list[Any]:
        """Call `begin` and `end` around waiting in the middle of computing: here, there is none."""
        return []


class Sharded(Replicated):
    """A model under `fully_shard`: every rank holds a part of each parameter. Its exchange cannot be left out."""

    sharded = True

    @property
    def module(self) -> torch.nn.Module:
        """The model itself."""
        module: torch.nn.Module = self.model
        return module

    def _units(self) -> Iterator[tuple[str, Any]]:
        """The modules whose parameters are gathered together, with their names."""
        return ((name, m) for name, m in self.model.named_modules() if has_kind(m, "FSDPModule"))

    def leaves(self) -> dict[str, torch.Tensor]:
        """See `Replicated`; gathers one unit after the other. Collective."""
        left_out = {id(p) for p in self.model.parameters() if not hasattr(p, "device_mesh")}
        found: dict[str, torch.Tensor] = {}
        for prefix, unit in self._units():
            unit.unshard()
            for name, p in unit.named_parameters(prefix=prefix):
                if not hasattr(p, "device_mesh") and id(p) not in left_out:
                    found[name] = p
            unit.reshard()
        return found

    def part(self, rank: int, ranks: int) -> tuple[int, int]:
        """See `Replicated`: ranks that hold the same part share it."""
        mesh = next(p.device_mesh for p in self.model.parameters() if hasattr(p, "device_mesh"))
        return (mesh.get_local_rank(0), mesh.size(0)) if mesh.ndim == 2 else (0, 1)

    def exchanged(self) -> Iterator[torch.Tensor]:
        """See `Replicated`."""
        gradients = (p.grad for p in self.model.parameters() if p.requires_grad)
        return (g.to_local() for g in gradients if hasattr(g, "to_local"))

    def exchange(self, wanted: bool) -> None:
        """See `Replicated`."""

    def watch(self, begin: Callable[[], None], end: Callable[[], None]) -> list[Any]:
        """See `Replicated`: a unit waits for its parameters in forward and backward, and for its gradients."""
        handles = []

        class Behind(torch.autograd.Function):  # type: ignore[misc]
            """Passes tensors on; its backward runs when the unit's gradients were handed over."""

            @staticmethod
            def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
                """The same tensors."""
                return tensors

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                """The same gradients, and the wait is over."""
                end()
                return gradients

        def before(unit: Any, arguments: Any, named: Any) -> Any:
            """The unit begins to wait for its parameters."""
            begin()
            return _replaced((arguments, named), lambda tensors: Behind.apply(*tensors))

        def gathered(unit: Any, arguments: Any, named: Any) -> None:
            """It has them, and waits again as its backward begins."""
            end()
            _hooked((arguments, named), begin)

        for _, unit in self._units():
            # FSDP's own hooks stand between those that are prepended and those that are appended.
            handles += [
                unit.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
                unit.register_forward_pre_hook(gathered, with_kwargs=True),
                unit.register_forward_hook(lambda unit, _, out: _hooked(out, begin), prepend=True),
                unit.register_forward_hook(lambda unit, _, out: _hooked(out, end)),
            ]
        return handles


def keep_group(model: DistributedDataParallel) -> None:
    """Let the process group of `model` live as long as what exchanges its gradients, its reducer.

    PyTorch ends a reducer with Python's lock held. If that ended the group as well, it would wait for a thread of
    gloo that may wait for the lock: a script that ends with `destroy_process_group()` would hang, now and then.
    """
    if (reducer := getattr(model, "reducer", None)) is not None:
        weakref.finalize(reducer, lambda _: None, model.process_group).atexit = False


def wrapped(model: Any) -> Replicated:
    """The wrapper of a model that `unsupported.check_model` accepted."""
    if not isinstance(model, DistributedDataParallel):
        return Sharded(model)
    keep_group(model)
    return Replicated(model)


def has_kind(module: Any, name: str) -> bool:
    """Whether a module is of a class of that name, which moved between modules of PyTorch."""
    return any(kind.__name__ == name for kind in type(module).__mro__)


def _traced(tree: Any) -> list[torch.Tensor]:
    """Tensors of a tree that backward passes through."""
    leaves = pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _hooked(tree: Any, call: Callable[[], None]) -> None:
    """Call when the gradient of any of these tensors is there."""
    if torch.is_grad_enabled():
        for tensor in _traced(tree):
            tensor.register_hook(lambda _: call())


def _replaced(tree: Any, function: Callable[[list[torch.Tensor]], Any]) -> Any:
    """The tree with what the function makes of the tensors that backward passes through."""
    tensors = _traced(tree) if torch.is_grad_enabled() else []
    if not tensors:
        return tree
    new: Mapping[int, torch.Tensor] = dict(zip(map(id, tensors), function(tensors), strict=True))
    return pytree.tree_map(lambda leaf: new.get(id(leaf), leaf), tree)
