"""Folders and files that somebody else has made: refused in one line with their place, and nothing is run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise import cli
from equipoise.base.json_values import from_json, number
from equipoise.base.regular import read_file
from equipoise.base.sources import environment
from equipoise.sim.loading.file import load
from equipoise.sim.record import read_parquet, write_parquet
from tests.study.twin.twin_runs import Truth, write_run

DEEP = "[" * 100_000
CASE = {
    "schema_version": 1,
    "name": "small",
    "cluster": {"nodes": [{"name": "n", "count": 2, "gpus": 1}]},
    "workload": {"jobs": [{"name": "rigid", "gpus": 1, "duration": 60.0, "count": 3}]},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a comparison and a live run."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "case.yaml").write_text(yaml.safe_dump(CASE))
    case = str(folder / "case.yaml")
    assert cli.main(["run", case, "--out", str(folder / "kept"), "--journal", "-q"]) == 0
    both = ["--policy", "fifo", "--policy", "sjf", "--seeds", "1"]
    assert cli.main(["compare", case, *both, "--out", str(folder / "compared"), "-q"]) == 0
    write_run(Truth(rounds=24, slow_at_s=0.5), folder / "live")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to be damaged; commands are given there."""
    subprocess.run(["cp", "-r", *map(str, made.iterdir()), str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    code = cli.main(line.split())
    said = capsys.readouterr().err
    assert code == 2, said
    assert "--debug" not in said
    assert said.count("\n") == 1
    return said


def changed(key: str, value: Any) -> Callable[[str], str]:
    """Of the first line: a key, with dots, has another value."""

    def change(text: str) -> str:
        first, end, rest = text.partition("\n") if text.startswith('{"') else (text, "", "")
        content = json.loads(first)
        holder = content
        *path, last = (int(part) if part.isdigit() else part for part in key.split("."))
        for part in path:
            holder = holder[part]
        holder[last] = value
        return json.dumps(content) + end + rest

    return change


WHOLE: Callable[[str], Callable[[str], str]] = lambda text: lambda _: text  # noqa: E731
DAMAGED = [
    ("kept/manifest.json", WHOLE("[]"), "explain kept rigid-2"),
    ("kept/manifest.json", changed("policy", 3), "explain kept rigid-2"),
    ("kept/manifest.json", changed("seed", "x"), "report kept"),
    ("kept/summary.json", WHOLE(DEEP), "report kept"),
    ("kept/summary.json", changed("notes", 3), "report kept"),
    ("kept/journal.jsonl", lambda text: text + DEEP + "\n", "explain kept"),
    ("compared/comparison.json", changed("rows", [3]), "report compared"),
    ("compared/comparison.json", changed("bound", "x"), "report compared"),
    ("live/manifest.json", WHOLE(DEEP), "twin live"),
    ("live/manifest.json", changed("members", True), "twin live"),
    ("live/manifest.json", changed("members", []), "ranks live"),
    ("live/manifest.json", changed("members.1", {"member": 1}), "ranks live"),
    ("live/manifest.json", changed("members.1.host", "\ud800"), "ranks live"),
    ("live/manifest.json", changed("global_batch", None), "twin live"),
    ("live/manifest.json", changed("samples", 1e308), "twin live"),
    ("live/rounds-0.jsonl", WHOLE(DEEP + "\n"), "ranks live"),
    ("live/rounds-0.jsonl", changed("round", "x"), "ranks live"),
    ("live/rounds-0.jsonl", changed("compute_s", float("nan")), "twin live"),
    ("live/rounds-0.jsonl", lambda text: '{"event": "decision", "unix_s": 1}\n' + text, "ranks live"),
    ("live/rounds-0.jsonl", lambda text: '{"event": "device", "unix_s": 1, "queued_s": -1}\n' + text, "ranks live"),
]


@pytest.mark.parametrize(("name", "damage", "line"), DAMAGED)
def test_a_damaged_result_is_told_with_its_file(
    name: str, damage: Callable[[str], str], line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / name
    path.write_text(damage(path.read_text()))
    assert name in refused(line, capsys)


def test_a_run_without_a_column_is_told_with_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "kept" / "jobs.parquet"
    write_parquet(path, {k: v for k, v in read_parquet(path).items() if k != "start_s"})
    assert "kept/jobs.parquet: is damaged: it has no column 'start_s'" in refused("explain kept rigid-2", capsys)


def test_a_number_too_large_to_reckon_with_is_unknown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "kept" / "summary.json"
    path.write_text(changed("makespan_s", 10**400)(path.read_text()))
    assert cli.main(["report", "kept", "-q"]) == cli.main(["diff", "kept", "kept"]) == 0
    assert (number(10**400), number(None), number("1")) == pytest.approx((float("nan"),) * 3, nan_ok=True)
    assert (number(2), number(0.5)) == (2.0, 0.5)


@pytest.mark.parametrize(
    "line",
    [
        "check trace.csv --trace-format x",
        "run case.yaml --set name=a\udcff",
        "calibrate --device cpu --only copy --seconds 0.5 --samples circle --out new.yaml",
    ],
)
def test_what_is_no_format_no_text_or_no_file_is_refused(
    line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "trace.csv").write_text("job_id,arrival_s,gpus,duration_s\n1,0,1,9\n")
    (folder / "circle").symlink_to("circle")
    if line.startswith("calibrate"):
        assert cli.main(line.split()) == 1  # the system's own error, with the name
        said = capsys.readouterr().err
        assert said.endswith("equipoise: circle: Too many levels of symbolic links\n")
    else:
        assert line.split()[-1].encode("ascii", "backslashreplace").decode() in refused(line, capsys)


def test_an_argument_in_a_locale_without_utf8_is_the_text_that_was_written(folder: Path) -> None:
    escaped = "name=größe-日本".encode().decode("ascii", "surrogateescape")
    assert load("case.yaml", [escaped]).name == "größe-日本"


def test_a_working_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    command = f"mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m equipoise.cli run x.yaml --out y"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment(), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) in ((1, ""), (2, ""))
    assert "stdout" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_says_that_it_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="larger than 100 bytes"):
        read_file(path, 100)


@pytest.mark.parametrize("text", [DEEP, '["\\ud800"]', '["\\uDFFF"]', b'"\\udc00"', "x"])
def test_json_that_is_no_value_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"deep|surrogate|JSON|Expecting"):
        from_json(text)
    assert from_json('["\\ud83d\\ude00"]') == ["\U0001f600"]


# -- modules in the working folder -------------------------------------------------------------------------------


def test_no_module_is_taken_out_of_the_working_folder(folder: Path) -> None:
    """Python looks for modules there first when it is started with -c or -m, as processes that help are."""
    for name in ("multiprocessing", "numpy", "yaml", "sitecustomize", "equipoise"):
        (folder / f"{name}.py").write_text("import os\nos.mkdir('run')\n")
    inside = environment()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "equipoise.cli",
            "compare",
            "case.yaml",
            "--policy",
            "fifo",
            "--policy",
            "sjf",
            "--seeds",
            "1",
            "--jobs",
            "2",
            "--set",
            "noise.step_cov=0",
        ],
        cwd=folder,
        env=inside | {"CI": "1"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    del inside["PYTHONSAFEPATH"]
    code = (
        "import os, sys; sys.path.remove(''); from equipoise.base.json_values import plain;"
        "from equipoise.study.runs.processes import Processes;"
        "from equipoise.study.runs.perform import Shared;"
        "w = Processes(Shared(), 1).workers[0]; assert w.pipe.recv() == 'ready'; w.stop()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=inside, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "run").exists()
