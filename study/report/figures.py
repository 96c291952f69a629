"""Figures for papers: the charts of a report through matplotlib, as SVG or PDF with stable bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.base.files import replacing
from equipoise.sim.scenario.tree import InputError
from equipoise.study.report.chart import PALETTE, Chart, ChartSeries
from equipoise.study.report.charts.over_time import charts_over_time
from equipoise.study.report.charts.study import study_charts
from equipoise.study.report.read import read_study
from equipoise.study.report.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("svg", "pdf")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 2)), (0, (7, 2, 2, 2)), "--", ":", "-.", (0, (1, 1)))
MARKERS = "os^Dv<>p"
NAMED = 12
"""Series with more points have no labels in figures; the report names each point."""
SIZE_IN = (5.5, 3.2)


class FiguresUnavailable(RuntimeError):
    """matplotlib is not installed; the message names the package to install."""


def write_figures(folder: str | Path, out: str | Path, form: str = "svg") -> list[Path]:
    """Draw every chart of a folder's report into `out`, a file each; returns them.

    Raises InputError when the folder holds no results or the format is none of FORMATS, FiguresUnavailable
    without matplotlib, OSError when a file cannot be written.
    """
    if form not in FORMATS:
        raise InputError([f"format {form!r}: allowed are {', '.join(FORMATS)}"])
    matplotlib = _matplotlib()
    study = read_study(folder)
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    made = []
    with matplotlib.rc_context(_style()):
        for chart in figure_charts(study):
            path = target / f"{chart.id}.{form}"
            _write(chart, path, form)
            made.append(path)
    return made


def write_chart(chart: Chart, path: Path) -> None:
    """Draw one chart into a file; its name ends in one of FORMATS.

    Raises InputError for another name, FiguresUnavailable without matplotlib, OSError when it cannot be written.
    """
    form = path.suffix.lstrip(".")
    if form not in FORMATS:
        raise InputError([f"{path}: the name of a picture ends in {' or '.join(f'.{form}' for form in FORMATS)}"])
    with _matplotlib().rc_context(_style()):
        _write(chart, path, form)


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise FiguresUnavailable("figures need matplotlib: pip install 'equipoise[report]'") from error
    matplotlib.use("agg")
    return matplotlib


def _style() -> dict[str, Any]:
    return {
        "svg.hashsalt": "equipoise",  # identifiers in the file do not depend on the process
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
    }


def figure_charts(study: Study) -> list[Chart]:
    """The charts of the study, and those of the first run that holds a timeline."""
    charts = study_charts(study)
    folder = next((folder for folder in study.detail if folder.timeline), None)
    if folder is not None:
        charts += charts_over_time(folder, "")
    return charts


def _write(chart: Chart, path: Path, form: str) -> None:
    from matplotlib.figure import Figure

    rows = len(chart.y.ticks)
    height = max(1.6, 0.5 + 0.3 * rows) if rows else SIZE_IN[1]
    figure = Figure(figsize=(SIZE_IN[0], height))
    axes = figure.add_subplot()
    _DRAW[chart.kind](chart, axes)
    axes.set_xlabel(chart.x.label)
    axes.set_ylabel("" if chart.kind in ("bars", "ranked", "tornado") else chart.y.label)
    if chart.kind not in ("tornado", "ranked") and len(chart.series) > 1:
        axes.legend(fontsize=7, ncols=2 if len(chart.series) > 4 else 1)
    dates = {"Date": None} if form == "svg" else {"CreationDate": None, "ModDate": None}
    with replacing(path) as draft:
        figure.savefig(draft, format=form, metadata=dates)


def _colour(series: ChartSeries) -> str:
    if isinstance(series.colour, int):
        return PALETTE.policies[series.colour % len(PALETTE.policies)]
    return PALETTE.uses.get(series.colour, "#222222")


def _curves(chart: Chart, axes: Axes) -> None:
    for k, series in enumerate(chart.series):
        x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
        if chart.kind == "step":
            x, y = np.concatenate([[0.0], x]), np.concatenate([[0.0], y])
        how = {"drawstyle": "steps-post"} if chart.kind == "step" else {"marker": MARKERS[k % 8], "markersize": 4}
        axes.plot(x, y, color=_colour(series), linestyle=DASHES[k % 8], label=series.name, **how)
        if len(series.half):
            half = np.nan_to_num(np.asarray(series.half, dtype=float))
            axes.errorbar(x, y, yerr=half, fmt="none", ecolor=_colour(series), elinewidth=1, capsize=3)
    if chart.x.ticks:
        axes.set_xticks([at for at, _ in chart.x.ticks], [text for _, text in chart.x.ticks])
    if chart.x.log:
        axes.set_xscale("log")
    _from_zero(chart, axes)


def _from_zero(chart: Chart, axes: Axes) -> None:
    if chart.y.zero:
        axes.set_ylim(0, chart.y.high)
    if chart.x.zero and not chart.x.ticks and not chart.x.log:
        axes.set_xlim(0, None)


def _area(chart: Chart, axes: Axes) -> None:
    below = np.zeros(len(chart.series[0].y))
    for series in chart.series:
        above = below + np.asarray(series.y, dtype=float)
        axes.stairs(above, np.asarray(series.x), baseline=below, fill=True, color=_colour(series), label=series.name)
        below = above
    edges = np.asarray(chart.series[0].x)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, chart.y.high)


def _scatter(chart: Chart, axes: Axes) -> None:
    for k, series in enumerate(chart.series):
        if series.colour == "front":
            axes.plot(series.x, series.y, color="#222222", linewidth=1, label=series.name, zorder=1)
        else:
            axes.scatter(series.x, series.y, s=24, color=_colour(series), marker=MARKERS[k % 8], label=series.name)
        if k == 0 and 1 < len(series.labels) <= NAMED:
            for place in zip(series.labels, series.x, series.y, strict=True):
                axes.annotate(place[0], place[1:], xytext=(4, 4), textcoords="offset points", fontsize="small")
    if chart.x.log:
        axes.set_xscale("log")
    if chart.y.log:
        axes.set_yscale("log")
    _from_zero(chart, axes)


def _rows(chart: Chart, axes: Axes) -> None:
    axes.set_yticks([at for at, _ in chart.y.ticks], [text for _, text in chart.y.ticks])
    axes.invert_yaxis()
    axes.grid(False, axis="y")


def _bars(chart: Chart, axes: Axes) -> None:
    left = np.zeros(len(chart.y.ticks))
    for series in chart.series:
        width = np.nan_to_num(np.asarray(series.y, dtype=float))
        axes.barh(np.asarray(series.x), width, left=left, height=0.66, color=_colour(series), label=series.name)
        left += width
    axes.set_xlim(0, chart.x.high)
    _rows(chart, axes)


def _ranked(chart: Chart, axes: Axes) -> None:
    mean, low, high = (np.asarray(series.y, dtype=float) for series in chart.series[:3])
    at = np.asarray(chart.series[0].x)
    axes.barh(at, mean, height=0.6, color=[PALETTE.policies[0], *["#9a9a94"] * (len(at) - 1)])
    spread = np.nan_to_num(np.array([mean - low, high - mean]))
    axes.errorbar(mean, at, xerr=spread, fmt="none", ecolor="#222222", elinewidth=1, capsize=3)
    for k, (end, label) in enumerate(zip(mean + spread[1], chart.series[0].labels, strict=True)):
        axes.text(end, k, f"  {label}", va="center", fontsize=7)
    for bound in chart.series[3:]:
        axes.axvline(float(bound.y[0]), color="#222222", linewidth=1, linestyle="--")
    axes.set_xlim(0, None)
    axes.margins(x=0.3)
    _rows(chart, axes)


def _tornado(chart: Chart, axes: Axes) -> None:
    base = float(chart.series[-1].y[0])
    for series in chart.series[:-1]:
        value = np.asarray(series.y, dtype=float)
        axes.barh(np.asarray(series.x), value - base, left=base, height=0.6, color=_colour(series))
        for at, end, label in zip(series.x, value, series.labels, strict=True):
            axes.text(end, at, f" {label} ", va="center", ha="left" if end >= base else "right", fontsize=7)
    axes.axvline(base, color="#222222", linewidth=1)
    axes.margins(x=0.15)
    _rows(chart, axes)


_DRAW = {
    "line": _curves,
    "step": _curves,
    "area": _area,
    "scatter": _scatter,
    "bars": _bars,
    "ranked": _ranked,
    "tornado": _tornado,
}
