"""The report of a folder with a comparison of each of several traces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from equipoise import cli, studies
from equipoise.study.report.read import read_study
from equipoise.study.runs.across import across
from equipoise.study.runs.comparison import Comparison

LENGTHS = {"long": 900, "mid": 500, "short": 200}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name, length_s in LENGTHS.items():
        jobs = [(k, 50 * k, 1 + 7 * (k % 2), length_s * (1 + k % 3)) for k in range(6)]
        rows = "".join("{},{},{},{}\n".format(*job) for job in jobs)
        (folder / f"{name}.csv").write_text("job_id,arrival_s,gpus,duration_s\n" + rows)
    (folder / "case.yaml").write_text(
        json.dumps({"schema_version": 1, "name": "pool", "cluster": {"gpus": 8}, "workload": {}})
    )
    traces = [part for name in LENGTHS for part in ("--trace", str(folder / f"{name}.csv"))]
    command = ["compare", str(folder / "case.yaml"), "--policy", "fifo", "--policy", "sjf", *traces]
    assert cli.main([*command, "--seeds", "1", "--out", str(folder / "out")]) == 0
    return folder


def test_what_was_written_is_read_again(made: Path) -> None:
    found = studies.compare(made / "case.yaml", ["fifo", "sjf"], 1, trace=made / "mid.csv")
    read = Comparison.read(json.loads(found.as_json()))
    assert read.as_table() == found.as_table()
    assert read.as_json() == found.as_json()


def test_its_numbers_are_those_of_the_table_over_all_traces(made: Path) -> None:
    study = read_study(made / "out")
    each = {n: studies.compare(made / "case.yaml", ["fifo", "sjf"], 1, trace=made / f"{n}.csv") for n in LENGTHS}
    cells = {(cell.metric, cell.policy): cell for cell in across(each).cells}
    assert {row.metric for row in study.rows} == {metric for metric, _ in cells}
    for row in study.rows:
        cell = cells[row.metric, row.policy]
        assert row.value.mean == pytest.approx(cell.value.mean, nan_ok=True)
        assert row.ratio.low == pytest.approx(cell.ratio.low, nan_ok=True)
    assert (study.seeds, study.unit, len(study.folders)) == (3, "trace", 6)


def test_no_policy_that_ran_on_all_is_one_line(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "out", tmp_path / "out")
    command = ["compare", str(made / "case.yaml"), "--policy", "easy", "--trace", str(made / "mid.csv")]
    assert cli.main([*command, "--seeds", "1", "--out", str(tmp_path / "out" / "other")]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path / "out")]) == 2
    assert "no policy has run everywhere: long, mid, other, short" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scenario": "other"}, "comparisons of several scenarios; make a report of one of them: "),
        ({"policies": ["easy", "las"]}, "mid/comparison.json: is damaged: ValueError: its policies are not those of"),
        ({"runs": []}, "mid/comparison.json: is damaged"),
        ({"runs": 3}, "mid/comparison.json: is damaged"),
    ],
)
def test_what_cannot_be_one_is_one_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], said: str
) -> None:
    shutil.copytree(made / "out", tmp_path / "out")
    path = tmp_path / "out" / "mid" / "comparison.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert cli.main(["report", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
