"""The trace for Perfetto: what is in it, that its bytes are stable, what it says when it cannot."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.sim.record import write_parquet
from equipoise.study.report.perfetto import write_trace
from tests.study.report.report_data import holdings, make_run, segments


def read(path: Path) -> list[dict[str, Any]]:
    content = json.loads(gzip.decompress(path.read_bytes()))
    assert content["displayTimeUnit"] == "ms"
    return content["traceEvents"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_run(folder, jobs=6, each=4, buckets=8, decisions=3, job_name='</script>"x')
    return folder


def test_every_gpu_of_every_stretch_is_a_slice(run: Path, tmp_path: Path) -> None:
    written = write_trace(run, tmp_path / "t.json.gz")
    found = read(tmp_path / "t.json.gz")
    rows = segments(6, 4, 64)
    held = holdings(rows, 8)
    slices = [event for event in found if event["ph"] == "X"]
    assert written.slices == len(slices) == len(held["gpu"])
    index = {(int(j), int(s)): k for k, (j, s) in enumerate(zip(rows["job_id"], rows["segment"], strict=True))}
    for event, job, segment, gpu in zip(slices, held["job_id"], held["segment"], held["gpu"], strict=True):
        k = index[int(job), int(segment)]
        assert (event["tid"], event["pid"]) == (gpu, gpu // 8 + 1)
        assert event["name"] == f'</script>"x-{job}'
        assert event["ts"] == pytest.approx(rows["start_s"][k] * 1e6, abs=1e-3)
        assert event["dur"] == pytest.approx((rows["end_s"] - rows["start_s"])[k] * 1e6, abs=1e-3)
        assert event["args"]["busy_gpu_s"] == pytest.approx(rows["busy_gpu_s"][k], abs=1e-6)


def test_names_counters_and_instants(run: Path, tmp_path: Path) -> None:
    written = write_trace(run, tmp_path / "t.json.gz")
    found = read(tmp_path / "t.json.gz")
    by = Counter(event["ph"] for event in found)
    processes = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert processes == {0: "cluster"} | {k + 1: f"node-{k}" for k in range(8)}
    assert by["C"] == written.counters == 8 * 4
    assert by["i"] == written.instants == 3 + 3
    gpus = [sum(e["args"].values()) for e in found if e["name"] == "GPUs"]
    assert gpus == pytest.approx([64.0] * 8, rel=1e-5)
    crash = next(e for e in found if e["name"] == "crash")
    assert (crash["pid"], crash["s"], crash["args"]["subject"]) == (2, "p", "node-1")
    decision = next(e for e in found if e["name"] == "decision")
    assert set(decision["args"]) == {"s4", "s1"}


def test_jobs_that_share_a_gpu_become_asynchronous(tmp_path: Path) -> None:
    make_run(tmp_path, jobs=2, each=2, buckets=4)
    rows = segments(2, 2, 64)
    held = holdings(rows, 8)
    held["share"] = np.full(len(held["gpu"]), 0.5)
    write_parquet(tmp_path / "timeline" / "holdings.parquet", held)
    write_trace(tmp_path, tmp_path / "t.json.gz")
    found = read(tmp_path / "t.json.gz")
    begun = {e["id"]: e for e in found if e["ph"] == "b"}
    ended = {e["id"]: e for e in found if e["ph"] == "e"}
    assert not [e for e in found if e["ph"] == "X"]
    assert begun.keys() == ended.keys()
    assert len(begun) == len(held["gpu"])
    assert all(ended[key]["ts"] > event["ts"] for key, event in begun.items())


def test_bytes_are_the_same_each_time(run: Path, tmp_path: Path) -> None:
    for name in "ab":
        write_trace(run, tmp_path / f"{name}.json.gz")
    one, two = ((tmp_path / f"{name}.json.gz").read_bytes() for name in "ab")
    assert one == two
    assert one[4:8] == bytes(4)  # no time stamp in the gzip header
