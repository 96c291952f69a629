"""Rates of node losses over all declared recurring causes."""

from __future__ import annotations

import math

import numpy as np

from equipoise.policies.observation import Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.scenario.faults import Crash, FaultsSpec
from equipoise.sim.scenario.model import NodeGroup


class LossRates:
    """Rates (1/s) at which single nodes and whole racks are lost; `node_per_s` (nodes,)."""

    def __init__(self, faults: FaultsSpec, cluster: Cluster) -> None:
        groups = cluster.spec.groups
        each = [_of_node(faults, group) for group in groups]
        self.node_per_s = np.repeat(each, [group.count for group in groups])
        self.rack = cluster.topology.rack
        self.rack_per_s = 0.0 if faults.rack is None else 1.0 / faults.rack.mtbf

    def mtbf_s(self, nodes: Ints) -> float:
        """Mean time between losses of any of these distinct nodes (s); racks of which they are part count once."""
        racks = np.unique(self.rack[nodes]).size if self.rack_per_s else 0
        per_s = float(self.node_per_s[nodes].sum()) + racks * self.rack_per_s
        return 1.0 / per_s if per_s > 0.0 else math.inf

    @property
    def worst_s(self) -> float:
        """Mean time between losses of the node that is lost most often (s)."""
        return self.mtbf_s(np.array([int(self.node_per_s.argmax())]))


def crash_mtbf_s(crash: Crash, group: NodeGroup) -> float:
    """Mean time between crashes of one of the group's nodes (s): by its own GPUs where GPUs are counted."""
    return crash.node_mtbf_s(max(group.gpus, 1))


def _of_node(faults: FaultsSpec, group: NodeGroup) -> float:
    rates = [0.0]
    if faults.crash is not None:
        rates.append(1.0 / crash_mtbf_s(faults.crash, group))
    if faults.spot is not None and faults.spot.group == group.name:
        rates.append(1.0 / faults.spot.mtbf)
    if group.available is not None:
        rates.append(group.available.loss_per_s(group.count))
    return math.fsum(rates)
