"""Models and datasets that cannot be attached: each is told what to do instead."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset

_SHARDED = ("FSDPModule", "FullyShardedDataParallel")  # they moved between modules of PyTorch


def check_model(model: Any) -> None:
    """Raises TypeError for a model that is not wrapped in DistributedDataParallel, or is not whole on each rank."""
    if _is_sharded(model):
        raise TypeError(
            "model: one that is sharded (fully_shard, FullyShardedDataParallel) is not supported, every rank must "
            "hold the whole model; wrap it in DistributedDataParallel instead, or train without equipoise"
        )
    if isinstance(getattr(model, "_orig_mod", None), DistributedDataParallel):
        raise TypeError(
            "model: torch.compile(ddp) is not allowed, attach ddp itself, or compile inside of it: "
            "DistributedDataParallel(torch.compile(module))"
        )
    if not isinstance(model, DistributedDataParallel):
        raise TypeError("attach needs a model wrapped in torch.nn.parallel.DistributedDataParallel")


def _is_sharded(model: Any) -> bool:
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(kind.__name__ in _SHARDED for part in parts for kind in type(part).__mro__)


def samples_of(dataset: Any) -> int:
    """How many samples a dataset, or its length, stands for.

    Raises TypeError for a dataset whose samples cannot be dealt to ranks by number.
    """
    if isinstance(dataset, int):
        return dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"dataset: {type(dataset).__name__} is not supported, ranks are dealt samples by number; give one "
            "with __len__ and __getitem__, as one over the files or records of the stream"
        )
    return len(dataset)
