"""Rows and splits that cannot be used: left out, counted and said, never the end of a data set."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.study.validation.rows import Cells, LeftOutWarning, read_rows
from equipoise.study.validation.score import Score, of_splits
from equipoise.study.validation.sets import power_caps

Capture = pytest.CaptureFixture[str]


def limits(folder: Path, damage: str = "") -> Path:
    """A made-up file of epochs under power limits; `damage` stands in place of one measured time."""
    path = folder / power_caps.FILE
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*power_caps.NAMES, "power_limit", "time_per_epoch", "average_power", "of_a_later_year"])
        for k in range(6):
            for limit_w in (300, 250, 200):
                epoch_s = damage if damage and (k, limit_w) == (0, 250) else 10 * 300 / limit_w
                writer.writerow(["V100", "d", f"model {k}", 32, "adam", limit_w, epoch_s, 0.9 * limit_w, "x"])
    return folder


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("", ""),
        ("0", "time_per_epoch: '0' is not above 0 (1)"),
        ("1_0", "time_per_epoch: '1_0' is not a number; write it without '_' (1)"),
        ("n/a", "time_per_epoch: 'n/a' is not a number (1)"),
        (" ", "time_per_epoch: ' ' is not a number (1)"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted(tmp_path: Path, capsys: Capture, damage: str, reason: str) -> None:
    page = tmp_path / "page.md"
    told = ["--write", str(page)]
    assert main(["validate-against", "power-caps", "--data", str(limits(tmp_path, damage)), *told]) == 0
    shown = capsys.readouterr()
    assert "Zeus: power at the highest limit" in shown.out
    left = f"zeus_power_limit.csv.gz: 1 of 18 rows left out: {reason}"
    notes = [line for line in shown.err.splitlines() if "rows left out" in line]
    assert notes == ([f"note: power-caps: {left}"] if reason else [])
    assert (f"## Rows left out\n\n- power-caps: {left}" in page.read_text()) == bool(reason)


def test_no_row_that_can_be_used_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    path = limits(tmp_path) / power_caps.FILE
    with gzip.open(path, "wt") as file:
        file.write(
            "gpu,dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\nV,d,n,1,a,x,1,1\n"
        )
    assert main(["validate-against", "power-caps", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "equipoise: power-caps: zeus_power_limit.csv.gz: no row can be used: power_limit: 'x' is not a number (1)"
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
