"""Charts as plain data, drawn in the browser by a report and by matplotlib for papers.

A chart holds numbers in the unit of its axis label, so drawing needs no conversion.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[np.float64]
Kind = Literal["line", "step", "area", "scatter", "bars", "ranked", "tornado"]
DIGITS = 5


@dataclass(frozen=True)
class Axis:
    """One axis. ticks: (place, text) pairs of a scale without numbers. zero: the scale begins at 0.

    log: equal ratios are equal distances (all values above 0); of y only in scatter charts.
    """

    label: str
    zero: bool = True
    ticks: tuple[tuple[float, str], ...] = ()
    high: float | None = None
    log: bool = False


@dataclass(frozen=True)
class ChartSeries:
    """Equal-length x and y; for `area` x has the edges, one more than y.

    colour: number of the colour, or the name of a use of GPU time. labels: names of points. half: half width of the
    interval of each y.
    """

    name: str
    x: Numbers
    y: Numbers
    colour: int | str = 0
    labels: Sequence[str] = ()
    half: Numbers = ()

    def plain(self) -> dict[str, Any]:
        """The series as JSON: five significant digits, unknown numbers as null."""
        row: dict[str, Any] = {"name": self.name, "colour": self.colour, "x": rounded(self.x), "y": rounded(self.y)}
        if len(self.labels):
            row["labels"] = list(self.labels)
        if len(self.half):
            row["half"] = rounded(self.half)
        return row


@dataclass(frozen=True)
class Chart:
    """A chart with its description in words.

    text: description, for readers who cannot see it. header, rows: its numbers as a table. note: remark for the
    reader. link: seconds per unit of the x axis if that is a time, else 0.
    """

    id: str
    kind: Kind
    title: str
    text: str
    x: Axis
    y: Axis
    series: tuple[ChartSeries, ...]
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    note: str = ""
    link_s: float = 0.0

    def plain(self) -> dict[str, Any]:
        """The chart as JSON for the browser, with its numbers and its remark."""
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "text": self.text,
            "x": _axis(self.x),
            "y": _axis(self.y),
            "series": [series.plain() for series in self.series],
            "link": self.link_s,
            "header": self.header,
            "rows": self.rows,
            "note": self.note,
        }


def _axis(axis: Axis) -> dict[str, Any]:
    row: dict[str, Any] = {"label": axis.label, "zero": axis.zero}
    if axis.log:
        row["log"] = True
    if axis.high is not None:
        row["high"] = axis.high
    return row | ({"ticks": [list(tick) for tick in axis.ticks]} if axis.ticks else {})


def rounded(values: Iterable[float]) -> list[float | None]:
    """Numbers with five significant digits, whole ones without a point, unknown ones as None."""
    return [_short(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def _short(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    if not math.isfinite(short):  # the largest numbers round up to infinity
        return value
    return int(short) if short == int(short) else short


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time for a span."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Palette:
    """Colours that people with colour vision deficiencies can tell apart (Okabe and Ito 2008)."""

    policies: tuple[str, ...] = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b", "#8c6d1f")
    uses: dict[str, str] = field(
        default_factory=lambda: {
            "busy": "#0072b2",
            "input_stall": "#e69f00",
            "barrier_wait": "#d55e00",
            "exposed_communication": "#56b4e9",
            "pipeline_bubble": "#009e73",
            "tensor_exchange": "#f0e442",
            "restart": "#cc79a7",
            "lost_to_faults": "#6b3a53",
            "beside": "#7a58a5",
            "idle": "#d8d8d4",
            "late": "#ecece8",
            "down": "#9a9a94",
        }
    )


PALETTE = Palette()


def time_unit(span_s: float) -> TimeUnit:
    """The unit for a span of seconds: us, ms, s, min, h or d."""
    for name, seconds in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if span_s >= 2 * seconds:
            return TimeUnit(name, seconds)
    for name, seconds in (("s", 1.0), ("ms", 1e-3)):
        if span_s >= seconds:
            return TimeUnit(name, seconds)
    return TimeUnit("us", 1e-6) if span_s > 0 else TimeUnit("s", 1.0)
