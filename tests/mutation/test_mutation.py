"""What is changed, what is left as it is, and which tests are asked."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation import __main__ as mutation
from tests.mutation.__main__ import interval, table
from tests.mutation.asked import Lines
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import ROOMS, ROOT, Mutant, files, mutants, room_of, silent, statement
from tests.mutation.trial import Limits, digest, trial, written

SOURCE = """
from functools import cache

Rows = list[int] | None
LIMIT = 3


@cache
def twice(n: int | str = 2) -> int | None:
    if n > (
        LIMIT
    ):
        raise ValueError(f"{n} is more than {LIMIT + 1}")
    return (
        n
        * 2
    )


class A:
    def __repr__(self) -> str:
        return "A" * 2
"""


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_files(room: str) -> None:
    assert any(path.startswith(room) and room_of(path) == ROOMS[room] for path in files())


@pytest.mark.parametrize("path", EQUIVALENT)
def test_a_line_of_which_a_change_changes_nothing_is_still_there(path: str) -> None:
    lines = {line.strip() for line in (ROOT / path).read_text().splitlines()}
    for change in EQUIVALENT[path]:
        before, _, after = change.partition(" -> ")
        assert before in lines
        assert after not in lines


def test_only_what_decides_a_result_is_changed(tmp_path: Path) -> None:
    found = mutants("a.py", SOURCE, tmp_path)
    changed = {mutant.change(SOURCE)[1].partition(" -> ")[0] for mutant in found}
    assert changed == {"LIMIT = 3", "if n > (", "* 2", "def twice(n: int | str = 2)"}
    assert found == mutants("a.py", SOURCE, tmp_path)  # as it was kept


def test_what_is_silent() -> None:
    lines = SOURCE.splitlines()
    begins = {lines[low[0] - 1][low[1] :] for low, _ in silent(ast.parse(SOURCE)) if low[0] == low[0]}
    assert "@cache" in begins
    assert 'return "A" * 2' in begins
    assert not any(text.startswith(("if", "n", "*", "LIMIT = ")) for text in begins)


def test_a_statement_is_found_with_all_its_lines() -> None:
    lines = SOURCE.splitlines()

    def texts(line: int) -> tuple[list[str], bool]:
        found, imported = statement(ast.parse(SOURCE), line)
        return [lines[k - 1].strip() for k in found], imported

    assert texts(lines.index("        * 2") + 1) == (["return (", "n", "* 2", ")"], False)
    assert texts(lines.index("        LIMIT") + 1) == (["if n > (", "LIMIT", "):"], False)
    assert texts(lines.index("LIMIT = 3") + 1) == (["LIMIT = 3"], True)


def test_tests_that_reach_a_line_are_asked_first_then_those_that_reach_its_file(tmp_path: Path) -> None:
    tree, place = tmp_path / "tree", tmp_path / "place"
    (tree / "tests" / "sim").mkdir(parents=True)
    (tree / "sim").mkdir()
    (tree / "sim" / "a.py").write_text(SOURCE)
    (place / "reach").mkdir(parents=True)
    line = SOURCE.splitlines().index("        * 2") + 1
    for name in "ab":
        (tree / "tests" / "sim" / f"test_{name}.py").write_text("")
        test = f"tests/sim/test_{name}.py"
        tests = {
            f"{test}::slow": {"s": 5.0, "plain": True, "lines": {"sim/a.py": f"{1 << line:x}"}},
            f"{test}::quick": {"s": 1.0, "plain": True, "lines": {"sim/a.py": f"{1 << line:x}"}},
            f"{test}::far": {"s": 0.2, "plain": False, "lines": {"sim/a.py": f"{1 << 2:x}"}},
        } if name == "a" else {
            f"{test}::other": {"s": 0.1, "plain": True, "lines": {"sim/a.py": f"{1 << 2:x}"}}
        }  # fmt: skip
        kept = {"test": "", "sources": {"sim/a.py": digest(tree / "sim" / "a.py")}, "tests": tests}
        (place / "reach" / f"tests-sim-test_{name}.py.json").write_text(json.dumps(kept))

    def asked(line: int = line) -> list[str]:
        return [test.name.rpartition("test_")[2] for test in Lines(tree, place).noticing("sim/a.py", line)]

    assert asked() == ["a.py::quick", "a.py::slow", "a.py::far", "b.py::other"]
    (tree / "sim" / "a.py").write_text(SOURCE + "\n")  # lines may have moved: all that reach the file
    assert asked() == ["b.py::other", "a.py::far", "a.py::quick", "a.py::slow"]


def test_of_a_statement_that_runs_at_import_files_are_asked_that_import_it(tmp_path: Path) -> None:
    """Also where no test of theirs reaches a line of it: it ran when they were collected."""
    tree, place = tmp_path / "tree", tmp_path / "place"
    (tree / "tests" / "sim").mkdir(parents=True)
    (tree / "sim").mkdir()
    (tree / "sim" / "a.py").write_text(SOURCE)
    (place / "reach").mkdir(parents=True)
    for name, imports in (("a", "sim.ab"), ("b", "sim.b"), ("c", "sim.a")):
        test = f"tests/sim/test_{name}.py"
        (tree / test).write_text(f"from equipoise.{imports} import LIMIT\n")
        tests = {f"{test}::own": {"s": 1.0, "plain": True, "lines": {}}}
        kept = {"test": "", "sources": {}, "tests": tests}
        (place / "reach" / f"tests-sim-test_{name}.py.json").write_text(json.dumps(kept))
    found = Lines(tree, place).noticing("sim/a.py", SOURCE.splitlines().index("LIMIT = 3") + 1)
    assert found[0].path == "tests/sim/test_c.py"


LOOKED_AT = """
from equipoise.sim.network.tables import make_state, size_class
import numpy as np
def test_plain(): assert (make_state(np.ones(3), 1, 1).links[0].head, hasattr(size_class, "py_func")) == (-1, False)
def test_compiled(): assert hasattr(size_class, "py_func")
def test_never(): assert 0
"""
NEEDED = "from equipoise.sim.randomness import noise_row\nnoise_row.py_func\ndef test_it(): pass\n"


STARTING = """
import os, subprocess, sys
import pytest
@pytest.fixture(scope="module")
def started():
    code = "from equipoise.policies import physics; print(physics.__name__)"
    subprocess.run([sys.executable, "-c", code], check=True)
