"""Errors for models and datasets that cannot be attached, with the alternative."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset

from equipoise.live.options import Options
from equipoise.live.train.wrapped import Replicated, has_kind

_SHARDS = [("Shard",), ("Replicate", "Shard")]  # a one-dimensional mesh, or replicated over the first dimension


def check_model(model: Any) -> None:
    """Raises TypeError for a model whose gradients are not exchanged over all ranks, by DDP or `fully_shard`."""
    inside = getattr(model, "_orig_mod", None)
    if isinstance(inside, DistributedDataParallel) or has_kind(inside, "FSDPModule"):
        raise TypeError(
            "model: torch.compile(...) around DistributedDataParallel or fully_shard is not allowed; attach that "
            "wrapper and compile inside it: DistributedDataParallel(torch.compile(module)), "
            "fully_shard(torch.compile(layer))"
        )
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    if any(has_kind(part, "FullyShardedDataParallel") for part in parts):
        raise TypeError("model: FullyShardedDataParallel is not supported; use fully_shard (FSDP2)")
    if not isinstance(model, DistributedDataParallel) and not has_kind(model, "FSDPModule"):
        shards = isinstance(model, torch.nn.Module) and any(has_kind(part, "FSDPModule") for part in model.modules())
        needed = "fully_shard(model) after its parts" if shards else "DistributedDataParallel or fully_shard"
        raise TypeError(f"model: not wrapped; needed: {needed}")
    if isinstance(model, DistributedDataParallel) and any(has_kind(part, "FSDPModule") for part in model.modules()):
        raise TypeError("model: fully_shard inside DistributedDataParallel is not allowed; needed: one of them")
    for name, p in model.named_parameters():
        if hasattr(p, "device_mesh"):
            _check_mesh(name, p)
    if isinstance(model, DistributedDataParallel):
        ranks = dist.get_process_group_ranks(model.process_group)
        if ranks != list(range(dist.get_world_size())):
            raise TypeError(
                f"model: DistributedDataParallel over ranks {ranks} of {dist.get_world_size()} is not supported, "
                "shares are assigned to all ranks (tensor or pipeline parallel); needed: its default process group"
            )


def _check_mesh(name: str, parameter: Any) -> None:
    placed = tuple(type(p).__name__ for p in parameter.placements)
    if placed not in _SHARDS or parameter.device_mesh.size() != dist.get_world_size():
        raise TypeError(
            f"model: {name} is not sharded over all data-parallel ranks, which is not supported "
            "(tensor or pipeline parallel); needed: fully_shard over a mesh of all ranks"
        )


def check_exchange(wrapper: Replicated, options: Options) -> Options:
    """The options, without levers that this wrapper does not support.

    Raises ValueError if one of them was requested explicitly.
    """
    kind = "fully_shard" if wrapper.sharded else "static_graph=True" if wrapper.model.static_graph else None
    if kind is None:
        return options
    if options.mode == "act" and options.local_steps:
        raise ValueError(
            f"drift: {options.drift} is not allowed with {kind}, which exchanges gradients in each step; leave it out"
        )
    return dataclasses.replace(options, allow=options.allow - {"interval"})


def samples_of(dataset: Any) -> int:
    """Number of samples of a dataset, given as a dataset or its length.

    Raises TypeError for a dataset whose samples cannot be assigned by index.
    """
    if isinstance(dataset, int):
        return dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"dataset: {type(dataset).__name__} is not supported here, samples are assigned by index; take "
            "batches from runtime.stream(dataset), or pass one with __len__ and __getitem__"
        )
    return len(dataset)
