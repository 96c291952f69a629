# ruff: noqa: E501 - tables of cases read best with one case a line
from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise
from equipoise import cli
from equipoise.base.database import database
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
    first, *lines = shown.out.splitlines()
    assert " under fifo" in first
    assert len(lines) < 25
    assert any(line.startswith("makespan") for line in lines)
    assert "note: " in shown.err
    assert cli.main(["run", scenario, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


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


@pytest.mark.parametrize(("command", "module"), [("run", "api"), ("compare", "studies")])
def test_an_out_that_cannot_be_is_told_before_anything_runs(
    command: str, module: str, scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(f"equipoise.{module}.{command}", never)
    assert cli.main([command, scenario, "--policy", "fifo", "--out", f"{scenario}/below"]) == 2
    assert f"'{scenario}/below': Not a directory" in capsys.readouterr().err


def test_a_mistake_in_the_input_leaves_no_folder(scenario: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli.main(["run", scenario, "--policy", "fifoo", "--out", str(out)]) == 2
    assert cli.main(["compare", scenario, "--policy", "fifoo", "--out", str(out)]) == 2
    assert not out.exists()


def test_a_scenario_without_jobs_asks_for_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    path = scenarios_dir() / "counted.yaml"
    assert cli.main(["run", str(path)]) == 2
    assert capsys.readouterr().err == f"{path}: workload: no jobs in it; give a trace (--trace FILE)\n"


# --- failures: code 1, no traceback without --debug -----------------------------------------------


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
