"""Makes the model, optimiser and other state of all members equal in a new group."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from equipoise.live.group.packing import pack, unpack
from equipoise.live.train.optimizers import Optimizers
from equipoise.live.train.sync import average, optimizer_tensors
from equipoise.live.train.wrapped import keep_group

_HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_is_full_backward_hook",
)


def release(model: DistributedDataParallel) -> None:
    """Release the process group held by `model`, so that it can be destroyed."""
    model.reducer = None
    model.logger = None
    model.process_group = None
    gc.collect()


def rewrap(model: DistributedDataParallel, settings: Mapping[str, Any]) -> None:
    """Wrap the same module anew, in place, on the default process group. Collective.

    The script keeps its reference to `model`; hooks on the wrapper and its training mode are kept.
    """
    module, training = model.module, model.training
    hooks = {name: model.__dict__[name] for name in _HOOKS if name in model.__dict__}
    exchanges = list(getattr(model, "_comm_hooks", ()))
    for parameter in module.parameters():
        parameter.grad = None
    DistributedDataParallel.__init__(model, module, **settings)
    keep_group(model)
    model.__dict__.update(hooks)
    torch.nn.Module.train(model, training)
    for hook, state in exchanges:
        model.register_comm_hook(state, hook)


def wrapping(model: DistributedDataParallel) -> dict[str, Any]:
    """The arguments with which `model` was wrapped, except its process group."""
    # Newer versions of PyTorch renamed `broadcast_buffers`.
    forward = getattr(model, "forward_sync_buffers", None)
    buffers = {"broadcast_buffers": model.broadcast_buffers} if forward is None else {}
    return {
        **(buffers or {"forward_sync_buffers": forward}),
        "device_ids": model.device_ids,
        "output_device": model.output_device,
        "dim": model.dim,
        "bucket_cap_mb": model.bucket_bytes_cap / (1 << 20),
        "find_unused_parameters": model.find_unused_parameters,
        "gradient_as_bucket_view": model.gradient_as_bucket_view,
        "static_graph": model.static_graph,
    }


def agree(
    model: DistributedDataParallel,
    optimizer: Optimizers,
    extra: Mapping[str, Any],
    mine: list[torch.Tensor] | None,
    weight: float,
    merge: bool,
) -> None:
    """Give every member the same state. Collective on the default group; rank 0 is one to go on from.

    `merge`: some made local steps since the last exchange; all members take the mean, by `weight`, of their
    parameters `mine` and moments. Otherwise all take rank 0's state, which wrapping has already broadcast.
    """
    everything = [*model.module.parameters(), *model.module.buffers()]
    keeps = merge and weight > 0.0
    targets = {**({} if keeps else {"optimizer": optimizer}), **extra}
    share_states(targets, {"optimizer": optimizer, **extra}, everything[0].device)
    with torch.no_grad():
        if merge:
            # Copies: if this fails and is repeated in another group, `mine` is still unchanged.
            sources = [t.detach().clone() for t in (everything if mine is None else mine)]
            average(sources, weight)
            moments = [t.clone() for t in optimizer_tensors(optimizer)]
            average(moments, weight)
            for target, source in zip(optimizer_tensors(optimizer), moments, strict=True):
                target.copy_(source)
            for target, source in zip(everything, sources, strict=True):
                if target.is_floating_point():
                    target.copy_(source)


def share_states(targets: Mapping[str, Any], owners: Mapping[str, Any], device: torch.device) -> None:
    """Load rank 0's state dicts of `owners` into the `targets` of the same names on the other ranks.

    Collective on the default group, over `device`. Raises TypeError on rank 0 for a state dict that holds more
    than data, ValueError on the others for invalid bytes.
    """
    is_root = dist.get_rank() == 0
    content = pack({name: owner.state_dict() for name, owner in owners.items()}) if is_root else b""
    size = torch.tensor([len(content)], dtype=torch.int64, device=device)
    dist.broadcast(size, src=0)
    data = torch.empty(int(size), dtype=torch.uint8, device=device)
    if is_root:
        data.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    dist.broadcast(data, src=0)
    if not is_root:
        states = unpack(data.cpu().numpy().tobytes())
        for name, target in targets.items():
            if name in states:
                target.load_state_dict(states[name])
