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

    def set_experiment(self, name: str) -> None:
        self.experiment = name

    @contextmanager
    def start_run(self, run_name: str):
        self.runs.append({"name": run_name, "params": {}, "metrics": {}, "files": []})
        yield

    def log_params(self, values: dict[str, str]) -> None:
        assert all(len(v) <= 6000 and len(k) <= 250 for k, v in values.items())
        self.runs[-1]["params"] |= values

    def log_metrics(self, values: dict[str, float]) -> None:
        assert all(math.isfinite(v) for v in values.values())
        assert all(set("[]{},=").isdisjoint(k) for k in values)
        self.runs[-1]["metrics"] |= values

    def log_artifact(self, path: str) -> None:
        self.runs[-1]["files"].append(Path(path).read_bytes()[:15])


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
        assert len(mlflow.runs) == runs
        for run in mlflow.runs:
            assert run["params"]["policy"] in ("fifo", "easy")
            assert run["metrics"]["makespan_s"] == (10800.0 if run["params"].get("point") != "1" else 7200.0)
            assert run["files"] == [b"<!DOCTYPE html>"]


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
