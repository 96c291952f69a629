"""Fairness by user, account and queue, against values by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import equipoise
from equipoise.cli import main
from equipoise.sim.fairness import groups, jain


def case() -> dict[str, object]:
    jobs = [
        {"name": "a", "gpus": 4, "duration": 100, "user": "ann", "account": "x"},
        {"name": "b", "gpus": 4, "duration": 50, "user": "bob", "account": "x"},
        {"name": "c", "gpus": 2, "duration": 100, "user": "bob", "account": "y", "arrival": 150},
    ]
    return {"schema_version": 1, "name": "x", "cluster": {"gpus": 4}, "workload": {"jobs": jobs}}


def test_jain() -> None:
    assert jain(np.array([2.0, 2.0, 2.0])) == 1.0
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert math.isnan(jain(np.array([])))


def test_by_user_and_account() -> None:
    made = equipoise.run(case(), policy="fifo")
    ann, bob = groups(made.jobs, "user")
    assert (ann["user"], ann["jobs"], ann["service_gpu_s"], ann["queueing_mean_s"]) == ("ann", 1, 400.0, 0.0)
    # b waits 100 s for 50 s of work: 150/50 = 3; c does not wait: 1.
    assert (bob["jobs"], bob["service_gpu_s"], bob["queueing_mean_s"]) == (2, 400.0, 50.0)
    assert (bob["finish_ratio_mean"], bob["finish_ratio_worst"]) == (2.0, 3.0)
    row = made.summary()
    assert row["fairness_user"] == pytest.approx((1 + 0.5) ** 2 / (2 * (1 + 0.25)))
    assert row["fairness_account"] == pytest.approx((0.5 + 1) ** 2 / (2 * (0.25 + 1)))  # x: (1 + 3) / 2
    assert math.isnan(row["fairness_queue"])
    assert row["fairness_worst"] == 2.0


def test_jobs_that_name_nobody_have_no_fairness() -> None:
    plain = {"schema_version": 1, "name": "x", "cluster": {"gpus": 4}}
    made = equipoise.run({**plain, "workload": {"jobs": [{"gpus": 1, "duration": 1}]}}, policy="fifo")
    assert math.isnan(made.summary()["fairness_worst"])
    assert groups(made.jobs, "user") == []


def test_of_jobs_that_never_ran_no_ratio_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "case.yaml").write_text(json.dumps(case() | {"horizon": "1 s"}))  # nobody is done by then
    main(["run", str(tmp_path / "case.yaml"), "-q"])
    shown = capsys.readouterr().out
    assert "time on GPUs" in shown
    assert "nan" not in shown
