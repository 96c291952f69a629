"""Which test reaches which line, as Coverage.py saw it; kept per test file in `.mutation/reach/`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tests.mutation.mutants import statement
from tests.mutation.trial import Limits, Reached, digest, trial

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
FILE_S = 600.0
TEST_S = 30.0
BUDGET_S = 60.0
"""Tests of one change, by the time that they take without it."""


@dataclass(frozen=True)
class Test:
    """One test, and how long it takes."""

    name: str
    seconds: float

    @property
    def path(self) -> str:
        """Its file."""
        return self.name.partition("::")[0]

    @property
    def plain(self) -> bool:
        """Whether it is run with kernels as plain Python."""
        return self.path.split("/")[1] in PLAIN


def has_kernels(path: Path) -> bool:
    """Whether Numba compiles something of this file."""
    text = path.read_text(encoding="utf-8")
    return "\n@jit" in text and path.name != "jit.py"


def _test_files(tree: Path, below: tuple[str, ...] = ("",)) -> Iterator[Path]:
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
    for path in _test_files(tree, below):
        kept = _kept(tree, place, path)
        now = digest(path)
        if kept.is_file() and json.loads(kept.read_text())["test"] == now:
            continue
        plugin = Reached(tree, kept, {"test": now})
        name = path.relative_to(tree).as_posix()
        limits = Limits(lambda _: TEST_S)
        ended = trial(
            [name],
            FILE_S,
            place / "log",
            plain=Test(name, 0.0).plain,
            own=plugin.start,
            plugins=[plugin, limits],
            options=(),
        )
        if not kept.is_file() or json.loads(kept.read_text())["test"] != now:
            kept.write_text(json.dumps({"test": now, "sources": {}, "tests": {}}))
        last = ended.said.strip().splitlines()[-1:]
        print(f"{name}: {last[0] if last else ended.code}", flush=True)


def _kept(tree: Path, place: Path, path: Path) -> Path:
    name = path.relative_to(tree).as_posix().replace("/", "-")
    return place / "reach" / f"{name}.json"


class Lines:
    """What was kept."""

    def __init__(self, tree: Path, place: Path, below: tuple[str, ...] = ("",)) -> None:
        self.tree, self.place, self.below = tree, place, below

    @cached_property
    def _kept(self) -> list[dict[str, Any]]:
        kept = (_kept(self.tree, self.place, path) for path in _test_files(self.tree, self.below))
        return [json.loads(path.read_text()) for path in kept if path.is_file()]

    @cache  # noqa: B019 (one object a start)
    def noticing(self, path: str, line: int) -> list[Test]:
        """Tests that reach the statement, the quickest first (all that reach the file when the statement runs at
        its import, or the file has changed since), then those that reach the file, for what is kept from one test
        to the next, then others of the same test files. At least one, then as many as `BUDGET_S` allows.
        """
        file = self.tree / path
        lines, imported = statement(ast.parse(file.read_text(encoding="utf-8")), line)
        mask = sum(1 << k for k in lines)
        now = digest(file)
        near, far, others = list[Test](), list[Test](), list[Test]()
        for kept in self._kept:
            changed = imported or kept["sources"].get(path, now) != now
            reaching = False
            for name, each in kept["tests"].items():
                reached = int(each["lines"].get(path, "0"), 16)
                reaching |= bool(reached & mask)
                (near if reached & mask or (reached and changed) else far if reached else others).append(
                    Test(name, each["s"])
                )
            if not reaching:
                others = [test for test in others if test.name not in kept["tests"]]
        if has_kernels(file):  # compiling them anew takes minutes
            near, far, others = ([t for t in tests if t.plain] for tests in (near, far, others))

        def first(test: Test) -> tuple[bool, float]:
            """Those of the file's own name, then the quickest."""
            return Path(test.path).stem != f"test_{file.stem}", test.seconds

        chosen, left_s = list[Test](), BUDGET_S
        for test in [*sorted(near, key=_seconds), *sorted(far, key=first), *sorted(others, key=_seconds)]:
            if chosen and test.seconds > left_s:
                break
            chosen.append(test)
            left_s -= test.seconds
        return chosen


def _seconds(test: Test) -> float:
    return test.seconds
