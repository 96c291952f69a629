"""On which types of GPUs each job ran, and how much of the idle time comes after the last arrival."""

from __future__ import annotations

import pytest

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


def test_a_gang_over_two_types_has_run_on_both():
    made = simulate(two_types([{"name": "wide", "gpus": 3, "duration": 100.0, "mix_gpus": True}]), "fifo")
    assert made.jobs["ran_on"].tolist() == ["h100_sxm+a100_sxm_80gb"]
