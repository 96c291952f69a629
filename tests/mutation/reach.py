"""Which test reaches which line, as Coverage.py saw it; kept per test file in `.mutation/reach/`.

A test of `PLAIN` that fails with kernels as plain Python is looked at, and later asked, with compiled ones; of the
other rooms the processes that a test starts are looked at, too, and where it fails by that, they are not. One that
fails then, too, can notice nothing, and is named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.children import follow, reached
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
    how = [tree / "tests" / "mutation" / f"{name}.py" for name in ("reach", "plain", "children")]
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
        kernels = name.split("/")[1] in PLAIN
        for first in (True, False):
            plain, started = first and kernels, place / "started" if first and not kernels else None
            plugin, limits = Reached(tree, kept, plain, started), Limits(lambda _: LIMIT_S)
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
    """A plugin of pytest: which lines each test reached, and how long it took; added to `kept` at the end.

    What a fixture did that several tests share counts for each of them, its time, too.
    """

    def __init__(self, tree: Path, kept: Path, plain: bool, started: Path | None = None) -> None:
        self.tree, self.kept, self.plain = tree, kept, plain
        self.started = started  # the folder for what processes write that a test starts; None: not looked at
        self.shared: dict[str, set[str]] = {}  # by test: fixtures
        self.seconds: dict[str, float] = {}  # by test or fixture
        self.lines: dict[str, dict[str, int]] = {}  # by test or fixture, by file: the mask
        self.failed: set[str] = set()
        self.skipped: set[str] = set()
        self.now: list[str] = []
        self.coverage: Any = None

    def start(self) -> None:
        """Before anything of ours is imported."""
        import coverage

        if self.started is not None:
            follow(self.tree, self.started)
        self.coverage = coverage.Coverage(data_file=None, include=[f"{self.tree}/*"], omit=["*/tests/*"])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test."""
        used = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        self.shared[item.nodeid] = {_name(each[-1]) for each in used if each[-1].scope != "function"}
        with self._during(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """What a test needs."""
        if fixturedef.scope == "function":
            return (yield)
        with self._during(_name(fixturedef)):
            return (yield)

    @contextmanager
    def _during(self, name: str) -> Iterator[None]:
        begin_s = time.monotonic()
        self._collect()
        self.now.append(name)
        self.coverage.switch_context(name)
        try:
            yield
        finally:
            self._collect()
            self.now.pop()
            took_s = time.monotonic() - begin_s
            self.seconds[name] = self.seconds.get(name, 0.0) + took_s
            if self.now:
                self.coverage.switch_context(self.now[-1])
                self.seconds[self.now[-1]] = self.seconds.get(self.now[-1], 0.0) - took_s

    def _collect(self) -> None:
        """What processes reached that have been started and have ended."""
        if self.started is not None and self.now:
            for path, mask in reached(self.tree, self.started).items():
                self._add(self.now[-1], path, mask)

    def _add(self, name: str, path: str, mask: int) -> None:
        masks = self.lines.setdefault(name, {})
        masks[path] = masks.get(path, 0) | mask

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
        for name in data.measured_files():
            path = Path(name).resolve().relative_to(self.tree).as_posix()
            for line, reaching in data.contexts_by_lineno(name).items():
                for each in reaching:
                    self._add(each, path, 1 << line)
        found = json.loads(self.kept.read_text())
        for test in self.shared.keys() - self.failed - self.skipped:
            masks: dict[str, int] = {}
            for part in (test, *self.shared[test]):
                for path, mask in self.lines.get(part, {}).items():
                    masks[path] = masks.get(path, 0) | mask
            found["tests"][test] = {
                "s": round(sum(self.seconds.get(part, 0.0) for part in (test, *self.shared[test])), 3),
                "lines": {path: f"{mask:x}" for path, mask in sorted(masks.items())},
                "plain": self.plain,
            }
        found["tests"] = dict(sorted(found["tests"].items()))
        files = {path for each in found["tests"].values() for path in each["lines"]}
        found["sources"] = {path: digest(self.tree / path) for path in sorted(files)}
        found["failed"] = sorted(self.failed)
        self.kept.write_text(json.dumps(found))


def _name(fixture: pytest.FixtureDef[Any]) -> str:
    return f"{fixture.baseid}:{fixture.argname}"
