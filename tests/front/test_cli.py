# ruff: noqa: E501 - tables of cases read best with one case a line
from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import equipoise
from equipoise import cli
from equipoise.base.database import database
from equipoise.policies import registry as policies
from equipoise.sim.hardware.profile import scenarios_dir
from tests.study.runs.sweeps.sweep_helpers import run_folder

ROOT = Path(__file__).resolve().parents[2]

SCENARIO = """\
schema_version: 1
name: small
cluster: {nodes: [{count: 2, gpus: 2}]}
workload:
  models: {m: {sample_time: 1 ms}}
  jobs:
    - {name: rigid, count: 3, gpus: 2, duration: 1 min}
    - {name: training, gpus: 4, model: m, steps: 5, global_batch: 8}
"""
TRACE = "job_id,arrival_s,gpus,duration_s\n7,0,2,60\n8,5,2,60\n9,5,2,60\n"


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, encoding="utf-8")
    return str(path)


def process(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    command = [sys.executable, "-m", "equipoise.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def plain(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether a process said something, without colours and control characters."""
    said = done.stdout + done.stderr
    return bool(said) and not {"\x1b", "\r"} & set(said)


# --- what --help costs ----------------------------------------------------------------------------

HEAVY = "numba numpy pydantic rich simpy scipy duckdb yaml equipoise.policies.contract equipoise.sim.scenario.units equipoise.sim.scenario.model equipoise.study.runs.query calibrate live torch"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["compare", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from equipoise.cli import main; assert main(sys.argv[1:]) == 0; "
        f"print(sorted(set(sys.modules) & set({HEAVY.split()!r})), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, equipoise; print(sorted(set(sys.modules) & set({HEAVY.split()!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_a_scenario_without_a_trace_needs_no_reader_of_site_files() -> None:
    code = "import sys, equipoise.api; print([m for m in sys.modules if m.startswith('equipoise.formats.slurm')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_every_command_loads_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, (_, _, text) in cli.COMMANDS.items():
        assert cli.main([name, "--help"]) == 0
        assert "Usage: equipoise" in capsys.readouterr().out
        assert text


# --- run ------------------------------------------------------------------------------------------


def test_run_prints_a_table_and_notes_apart(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", scenario]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("small: fifo, seed 0")
    assert "makespan" in shown.out
    assert "note: " in shown.err
    assert cli.main(["run", scenario, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_table_of_a_run_folds_what_is_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "schema_version: 1\nname: one\ncluster: {nodes: [{gpus: 2}]}\nworkload: {jobs: [{gpus: 1, duration: 1 h}]}\n"
    )
    assert cli.main(["run", str(path), "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("0: waiting mean, input stall, ")
    assert not any(line.startswith(("completion p", "input stall", "queueing")) for line in lines)
    assert any(line.split() == ["idle", "50.0", "%"] for line in lines)


def test_run_as_json_has_metrics_totals_and_cpu_time(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", scenario, "--format", "json", "--seed", "3", "--policy", "equal+sjf"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["scenario"], row["policy"], row["seed"]) == ("small", "equal+sjf", 3)
    assert row["cpu_s"] > 0
    assert row["completed"] == 4
    assert row["totals"]["gpus"] == 4
    assert row["makespan_s"] == pytest.approx(120.01)


def test_run_as_csv_is_one_row(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", scenario, "--format", "csv", "--set", "workload.jobs.0.duration=2 min"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["makespan_s"]) == pytest.approx(240.01)


def test_run_writes_its_records(scenario: str, trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli.main(["run", scenario, "--trace", trace, "--set", "workload.jobs=[]", "--out", str(out), "-q"]) == 0
    assert {p.name for p in out.iterdir()} == {"config.yaml", "manifest.json", "jobs.parquet", "summary.json"}
    query = f"SELECT job_id, arrival_s, start_s, completion_s, gpus FROM '{out}/jobs.parquet' ORDER BY job_id"
    jobs = database().execute(query).fetchall()
    assert jobs == [(7, 0.0, 0.0, 60.0, 2), (8, 5.0, 5.0, 65.0, 2), (9, 5.0, 60.0, 120.0, 2)]
    assert cli.main(["run", str(out / "config.yaml"), "--trace", trace, "-q"]) == 0


def test_two_processes_write_identical_records(scenario: str, tmp_path: Path) -> None:
    """Here, and in one whose hashes are others'."""
    assert cli.main(["run", scenario, "--out", str(tmp_path / "1")]) == 0
    other = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    done = process("run", scenario, "--out", str(tmp_path / "2"), PYTHONHASHSEED=other, NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert plain(done)
    for name in ("config.yaml", "jobs.parquet", "summary.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


# --- compare --------------------------------------------------------------------------------------


def test_compare_prints_every_policy(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", scenario, "--policy", "fifo", "--policy", "sjf(placement=packed)"]) == 0
    shown = capsys.readouterr()
    assert "fifo" in shown.out
    assert "sjf(placement=packed)" in shown.out
    assert "makespan" in shown.out


def test_compare_as_json_and_csv(scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["compare", scenario, "--policy", "fifo", "--policy", "sjf", "--seeds", "2", "-q"]
    options += ["--set", "noise.step_cov=0.1"]
    out = tmp_path / "out"
    assert cli.main([*options, "--format", "json", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    content = json.loads(shown.out)
    assert content["policies"] == ["fifo", "sjf"]
    assert content["seeds"] == [0, 1]
    assert (out / "comparison.json").read_text(encoding="utf-8") == shown.out
    assert (run_folder(out, "sjf", 1) / "summary.json").is_file()
    assert cli.main([*options, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["policy"] for row in rows} == {"fifo", "sjf"}
    assert {"makespan_s", "completion_p99_s", "goodput_ratio"} <= {row["metric"] for row in rows}


def test_compare_takes_the_scenarios_policy_against_none(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", scenario, "--set", "policy=[las]", "--format", "json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"] == ["none", "las"]


# --- wrong input: one clear line, code 2 ----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "FILE", "--set", "cluster.nodes.0.cuont=3"],
            "cluster.nodes.0.cuont: unknown key; did you mean 'count'?",
        ),
        (["run", "FILE", "--set", "cluster.nodes=[]"], "needs either 'nodes'"),
        (["run", "FILE", "--policy", "fiffo"], "equipoise: unknown stage 'fiffo'; did you mean 'fifo'?"),
        (["run", "FILE", "--policy", "fifo(x=1)"], "fifo: unknown parameter 'x'"),
        (["run", "absent.yaml"], "absent.yaml: cannot be read: No such file or directory"),
        (["run", "FILE", "--trace", "absent.csv"], "absent.csv: no such trace file"),
        (["run", "FILE", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["run"], "Missing argument 'SCENARIO'"),
        (["compare", "FILE", "--policy", "fifo", "--policy", "fifo"], "policy 'fifo' is named twice"),
        (["comapre", "FILE"], "unknown command 'comapre'; did you mean 'compare'?"),
        (["list", "nothing"], "'nothing' is not one of 'stages', 'hardware', 'scenarios', 'sweeps', 'prices'"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(
    arguments: list[str], message: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([scenario if a == "FILE" else a for a in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert "Traceback" not in shown.err


def test_a_bad_trace_is_named_with_line_and_column(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(TRACE.replace("8,5,2,60", "8,5,two,60"), encoding="utf-8")
    assert cli.main(["run", scenario, "--trace", str(path)]) == 2
    assert capsys.readouterr().err == f"{path}:3:5: gpus: 'two' is not a number\n"
    path.write_text(TRACE.replace("8,5,2,60", "8,5,6,60"), encoding="utf-8")
    assert cli.main(["run", scenario, "--trace", str(path)]) == 2
    assert capsys.readouterr().err == f"{path}:3:1: job 8 needs 6 GPUs, the cluster has 4\n"


def test_a_model_that_a_trace_names_is_told_with_its_line(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.csv"
    path.write_text("job_id,arrival_s,gpus,duration_s,model\n1,9,2,60,m\n2,0,2,60,mm\n", encoding="utf-8")
    assert cli.main(["run", scenario, "--trace", str(path)]) == 2
    assert capsys.readouterr().err == f"{path}:3:1: job 2 names an unknown model 'mm'; did you mean 'm'?\n"


@pytest.mark.parametrize("command", ["run", "compare"])
def test_an_out_that_cannot_be_is_told_before_anything_runs(
    command: str, scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(f"equipoise.api.{command}", never)
    assert cli.main([command, scenario, "--policy", "fifo", "--out", f"{scenario}/below"]) == 2
    assert f"'{scenario}/below': Not a directory" in capsys.readouterr().err


def test_a_mistake_in_the_input_leaves_no_folder(scenario: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli.main(["run", scenario, "--policy", "fifoo", "--out", str(out)]) == 2
    assert cli.main(["compare", scenario, "--policy", "fifoo", "--out", str(out)]) == 2
    assert not out.exists()


def test_no_command_shows_the_help_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Usage: equipoise")
    assert shown.err.count("Usage") == 1


def test_a_scenario_without_jobs_asks_for_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    path = scenarios_dir() / "counted.yaml"
    assert cli.main(["run", str(path)]) == 2
    assert capsys.readouterr().err == f"{path}: workload: no jobs in it; give a trace (--trace FILE)\n"


# --- failures: code 1, no traceback without --debug -----------------------------------------------

BROKEN = '''
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from equipoise.policies.contract import Allocation, Stage

@dataclass(frozen=True)
class Raises(Stage):
    """Raises."""
    name: ClassVar[str] = "raises"
    kind: ClassVar[str] = "tasks"
    def refine(self, observation, plan, memory):
        if observation.time_s < 60:
            return plan, memory
        raise RuntimeError("out\\nof ideas")

@dataclass(frozen=True)
class Doubles(Stage):
    """Gives every GPU to every job."""
    name: ClassVar[str] = "doubles"
    kind: ClassVar[str] = "allocation"
    def refine(self, observation, plan, memory):
        everything = [(int(row), range(len(observation.gpus))) for row in observation.waiting]
        return plan.with_(allocation=Allocation.of(everything)), memory
'''


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_stages.py").write_text(BROKEN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(policies.BUILT_IN, "raises", "broken_stages:Raises")
    monkeypatch.setitem(policies.BUILT_IN, "doubles", "broken_stages:Doubles")


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(("policy", "problem"), [("raises+fifo", "out of ideas"), ("doubles", "gpu")])
def test_a_failing_stage_is_named_and_the_records_are_kept(
    policy: str, problem: str, scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["run", scenario, "--policy", policy, "--out", str(out)]) == 1
    shown = capsys.readouterr().err
    (line,) = (text for text in shown.splitlines() if text.startswith("equipoise: "))
    assert f"stage {policy.split('+')[0]} at " in line
    assert problem in line.lower()
    assert "Traceback" not in shown
    assert (out / "jobs.parquet").is_file()
    assert not (out / "summary.json").exists()
    assert policy.split("+")[0] in json.loads((out / "manifest.json").read_text(encoding="utf-8"))["status"]
    assert cli.main(["compare", scenario, "--policy", policy, "--seeds", "1"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_an_unexpected_error_shows_its_traceback_only_with_debug(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no\nluck")

    monkeypatch.setattr("equipoise.api.run", explode)
    assert cli.main(["run", scenario]) == 1
    assert capsys.readouterr().err.endswith("equipoise: ZeroDivisionError: no luck (--debug shows the traceback)\n")
    with pytest.raises(ZeroDivisionError):
        cli.main(["run", scenario, "--debug"])


def test_control_c_ends_with_130(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.api.run", interrupt)
    assert cli.main(["run", scenario]) == 130


def test_a_signal_ends_a_real_process_with_130(tmp_path: Path) -> None:
    endless = SCENARIO.replace("steps: 5", "steps: 1000000000") + "decide: {every_steps: 1}\n"
    path = tmp_path / "endless.yaml"
    path.write_text(endless, encoding="utf-8")
    code = (
        "import sys, signal, os; from equipoise.cli import main; from equipoise.sim import run\n"
        "advance = run._advance\n"
        "def strike(*given):\n    os.kill(os.getpid(), signal.SIGINT)\n    return advance(*given)\n"
        "run._advance = strike\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1].startswith("equipoise: interrupted at ")


def test_a_closed_pipe_is_no_traceback() -> None:
    command = [sys.executable, "-m", "equipoise.cli", "schema"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(60) == 1
    child.stderr.close()


# --- validate, list, schema, doctor ---------------------------------------------------------------


def test_validate_checks_all_files_and_tells_each(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(SCENARIO.replace("count: 2", "count: 0").replace("gpus: 4", "gpu: 4"), encoding="utf-8")
    catalogue = str(scenarios_dir() / "hardware" / "catalogue.yaml")
    assert cli.main(["validate", scenario, catalogue]) == 0
    assert capsys.readouterr().out == f"{scenario}: scenario ok\n{catalogue}: hardware profile ok\n"
    assert cli.main(["validate", str(bad), scenario]) == 2
    shown = capsys.readouterr()
    assert shown.out == f"{scenario}: scenario ok\n"
    assert [line.split(": ")[1] for line in shown.err.splitlines()] == ["cluster.nodes.0.count", "workload.jobs.1.gpu"]


def test_shipped_files_validate() -> None:
    files = [str(path) for path in sorted(scenarios_dir().rglob("*.yaml"))]
    assert len(files) >= 9
    assert cli.main(["validate", *files]) == 0


def test_list_says_what_a_name_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stages = {row["name"]: row for row in found["stages"]}
    assert set(policies.BUILT_IN) <= set(stages)
    assert {stages[name]["kind"] for name in ("s1", "s2", "s3", "s4")} == {"data", "tasks", "sync", "allocation"}
    for row in stages.values():
        assert row["what"]
        if row["kind"] == "allocation":
            assert row["order"]
            assert row["blocking"]
            assert row["preemption"]
    assert stages["fifo"]["placement"] == "counted, packed, any"
    assert [row["name"] for row in found["hardware"]] == [
        "amd_epyc_2_cores",
        "catalogue",
        "h100_measured",
        "h200_measured",
    ]
    assert "quickstart" in {row["name"] for row in found["scenarios"]}
    assert cli.main(["list", "stages"]) == 0
    shown = capsys.readouterr().out
    assert "order: arrival, then id" in shown
    assert "scenarios:" not in shown


def test_list_shows_a_stage_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(policies.BUILT_IN, "gone", "no_such_module:Gone")
    assert cli.main(["list", "stages"]) == 0
    assert "cannot be used: stage 'gone' (no_such_module:Gone) cannot be loaded" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["json:JSONDecoder", "json:dumps", "equipoise.sim.scenario.model:Scenario"])
def test_list_shows_what_is_no_stage(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(policies.BUILT_IN, "wrong", wrong)
    assert cli.main(["list", "stages"]) == 0
    assert f"cannot be used: {wrong} is not a stage" in capsys.readouterr().out


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Scenario"


def test_doctor_never_fails_and_says_one_line_each() -> None:
    done = process("doctor", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    names = [line.split("  ")[0] for line in done.stdout.splitlines()]
    wanted = ["equipoise", "packages", "processors", "kernel cache", "GPUs", "calibration", "scenarios"]
    assert names == wanted
    assert "compiler works" in done.stdout


def test_no_colour_and_no_control_characters_when_piped(scenario: str) -> None:
    done = process("compare", scenario, "--policy", "fifo", "--policy", "sjf")
    assert done.returncode == 0, done.stderr
    assert plain(done)


# --- the public functions -------------------------------------------------------------------------


def test_public_functions_take_files_data_and_objects(scenario: str, trace: str, tmp_path: Path) -> None:
    loaded = equipoise.load(scenario)
    from_file, from_object = equipoise.run(scenario), equipoise.run(loaded)
    assert from_file.summary() == from_object.summary()
    data = {"schema_version": 1, "name": "d", "cluster": {"gpus": 4}, "workload": {}}
    run = equipoise.run(data, trace=trace, policy="sjf", out=tmp_path / "out")
    assert run.jobs["job_id"].tolist() == [7, 8, 9]
    assert (tmp_path / "out" / "summary.json").is_file()
    result = equipoise.compare(scenario, ["fifo", "sjf"], 1, overrides=["cluster.nodes.0.count=4"])
    assert result.policies == ("fifo", "sjf")
    with pytest.raises(ValueError, match="overrides need a scenario file"):
        equipoise.run(loaded, overrides=["seed=1"])
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = equipoise.nothing


def test_progress_is_a_line_now_and_then_when_piped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from equipoise import options

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with options.progress(False, "case") as tell:
        for now[0] in (1.0, 31.0, 40.0, 62.0):
            tell(int(now[0]), 100, f"at {now[0]:.0f}\x1b[2J")
    assert capsys.readouterr().err.splitlines() == [
        "case: 31/100 runs, 0:01:09 left, at 31\\x1b[2J",
        "case: 62/100 runs, 0:00:38 left, at 62\\x1b[2J",
    ]
    with options.progress(True, "case") as tell:
        now[0] = 100.0
        tell(100, 100, "the end")
    assert capsys.readouterr().err == ""
