"""One folder, one study: nothing of somebody else's is deleted, mixed in or overwritten; many may read."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import equipoise
from equipoise.cli import main
from equipoise.sim.scenario.tree import InputError
from equipoise.study.folders import check_free, kind_of
from equipoise.study.runs.store import StoreError, connect, is_current
from equipoise.study.runs.sweep import SweepOptions, sweep
from tests.study.runs.sweeps.sweep_helpers import SCENARIO, quick, write_sweep

ROOT = Path(__file__).resolve().parents[2]
SMALL = SCENARIO | {"workload": {"jobs": [{"name": "job", "gpus": 2, "duration": 100.0}]}, "noise": {}}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def count(folder: Path, table: str) -> int:
    with connect(folder) as connection:
        found = connection.execute(f"SELECT count(DISTINCT id) FROM {table}").fetchone()
    assert found is not None
    return int(found[0])


# -- beginning anew --------------------------------------------------------------------------------------------


def test_fresh_deletes_run_directories_of_sweeps_and_nothing_else(tmp_path: Path) -> None:
    mine = tmp_path / "out" / "runs" / "my-notes"
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("a month of work")
    file = write_sweep(tmp_path, seeds=1, case=SMALL, parameters=None)
    sweep(file, tmp_path / "out", SweepOptions(keep=True))
    kept = sorted(path.name for path in (tmp_path / "out" / "runs").iterdir())
    assert len(kept) == 3
    made = sweep(file, tmp_path / "out", SweepOptions(fresh=True))
    assert (made.made, made.reused) == (2, 0)
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == ["my-notes"]
    assert (mine / "notes.txt").read_text() == "a month of work"


# -- one kind of study a folder ----------------------------------------------------------------------------------


def test_a_folder_with_another_study_is_refused(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_sweep(tmp_path, seeds=1, case=SMALL, parameters=None)
    made = {
        "sweep": ["sweep", str(file), "--quiet"],
        "comparison": ["compare", str(small), "--quiet"],
        "run": ["run", str(small), "--quiet"],
    }
    for kind, command in made.items():
        assert main([*command, "--out", str(tmp_path / kind)]) == 0, kind
    capsys.readouterr()
    for kind, command in made.items():
        for other in made:
            folder = tmp_path / other
            before = {path: path.read_bytes() for path in folder.rglob("*.json")}
            code = main([*command, "--out", str(folder)])
            said = capsys.readouterr().err
            if kind == other:
                assert code == 0
                continue
            assert code == 2, (kind, other)
            assert said.count("\n") == 1
            assert f"holds a {other}" in said
            assert f"no {kind}; choose another folder" in said
            assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before


def test_runs_that_were_put_aside_are_in_no_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    noisy = SMALL | {"noise": {"step_cov": 0.1}, "workload": SMALL["workload"]}
    keep = SweepOptions(keep=True, timeline=True)
    sweep(write_sweep(tmp_path, seeds=1, covs=(0.1, 0.2), case=noisy), out, keep)
    assert [count(out, table) for table in ("runs", "jobs", "segments")] == [4, 4, 4]
    sweep(write_sweep(tmp_path, seeds=1, covs=(0.2, 0.3, 0.4), case=noisy), out, keep)
    assert len(list((out / "runs").iterdir())) == 8
    assert [count(out, table) for table in ("runs", "jobs", "segments", "usage")] == [6, 6, 6, 6]
    with connect(out) as connection:
        pairs = connection.execute("SELECT count(*) FROM jobs LEFT JOIN runs r USING (id) WHERE r.id IS NULL")
        assert pairs.fetchone() == (0,)


def test_a_run_directory_of_any_name_has_its_jobs(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "it's \" 💥"
    assert main(["run", str(small), "--out", str(out), "--timeline", "-q"]) == 0
    assert [count(out, table) for table in ("jobs", "segments")] == [1, 1]


# -- reading -----------------------------------------------------------------------------------------------------


def test_a_finished_sweep_is_read_without_writing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep(write_sweep(tmp_path, seeds=2), out, runner=quick)
    assert is_current(out)
    before = (out / "runs.parquet").stat().st_mtime_ns
    assert count(out, "runs") == 8
    assert (out / "runs.parquet").stat().st_mtime_ns == before


READER = """
import sys, time
from pathlib import Path
from equipoise.study.runs.store import Ledger
folder = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(30):
    with Ledger(folder) as ledger:
        ledger.export()
"""


@pytest.mark.long
def test_several_may_ask_while_a_sweep_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep(write_sweep(tmp_path, seeds=2), out, runner=quick)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(out)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    ended = []
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [(process.communicate()[1], process.returncode) for process in started]
    assert ended == [("", 0)] * 3
    assert count(out, "runs") == 8
    assert sorted(path.name for path in out.iterdir()) == ["runs.parquet", "sweep.db", "sweep.lock"]


def test_an_export_that_fails_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full)
        with pytest.raises(StoreError, match=r"runs\.parquet: cannot be written.*No space left"):
            sweep(write_sweep(tmp_path, seeds=2), out, runner=quick)
    assert sorted(path.name for path in out.iterdir()) == ["sweep.db", "sweep.lock"]
    again = sweep(write_sweep(tmp_path, seeds=2), out, runner=quick)
    assert (again.made, again.reused) == (0, 8)


def test_a_ledger_whose_study_was_killed_before_it_had_a_table_is_no_sweep(tmp_path: Path) -> None:
    """A comparison that was killed there refused to be made again."""
    db = sqlite3.connect(tmp_path / "sweep.db")
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    assert kind_of(tmp_path) is None
    check_free(tmp_path, "comparison")


def test_a_folder_whose_path_is_no_text_is_refused_before_the_run(tmp_path: Path) -> None:
    """DuckDB takes no such path: a finished run was lost with std::bad_cast."""
    folder = tmp_path / os.fsdecode(b"r\xff")
    case = {"schema_version": 1, "name": "x", "cluster": {"gpus": 1}, "workload": {"jobs": [{"duration": 1}]}}
    for make in (
        lambda: equipoise.run(case, out=folder),
        lambda: equipoise.compare(case, ["fifo", "easy"], out=folder),
    ):
        with pytest.raises(InputError, match="the path is not UTF-8 text; choose another name"):
            make()
    assert not folder.exists()
