"""Values taken from the scenario, else from its hardware profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from equipoise.sim.hardware.profile import Accelerator, Measured
from equipoise.sim.scenario.model import Model, Noise


def share_kappa(given: float | None, accelerator: Accelerator) -> float:
    """kappa of the speed on a share of a GPU (`policies.physics.speed_at`); NaN: proportional (not declared)."""
    return _either(given, accelerator.share_kappa, math.nan)


def interference(given: float | None, accelerator: Accelerator) -> float:
    """iota: co-located workers slow each other by 1 + iota * sum of the others' shares; 0: not declared."""
    return _either(given, accelerator.interference, 0.0)


def step_cov(noise: Noise, model: Model, accelerator: Accelerator) -> float:
    """Coefficient of variation of a step: the scenario's, else of the model's measured `step`, else 0.

    Raises ValueError, one line, when the profile lacks the step.
    """
    step = None if model.step is None else accelerator.step(model.step, model.precision)
    return _either(noise.step_cov, step.residual_cov if step else None, 0.0)


def _either(said: float | None, found: Measured | None, otherwise: float) -> float:
    if said is not None:
        return said
    return otherwise if found is None else found.value


def has_step_noise(noise: Noise, models: Iterable[Model], accelerators: Iterable[Accelerator]) -> bool:
    """Whether steps vary, by the scenario or by the profile's measured steps of some model."""
    if noise.gpu_cov > 0.0 or noise.slow_nodes > 0.0 or (noise.tail_chance > 0.0 and noise.tail_factor > 1.0):
        return True
    if noise.step_cov is not None:
        return noise.step_cov > 0.0
    on = list(accelerators)
    return any(step_cov(noise, model, accelerator) > 0.0 for model in models for accelerator in on)


def measured_notes(noise: Noise, models: dict[str, Model], accelerators: dict[str, Accelerator]) -> Iterator[str]:
    """A note on each figure of the profile that applies to a model, or that the scenario overrides."""
    for name, accelerator in accelerators.items():
        for label, model in models.items():
            step = None if model.step is None else accelerator.step(model.step, model.precision)
            for key, said, found in (
                ("share_kappa", model.share_kappa, accelerator.share_kappa),
                ("interference", model.interference, accelerator.interference),
                ("step_cov", noise.step_cov, step.residual_cov if step else None),
            ):
                if found is None:
                    continue
                origin = f"{found.value:.4g}, {found.kind} on {name}"
                instead = "" if said is None else f"the scenario's {said:.4g} in place of "
                yield f"model {label}: {key}: {instead}{origin}"
