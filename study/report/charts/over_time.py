"""The charts of one run over its simulated time: GPUs by use, jobs, power, and those of features."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.sim.shown import Over, all_shown
from equipoise.study.display import digits, show
from equipoise.study.report.chart import Axis, Chart, ChartSeries, time_unit
from equipoise.study.report.charts.study import USE_LABELS, colour_of
from equipoise.study.report.features import feature_columns
from equipoise.study.report.study import RunFolder
from equipoise.study.report.timeline import read, usage_shares

POINTS = 1000
"""Most values of a feature in a chart; with more, the largest of several neighbours stands for them."""
Floats = NDArray[np.float64]


def charts_over_time(folder: RunFolder, key: str) -> list[Chart]:
    """All that the run has numbers for; key: behind their identifiers. Raises InputError without a timeline."""
    usage = read(folder.path, "usage", "start_s, end_s, energy_j, jobs_running, jobs_waiting", "ORDER BY start_s")
    edges_s, shares = usage_shares(folder.path)
    jobs = ((name, usage[f"jobs_{name}"], colour) for name, colour in (("running", "busy"), ("waiting", "idle")))
    uses = ((USE_LABELS[use], 100 * share, colour_of(use)) for use, share in shares.items() if share.any())
    found = [
        _chart(f"usage{key}", "What the GPUs did", Axis("GPUs (%)", high=100.0), edges_s, uses, _percent),
        _chart(f"jobs{key}", "Jobs in the system", Axis("jobs"), edges_s, jobs, digits),
    ]
    lasts = usage["end_s"] > usage["start_s"]
    power_kw = np.asarray(usage["energy_j"], dtype=np.float64)[lasts] / np.diff(edges_s)[lasts] / 1e3
    if np.isfinite(power_kw).any():  # the profile has power numbers
        at_s, power = np.append(usage["start_s"][lasts], edges_s[-1]), [("power", power_kw, 5)]
        found.append(_chart(f"power{key}", "Power of the cluster", Axis("power (kW)"), at_s, power, _kw))
    for shown in all_shown():
        for number, one in enumerate(shown.over_time(feature_columns(folder, shown))):
            found.append(_of_feature(one, f"{shown.heading[0]}{key}-{number}", number % 2))
    return found


def _percent(value: float) -> str:
    return show("x_ratio", value / 100)


def _kw(value: float) -> str:
    return f"{digits(value)} kW"


def _of_feature(of: Over, identifier: str, colour: int) -> Chart:
    step = -(-len(of.values) // POINTS)
    at_s, values = np.append(of.edges_s[:-1:step], of.edges_s[-1]), _most(of.values, step)
    series = [(of.name, values, colour)]
    return _chart(
        identifier, of.title, Axis(of.unit), at_s, series, lambda value: f"{digits(value)} {of.unit}".rstrip()
    )


def _most(values: ArrayLike, step: int) -> Floats:
    """Maximum of each group of neighbours; unknown values are ignored unless all are unknown."""
    known = np.where(np.isfinite(values), values, -np.inf).astype(np.float64)
    found: Floats = np.maximum.reduceat(known, np.arange(0, len(known), step))
    return np.where(np.isfinite(found), found, np.nan)


def _chart(
    identifier: str,
    title: str,
    y: Axis,
    edges_s: Floats,
    series: Iterable[tuple[str, Floats, int | str]],
    text: Callable[[float], str],
) -> Chart:
    """Series (name, values between the edges, colour), stacked, with their mean and their highest value."""
    unit = time_unit(float(edges_s[-1] - edges_s[0]) if len(edges_s) > 1 else 0.0)
    width, drawn, rows = np.diff(edges_s), list[ChartSeries](), list[tuple[str, ...]]()
    for name, values, colour in series:
        known = np.nan_to_num(np.asarray(values, dtype=np.float64))
        drawn.append(ChartSeries(name, edges_s / unit.seconds, known, colour=colour))
        mean = float(known @ width / max(float(width.sum()), 1e-300))
        rows.append((name, text(mean), text(float(known.max(initial=0.0)))))
    return Chart(
        identifier,
        "area",
        title,
        "; ".join(f"{row[0]}: mean {row[1]}, highest {row[2]}" for row in rows),
        Axis(f"simulated time ({unit.name})"),
        y,
        tuple(drawn),
        ("", "mean", "highest"),
        tuple(rows),
        "",
        unit.seconds,
    )
