"""Whether the seed of a run matters."""

from __future__ import annotations

from equipoise.sim.cost.measured import has_step_noise
from equipoise.sim.feature import features
from equipoise.sim.hardware.contracts import acting_faults
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.scenario.model import Scenario, SpreadSizes


def is_random(scenario: Scenario) -> bool:
    """Whether runs with different seeds can differ."""
    faults = acting_faults(scenario)
    if any(feature.is_random(scenario) for feature in features(scenario)):
        return True
    random = (faults.crash, faults.fail_slow, faults.link, faults.rack, faults.spot, faults.corrupt_gradient)
    spread = any(job.data and isinstance(job.data.shard_sizes, SpreadSizes) for job in scenario.workload.jobs)
    supply = any(group.available is not None for group in scenario.cluster.groups)
    if scenario.workload.generate is not None or supply:
        return True
    return bool(step_noise(scenario) or scenario.decide.estimate_error or spread or any(random))


def step_noise(scenario: Scenario) -> bool:
    """Whether steps of its models vary, as declared or measured."""
    profile = load_profile(scenario.cluster.hardware)
    on = [profile.accelerator(group.accelerator) for group in scenario.cluster.groups if group.gpus]
    return has_step_noise(scenario.noise, scenario.workload.models.values(), on)
