"""Accounting records of Slurm: text of any layout, JSON, what is merged and what is left out."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.formats.recognise import recognise
from equipoise.formats.slurm.accounting import read_accounting
from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.slurm.json_output import read_accounting_json
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.tally import TextChange

HEADER = "JobID|JobName|User|Partition|State|Submit|Start|End|Timelimit|NNodes|AllocCPUS|AllocTRES|ReqMem"
ROW = "12|train|ann|gpu|COMPLETED|2024-03-01T10:00:00|2024-03-01T10:05:00|2024-03-01T11:05:00|1-00:00:00|2|16"
ROW += "|billing=16,cpu=16,gres/gpu:a100=8,gres/gpu=8,mem=128G,node=2|64Gn"
MARCH = 1709287200.0  # 2024-03-01T10:00:00 UTC


def read(*lines: str, **options: str) -> JobTable:
    return read_accounting("\n".join(lines).encode(), **options)  # type: ignore[arg-type]


def found(table: JobTable) -> set[tuple[str, str, int, int]]:
    usual = ("times without a zone", "GPU type known only from the allocation")
    return {(c.action, c.reason, c.count, c.first_line) for c in table.changes if not c.reason.startswith(usual)}


def test_a_row_by_its_header() -> None:
    jobs = read(HEADER, ROW)
    assert [jobs.job_id[0], jobs.name[0], jobs.user[0], jobs.state[0]] == ["12", "train", "ann", "COMPLETED"]
    assert [jobs.submit_s[0], jobs.start_s[0], jobs.end_s[0]] == [MARCH, MARCH + 300, MARCH + 3900]
    assert [jobs.elapsed_s[0], jobs.time_limit_s[0]] == [3600.0, 86400.0]
    assert [jobs.nodes[0], jobs.cpus[0], jobs.gpus[0], jobs.gpu_type[0]] == [2, 16, 8, "a100"]
    assert jobs.memory_bytes[0] == 128 * 2**30
    assert jobs.changes == (
        TextChange("changed", "GPU type known only from the allocation: taken as requested", 1, 2),
        TextChange("noted", "times without a zone read as UTC", 1, 2),
    )


def test_order_case_and_delimiter_of_the_columns_do_not_matter() -> None:
    expected = read(HEADER, ROW)
    for mark in ("|#", "\t", ";", "^", "::"):
        names, cells = HEADER.upper().split("|")[::-1], ROW.split("|")[::-1]
        jobs = read(mark.join(names), mark.join(cells))
        assert (jobs.gpus[0], jobs.end_s[0], jobs.name[0]) == (expected.gpus[0], expected.end_s[0], "train")
        trailing = read(mark.join(names) + mark, mark.join(cells) + mark)  # --parsable ends each line with it
        assert trailing.gpus[0] == 8
        assert trailing.other[""].tolist() == [""]


def test_a_comma_as_delimiter_is_told_from_the_commas_within_resources_and_node_lists() -> None:
    names = (HEADER + "|NodeList").replace("|", ",")
    jobs = read(names, (ROW + "|gn[01-02,07],x1").replace("|", ","))
    assert (jobs.gpus[0], jobs.node_list[0], jobs.name[0]) == (8, "gn[01-02,07],x1", "train")


def test_a_table_that_another_program_wrote_with_quotes() -> None:
    text = ('"JobID","JobName",State,AllocTRES', '1,"a,""b""",RUNNING,"cpu=1,gres/gpu=2"', "2,x", '"3","c\nd",FAILED,')
    jobs = read(*text)
    assert jobs.name.tolist() == ['a,"b"', "c\nd"]
    assert jobs.gpus.tolist() == [2, -1]
    assert jobs.line.tolist() == [2, 5]
    assert found(jobs) == {("left out", "not as many fields as the 4 columns", 1, 3)}


