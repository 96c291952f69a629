"""Power and energy: what GPUs draw idling and computing, and what a lower clock does to both.

    power_w = idle + (max - idle) * utilisation * clock^3

Utilisation is the busy share of the GPU: computing, not waiting for data, other workers or the network. The
clock is relative to the highest. Dynamic power is proportional to frequency and voltage squared and the voltage
follows the frequency (Chandrakasan et al., IEEE JSSC 27(4), 1992), hence the cube; compute is taken to be as fast
as the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.observation import Bools, Floats
from sim.cluster import Cluster, Holding
from sim.job import BUSY

if TYPE_CHECKING:
    from sim.job import TrainingJob

EXPONENT = 3.0
"""Dynamic power goes with this power of the clock."""


@dataclass(frozen=True)
class NodePower:
    """What one GPU of each node draws, and the rest of the node, in W; NaN: not known. All arrays (nodes,)."""

    idle_w: Floats
    max_w: Floats
    base_w: Floats

    @property
    def known(self) -> bool:
        """Whether the profile states the power of every accelerator of the cluster."""
        return not bool(np.isnan(self.idle_w + self.max_w).any())

    @property
    def uniform(self) -> bool:
        """Whether all nodes have the same GPUs, as far as power goes."""
        return self.known and bool(np.ptp(self.idle_w) == 0.0 and np.ptp(self.max_w) == 0.0)


def node_power(cluster: Cluster) -> NodePower:
    """Power of a cluster's nodes, from its hardware profile; the base from the node group, else the profile."""
    accelerators, base = cluster.accelerators, cluster.profile.node_base_w
    idle = np.array([np.nan if a.idle_w is None else a.idle_w.value for a in accelerators])
    highest = np.array([np.nan if a.max_w is None else a.max_w.value for a in accelerators])
    default_w = 0.0 if base is None else base.value
    base_w = np.array([default_w if g.host_power is None else g.host_power for g in cluster.groups])
    return NodePower(idle[cluster.node_model], highest[cluster.node_model], base_w)


def clock_under_cap(idle_w: Floats, max_w: Floats, cap_w: float) -> Floats:
    """Highest relative clock at which a busy GPU draws at most `cap_w`; not above 1.

    Raises ValueError for a cap that is not above the idle power.
    """
    if not bool((cap_w > idle_w).all()):
        raise ValueError(f"a power cap of {cap_w:g} W is not above the idle power of {idle_w.max():g} W")
    share = (cap_w - idle_w) / np.maximum(max_w - idle_w, 1e-12)
    clock: Floats = np.minimum(1.0, share) ** (1.0 / EXPONENT)
    return clock


class Meter:
    """Counts the energy that each job's computing draws beyond idling (J).

    dynamic_j (jobs,) holds what has been metered. With one kind of GPU and one clock nothing is: the accounts
    tell (`of_account_j`), to the same bits however often anybody has looked. paid_j (jobs,) is the part of it on
    the nodes `pays` (nodes,), where only some nodes' electricity is charged.
    """

    def __init__(self, power: NodePower, node_of_gpu: object, jobs: int, pays: Bools | None = None) -> None:
        self.power, self.node_of_gpu = power, np.asarray(node_of_gpu)
        self.pays = pays
        self.dynamic_j, self.paid_j = np.zeros(jobs), np.zeros(jobs)
        self.clock = np.ones(len(power.idle_w))
        self.varies = not power.uniform  # over nodes or time
        self._set(self.clock)

    def _set(self, clock: Floats) -> None:
        self.clock = clock
        self.busy_w = (self.power.max_w - self.power.idle_w) * clock**EXPONENT  # beyond idling, (nodes,)
        self._first_w = float(self.busy_w[0])

    def set_clock(self, clock: Floats) -> None:
        """Nodes compute at these clocks from now on; meter the jobs that run on them first."""
        self._set(clock.copy())

    def training(self, job: TrainingJob) -> None:
        """Meter what a training job has computed since it was last metered."""
        if not self.varies:
            return
        self._workers(job, job.take_busy_s() * job.weight)

    def _workers(self, job: TrainingJob, busy_gpu_s: Floats) -> None:
        drawn_w = self.busy_w[job.nodes]
        self.dynamic_j[job.row] += float(busy_gpu_s @ drawn_w)
        if self.pays is not None:
            self.paid_j[job.row] += float(busy_gpu_s @ (drawn_w * self.pays[job.nodes]))

    def booked_j(self, job: TrainingJob) -> float:
        """What a training job's computing has drawn, up to when it was last metered."""
        if self.varies:
            return float(self.dynamic_j[job.row])
        return self.of_account_j(float(job.account.gpu_s[BUSY]) + job.undone_gpu_s)

    def so_far_j(self, job: TrainingJob) -> float:
        """What a training job's computing has drawn up to now; changes nothing."""
        if not self.varies:
            return self.booked_j(job)
        fresh = job.fresh_busy_s() * job.weight
        return self.booked_j(job) + float(fresh @ self.busy_w[job.nodes])

    def cut_off(self, job: TrainingJob, now_s: float) -> None:
        """Meter a training job that stops now: its running period counts as computing."""
        if not self.varies:
            return
        self.training(job)
        partial_s = now_s - job.period_start_s
        if partial_s > 0.0:
            self._workers(job, partial_s * job.weight)

    def of_account_j(self, computed_gpu_s: float) -> float:
        """Energy of so much computing, where it is the same everywhere."""
        return computed_gpu_s * self._first_w

    def rigid(self, row: int, holding: Holding, computed_gpu_s: float) -> None:
        """Meter what a rigid job has computed, at the present clock."""
        self.dynamic_j[row] += computed_gpu_s * mean_over(self.busy_w, holding, self.node_of_gpu)
        if self.pays is not None:
            paid_w = self.busy_w * self.pays
            self.paid_j[row] += computed_gpu_s * mean_over(paid_w, holding, self.node_of_gpu)


def mean_over(per_node: Floats, holding: Holding, node_of_gpu: Floats) -> float:
    """Mean of a per-node quantity over the GPUs of a holding, weighted by the shares held."""
    values = per_node[node_of_gpu[holding.gpu]]
    return float(values @ holding.share / holding.share.sum())
