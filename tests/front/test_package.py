"""What is installed is one package: its rooms are links in a checkout, and no file is imported under two names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.policies.registry import PolicyError, stage_class
from equipoise.policies.sources import root

TWICE = """
import sys
from pathlib import Path
import equipoise
from equipoise import cli, api
import equipoise.study.runs.sweep, equipoise.calibrate.run, equipoise.live.options
seen = {}
for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and (name.partition(".")[0] in ("equipoise", "policies", "sim", "study", "calibrate", "live")):
        seen.setdefault(Path(file).resolve(), []).append(name)
print([names for names in seen.values() if len(names) > 1])
print(len(seen) > 60)
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root().parent)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_no_file_is_imported_under_two_names(tmp_path: Path) -> None:
    done = run(TWICE, tmp_path)
    assert done.stdout.splitlines() == ["[]", "True"], done.stderr


def test_folders_of_the_user_with_our_old_names_do_no_harm(tmp_path: Path) -> None:
    for name in ("policies", "sim", "live"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the user's own')\n")
    done = run("import equipoise; print(equipoise.run.__module__, equipoise.Scenario.__module__)", tmp_path)
    assert done.stdout.split() == ["equipoise.api", "equipoise.sim.scenario.model"], done.stderr


def test_a_checkout_without_links_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "equipoise").mkdir()
    shutil.copy(root() / "__init__.py", tmp_path / "equipoise" / "__init__.py")
    command = [sys.executable, "-c", "import equipoise"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "lost its symbolic links" in done.stderr.splitlines()[-1]


def test_a_plug_in_that_imports_an_old_name_is_told_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old_plugin.py").write_text("from policies.gone import Stage\n")
    info = tmp_path / "old_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: old_plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[equipoise.stages]\nold = old_plugin:Stage\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PolicyError, match="our modules are now below 'equipoise'"):
        stage_class("old")
