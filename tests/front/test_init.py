"""`equipoise init`: what it writes is a scenario that can be run, and it never writes over a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import cli
from equipoise.sim.loading.file import read_scenario


@pytest.mark.parametrize(
    "given",
    [
        "--kind train --model llama3-8b --nodes 16",
        "--kind queue --nodes 1 --gpus 1",
        "--kind policy --nodes 3 --gpus 2 --policy srtf",
        "--kind queue --trace jobs.csv",
        "",
    ],
)
def test_a_first_scenario_is_right_and_said_how_to_go_on_with(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text("submit_time,duration,gpus\n0,60,1\n")
    Path("mine").mkdir()
    assert cli.main(["init", "mine/a: b.yaml", *given.split()]) == 0
    read = read_scenario(Path("mine/a: b.yaml")).scenario
    assert read.name == "a: b"
    nodes = given.partition("--nodes ")[2].split()
    assert read.cluster.nodes[0].count == int(nodes[0] if nodes else 8)
    if "--trace" in given:
        assert read.workload.trace is not None
        assert (Path("mine") / read.workload.trace.file).exists()
    if "--policy" in given:
        assert read.policy == ("srtf",)
    assert "  equipoise " in capsys.readouterr().out


def test_nothing_is_written_over_and_nothing_wrong_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "bad.yaml", "--accelerator", "nosuch"]) == 2
    assert "nosuch" in capsys.readouterr().err
    assert not Path("bad.yaml").exists()
    Path("mine.yaml").write_text("mine")
    assert cli.main(["init", "mine.yaml"]) == 2
    assert Path("mine.yaml").read_text() == "mine"
