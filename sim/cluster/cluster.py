"""Nodes and GPUs: allocations, availability, and the current speed of each node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.policies.kernels.jit import jit
from equipoise.policies.kernels.placement import give, take
from equipoise.policies.kernels.slices import ROUNDING, fit_together, share_left
from equipoise.policies.observation import Floats, Gpus, Ints, Nodes, writable
from equipoise.sim.cluster.cache import NodeCaches
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.hardware.profile import Accelerator, HardwareProfile
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import ClusterSpec, NodeGroup

FREE, SHARED, NO_JOB = -1, -2, -3
"""What the column `job` of the GPUs says where no job holds all of one."""


@jit
def _book(gpu, share, job, gpu_job, gpu_share_free, gpu_holders, gpu_node, node_free, nodes):  # type: ignore[no-untyped-def]
    """(GPUs that were free, sum of shares, distinct nodes), the nodes ascending in `nodes`; -1: not free."""
    for k in range(gpu.size):
        if gpu_share_free[gpu[k]] < share[k] - 1e-9:
            return -1, 0.0, 0
    taken, weight, count = 0, 0.0, 0
    for k in range(gpu.size):
        g = gpu[k]
        weight += share[k]
        at = count
        while at > 0 and nodes[at - 1] > gpu_node[g]:
            at -= 1
        if at == 0 or nodes[at - 1] != gpu_node[g]:
            for i in range(count, at, -1):
                nodes[i] = nodes[i - 1]
            nodes[at] = gpu_node[g]
            count += 1
        taken += gpu_holders[g] == 0
        gpu_holders[g] += 1
        take(node_free, gpu_share_free, gpu_node[g], g, share[k])
        gpu_job[g] = job if share[k] == 1.0 else SHARED
    return taken, weight, count


@jit
def _release(gpu, share, gpu_job, gpu_share_free, gpu_holders, gpu_node, node_free):  # type: ignore[no-untyped-def]
    freed = 0
    for k in range(gpu.size):
        g = gpu[k]
        gpu_holders[g] -= 1
        back = share[k]
        if gpu_holders[g] == 0:  # all of it, so that shares do not drift by rounding
            gpu_share_free[g], gpu_job[g], back = 0.0, FREE, 1.0
            freed += 1
        give(node_free, gpu_share_free, gpu_node[g], g, back)
    return freed


class DoubleBookingError(AssertionError):
    """A GPU was allocated beyond its free share: a bug of the simulator, never of a scenario."""


class Cluster:
    """State of all nodes and GPUs, kept in the tables that policies observe."""

    def __init__(self, spec: ClusterSpec, profile: HardwareProfile, topology: Topology) -> None:
        groups = [group for group in spec.groups for _ in range(group.count)]
        self.spec, self.profile, self.topology, self.groups = spec, profile, topology, groups
        self.gpu_models = tuple(dict.fromkeys(group.accelerator for group in spec.groups if group.gpus))
        self.accelerators: list[Accelerator] = [profile.accelerator(name) for name in self.gpu_models]
        counts = np.array([group.gpus for group in groups], dtype=np.int64)
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))
        self.nodes = Nodes.of(
            gpus=counts,
            first_gpu=first,
            gpus_free=counts,
            rack=topology.rack,
            cores=[g.cores for g in groups],
            memory_bytes=[g.host_memory for g in groups],
            storage_free_bytes=[g.storage for g in groups],
            nic_bytes_per_s=topology.nic_bytes_per_s,
            nic_busy_ratio=np.zeros(len(groups)),
            ingest_samples_per_s=[np.inf if g.ingest is None else g.ingest for g in groups],
        )
        model = np.array([self.gpu_models.index(g.accelerator) if g.gpus else 0 for g in groups], dtype=np.int64)
        memory = np.array([a.memory_bytes.value for a in self.accelerators])
        sharing = np.repeat([g.sharing for g in groups], counts)
        self.gpus = Gpus.of(
            share_quantum=np.where(sharing == "mig", 1.0 / 7.0, 0.01),
            mig=sharing == "mig",
            node=np.repeat(np.arange(len(groups)), counts),
            model=np.repeat(model, counts),
            memory_bytes=np.repeat(memory[model], counts),
        )
        self.any_mig = bool((sharing == "mig").any())
        self.node_model = model
        self.node_gpus = len(self.gpus) / int((counts > 0).sum())  # mean over nodes with GPUs
        self.node_speed = np.array([g.speed for g in groups])
        self.caches = NodeCaches([g.cache for g in groups])
        self.workers = np.zeros(len(groups), dtype=np.int64)  # of training jobs, that share a node's input
        self.cores = np.array([float(g.cores) for g in groups])
        self.local_read = np.array([np.inf if g.local_read is None else g.local_read for g in groups])
        self.slow = np.ones(len(groups))  # fail-slow factor, 1 is healthy
        self.nic_share = np.ones(len(groups))  # of the rate of its NICs that a node has now
        self.links = topology  # with the rates that NICs have now
        self.gpu_time = np.ones(len(self.gpus))  # persistent, of a GPU's step over the typical GPU's
        self.corrupt = np.ones(len(self.gpus))  # what each GPU multiplies a gradient by: 1 sound, or NaN
        self.up = writable(self.nodes, "up")
        self.holding: dict[int, Holding] = {}
        self._node_free = writable(self.nodes, "gpus_free")
        self._job, self._share_free = writable(self.gpus, "job"), writable(self.gpus, "share_free")
        self._holders = np.zeros(len(self.gpus), dtype=np.int64)
        self.free_gpus = len(self.gpus)  # GPUs that nothing holds, on nodes that are up
        self._node = writable(self.gpus, "node")

    def group(self, node: int) -> NodeGroup:
        """The group that a node belongs to."""
        return self.groups[node]

    def book(self, job: int, gpu: Ints, share: Floats) -> Holding:
        """Give GPUs to a job, or to a feature (`job` below 0).

        Raises DoubleBookingError when they are not free (checked plans never do).
        """
        taken, weight, count, nodes = -1, 0.0, 0, np.empty_like(gpu)
        code = job if job >= 0 else NO_JOB
        if job not in self.holding:
            rounded = share
            if self.any_mig:  # 0.43 is the slice of 3/7
                over = share - self._share_free[gpu]
                rounded = share - np.where(self.gpus.mig[gpu] & (over > 0.0) & (over <= ROUNDING), over, 0.0)
            taken, weight, count = _book(
                gpu, rounded, code, self._job, self._share_free, self._holders, self._node, self._node_free, nodes
            )
        if taken < 0:
            raise DoubleBookingError(f"job row {job} on GPUs {gpu.tolist()}")
        held = Holding(gpu, share, nodes[:count], weight)
        self.holding[job] = held
        if self.any_mig:
            self._cut(gpu)
        self.free_gpus -= taken
        return held

    def release(self, job: int) -> Holding:
        """Take all GPUs from a job."""
        held = self.holding.pop(job)
        self.free_gpus += _release(
            held.gpu, held.share, self._job, self._share_free, self._holders, self._node, self._node_free
        )
        if self.any_mig:
            self._cut(held.gpu)
        return held

    def has_room(self, job: int, share: Floats) -> bool:
        """Whether a job's GPUs have these shares free, given the shares of other jobs."""
        held = self.holding[job]
        fits = (share - held.share <= self._share_free[held.gpu] + 1e-9) | self.gpus.mig[held.gpu]
        return bool(fits.all()) and (not self.any_mig or self.can_be_cut(held.gpu, share, beside=job))

    def set_share(self, job: int, share: Floats) -> None:
        """Change the shares of a job's GPUs (same GPUs)."""
        held = self.holding[job]
        np.add.at(self._share_free, held.gpu, held.share - share)
        held.share, held.weight = share, float(share.sum())
        if self.any_mig:
            self._cut(held.gpu)
        self._job[held.gpu] = np.where((share == 1.0) & (self._holders[held.gpu] == 1), job, SHARED)

    def can_be_cut(self, gpu: Ints, share: Floats, beside: int | None = None) -> bool:
        """Whether MIG can partition these GPUs so that a job has these shares beside all others; `beside`: its row."""
        return all(
            fit_together(np.append(self._shares_on(g, beside), part))
            for g, part in zip(gpu.tolist(), share.tolist(), strict=True)
            if self.gpus.mig[g]
        )

    def _shares_on(self, gpu: int, but: int | None = None) -> Floats:
        """Shares of one GPU that jobs and features hold, except those of `but`."""
        found = [held.share[held.gpu == gpu] for job, held in self.holding.items() if job != but]
        return np.concatenate(found) if found else np.zeros(0)

    def _cut(self, gpu: Ints) -> None:
        """Update what MIG leaves free on these GPUs: memory slices can run out before compute slices."""
        for g in gpu[self.gpus.mig[gpu]].tolist():
            self._share_free[g] = share_left(self._shares_on(g))

    def set_nics(self, node: int, share: float) -> None:
        """Set the share of their rate that a node's NICs have from now on."""
        self.nic_share[node] = share
        whole = bool((self.nic_share == 1.0).all())
        self.links = self.topology if whole else self.topology.degraded(self.nic_share)

    def held_gpus(self) -> Floats:
        """GPUs of each node that some job holds, (nodes,)."""
        return np.bincount(self._node, self._holders > 0, len(self.nodes)).astype(np.float64)

    def jobs_on(self, node: int) -> list[int]:
        """Jobs that hold a GPU of the node, ascending."""
        jobs = set(self._job[self._gpus_of(node)].tolist())
        if SHARED in jobs:
            jobs = {job for job, held in self.holding.items() if node in held.nodes}
        return sorted(job for job in jobs if job >= 0)

    def co_located(self, gpu: int, job: int) -> float:
        """Sum of the shares that other jobs hold on a GPU."""
        if self._job[gpu] != SHARED:
            return 0.0
        shared = 0.0
        for other, held in self.holding.items():
            if other != job:
                shared += float(held.share[held.gpu == gpu].sum())
        return shared

    def take_down(self, node: int) -> None:
        """Take a node down; its jobs must have been released before."""
        self.up[node] = False
        self.caches.clear(node)
        self.free_gpus -= int(self._node_free[node])
        self._node_free[node] = 0
        self._share_free[self._gpus_of(node)] = 0.0

    def bring_up(self, node: int) -> None:
        """Bring a node back, empty."""
        self.up[node] = True
        self._node_free[node] = self.nodes.gpus[node]
        self.free_gpus += int(self.nodes.gpus[node])
        self._share_free[self._gpus_of(node)] = 1.0

    def _gpus_of(self, node: int) -> slice:
        first = int(self.nodes.first_gpu[node])
        return slice(first, first + int(self.nodes.gpus[node]))

    def rigid_speed(self, nodes: Ints, pace: Floats | None = None) -> float:
        """Speed of a gang that runs at the pace of its slowest node; pace (GPU models,), none: 1 on all."""
        if nodes.size == 1:
            node = nodes.item()
            speed: float = self.node_speed.item(node) / self.slow.item(node)
            return speed if pace is None else speed * pace.item(self.node_model.item(node))
        speeds = self.node_speed[nodes] / self.slow[nodes]
        return float((speeds if pace is None else speeds * pace[self.node_model[nodes]]).min())

    def nodes_named(self, names: Sequence[str]) -> list[int]:
        """Node numbers by name. Raises ValueError for an unknown one."""
        return [self.topology.node_index(name) for name in names]
