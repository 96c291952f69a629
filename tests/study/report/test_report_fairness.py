"""How users fared: a chart in report and figures, with the figures of the records, where jobs name them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from equipoise.sim.fairness import groups
from equipoise.sim.record import read_parquet, write_parquet
from equipoise.study.report.charts.study import study_charts
from equipoise.study.report.figures import write_figures
from equipoise.study.report.read import read_study
from tests.study.report.report_data import make_run
from tests.study.report.test_report import make_comparison, page_of

USERS = np.array(["ada", "bo", "", "ada", "cy"] * 2, dtype=object)


def name_users(folder: Path) -> dict[str, np.ndarray]:
    """Give the ten jobs of each run three users, and all of them one partition."""
    for path in folder.rglob("jobs.parquet"):
        jobs = read_parquet(path) | {"user": USERS, "partition": np.array(["gpu"] * 10, dtype=object)}
        write_parquet(path, jobs)
    return jobs


def test_a_run_whose_jobs_have_users_shows_each_of_them(tmp_path: Path) -> None:
    make_run(tmp_path, jobs=10)
    rows = groups(name_users(tmp_path), "user")
    found = [chart for chart in study_charts(read_study(tmp_path)) if chart.id.startswith("fairness-")]
    assert [chart.id for chart in found] == ["fairness-user"]  # one partition alone compares with nothing
    (series,) = found[0].series
    unit_s = {"s": 1.0, "min": 60.0, "h": 3600.0}[found[0].y.label.partition("(")[2].rstrip(")")]
    assert list(series.labels) == [row["user"] for row in rows]
    assert set(series.labels) == {"ada", "bo", "cy"}
    assert np.asarray(series.x) * 3600 == pytest.approx([row["service_gpu_s"] for row in rows])
    assert np.asarray(series.y) * unit_s == pytest.approx([row["queueing_mean_s"] for row in rows])
    page = page_of(tmp_path)
    assert "fairness" in page.ids
    assert any("fairness-user" in text for text in page.scripts.values())
    written = write_figures(tmp_path, tmp_path / "figures", "svg")
    picture = next(path for path in written if path.name == "fairness-user.svg")
    assert all(name in "".join(ET.parse(picture).getroot().itertext()) for name in ("ada", "bo", "cy"))


def test_a_comparison_shows_the_first_run_of_each_policy(tmp_path: Path) -> None:
    make_comparison(tmp_path, ["fifo", "easy"], 2, jobs=10)
    name_users(tmp_path)
    chart = next(c for c in study_charts(read_study(tmp_path)) if c.id == "fairness-user")
    assert [series.name for series in chart.series] == ["fifo", "easy"]
    assert [series.colour for series in chart.series] == [0, 1]


def test_jobs_without_users_make_no_such_chart(tmp_path: Path) -> None:
    make_run(tmp_path, jobs=10)
    assert not [chart for chart in study_charts(read_study(tmp_path)) if chart.id.startswith("fairness-")]
    assert "fairness" not in page_of(tmp_path).ids
