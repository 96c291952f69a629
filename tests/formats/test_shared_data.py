"""Real files of the formats, where they are: every one is read, or refused in one clear line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from equipoise.formats.read import read
from equipoise.formats.recognise import recognise
from equipoise.formats.slurm.accounting import read_accounting
from equipoise.formats.slurm.scontrol import partitions_of, read_blocks
from equipoise.formats.slurm.values import ENDED
from equipoise.formats.text.errors import FormatError
from equipoise.formats.traces.published import read_csv_trace

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FORMATS = DATA / "formats"
TRACES = DATA / "traces"
pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not FORMATS.is_dir(), reason="the public data are not beside the checkout"),
]
FILES = sorted(path for path in FORMATS.rglob("*") if path.is_file()) if FORMATS.is_dir() else []
NOT_READ = {"kineto"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_read_or_refused_in_one_line(path: Path) -> None:
    found = recognise(path)
    if found in NOT_READ:
        with pytest.raises(FormatError, match=f"looks like {found}, which is not read here"):
            read(path)
    else:
        assert read(path) is not None


def test_accounted_jobs_of_a_university_every_row() -> None:
    jobs = read_accounting(FORMATS / "xdmod-pozidriv.log.gz")
    assert len(jobs) == 11_704
    assert [(c.action, c.reason, c.count) for c in jobs.changes] == [
        ("noted", "times without a zone read as UTC", 11_704)
    ]
    states = {state: jobs.state.tolist().count(state) for state in jobs.state.values}
    assert states == {"COMPLETED": 10_134, "FAILED": 1_007, "CANCELLED": 468, "PREEMPTED": 86, "TIMEOUT": 9}
    waits_s = jobs.start_s - jobs.submit_s
    assert np.median(waits_s) == pytest.approx(141, abs=1)
    assert np.quantile(waits_s, 0.9) == pytest.approx(24_353, rel=0.01)
    assert (jobs.elapsed_s[jobs.state.floats(lambda state: float(state in ENDED)) > 0] >= 0).all()


@pytest.mark.parametrize(
    ("name", "jobs", "gpus", "reasons"),
    [
        ("fake-line-break", ["201729", "201844"], [1024, 256], {"a record over several lines joined": 1}),
        ("one-multiline", ["201729", "201844"], [1024, 256], {"a record over several lines joined": 1}),
        (
            "multiple-multiline",
            ["201729", "201844"],
            [1024, 256],
            {"a record over several lines joined": 3, "equal to an earlier row": 2},
        ),
        ("output-invalid-utf8", ["3557891", "3557892"], [8, 1], {"bytes that are not UTF-8 read as Latin-1": 1}),
        ("output-with-invalid-lines", [], [], {"fewer fields than the 109 columns": 1}),
        ("running-output", [], [], {}),
        ("output-midnight-edge-case-small", ["39125549", "39125551", "39125552"], [-1, -1, -1], {}),
    ],
)
def test_records_of_a_large_gpu_cluster(name: str, jobs: list[str], gpus: list[int], reasons: dict[str, int]) -> None:
    path = FORMATS / f"sample-sacct-{name}.txt"
    found = read_accounting(path)
    assert found.job_id.tolist() == jobs
    assert found.gpus.tolist() == gpus
    plain = {"a step of a job", "times without a zone read as UTC"}
    assert {c.reason: c.count for c in found.changes if c.reason not in plain} == reasons


def test_every_row_of_a_dump_with_steps_is_accounted_for() -> None:
    found = read_accounting(FORMATS / "sample-sacct-output.txt.gz")
    assert len(found) == 0
    assert [(c.action, c.reason, c.count) for c in found.changes] == [("left out", "a step of a job", 68)]


def test_a_cluster_from_its_configuration() -> None:
    conf = read(FORMATS / "medium-slurm.conf")
    assert sum(len(nodes.names) for nodes in conf.nodes) == 217
    assert sum(len(nodes.names) * nodes.gpus for nodes in conf.nodes) == 20
    assert conf.priority_weights["fairshare"] == 120_000
    tree = read(FORMATS / "medium-topology.conf")
    assert [len(switch.nodes) for switch in tree.switches] == [102, 100, 32, 0]
    events = read(FORMATS / "medium-workload_5k.events.gz")
    assert len(events) == 5_000
    assert events.changes == ()


def test_live_state_of_a_large_gpu_cluster() -> None:
    queue = read(FORMATS / "sample-squeue-output.txt")
    assert queue.gpus.tolist() == [2, 1, 256, 0, 160]
    assert queue.state.tolist() == ["RUNNING"] * 3 + ["PENDING"] * 2
    assert np.isnan(queue.start_s[3:]).all()
    partitions = partitions_of(read_blocks(FORMATS / "sample-scontrol-output.txt"))
    assert [len(partition.node_names) for partition in partitions] == [3140, 1469, 3140]
    assert [node.gpus for node in read(FORMATS / "sample-sinfo-output.txt")] == [8, 8, 8, 2]
    assert read(FORMATS / "sample-sacctmgr-qos.txt")[1].limits["GrpTRES"]["gres/gpu"] == "8192"


def test_published_traces() -> None:
    pods = read(TRACES / "openb_pod_list_default.csv.gz")
    assert len(pods) == 8_152
    assert len(read(TRACES / "openb_node_list_gpu_node.csv.gz")) == 1_213
    columns = {"arrival": "timestamp", "duration": "duration", "gpus": "num_gpus", "group": "cluster"}
    philly = read_csv_trace(TRACES / "philly_jobs.csv.gz", columns)
    assert len(philly) == 68_063
    assert len(philly.group.values) == 14
