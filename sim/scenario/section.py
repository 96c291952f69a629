"""Base class of the sections of a scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from equipoise.sim.scenario.units import Float, Int, Seconds

Positive = Annotated[Float, Field(gt=0)]
Span = Annotated[Seconds, Field(gt=0)]
Count = Annotated[Int, Field(ge=1)]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values are immutable once loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
