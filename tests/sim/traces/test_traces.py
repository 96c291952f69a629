from __future__ import annotations

import csv
import gzip
import io
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import Trace, read_trace

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_numbers_of_jobs_are_kept_up_to_the_largest_and_are_names_beyond(tmp_path: Path) -> None:
    text = "job_id,arrival_s,gpus,duration_s\n{},0,1,5\n1000,1,1,5\n"
    kept = read_trace(write(tmp_path, text.format(2**63 - 1)))
    assert (kept.job_id.tolist(), kept.notes) == ([2**63 - 1, 1000], ())
    named = read_trace(write(tmp_path, text.format(2**63)))
    assert named.job_id.tolist() == [0, 1]
    assert "is not a number" in named.notes[0]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_plain_csv_keeps_ids_and_sorts_stably(tmp_path: Path, name: str) -> None:
    text = "gpus,job_id,arrival_s,duration_s,owner\n4,7,10,100,x\n1,9,0,5.5,y\n2,3,10,50,z\n"
    trace = read_trace(write(tmp_path, text, name))
    assert trace.job_id.tolist() == [9, 7, 3]
    assert trace.arrival_s.tolist() == [0.0, 10.0, 10.0]
    assert trace.gpus.tolist() == [1, 4, 2]
    assert trace.duration_s.tolist() == [5.5, 100.0, 50.0]
    assert trace.priority.tolist() == [1.0, 1.0, 1.0]
    assert trace.model.tolist() == ["", "", ""]
    assert trace.notes == (f"{name}: sorted by arrival",)


def test_optional_columns(tmp_path: Path) -> None:
    text = "job_id,arrival_s,gpus,duration_s,priority,model\n0,0,1,5,2.5,vision\n1,1,1,5,,\n"
    trace = read_trace(write(tmp_path, text))
    assert trace.priority.tolist() == [2.5, 1.0]
    assert trace.model.tolist() == ["vision", ""]
    assert trace.notes == ()


def test_philly_counts_from_the_earliest_and_takes_rows_as_ids(tmp_path: Path) -> None:
    text = (
        "timestamp,duration,num_gpus,cluster\n"
        "2017-10-09 07:01:55,66.0,1,b\n2017-10-09 06:00:00,10,8,a\n2017-10-09 07:01:55,66.0,1,b\n"
    )
    trace = read_trace(write(tmp_path, text))
    assert trace.job_id.tolist() == [1, 0, 2]
    assert trace.arrival_s.tolist() == [0.0, 3715.0, 3715.0]
    assert trace.gpus.tolist() == [8, 1, 1]
    (note,) = trace.notes
    assert "arrivals counted from 2017-10-09T06:00:00Z" in note
    assert "3 timestamp without a zone read as UTC" in note
    only = read_trace(tmp_path / "t.csv", clusters=["b"])
    assert only.job_id.tolist() == [0, 2]
    assert only.arrival_s.tolist() == [0.0, 0.0]


def test_what_cannot_run_is_left_out_and_said(tmp_path: Path) -> None:
    text = "job_id,arrival_s,gpus,duration_s\n0,0,1,5\n0,0,1,5\n1,1,1,0\n2,2,0,7\n3,3,1,1\n"
    trace = read_trace(write(tmp_path, text))
    assert trace.job_id.tolist() == [0, 3]
    assert trace.notes == (
        "t.csv: 1 jobs left out (equal to an earlier row); 1 jobs left out (zero duration); 1 jobs left out (no GPUs)",
    )
    philly = read_trace(write(tmp_path, "timestamp,duration,num_gpus\n9,,1\n5,3,1\n4,0,1\n"))
    assert philly.job_id.tolist() == [1]
    assert "1 no duration" in philly.notes[0]
    assert "1 zero duration" in philly.notes[0]


def test_limit_takes_the_earliest_and_time_scale_stretches(tmp_path: Path) -> None:
    text = "job_id,arrival_s,gpus,duration_s\n0,30,1,5\n1,10,1,5\n2,20,1,5\n"
    trace = read_trace(write(tmp_path, text), limit=2, time_scale=0.5)
    assert trace.job_id.tolist() == [1, 2]
    assert trace.arrival_s.tolist() == [5.0, 10.0]
    assert "the first 2 of 3 jobs" in trace.notes[0]
    assert "arrivals multiplied by 0.5" in trace.notes[0]


def test_ids_that_are_no_numbers_are_names(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "job_id,arrival_s,gpus,duration_s\na-1,9,1,5\nb-2,0,1,5\n"))
    assert trace.job_id.tolist() == [1, 0]
    assert trace.name == ("b-2", "a-1")
    assert "numbered by row" in trace.notes[0]


