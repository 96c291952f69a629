"""Nodes and GPUs as tables, with the jobs that hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from equipoise.live.queue.manager import Phase, QueuedJob, QueueNode
from equipoise.policies.observation import Gpus, Ints, Nodes
from equipoise.policies.queues.ahead import FREE_NEXT

FOREIGN = -2
"""Stands in `Gpus.job` for jobs that the queue does not show."""


class Machines:
    """Which GPUs jobs hold. Which of a node's GPUs, only the manager knows: a job keeps those it is given here."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, float], list[int]] = {}  # rows in `gpus` by job and start

    def tables(
        self,
        nodes: tuple[QueueNode, ...],
        jobs: Iterable[QueuedJob],
        row: Mapping[int, int],
        ending: Iterable[QueuedJob] = (),
    ) -> tuple[tuple[str, ...], Gpus, Nodes]:
        """(GPU models, GPUs, nodes) now. jobs: all that have not ended; row: of a job in the jobs table.

        ending: those that are over and still hold GPUs.
        """
        next_free = Counter(name for job in ending for name in job.nodes for _ in range(_share(job, name)))
        count = np.array([node.gpus for node in nodes], dtype=np.int64)
        first = np.cumsum(count) - count
        of_node = np.repeat(np.arange(len(nodes)), count)
        up = np.array([node.up for node in nodes], dtype=np.bool_)
        part_of = {node.name: slice(first[k], first[k] + count[k]) for k, node in enumerate(nodes)}
        holder = self._holders(len(of_node), part_of, [job for job in jobs if job.id in row], row)
        for node in nodes:
            part = holder[part_of[node.name]]
            unseen = node.gpus_used - int(np.count_nonzero(part >= 0))
            taken = np.flatnonzero(part < 0)[: max(unseen, 0)]
            part[taken] = FOREIGN
            part[taken[: next_free[node.name]]] = FREE_NEXT
        models = tuple(dict.fromkeys(node.gpu_type or "gpu" for node in nodes)) or ("gpu",)
        kind = np.array([models.index(node.gpu_type or "gpu") for node in nodes], dtype=np.int64)
        free = (holder == -1) & up[of_node]
        gpus = Gpus.of(node=of_node, model=kind[of_node], job=holder, share_free=free.astype(np.float64))
        columns: dict[str, Any] = {
            "gpus": count,
            "first_gpu": first,
            "gpus_free": np.bincount(of_node[free], minlength=len(nodes)),
            "up": up,
            "cores": [float(node.cores) for node in nodes],
            "memory_bytes": [float(node.memory_bytes) for node in nodes],
        }
        return models, gpus, Nodes.of(**columns)

    def _holders(self, size: int, part_of: Mapping[str, slice], jobs: list[QueuedJob], row: Mapping[int, int]) -> Ints:
        """The job row that holds each GPU, -1 none, (gpus,)."""
        holder = np.full(size, -1, dtype=np.int64)
        running = {(job.id, job.start_s): job for job in jobs if job.phase is Phase.RUNNING}
        self._held = {key: gpus for key, gpus in self._held.items() if key in running}
        for (job_id, _), gpus in self._held.items():
            holder[gpus] = row[job_id]
        for key, job in running.items():
            if key not in self._held:
                self._held[key] = []
                places = {name: part_of[name] for name in job.nodes if name in part_of}
                for name, part in places.items():
                    taken = part.start + np.flatnonzero(holder[part] == -1)[: _share(job, name)]
                    holder[taken] = row[job.id]
                    self._held[key] += taken.tolist()
        return holder


def _share(job: QueuedJob, name: str) -> int:
    """GPUs that a job holds on one of its nodes, dealt evenly: the first nodes have one more."""
    return job.gpus // len(job.nodes) + (job.nodes.index(name) < job.gpus % len(job.nodes))
