"""A measurement: its name, parameters and function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from equipoise.calibrate.samples import Parameters


class MeasureMissingError(RuntimeError):
    """This machine cannot do the measurement; the message is one line that names what is missing."""


@dataclass(frozen=True)
class Series:
    """A measurement over time: parallel columns."""

    columns: Mapping[str, Sequence[float]]


Outcome = Sequence[float] | Series


@dataclass(frozen=True)
class Measure:
    """A measurement to do. `run(budget_s)` takes about that long and returns repeated values or a series.

    `weight` is its share of a session's time relative to others; `once` ones are not repeated every round.
    """

    kind: str
    parameters: Parameters
    run: Callable[[float], Outcome]
    unit: str = "s"
    weight: float = 1.0
    once: bool = False