HEAD = "job_id,arrival_s,gpus,duration_s\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("job_id,gpus,duration_s\n1,2,3\n", ["1:1: column 'arrival_s' is missing; found: job_id, gpus, duration_s"]),
        (
            "a,b\n1,2\n",
            ["not a known format: 2 columns cut by ',' in 2 of the first 2 lines: a, b; columns needed: csv: job_id,"],
        ),
        ("", ["1:1: empty; the first line must name the columns"]),
        (HEAD, [" no jobs in it"]),
        (HEAD + "1,0,2,5\n1,0,3,5\n", ["3:1: job_id: duplicate '1' (first on line 2)"]),
        (HEAD + "1,0,2,abc\n", ["2:7: duration_s: 'abc' is not a number"]),
        (HEAD + "1,0,2,-5\n", ["2:7: duration_s: -5 is too small, must be at least 0"]),
        (HEAD + "1,-1,2,5\n", ["2:3: arrival_s: -1 is too small, must be at least 0"]),
        (HEAD + "1,0,1.5,5\n", ["2:5: gpus: '1.5' is not a whole number"]),
        (HEAD + "1,0,,5\n", ["2:5: gpus: is empty, a number is needed"]),
        (
            HEAD.replace("\n", ",prioritty\n") + "1,0,2,5,1\n",
            ["1:1: unknown column 'prioritty'; did you mean 'priority'?"],
        ),
        (HEAD.replace("\n", ",priority\n") + "1,0,2,5,0\n", ["2:9: priority: 0 is not allowed, must be above 0"]),
        (
            "timestamp,duration,num_gpus\n2017-13-01 00:00:00,5,1\n",
            ["no jobs in it: left out: 1 no submit time; changed: 1 timestamp is not a time, ignored"],
        ),
        ("timestamp,duration,num_gpus\n1e308,5,1\n-1e308,5,1\n", ["no jobs in it: left out: 2 a time above 1e+12 s"]),
    ],
)
def test_each_mistake_is_one_line(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert len(caught.value.lines) >= len(lines)
    for expected, line in zip(lines, caught.value.lines, strict=False):
        assert line.startswith(f"{path}:")
        assert expected in line


def test_many_mistakes_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "".join(f"{k},0,x,5\n" for k in range(500)))
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert len(caught.value.lines) == 21
    assert caught.value.lines[-1].endswith("and 480 more lines like these")


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    for name, data, message in (
        ("a.csv", b"\xff\xfe\x00", "not UTF-8 text"),
        ("b.csv.gz", gzip.compress(b"job_id,arrival_s\n" * 50)[:-12], "damaged gzip file"),
        ("c.csv", None, "cannot be read: No such file"),
    ):
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(InputError, match=message):
            read_trace(path)
    with pytest.raises(ValueError, match="unknown trace format 'slurm'; allowed: auto, csv, "):
        read_trace(tmp_path / "a.csv", "slurm")
    with pytest.raises(InputError, match="no cluster 'z'; known: a, b"):
        read_trace(write(tmp_path, "timestamp,duration,num_gpus,cluster\n1,1,1,a\n1,1,1,b\n"), clusters=["z"])
    with pytest.raises(InputError, match="column 'cluster' is missing"):
        read_trace(write(tmp_path, HEAD + "1,0,1,1\n"), clusters=["z"])


START = datetime(2017, 8, 1)
rows = st.tuples(st.integers(0, 5000), st.integers(0, 300), st.integers(0, 9), st.sampled_from("ab"))


def naive_philly(text: str) -> list[tuple[int, float, int, float]]:
    """Plain twin: (row, arrival, GPUs, duration) of every job that can run, in order of (arrival, row)."""
    jobs = []
    for k, row in enumerate(csv.DictReader(io.StringIO(text))):
        if float(row["duration"]) > 0 and int(row["num_gpus"]) > 0:
            arrival = (datetime.fromisoformat(row["timestamp"]) - START).total_seconds()
            jobs.append((k, arrival, int(row["num_gpus"]), float(row["duration"])))
    first = min((job[1] for job in jobs), default=0.0)
    return sorted(((k, a - first, g, d) for k, a, g, d in jobs), key=lambda job: (job[1], job[0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, min_size=1, max_size=40))
def test_philly_equals_its_plain_twin(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[int, int, int, str]]
) -> None:
    lines = [f"{START + timedelta(seconds=at)},{duration},{gpus},{vc}" for at, duration, gpus, vc in jobs]
    text = "\n".join(["timestamp,duration,num_gpus,cluster", *lines]) + "\n"
    path = write(tmp_path_factory.mktemp("t"), text)
    expected = naive_philly(text)
    if not expected:
        with pytest.raises(InputError, match="no jobs in it"):
            read_trace(path)
        return
    trace = read_trace(path)
    columns = (trace.job_id, trace.arrival_s, trace.gpus, trace.duration_s)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == expected


@pytest.mark.shared_data
def test_public_traces_are_read_whole() -> None:
    path = SHARED / "traces" / "philly_jobs.csv.gz"
    if not path.is_file():
        pytest.skip("public measurements are not here")
    trace = read_trace(path)
    assert len(trace) == 68_063
    assert trace.arrival_s[0] == 0.0
    one = read_trace(SHARED / "schedules" / "C1_philly_0e4a51.csv.gz")
    assert isinstance(one, Trace)
    assert len(one) == 1_435
    assert one.notes == ()


def test_a_mapped_priority_is_above_zero_or_the_job_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "id,at,n,took,weight\na,0,1,5,2.5\nb,1,1,5,0\nc,2,1,5,\nd,3,1,5,-1\n")
    names = {"job_id": "id", "arrival": "at", "gpus": "n", "duration": "took", "priority": "weight"}
    trace = read_trace(path, columns=names)
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.priority.tolist() == [2.5, 1.0]
    assert any("2" in note and "priority that is not above 0" in note for note in trace.notes)
    assert any("no priority, taken as 1" in note for note in trace.notes)


def test_a_mapped_trace_without_priorities_says_nothing_of_them(tmp_path: Path) -> None:
    path = write(tmp_path, "id,at,n,took\na,0,1,5\nb,1,1,5\n")
    trace = read_trace(path, columns={"job_id": "id", "arrival": "at", "gpus": "n", "duration": "took"})
    assert trace.priority.tolist() == [1.0, 1.0]
    assert not any("priority" in note for note in trace.notes)
