"""Damaged files, senseless numbers, full disks and Ctrl-C: one clear line, and nothing that goes on for ever."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise.cli import main
from equipoise.sim.record import Run
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.study.folders import only_run
from equipoise.study.questions.size import SIZES_MOST, read_vary
from equipoise.study.runs import processes
from equipoise.study.runs.compare import compare
from equipoise.study.runs.engine import EngineError
from equipoise.study.runs.store import connect
from equipoise.study.runs.sweep import SweepOptions, sweep
from equipoise.study.runs.sweep_spec import RUNS_MOST, read_sweep
from tests.study.runs.sweeps.sweep_helpers import SCENARIO, quick, run_folder, write_sweep

SMALL = SCENARIO | {"workload": {"jobs": [{"name": "job", "gpus": 2, "duration": 100.0}]}}


@pytest.mark.parametrize("wrapped", [False, True])
def test_ctrl_c_that_duckdb_hears_within_a_run_is_no_failed_run(small, tmp_path, monkeypatch, capsys, wrapped) -> None:
    def interrupted(*_: Any, **__: Any) -> Run:
        try:
            raise RuntimeError("Query interrupted")
        except RuntimeError as error:
            if wrapped:
                raise ValueError("the run failed") from error
            raise

    monkeypatch.setattr("equipoise.study.runs.perform.make_run", interrupted)
    out = tmp_path / "out"
    assert main(["compare", str(small), "--policy", "fifo", "--out", str(out), "-q"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "equipoise: interrupted"
    with connect(out) as ledger:
        assert ledger.execute("SELECT count(*) FILTER (status = 'failed') FROM runs").fetchall() == [(0,)]


def test_two_runs_never_write_into_one_folder(small, tmp_path, capsys) -> None:
    asked, out = ["run", str(small), "--out", str(tmp_path / "out"), "-q"], tmp_path / "out"
    assert main(asked) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    with only_run(out):
        assert main(asked) == 1
    told = f"equipoise: {out}: another run is writing here; wait for it, or choose another folder\n"
    assert capsys.readouterr().err == told
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert main(asked) == 0


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], *said: str, code: int = 2) -> None:
    """The command ends with one line on stderr (after usage) that says all of `said`, and prints nothing."""
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    last = shown.err.splitlines()[-1]
    for text in said:
        assert text in last
    assert "Traceback" not in shown.err
    assert "--debug shows the traceback" not in last  # that is for what nobody has foreseen


# -- questions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", ["", ";", "  ", "-- nothing"])
@pytest.mark.parametrize("to", [None, "x.csv"])
def test_an_empty_question(sql: str, to: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(write_sweep(tmp_path, seeds=1), tmp_path / "out", runner=quick)
    more = [] if to is None else ["--to", str(tmp_path / to)]
    refused(["query", "--out", str(tmp_path / "out"), *more, "--", sql], capsys, "the statement is empty")
    assert not list(tmp_path.glob("x.*"))


# -- senseless numbers -------------------------------------------------------------------------------------------


def test_sizes_without_end_are_refused_at_once(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["size", str(small), "--target", "makespan<=1h", "-q"]
    refused([*asked, "--vary", "cluster.gpus=1:400000000000"], capsys, "400,000,000,000 sizes; at most 10,000")
    many = ["--vary", "cluster.gpus=1:200", "--vary", "seed=1:200"]
    refused([*asked, *many], capsys, "40,000 sizes; at most 10,000")
    assert len(read_vary(f"a=1:{SIZES_MOST}")[1]) == SIZES_MOST


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": RUNS_MOST},
        {"sampling": {"kind": "random", "points": 10**12}},
        {"parameters": {"noise.step_cov": {"low": 0, "high": 1, "steps": 10**9}}},
    ],
)
def test_more_runs_than_can_be_planned(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"runs; at most 2,000,000 are possible"):
        read_sweep(write_sweep(tmp_path, **changes))


def test_more_seeds_than_can_be_planned_are_not_begun_with(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, seeds=3)
    with pytest.raises(InputError, match=r"4,000,000,000 runs; at most"):
        sweep(file, tmp_path / "out", SweepOptions(until="ci:1%", max_seeds=10**9), runner=quick)


# -- damaged files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}"])
def test_a_damaged_run_is_made_again(content: str, tmp_path: Path) -> None:
    scenario = Scenario.model_validate(SMALL)
    first = compare(scenario, ["fifo"], 1, out=tmp_path)
    summary = run_folder(tmp_path, "fifo", 0) / "summary.json"
    whole = summary.read_text()
    summary.write_text(content)
    again = compare(scenario, ["fifo"], 1, out=tmp_path)
    assert not again.results[0].reused
    assert summary.read_text() == whole
    assert again.as_json() == first.as_json()
    assert compare(scenario, ["fifo"], 1, out=tmp_path).results[0].reused


def test_damaged_results_are_one_line(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, many = (str(tmp_path / name) for name in ("one", "two", "many"))
    assert main(["run", str(small), "--out", one, "-q"]) == 0
    assert main(["compare", str(small), "--seeds", "1", "--out", two, "-q"]) == 0
    sweep(write_sweep(tmp_path, seeds=1), Path(many), runner=quick)
    capsys.readouterr()
    (Path(one) / "summary.json").write_text("[]")
    (Path(two) / "comparison.json").write_text("{")
    for folder in (two, many):  # damaged without a new time: else the copy is made anew
        parquet = Path(folder) / "runs.parquet"
        written_ns = parquet.stat().st_mtime_ns
        parquet.write_bytes(b"no parquet")
        os.utime(parquet, ns=(written_ns, written_ns))
    for folder in (one, two, many):
        with pytest.raises(InputError) as caught:
            connect(folder)
        assert len(caught.value.lines) == 1
        assert caught.value.lines[0].startswith(f"{folder}: cannot be read: ")
    for folder, said in ((one, "a section is needed, not list"), (two, "is damaged"), (many, "cannot be read")):
        refused(["report", folder], capsys, said)
    sweep(tmp_path / "sweep.yaml", Path(many), runner=quick)  # makes the copy anew
    with connect(many) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (4,)


# -- full disks --------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Run, folder: Path, **_: object) -> None:
        raise OSError(28, os.strerror(28), str(folder / "config.yaml"))

    monkeypatch.setattr(Run, "write", full)
    out = tmp_path / "out"
    where = f"equipoise: {out / 'config.yaml'}: No space left on device"
    refused(["run", str(small), "--out", str(out), "-q"], capsys, where, code=1)


def test_a_report_that_cannot_be_written_leaves_nothing(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert main(["run", str(small), "--out", str(out), "-q"]) == 0
    capsys.readouterr()
    before = sorted(path.name for path in out.iterdir())

    def full(self: Path, content: bytes) -> int:
        with open(self, "wb") as file:
            file.write(content[:10])
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_bytes", full)
    refused(["report", str(out)], capsys, "No space left on device")
    assert sorted(path.name for path in out.iterdir()) == before


def test_too_few_open_files_for_processes_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that forks them would end with a traceback, and the command as if Ctrl-C had come."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (14, 14))
    told = r"^2 processes need \d+ open files, 14 are allowed \(ulimit -n\): raise the limit, or use one process$"
    with pytest.raises(EngineError, match=told):
        compare(Scenario.model_validate(SMALL), ["fifo", "sjf"], 2, jobs_parallel=2)


def test_more_runs_than_memory_holds_are_refused_before_the_first() -> None:
    case = Scenario.model_validate(
        SMALL | {"noise": {"step_cov": 0.1}, "faults": {"crash": {"mtbf": 1e9, "repair": 1.0}}}
    )
    with pytest.raises(InputError, match=r"^100,000 runs; a comparison has at most 50,000; a sweep can have more"):
        compare(case, ["fifo", "sjf"], 50_000)


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


def long(scenario: Scenario, **given: Any) -> Run:
    """A run that takes 300 s, and says in the folder `why` when it begins and when it ends."""
    (Path(scenario.why) / f"began-{os.getpid()}").touch()
    time.sleep(300.0)
    (Path(scenario.why) / f"ended-{os.getpid()}").touch()
    return run(scenario, **given)


def test_ctrl_c_does_not_wait_for_the_runs_under_way(tmp_path: Path) -> None:
    case = Scenario.model_validate(SMALL | {"why": str(tmp_path)})

    def interrupt() -> None:
        while len(list(tmp_path.glob("began-*"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    others = set(active_children())
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        compare(case, ["fifo"], 6, runner=long, jobs_parallel=2)
    assert not set(active_children()) - others
    assert len(list(tmp_path.glob("began-*"))) == 2
    assert not list(tmp_path.glob("ended-*"))


def test_a_process_whose_parent_has_closed_the_pipe_ends_in_silence() -> None:
    """It wrote a traceback when Ctrl-C came while it made a run."""
    pipe, theirs = processes._CONTEXT.Pipe()
    pipe.close()
    process = processes._CONTEXT.Process(target=processes._serve, args=(theirs, None), daemon=True)
    process.start()
    theirs.close()
    process.join(60)
    assert process.exitcode == 0


def test_a_trace_that_has_changed_is_read_again(tmp_path, monkeypatch, capsys) -> None:
    """Within one process, as in a notebook: by its content, and by a name that means another file now."""
    nodes = [{"count": 2, "gpus": 1}]
    case = SMALL | {"cluster": {"nodes": nodes}, "workload": {"trace": {"file": "jobs.csv"}}}
    made = []
    asked = ["size", "case.yaml", "--vary", "cluster.nodes.0.count=1:2", "--target", "makespan<=24h", "--seeds", "1"]
    for folder, jobs in (("a", 2), ("b", 3), ("b", 4)):
        monkeypatch.chdir(tmp_path)
        Path(folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        Path("case.yaml").write_text(yaml.safe_dump(case))
        rows = "".join(f"{k},0,1,60\n" for k in range(jobs))
        Path("jobs.csv").write_text(f"job_id,arrival_s,gpus,duration_s\n{rows}")
        assert main([*asked, "--format", "json", "-q"]) == 0
        made.append(json.loads(capsys.readouterr().out)["means"]["jobs"])
    assert made == [2, 3, 4]
