"""Files that are none, or too large, are refused; nothing is waited for."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from equipoise import cli
from equipoise.sim.scenario import input_file
from equipoise.sim.scenario.input_file import RefusedError, read_file, read_unpacked
from equipoise.sim.scenario.tree import InputError, read_text
from equipoise.sim.traces import table
from equipoise.sim.traces.read import read_trace


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_at_once(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    path = path if kind == "pipe" else Path("/dev/zero")
    for read in (read_text, read_trace):
        with pytest.raises(InputError, match=rf"^{path}: not a regular file"):
            read(path)
    assert cli.main(["validate", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_is_no_file_either(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_text(tmp_path)


def test_the_limit_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert read_file(path, 100) == read_unpacked(path, 100) == b"x" * 100
    with pytest.raises(RefusedError, match="larger than 99 bytes"):
        read_file(path, 99)


def test_a_file_that_unfolds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"0" * 10_000_000))
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(table, "TABLE_BYTES", 1_000_000)
    with pytest.raises(InputError, match="larger than 1000000 bytes when unpacked"):
        read_trace(path)
    assert len(read_unpacked(path, 10_000_000)) == 10_000_000


def test_a_large_scenario_is_told_where_its_jobs_belong(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"#" * (input_file.YAML_BYTES + 1))
    with pytest.raises(InputError, match="larger than 8000000 bytes; put job lists into a CSV trace"):
        read_text(path)
