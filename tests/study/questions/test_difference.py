"""`diff` tells which inputs differ and what that did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.exit_codes import OK
from equipoise.study.questions.difference import Difference

SCENARIO = (
    "schema_version: 1\nname: s\ncluster: {nodes: [{name: n, count: 1, gpus: 2}]}\n"
    "workload: {jobs: [{name: j, gpus: 2, duration: 60, count: 2}]}\n"
)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """The same queue on two GPUs and on four."""
    (tmp_path / "s.yaml").write_text(SCENARIO)
    made = []
    for name, more in (("a", []), ("b", ["--set", "cluster.nodes.0.gpus=4"])):
        out = tmp_path / name
        assert main(["run", str(tmp_path / "s.yaml"), "--policy", "fifo", "--out", str(out), "-q", *more]) == OK
        made.append(out)
    return made[0], made[1]


def test_differences_are_shown_with_their_units_and_whole_sections_in_one_line():
    first = {"cluster.nodes.0.nic": "12500000000.0", "restart.detection": "120.0", "faults.crash": "none", "name": "a"}
    second = {
        "cluster.nodes.0.nic": "50000000000.0",
        "restart.detection": "30.0",
        "faults.crash.mtbf": "36000.0",
        "faults.crash.repair": "60.0",
        "name": "a",
        "workload.models.m.parameters": "7e9",
    }
    names = dict.fromkeys((*first, *second))
    inputs = [(k, first.get(k, "absent"), second.get(k, "absent")) for k in names]
    found = Difference(tuple(row for row in inputs if row[1] != row[2]), (), (frozenset(first), frozenset(second)))
    assert found.readable() == [
        ("cluster.nodes.0.nic", "100 Gbit/s", "400 Gbit/s"),
        ("restart.detection", "2 min", "30 s"),
        ("faults.crash", "absent", "given"),
        ("workload.models.m.parameters", "absent", "7000000000"),
    ]


def test_inputs_and_metrics_that_differ(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["diff", *map(str, runs), "--format", "json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"] == [["cluster.nodes.0.gpus", "2", "4"]]
    metrics = {name: (a, b) for name, a, b in found["metrics"]}
    assert metrics["makespan_s"] == (120.0, 60.0)
    assert main(["diff", *map(str, runs)]) == OK
    out = capsys.readouterr().out
    assert "makespan" in out
    assert "x 0.500" in out
    assert "jobs completed" not in out
