"""Nodes that are rented when jobs wait or features lack room, and given back when idle."""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.sim.feature import Feature
from equipoise.sim.features.autoscale.section import autoscale_of
from equipoise.sim.hardware.profile import HardwareProfile
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import KeyPath


def _problems(scenario: Scenario, _: HardwareProfile) -> Iterator[tuple[KeyPath, str]]:
    for k, group in enumerate(scenario.cluster.nodes):
        spec = autoscale_of(group)
        if spec is not None and spec.min > group.count:
            text = f"{spec.min} nodes, but the group's count is {group.count}"
            yield ("cluster", "nodes", k, "autoscale", "min"), text


FEATURE = Feature(problems=_problems)
