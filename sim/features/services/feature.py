"""Services: models that answer requests on GPUs of the same cluster as the jobs."""

from __future__ import annotations

from equipoise.sim.features.services.checks import doubts, problems
from equipoise.sim.features.services.replicas import ServicesRun
from equipoise.sim.features.services.request_files import request_times, with_paths
from equipoise.sim.features.services.section import services_of
from equipoise.sim.features.services.speeds import service_notes
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.world.feature import Feature, WorldParts


def _is_random(scenario: Scenario) -> bool:
    return any(spec.requests.file is None or spec.batch_latency.cov for spec in services_of(scenario))


def _start(parts: WorldParts) -> ServicesRun | None:
    return ServicesRun(parts, request_times(parts.scenario)) if services_of(parts.scenario) else None


FEATURE = Feature(
    problems=problems,
    doubts=doubts,
    located=with_paths,
    is_random=_is_random,
    inputs=lambda case: {f"requests of {name}": times.tobytes() for name, times in request_times(case).items()},
    start=_start,
    notes=service_notes,
)
