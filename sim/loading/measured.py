"""Fills keys that the scenario leaves out with measured values."""

from __future__ import annotations

from typing import TypeVar

from equipoise.sim.hardware.profile import HardwareProfile, Measured, load_profile
from equipoise.sim.scenario.model import Model, NodeGroup, Scenario

_Section = TypeVar("_Section", Model, NodeGroup)


def with_measured(scenario: Scenario) -> Scenario:
    """With the measured storage and overlap where the scenario names none; data sheets do not count."""
    profile = load_profile(scenario.cluster.hardware)
    groups = tuple(_group(group, profile) for group in scenario.cluster.nodes)
    models = {name: _model(model, scenario, profile) for name, model in scenario.workload.models.items()}
    return scenario.model_copy(
        update={
            "cluster": scenario.cluster.model_copy(update={"nodes": groups}),
            "workload": scenario.workload.model_copy(update={"models": models}),
        }
    )


def _group(group: NodeGroup, profile: HardwareProfile) -> NodeGroup:
    read = profile.storage_read_bytes_per_s if group.gpus else None
    return _filled(group, {"local_read": read, "storage_rate": read})


def _model(model: Model, scenario: Scenario, profile: HardwareProfile) -> Model:
    """With the overlap measured on the first group's accelerator that has the model's step."""
    if model.step is None:
        return model
    names = [group.accelerator for group in scenario.cluster.groups if group.gpus]
    step = profile.accelerator(names[0]).step(model.step, model.precision)
    return _filled(model, {"overlap": step.overlap})


def _filled(section: _Section, found: dict[str, Measured | None]) -> _Section:
    """The section with the found values for keys that it does not set."""
    update = {
        key: number.value
        for key, number in found.items()
        if number is not None and number.kind in ("measured", "fitted") and key not in section.model_fields_set
    }
    return section.model_copy(update=update) if update else section