def test_published_column_lists_without_a_header_with_bars_in_names() -> None:
    begin = "9_[1-3]|9|ub|gen|acc|grp|1|usr|2|2024-03-01T10:00:00|2024-03-01T10:00:00|2024-03-01T10:00:00"
    middle = "|2024-03-01T11:00:00|01:00:00|0:0|COMPLETED|2|16|16|3000Mc"
    older = read(begin + middle + "|gpu:2|cpu=16|3-00:00:00|n[03,05-07]|na|me")
    newer = read(begin.replace("gen|", "gen|q|") + middle + "|cpu=16|cpu=16,gres/gpu=4|3-00:00:00|n1,n2|name")
    assert (older.name[0], older.gpus[0], older.node_list[0], older.qos[0]) == ("na|me", 4, "n[03,05-07]", "")
    assert (newer.name[0], newer.gpus[0], newer.node_list[0], newer.qos[0]) == ("name", 4, "n1,n2", "q")
    wlcg = read("7|cream|u|g|2024-03-01T10:00:00|2024-03-01T11:00:00|01:00:00|3600|p|1|1|n1|2M|3M|COMPLETED")
    assert (wlcg.name[0], wlcg.elapsed_s[0], wlcg.cpus[0]) == ("cream", 3600.0, 1)


def test_a_delimiter_or_a_newline_in_a_name_does_not_break_the_row() -> None:
    with_bar = ROW.replace("train", "a|b")
    with_newline = ROW.replace("12|train", "13|a\nb")
    jobs = read(HEADER, with_bar, with_newline, ROW.replace("12|", "14|"))
    assert jobs.name.tolist() == ["a|b", "a\nb", "train"]
    assert jobs.line.tolist() == [2, 3, 5]
    assert found(jobs) == {
        ("changed", "the delimiter stands in JobName", 1, 2),
        ("changed", "a record over several lines joined", 1, 3),
    }


def test_a_newline_in_the_last_column_belongs_to_the_row_before() -> None:
    jobs = read("JobID|State|JobName", "1|FAILED|a", "b", "c", "2|FAILED|d", "e")
    assert jobs.name.tolist() == ["a\nb\nc", "d\ne"]
    assert found(jobs) == {("changed", "a record over several lines joined", 2, 2)}


def test_broken_lines_are_left_out_and_counted_without_taking_their_neighbours() -> None:
    short = "|".join(ROW.split("|")[:7])
    jobs = read(HEADER, "7|x", ROW, short, ROW.replace("12|", "13|"), HEADER, ROW.replace("12|", "no|"))
    assert jobs.job_id.tolist() == ["12", "13"]
    assert found(jobs) == {
        ("left out", "fewer fields than the 13 columns", 2, 2),
        ("left out", "a repeated header", 1, 6),
        ("left out", "JobID is not a job id", 1, 7),
    }


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("12", (12, -1, 1, -1)),
        ("12_3", (12, 3, 1, -1)),
        ("12_[4-10%2]", (12, -1, 7, -1)),
        ("12_[1,3,10-20:5]", (12, -1, 5, -1)),
        ("12_[1-9,...]", (12, -1, 9, -1)),
        ("12+1", (12, -1, 1, 1)),
    ],
)
def test_job_ids(text: str, parts: tuple[int, int, int, int]) -> None:
    jobs = read("JobID|State", f"{text}|PENDING")
    assert (jobs.array_id[0], jobs.array_index[0], jobs.array_tasks[0], jobs.het_part[0]) == parts
    assert jobs.job_id[0] == text


def test_steps_are_left_out_and_counted() -> None:
    jobs = read("JobID|State", "1|FAILED", "1.batch|FAILED", "1.extern|COMPLETED", "1.0|FAILED", "1_2.+|FAILED")
    assert jobs.job_id.tolist() == ["1"]
    assert found(jobs) == {("left out", "a step of a job", 4, 3)}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 1001", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("PD", "PENDING"),
    ],
)
def test_states(text: str, state: str) -> None:
    assert read("JobID|State", f"1|{text}").state[0] == state


