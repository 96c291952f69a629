"""On which types of GPUs each job ran, and how much of the idle time comes after the last arrival."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.sim.cluster.cluster import Holding
from equipoise.sim.ledger.ran_on import RanOn
from equipoise.sim.record import read_parquet
from equipoise.study.report.breakdown import by_type
from equipoise.study.report.read import read_study
from tests.scenarios import scenario, simulate

NODES = [
    {"name": "fast", "gpus": 2, "accelerator": "h100_sxm", "speed": 1.0},
    {"name": "slow", "gpus": 2, "accelerator": "a100_sxm_80gb", "speed": 0.5},
]
JOBS = [
    {"name": "first", "gpus": 2, "duration": 100.0},
    {"name": "second", "gpus": 2, "duration": 100.0, "arrival": 1.0},
    {"name": "third", "gpus": 2, "duration": 100.0, "arrival": 2.0},
]
TWO_TYPES = """
schema_version: 1
name: two types
cluster:
  nodes:
    - {name: fast, gpus: 2, accelerator: h100_sxm, speed: 1.0}
    - {name: slow, gpus: 2, accelerator: a100_sxm_80gb, speed: 0.5}
workload:
  jobs:
    - {name: short, gpus: 2, duration: 100 s}
    - {name: long, gpus: 2, duration: 100 s, arrival: 1 s}
    - {name: late, gpus: 2, duration: 100 s, arrival: 2 s}
"""


def two_types(jobs, **more):
    return scenario(cluster={"nodes": NODES}, workload={"jobs": jobs}, **more)


def test_each_job_says_on_which_type_it_ran():
    made = simulate(two_types(JOBS), "fifo")
    assert made.jobs["ran_on"].tolist() == ["h100_sxm", "a100_sxm_80gb", "h100_sxm"]
    classes = made.by_class()
    assert classes["queueing_p95_s[a100_sxm_80gb]"] == 0.0
    assert classes["completion_p50_s[a100_sxm_80gb]"] == pytest.approx(199.0 + 1.0)  # half the speed
    assert classes["completion_p50_s[h100_sxm]"] == pytest.approx((100.0 + 198.0) / 2)


def test_a_job_that_is_moved_has_run_on_both_and_one_that_never_ran_on_none():
    crash = [{"kind": "crash", "node": "fast-0", "at": 20.0, "duration": 1e4}]
    last = {"name": "last", "gpus": 2, "duration": 1.0, "arrival": 130.0}
    made = simulate(two_types([JOBS[0], last], faults={"events": crash}, horizon=150.0), "fifo")
    assert made.jobs["ran_on"].tolist() == ["h100_sxm+a100_sxm_80gb", ""]


def test_one_type_needs_no_column():
    made = simulate(scenario(workload={"jobs": JOBS}), "fifo")
    assert "ran_on" not in made.jobs


def test_tables_by_type(tmp_path: Path, capsys):
    (tmp_path / "case.yaml").write_text(TWO_TYPES, encoding="utf-8")
    assert main(["run", str(tmp_path / "case.yaml"), "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("type of GPU"))
    shown = {line.split()[0]: line.split()[1] for line in lines[at + 1 : at + 3]}
    assert shown == {"h100_sxm": "2", "a100_sxm_80gb": "1"}
    jobs = read_parquet(tmp_path / "run" / "jobs.parquet")
    mean_s = float(np.mean(jobs["queueing_s"][jobs["ran_on"] == "h100_sxm"]))
    page = by_type(read_study(tmp_path / "run"))
    assert "Waiting by type of GPU" in page
    assert f"{mean_s:.1f} s"[:4] in page


def test_idle_time_after_the_last_arrival_counts_what_faults_interrupt():
    crash = [{"kind": "crash", "node": "fast-0", "at": 20.0, "duration": 60.0}]
    made = simulate(two_types([JOBS[0], {**JOBS[2], "gpus": 1}], faults={"events": crash}), "fifo")
    end_s, last_s = made.totals["end_s"], 2.0
    # From 2 s on the first holds two GPUs but for the time that it waits, the other one from its start to its end.
    jobs = made.jobs
    other = jobs["completion_s"][1] - max(jobs["start_s"][1], last_s)
    first = 2 * (jobs["completion_s"][0] - last_s - jobs["queueing_s"][0])
    assert jobs["restarts"].tolist() == [1, 0]
    assert made.totals["idle_late_gpu_s"] == pytest.approx(4 * (end_s - last_s) - first - other)
    assert made.totals["idle_late_gpu_s"] <= made.totals["idle_gpu_s"]


@pytest.mark.parametrize("gpus", [[0], [0, 1], [2, 3], [1, 2], [3, 4, 5], [0, 1, 2, 3, 4, 5]])
def test_gpus_of_one_node_and_of_several_are_noted_alike(gpus):
    """Three nodes of two GPUs, of the types a, b and a: by hand, which types a job of these GPUs has run on."""
    of_gpu = np.array([0, 0, 1, 1, 0, 0])
    ran_on, holding = RanOn(2, ("a", "b"), of_gpu), np.array(gpus)
    nodes = np.unique(holding // 2)
    ran_on.began(SimpleNamespace(row=1), Holding(holding, np.ones(len(gpus)), nodes, float(len(gpus))), 0.0)
    types = sorted({"a" if gpu in (0, 1, 4, 5) else "b" for gpu in gpus})
    assert ran_on.column().tolist() == ["", "+".join(types)]
    ran_on.began(SimpleNamespace(row=1), Holding(np.array([2]), np.ones(1), np.array([1]), 1.0), 9.0)
    assert ran_on.column()[1] == "+".join(sorted({*types, "b"}))


def test_a_gang_over_two_types_has_run_on_both():
    made = simulate(two_types([{"name": "wide", "gpus": 3, "duration": 100.0, "mix_gpus": True}]), "fifo")
    assert made.jobs["ran_on"].tolist() == ["h100_sxm+a100_sxm_80gb"]
