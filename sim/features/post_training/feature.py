"""Post-training: loops of rollouts and training, each of which is a job of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

import numpy as np

from equipoise.policies.observation import Columns
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.features.post_training.certainty import certainty_of
from equipoise.sim.features.post_training.checks import doubts, problems
from equipoise.sim.features.post_training.phases import parts, phases
from equipoise.sim.features.post_training.section import loops_of
from equipoise.sim.ledger.bill import Biller
from equipoise.sim.scenario.model import JobSpec, Scenario
from equipoise.sim.world.feature import Feature, FeatureRun, WorldParts


def _jobs(scenario: Scenario, seed: int) -> Iterator[JobSpec]:
    """A job for each loop, as long as all its steps."""
    for loop in loops_of(scenario):
        total_s = parts(loop, phases(loop, scenario, seed)).total_s
        yield JobSpec(name=loop.name, arrival=loop.arrival, priority=loop.priority, gpus=loop.gpus, duration=total_s)


class PostTrainingRun(FeatureRun):
    """The loops of a run."""

    def __init__(self, world: WorldParts) -> None:
        self.rows = [
            {"loop": loop.name, "gpus": loop.gpus, "rollout_gpus": loop.rollout_gpus, "steps": loop.steps}
            | asdict(parts(loop, phases(loop, world.scenario, world.seed)))
            for loop in loops_of(world.scenario)
        ]

    def tables(self, biller: Biller, end_s: float) -> Mapping[str, Columns]:
        """A row per loop."""
        names = self.rows[0]
        kinds = {name: object if isinstance(value, str) else None for name, value in names.items()}
        return {"post_training": {n: np.array([row[n] for row in self.rows], dtype=kinds[n]) for n in names}}


def _notes(scenario: Scenario, cluster: Cluster) -> Iterable[str]:
    for loop in loops_of(scenario):
        yield f"loop {loop.name}: steps take, for 90 % of such runs, {'; '.join(certainty_of(loop, scenario).lines())}"


FEATURE = Feature(
    problems=problems,
    doubts=doubts,
    is_random=lambda _: True,
    start=PostTrainingRun,
    notes=_notes,
    certainty=lambda scenario: [certainty_of(loop, scenario) for loop in loops_of(scenario)],
    jobs=_jobs,
)
