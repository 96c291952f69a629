"""Which test reaches which line, as Coverage.py saw it; kept per test file in `.mutation/reach/`.

A test of `PLAIN` that fails with kernels as plain Python is looked at, and later asked, with compiled ones; one
that fails then, too, can notice nothing, and is named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.trial import Limits, digest, trial

PLAIN = ("policies", "sim")
ROOMS = (*PLAIN, "live", "study", "soak", "formats", "front")
"""Folders of tests, in the order in which they are looked at; the first ones with kernels as plain Python."""
LEFT_OUT = (
    "report/test_report_browser",
    "report/test_report_screens",
    "front/test_house",
    "front/test_readme",
)
"""Tests of other things, or that take minutes."""
FILE_S = 1800.0
LIMIT_S = 90.0
"""A test that takes longer is not asked."""


def files_of_tests(tree: Path, below: tuple[str, ...] = ("",)) -> Iterator[Path]:
    """Those below `tests/` whose path begins so, but what is left out."""
    for room in ROOMS:
        for path in sorted((tree / "tests" / room).rglob("test_*.py")):
            name = path.relative_to(tree / "tests").as_posix()
            if not name.startswith(LEFT_OUT) and name.startswith(below):
                yield path


def record(tree: Path, place: Path, below: tuple[str, ...] = ("",)) -> None:
    """Look at every test file that changed since it was looked at."""
    code = "from equipoise.policies.kernels.jit import kernel_source_hash; print(kernel_source_hash())"
    told = subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True, text=True)
    (place / "kernels").write_text(told.stdout.strip())
    how = [
        tree / "tests" / "mutation" / name for name in ("reach.py", "plain.py")
    ]  # as they were at the start
    for path in files_of_tests(tree, below):
        kept = kept_of(tree, place, path)
        now = digest(path, *how)
        if kept.is_file() and json.loads(kept.read_text())["test"] == now:
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {"sources": {}, "tests": {}}
        kept.write_text(json.dumps(found | {"test": ""}))
        name = path.relative_to(tree).as_posix()
        asked = [name]
        for plain in (True, False) if name.split("/")[1] in PLAIN else (False,):
            plugin, limits = Reached(tree, kept, plain), Limits(lambda _: LIMIT_S)
            trial(
                asked,
                FILE_S,
                place / "log",
                plain=plain,
                own=plugin.start,
                plugins=[plugin, limits],
                options=(),
            )
            found = json.loads(kept.read_text())
            if not (asked := found.get("failed", asked)):
                break
        kept.write_text(json.dumps(found | {"test": now}))
        plainly = sum(test["plain"] for test in found["tests"].values())
        print(f"{name}: {len(found['tests'])} tests, {plainly} of them with plain kernels", flush=True)
        print(*(f"{test}: cannot be looked at" for test in asked), sep="\n", end="\n" if asked else "")


def kept_of(tree: Path, place: Path, path: Path) -> Path:
    """Where what was found of a test file is kept."""
    name = path.relative_to(tree).as_posix().replace("/", "-")
    return place / "reach" / f"{name}.json"


class Reached:
    """A plugin of pytest: which lines each test reached, and how long it took; added to `kept` at the end."""

    def __init__(self, tree: Path, kept: Path, plain: bool) -> None:
        self.tree, self.kept, self.plain = tree, kept, plain
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.skipped: set[str] = set()
        self.coverage: Any = None

    def start(self) -> None:
        """Before anything of ours is imported."""
        import coverage

        self.coverage = coverage.Coverage(data_file=None, include=[f"{self.tree}/*"], omit=["*/tests/*"])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test."""
        self.coverage.switch_context(item.nodeid)
        begin_s = time.monotonic()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.monotonic() - begin_s, 3)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Only what passes can notice anything."""
        if report.failed:
            self.failed.add(report.nodeid)
        if report.skipped:
            self.skipped.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that fails when it is imported, with all its tests."""
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Keep it."""
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[str, str]] = {}
        for name in data.measured_files():
            path = Path(name).resolve().relative_to(self.tree).as_posix()
            masks: dict[str, int] = {}
            for line, tests in data.contexts_by_lineno(name).items():
                for test in tests:
                    masks[test] = masks.get(test, 0) | 1 << line
            for test, mask in masks.items():
                lines.setdefault(test, {})[path] = f"{mask:x}"
        found = json.loads(self.kept.read_text())
        for test, seconds in self.seconds.items():
            if test not in self.failed | self.skipped:
                found["tests"][test] = {"s": seconds, "lines": lines.get(test, {}), "plain": self.plain}
        files = {path for each in found["tests"].values() for path in each["lines"]}
        found["sources"] = {path: digest(self.tree / path) for path in sorted(files)}
        found["failed"] = sorted(self.failed)
        self.kept.write_text(json.dumps(found))