def test_times_with_a_zone_and_without_and_none_at_all() -> None:
    lines = ("JobID|Submit|Start|End", "1|2024-03-01T10:00:00|Unknown|None", "2|2024-03-01T10:00:00+01:00|None|")
    jobs = read(*lines, "3|1709287200|2024-02-30T00:00:00|")
    np.testing.assert_array_equal(jobs.submit_s, [MARCH, MARCH - 3600, MARCH])
    assert np.isnan(jobs.start_s).all()
    assert found(jobs) == {("changed", "Start is not a time, ignored", 1, 4)}
    assert read(*lines, zone="Europe/Berlin").submit_s[0] == MARCH - 3600


def test_a_local_time_that_stands_twice_is_counted() -> None:
    jobs = read("JobID|Submit", "1|2024-10-27T02:30:00", "2|2024-07-01T12:00:00", zone="Europe/Berlin")
    assert jobs.submit_s.tolist() == [1729989000.0, 1719828000.0]  # the first: still summer time
    reason = "Submit falls into a change of Europe/Berlin's clock, the earlier time is used"
    assert found(jobs) == {("noted", reason, 1, 2)}


def test_limits_and_durations() -> None:
    texts = ["UNLIMITED", "Partition_Limit", "", "30:00", "2-03:04:05", "100:00:00"]
    jobs = read("JobID|Timelimit", *(f"{k}|{text}" for k, text in enumerate(texts, 1)))
    expected = [math.inf, math.nan, math.nan, 1800.0, 183845.0, 360000.0]
    np.testing.assert_array_equal(jobs.time_limit_s, expected)
    assert read("JobID|TimelimitRaw", "1|90").time_limit_s[0] == 5400.0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4Gn", 2 * 4 * 2**30),
        ("500Mc", 16 * 500 * 2**20),
        ("64G", 64 * 2**30),
        ("1.5T", 1536 * 2**30),
        ("2147486648Mn", -1),  # a flag bit shown as a number
        ("", -1),
    ],
)
def test_requested_memory(text: str, size: int) -> None:
    assert read("JobID|NNodes|NCPUS|ReqMem", f"1|2|16|{text}").memory_bytes[0] == size


@pytest.mark.parametrize(
    ("alloc", "request_", "gpus", "kind"),
    [
        ("cpu=4,gres/gpu:a100=2,gres/gpu:v100=1,node=1", "", 3, "a100,v100"),
        ("cpu=4,gres/gpu=4,gres/gpu:a100=4", "gres/gpu=8", 4, ""),  # it had not asked for that type
        ("cpu=4,gres/gpu=4,gres/gpu:a100=4", "cpu=4", 4, "a100"),  # the request does not name its GPUs
        ("cpu=4,gres/gpu=8", "cpu=4,gres/gpu:a100=8", 8, "a100"),
        ("cpu=4,gres/gpu:a100=8", "cpu=4,gres/gpu:h100=8", 8, "h100"),
        ("", "cpu=4,gres/gpu=8", 8, ""),
        ("cpu=4,gres/gpumem=0,gres/gpuutil=0,gres/shard=3", "", 0, ""),
        ("", "", -1, ""),
    ],
)
def test_gpus_of_resource_texts(alloc: str, request_: str, gpus: int, kind: str) -> None:
    jobs = read("JobID|AllocTRES|ReqTRES", f"1|{alloc}|{request_}")
    assert (jobs.gpus[0], jobs.gpu_type[0]) == (gpus, kind)


def test_generic_resources_of_older_versions() -> None:
    jobs = read("JobID|NNodes|AllocGRES|ReqGRES", "1|4||PER_NODE:gpu:8", "2|4|gpu:v100:32|gpu:8")
    assert jobs.gpus.tolist() == [32, 32]
    assert (jobs.gpu_type.tolist(), jobs.gpu_type_given.tolist()) == (["", ""], ["", "v100"])
    jobs = read("JobID|NNodes|AllocTRES|ReqTRES|ReqGRES", "1|2|gres/gpu=8|gres/gpu=8|gpu:A100:4")
    assert (jobs.gpus.tolist(), jobs.gpu_type.tolist()) == ([8], ["a100"])


