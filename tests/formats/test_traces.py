"""Published traces in their own columns, any CSV, SWF, the Slurm simulator's events, recognition."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.formats.read import read
from equipoise.formats.recognise import FORMATS, recognise
from equipoise.formats.slurm.events import read_events
from equipoise.formats.text.errors import FormatError
from equipoise.formats.traces.philly import read_philly_log
from equipoise.formats.traces.published import read_csv_trace, read_published, read_trace_nodes
from equipoise.formats.traces.swf import FIELDS, read_swf

TEN = 1709287200.0  # 2024-03-01T10:00:00 UTC

HELIOS = b"""job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,u1,vcA,8,32,1,COMPLETED,2024-03-01 18:00:00,2024-03-01 18:01:00,2024-03-01 19:01:00,3600,60
"""
SEREN = b"""job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
9,u,2,16,64,Pretrain,FAILED,2024-03-01 18:00:00+08:00,2024-03-01 18:01:00+08:00,2024-03-01 19:01:00+08:00,3660,60,1
"""
PODS = b"""name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,\
scheduled_time
p0,12000,16384,1,460,V100M16|V100M32,LS,Running,0,100,10
p1,6000,12288,8,1000,,BE,Pending,5,200,
"""
TASKS = b"""j1,worker,4,Terminated,100.0,500.0,600.0,29.0,50.0,T4
j1,ps,2,Terminated,90.0,510.0,100.0,10.0,,CPU
j2,worker,1,Running,200.0,,600.0,29.0,100.0,V100
"""
SWF = b"""; Version: 2.2
; MaxProcs: 128
1 0 10 100 4 -1 -1 4 200 -1 1 3 1 -1 0 0 -1 -1
2 5 0 50 8 -1 -1 8 60 -1 5 4 1 -1 0 0 -1 -1
"""
EVENTS = b"""-dt  10.50 -e submit_batch_job | -sim-walltime 100.00 \
--uid=ann -J job1 -N 2 -n 32 -t 3-00:00:00 -q q -p main --mem=5G pseudo.job
-dt 11 -e submit_batch_job | --uid=bob -n4 --gres=gpu:a100:2 --exclusive -t 30 job.sh arg
-dt 12 -e cancel_job | 1
"""
PHILLY = [
    {
        "status": "Pass",
        "vc": "v",
        "jobid": "a_1",
        "submitted_time": "2017-10-09 07:01:55",
        "user": "u",
        "attempts": [
            {
                "start_time": "2017-10-09 08:00:00",
                "end_time": "2017-10-09 09:00:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
            },
            {
                "start_time": "2017-10-09 10:00:00",
                "end_time": None,
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}, {"ip": "m2", "gpus": ["gpu0", "gpu1", "gpu2"]}],
            },
        ],
    },
    {"status": "Killed", "vc": "v", "jobid": "a_2", "submitted_time": "None", "user": "u", "attempts": []},
    "noise",
]


def test_helios_times_are_of_the_clock_in_china() -> None:
    jobs = read_published(HELIOS, "helios")
    assert (jobs.job_id[0], jobs.group[0], jobs.gpus[0], jobs.nodes[0]) == ("7", "vcA", 8, 1)
    assert (jobs.submit_s[0], jobs.start_s[0], jobs.end_s[0], jobs.duration_s[0]) == (TEN, TEN + 60, TEN + 3660, 3600)
    assert jobs.other["queue"].tolist() == ["60"]


def test_acme_runs_from_start_to_end_whatever_its_duration_counts() -> None:
    jobs = read_published(SEREN, "acme")
    assert (jobs.submit_s[0], jobs.duration_s[0], jobs.gpus[0], jobs.kind[0]) == (TEN, 3600, 16, "Pretrain")


def test_openb_pods_share_gpus_and_may_never_be_scheduled() -> None:
    jobs = read_published(PODS, "openb-pods")
    np.testing.assert_allclose(jobs.gpus, [0.46, 8])
    assert (jobs.submit_s[0], jobs.start_s[0], jobs.duration_s[0], jobs.cpus[0]) == (0.0, 10.0, 90.0, 12.0)
    assert math.isnan(jobs.start_s[1])
    assert jobs.gpu_type.tolist() == ["V100M16|V100M32", ""]


def test_pai_tasks_are_summed_up_to_jobs() -> None:
    jobs = read_published(TASKS, "pai-tasks")
    assert jobs.job_id.tolist() == ["j1", "j2"]
    assert jobs.gpus.tolist() == [2.0, 1.0]
    assert jobs.cpus.tolist() == [26.0, 6.0]
    assert (jobs.submit_s[0], jobs.end_s[0], jobs.duration_s[0]) == (90.0, 510.0, 420.0)
    assert math.isnan(jobs.end_s[1])
    assert [(c.action, c.reason, c.count, c.first_line) for c in jobs.changes] == [
        ("merged", "a further task of a job", 1, 2)
    ]


def test_nodes_of_traces() -> None:
    nodes = read_trace_nodes(b"sn,cpu_milli,memory_mib,gpu,model\na,64000,1024,2,P100\n")
    assert (nodes.gpus[0], nodes.cpus[0], nodes.memory_bytes[0], nodes.gpu_type[0]) == (2, 64.0, 2.0**30, "P100")
    nodes = read_trace_nodes(b"m1,V100,96,512,8\nm2,T4,96,512,2\n")
    assert (nodes.name.tolist(), nodes.gpus.tolist()) == (["m1", "m2"], [8, 2])


def test_any_csv_by_its_columns() -> None:
    text = b'id;when;took;"cards"\nx;2024-03-01T10:00:00Z;01:00:00;4\n'
    text += b'"y\ny";2024-03-01T11:00:00Z;90.5;"2"\nz;soon;1;1_0\n'
    jobs = read_csv_trace(text, {"job_id": "id", "arrival": "when", "duration_s": "took", "gpus": "cards"})
    np.testing.assert_array_equal(jobs.submit_s, [TEN, TEN + 3600, np.nan])
    assert jobs.job_id.tolist() == ["x", "y\ny", "z"]
    np.testing.assert_array_equal(jobs.duration_s, [3600.0, 90.5, 1.0])
    np.testing.assert_array_equal(jobs.gpus, [4, 2, np.nan])
    assert {(c.action, c.reason, c.first_line) for c in jobs.changes} == {
        ("changed", "when is not a time, ignored", 5),
        ("changed", "cards is not a number, ignored", 5),
    }
    seconds = read_csv_trace(b"t,d\n0,5\n10,6\n", {"arrival": "t", "duration": "d"})
    assert seconds.submit_s.tolist() == [0.0, 10.0]
    assert np.isnan(seconds.end_s).all()  # when it started is not told
    assert seconds.job_id.tolist() == ["0", "1"]


def test_columns_that_are_not_there() -> None:
    with pytest.raises(FormatError, match=r"t.csv:1: column 'when' is missing; found: t, d"):
        read_csv_trace(b"t,d\n0,5\n", {"arrival": "when"}, name="t.csv")
    with pytest.raises(FormatError, match="'begin' is not known; allowed: job_id"):
        read_csv_trace(b"t,d\n0,5\n", {"begin": "t"})
    with pytest.raises(FormatError, match="column 'vc' is missing, which helios has"):
        read_published(SEREN, "helios")
    with pytest.raises(ValueError, match="unknown trace 'mars'"):
        read_published(SEREN, "mars")


def test_philly_log() -> None:
    jobs = read_philly_log(json.dumps(PHILLY).encode())
    assert jobs.job_id.tolist() == ["a_1", "a_2"]
    assert jobs.attempts.tolist() == [2, 0]
    assert (jobs.gpus[0], jobs.nodes[0], jobs.duration_s[0]) == (4, 2, 3600.0)
    assert jobs.submit_s[0] == 1507557715.0  # 14:01:55 UTC, seven hours ahead
    assert jobs.start_s[0] - jobs.submit_s[0] == 3485.0
    assert math.isnan(jobs.gpus[1])
    reasons = {(c.action, c.reason, c.first_line) for c in jobs.changes}
    assert ("left out", "not a job with attempts", 3) in reasons
    assert ("noted", "a job without attempts: it never ran", 2) in reasons


def test_swf() -> None:
    jobs = read_swf(SWF + b"3 too few\n4 0 10 100 x -1 -1 4 200 -1 1 3 1 -1 0 0 -1 -1\n")
    assert jobs["job_id"].tolist() == [1, 2]
    assert jobs["wait_s"].tolist() == [10.0, 0.0]
    assert (jobs["status"].tolist(), jobs["user"].tolist()) == ([1, 5], [3, 4])
    assert {(c.reason, c.first_line) for c in jobs.changes} == {
        ("not 18 fields", 5),
        ("a field that is not a number, or a broken number of what is counted", 6),
    }


def test_events_of_the_slurm_simulator() -> None:
    jobs = read_events(EVENTS)
    assert jobs.submit_s.tolist() == [10.5, 11.0]
    assert jobs.time_limit_s.tolist() == [259200.0, 1800.0]
    assert (jobs.run_s[0], jobs.nodes[0], jobs.tasks[0], jobs.memory_bytes[0]) == (100.0, 2, 32, 2 * 5 * 2**30)
    assert (jobs.gpus.tolist(), jobs.gpu_type.tolist(), jobs.tasks[1]) == ([0, 2], ["", "a100"], 4)
    assert jobs.user.tolist() == ["ann", "bob"]
    assert jobs.options["script"].tolist() == ["pseudo.job", "job.sh arg"]
    assert [(c.reason, c.first_line) for c in jobs.changes] == [("another event than submit_batch_job: cancel_job", 3)]


SAMPLES = {
    "helios": HELIOS,
    "acme": SEREN,
    "openb-pods": PODS,
    "pai-tasks": TASKS,
    "pai-jobs": b"j1,abc,u1,Terminated,100.0,200.0\n",
    "trace-nodes": b"sn,cpu_milli,memory_mib,gpu,model\na,64000,1024,2,P100\n",
    "philly-log": json.dumps(PHILLY).encode(),
    "swf": SWF,
    "slurm-events": EVENTS,
    "sacct": b"JobID|State|Start\n1|FAILED|Unknown\n",
    "sacct-json": b'{"jobs": [{"job_id": 1, "association": {"user": "a"}, "time": {}}]}',
    "squeue": b"  JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n 1 a b c R 0:01 1 n\n",
    "squeue-json": b'{"jobs": [{"job_id": 1, "job_state": ["RUNNING"]}]}',
    "sinfo": b"PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\nmain* up infinite 1 idle n1\n",
    "nodes-json": b'{"nodes": [{"name": "n1", "state": ["IDLE"]}]}',
    "scontrol": b"JobId=1 JobName=a\n   JobState=RUNNING\n",
    "slurm.conf": b"# a cluster\nClusterName=c\nNodeName=a CPUs=1\n",
    "gres.conf": b"AutoDetect=off\nNodeName=a Name=gpu Count=2\n",
    "topology.conf": b"SwitchName=s Nodes=a\n",
    "topology.yaml": b"- topology: t\n  flat: true\n",
    "sacctmgr-qos": b"Name|Priority|GraceTime\nnormal|0|00:00:00\n",
    "kueue": b"# comment\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\n",
    "kueue-generator": b"cohorts:\n- className: c\n  count: 1\n",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_each_format_is_recognised_and_read(name: str) -> None:
    assert name in FORMATS
    assert recognise(SAMPLES[name]) == name
    assert read(SAMPLES[name]) is not None
    assert type(read(SAMPLES[name], name)) is type(read(SAMPLES[name]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f: empty"),
        (b"a,b,c\n1,2,3\n", "f: not a known format: 3 columns cut by ',' in 2 of the first 2 lines: a, b, c"),
        (b'{"x": 1, "y": 2}', "f: not a known format: JSON with the keys x, y"),
        (b"<html>\n", "f: not a known format: XML that begins with '<html>'"),
        (b" |JOBID PARTITION|\n", "f: not squeue output: the line JOBID PARTITION NAME ..., or columns=, is needed"),
        (b"Dear all\n", "f: not a known format: text that begins with 'Dear all'"),
        (b'{"traceEvents": []}', "f: looks like kineto, which is not read here"),
    ],
)
def test_what_is_not_known_is_told_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(data, name="f")
    assert str(caught.value) == message


def test_an_unknown_format_name() -> None:
    with pytest.raises(ValueError, match="unknown format 'pbs'; allowed: auto, acme"):
        read(b"", "pbs")


NUMBERS = st.integers(-1, 10**6)


@given(st.lists(st.lists(NUMBERS, min_size=18, max_size=18), min_size=1, max_size=9))
def test_swf_that_is_written_is_read_back(rows: list[list[int]]) -> None:
    jobs = read_swf("\n".join(" ".join(map(str, row)) for row in rows).encode())
    assert [jobs[field].tolist() for field in FIELDS] == [list(column) for column in zip(*rows, strict=True)]


@given(st.binary(max_size=200), st.sampled_from(sorted(SAMPLES)))
def test_any_bytes_give_something_or_one_clear_error(data: bytes, name: str) -> None:
    sample = SAMPLES[name]
    for form in ("auto", name):
        for noise in (data, sample + data, sample[: len(sample) // 2] + data):
            try:
                read(noise, form)
            except FormatError as error:
                message = str(error)
            else:
                message = ""
            assert "\n" not in message
