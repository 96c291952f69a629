"""Live state of Slurm: squeue, sinfo, scontrol, as text and as JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.formats.slurm.nodes import parse_node_state, read_nodes_json, read_sinfo
from equipoise.formats.slurm.queue import read_queue, read_queue_json
from equipoise.formats.slurm.scontrol import jobs_of, nodes_of, partitions_of, read_blocks
from equipoise.formats.text.errors import FormatError

TEN = 1709287200.0  # 2024-03-01T10:00:00 UTC

TABLE = b"""             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
       1234_[1-3]       gpu my train     bob PD       0:00      2 (Resources, for now)
               99   gpu,cpu    train      ann  R 1-02:03:04      1 gn01
"""

JOB = b"""JobId=70 ArrayJobId=69 ArrayTaskId=3 JobName=my job
   UserId=ann(1001) GroupId=ann(1001) MCS_label=N/A
   Priority=4294901757 Nice=0 Account=(null) QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:00:10 TimeLimit=01:00:00 TimeMin=N/A
   SubmitTime=2024-03-01T10:00:00 EligibleTime=2024-03-01T10:00:00
   StartTime=2024-03-01T10:00:05 EndTime=2024-03-01T11:00:05 Deadline=N/A
   Partition=main AllocNode:Sid=h:1
   NodeList=h
   NumNodes=1 NumCPUs=4 NumTasks=4 CPUs/Task=1
   TRES=cpu=4,mem=2G,node=1,billing=4,gres/gpu=2
   MinMemoryNode=2G

JobId=71 JobName=next
   UserId=bob(1002) JobState=PENDING Reason=Resources
   SubmitTime=2024-03-01T10:00:00 StartTime=2024-03-01T12:00:00 EndTime=Unknown
   NumNodes=2-4 NumCPUs=8 ReqTRES=cpu=8,gres/gpu=16 TimeLimit=UNLIMITED
"""

NODE = b"""NodeName=gn01 Arch=x86_64 CoresPerSocket=8
   CPUAlloc=4 CPUTot=16 CPULoad=0.10
   AvailableFeatures=ib,fast
   Gres=gpu:a100:8(S:0-1)
   State=MIXED+DRAIN ThreadsPerCore=1 Weight=5
   RealMemory=20000 AllocMem=2048
   Partitions=main,debug
   CfgTRES=cpu=16,mem=20000M,billing=16,gres/gpu=8
   AllocTRES=cpu=4,mem=2G,gres/gpu=2
