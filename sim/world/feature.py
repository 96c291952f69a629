"""What a feature is to the engine: its checks of a scenario, and what it does in a run.

A folder of `sim/features` is one: `section.py` holds its keys (KEYS), `feature.py` what is here (FEATURE), and
`shown.py` what results show of it (SHOWN, see `sim.shown`). The engine names none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from equipoise.policies.observation import Bools, Columns, Floats
from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.meter import Meter
from equipoise.sim.discover import files, part
from equipoise.sim.hardware.profile import HardwareProfile
from equipoise.sim.job.listener import Listener
from equipoise.sim.ledger.bill import Biller
from equipoise.sim.ledger.gpu_account import GpuAccount
from equipoise.sim.ledger.timeline import Timeline
from equipoise.sim.llm.certainty import StepCertainty
from equipoise.sim.scenario.model import JobSpec, Scenario
from equipoise.sim.scenario.tree import KeyPath
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


@dataclass(frozen=True)
class Feature:
    """One feature: what the engine asks it about a scenario, and how it begins a run."""

    # what makes its keys impossible to run, and what is allowed but looks like a mistake
    problems: Callable[[Scenario, HardwareProfile], Iterable[tuple[KeyPath, str]]] = lambda *_: ()
    doubts: Callable[[Scenario, HardwareProfile], Iterable[tuple[KeyPath, str]]] = lambda *_: ()
    is_random: Callable[[Scenario], bool] = lambda _: False  # whether runs with different seeds can differ by it
    start: Callable[[WorldParts], FeatureRun | None] = lambda _: None  # None where the scenario does not use it
    notes: Callable[[Scenario, Cluster], Iterable[str]] = lambda *_: ()  # for the reader of the results
    # how sure the steps are that it predicts
    certainty: Callable[[Scenario], Iterable[StepCertainty]] = lambda _: ()
    # jobs that it submits beside those of the workload, for a seed
    jobs: Callable[[Scenario, int], Iterable[JobSpec]] = lambda *_: ()


def features(scenario: Scenario) -> tuple[Feature, ...]:
    """The features that a scenario uses; the others are not even loaded."""
    unused = scenario.unused_features
    names = [path.parent.name for path in files("feature.py")]
    return tuple(part(name, "feature").FEATURE for name in names if name not in unused)


def with_jobs(scenario: Scenario, seed: int) -> Scenario:
    """With the jobs of features, in place of those that they submitted for another seed."""
    made = {job.name: job for feature in features(scenario) for job in feature.jobs(scenario, seed)}
    if not made:
        return scenario
    others = tuple(job for job in scenario.workload.jobs if job.name not in made)
    workload = scenario.workload.model_copy(update={"jobs": (*others, *made.values())})
    return scenario.model_copy(update={"workload": workload})
