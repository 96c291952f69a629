"""Files that hold nothing to read: one line each, whichever command takes them; any kind of line end is read."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest

from equipoise import cli
from equipoise.formats.read import read
from equipoise.formats.text.errors import FormatError
from equipoise.sim.loading.site.read import import_site
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import read_trace

SACCT = "JobID|User|Submit|Start|End|State|AllocTRES\n" + "".join(
    f"{k}|ada|2024-03-01T0{k}:00:00|2024-03-01T0{k}:10:00|2024-03-01T0{k}:20:00|COMPLETED|gres/gpu=2\n" for k in (1, 2)
)
SLURM = "ClusterName=lab\nNodeName=a[1-2] Gres=gpu:a100:4 CPUs=8 RealMemory=64000\nPartitionName=p Nodes=a[1-2]\n"
EMPTY = {
    "zero.txt": b"",
    "blank.txt": b"  \n\n\t \n",
    "mark.txt": b"\xef\xbb\xbf",
    "zero.gz": gzip.compress(b""),
    "blank.gz": gzip.compress(b" \n \n"),
}
OTHER = {"zeros.txt": b"\0\0\0", "cut.gz": gzip.compress(SACCT.encode())[:60], "elf.bin": b"\x7fELF\x02\0\0\0\xff\xfe"}
COLUMNS = ("--columns", "arrival=a,gpus=b,duration=c")


@pytest.mark.parametrize("name", [*EMPTY, *OTHER, "folder", "absent"])
@pytest.mark.parametrize(
    "command",
    [
        ("check", "FILE"),
        ("check", "FILE", *COLUMNS),
        ("check", "FILE", "--trace-format", "pai-jobs"),
        ("run", "lab.yaml", "--trace", "FILE"),
        ("import", "FILE"),
        ("import", "slurm.conf", "--trace", "FILE"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_one_line_for_each(
    name: str,
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "slurm.conf").write_text(SLURM)
    (tmp_path / "lab.yaml").write_text(
        "schema_version: 1\nname: lab\ncluster: {gpus: 4}\nworkload: {}\npolicy: [fifo]\n"
    )
    if data := {**EMPTY, **OTHER}.get(name):
        (tmp_path / name).write_bytes(data)
    elif name in EMPTY:
        (tmp_path / name).touch()
    assert cli.main([name if word == "FILE" else word for word in command]) == 2
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith(f"{name}:")
    assert told.out == ""
    assert ("empty" in line) == (name in EMPTY) or "pai-jobs" in command


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_any_line_ends(end: str, tmp_path: Path) -> None:
    jobs, config, own = tmp_path / "jobs.txt", tmp_path / "slurm.conf", tmp_path / "own.csv"
    for path, text in ((jobs, SACCT), (config, SLURM), (own, "job_id,arrival_s,gpus,duration_s\n7,0,1,10\n")):
        path.write_bytes(text.replace("\n", end).encode())
    assert read_trace(jobs).job_id.tolist() == [1, 2]
    assert read_trace(own).job_id.tolist() == [7]
    assert "count: 2" in import_site([config], out=tmp_path / "lab.yaml", trace=str(jobs))
    assert len(read(jobs)) == 2


def test_a_carriage_return_within_a_line_is_text() -> None:
    jobs = read(b"JobID|JobName|State\n1|a\rb|COMPLETED\n2|c|FAILED\n")
    assert jobs.name.tolist() == ["a\rb", "c"]


def test_columns_that_are_missing_stand_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1\n1,2,3\n")
    with pytest.raises(InputError) as caught:
        read_trace(path, "csv")
    missing = "columns 'job_id', 'arrival_s', 'gpus', 'duration_s' are missing"
    assert caught.value.lines == [f"{path}:1:1: {missing}; found: a, b"]
    with pytest.raises(FormatError, match="no row of the 6 columns of pai-jobs: job_name, inst_id, user"):
        read(b"a,b\n1,2\n", "pai-jobs")


def test_how_a_trace_is_read_stands_in_the_imported_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm.conf").write_text(SLURM)
    (tmp_path / "it's.csv").write_text("when,how_many,took\n2024-03-01 10:00,2,60\n2024-03-01 11:00,4,30\n")
    given = ["--columns", "arrival=when,gpus=how_many,duration=took", "--zone", "Europe/Berlin"]
    assert cli.main(["import", "slurm.conf", "--trace", "it's.csv", *given, "--out", "lab.yaml"]) == 0
    assert cli.main(["run", "lab.yaml", "--out", "ran"]) == 0
    assert cli.main(["import", "slurm.conf", *given, "--out", "other.yaml"]) == 2
    wrong = ["--columns", "arrival=x,gpus=how_many,duration=took"]
    assert cli.main(["import", "slurm.conf", "--trace", "it's.csv", *wrong, "--out", "other.yaml"]) == 2
    assert not (tmp_path / "other.yaml").exists()


@pytest.mark.parametrize("mark", [",", "|", " ", ";"])
@pytest.mark.parametrize("names", ["job_id,arrival_s,gpus,duration_s", "JobID,Submit,State", "JOBID,USER,ST"])
def test_a_table_of_a_hundred_thousand_columns_is_refused_at_once(names: str, mark: str, tmp_path: Path) -> None:
    """Each column costs memory and time: a million took 1.6 GB and 42 s."""
    path, more = tmp_path / "wide.txt", [f"c{k}" for k in range(100_000)]
    path.write_text("\n".join([mark.join([*names.split(","), *more]), mark.join(["1"] * 100_004)]))
    began_s = time.process_time()
    with pytest.raises(InputError, match="more than 16,384 columns"):
        read_trace(path)
    assert time.process_time() - began_s < 2.0