def test_which_gpu_type_counts_is_said() -> None:
    named, plain, other = "gres/gpu=8,gres/gpu:a100=8", "gres/gpu=8", "gres/gpu=8,gres/gpu:h100=8"
    pairs = [(named, named), (plain, named), (named, plain), (named, ""), (named, other), (plain, plain)]
    lines = [f"{k}|COMPLETED|{given}|{asked}" for k, (given, asked) in enumerate(pairs, 1)]
    jobs = read("JobID|State|AllocTRES|ReqTRES", *lines)
    assert jobs.gpus.tolist() == [8] * 6
    assert jobs.gpu_type.tolist() == ["a100", "a100", "", "a100", "h100", ""]
    assert {(c.action, c.reason, c.count, c.first_line) for c in jobs.changes} == {
        ("changed", "allocated a GPU type without requesting one: may use any", 1, 4),
        ("changed", "GPU type known only from the allocation: taken as requested", 1, 5),
        ("changed", "allocated another GPU type than requested: the request counts", 1, 6),
    }


def test_rows_of_one_job_are_attempts_pictures_or_the_same_row_twice() -> None:
    head = "JobID|User|Submit|Start|End|State"
    jobs = read(
        head,
        "1|a|2024-03-01T10:00:00|2024-03-01T11:00:00|2024-03-01T12:00:00|PREEMPTED",
        "1|a|2024-03-01T12:00:00|2024-03-01T13:00:00|Unknown|RUNNING",
        "1|a|2024-03-01T12:00:00|2024-03-01T13:00:00|2024-03-01T15:00:00|COMPLETED",
        "1|a|2024-03-01T10:00:00|2024-03-01T11:00:00|2024-03-01T12:00:00|PREEMPTED",
        "1|b|2025-03-01T10:00:00|Unknown|Unknown|PENDING",
    )
    assert jobs.state.tolist() == ["PREEMPTED", "COMPLETED", "PENDING"]
    assert jobs.attempt.tolist() == [1, 2, 1]
    assert jobs.ended.tolist() == [True, True, False]
    assert found(jobs) == {
        ("merged", "an older state of a row that is also present", 1, 3),
        ("merged", "equal to an earlier row", 1, 5),
        ("noted", "a job id used by several users' jobs", 2, 2),
        ("noted", "another attempt of a requeued job", 1, 4),
    }


def test_fixed_widths_by_the_dashes_below_the_header() -> None:
    jobs = read(
        "JobID           JobName      State ExitCode ",
        "------------ ---------- ---------- -------- ",
        "123               train  COMPLETED      0:0 ",
        "123.batch         batch  COMPLETED      0:0 ",
        "124_[1-3]    two words+ CANCELLED+      0:0 ",
    )
    assert jobs.job_id.tolist() == ["123", "124_[1-3]"]
    assert jobs.name.tolist() == ["train", "two words+"]
    assert jobs.state.tolist() == ["COMPLETED", "CANCELLED"]


def test_default_columns_without_a_header() -> None:
    jobs = read("7|train|gpu|lab|16|COMPLETED|0:0", "7.batch|batch||lab|16|COMPLETED|0:0")
    assert (jobs.job_id[0], jobs.partition[0], jobs.cpus[0], jobs.state[0]) == ("7", "gpu", 16, "COMPLETED")
    fixed = read(f"{7:<12} {'train':>10} {'gpu':>10} {'lab':>10} {16:>10} {'TIMEOUT':>10} {'0:0':>8} ")
    assert (fixed.job_id[0], fixed.account[0], fixed.state[0]) == ("7", "lab", "TIMEOUT")


def test_columns_given_by_name() -> None:
    jobs = read("PENDING|9", columns=("State", "JobID"))  # type: ignore[arg-type]
    assert (jobs.job_id[0], jobs.state[0]) == ("9", "PENDING")


def test_columns_no_field_needs_are_kept_as_text_under_their_names() -> None:
    jobs = read("JobID|State|WCKey|Partition|Partition", "1|FAILED|key|a|b")
    assert {name: text.tolist() for name, text in jobs.other.items()} == {"WCKey": ["key"], "Partition": ["b"]}
    assert jobs.partition[0] == "a"


