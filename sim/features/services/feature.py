"""Services: models that answer requests on GPUs of the same cluster as the jobs."""

from __future__ import annotations

from equipoise.sim.feature import Feature
from equipoise.sim.features.services.checks import doubts, problems
from equipoise.sim.features.services.room import service_notes

FEATURE = Feature(problems=problems, doubts=doubts, is_random=lambda _: True, notes=service_notes)
