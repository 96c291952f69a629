"""The kernel cache: what makes kernels be compiled anew, whose folder it is, and that others keep theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from equipoise.base import sources
from equipoise.policies.kernels import jit
from tests.calibrate.fakes import ROOT


@pytest.fixture
def fresh_cache_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "cache_dir", jit.cache_dir.__wrapped__)


def test_what_a_kernel_file_imports_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "policies"
    room.mkdir()
    for other in ("base", "sim"):
        (tmp_path / other).mkdir()
        (tmp_path / other / "empty.py").write_text("")
    (room / "kernels.py").write_text("from equipoise.policies import (\n    middle,\n)\n@jit\ndef f(): ...\n")
    (room / "middle.py").write_text("from equipoise.policies.constants import C\n")
    (room / "constants.py").write_text("C = 1\n")
    (room / "other.py").write_text("D = 1\n")
    monkeypatch.setattr(sources, "root", lambda: tmp_path)
    monkeypatch.setattr(jit, "root", lambda: tmp_path)
    first = jit.kernel_source_hash()
    (room / "other.py").write_text("D = 2\n")
    assert jit.kernel_source_hash() == first
    (room / "constants.py").write_text("C = 2\n")
    assert jit.kernel_source_hash() != first


def test_others_keep_their_cache() -> None:
    code = "import numba; a = numba.config.CACHE_DIR; import equipoise.sim.run; print(a == numba.config.CACHE_DIR)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "True\n"
    assert str(jit.cache_dir()) != numba.config.CACHE_DIR


def test_a_kernel_may_call_itself(tmp_path: Path) -> None:
    (tmp_path / "recursive.py").write_text(
        "from equipoise.policies.kernels.jit import jit\n@jit\ndef factorial(n):\n"
        "    if n < 2:\n        return 1\n    return n * factorial(n - 1)\n"
        "@jit\ndef doubled(n):\n    return 2 * factorial(n)\n"
    )
    code = "from recursive import *\nprint(doubled(5), factorial(4))"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=True
    )
    assert done.stdout == "240 24\n"


@pytest.mark.usefixtures("fresh_cache_dir")
def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EQUIPOISE_KERNEL_CACHE", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path))
    usual = jit.cache_dir()
    assert tmp_path in usual.parents
    assert usual.stat().st_mode & 0o077 == 0
    usual.chmod(0o777)
    private = jit.cache_dir()
    assert tmp_path not in private.parents
    assert private.stat().st_mode & 0o077 == 0
    usual.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: usual.stat().st_uid + 1)
    assert jit.cache_dir() not in (usual, private)


@pytest.mark.usefixtures("fresh_cache_dir")
def test_a_folder_behind_a_link_or_in_one_that_all_may_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write the folder above could put another one in its place."""
    theirs, link = tmp_path / "theirs", tmp_path / "link"
    theirs.mkdir()
    link.symlink_to(theirs)
    monkeypatch.delenv("EQUIPOISE_KERNEL_CACHE", raising=False)
    for name in (theirs, link):
        monkeypatch.setattr("platformdirs.user_cache_dir", lambda _, name=name: str(name))
        theirs.chmod(0o777)
        assert tmp_path not in jit.cache_dir().resolve().parents
        theirs.chmod(0o1777)  # as /tmp: what lies there is its owner's to replace
        assert tmp_path in jit.cache_dir().resolve().parents


def test_a_named_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "equipoise.cli", "run", "quickstart"],
        env={**os.environ, "EQUIPOISE_KERNEL_CACHE": str(tmp_path / "file")},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert "EQUIPOISE_KERNEL_CACHE" in done.stderr
    assert len(done.stderr.splitlines()) == 1


COMPILES = """
import sys
from equipoise.policies.kernels import jit
kernel = jit.jit(jit._nothing.py_func)
sys.stdout.write("ready\\n"), sys.stdout.flush(), sys.stdin.readline()
kernel()
print(sum(kernel.stats.cache_misses.values()))
"""


def test_of_two_processes_one_compiles_a_kernel_and_the_other_loads_it(tmp_path: Path) -> None:
    environment = {**os.environ, "EQUIPOISE_KERNEL_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILES],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [process.stdout.readline() for process in both if process.stdout] == ["ready\n"] * 2
    for process in both:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    assert sorted(process.communicate()[0] for process in both) == ["0\n", "1\n"]
    assert [process.returncode for process in both] == [0, 0]


def test_a_copy_of_the_sources_finds_the_kernels_that_another_compiled(tmp_path: Path) -> None:
    """Compiled files, by name and time, after the same call in two copies of the package."""
    code = "from equipoise.policies.kernels import jit; print(jit.cache_dir()); jit.initialise()"
    folders, compiled = set(), []
    for name in ("one", "two"):
        ignored = shutil.ignore_patterns("__pycache__", "calibrate", "live", "study", "scenarios")
        shutil.copytree(ROOT / "equipoise", tmp_path / name / "equipoise", ignore=ignored, copy_function=shutil.copy)
        environment = os.environ | {"PYTHONPATH": str(tmp_path / name), "EQUIPOISE_KERNEL_CACHE": str(tmp_path / "c")}
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        folders.add(done.stdout)
        compiled.append({path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*.nbc")})
    assert len(folders) == 1
    assert compiled[0] == compiled[1] != {}
