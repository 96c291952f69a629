"""Keys of nodes that are rented when jobs wait."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from equipoise.sim.scenario.units import Int, Seconds, Section


class Autoscale(Section):
    """Nodes of a group are rented when jobs wait for them, up to its `count`, and given back when idle.

    A group that stands first is taken first. A node is paid for while it is present.
    """

    min: Annotated[Int, Field(ge=0)] = 0  # fewest nodes; `count` is the most
    wait: Seconds = 0.0  # waiting time of a job before nodes are ordered for it
    delay: Seconds = 180.0  # time between the order of a node and its use
    idle: Seconds = 600.0  # idle time before a node is returned
    cool_down: Seconds = 0.0  # time between two orders of the group


class AutoscaleKeys(Section):
    """Keys of a group of nodes."""

    autoscale: Autoscale | None = None  # rents nodes when jobs wait, returns them when idle; none: all nodes stay

    @property
    def rented(self) -> bool:
        """Whether its nodes are there only while they are needed."""
        return self.autoscale is not None


def autoscale_of(group: Any) -> Autoscale | None:
    """How a group of nodes, which has the keys above, is rented; None: it always is."""
    found: Autoscale | None = group.autoscale
    return found


GROUP_KEYS = AutoscaleKeys
