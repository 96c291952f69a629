"""Power of GPUs when idle and computing, and its dependence on the clock.

    power_w = idle + power_share * (max - idle) * utilisation * clock^3

Utilisation is the busy share of the GPU: computing, not waiting for data, other workers or the network. The share
of the highest power that a model draws while it computes is the model's own. The
clock is relative to the highest. Dynamic power is proportional to frequency and voltage squared and the voltage
follows the frequency (Chandrakasan et al., IEEE JSSC 27(4), 1992), hence the cube; compute is taken to be as fast
as the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import HardwareProfile
from equipoise.sim.scenario.model import NodeGroup

EXPONENT = 3.0
"""Dynamic power goes with this power of the clock."""


@dataclass(frozen=True)
class NodePower:
    """Power of one GPU of each node, and of the rest of the node, in W; NaN: not known. All arrays (nodes,)."""

    idle_w: Floats
    max_w: Floats
    base_w: Floats

    @property
    def known(self) -> bool:
        """Whether the profile states the power of every accelerator of the cluster."""
        return not bool(np.isnan(self.idle_w + self.max_w).any())

    @property
    def uniform(self) -> bool:
        """Whether the GPUs of all nodes have the same power."""
        return self.known and bool(np.ptp(self.idle_w) == 0.0 and np.ptp(self.max_w) == 0.0)

    def idling_w(self, gpus: Ints) -> Floats:
        """Idle power of each node (nodes,) with these numbers of GPUs (nodes,)."""
        drawn_w: Floats = gpus * self.idle_w + self.base_w
        return drawn_w


def node_power(cluster: Cluster) -> NodePower:
    """Power of a cluster's nodes, from its hardware profile."""
    accelerators = cluster.accelerators
    idle = np.array([np.nan if a.idle_w is None else a.idle_w.value for a in accelerators])
    highest = np.array([np.nan if a.max_w is None else a.max_w.value for a in accelerators])
    base_w = np.array([host_w(group, cluster.profile) for group in cluster.groups])
    return NodePower(idle[cluster.node_model], highest[cluster.node_model], base_w)


def host_w(group: NodeGroup, profile: HardwareProfile) -> float:
    """Power of a node without its GPUs (W): of the group, else of the profile; NaN: not known."""
    if group.host_power is not None:
        return group.host_power
    if profile.node_base_w is None:
        return float("nan")
    accelerator = profile.accelerators.get(group.accelerator)
    each = None if accelerator is None else accelerator.host_w
    return profile.node_base_w.value + group.gpus * (0.0 if each is None else each.value)


def clock_under_cap(idle_w: Floats, draw_w: Floats, cap_w: float | Floats) -> Floats:
    """Highest relative clock, up to 1, at which a GPU that draws `draw_w` at the highest one draws at most `cap_w`.

    Raises ValueError for a cap that is not above the idle power.
    """
    if not bool((cap_w > idle_w).all()):
        text = f"a power cap of {np.min(cap_w):g} W must be above the idle power of {idle_w.max():g} W"
        raise ValueError(text)
    share = (cap_w - idle_w) / np.maximum(draw_w - idle_w, 1e-12)
    clock: Floats = np.minimum(1.0, share) ** (1.0 / EXPONENT)
    return clock
