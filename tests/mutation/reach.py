"""Which test reaches which line, as Coverage.py saw it; kept per test file in `.mutation/reach/`.

A test of `PLAIN` that fails with kernels as plain Python is looked at, and later asked, with compiled ones; one
that fails then, too, can notice nothing, and is named.
"""

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
LIMIT_S = 60.0
"""A test that takes longer is not asked."""
BUDGET_S = 60.0
"""Tests of one change, by the time that they take without it."""


@dataclass(frozen=True)
class Test:
    """One test, and how long it takes."""

    name: str
    seconds: float
    plain: bool  # whether it is run with kernels as plain Python

    @property
    def path(self) -> str:
        """Its file."""
        return self.name.partition("::")[0]


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
        now = digest(path, Path(__file__), Path(trial.__code__.co_filename))
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
                    Test(name, each["s"], each["plain"])
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
