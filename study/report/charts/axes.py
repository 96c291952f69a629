"""Names, units and axes of metrics in the charts of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.study.display import LABELS
from equipoise.study.report.chart import Axis, time_unit

_UNITS = {
    "_usd_per_h": ("USD/h", 1.0),
    "_usd": ("USD", 1.0),
    "_ratio": ("%", 0.01),
    "_j": ("kWh", 3.6e6),
    "_w": ("kW", 1e3),
    "_kg": ("kg", 1.0),
}


def name(metric: str) -> str:
    """Name of a metric in words, with a capital."""
    key, bracket, of = metric.partition("[")
    text = LABELS.get(key, key).strip() + (f" [{of}" if bracket else "")
    return f"{text[:1].upper()}{text[1:]}"


def axis(metric: str, values: Sequence[float], *, zero: bool = True) -> tuple[Axis, float]:
    """(an axis of a metric, the divisor of its values)."""
    if metric.partition("[")[0].endswith("_s") and not metric.endswith("_per_s"):
        found = time_unit(max((abs(value) for value in values if math.isfinite(value)), default=0.0))
        unit, divisor = found.name, found.seconds
    else:
        unit, divisor = next((of for suffix, of in _UNITS.items() if metric.endswith(suffix)), ("", 1.0))
    return Axis(f"{name(metric)} ({unit})" if unit else name(metric), zero=zero), divisor