def test_encodings_and_packing() -> None:
    text = f"{HEADER}\r\n{ROW.replace('train', 'Übung')}\r\n"
    for data in (text.encode(), text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode(), gzip.compress(text.encode())):
        jobs = read_accounting(data)
        assert jobs.name.tolist() == ["Übung"]
        assert jobs.memory_bytes[0] == 128 * 2**30
    jobs = read_accounting(text.encode("latin-1"))
    assert jobs.name.tolist() == ["Übung"]
    assert ("changed", "bytes that are not UTF-8 read as Latin-1", 1, 2) in found(jobs)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"a,b,c\n1,2,3\n", "not sacct output"),
        (b"\0\1\2", "holds a zero byte"),
        (gzip.compress(b"JobID|State\n1|FAILED\n" * 99, mtime=0)[:-9], "damaged or not readable"),
    ],
)
def test_what_is_no_accounting_file_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_accounting(data, name="jobs.txt")
    assert str(caught.value).startswith("jobs.txt:")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_and_a_zone_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="No such file"):
        read_accounting(tmp_path / "none.txt")
    with pytest.raises(FormatError, match="unknown time zone 'Mars'"):
        read(HEADER, ROW, zone="Mars")


NUMBERS = st.integers(1, 10**9)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12)
JOBS = st.lists(
    st.tuples(NUMBERS, NAME, st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT"]), NUMBERS, st.integers(0, 99)),
    min_size=1,
    max_size=20,
    unique_by=lambda row: row[0],
)


@given(JOBS)
def test_what_is_written_is_read_whatever_the_names_hold(rows: list[tuple[int, str, str, int, int]]) -> None:
    lines = ["JobID|State|JobName|Submit|AllocTRES"]
    lines += [f"{job}|{state}|{name}|{time}|gres/gpu={gpus}" for job, name, state, time, gpus in rows]
    jobs = read_accounting("\n".join(lines).encode())
    assert jobs.array_id.tolist() == [job for job, *_ in rows]
    assert jobs.name.tolist() == [name for _, name, *_ in rows]
    assert jobs.state.tolist() == [row[2] for row in rows]
    assert jobs.submit_s.tolist() == [row[3] for row in rows]
    assert jobs.gpus.tolist() == [row[4] for row in rows]


CELLS = st.text(alphabet="JobID|StateSubmitEnd-_[]:.,+=0123456789 \n", max_size=300)
COLUMNS = "JobID|State|Submit|Timelimit|AllocTRES|ReqMem|NNodes\n"


@pytest.mark.parametrize("reader", [read_accounting, read_accounting_json])
@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=300), CELLS.map(lambda text: (COLUMNS + text).encode())))
def test_any_bytes_give_rows_or_one_clear_error(reader: Callable[[bytes], JobTable], data: bytes) -> None:
    try:
        jobs = reader(data)
    except FormatError as error:
        message = str(error)
    else:
        message = ""
        assert len(jobs.job_id) == len(jobs.gpus) == len(jobs.end_s)
    assert "\n" not in message


def json_job(**changes: object) -> dict[str, object]:
    job = {
        "job_id": 77,
        "array": {"job_id": 0, "task_id": {"set": False, "number": 0}},
        "association": {"account": "lab", "cluster": "c", "user": "ann"},
        "name": "train",
        "partition": "gpu",
        "qos": "normal",
        "nodes": "gn[1-2]",
        "allocation_nodes": 2,
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {
            "submission": 1709287200,
            "eligible": 1709287200,
            "start": 1709287500,
            "end": 1709291100,
            "elapsed": 3600,
            "limit": {"set": True, "infinite": False, "number": 60},
        },
        "tres": {
            "allocated": [
                {"type": "cpu", "name": "", "id": 1, "count": 16},
                {"type": "mem", "name": "", "id": 2, "count": 131072},
                {"type": "gres", "name": "gpu", "id": 1001, "count": 8},
                {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 8},
            ],
            "requested": [],
        },
        "required": {"CPUs": 16, "memory": 65536},
        "steps": [{"step": {"id": "77.batch"}}],
    }
    return job | changes


