"""Names that steer a terminal, open a tag or start a formula, through the commands that show them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from equipoise import cli

STEERS = "\x1b[31mred\x9b\x07\u202e"
NAME = STEERS + "<script>alert(1)</script>\"'>=cmd|' /C calc'!A0"
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CASE = {
    "schema_version": 1,
    "name": NAME,
    "cluster": {"nodes": [{"name": f"node {NAME}", "count": 2, "gpus": 2}]},
    "workload": {
        "models": {f"model {NAME}": {"sample_time": 0.01, "exchange": {"alpha": 1e-5, "rate": 1e9}}},
        "jobs": [
            {"name": NAME, "gpus": 4, "model": f"model {NAME}", "steps": 4, "global_batch": 8, "user": NAME},
            {"name": "waits", "gpus": 1, "duration": 60.0, "user": NAME},
        ],
    },
}
COMMANDS = (
    "run case.yaml",
    "explain @ waits",
    "explain @ 0",
    "explain @",
    "explain @ nobody",
    "explain @ @",
    "diff @ other",
    "limits case.yaml",
    "report @",
    "timeline @",
    "validate case.yaml",
    "validate @.yaml",
    "run case.yaml --set @=1",
    "run case.yaml --policy @",
    "query --out @ SELECT\tname\tFROM\tjobs",
)
"""Words parted by spaces; @ is the part of the name that steers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("names")
    (made / "case.yaml").write_text(json.dumps(CASE))
    for out, policy in ((STEERS, "fifo"), ("other", "sjf")):
        words = ["--policy", policy, "--out", str(made / out), "--timeline", "--journal"]
        assert cli.main(["run", str(made / "case.yaml"), *words]) == 0
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_and_no_path_steers_the_terminal(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    words = [word.replace("@", STEERS).replace("\t", " ") for word in command.split(" ")]
    assert cli.main(words) in (0, 2)
    shown = capsys.readouterr()
    assert shown.out + shown.err
    assert not STEERING.findall(shown.out + shown.err)
    assert "Traceback" not in shown.err


def test_no_name_opens_a_tag_of_the_page(folder: Path) -> None:
    assert cli.main(["report", str(folder / STEERS)]) == 0
    page = (folder / STEERS / "report.html").read_text()
    assert "<script>alert" not in page
    assert "red" in page
