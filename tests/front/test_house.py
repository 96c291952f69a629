"""What the docs promise about the code: columns of a run, and where a new part goes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from equipoise.api import load
from equipoise.sim.job.account import WASTED_USES
from equipoise.sim.record import Run
from equipoise.sim.run import run
from tests.bench.house import product_files, shared_class_names

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_says_what_its_columns_and_totals_are() -> None:
    made = run(load(ROOT / "scenarios" / "quickstart.yaml"), seed=1)
    said = set(re.findall(r"\w+", Run.__doc__ or ""))
    parts = {use.label + "_usd" for use in WASTED_USES} | {"idle_usd"}
    assert {*made.jobs, *made.totals} - parts <= said


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


def test_a_class_name_has_one_meaning() -> None:
    trees = {path: ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in product_files()}
    assert shared_class_names(trees) == []
