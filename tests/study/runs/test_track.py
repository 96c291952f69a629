"""What goes to MLflow: a run there for each run of the folder, with its parameters, metrics and report."""

from __future__ import annotations

import math
import sys
import types
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli import main

SCENARIO = """\
schema_version: 1
name: tracked
cluster: {nodes: [{count: 2, gpus: 4, accelerator: h100_sxm}]}
workload: {jobs: [{name: a, count: 3, gpus: 6, duration: 1 h}]}
"""
SWEEP = """\
schema_version: 1
name: tracked
scenario: tracked.yaml
policies: [fifo]
parameters: {cluster.nodes.0.count: [2, 3]}
"""


class Recorder(types.ModuleType):
    """Takes what MLflow's functions are given, and holds it to MLflow's rules for names and numbers."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.__spec__ = types.SimpleNamespace(name="mlflow")  # type: ignore[assignment]
        self.experiment, self.runs = "", list[dict[str, Any]]()
        self.open = list[dict[str, Any]]()

    def set_experiment(self, name: str) -> None:
        self.experiment = name

    @contextmanager
    def start_run(self, run_name: str, nested: bool = False):
        assert nested == bool(self.open), "MLflow refuses a second run that is not nested"
        self.runs.append(
            {
                "name": run_name,
                "above": self.open[-1]["name"] if self.open else "",
                "params": {},
                "metrics": {},
                "files": [],
            }
        )
        self.open.append(self.runs[-1])
        yield
        self.open.pop()

    def log_params(self, values: dict[str, str]) -> None:
        assert all(len(v) <= 6000 and len(k) <= 250 for k, v in values.items())
        self.open[-1]["params"] |= values

    def log_metrics(self, values: dict[str, float]) -> None:
        assert all(math.isfinite(v) for v in values.values())
        assert all(set("[]{},=").isdisjoint(k) for k in values)
        self.open[-1]["metrics"] |= values

    def log_artifact(self, path: str) -> None:
        self.open[-1]["files"].append(Path(path).read_bytes()[:15])


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", made)
    return made


def test_runs_comparisons_and_sweeps_are_logged(tmp_path, monkeypatch, mlflow, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tracked.yaml").write_text(SCENARIO)
    Path("sweep.yaml").write_text(SWEEP)
    for command, runs in (
        (["run", "tracked.yaml", "--out", "one"], 1),
        (["compare", "tracked.yaml", "--policy", "fifo", "--policy", "easy", "--out", "two"], 2),
        (["sweep", "sweep.yaml", "--out", "many"], 2),
    ):
        mlflow.runs.clear()
        assert main([*command, "--mlflow", "trial"]) == 0
        assert "logged to MLflow experiment 'trial'" in capsys.readouterr().err
        assert mlflow.experiment == "trial"
        above, children = mlflow.runs[: runs > 1], mlflow.runs[runs > 1 :]
        assert len(children) == runs
        assert [run["files"] for run in (above or children)] == [[b"<!DOCTYPE html>"]]  # once, however many runs
        assert [run["name"] for run in above] == ([command[-1]] if runs > 1 else [])
        for run in children:
            assert run["above"] == (command[-1] if runs > 1 else "")
            assert run["params"].get("cluster.nodes.0.count") == (
                None if command[0] != "sweep" else {"0": "2", "1": "3"}[run["params"]["point"]]
            )
            assert "cluster.nodes.0.count" not in run["metrics"]
            assert run["params"]["policy"] in ("fifo", "easy")
            assert run["metrics"]["makespan_s"] == (10800.0 if run["params"].get("point") != "1" else 7200.0)


def test_without_mlflow_nothing_is_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "tracked.yaml").write_text(SCENARIO)
    monkeypatch.setattr("equipoise.options.find_spec", lambda name: None)
    asked = ["run", str(tmp_path / "tracked.yaml"), "--out", str(tmp_path / "one"), "--mlflow", "trial"]
    assert main(asked) == 2
    assert "MLflow is not installed" in capsys.readouterr().err
    assert not (tmp_path / "one").exists()


def test_a_broken_mlflow_is_told_apart_from_none(tmp_path, monkeypatch, capsys):
    (tmp_path / "tracked.yaml").write_text(SCENARIO)
    (tmp_path / "mlflow.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    asked = ["run", str(tmp_path / "tracked.yaml"), "--out", str(tmp_path / "out"), "--mlflow", "x", "-q"]
    assert main(asked) != 0
    told = capsys.readouterr().err
    assert "--mlflow needs MLflow, which cannot be loaded (No module named 'nothing_of_that_name')" in told


def test_where_mlflow_takes_nothing_one_line_says_why_and_where_the_results_are(tmp_path, monkeypatch, mlflow, capsys):
    class Refused(Exception):
        __module__ = "mlflow.exceptions"

    def refuse(name: str) -> None:
        raise Refused("The folder is in maintenance mode. Please migrate.")

    monkeypatch.setattr(mlflow, "set_experiment", refuse)
    (tmp_path / "tracked.yaml").write_text(SCENARIO)
    out = tmp_path / "one"
    assert main(["run", str(tmp_path / "tracked.yaml"), "--out", str(out), "--mlflow", "trial", "-q"]) == 1
    told = f"equipoise: --mlflow: the results are in {out}, but MLflow rejected them: The folder is in"
    assert capsys.readouterr().err == f"{told} maintenance mode\n"
    assert (out / "summary.json").is_file()


@pytest.mark.long
def test_a_real_mlflow_has_parameters_metrics_and_the_report(tmp_path, monkeypatch):
    real = pytest.importorskip("mlflow", reason="needs MLflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    Path("tracked.yaml").write_text(SCENARIO)
    Path("sweep.yaml").write_text(SWEEP)
    real.set_tracking_uri((tmp_path / "store").as_uri())
    for command in (
        ["run", "tracked.yaml", "--out", "one"],
        ["compare", "tracked.yaml", "--policy", "fifo", "--policy", "easy", "--out", "two"],
        ["sweep", "sweep.yaml", "--out", "many"],
    ):
        assert main([*command, "--mlflow", command[0], "--quiet"]) == 0
    client = real.MlflowClient()
    for name, children in (("run", 0), ("compare", 2), ("sweep", 2)):
        found = client.search_runs([client.get_experiment_by_name(name).experiment_id])
        below = [run for run in found if "mlflow.parentRunId" in run.data.tags]
        (above,) = (run for run in found if run not in below)
        assert len(below) == children
        assert [file.path for file in client.list_artifacts(above.info.run_id)] == ["report.html"]
        for run in below or [above]:
            hours = 2.0 if run.data.params.get("cluster.nodes.0.count") == "3" else 3.0
            assert run.data.metrics["makespan_s"] == 3600.0 * hours
            assert run.data.params["policy"] in ("fifo", "easy")
