"""What a policy may do to a queue, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from equipoise.formats.text.csvfile import read_csv
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.numbers import decimal

Mode = Literal["observe", "advise", "act"]


@dataclass(frozen=True)
class QueueOptions:
    """How a policy drives a queue.

    requeue: running jobs may be stopped and queued again; what they have done since their start is lost, unless
    `restart_s` says what going on from a checkpoint costs them. across_qos: jobs exchange places with those of
    another QOS, too.
    every_s: between two looks; decide_s: the longest time between two decisions. budget_s: a decision that takes
    longer does not count. changes_per_s: at most, on average. estimates: duration (s) by job name, in place of the
    time limit.
    """

    mode: Mode = "advise"
    requeue: bool = False
    across_qos: bool = False
    restart_s: float | None = None
    every_s: float = 2.0
    decide_s: float = 30.0
    budget_s: float = 2.0
    changes_per_s: float = 20.0
    estimates: Mapping[str, float] = field(default_factory=dict)


def read_estimates(path: Path) -> dict[str, float]:
    """Durations (s) by job name, from a CSV file with the columns name and duration_s. Raises FormatError."""
    table = read_csv(path)
    missing = [column for column in ("name", "duration_s") if column not in table.columns]
    if missing:
        raise FormatError(f"{path}:1: no column {missing[0]!r}; the columns name and duration_s are needed")
    found = {}
    for name, text, line in zip(table.columns["name"], table.columns["duration_s"], table.line, strict=True):
        value = decimal(text)
        if value is None or not 0 < value < float("inf"):
            raise FormatError(f"{path}:{line}: duration_s: {text!r} is not a number of seconds above 0")
        found[name] = value
    return found
