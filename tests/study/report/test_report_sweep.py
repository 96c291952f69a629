"""A sweep's report: what SQL aggregates equals plain Python, and failures and missing parts are told."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise import cli
from equipoise.study.report.first import context
from equipoise.study.report.page import make_report
from equipoise.study.report.read import read_study
from equipoise.study.runs.store import Ledger, connect
from equipoise.study.statistics import t_quantile
from tests.study.report.report_data import make_run
from tests.study.report.report_reader import Page

SWEEP = """\
schema_version: 1
name: made sweep
scenario: x.yaml
policies: [fifo, easy]
parameters: {cluster.nodes.0.count: [1, 2, 10], noise.step_cov: [0.1]}
"""


def row(number: int, point: int, policy: str, seed: int, makespan_s: float, **more: Any) -> dict[str, Any]:
    known = {"id": f"{number:016x}", "number": number, "point": point, "policy": policy, "seed": seed}
    count = (1, 2, 10)[point % 3]
    varied = {"cluster.nodes.0.count": count, "noise.step_cov": 0.1}
    metrics = {"jobs": 1.0, "completed": 1.0, "makespan_s": makespan_s, "gpus": 8.0 * count, "goodput_ratio": 0.5}
    return {**known, "status": "done", "attempts": 1, "cpu_s": 0.1, "wall_s": 0.1, **varied, **metrics, **more}


def make_sweep(folder: Path, rows: list[dict[str, Any]], text: str = SWEEP) -> Path:
    folder.mkdir(exist_ok=True)
    with Ledger(folder) as ledger:
        ledger.put_all(rows)
        ledger.set_about(sweep=text, code="0123")
        ledger.export()
    return folder


def plain_interval(values: dict[int, list[float]]) -> tuple[float, float]:
    """(mean, half width) over points as strata (Cochran 1977, 5.4); half is NaN when a point has one value."""
    means = [statistics.fmean(v) for v in values.values()]
    mean = statistics.fmean(means)
    if any(len(v) < 2 for v in values.values()):
        return mean, math.nan
    parts = [statistics.variance(v) / len(v) for v in values.values()]
    variance = sum(parts) / len(parts) ** 2
    if variance == 0:
        return mean, 0.0
    degrees = sum(parts) ** 2 / sum(p * p / (len(v) - 1) for p, v in zip(parts, values.values(), strict=True))
    return mean, t_quantile(0.95, int(degrees)) * math.sqrt(variance)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(points=st.integers(1, 4), seeds=st.integers(1, 4), key=st.integers(0, 10**6))
def test_means_and_ratios_equal_plain_python(
    points: int, seeds: int, key: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw = np.random.Generator(np.random.Philox(key=key))
    rows = []
    for point in range(points):
        for seed in range(seeds):
            for policy in ("fifo", "easy"):
                rows.append(row(len(rows), point, policy, seed, float(draw.lognormal(5, 0.5))))
    study = read_study(make_sweep(tmp_path_factory.mktemp("sweep"), rows))
    values: dict[str, dict[int, list[float]]] = {p: defaultdict(list) for p in ("fifo", "easy", "log")}
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        values["fifo"][one["point"]].append(one["makespan_s"])
        values["easy"][two["point"]].append(two["makespan_s"])
        values["log"][one["point"]].append(math.log(two["makespan_s"] / one["makespan_s"]))
    for policy in ("fifo", "easy"):
        found = study.row("makespan_s", policy)
        assert found is not None
        mean, half = plain_interval(values[policy])
        assert found.value.mean == pytest.approx(mean)
        assert found.value.half_width == pytest.approx(half, nan_ok=True)
        assert found.value.n == points * seeds
    mean, half = plain_interval(values["log"])
    found = study.row("makespan_s", "easy")
    assert found is not None
    ratio = found.ratio
    assert ratio.mean == pytest.approx(math.exp(mean))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(mean - half), math.exp(mean + half)), nan_ok=True)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three points, two policies, two seeds; easy is always a tenth faster; one run failed."""
    rows: list[dict[str, Any]] = []
    for point in range(3):
        for seed in range(2):
            for policy, factor in (("fifo", 1.0), ("easy", 0.9)):
                time_s = (4000.0, 2200.0, 600.0)[point] * factor * (1 + 0.01 * seed)
                rows.append(row(len(rows), point, policy, seed, time_s))
    rows[-1] |= {"status": "failed", "error": "RunFailed: </script><b>"}
    for metric in ("makespan_s", "jobs", "completed", "gpus", "goodput_ratio"):
        rows[-1].pop(metric)
    return make_sweep(tmp_path_factory.mktemp("sweep"), rows)


