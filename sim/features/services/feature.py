"""Services: models that answer requests on GPUs of the same cluster as the jobs."""

from __future__ import annotations

from equipoise.sim.features.services.checks import doubts, problems
from equipoise.sim.features.services.replicas import ServicesRun
from equipoise.sim.features.services.room import service_notes
from equipoise.sim.features.services.section import services_of
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.world.feature import Feature, WorldParts


def _is_random(scenario: Scenario) -> bool:
    return bool(services_of(scenario))


def _start(parts: WorldParts) -> ServicesRun | None:
    return ServicesRun(parts) if services_of(parts.scenario) else None


FEATURE = Feature(problems=problems, doubts=doubts, is_random=_is_random, start=_start, notes=service_notes)
