"""Checkpoints of a training job: due times, durations, and the state in the last one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from equipoise.policies.observation import Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cost.step import checkpoint_bytes
from equipoise.sim.job.account import GpuTimeAccount
from equipoise.sim.job.dataset import Snapshot
from equipoise.sim.scenario.model import Checkpoint, Model, Restart

State = tuple[GpuTimeAccount, Snapshot | None]
"""What a checkpoint holds: the account, and which samples have been read."""


def young_daly_s(write_s: float, mtbf_s: float) -> float:
    """Best time between checkpoints: sqrt(2 * write time * mean time between failures); inf without failures.

    Young, Communications of the ACM 17(9), 1974; Daly, Future Generation Computer Systems 22(3), 2006.
    """
    return math.sqrt(2.0 * write_s * mtbf_s) if mtbf_s < math.inf else math.inf


UNKNOWN_WRITE_S = 60.0
"""Time to write a checkpoint of which nothing is known (a rigid job's)."""


def write_s(spec: Checkpoint, size_bytes: float | None, restart: Restart, cluster: Cluster, nodes: Ints) -> float:
    """Seconds in which a job's distinct nodes write a checkpoint together, or read one back.

    `restart.checkpoint_write` applies if the job declares no size; otherwise the time is size over the rate at which
    the storage accepts data from these nodes alone. size_bytes: default size; None: unknown.
    """
    if spec.size is None and restart.checkpoint_write is not None:
        return restart.checkpoint_write
    size_bytes = size_bytes if spec.size is None else spec.size
    if size_bytes is None:
        return UNKNOWN_WRITE_S
    store = restart.storage
    if store.kind == "local":
        return size_bytes / math.fsum(cluster.group(node).storage_rate for node in nodes.tolist())
    nics = cluster.topology.nic_bytes_per_s[nodes]
    each = float(np.minimum(nics, math.inf if store.node_rate is None else store.node_rate).sum())
    return store.latency + size_bytes / min(each, store.rate or math.inf)


def interval_s(spec: Checkpoint, save_s: float, mtbf_s: Callable[[Ints], float], nodes: Ints) -> float:
    """Time between two checkpoints (s): as given, or Young/Daly for any loss of a job's distinct nodes."""
    if spec.interval == "never":
        return math.inf
    if spec.interval == "young-daly":
        return young_daly_s(save_s, mtbf_s(nodes))
    return float(spec.interval)


def writes_are_given(spec: Checkpoint, restart: Restart) -> bool:
    """Whether a scenario states both how often a checkpoint is written and how long that takes."""
    return not isinstance(spec.interval, str) and not (spec.size is None and restart.checkpoint_write is None)


class Checkpoints:
    """The last checkpoint, the one being written, and the time of the next.

    mtbf_s: mean time between losses of any of some distinct nodes. nodes, save_s, interval_s: those of the job, the
    time in which they write a checkpoint together, or read one back, and the time between two checkpoints. pause_s: in
    which training stops for one.
    """

    def __init__(
        self, spec: Checkpoint, model: Model, cluster: Cluster, mtbf_s: Callable[[Ints], float], restart: Restart
    ) -> None:
        self.spec, self.cluster, self.mtbf_s, self.restart = spec, cluster, mtbf_s, restart
        self.size_bytes = checkpoint_bytes(model)
        self.account, self.data = GpuTimeAccount(), None  # type: GpuTimeAccount, Snapshot | None
        self._unwritten: State | None = None
        self.last_s = 0.0

    def place(self, nodes: Ints) -> None:
        """Set the distinct nodes that the job runs on: all nodes of all its replicas."""
        self.nodes = nodes
        self.save_s = write_s(self.spec, self.size_bytes, self.restart, self.cluster, nodes)
        self.pause_s = self.save_s if self.spec.stall is None else min(self.spec.stall, self.save_s)
        self.interval_s = interval_s(self.spec, self.pause_s, self.mtbf_s, nodes)

    def begin(self, state: State, end_s: float) -> None:
        """Begin to write a checkpoint, until `end_s`; it counts once it is written."""
        self._unwritten, self.last_s = state, end_s

    def complete(self) -> bool:
        """Mark the checkpoint in progress as written; returns whether there was one."""
        if self._unwritten is None:
            return False
        self.save(self._unwritten)
        return True

    def save(self, state: State) -> None:
        """Save the state that a crash restores."""
        (self.account, self.data), self._unwritten = state, None

    def drop(self) -> None:
        """Discard the checkpoint in progress."""
        self._unwritten = None