"""


def test_the_default_table_with_a_blank_in_a_name() -> None:
    jobs = read_queue(TABLE)
    assert jobs.job_id.tolist() == ["1234_[1-3]", "99"]
    assert jobs.name.tolist() == ["my train", "train"]
    assert jobs.state.tolist() == ["PENDING", "RUNNING"]
    assert jobs.reason.tolist() == ["Resources, for now", ""]
    assert jobs.node_list.tolist() == ["", "gn01"]
    assert (jobs.elapsed_s[1], jobs.nodes[0], jobs.array_tasks[0]) == (93784.0, 2, 3)


def test_output_without_a_header() -> None:
    names = "JOBID NAME STATE PRIORITY TRES_PER_NODE SUBMIT_TIME START_TIME TIME_LIMIT USER ACCOUNT PARTITION"
    columns = [*names.split(), "NODELIST"]
    text = (
        "7|train|PENDING|0|gres:gpu:4|2024-03-01T10:00:00|2024-03-01T12:00:00|10:00|root|(null)|main|\n"
        "8|x|RUNNING|5|gres/gpu:a100:2|2024-03-01T10:00:00|2024-03-01T10:00:09|UNLIMITED|root|(null)|main|h\n"
    )
    jobs = read_queue(text.encode(), columns=columns)
    assert jobs.gpus.tolist() == [4, 2]
    assert jobs.gpu_type.tolist() == ["", "a100"]
    assert jobs.priority.tolist() == [0.0, 5.0]
    assert jobs.account.tolist() == ["", ""]
    assert math.isnan(jobs.start_s[0])  # only expected
    assert (jobs.start_s[1], jobs.time_limit_s[0], jobs.time_limit_s[1]) == (TEN + 9, 600.0, math.inf)
    assert any(c.reason == "an expected start or end time ignored" and c.count == 1 for c in jobs.changes)


def test_queue_json() -> None:
    job = {
        "job_id": 9,
        "array_job_id": {"set": True, "infinite": False, "number": 8},
        "array_task_id": {"set": True, "number": 2},
        "user_name": "ann",
        "job_state": ["RUNNING"],
        "state_reason": "None",
        "partition": "main",
        "nodes": "h",
        "node_count": {"set": True, "number": 1},
        "submit_time": {"set": True, "number": 1709287200},
        "start_time": 1709287205,
        "end_time": 1709290805,
        "time_limit": {"set": True, "infinite": False, "number": 60},
        "tres_alloc_str": "cpu=4,gres/gpu=2,node=1",
        "tres_per_node": "gres:gpu:2",
        "priority": {"set": True, "number": 0},
        "restart_cnt": 1,
    }
    jobs = read_queue_json(json.dumps({"jobs": [job]}).encode())
    assert (jobs.job_id[0], jobs.gpus[0], jobs.priority[0], jobs.submit_s[0]) == ("8_2", 2, 0.0, TEN)
    assert math.isnan(jobs.end_s[0])
    assert jobs.other["Restarts"].tolist() == ["1"]


def test_jobs_of_scontrol() -> None:
    jobs = jobs_of(read_blocks(JOB))
    assert jobs.job_id.tolist() == ["69_3", "71"]
    assert jobs.name.tolist() == ["my job", "next"]
    assert jobs.user.tolist() == ["ann", "bob"]
    assert jobs.gpus.tolist() == [2, 16]
    assert jobs.nodes.tolist() == [1, 2]
    assert (jobs.start_s[0], jobs.memory_bytes[0], jobs.time_limit_s[1]) == (TEN + 5, 2 * 2**30, math.inf)
    assert math.isnan(jobs.start_s[1])
    one_line = b" ".join(JOB.replace(b"\n\n", b"\x01").split()).replace(b"\x01", b"\n")
    assert jobs_of(read_blocks(one_line.replace(b" JobId=71", b"\nJobId=71"))).job_id.tolist() == ["69_3", "71"]


def test_nodes_of_scontrol() -> None:
    node = nodes_of(read_blocks(NODE))[0]
    assert (node.names, node.state, node.flags) == (("gn01",), "MIXED", ("DRAIN",))
    assert (node.cpus, node.gpus, node.gpus_allocated, node.gpu_type) == (16, 8, 2, "a100")
    assert (node.memory_bytes, node.partitions) == (20000 * 2**20, ("main", "debug"))
    assert node.features == ("ib", "fast")


def test_partitions_of_scontrol() -> None:
    text = b"PartitionName=main Default=YES MaxTime=3-00:00:00 PriorityTier=10 Nodes=gn[01-03],x QoS=(null)"
    partition = partitions_of(read_blocks(text))[0]
    assert (partition.name, partition.max_time_s, partition.priority_tier) == ("main", 259200.0, 10)
    assert partition.node_names == ("gn01", "gn02", "gn03", "x")
    assert (partition.default, partition.qos) == (True, "")


@pytest.mark.parametrize(
    ("text", "state", "flags"),
    [
        ("idle", "IDLE", ()),
        ("mix~", "MIXED", ("POWERED_DOWN",)),
        ("down*", "DOWN", ("NOT_RESPONDING",)),
        ("IDLE+PLANNED", "IDLE", ("PLANNED",)),
        ("alloc", "ALLOCATED", ()),
    ],
)
def test_node_states(text: str, state: str, flags: tuple[str, ...]) -> None:
    assert parse_node_state(text) == (state, flags)


def test_sinfo_in_columns_and_delimited() -> None:
    table = b"PARTITION AVAIL TIMELIMIT NODES  STATE NODELIST\nmain*        up  infinite     3   idle gn[01-03]\n"
    row = read_sinfo(table)[0]
    assert (row.names, row.count, row.partitions, row.state) == (("gn01", "gn02", "gn03"), 3, ("main",), "IDLE")
    text = b"STATE|NODELIST |CPUS|GRES |MEMORY|CPUS(A/I/O/T)\ndrain*|gn[1-2] |80|gpu:gen:8(S:0) |500000|8/72/0/80\n"
    row = read_sinfo(text)[0]
    assert (row.state, row.flags, row.gpus, row.gpu_type) == ("DRAINED", ("NOT_RESPONDING",), 8, "gen")
    assert (row.cpus, row.memory_bytes) == (80, 500000 * 2**20)


def test_nodes_of_json_old_and_new() -> None:
    old = {
        "name": "a",
        "state": ["IDLE", "DRAIN"],
        "cpus": 16,
        "alloc_cpus": 0,
        "real_memory": 20000,
        "gres": "gpu:h100:8",
    }
    old |= {"gres_used": "gpu:h100:0", "partitions": ["main"], "features": ["ib"]}
    new = {
        "nodes": {"total": 2, "nodes": ["b[1-2]"]},
        "node": {"state": ["MIXED"]},
        "partition": {"name": "main"},
        "cpus": {"maximum": 64, "allocated": 32},
        "gres": {"total": "gpu:8", "used": "gpu:4"},
    }
    one = read_nodes_json(json.dumps({"nodes": [old]}).encode())[0]
    two = read_nodes_json(json.dumps({"sinfo": [new]}).encode())[0]
    assert (one.names, one.state, one.flags, one.gpus, one.gpus_allocated) == (("a",), "IDLE", ("DRAIN",), 8, 0)
    assert (one.memory_bytes, one.partitions, one.features) == (20000 * 2**20, ("main",), ("ib",))
    assert (two.names, two.count, two.state, two.cpus, two.gpus_allocated) == (("b1", "b2"), 2, "MIXED", 64, 4)


READERS = (read_queue, read_queue_json, read_sinfo, read_nodes_json, read_blocks)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("data", [b"", b"hello world\n", b"\0", b"{}", b"[1"])
def test_what_is_none_of_it_is_refused_in_one_line(reader: object, data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        reader(data)  # type: ignore[operator]
    assert str(caught.value).startswith("<input>")
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200), st.sampled_from([TABLE, JOB, NODE, b'{"nodes":[{"name":"', b"STATE|NODELIST|CPUS\n"]))
def test_any_bytes_give_rows_or_one_clear_error(data: bytes, begin: bytes) -> None:
    for reader in (*READERS, lambda raw: (jobs_of(b := read_blocks(raw)), nodes_of(b), partitions_of(b))):
        try:
            reader(begin + data)
        except FormatError as error:
            message = str(error)
        else:
            message = ""
        assert "\n" not in message


def test_gpus_asked_for_per_job_task_or_socket_count_without_gres_in_tres() -> None:
    """No GPUs in AccountingStorageTRES: --gpus=3; 4 tasks of 1; 2 nodes of 2 sockets of 1; 2 nodes of 2."""
    form = {"job_state": "PENDING", "tres_req_str": "cpu=1,node=1", "submit_time": 1}
    asked = [
        ({"tres_per_job": "gres:gpu:3"}, "TresPerJob=gres:gpu:3", 3),
        ({"tres_per_task": "gres:gpu:1", "tasks": 4}, "TresPerTask=gres:gpu:1 NumTasks=4", 4),
        (
            {"tres_per_socket": "gres:gpu:1", "sockets_per_node": 2, "node_count": 2},
            "TresPerSocket=gres:gpu:1 NumNodes=2 ReqB:S:C:T=0:2:*:*",
            4,
        ),
        ({"tres_per_node": "gres:gpu:2", "node_count": 2}, "TresPerNode=gres:gpu:2 NumNodes=2", 4),
    ]
    jobs = [form | more | {"job_id": k} for k, (more, _, _) in enumerate(asked)]
    assert read_queue_json(json.dumps({"jobs": jobs}).encode()).gpus.tolist() == [gpus for _, _, gpus in asked]
    text = "\n".join(f"JobId={k} JobState=PENDING {words}" for k, (_, words, _) in enumerate(asked))
    assert jobs_of(read_blocks(text.encode())).gpus.tolist() == [gpus for _, _, gpus in asked]


def test_the_long_list_of_nodes_begins_with_a_date() -> None:
    rows = read_sinfo(
        b"Sat Nov 28 03:04:59 2026\n"
        b"NODELIST   NODES PARTITION       STATE CPUS    S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE REASON\n"
        b"n1             1      gpu*        idle 32     32:1:1  20000        0      1  a100,ib none\n"
    )
    assert [(row.names, row.cpus, row.state) for row in rows] == [(("n1",), 32, "IDLE")]
