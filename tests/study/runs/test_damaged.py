"""Ledgers that are damaged, emptied or half there: one line that names the file, and nothing more is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.study.folders import LEDGER, reading
from equipoise.study.runs.store import PARQUET, Ledger, connect
from equipoise.study.runs.sweep import sweep
from tests.study.runs.sweeps.sweep_helpers import quick, write_sweep

PAGE = 4096
ELSEWHERE = ("third page", "last page")  # an index, and facts of the sweep: not every question needs them
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "text": lambda data: b"hello world\n" * 100,
    "zeros after the header": lambda data: data[:100] + bytes(len(data) - 100),
    "second page": lambda data: data[:PAGE] + b"\xff" * PAGE + data[2 * PAGE :],
    "third page": lambda data: data[: 2 * PAGE] + b"\xff" * PAGE + data[3 * PAGE :],
    "last page": lambda data: data[:-PAGE] + b"\xff" * PAGE,
    "nothing": lambda data: b"",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    sweep(write_sweep(folder, seeds=1), folder / "out", runner=quick)
    return folder


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_ledger_is_named(
    what: str, copied: bool, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / LEDGER).write_bytes(DAMAGES[what]((sound / "out" / LEDGER).read_bytes()))
    if copied:
        (out / PARQUET).write_bytes((sound / "out" / PARQUET).read_bytes())
        os.utime(out / PARQUET, (0, 0))  # older than the ledger
    before = {path: path.read_bytes() for path in out.iterdir()}
    found = 0
    commands = [["query", "SELECT * FROM runs", "--out", str(out)], ["report", str(out), "--out", f"{out}.html"]]
    if what != "nothing":  # of which a sweep makes a ledger
        commands.append(["sweep", str(sound / "sweep.yaml"), "--out", str(out), "-q"])
    for command in commands:
        code = main(command)
        said = capsys.readouterr().err.splitlines()
        if code == 0 and what in ELSEWHERE:
            continue
        found += 1
        assert code in (1, 2), command
        assert len(said) == 1
        assert f"{out / LEDGER}: is damaged: " in said[0] or f"{out / LEDGER}: cannot be read: " in said[0]
    assert found
    if copied and what not in ELSEWHERE:
        assert (out / PARQUET).read_bytes() == before[out / PARQUET]


def test_a_ledger_is_read_while_it_is_written(sound: Path, tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.put({"id": "a", "number": 0, "point": 0, "policy": "p", "seed": 0, "status": "done", "attempts": 1})
        with reading(tmp_path / LEDGER) as other:
            assert other.execute("SELECT id FROM runs").fetchall() == [("a",)]
        with connect(tmp_path) as connection:
            assert connection.execute("SELECT id FROM runs").fetchall() == [("a",)]
