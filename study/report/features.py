"""What features show in a report: a table of the first run of each policy, and charts over time of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.sim.record import read_parquet
from equipoise.sim.shown import Over, Shown, all_shown
from equipoise.study.display import digits, show
from equipoise.study.report.chart import Axis, Chart, ChartSeries, time_unit
from equipoise.study.report.study import RunFolder, Study, first_of_each_policy
from equipoise.study.report.tables import table

POINTS = 1000
"""Most values in a chart; with more, the largest of several neighbours stands for them."""


def texts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of a feature's table as texts, the titles first."""
    shown = [tuple(value if isinstance(value, str) else show(*value) for value in row.values()) for row in rows]
    return [tuple(rows[0]), *shown] if rows else []


def feature_tables(study: Study) -> Iterator[tuple[tuple[str, str, str], str]]:
    """(key, name and title of its section; table as HTML) of each feature that a run has used."""
    folders = first_of_each_policy(study.folders)
    for shown in all_shown():
        found = [(folder.policy, texts(shown.rows(_tables(folder, shown)))) for folder in folders]
        rows = sorted((first, policy, *rest) for policy, lines in found for first, *rest in lines[1:])
        if rows:
            (first, *rest), *_ = next(lines for _, lines in found if lines)
            caption = f"{shown.heading[1]}, of the first run of each policy"
            yield shown.heading, table(caption, (first, "policy", *rest), rows)


def over_time(folder: RunFolder, key: str) -> list[Chart]:
    """Charts of one run, of each feature that it has used."""
    return [
        _chart(one, f"{shown.heading[0]}-{key}-{number}", number % 2)
        for shown in all_shown()
        for number, one in enumerate(shown.over_time(_tables(folder, shown)))
    ]


def _chart(of: Over, identifier: str, colour: int) -> Chart:
    unit = time_unit(float(of.edges_s[-1] - of.edges_s[0]))
    step = -(-len(of.values) // POINTS)
    at, values = np.append(of.edges_s[:-1:step], of.edges_s[-1]) / unit.seconds, _most(of.values, step)
    known = values[np.isfinite(values)]
    mean, most = (known.mean(), known.max()) if known.size else (0.0, 0.0)
    row = (of.name, *(f"{digits(float(value))} {of.unit}".rstrip() for value in (mean, most)))
    return Chart(
        identifier,
        "area",
        of.title,
        f"mean {row[1]}, highest {row[2]}",
        Axis(f"simulated time ({unit.name})"),
        Axis(of.unit),
        (ChartSeries(of.name, at, np.nan_to_num(values), colour=colour),),
        ("", "mean", "highest"),
        (row,),
        "",
        unit.seconds,
    )


def _most(values: NDArray[Any], step: int) -> NDArray[np.float64]:
    """Maximum of each group of neighbours; unknown values are ignored unless all are unknown."""
    known = np.where(np.isfinite(values), values, -np.inf).astype(np.float64)
    found: NDArray[np.float64] = np.maximum.reduceat(known, np.arange(0, len(known), step))
    return np.where(np.isfinite(found), found, np.nan)


def _tables(folder: RunFolder, shown: Shown) -> dict[str, Mapping[str, NDArray[Any]]]:
    paths = {name: folder.path / f"{name}.parquet" for name in shown.tables}
    return {name: read_parquet(path) for name, path in paths.items() if path.is_file()}
