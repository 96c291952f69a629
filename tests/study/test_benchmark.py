"""The public benchmark: its score, its rank, and what an interrupted start keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from equipoise.cli import main
from equipoise.study import benchmark

JOBS = [{"name": "a", "gpus": 8, "duration": "1 h"}, {"name": "b", "arrival": 1.0, "gpus": 8, "duration": "1 min"}]


def case(noise: float) -> dict:
    nodes = [{"count": 1, "gpus": 8}]
    spread = {"decide": {"estimate_error": noise}} if noise else {}
    jobs = [*JOBS, {"name": "c", "arrival": 2.0, "gpus": 8, "duration": "10 min"}]
    return {"schema_version": 1, "name": "c", "cluster": {"nodes": nodes}, "workload": {"jobs": jobs}} | spread


def test_a_policy_is_ranked_by_its_mean_ratio_over_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs end at 3600, 3660 and 4260 s under fifo, and at 3600, 3660, 4260 or the other way round under sjf."""
    monkeypatch.setattr(benchmark, "folder", lambda: tmp_path / "bench")
    (tmp_path / "bench").mkdir()
    for name, noise in (("exact", 0.0), ("wrong", 0.5)):
        (tmp_path / "bench" / f"{name}.yaml").write_text(yaml.safe_dump(case(noise)))
    out = ["--out", str(tmp_path / "runs"), "--jobs", "1", "-q"]
    assert main(["bench", "fifo", "--format", "csv", *out]) == 0
    (tmp_path / "bench" / "results.csv").write_text(capsys.readouterr().out)
    assert main(["bench", "srtf", *out]) == 0
    answer, _, *lines = capsys.readouterr().out.splitlines()
    assert answer.startswith("srtf ranks 1 of 2: ")
    assert [line.split()[:3] for line in lines[1:3]][1] == ["2", "fifo", "1.000"]
    assert float(lines[1].split()[2]) < 0.7  # the hour is stopped for the minute
    assert lines[3].split()[0] == "bound"
    assert main(["bench", "srtf", "--draw", "other", *out]) == 0
    assert "1.000" in capsys.readouterr().out


def test_the_cases_are_ten_and_a_draw_has_other_seeds() -> None:
    public, drawn = benchmark.cases(), benchmark.cases("held-out")
    assert len(public) == 10
    assert {one.seed for one in public.values()} == {1}
    assert {one.seed for one in drawn.values()}.isdisjoint(range(1, 6))


def test_no_published_result_is_below_its_bound() -> None:
    given, times = benchmark.cases(), benchmark.published()
    least = benchmark.bounds(given, times)
    for line in benchmark.table(times, list(given)):
        assert all(line.ratios[name] >= least[name] * (1 - 1e-9) for name in given), line.policy
