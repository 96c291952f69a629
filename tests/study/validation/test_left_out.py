"""Rows and splits that cannot be used: left out, counted and said, never the end of a data set."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.study.validation.rows import Cells, LeftOutWarning, read_rows
from equipoise.study.validation.score import Score, of_splits
from equipoise.study.validation.sets import mig

Capture = pytest.CaptureFixture[str]
SHARES = {"7g.40gb": 1.0, "3g.20gb": 0.45, "1g.5gb": 0.13}


def slices(folder: Path, workloads: int, damage: str = "") -> Path:
    """A made-up file of MIG slices; `damage` stands in place of one measured time."""
    path = folder / mig.FILE
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["slice", "workload", "batch", "median", "of_a_later_year"])
        for k in range(workloads):
            for name, share in SHARES.items():
                for batch in (1, 2, 4, 8):
                    time = damage if damage and (k, batch, share) == (0, 8, 0.13) else 0.1 * batch / share
                    writer.writerow([name, f"model {k}", batch, time, "x"])
    return folder


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("", ""),
        ("0", "median: '0' is not above 0 (1)"),
        ("1_0", "median: '1_0' is not a number; write it without '_' (1)"),
        ("n/a", "median: 'n/a' is not a number (1)"),
        (" ", "median: ' ' is not a number (1)"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted(tmp_path: Path, capsys: Capture, damage: str, reason: str) -> None:
    assert main(["validate-against", "mig", "--data", str(slices(tmp_path, 6, damage))]) == 0
    shown = capsys.readouterr()
    assert "MIG slices" in shown.out
    told = [line for line in shown.err.splitlines() if "rows left out" in line]
    wanted = f"note: mig: miso_mig_iteration_times.csv: 1 of 72 rows left out: {reason}"
    assert told == ([wanted] if reason else [])


def test_what_was_left_out_stands_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    folder = slices(tmp_path, 6, "n/a")
    assert main(["validate-against", "mig", "--data", str(folder), "--write", str(page)]) == 0
    assert "## Rows left out\n\n- mig: miso_mig" in page.read_text()


def test_no_row_that_can_be_used_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    path = slices(tmp_path, 1) / mig.FILE
    path.write_text("slice,workload,batch,median\nwhole,a,1,1\n")
    assert main(["validate-against", "mig", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "equipoise: mig: miso_mig_iteration_times.csv: no row can be used: slice: 'whole' is not a number (1)"
    ]


def test_few_reasons_are_told_and_the_others_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n\n1\n" + "".join(f"x{k}\n" for k in range(9)))
    with pytest.warns(LeftOutWarning, match=r"9 of 10 rows left out: .*'x2' is not a number \(1\); others \(6\)$"):
        assert read_rows(path, lambda text: text.whole("n")) == [1]


def test_whole_numbers_may_have_a_point() -> None:
    row = Cells(a="16.0", b="1.5")
    assert row.whole("a") == 16
    with pytest.raises(ValueError, match=r"b: '1\.5' is not a whole number"):
        row.whole("b")


def test_a_split_that_cannot_be_fitted_is_left_out() -> None:
    def make(split: int) -> Score:
        if split % 2:
            raise ValueError("too few")
        return Score(1, 0.1 * split, 0.0, 0.0)

    with pytest.warns(LeftOutWarning, match=r"splits left out: 1, 3 \(too few\)"):
        assert [score.error for score in of_splits(make, range(4))] == [0.0, 0.2]
    with pytest.raises(ValueError, match="too few"):
        of_splits(make, [1, 3])
