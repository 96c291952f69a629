"""`make test` leaves long tests out; `make test-long` runs them and goes on where it stopped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.conftest import LONGEST, pytest_collection_modifyitems
from tests.long_run import ROOT, Passed, page

CONFTEST = """
from tests.conftest import pytest_addoption, pytest_configure, pytest_xdist_auto_num_workers
"""
TESTS = """
import pathlib, pytest
from hypothesis import given, settings, strategies
@pytest.mark.long
def test_a(): pass
@pytest.mark.long
def test_b(): assert pathlib.Path("mended").exists()
def test_c(): pass
@settings(max_examples=40, database=None)
@given(strategies.integers())
def test_d(n):
    with pathlib.Path("drawn").open("a") as file: file.write(".")
"""


def run(folder: Path, *arguments: str) -> str:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "markers=long",
        *arguments,
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, check=False
    )
    return done.stdout.splitlines()[-1]


def test_what_passed_is_not_run_again(tmp_path: Path) -> None:
    """As `make test-long` says it, which names no folder of tests."""
    (asked,) = re.findall(r"--long.*passed", (ROOT / "Makefile").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "test_x.py").write_text(TESTS)
    drawn = tmp_path / "drawn"
    assert "2 passed, 2 deselected" in run(tmp_path)
    assert drawn.stat().st_size == 12
    drawn.unlink()
    assert "1 failed, 2 passed, 1 deselected" in run(tmp_path, *asked.split())
    assert drawn.stat().st_size == 200
    (tmp_path / "mended").touch()
    assert "1 passed, 3 deselected" in run(tmp_path, *asked.split())
    assert drawn.stat().st_size == 200


def test_only_the_same_code_counts(tmp_path: Path) -> None:
    passed = Passed(tmp_path / "deep" / "passed")
    passed.add("tests/x.py::test_a[b c]", 1.5)
    assert Passed(passed.path).seconds == {"tests/x.py::test_a[b c]": 1.5}
    passed.path.write_text(passed.path.read_text().replace(passed.code, "another"))
    assert Passed(passed.path).seconds == {}


def test_the_page_names_commit_and_slowest(tmp_path: Path) -> None:
    passed = Passed(tmp_path / "passed")
    passed.add("tests/x.py::test_a", 1.5)
    passed.add("tests/x.py::test_b", 7.25)
    text = page(passed)
    assert f"Commit: {passed.code}." in text
    assert "2 tests passed in 9 s" in text
    assert text.index("test_b") < text.index("test_a")


def test_the_files_that_take_longest_are_there_and_come_first() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
    named = [SimpleNamespace(path=ROOT / "tests" / name) for name in ("front/test_cli.py", *LONGEST[:2])]
    items: list[Any] = list(named)
    pytest_collection_modifyitems(items)
    assert items == [*named[1:], named[0]]
