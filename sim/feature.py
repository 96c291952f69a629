"""What a feature is to the engine: the questions about a scenario that it answers.

A folder of `sim/features` is one: `section.py` holds its keys (KEYS), `feature.py` what is here (FEATURE), `run.py`
what it does in a run (RUN, which makes a `sim.world.feature.FeatureRun`), `shown.py` what results show of it (SHOWN,
see `sim.shown`). The engine names none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.discover import files, part
from equipoise.sim.hardware.profile import HardwareProfile
from equipoise.sim.llm.certainty import StepCertainty
from equipoise.sim.scenario.model import JobSpec, Scenario
from equipoise.sim.scenario.tree import KeyPath


@dataclass(frozen=True)
class Feature:
    """One feature: what the engine asks it about a scenario."""

    # what makes its keys impossible to run, and what is allowed but looks like a mistake
    problems: Callable[[Scenario, HardwareProfile], Iterable[tuple[KeyPath, str]]] = lambda *_: ()
    doubts: Callable[[Scenario, HardwareProfile], Iterable[tuple[KeyPath, str]]] = lambda *_: ()
    is_random: Callable[[Scenario], bool] = lambda _: False  # whether runs with different seeds can differ by it
    notes: Callable[[Scenario, Cluster], Iterable[str]] = lambda *_: ()  # for the reader of the results
    # how sure the steps are that it predicts
    certainty: Callable[[Scenario], Iterable[StepCertainty]] = lambda _: ()
    # jobs that it submits beside those of the workload, for a seed
    jobs: Callable[[Scenario, int], Iterable[JobSpec]] = lambda *_: ()


def features(scenario: Scenario) -> tuple[Feature, ...]:
    """The features that a scenario uses; the others are not even loaded."""
    return tuple(module.FEATURE for module in modules(scenario, "feature"))


def modules(scenario: Scenario, name: str) -> list[ModuleType]:
    """The module of this name of each feature that a scenario uses."""
    unused = scenario.unused_features
    return [part(of, name) for path in files(f"{name}.py") if (of := path.parent.name) not in unused]


def with_jobs(scenario: Scenario, seed: int) -> Scenario:
    """With the jobs of features, in place of those that they submitted for another seed."""
    made = {job.name: job for feature in features(scenario) for job in feature.jobs(scenario, seed)}
    if not made:
        return scenario
    others = tuple(job for job in scenario.workload.jobs if job.name not in made)
    workload = scenario.workload.model_copy(update={"jobs": (*others, *made.values())})
    return scenario.model_copy(update={"workload": workload})
