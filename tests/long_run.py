"""Tests marked `long`: left out of `make test`; `make test-long` runs them and goes on where it stopped.

Property tests are in both: a part of the examples that they ask for in `make test`, several times as many in the
long tests, and just as many where a test is named.

A test that passed is not run again while the code is the same (commit and uncommitted changes). When all have
passed, `docs/test-long.md` says when, on which commit, and how long they took.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "test-long.md"
EXAMPLES_OF_THE_SUITE, EXAMPLES_OF_LONG_TESTS = 0.3, 5
FEWEST = 10
"""Examples of a property test, as a share of those that it asks for; where it asks for more, so many are left."""


def code() -> str:
    """The commit, and a hash of what differs from it, if anything does."""
    commit = _git("rev-parse", "--short=12", "HEAD").decode().strip()
    changes = _git("diff", "HEAD", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return f"{commit}+{hashlib.sha256(changes).hexdigest()[:8]}" if changes else commit


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b"no commit"


class Passed:
    """The long tests that passed with this code, in a file: one line a test, (code, seconds, test)."""

    def __init__(self, path: Path) -> None:
        self.path, self.code = path, code()
        self.seconds = dict(self._read())

    def _read(self) -> Iterator[tuple[str, float]]:
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                of, seconds, test = line.split(" ", 2)
                if of == self.code:
                    yield test, float(seconds)

    def add(self, test: str, seconds: float) -> None:
        """Note that a test passed."""
        self.seconds[test] = seconds
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{self.code} {seconds:.2f} {test}\n")


def page(passed: Passed) -> str:
    """What is committed after a full run."""
    slowest = sorted(passed.seconds.items(), key=lambda row: -row[1])[:10]
    rows = "\n".join(f"| {seconds:.0f} | `{test}` |" for test, seconds in slowest)
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        "# Long tests\n\nWritten by `make test-long` when all of them have passed.\n\n"
        f"Date: {today}. Commit: {passed.code}. Python {platform.python_version()}, {os.cpu_count()} cores.\n"
        f"{len(passed.seconds)} tests passed in {sum(passed.seconds.values()):.0f} s of test time.\n\n"
        f"The slowest:\n\n| s | test |\n|---|---|\n{rows}\n"
    )


def _draw(test: Any, share: float) -> None:
    """Have a property test draw such a share of the examples that it asks for, of ten or more no fewer than ten."""
    asked = test._hypothesis_internal_use_settings  # Hypothesis has no public way to change them
    number = max(round(share * asked.max_examples), min(asked.max_examples, FEWEST))
    test._hypothesis_internal_use_settings = settings(asked, max_examples=number)


class LongRun:
    """Chooses the tests, and in the process that collects results notes what passed."""

    def __init__(self, config: pytest.Config) -> None:
        self.file: str | None = config.getoption("--long")
        sent: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.writes = self.file is not None and sent is None
        self.passed = Passed(Path(self.file)) if self.writes and self.file else None
        known = self.passed.seconds if self.passed else (sent or {}).get("long_passed", [])
        self.before = set(known)
        self.seconds: dict[str, float] = {}
        self.failed = False
        option = config.option
        part = option.collectonly or option.keyword or config.args != config.getini("testpaths")
        self.all = config.rootpath == ROOT and not part

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker process of pytest-xdist what has passed."""
        node.workerinput["long_passed"] = sorted(self.before)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the long tests that have not passed yet, or all others."""
        named = any("::" in argument for argument in config.args)  # someone asks for this very test
        if self.file is None and named:
            return
        tests = {getattr(item, "obj", None): None for item in items}  # once each, whatever its parameters
        properties = {test for test in tests if is_hypothesis_test(test)}
        for test in properties:
            _draw(test, EXAMPLES_OF_THE_SUITE if self.file is None else EXAMPLES_OF_LONG_TESTS)
        keep = [
            item
            for item in items
            if item.nodeid not in self.before
            and (
                ("long" in item.keywords) == (self.file is not None)
                or (self.file is not None and getattr(item, "obj", None) in properties)
            )
        ]
        kept = set(keep)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = keep

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the test when its last part has passed."""
        self.failed |= report.failed
        if not self.writes or self.passed is None:
            return
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid, self.seconds[report.nodeid])

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """After the last one: the page."""
        done = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self.passed is not None and self.passed.seconds and self.all and done and not self.failed:
            PAGE.write_text(page(self.passed), encoding="utf-8")
            session.exitstatus = pytest.ExitCode.OK
