"""Small messages between the ranks, apart from gradients: one gather and one broadcast per decision."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from equipoise.policies.observation import Floats

_SHORT = 1000


class Control:
    """A separate process group on the host network, so that it never waits behind gradients."""

    def __init__(self, timeout_s: float) -> None:
        self.rank, self.ranks = int(dist.get_rank()), int(dist.get_world_size())
        timeout = datetime.timedelta(seconds=timeout_s)
        self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=timeout)

    def close(self) -> None:
        """Release the group."""
        self._group = None

    def gather(self, values: Floats) -> Floats:
        """Every rank's `values` (same shape on all ranks), stacked by rank."""
        mine = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
        parts = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(parts, mine, group=self._group)
        return np.stack([part.numpy() for part in parts])

    def gather_later(self, value: float) -> Callable[[], list[float]]:
        """Begin to gather every rank's `value`; the returned function waits for the values, by rank."""
        mine = torch.tensor([value], dtype=torch.float64)
        parts = [torch.empty_like(mine) for _ in range(self.ranks)]
        work = dist.all_gather(parts, mine, group=self._group, async_op=True)

        def wait() -> list[float]:
            """Wait for the gathered numbers."""
            work.wait()
            return [float(part) for part in parts]

        return wait

    def collect(self, values: Floats) -> Floats | None:
        """Every rank's `values` (same shape on all ranks), stacked by rank; on rank 0 only, the others do not wait."""
        mine = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
        if self.rank != 0:
            dist.gather(mine, dst=0, group=self._group)
            return None
        parts = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.gather(mine, parts, dst=0, group=self._group)
        return np.stack([part.numpy() for part in parts])

    def broadcast(self, payload: bytes | None) -> bytes:
        """Rank 0's payload, on every rank; a second message only if it is longer than `_SHORT` bytes."""
        content = payload if payload is not None else b""
        begin = bytearray(len(content).to_bytes(8, "big") + content[:_SHORT].ljust(_SHORT))
        short = torch.frombuffer(begin, dtype=torch.uint8)
        dist.broadcast(short, src=0, group=self._group)
        size = int.from_bytes(begin[:8], "big")
        if size <= _SHORT:
            return bytes(begin[8 : 8 + size])
        data = torch.frombuffer(bytearray(content.ljust(size)), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self._group)
        return bytes(data.numpy())

    def gather_text(self, item: Any) -> list[Any]:
        """Every rank's JSON-able `item`, by rank."""
        mine = np.frombuffer(json.dumps(item).encode(), dtype=np.uint8)
        longest = int(self.gather(np.array([len(mine)], dtype=np.float64)).max())
        padded = np.pad(mine.astype(np.float64), (0, longest - len(mine)), constant_values=ord(" "))
        return [json.loads(bytes(part.astype(np.uint8)).decode()) for part in self.gather(padded)]
