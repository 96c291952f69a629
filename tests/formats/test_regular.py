"""Files that are none, or too large, are refused; nothing is waited for."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import duckdb
import pytest

from equipoise import cli
from equipoise.base import regular
from equipoise.base.regular import RefusedError, read_file, read_unpacked
from equipoise.formats import operations
from equipoise.formats.text.errors import FormatError
from equipoise.sim.scenario.tree import InputError, read_text
from equipoise.sim.traces import table
from equipoise.sim.traces.read import read_trace


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    path = path if kind == "pipe" else Path("/dev/zero")
    for read in (read_text, read_trace):
        with pytest.raises(InputError, match=rf"^{path}: not a regular file"):
            read(path)
    assert cli.main(["validate", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_that_has_its_content_later_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `/proc/kmsg` does for root: a regular file, says the system, that gives nothing yet."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    kept = [os.open(path, os.O_RDONLY | os.O_NONBLOCK), os.open(path, os.O_WRONLY)]
    monkeypatch.setattr(regular.stat, "S_ISREG", lambda _: True)
    for command in (["validate"], ["run", "--policy", "fifo"], ["check"]):
        assert cli.main([*command, str(path)]) == 2
        err = capsys.readouterr().err
        assert err.endswith(f"{path}: cannot be read: Resource temporarily unavailable\n")
        assert err.count("\n") == 1
    for handle in kept:
        os.close(handle)


def test_the_limit_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert read_file(path, 100) == read_unpacked(path, 100) == b"x" * 100
    with pytest.raises(RefusedError, match="larger than 99 bytes"):
        read_file(path, 99)


def test_a_file_that_unfolds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"job_id,arrival_s,gpus,duration_s\n" + b"0" * 10_000_000))
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(table, "TABLE_BYTES", 1_000_000)
    with pytest.raises(InputError, match="larger than 1000000 bytes when unpacked"):
        read_trace(path)
    assert len(read_unpacked(path, 11_000_000)) > 10_000_000


def test_a_large_scenario_is_told_where_its_jobs_belong(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"#" * (regular.YAML_BYTES + 1))
    with pytest.raises(InputError, match="larger than 8000000 bytes; put long job lists into a CSV trace"):
        read_text(path)


READERS = {
    "replay": "replay @",
    "steps of ranks": "replay folder/rank0.json folder/rank1.et",
    "key": "export --check policy.yaml --key-file @",
    "policy": "export --check @",
    "noise": "calibrate fit-noise @",
    "steps": "calibrate fit-steps @",
    "samples": "calibrate --from @ --out new.yaml",
    "profile": "calibrate --check @",
    "record": "twin live",
    "page": "report live",
    "import": "import @",
    "sweep": "sweep @ --out new",
    "trace": "run case.yaml --trace @",
    "query": "query --out @ SELECT\t1",
}
"""A command that reads a file, by what it takes it for; in the folder `live` the manifest is a pipe."""


@pytest.mark.parametrize("what", READERS)
def test_no_command_waits_for_somebody_to_write_into_a_pipe(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("live", "folder"):
        Path(folder).mkdir()
    for pipe in ("pipe", "live/manifest.json", "folder/rank0.json", "folder/rank1.et"):
        os.mkfifo(pipe)
    Path("policy.yaml").write_text("format: x\n")
    Path("case.yaml").write_text("schema_version: 1\nname: c\ncluster: {gpus: 1}\nworkload: {}\n")
    words = READERS[what].replace("@", "pipe").split(" ")
    assert cli.main([word.replace("\t", " ") for word in words]) == 2
    said = capsys.readouterr().err
    assert "pipe" in said or "manifest.json" in said or "rank" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_a_profiled_step_that_unfolds_or_never_ends_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "RECORD_BYTES", 1_000_000)
    bomb = tmp_path / name
    bomb.write_bytes(gzip.compress(b" " * 10_000_000) if name.endswith("gz") else b" " * 2_000_000)
    endless = tmp_path / f"endless-{name}"
    endless.symlink_to("/dev/zero")
    for path, why in ((bomb, "larger than 1000000 bytes"), (endless, "not a regular file")):
        with pytest.raises(FormatError, match=f"^{path}: {why}"):
            operations.read_operations([path])


def test_a_table_of_operations_that_unfolds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "OPERATIONS_MOST", 1000)
    path = tmp_path / "t.parquet"
    columns = ", ".join(f"0 AS {name}" for name in operations.COLUMNS)
    duckdb.sql(f"COPY (SELECT {columns} FROM range(1000000)) TO '{path}'")
    assert path.stat().st_size < 20_000
    with pytest.raises(FormatError, match="more than 1000 operations"):
        operations.read_operations([path])
