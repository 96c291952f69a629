"""What the figures of the house count, on a tree small enough to count by hand."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from equipoise.api import load
from equipoise.sim.job.account import WASTED_USES
from equipoise.sim.record import Run
from equipoise.sim.run import run
from tests.bench.house import ROOT, measure, product_files, table

SLOW = {"duckdb", "matplotlib", "optuna", "pandas", "pyarrow", "rich", "scipy", "torch", "xlsxwriter"}
"""Packages that take long to load, or need not be installed."""

SMALL = {
    "policies/a.py": "from equipoise.policies import b\n",
    "policies/b.py": "def f():\n    from equipoise.policies.a import g\n",
    "sim/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sim.d import x\n",
    "sim/d.py": "from sim.c import y\n\n\ndef f(job, kappa, share):\n    if job.rigid:\n"
    "        return (1.0 + kappa) * share / (share + kappa)\n",
    "sim/__init__.py": "",
    "tests/test_it.py": "1\n2\n3\n",
}


def test_a_small_house_counts_as_it_should(tmp_path: Path) -> None:
    for name, text in SMALL.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = measure(tmp_path)
    assert found["files, in folders"] == "4, 2"
    assert found["files in the largest folder"] == "2 (`policies`)"
    assert found["longest file [lines]"] == "6 (`sim/d.py`)"
    assert found["lines of the product"] == "12"
    assert found["lines of the tests"] == "3"
    assert found["circles, and files in them"] == "1, 2"
    assert found["the same with imports for types"] == "2, 4"
    assert found["imports inside functions"] == "1"
    assert found["branches on the kind of job"] == "1"
    assert found["definitions: share curve"] == "1"
    assert found["definitions: overlap"] == "0"
    assert table(["then", "now"], [found, found]).splitlines()[0] == "|  | then | now |"


@pytest.mark.parametrize("room", ["policies", "formats", "sim", "study", "calibrate"])
def test_an_import_inside_a_function_is_of_something_slow_or_says_why(room: str) -> None:
    for path in product_files(ROOT):
        if path.startswith(f"{room}/"):
            source = (ROOT / path).read_text(encoding="utf-8")
            assert unexplained_imports(source) == [], path


def unexplained_imports(source: str) -> list[str]:
    """Packages imported inside functions that are not slow, with no comment on that line or the one before."""
    if not re.search(r"^\s+(import|from)\s", source, re.MULTILINE):
        return []  # most files, which need not be parsed
    lines, found = source.splitlines(), []
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for node in (node for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            said = any("#" in line for line in lines[max(0, node.lineno - 2) : node.end_lineno])
            names = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            )
            found += [name for name in names if not said and name.partition(".")[0] not in SLOW]
    return found


def test_what_an_unexplained_import_is() -> None:
    assert unexplained_imports("import json\ndef f():\n    import torch.nn\n") == []
    assert unexplained_imports("def f():\n    import json\n") == ["json"]
    assert unexplained_imports("def f():\n    # It may be missing.\n    import json\n") == []


def test_every_world_is_asked_and_told_by_the_one_decide() -> None:
    """In the rooms of the worlds nothing else applies a plan, and each of them calls it."""
    applying, calling = [], set()
    for path in (path for path in product_files(ROOT) if path.startswith(("policies/", "sim/", "live/"))):
        source = (ROOT / path).read_text(encoding="utf-8")
        if not re.search(r"\.\s*apply\b|\bdecide\b", source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                plans = [ast.unparse(value) for value in node.args]
                applying += [path for plan in plans if name.endswith(".apply") and plan.endswith("plan")]
                calling |= {path} if name == "decide" else set()
    assert applying == ["policies/contract.py"]
    assert calling == {"live/decide/decider.py", "sim/world/world.py"}


def test_a_run_says_what_its_columns_and_totals_are() -> None:
    made = run(load(ROOT / "scenarios" / "quickstart.yaml"), seed=1)
    said = set(re.findall(r"\w+", Run.__doc__ or ""))
    parts = {use.label + "_usd" for use in WASTED_USES} | {"idle_usd"}
    assert {*made.jobs, *made.totals} - parts <= said


TOP = {
    ".ci", ".gitignore", "Makefile", "README.md", "SECURITY.md", "calibrate", "constraints.txt", "docs",
    "equipoise", "formats", "live", "policies", "pyproject.toml", "scenarios", "sim", "study", "tests",
}  # fmt: skip


def test_nothing_strays_into_the_top_level() -> None:
    """A trial's files are easily committed with the rest."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    assert {name.split("/")[0] for name in done.stdout.splitlines()} == TOP


WORDS = (
    "Outcome", "Job", "Group", "Piece", "Window", "Table", "Demand", "Exchange", "Plan", "Measured", "Deal",
    "Failure",
)  # fmt: skip


def test_each_of_twelve_words_names_one_class_where_the_page_says_and_the_others_say_which() -> None:
    """No two classes whose names hold one of them are called the same; the bare word is of the file on the page."""
    places: dict[str, list[str]] = {}
    for path in product_files(ROOT):
        source = (ROOT / path).read_text(encoding="utf-8")
        if not re.search(rf"^\s*class\s+\w*({'|'.join(WORDS)})", source, re.MULTILINE):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and any(word in node.name for word in WORDS):
                places.setdefault(node.name, []).append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\w+) \| (.*?) \|", page, re.MULTILINE))
    for word in WORDS:
        said = re.findall(r"`([^`]+\.py)`", rows[word])
        assert said == places.get(word, []), word
    qualified = set(re.findall(r"`([A-Z]\w+)`", page.partition("Twelve words")[2]))
    assert qualified - {"FailedRun"} <= set(places)


def test_where_a_new_part_goes_names_files_and_names_that_are_there() -> None:
    """Every file of the table stands in the tree, and every name in one of the files of its row."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    part = page.partition("## Where would a new one go?")[2].partition("\n## ")[0]
    rows = [re.findall(r"`([^`]+)`", line) for line in part.splitlines()[4:] if line.startswith("|")]
    assert len(rows) >= 8
    for row in rows:
        places = [name for name in row if "/" in name]
        made = [name for name in places if "NAME" in name]  # a new file: its folder is there
        assert all((ROOT / re.sub(r"(ROOM/)?NAME.*", "", name)).is_dir() for name in made), row
        there = [ROOT / name for name in places if name not in made]
        assert all(path.exists() for path in there), row
        text = "".join(path.read_text(encoding="utf-8") for path in there if path.is_file())
        names = {name for name in row if "/" not in name} - {"refine"}  # what a new stage itself defines
        assert all(re.search(rf"\b{name.split('.')[-1]}\b", text) for name in names), row
