"""Nodes that come and go, such as those of a spot market."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from equipoise.sim.scenario.units import Count, Int, Seconds, Section


class Supply(Section):
    """Number of available nodes from a time on."""

    at: Seconds  # time of the series
    nodes: Annotated[Int, Field(ge=0)]  # nodes that are available


class Available(Section):
    """Number of available nodes of a group over time; nodes beyond it are reclaimed, and not paid for.

    `file` is CSV, packed with gzip or not, and takes the place of `supply`: with the column time_s and a column of
    counts of nodes for each series (a zone, a GPU model); or with the columns series, gap_s and available, whose
    digits are the counts of one stretch of gap_s after the other (a probe's 0 and 1: `nodes_each` says of how many
    nodes); or a JSON file of SkyPilot's spot traces (`metadata.gap_seconds` and `data`) as it stands. A count holds
    until the next, the last one to the end. Which nodes go first is drawn once per seed.
    """

    # CSV: time_s and a column of counts for each series, or series, gap_s, available; or SkyPilot's own JSON
    file: str | None = None
    series: str | None = None  # series of the file; none: its only one
    nodes_each: Count = 1  # nodes that a count of 1 in the file stands for
    supply: tuple[Supply, ...] = ()  # the series in place of a file
    begin: Seconds = 0.0  # time of the series at which the run begins
    notice: Seconds = 120.0  # time between the warning and the loss; 0: jobs cannot save

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (not self.supply):
            raise ValueError("needs either 'file' or 'supply' (at least one entry)")
        if self.file is None and self.series is not None:
            raise ValueError("'series' needs 'file'")
        if self.file is None and self.nodes_each != 1:
            raise ValueError("'nodes_each' needs 'file'")
        times = [entry.at for entry in self.supply]
        if any(later <= sooner for sooner, later in pairwise(times)):
            raise ValueError("'supply' must be sorted by 'at', without repeated times")
        return self

    def changes(self) -> tuple[tuple[float, int], ...]:
        """(time of the run (s), nodes from then on), ascending, the first at 0."""
        found = [(entry.at - self.begin, entry.nodes) for entry in self.supply]
        first = max((k for k, (at, _) in enumerate(found) if at <= 0.0), default=0)
        return ((0.0, found[first][1]), *found[first + 1 :])

    def loss_per_s(self, count: int) -> float:
        """Rate (1/s) at which one of `count` nodes is reclaimed while it is there: over all of the series."""
        had = [(entry.at, min(entry.nodes, count)) for entry in self.supply]
        steps = list(pairwise(had))
        lost = sum(max(0, before - after) for (_, before), (_, after) in steps)
        node_s = math.fsum(before * (end - start) for (start, before), (end, _) in steps)
        return lost / node_s if node_s > 0.0 else 0.0
