"""A comparison as plain text: metrics as rows, policies as columns, human units, no control characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from equipoise.sim.scenario.units import (
    TIME,
    format_bytes,
    format_joules,
    format_seconds,
    format_share,
    format_usd,
)

if TYPE_CHECKING:
    from equipoise.study.runs.compare import Cell, Comparison

LABELS = {
    "jobs": "jobs",
    "completed": "jobs completed",
    "makespan_s": "makespan",
    "completion_mean_s": "completion mean",
    "completion_p50_s": "completion p50",
    "completion_p95_s": "completion p95",
    "completion_p99_s": "completion p99",
    "queueing_mean_s": "queueing mean",
    "goodput_ratio": "goodput",
    "gpu_busy_ratio": "GPU busy",
    "idle_ratio": "idle",
    "input_stall_ratio": "input stall",
    "barrier_wait_ratio": "barrier wait",
    "exposed_communication_ratio": "exposed comm.",
    "restart_ratio": "restart",
    "lost_to_faults_ratio": "lost to faults",
    "energy_j": "energy",
    "cost_usd": "cost",
    "waste_usd": "  wasted",
    "idle_usd": "    idle",
    "input_stall_usd": "    input stall",
    "barrier_wait_usd": "    barrier wait",
    "exposed_communication_usd": "    exposed comm.",
    "restart_usd": "    restart",
    "lost_to_faults_usd": "    lost to faults",
    "energy_per_useful_sample_j": "energy a sample",
    "cost_per_useful_sample_usd": "cost per 1e6 samples",
}
IN_DETAIL = (
    "idle_usd", "input_stall_usd", "barrier_wait_usd", "exposed_communication_usd", "restart_usd",
    "lost_to_faults_usd", "energy_per_useful_sample_j",
)  # fmt: skip
"""Metrics that a comparison leaves to its other formats: their shares of the time stand in the table already."""
_UNKNOWN = "-"
_GAP = 2
_DECIMALS = 3
PER_JOB = ("completion_p50_s", "completion_p95_s", "completion_p99_s")


def digits(value: float, significant: int = 3) -> str:
    """So many significant digits, at most three decimals, and no exponent below a million."""
    if not math.isfinite(value) or abs(value) >= 1e6:
        return f"{value:.{significant}g}"
    if abs(value) < 0.5 * 10.0**-_DECIMALS:
        return "0"
    whole = math.floor(math.log10(abs(value))) + 1
    return f"{value:.{min(max(0, significant - whole), _DECIMALS)}f}"


def _plus_minus(half: float) -> str:
    shown = digits(half, 2) if half > 0 else "0"
    return "" if shown == "0" else f" ±{shown}"


def _scaled(metric: str, mean: float) -> tuple[float, str]:
    """(divisor, unit) that suit the metric and the size of its mean."""
    if metric.endswith("_s"):
        unit = format_seconds(mean).rsplit(" ", 1)[1]
        return float(TIME.factors[unit]), unit
    return (0.01, "%") if metric.endswith("_ratio") else (1.0, "")


def show(metric: str, mean: float, half: float = math.nan) -> str:
    """A mean and its half interval in the unit of the metric: "43.1 ±0.2 s"; "-" when unknown."""
    if not math.isfinite(mean):
        return _UNKNOWN
    other: dict[str, Callable[[float], str]] = {
        "_bytes": format_bytes, "_usd": format_usd, "_j": format_joules,
    }  # fmt: skip
    if metric == "cost_per_useful_sample_usd":
        mean, half = 1e6 * mean, 1e6 * half
    for suffix, text in other.items():
        if metric.endswith(suffix):
            number, unit = text(mean).rsplit(" ", 1)
            relative = half / abs(mean) if mean else math.nan
            return f"{number}{_plus_minus(relative * abs(float(number.replace(',', ''))))} {unit}"
    scale, unit = _scaled(metric, mean)
    number = f"{mean:.0f}" if not unit and mean == round(mean) else digits(mean / scale)
    return f"{number}{_plus_minus(half / scale)} {unit}".rstrip()


def _ratio(cell: Cell) -> str:
    if not math.isfinite(cell.ratio.mean):
        return _UNKNOWN
    return digits(cell.ratio.mean) + _plus_minus(cell.ratio.half_width)


def _lines(metric: str, cells: Sequence[Cell], noise_free: bool) -> Iterator[list[str]]:
    """Rows of text of one metric: value, ratio to the first policy, multiple of the bound."""
    yield [LABELS.get(metric, metric), *(show(metric, c.value.mean, c.value.half_width) for c in cells)]
    compared = metric.endswith("_s") or metric in ("goodput_ratio", "cost_usd")
    if compared and len(cells) > 1 and math.isfinite(cells[0].ratio.mean):
        yield [f"  ratio to {cells[0].policy}", *(_ratio(c) for c in cells)]
    if any(math.isfinite(c.over_bound) for c in cells):
        label = "  of noise-free bound" if noise_free else "  of lower bound"
        yield [label, *(f"{digits(c.over_bound)}x" if c.over_bound > 0 else _UNKNOWN for c in cells)]


def _blocks(columns: Sequence[int], room: int) -> Iterator[list[int]]:
    """Columns (by index) in groups that fit into `room` characters, at least one a group."""
    block: list[int] = []
    for k, width in enumerate(columns):
        if block and sum(columns[i] + _GAP for i in block) + width + _GAP > room:
            yield block
            block = []
        block.append(k)
    if block:
        yield block


def render(comparison: Comparison, width: int = 100) -> str:
    """The table; policies that do not fit into `width` characters follow below."""
    lines: list[list[str]] = []
    one_job = comparison.results[0].metrics["jobs"] == 1  # all percentiles are its completion time
    for metric, group in groupby(comparison.cells, key=lambda cell: cell.metric):
        found = list(group)
        billed = metric.endswith(("_usd", "_j"))
        unknown = billed and not any(math.isfinite(cell.value.mean) for cell in found)
        if not ((one_job and metric in PER_JOB) or metric in IN_DETAIL or unknown):
            lines += _lines(metric, found, comparison.bound.noise_free)
    header = ["", *comparison.policies]
    widths = [max(len(line[k]) for line in [header, *lines]) for k in range(len(header))]
    text = [_title(comparison)]
    for block in _blocks(widths[1:], width - widths[0]):
        text.append("")
        for line in [header, *lines]:
            cells = "".join(" " * _GAP + line[k + 1].rjust(widths[k + 1]) for k in block)
            text.append((line[0].ljust(widths[0]) + cells).rstrip())
    text += ["", *(f"note: {note}" for note in comparison.notes)] if comparison.notes else []
    return "\n".join(text) + "\n"


def _title(comparison: Comparison) -> str:
    n = len(comparison.seeds)
    runs = "one seed" if n == 1 else f"{n} seeds, mean ± 95 % interval, ratios paired by seed"
    return f"{comparison.scenario_name}: {runs}" + _looked(comparison)


def _looked(comparison: Comparison) -> str:
    """How narrow the interval became for which seeds were added."""
    found = comparison.precision
    if found is None:
        return ""
    ratio = f" ratio to {comparison.policies[0]}" if found.of_ratio else ""
    end = "reached" if found.met else f"not reached, {format_share(found.wanted)} was asked for"
    half = format_share(found.reached) if math.isfinite(found.reached) else "unknown"
    return f"\n{LABELS.get(found.metric, found.metric)}{ratio} within ±{half}: {end}"
