"""Charts hold the numbers of the records, in the unit of their axis; figures for papers come from the same."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from equipoise import cli
from equipoise.sim.record import write_parquet
from equipoise.study.report import figures as charts_figures
from equipoise.study.report.chart import Chart
from equipoise.study.report.charts.over_time import charts_over_time
from equipoise.study.report.charts.study import study_charts
from equipoise.study.report.read import read_study
from equipoise.study.report.study import RunFolder
from equipoise.study.runs.comparison import Comparison
from tests.study.report.report_data import USES, make_run
from tests.study.report.test_report import make_comparison

FIGURES = ("uses", "completion", "usage", "jobs", "power")
ROOT = Path(__file__).resolve().parents[3]
TORNADO = {
    "metric": "makespan_s",
    "base": 3600.0,
    "rows": [
        {"key": "small", "low_value": "1", "high_value": "2", "low": 3500.0, "high": 3700.0},
        {"key": "large", "low_value": "a", "high_value": "b", "low": 7200.0, "high": 1800.0},
        {"key": "unknown", "low_value": "a", "high_value": "b", "low": None, "high": 1800.0},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("charts")
    make_comparison(out, ["fifo", "easy"], 2, jobs=10)
    (out / "sensitivity.json").write_text(json.dumps(TORNADO))
    return out


def chart(folder: Path, key: str) -> Chart:
    return next(c for c in study_charts(read_study(folder)) if c.id == key)


def test_a_policy_in_other_words_than_its_own_has_its_curve_and_its_rows(tmp_path: Path) -> None:
    asked = ["las(thresholds_gpu_s=[3600])", "fifo"]  # runs say [3600.0]
    jobs = [{"gpus": n, "duration": 10.0 * n} for n in (1, 2)]
    case = {"schema_version": 1, "name": "s", "cluster": {"gpus": 2}, "workload": {"jobs": jobs}}
    (tmp_path / "s.yaml").write_text(json.dumps(case))
    words = [word for policy in asked for word in ("--policy", policy)]
    assert cli.main(["compare", str(tmp_path / "s.yaml"), *words, "--out", str(tmp_path / "out")]) == 0
    study = read_study(tmp_path / "out")
    assert [series.name for series in chart(tmp_path / "out", "completion").series] == asked
    assert [folder.policy for folder in study.detail] == asked


def first_run(folder: Path) -> RunFolder:
    return read_study(folder).detail[0]


def test_uses_sum_to_all_gpu_time(folder: Path) -> None:
    uses = chart(folder, "uses")
    assert uses.series[0].colour == "busy"
    total = np.sum([s.y for s in uses.series], axis=0)
    assert total == pytest.approx([100.0, 100.0], abs=0.4)  # uses below 0.05 % are left out
    assert all(len(row) == len(uses.header) for row in uses.rows)


def test_completion_curves_are_the_exact_distribution(folder: Path) -> None:
    found = chart(folder, "completion")
    unit = 60.0 if "(min)" in found.x.label else 3600.0
    times: list[float] = []
    for seed in range(2):
        jobs = make_run(folder / "again", "fifo", seed, jobs=10, timeline=False).jobs
        times += (jobs["completion_s"] - jobs["arrival_s"]).tolist()
    fifo = found.series[0]
    assert np.asarray(fifo.x) * unit == pytest.approx(sorted(times))
    assert list(fifo.y) == pytest.approx([100 * (k + 1) / 20 for k in range(20)])


def test_a_job_that_never_ended_keeps_the_curve_below_all(tmp_path: Path) -> None:
    run = make_run(tmp_path, jobs=4, timeline=False)
    jobs = dict(run.jobs)
    jobs["completion_s"] = jobs["completion_s"].copy()
    jobs["completion_s"][2] = math.nan
    write_parquet(tmp_path / "jobs.parquet", jobs)
    found = chart(tmp_path, "completion")
    assert found.series[0].y[-1] == pytest.approx(75.0)
    assert found.rows[0][-2:] == ("never", "never")


def test_the_tornado_is_sorted_by_swing_and_in_human_units(folder: Path) -> None:
    found = chart(folder, "tornado")
    assert [text for _, text in found.y.ticks] == ["large", "small", "unknown"]
    assert found.x.label == "makespan (min)"
    low, high, base = found.series
    assert list(low.y[:2]) == pytest.approx([120.0, 3500 / 60])
    assert math.isnan(low.y[2])
    assert list(high.y) == pytest.approx([30.0, 3700 / 60, 30.0])
    assert base.y == [60.0]


def test_usage_over_time_is_in_percent_of_all_gpus(folder: Path) -> None:
    found = charts_over_time(first_run(folder), "")[0]
    assert found.kind == "area"
    assert np.sum([s.y for s in found.series], axis=0) == pytest.approx(np.full(64, 100.0))
    assert all(len(s.x) == len(s.y) + 1 for s in found.series)
    assert {s.colour for s in found.series} >= set(USES)


def test_every_chart_has_words_and_numbers_for_those_who_cannot_see_it(folder: Path) -> None:
    for found in study_charts(read_study(folder)):
        assert found.text
        assert found.rows
        assert all(len(row) == len(found.header) for row in found.rows), found.id


# --- figures --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one")
    make_run(out, jobs=5, buckets=8)
    return out


@pytest.mark.long
def test_figures_have_the_same_bytes_in_another_process(one_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    there = tmp_path / "b"
    call = f"write_figures({str(one_run)!r}, {str(there)!r})"
    code = f"from equipoise.study.report.figures import write_figures; {call}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "3"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)
    here = charts_figures.write_figures(one_run, tmp_path / "a")
    assert [path.name for path in here] == [f"{key}.svg" for key in FIGURES]
    for path in here:
        assert path.read_bytes() == (there / path.name).read_bytes(), path.name


def test_a_figure_shows_its_texts(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    paths = {path.stem: path for path in charts_figures.write_figures(folder, tmp_path)}
    texts = {
        "".join(node.itertext()).strip() for node in ET.parse(paths["tornado"]).iter() if node.tag.endswith("}text")
    }
    assert {"large", "small", "makespan (min)"} <= texts
    assert not list(tmp_path.glob("*.partial"))


def test_figures_by_command(
    one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    monkeypatch.setattr(charts_figures, "figure_charts", lambda study: study_charts(study)[:1])
    for name in "ab":
        assert cli.main(["report", str(one_run), "--figures", str(tmp_path / name), "--format", "pdf"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / name / "uses.pdf") for name in "ab"]
    content = (tmp_path / "a" / "uses.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert content == (tmp_path / "b" / "uses.pdf").read_bytes()  # without dates
    assert not (one_run / "report.html").exists()


# --- notebooks ------------------------------------------------------------------------------------


def test_a_comparison_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    made: Comparison = make_comparison(tmp_path, ["a<b>", "easy"], 2, jobs=4, name="<i>x</i>")
    root = ET.fromstring(made._repr_html_())
    text = "".join(root.itertext())
    assert "<i>x</i>: 2 seeds" in text
    assert "a<b>" in text
    assert "makespan" in text
    assert root.find(".//i") is None


def test_a_run_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    run = make_run(tmp_path, 'p"<', jobs=4, name="<script>", timeline=False)
    root = ET.fromstring(run._repr_html_())
    cells = {row[0].text: row[1].text for row in root.iter("tr")}
    assert cells["jobs"] == "4"
    assert float(str(cells["makespan_s"])) == pytest.approx(run.summary()["makespan_s"], rel=1e-5)
    assert "<script>" in "".join(root.itertext())
    assert "cost_usd" not in cells
