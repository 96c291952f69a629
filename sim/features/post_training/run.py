"""The loops of a run, in its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from equipoise.policies.observation import Columns
from equipoise.sim.features.post_training.phases import parts, phases
from equipoise.sim.features.post_training.section import loops_of
from equipoise.sim.ledger.bill import Biller
from equipoise.sim.world.feature import FeatureRun, WorldParts


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


RUN = PostTrainingRun
