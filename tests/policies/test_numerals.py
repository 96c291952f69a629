"""Numbers in text: the strict way, and that everything that reads text reads them so."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from equipoise.base.numerals import is_index, plain_numbers, strict_float, strict_int
from equipoise.cli import CommandState, cli
from equipoise.sim.traces.read import read_trace

SLIPS = ("1_0", "１０", "٣", " 7", "7 ", "+", "", "0x10", "1e", ".", "nan", "inf", "infinity", "1,000", "1\n")


@given(st.integers())
def test_whole_numbers_are_read_back(number: int) -> None:
    assert strict_int(str(number)) == number
    assert is_index(str(number)) == (number >= 0)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_read_back(number: float) -> None:
    assert strict_float(repr(number)) == number


@given(st.text())
def test_what_is_taken_is_ascii_and_python_agrees(text: str) -> None:
    for read, python in ((strict_int, int), (strict_float, float)):
        try:
            value = read(text)
        except ValueError:
            continue
        assert re.fullmatch(r"[-+.0-9eE]+", text)
        assert value == python(text)


@pytest.mark.parametrize("text", SLIPS)
def test_slips_of_the_pen_are_refused(text: str) -> None:
    for read in (strict_int, strict_float):
        with pytest.raises(ValueError, match=r"is not a (whole )?number"):
            read(text)
    assert not is_index(text)


HEAD = "job_id,arrival_s,gpus,duration_s\n"


@pytest.mark.parametrize("name", ["abc-1", "12_3", "-3", "1.0", "１２", "9223372036854775808"])
def test_what_is_no_plain_number_is_a_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD}7,0,1,5\n{name},1,1,5\n", encoding="utf-8")
    trace = read_trace(path)
    assert trace.job_id.tolist() == [0, 1]
    assert trace.name == ("7", name)
    said = f"job_id {name!r} in line 3 is not a number"
    assert trace.notes == (f"t.csv: {said}: jobs keep these names and are numbered by row (from 0)",)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "s.yaml", "--seed", "1_0"],
        ["compare", "s.yaml", "--seeds", "１０"],
        ["size", "s.yaml", "--confidence", "0.9_5"],
        ["sweep", "w.yaml", "--out", "o", "--shard", "٣/4"],
        ["calibrate", "--seconds", "inf"],
    ],
)
def test_the_command_line(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli, arguments, obj=CommandState())
    assert done.exit_code == 2
    assert "Invalid value for" in done.output


def test_the_scripts_of_the_live_room(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    plain_numbers(parser)
    parser.add_argument("--ranks", type=int)
    assert parser.parse_args(["--ranks", "12"]).ranks == 12
    with pytest.raises(SystemExit):
        parser.parse_args(["--ranks", "1_2"])
    assert "argument --ranks: invalid int value: '1_2'" in capsys.readouterr().err
