"""Which tests are asked about a change, and in which order."""

from __future__ import annotations

import ast
import json
import math
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tests.mutation.mutants import statement
from tests.mutation.reach import files_of_tests, kept_of
from tests.mutation.trial import digest

NEAR_S, BUDGET_S = 600.0, 60.0
"""Tests of one change, by the time that they take without it: those that reach it, and others."""


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


class Lines:
    """What was kept."""

    def __init__(self, tree: Path, place: Path, below: tuple[str, ...] = ("",)) -> None:
        self.tree, self.place, self.below = tree, place, below

    @cached_property
    def _kept(self) -> list[dict[str, Any]]:
        kept = (kept_of(self.tree, self.place, path) for path in files_of_tests(self.tree, self.below))
        return [json.loads(path.read_text()) for path in kept if path.is_file()]

    def _imports(self, test: str, path: str) -> bool:
        module = path.removesuffix(".py").replace("/", ".")
        return f"from equipoise.{module} import " in self._text(test.partition("::")[0])

    @cache  # noqa: B019 (one object a start)
    def _text(self, path: str) -> str:
        return (self.tree / path).read_text(encoding="utf-8")

    @cache  # noqa: B019 (one object a start)
    def noticing(self, path: str, line: int) -> list[Test]:
        """Tests that reach the statement, the quickest first (all that reach the file, and all of test files that
        import it by name, when the statement runs at its import; all that reach the file when it has changed
        since), then those that reach the file, for what is kept from one test
        to the next, then others of the same test files. At least one, then as many as `NEAR_S` allows of those
        that reach it, and `BUDGET_S` of the others.
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
                asked = reached & mask or (reached and changed) or (imported and self._imports(name, path))
                (near if asked else far if reached else others).append(Test(name, each["s"], each["plain"]))
            if not reaching:
                others = [test for test in others if test.name not in kept["tests"]]
        if has_kernels(file):  # compiling them anew takes minutes
            near, far, others = ([t for t in tests if t.plain] for tests in (near, far, others))

        def other(test: Test) -> tuple[bool, int, str, float]:
            """Those of the file's own name first."""
            return Path(test.path).stem != f"test_{file.stem}", *_order(test)

        chosen = list[Test]()
        for limit_s, tests in (
            (NEAR_S, sorted(near, key=_order)),
            (BUDGET_S, sorted(far, key=other) + sorted(others, key=_order)),
        ):
            spent_s = 0.0
            for test in tests:
                spent_s += test.seconds
                if chosen and spent_s > limit_s:
                    break
                chosen.append(test)
        return chosen


def _order(test: Test) -> tuple[int, str, float]:
    """The quickest first, by powers of two, and of those file by file: what tests share is made once."""
    return math.frexp(test.seconds)[1], test.path, test.seconds
