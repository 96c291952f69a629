"""A feature in a run: the events that it hears, what it may use, and what it answers the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from equipoise.policies.observation import Bools, Columns, Floats
from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.meter import Meter
from equipoise.sim.job.listener import Listener
from equipoise.sim.ledger.bill import Biller
from equipoise.sim.ledger.gpu_account import GpuAccount
from equipoise.sim.ledger.timeline import Timeline
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.world.allocate import Allocator
from equipoise.sim.world.decisions import Decisions
from equipoise.sim.world.nodes import NodeEvents
from equipoise.sim.world.roster import Roster


@dataclass(frozen=True)
class Lack:
    """Room that a feature wants and does not have: `count` times GPUs of one node, a share of each.

    allowed (gpus,): which GPUs it may use.
    """

    count: int
    gpus: int
    share: float
    allowed: Bools


@dataclass(frozen=True)
class WorldParts:
    """The parts of a world that a feature may use.

    timeline: None unless it is recorded. lacks: room that any feature wants and does not have.
    """

    scenario: Scenario
    seed: int
    clock: Clock
    cluster: Cluster
    roster: Roster
    allocator: Allocator
    nodes: NodeEvents
    decisions: Decisions
    meter: Meter
    usd_per_gpu_s: Floats
    timeline: Timeline | None
    lacks: Callable[[], Iterable[Lack]]


class FeatureRun(Listener):
    """A feature in one run: it hears all events of a listener, and answers what the engine asks."""

    holds_open = False  # whether the run continues to its horizon after all jobs are done

    def begin(self) -> None:
        """The world is complete, and its time is 0."""

    def may_release(self) -> bool:
        """Whether it may release GPUs later, for which jobs wait."""
        return False

    def brings_nodes(self) -> bool:
        """Whether it may bring back a node that is away."""
        return False

    def lacks(self) -> Iterable[Lack]:
        """Room that it wants now, for which nodes may be rented."""
        return ()

    def observed(self) -> Mapping[str, Columns]:
        """Tables that policies see, by name."""
        return {}

    def close(self, end_s: float) -> None:
        """The run has ended: book everything up to then."""

    def account(self) -> GpuAccount | None:
        """The GPUs that it held beside the jobs; None: it holds none."""
        return None

    def totals(self) -> Mapping[str, float]:
        """What it adds to the totals of a run."""
        return {}

    def tables(self, biller: Biller, end_s: float) -> Mapping[str, Columns]:
        """Its tables of a run, by name."""
        return {}

    def timeline(self) -> Mapping[str, Columns]:
        """Its tables of the timeline, by name."""
        return {}
