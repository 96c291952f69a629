"""The energy that computing draws beyond idling, by job (see `sim.cluster.power`)."""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.sim.cells import cells
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.cluster.power import EXPONENT, NodePower


class Meter:
    """Counts the energy that each job's computing draws beyond idling (J).

    dynamic_j (jobs,) holds the metered energy. With one kind of GPU and one clock nothing is metered: the energy
    follows from the accounts (`of_account_j`), bit for bit however often it is read. share (jobs,): the share of
    the highest power beyond idling that a job's computing draws; jobs known by their duration draw all of it. paid_j
    (jobs,) is the part of dynamic_j on the nodes `pays` (nodes,), where only some nodes' electricity is charged.
    """

    def __init__(self, power: NodePower, node_of_gpu: Ints, share: Floats, pays: Bools | None, *, varies: bool) -> None:
        jobs, self.share = len(share), share
        self.power, self.node_of_gpu, self.pays = power, node_of_gpu, pays
        self.dynamic_j, self.paid_j = np.zeros(jobs), np.zeros(jobs)
        self._dynamic_j = cells(self.dynamic_j)
        self.varies = varies or bool((share < 1.0).any())  # over nodes, time or jobs
        self.set_clock(np.ones(len(power.idle_w)))

    def set_clock(self, clock: Floats) -> None:
        """Nodes compute at these clocks (nodes,) from now on; meter the jobs that run on them first."""
        self.clock = clock.copy()
        self.busy_w = (self.power.max_w - self.power.idle_w) * clock**EXPONENT  # beyond idling, (nodes,)
        self._first_w = float(self.busy_w[0])

    def computed(self, row: int, nodes: Ints, gpu_s: Floats) -> None:
        """Meter GPU-seconds of computing by node, at the present clock; (GPUs held,)."""
        drawn_w = self.busy_w[nodes] * self.share[row]
        self.dynamic_j[row] += float(gpu_s @ drawn_w)
        if self.pays is not None:
            self.paid_j[row] += float(gpu_s @ (drawn_w * self.pays[nodes]))

    def computed_evenly(self, row: int, holding: Holding, gpu_s: float) -> None:
        """Meter GPU-seconds of computing, evenly on all GPUs of a job, at the present clock."""
        self._dynamic_j[row] += gpu_s * mean_over(self.busy_w, holding, self.node_of_gpu)
        if self.pays is not None:
            self.paid_j[row] += gpu_s * mean_over(self.busy_w * self.pays, holding, self.node_of_gpu)

    def drawn_j(self, row: int, computed_gpu_s: float) -> float:
        """Energy of a job's computing, up to its last metering; computed_gpu_s: all of it."""
        return float(self.dynamic_j[row]) if self.varies else self.of_account_j(computed_gpu_s)

    def of_account_j(self, computed_gpu_s: float) -> float:
        """Energy of an amount of computing, where power is the same everywhere."""
        return computed_gpu_s * self._first_w

    def would_draw_j(self, row: int, nodes: Ints, gpu_s: Floats) -> float:
        """Energy of a job's computing that has not been metered yet; (GPUs held,)."""
        return float(gpu_s @ self.busy_w[nodes]) * self.share.item(row) if self.varies else 0.0


def mean_over(per_node: Floats, holding: Holding, node_of_gpu: Ints) -> float:
    """Mean of a per-node quantity over the GPUs of a holding, weighted by the shares held."""
    if holding.nodes.size == 1:  # as most
        return per_node.item(holding.nodes.item(0))
    values = per_node[node_of_gpu[holding.gpu]]
    return float(values @ holding.share / holding.share.sum())
