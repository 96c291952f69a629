"""Which optimisers a policy can be attached to."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from equipoise.live.options import Options


def check_optimizer(
    model: DistributedDataParallel, optimizer: Any, options: Options, *, regroups: bool
) -> None:
    """Refuse an optimiser under which replicas would part; tell what it steps on beside the model.

    `regroups`: the group may be formed anew in this job. Raises TypeError for what is no optimiser, ValueError
    for one that is not allowed.
    """
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer: a {name} is not allowed, needed is one torch.optim.Optimizer; "
            "any other one goes into `state`"
        )
    kinds = {kind.__name__ for kind in type(optimizer).__mro__}  # importing all of them would take seconds
    if "LBFGS" in kinds:
        raise ValueError(
            f"optimizer: {name} is not allowed, it decides by the loss, which each rank has of its own samples; "
            "needed is one that steps on gradients"
        )
    if "PostLocalSGDOptimizer" in kinds:
        raise ValueError(
            f"optimizer: {name} is not allowed, it averages replicas itself; give the one inside"
        )
    if "ZeroRedundancyOptimizer" in kinds:
        _check_sharded(name, options, regroups)
    _check_parameters(model, optimizer, options)


def _check_sharded(name: str, options: Options, regroups: bool) -> None:
    levers = sorted({"interval", "resize"} & options.allow) if options.mode == "act" else []
    problem = f"optimizer: {name} is not allowed, of its state each rank holds a part"
    if regroups:
        raise ValueError(f"{problem}; needed is one with a whole state in a job that may lose ranks")
    if levers:
        raise ValueError(
            f"{problem}; needed is one with a whole state, or an `allow` without {', '.join(levers)}"
        )


def _check_parameters(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, options: Options
) -> None:
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trained = {id(p): n for n, p in model.module.named_parameters() if p.requires_grad}
    left_out = [name for key, name in trained.items() if key not in stepped]
    steps_alone = options.mode == "act" and "interval" in options.allow and not math.isnan(options.drift)
    if left_out and steps_alone:
        raise ValueError(
            f"drift: {options.drift} is not allowed, the optimizer leaves out {left_out[0]} (of {len(left_out)}); "
            "local steps need one optimizer for all that is trained, or an `allow` without interval"
        )
    held = {id(p) for n, p in model.module.named_parameters() if n not in model.parameters_to_ignore}
    if stepped - held and dist.get_rank() == 0:
        print(
            f"equipoise: the wrapped model does not exchange {len(stepped - held)} of the optimizer's parameters; "
            "their gradients are not weighted either",
            file=sys.stderr,
        )
