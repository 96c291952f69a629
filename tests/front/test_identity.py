"""The identity of a run: whatever it depends on changes it, nothing else does, and one can look what it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.base.sources import file_parts
from tests.study.runs.sweeps.sweep_helpers import run_folder
from tests.study.test_study_folders import ROOT

SCENARIO = """
schema_version: 1
name: s
cluster: {gpus: 4}
workload: {jobs: [{gpus: 1, duration: 10 s, count: 3}]}
"""
STAGE = '''
from dataclasses import dataclass
from typing import ClassVar
from equipoise.policies.baselines.allocation import Fifo

@dataclass(frozen=True)
class Mine(Fifo):
    """Asks its helper, late."""
    name: ClassVar[str] = "mine"
    def refine(self, observation, plan, memory):
        {use}
        assert rule.LIMIT
        return super().refine(observation, plan, memory)
'''


def plugin(site: Path, *, package: bool) -> Path:
    """An installed-for-editing distribution with one stage and a helper; returns the helper's file."""
    info = site / "mine_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mine-plugin\nVersion: 1.0\nRequires-Dist: numpy>=1\n"
        "Requires-Dist: nowhere-to-be-found\nRequires-Dist: pytest; extra == 'dev'\n"
    )
    module = "mine.stages.first" if package else "mine_module"
    (info / "entry_points.txt").write_text(f"[equipoise.stages]\nmine = {module}:Mine\n")
    if not package:
        (site / "mine_module.py").write_text(STAGE.format(use="import mine_rule as rule"))
        (site / "mine_rule.py").write_text("LIMIT = 1\n")
        return site / "mine_rule.py"
    (site / "mine" / "stages").mkdir(parents=True)
    for folder in ("mine", "mine/stages"):
        (site / folder / "__init__.py").touch()
    (site / "mine/stages/first.py").write_text(STAGE.format(use="from .. import rule"))
    (site / "mine" / "rule.py").write_text("LIMIT = 1\n")
    return site / "mine" / "rule.py"


def equipoise(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "equipoise.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=site, timeout=120, check=True)


@pytest.mark.long
@pytest.mark.parametrize("package", [True, False])
def test_a_changed_helper_of_a_plugin_makes_other_runs(tmp_path: Path, package: bool) -> None:
    site, out = tmp_path / "site", tmp_path / "out"
    helper = plugin(site, package=package)
    (site / "s.yaml").write_text(SCENARIO)
    compare = ("compare", "s.yaml", "--policy", "mine", "--seeds", "1", "--out", str(out), "--quiet")

    def made() -> tuple[str, int]:
        equipoise(site, *compare)
        run = run_folder(out, "mine", 0)
        return json.loads((run / "manifest.json").read_text())["identity"], (run / "jobs.parquet").stat().st_mtime_ns

    first = made()
    assert made() == first  # read, not made again
    helper.write_text("LIMIT = 2\n")
    second = made()
    assert second[0] != first[0]
    assert second[1] > first[1]
    inputs = json.loads((run_folder(out, "mine", 0) / "manifest.json").read_text())["inputs"]
    assert len(inputs[f"stage: {helper.relative_to(site)}"]) == 16
    assert inputs["stage: mine-plugin (package)"] == "1.0"
    assert "stage: numpy (package)" in inputs
    assert any("nowhere-to-be-found" in str(part) for part in inputs.items())
    assert not any("pytest" in name for name in inputs)
    info = site / "mine_plugin-1.0.dist-info" / "METADATA"
    info.write_text(info.read_text().replace("Version: 1.0", "Version: 1.1"))
    assert made()[0] != second[0]


def test_a_script_counts_with_what_it_imports_beside_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("def f():\n    from deep.inner import g\n")
    (tmp_path / "unused.py").touch()
    (tmp_path / "deep").mkdir()
    for name in ("__init__", "inner", "other"):
        (tmp_path / "deep" / f"{name}.py").touch()
    found = [name for name, _ in file_parts(tmp_path / "script.py", "__main__")]
    assert found == ["deep/__init__.py", "deep/inner.py", "deep/other.py", "helper.py", "script.py"]


@pytest.mark.long
def test_a_kernel_from_elsewhere_is_compiled_anew_when_its_helper_changes(tmp_path: Path) -> None:
    kernel = "from equipoise.policies.kernels.jit import jit\n\n@jit\ndef {name}(x):\n    return {value}\n"
    (tmp_path / "outer.py").write_text("from inner import f\n" + kernel.format(name="g", value="f(x)"))
    found = []
    for factor in (2, 2, 3):
        (tmp_path / "inner.py").write_text(kernel.format(name="f", value=f"{factor} * x"))
        done = subprocess.run(
            [sys.executable, "-c", "import outer; print(outer.g(1), sum(outer.g.stats.cache_hits.values()))"],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
            check=True,
        )
        found.append(done.stdout.split())
    assert found == [["2", "0"], ["2", "1"], ["3", "0"]]
