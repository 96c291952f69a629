"""Post-training: loops of rollouts and training, each of which is a job of the cluster."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.feature import Feature
from equipoise.sim.features.post_training.certainty import certainty_of
from equipoise.sim.features.post_training.checks import doubts, job_of, problems
from equipoise.sim.features.post_training.section import loops_of
from equipoise.sim.scenario.model import Scenario


def _notes(scenario: Scenario, cluster: Cluster) -> Iterable[str]:
    for loop in loops_of(scenario):
        yield f"loop {loop.name}: steps take, for 90 % of such runs, {'; '.join(certainty_of(loop, scenario).lines())}"


FEATURE = Feature(
    problems=problems,
    doubts=doubts,
    is_random=lambda _: True,
    notes=_notes,
    certainty=lambda scenario: [certainty_of(loop, scenario) for loop in loops_of(scenario)],
    jobs=lambda scenario, seed: [job_of(loop, scenario, seed) for loop in loops_of(scenario)],
)