@pytest.mark.parametrize("state", ["COMPLETED", ["COMPLETED"]])
@pytest.mark.parametrize("limit", [60, {"set": True, "infinite": False, "number": 60}])
def test_json_of_older_and_newer_schemas(state: object, limit: object) -> None:
    job = json_job(state={"current": state, "reason": "None"})
    job["time"]["limit"] = limit  # type: ignore[index]
    jobs = read_accounting_json(json.dumps({"meta": {}, "jobs": [job]}).encode())
    assert [jobs.job_id[0], jobs.user[0], jobs.state[0], jobs.cluster[0]] == ["77", "ann", "COMPLETED", "c"]
    assert [jobs.submit_s[0], jobs.end_s[0], jobs.time_limit_s[0]] == [MARCH, MARCH + 3900, 3600.0]
    assert [jobs.gpus[0], jobs.gpu_type[0], jobs.nodes[0], jobs.cpus[0]] == [8, "a100", 2, 16]
    assert jobs.memory_bytes[0] == 128 * 2**30
    assert found(jobs) == {("left out", "a step of a job", 1, 1)}


def test_json_arrays_parts_and_what_never_started() -> None:
    never = {"submission": 1709287200, "start": 0, "end": 0, "limit": {"set": False, "infinite": True, "number": 0}}
    jobs = read_accounting_json(
        json.dumps(
            [
                json_job(array={"job_id": 70, "task_id": 3}),
                json_job(array={"job_id": 70, "task_id": {"set": True, "number": 4}}),
                json_job(array={"job_id": 70, "task_id": {"set": False}, "task": "5-9%2"}, time=never),
                json_job(het={"job_id": 60, "job_offset": {"set": True, "number": 1}}),
                "no job",
            ]
        ).encode()
    )
    assert jobs.job_id.tolist() == ["70_3", "70_4", "70_[5-9%2]", "60+1"]
    assert jobs.array_tasks.tolist() == [1, 1, 5, 1]
    assert math.isnan(jobs.start_s[2])
    assert jobs.time_limit_s[2] == math.inf
    assert ("left out", "not a job but another JSON value", 1, 5) in found(jobs)


LINES = st.lists(
    st.one_of(
        st.builds(lambda job, time: f"{job}|FAILED|{time}|a", st.integers(1, 5), st.sampled_from([9, 10, "Unknown"])),
        st.sampled_from(
            ["1.batch|FAILED|9|b", "1_2.0|FAILED|9|", "2|FAILED", "x|FAILED|9|c", "JobID|State|Submit|User"]
        ),
    ),
    max_size=25,
)


@given(LINES)
def test_every_row_is_in_the_table_or_counted(lines: list[str]) -> None:
    jobs = read_accounting("\n".join(["JobID|State|Submit|User", *lines]).encode())
    gone = sum(change.count for change in jobs.changes if change.action in ("left out", "merged"))
    joined = sum(change.count for change in jobs.changes if change.reason == "a record over several lines joined")
    assert len(jobs) + gone + joined <= len(lines)
    short = lines.count("2|FAILED")
    assert len(jobs) + gone >= len(lines) - short + (short > 0 and gone > 0) * 0
    if not short:
        assert len(jobs) + gone == len(lines)


def test_an_error_is_one_line_whatever_the_file_holds() -> None:
    with pytest.raises(FormatError) as caught:
        raise FormatError("a\nb\x00c")
    assert str(caught.value) == "a\\nb\\x00c"


def test_a_huge_array_of_tasks_is_counted_and_not_spelled_out() -> None:
    assert read("JobID|State", "1_[0-4000000%5]|PENDING").array_tasks[0] == 4_000_001


def test_any_delimiter_is_told_from_a_table_of_nodes() -> None:
    names, row = ("JobIDRaw User Partition Submit Start End State AllocTRES", "1 a gpu T T T COMPLETED gres/gpu=2")
    for mark in ("\t", "|", ";", "^"):
        text = f"{names}\n{row}\n".replace("T ", "2024-01-01T00:00:00 ").replace(" ", mark)
        assert recognise(text.encode()) == "sacct", mark
        assert read_accounting(text.encode()).gpus.tolist() == [2], mark
