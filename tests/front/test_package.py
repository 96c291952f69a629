"""What is installed is one package: its rooms are links in a checkout, and no file is imported under two names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.base.sources import root
from equipoise.policies.registry import PolicyError, stage_class

ROOT = root().parent

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
    assert "symbolic links" in done.stderr.splitlines()[-1]


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


@pytest.mark.long
def test_the_wheel_of_the_archive_of_sources_makes_the_run_of_the_checkout(tmp_path: Path) -> None:
    """Sources, wheel, fresh environment; needs a package index."""

    def do(*command: str | Path, cwd: Path = tmp_path) -> str:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    tree, outside = tmp_path / "tree", tmp_path / "outside"
    listed = do("git", "ls-files", "-z", cwd=ROOT).rstrip("\0").split("\0")
    for name in listed:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    outside.mkdir()
    for name in ("make", "use"):
        do(sys.executable, "-m", "venv", tmp_path / name)
    do("make/bin/pip", "install", "-q", "hatchling")
    do(tmp_path / "make/bin/python", "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path / "sdist", cwd=tree)
    do("make/bin/pip", "wheel", "-q", "--no-deps", "-w", "wheel", *(tmp_path / "sdist").iterdir())
    do("use/bin/pip", "install", "-q", "-c", tree / "constraints.txt", *(tmp_path / "wheel").iterdir())
    run_it = ("run", "quickstart", "--policy", "s1", "--seed", "1", "--out")
    do(tmp_path / "use/bin/equipoise", *run_it, "wheel", cwd=outside)
    from_here = "import sys; from equipoise.cli import main; sys.exit(main())"
    do(sys.executable, "-c", from_here, *run_it, outside / "checkout", cwd=tree)
    wheel, checkout = (json.loads((outside / name / "summary.json").read_text()) for name in ("wheel", "checkout"))
    assert wheel["identity"] == checkout["identity"]
    do(tmp_path / "use/bin/equipoise", "rerun", "checkout", cwd=outside)  # equal to the byte, or it fails