def test_the_failed_run_is_in_no_number(sweep: Path) -> None:
    study = read_study(sweep)
    assert study.failed == 1
    found = study.row("makespan_s", "easy")
    assert found is not None
    assert found.value.n == 5
    assert math.isnan(found.value.half_width)  # one point has one run left


def test_a_point_in_which_nothing_is_random_takes_no_interval_from_the_others(tmp_path: Path) -> None:
    scenario = {
        "schema_version": 1,
        "name": "s",
        "cluster": {"gpus": 4},
        "workload": {
            "models": {"m": {"sample_time": "10 ms", "parameters": 1e6}},
            "jobs": [{"count": 3, "gpus": 2, "model": "m", "steps": 50, "global_batch": 16}],
        },
    }
    spec = {
        "schema_version": 1,
        "name": "n",
        "scenario": "s.yaml",
        "policies": ["fifo", "sjf"],
        "seeds": 5,
        "parameters": {"noise.step_cov": [0, 0.2]},
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(scenario))
    (tmp_path / "n.yaml").write_text(yaml.safe_dump(spec))
    out = tmp_path / "out"
    assert cli.main(["sweep", str(tmp_path / "n.yaml"), "--out", str(out), "-q"]) == 0
    with connect(out) as db:
        asked = "SELECT point, list(makespan_s) FROM runs WHERE policy = 'fifo' GROUP BY 1"
        values = dict(db.execute(asked).fetchall())
    assert [len(values[k]) for k in (0, 1)] == [1, 5]
    study = read_study(out)
    found = study.row("makespan_s", "fifo")
    assert found is not None
    half = t_quantile(0.95, 4) * math.sqrt(statistics.variance(values[1]) / 5 / 4)  # the mean of two, one known
    assert found.value.half_width == pytest.approx(half)
    assert ("Cluster", "4 GPUs, in one pool") in context(study)
    trend = next(t for t in study.trends if t.key == "noise.step_cov")
    assert trend.halves["fifo"][0] == 0.0
    assert trend.halves["fifo"][1] > 0.0


def test_a_sweep_shows_what_was_simulated(tmp_path: Path) -> None:
    node = {"count": 6, "gpus": 8, "accelerator": "h100_sxm", "speed": 0.5}
    folder = make_sweep(tmp_path, [row(k, k, "fifo", 1, 100.0 + k) for k in range(2)])
    with Ledger(folder) as ledger:
        ledger.set_about(scenario=json.dumps({"cluster": {"nodes": [node]}, "faults": {"crash": {"mtbf": 1}}}))
    told = dict(context(read_study(folder)))
    assert told["Cluster"] == "6 x 8 h100_sxm at 0.5 of its speed (48 GPUs)"
    assert told["Disturbances"] == "faults: crash"
    assert told["Varied (the above is the first point)"] == "cluster.nodes.0.count, noise.step_cov"


def test_kept_run_directories_give_curves_and_a_closer_look(sweep: Path, tmp_path: Path) -> None:
    many = {"jobs": 5.0, "completed": 5.0}
    rows = [row(k, 0, p, 0, 100.0 + k, **many) for k, p in enumerate(("fifo", "easy"))]
    out = make_sweep(tmp_path / "kept", rows)
    for one in rows:
        make_run(out / "runs" / one["id"], one["policy"], 0, jobs=5, timeline=one["number"] == 0)
    page = Page(make_report(out).path.read_text())
    assert [run["label"] for run in page.data["runs"]] == ["fifo, point 0, seed 0"]
    curves = next(c for c in page.data["charts"] if c["id"] == "completion")
    assert [s["name"] for s in curves["series"]] == ["fifo", "easy"]


def test_a_sweep_of_which_every_run_failed(tmp_path: Path) -> None:
    bare = {"attempts": 1, "status": "failed", "error": "no luck"}
    rows = [
        {"id": str(k), "number": k, "point": k, "policy": "fifo", "seed": 0, "noise.step_cov": 0.1, **bare}
        for k in range(3)
    ]
    page = Page(make_report(make_sweep(tmp_path / "s", rows)).path.read_text())
    assert "No run ended with a result." in page.text
    assert "3 runs failed" in page.text
