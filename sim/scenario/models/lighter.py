"""Pruned, quantised and distilled models, and compressed gradients, in a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from equipoise.sim.scenario.section import Count, Section
from equipoise.sim.scenario.units import Float, Flop, Share


class Lighter(Section):
    """Reductions of a model or its gradients. Products in 8 bits are `precision: fp8`."""

    # gradient compression, which takes GPU time: 8 bits, largest values only, or low-rank factors
    gradients: Literal["int8", "top-k", "powersgd"] | None = None
    density: Annotated[Share, Field(gt=0, le=1)] = 0.01  # share of the gradients that top-k sends
    rank: Count = 4  # rank of PowerSGD's factors
    pruned: Annotated[Share, Field(ge=0, lt=1)] = 0.0  # pruned share of channels and heads, of work and weights
    moments: Literal["plain", "int8"] = "plain"  # Adam's two moments, in 8 bits each
    teacher_flop_per_sample: Flop = 0.0  # distillation: FLOP per sample of the teacher's forward pass in each step
    teacher_parameters: Annotated[Float, Field(ge=0)] = 0.0  # distillation: parameters of the teacher, kept in memory
    samples_factor: Annotated[Float, Field(ge=1)] = 1.0  # samples to the target relative to the plain model