def test_one(started): pass
def test_two(started): pass
def test_fork():
    if (child := os.fork()) == 0:
        from equipoise.policies import physics
        os._exit(0)
    os.waitpid(child, 0)
def test_nothing(): pass
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """(a copy of the tree whose tests of two rooms are these only, where their reach is kept, what was said)."""
    tree, place = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutation, "TREE", tree)
        mutation._copy_tree()
    for room, tests in (("sim", {"test_a": LOOKED_AT, "test_b": NEEDED}), ("formats", {"test_a": STARTING})):
        folder = tree / "tests" / room
        shutil.rmtree(folder)
        folder.mkdir()
        for name, text in tests.items():
            (folder / f"{name}.py").write_text(text)
    code = (
        "from pathlib import Path; from tests.mutation.reach import record;"
        "from tests.mutation import trial; trial.ELSEWHERE = ();"
        f"trial.prepare(Path({str(tree)!r}), Path({str(place / 'cache')!r}));"
        f"record(Path({str(tree)!r}), Path({str(place)!r}), ('sim', 'formats'))"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return tree, place, told.stdout.splitlines()


def test_a_test_that_fails_with_plain_kernels_is_looked_at_with_compiled_ones(
    recorded: tuple[Path, Path, list[str]],
) -> None:
    """Also where nothing can be collected; what fails with both notices nothing, and is named."""
    tree, place, told = recorded
    assert told[:-1] == [
        "tests/sim/test_a.py: 2 tests, 1 of them with plain kernels",
        "tests/sim/test_a.py::test_never: cannot be looked at",
        "tests/sim/test_b.py: 1 tests, 0 of them with plain kernels",
    ]
    line = (tree / "sim/network/tables.py").read_text().splitlines().index(
        "    reals, ints = np.zeros((3, 0)), np.zeros((ROWS, 0), dtype=np.int64)"
    ) + 1
    near = [
        (test.name.rpartition("::")[2], test.plain)
        for test in Lines(tree, place).noticing("sim/network/tables.py", line)
    ]
    assert near == [("test_plain", True)]


def test_what_a_process_reaches_that_a_test_or_its_fixture_starts_counts_for_the_test(
    recorded: tuple[Path, Path, list[str]],
) -> None:
    _, place, _ = recorded
    kept = json.loads((place / "reach" / "tests-formats-test_a.py.json").read_text())["tests"]
    reaching = {
        name.rpartition("::")[2]: "policies/physics.py" in each["lines"] for name, each in kept.items()
    }
    assert reaching == {"test_one": True, "test_two": True, "test_fork": True, "test_nothing": False}


def test_a_trial_tells_what_fails_and_ends_what_takes_too_long(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import time\ndef test_good(): pass\ndef test_bad(): assert 0\ndef test_long(): time.sleep(600)\n"
    )
    limits = Limits(lambda name: 0.2 if "long" in name else 60.0)
    ends = [
        trial([f"{test}::test_{name}"], 60.0, tmp_path / "log", plain=False, plugins=[limits])
        for name in ("good", "bad", "long")
    ]
    assert [ended.code for ended in ends] == [0, 1, 1]
    assert "this test takes too long" in ends[2].said


def test_a_file_is_as_it_was_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("a = 1\n")
    times = path.stat().st_mtime_ns
    with written(path, "a = 2\n"):
        assert path.read_text() == "a = 2\n"
    assert (path.read_text(), path.stat().st_mtime_ns) == ("a = 1\n", times)


def test_a_change_is_told_as_a_line_and_what_it_became() -> None:
    changed, told = Mutant("a.py", "core/NumberReplacer", 0, 5).change("a = 1\nb = 2\n")
    assert (changed, told) == ("a = 2\nb = 2\n", "a = 1 -> a = 2")


def test_a_change_that_the_library_cannot_make_changes_nothing() -> None:
    source = "import a\ntry:\n    pass\nexcept (a.B, ValueError):\n    pass\n"
    path, operator = "live/train/devices.py", "core/ExceptionReplacer"
    made = [mutation._try(Mutant(path, operator, k, 4), source, [])["outcome"] for k in range(2)]
    assert sorted(made) == ["equal", "survived"]


def test_the_table_and_the_interval_of_a_share() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    assert interval(88, 100) == pytest.approx((0.8019, 0.9300), abs=1e-4)  # Wilson (1927)
    told = table(Counter({("live", "killed"): 88, ("live", "survived"): 12, ("live", "equal"): 3}))
    assert "| live | 100 | 3 | 88 | 88.0% | 80.2% to 93.0% |" in told
