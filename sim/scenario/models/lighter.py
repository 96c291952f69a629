"""Lighter models and lighter gradients: what may be said of them in a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from equipoise.sim.scenario.section import Count, Section
from equipoise.sim.scenario.units import Float, Flop, Share


class Lighter(Section):
    """What makes a model or its gradients lighter. Products in 8 bits are `precision: fp8`."""

    # how gradients are compressed, in time on the GPU: in 8 bits, the largest ones, or low-rank factors
    gradients: Literal["int8", "top-k", "powersgd"] | None = None
    density: Annotated[Share, Field(gt=0, le=1)] = 0.01  # of the gradients that top-k sends
    rank: Count = 4  # of PowerSGD's factors
    pruned: Annotated[Share, Field(ge=0, lt=1)] = 0.0  # of channels and heads taken out, of work and weights alike
    moments: Literal["plain", "int8"] = "plain"  # Adam's two moments, in 8 bits each
    teacher_flop_per_sample: Flop = 0.0  # distillation: of the teacher's forward pass, beside each step
    teacher_parameters: Annotated[Float, Field(ge=0)] = 0.0  # of the teacher, whose weights are held too
    samples_factor: Annotated[Float, Field(ge=1)] = 1.0  # samples to target over those of the plain model
