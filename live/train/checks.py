"""Cheap checks of what exact weights rest on: an error in one line in place of wrong weights.

Each batch that is forwarded is as large as the round that was drawn for it, no forward pass is shared by some ranks,
replicas are equal at every decision, and every rank reads the same stream.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from equipoise.policies.observation import Floats

_TENSORS, _ELEMENTS = 3, 64  # looked at in each check, in turn
_SAME = 1e-5  # of the sum of magnitudes
_SURE = 3  # rounds after which a multiple of the samples is taken for the batch
_SHARED = (
    "model: its forward pass is shared by some ranks (context, tensor or expert parallel), but each rank draws samples "
    "of its own; needed: whole sequences and the whole model on every rank"
)
CHECK_COLUMNS = ("check_sum", "check_size", "check_stream")


def batch_shape(tree: Any) -> tuple[int, ...]:
    """Shape of the first tensor with dimensions among a model's inputs; empty without any."""
    if isinstance(tree, torch.Tensor):
        return tuple(tree.shape)
    parts: Iterable[Any] = tree if isinstance(tree, tuple | list) else ()
    if isinstance(tree, dict | Mapping):
        parts = tree.values()
    for part in parts:
        if shape := batch_shape(part):
            return shape
    return ()


class BatchCheck:
    """Compares what a round forwards with its samples.

    A model may see each sample several times in a round, in its second dimension (sequences first), or in none (packed
    tokens): what the first rounds do decides whether, and by which multiple, later ones are checked.
    """

    def __init__(self) -> None:
        self._seen, self._second, self._times, self._rounds = 0, 0, 0, 0
        self._unknown = False  # the first dimension is not the samples

    def forward(self, arguments: Any, named: Any) -> None:
        """A training forward pass begins."""
        if not self._unknown:
            shape = batch_shape(arguments) or batch_shape(named)
            self._seen += shape[0] if shape else 0
            self._second += shape[1] if len(shape) > 1 else 0

    def end_round(self, samples: int) -> None:
        """The round of `samples` (of this rank) ended. Raises RuntimeError for another batch."""
        (seen, second), (self._seen, self._second) = (self._seen, self._second), (0, 0)
        if self._unknown or not seen:
            return
        first = not self._rounds
        times = seen // samples if first else self._times
        if seen == times * samples:
            self._times, self._rounds = times, self._rounds + 1
        elif second == samples:
            self._unknown = True
        elif self._rounds >= _SURE or (not first and times == 1):
            raise RuntimeError(
                f"the round has {samples * times} samples for this rank, but {seen} were forwarded: a batch was "
                "skipped without runtime.step(), samples were dropped from it, or the loader is not built with "
                "batch_sampler=runtime.sampler(dataset) alone; shares would be applied to the wrong batches"
            )
        else:
            self._unknown = True


class ForwardCheck:
    """Finds ranks that share samples in the first forward passes: some of them exchange inside the model.

    So do context, sequence, tensor and expert parallel models. The exchanges of `fully_shard` and SyncBatchNorm do not
    count, nor those of all ranks: the features of the whole batch, say.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._passes, self._before = 0, dict[Any, int]()
        self._own = [m.process_group for m in model.modules() if isinstance(m, torch.nn.SyncBatchNorm)]
        for mesh in {p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh")}:
            self._own += mesh.get_all_groups()

    def begin(self) -> None:
        """A training forward pass begins. Raises RuntimeError inside PyTorch's `context_parallel`."""
        if (torch.nn.functional.scaled_dot_product_attention.__module__ or "").startswith("torch.distributed"):
            raise RuntimeError(_SHARED)
        self._before = self._exchanges()

    def end(self) -> None:
        """The pass ended. Raises RuntimeError if some ranks exchanged in it."""
        if any(n > self._before.get(group, 0) for group, n in self._exchanges().items()):
            raise RuntimeError(_SHARED)
        self._passes += 1

    def _exchanges(self) -> dict[Any, int]:
        """Number of exchanges of every group of some ranks; none are counted after the first passes."""
        found = {}
        for group in dist.distributed_c10d._world.pg_map if self._passes < _SURE else ():
            if 1 < group.size() < dist.get_world_size() and group not in self._own:
                with contextlib.suppress(RuntimeError):  # a backend that does not count
                    found[group] = group._get_sequence_number_for_group()
        return found


class ReplicaCheck:
    """A sample of the parameters in two numbers; every rank looks at the same, some tensors in each check."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = [p for p in parameters if p.is_floating_point() and p.numel()]
        self._turn = 0
        self._last: torch.Tensor | None = None

    def take(self) -> tuple[float, float]:
        """(sum, sum of magnitudes) at the last call, which the device has computed since; NaN at first."""
        last, chosen = self._last, self._parameters[self._turn : self._turn + _TENSORS]
        self._turn = self._turn + _TENSORS if self._turn + _TENSORS < len(self._parameters) else 0
        if chosen:
            with torch.no_grad():
                flat = [p.reshape(-1)[:: max(1, p.numel() // _ELEMENTS)] for p in chosen]
                values = torch.cat([f[:_ELEMENTS] for f in flat]).double()
                found = torch.stack((values.sum(), values.abs().sum()))
                self._last = found.to("cpu", non_blocking=True)
        return (math.nan, math.nan) if last is None else (float(last[0]), float(last[1]))


def check_equal(sums: Floats, sizes: Floats, streams: Floats) -> None:
    """Raises RuntimeError when replicas or streams differ; (ranks,) each, of `CHECK_COLUMNS`."""
    if not np.isnan(streams).any() and (streams != streams[0]).any():
        ranks = np.flatnonzero(streams != streams[0]).tolist()
        raise RuntimeError(
            f"the stream of rank 0 differs from that of ranks {ranks}: every rank must read the same samples in the "
            "same order (shuffle with the same seed everywhere)"
        )
    with np.errstate(invalid="ignore"):
        apart = ~(np.abs(sums - sums[0]) <= _SAME * sizes[0]) & ~(np.isnan(sums) & np.isnan(sums[0]))
    if np.isfinite(sizes[0]) and apart.any():
        raise RuntimeError(
            f"the replicas of ranks {np.flatnonzero(apart).tolist()} differ from that of rank 0, which plain "
            "data-parallel training cannot mend: a parameter or a state of the training (a GradScaler, say, or an "
            "optimizer's) changed on some ranks only; with local steps, leave out `drift`"
        )


def crc_of(sample: Any, start: int = 0) -> int:
    """A checksum of a sample, as far as it is tensors, arrays, numbers and text."""
    if isinstance(sample, torch.Tensor):
        sample = sample.detach().cpu().reshape(-1)[:1024].float().numpy()
    if isinstance(sample, np.ndarray):
        return zlib.crc32(np.ascontiguousarray(sample).tobytes()[:4096], start)
    if isinstance(sample, Mapping):
        return crc_of([part for pair in sample.items() for part in pair], start)
    if isinstance(sample, list | tuple):
        for part in sample:
            start = crc_of(part, start)
        return start
    plain = isinstance(sample, str | bytes | int | float | bool | None)
    return zlib.crc32((repr(sample)[:4096] if plain else type(sample).__name__).encode(), start)
