"""The optimisers to which a policy can be attached, and several of them combined as one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from equipoise.live.options import Options
from equipoise.live.train.wrapped import Replicated
from equipoise.policies.rate_rules import RateRule


class Optimizers:
    """The optimisers of one model, which all step in the same rounds, with the interface that the adapter needs."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.all = tuple(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimisers."""
        return [group for optimizer in self.all for group in optimizer.param_groups]

    @property
    def state(self) -> Mapping[Any, Any]:
        """The state of all optimisers by parameter."""
        return {parameter: kept for optimizer in self.all for parameter, kept in optimizer.state.items()}

    def on_state_dict(self, call: Callable[[], None]) -> list[Any]:
        """Register a call for whenever a state dict is taken."""
        return [optimizer.register_state_dict_pre_hook(lambda _: call()) for optimizer in self.all]

    def on_step(self, call: Callable[[], None]) -> list[Any]:
        """Register a call for after each step."""
        return [optimizer.register_step_post_hook(lambda *_: call()) for optimizer in self.all]

    @property
    def rate_rule(self) -> RateRule:
        """Default rule by which the learning rate follows the batch: square root if one is like Adam, else AdaScale."""
        names = (kind.__name__.lower() for optimizer in self.all for kind in type(optimizer).__mro__)
        return "sqrt" if any(mark in name for name in names for mark in _DIVIDE_BY_A_ROOT) else "adascale"

    def scale_rates(self, factor: Callable[[], float]) -> list[Any]:
        """Multiply learning rates by `factor()` during each step; schedulers see the original rates.

        Returns the handles of the hooks.
        """
        held: list[tuple[dict[str, Any], Any]] = []

        def scale(optimizer: Any, *_: Any) -> None:
            """Multiply the rates, and keep the original ones."""
            restore()  # if the last step ended in an exception
            by, tensors = factor(), set[int]()
            for group in optimizer.param_groups if by != 1.0 else ():
                rate = group["lr"]
                if isinstance(rate, torch.Tensor):  # a captured step refers to it; groups may share it
                    if id(rate) not in tensors:
                        tensors.add(id(rate))
                        held.append((group, rate.clone()))
                        rate.mul_(by)
                else:
                    held.append((group, rate))
                    group["lr"] = rate * by

        def restore(*_: Any) -> None:
            """Restore the rates."""
            for group, rate in held:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].copy_(rate)
                else:
                    group["lr"] = rate
            held.clear()

        hooks = [optimizer.register_step_pre_hook(scale) for optimizer in self.all]
        return hooks + [optimizer.register_step_post_hook(restore) for optimizer in self.all]


_DIVIDE_BY_A_ROOT = ("adam", "adagrad", "adadelta", "adafactor", "rmsprop", "lamb")
"""Parts of the names of optimizers that divide by the root of a mean of squared gradients (Malladi et al. 2022)."""


def optimizers_of(given: Any, options: Options) -> Optimizers:
    """The optimisers given as one or a sequence; none with which replicas would diverge.

    Raises TypeError for objects that are no optimiser, ValueError for one that is not allowed.
    """
    found = tuple(_inner(o) for o in given) if isinstance(given, list | tuple) else (_inner(given),)
    for optimizer in found or (given,):
        _check(optimizer, options)
    owners: dict[int, int] = {}
    for place, optimizer in enumerate(found):
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if owners.setdefault(id(parameter), place) != place:
                raise ValueError("optimizer: a parameter in two optimizers is not allowed")
    return Optimizers(found)


def _inner(optimizer: Any) -> Any:
    """The optimizer inside Accelerate's wrapper, which lacks the hooks of one."""
    return optimizer.optimizer if type(optimizer).__name__ == "AcceleratedOptimizer" else optimizer


def _check(optimizer: Any, options: Options) -> None:
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: a {name} is not allowed; needed: one torch.optim.Optimizer or a list of them")
    kinds = {kind.__name__ for kind in type(optimizer).__mro__}  # importing all of them would take seconds
    if "LBFGS" in kinds:
        raise ValueError(
            f"optimizer: {name} is not allowed, it depends on the loss, which differs between ranks; "
            "needed: one that steps on gradients"
        )
    if "PostLocalSGDOptimizer" in kinds:
        raise ValueError(f"optimizer: {name} is not allowed, it averages replicas itself; pass the wrapped one")
    if "ZeroRedundancyOptimizer" in kinds and options.mode == "act" and "interval" in options.allow:
        raise ValueError(
            f"optimizer: {name} is not allowed, its state is sharded over ranks; needed: one with full state, or an "
            "`allow` without interval"
        )


def check_parameters(wrapper: Replicated, leaves: Mapping[str, Any], optimizers: Optimizers, options: Options) -> None:
    """Warn of parameters stepped on but not exchanged. Raises ValueError if replicas would diverge in local steps."""
    stepped = {id(p) for group in optimizers.param_groups for p in group["params"]}
    trained = {id(p): n for n, p in wrapper.module.named_parameters() if p.requires_grad}
    left_out = [name for key, name in trained.items() if key not in stepped]
    if left_out and options.may_step_alone:
        raise ValueError(
            f"drift: {options.drift} is not allowed, the optimizer does not have {left_out[0]} (of {len(left_out)}); "
            "local steps need optimizers for all trained parameters; or use an `allow` without interval"
        )
    held = {id(p) for name, p in wrapper.module.named_parameters() if name in leaves}
    if stepped - held and dist.get_rank() == 0:
        print(
            f"equipoise: the wrapped model does not exchange {len(stepped - held)} of the optimizer's parameters; "
            "their gradients are not weighted",
            file=sys.stderr,
        )
