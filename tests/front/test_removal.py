"""A feature can be removed: its folder and its tests go, and the rest works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.sim.discover import files

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "dist", "build")
TESTED = ("sim/world", "sim/scenario", "sim/ledger", "soak", "policies/record", "study/report", "front/test_cli.py")
"""Tests below `tests` that stand for all."""


@pytest.mark.long
@pytest.mark.parametrize("name", [path.parent.name for path in files("feature.py")])
def test_the_rest_works_without_a_feature(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)
    for room in ("sim", "tests"):
        shutil.rmtree(copy / room / "features" / name)
    environment = {**os.environ, "PYTHONPATH": str(copy)}

    def done(*command: str) -> str:
        made = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout[-5000:] + made.stderr[-2000:]
        return made.stdout

    python = (sys.executable, "-m")
    page = done(*python, "equipoise.cli", "schema", "--format", "markdown")
    (copy / "docs" / "scenario.md").write_text(page, encoding="utf-8")
    done(str(Path(sys.executable).with_name("lint-imports")))
    done(*python, "pytest", "-q", "-n", "2", "--dist", "loadfile", *(f"tests/{path}" for path in TESTED))
