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
from equipoise.policies.registry import PolicyError, make_policy
from equipoise.sim.loading.file import load
from equipoise.sim.scenario.tree import InputError, read_tree
from equipoise.sim.traces.read import read_trace
from equipoise.study.questions.sensitivity_keys import read_range
from equipoise.study.questions.size import read_vary as read_sizes
from equipoise.study.questions.targets import read_target
from equipoise.study.runs.sweep_spec import read_sweep
from equipoise.study.runs.until import read_until

SLIPS = ("1_0", "１０", "٣", " 7", "7 ", "+", "", "0x10", "1e", ".", "nan", "inf", "infinity", "1,000", "1\n")
SCENARIO = (
    "schema_version: 1\nname: s\ncluster: {{gpus: {gpus}}}\n"
    "workload:\n  jobs: [{{gpus: 1, duration: {duration}, priority: {priority}}}]\n"
)


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


def scenario(folder: Path, gpus: str = "2", duration: str = "1 s", priority: str = "1") -> Path:
    path = folder / "s.yaml"
    path.write_text(SCENARIO.format(gpus=gpus, duration=duration, priority=priority), encoding="utf-8")
    return path


@pytest.mark.parametrize("key", ["gpus", "duration", "priority"])
@pytest.mark.parametrize("slip", ["1_0", "'1_0'", "１０", '!!int "1_0"', '!!float "1_0"', '!!bool "yes"'])
def test_a_scenario(tmp_path: Path, key: str, slip: str) -> None:
    with pytest.raises(InputError) as caught:
        load(scenario(tmp_path, **{key: slip}))
    (line,) = caught.value.lines
    assert key in line
    assert "is not" in line
    with pytest.raises(InputError, match="is not a whole number"):
        load(scenario(tmp_path), ["cluster.gpus=1_0"])


def test_what_yaml_itself_would_read_otherwise() -> None:
    """Underscores between thousands are those of YAML 1.1; other bases and times are texts."""
    assert read_tree("[1_000, 1_0, 1:30, 0b11, 0o17, 1e3]", "t").data == [1000, "1_0", "1:30", "0b11", 15, 1000.0]


def test_an_index_in_a_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no entry '٠'"):
        load(scenario(tmp_path), ["workload.jobs.٠.gpus=1"])


HEAD = "job_id,arrival_s,gpus,duration_s\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (",0,1,5", "2:1: job_id: is empty"),
        ("1,1_0,1,5", "2:3: arrival_s: '1_0' is not a number"),
        ("1,0,1_0,5", "2:5: gpus: '1_0' is not a number"),
        ("1,0,１,5", "2:5: gpus: '１' is not a number"),
        ("1,0,1,infinity", "2:7: duration_s: 'infinity' is not a number"),
        ("1,0,1,1e999", "2:7: duration_s: '1e999' is not a number"),
    ],
)
def test_a_trace(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD}{row}\n3,0,1,5\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_trace(path)
    (line,) = caught.value.lines
    assert line.startswith(f"{path}:{message}")


@pytest.mark.parametrize("name", ["abc-1", "12_3", "-3", "1.0", "１２", "9223372036854775808"])
def test_what_is_no_plain_number_is_a_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD}7,0,1,5\n{name},1,1,5\n", encoding="utf-8")
    trace = read_trace(path)
    assert trace.job_id.tolist() == [0, 1]
    assert trace.name == ("7", name)
    said = f"job_id {name!r} in line 3 is not a number"
    assert trace.notes == (f"t.csv: {said}: jobs keep these names and are numbered by row (from 0)",)


@pytest.mark.parametrize("stamp", ["now", "2017", "２０１７-01-01 00:00:00"])
def test_the_dates_of_a_trace(tmp_path: Path, stamp: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"timestamp,duration,num_gpus\n2017-01-01 00:00:00,1,1\n{stamp},1,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="is not a date and time"):
        read_trace(path)


def test_the_options_of_a_study(tmp_path: Path) -> None:
    for text in ("makespan<=1_0 s", "makespan<=１ h"):
        with pytest.raises(InputError, match="is not a time"):
            read_target(text)
    with pytest.raises(InputError, match="is not a share"):
        read_until("ci:1_0%", 5)
    with pytest.raises(InputError, match="is not a factor"):
        read_range("workload.jobs.0.duration=x1_0..x20", load(scenario(tmp_path)))
    for text in ("1_0:20", "１０:20"):
        assert read_sizes(f"cluster.gpus={text}") == ("cluster.gpus", [text])  # which the scenario refuses


def test_the_parameters_of_a_stage() -> None:
    for text in ("fixed-h(interval=1_0)", "fixed-h(interval=１０)", "las(thresholds_gpu_s=1_0)"):
        with pytest.raises(PolicyError):
            make_policy(text)


def test_a_sweep_file(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    for slip in ("seeds: 1_0", "parameters: {cluster.gpus: {low: 1_0, high: 20, steps: 2}}"):
        path.write_text(f"schema_version: 1\nname: w\nscenario: s.yaml\npolicies: [fifo]\n{slip}\n")
        with pytest.raises(InputError, match="'1_0' is not a"):
            read_sweep(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "s.yaml", "--seed", "1_0"],
        ["compare", "s.yaml", "--seeds", "１０"],
        ["size", "s.yaml", "--confidence", "0.9_5"],
        ["sweep", "w.yaml", "--out", "o", "--shard", "٣/4"],
        ["monitor", "--interval", "1_0"],
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


def test_a_long_text_is_cut_in_what_is_said() -> None:
    for size, shown in ((60, repr("x" * 60)), (61, repr("x" * 60)[:57] + "...")):
        for read in (strict_int, strict_float):
            with pytest.raises(ValueError, match=re.escape(f"{shown} is not a")):
                read("x" * size)
