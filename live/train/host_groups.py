"""Intra-node groups: the ranks of one host, and the time of an exchange among them."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from equipoise.policies.levels import far_ratio, near_groups

_PROBES = 3  # exchanges; the first sets up connections


class Near:
    """The intra-node groups of a job and the communication inside this rank's group."""

    def __init__(self, group: Sequence[int], timeout: datetime.timedelta) -> None:
        """`group` of every rank, from 0. Collective; connecting takes at most `timeout`."""
        self.group = tuple(group)
        self.ratio = far_ratio(np.array(group))  # fraction of the drift left by intra-node exchanges
        rank = dist.get_rank()
        for k in range(max(group) + 1):
            # In the same order on all ranks, as PyTorch requires.
            made = dist.new_group([r for r, g in enumerate(group) if g == k], timeout=timeout)
            if group[rank] == k:
                self.own: dist.ProcessGroup | None = made

    def peers(self, rank: int) -> list[int]:
        """The ranks of a rank's group, including itself."""
        return [r for r, g in enumerate(self.group) if g == self.group[rank]]

    def exchange_s(self, like: Sequence[torch.Tensor]) -> float:
        """Seconds of one exchange of tensors like these inside this rank's group. Collective."""
        flat = torch.zeros(sum(t.numel() for t in like), dtype=like[0].dtype, device=like[0].device)
        took_s = []
        for _ in range(_PROBES):
            dist.barrier(self.own)
            began_s = time.perf_counter()
            dist.all_reduce(flat, group=self.own)
            float(flat[0])  # waits for the device
            took_s.append(time.perf_counter() - began_s)
        return min(took_s)


def groups_by_host(hosts: Sequence[str]) -> list[int] | None:
    """Intra-node group of each rank on these hosts; None: one host, or one rank per host."""
    node = np.unique(np.array(hosts), return_inverse=True)[1].astype(np.int64)
    found = near_groups(node, np.zeros(int(node.max()) + 1, dtype=np.int64))
    return None if found is None else found.tolist()
