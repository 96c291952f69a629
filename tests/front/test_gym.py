"""A scenario as a Gymnasium environment, and what is learnt in it as a policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import equipoise
from equipoise.cli import main
from equipoise.policies.baselines.linear import Linear
from equipoise.policies.contract import Policy
from equipoise.policies.record.export import ExportedPolicy, write_policy

CLASS = {"load": 0.9, "duration": {"kind": "lognormal", "median": "10 min", "sigma": 1.5}, "gpus": {1: 3, 4: 1, 8: 1}}
CASE = {
    "schema_version": 1,
    "name": "queue",
    "cluster": {"nodes": [{"count": 2, "gpus": 4}]},
    "workload": {"generate": {"length": "3 h", "classes": [CLASS]}},
}


def test_an_episode_is_a_run_and_the_best_job_by_a_weighted_sum_is_what_the_stage_starts() -> None:
    gym = pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    from equipoise.gym import SchedulingEnv

    env = SchedulingEnv(CASE, jobs=64)
    check_env(env, skip_render_check=True)
    seen, _ = env.reset(seed=5)
    total, over = 0.0, False
    while not over:
        assert seen["mask"].any()
        assert seen["mask"].shape == (65,)
        score = np.where(seen["mask"][:-1] > 0, seen["jobs"] @ np.array(Linear().weights, np.float32), -np.inf)
        seen, reward, over, cut, _ = env.step(int(score.argmax()))
        total += reward
    run = equipoise.run(CASE, policy="linear", seed=5)
    own_h = float((run.jobs["completion_s"] - run.jobs["arrival_s"]).sum()) / 3600.0
    assert not cut
    assert total == pytest.approx(-own_h)
    assert env.result is not None
    assert env.result.jobs["start_s"].tolist() == run.jobs["start_s"].tolist()
    env.reset(seed=6)
    env.close()  # in the midst of an episode
    assert isinstance(env.action_space, gym.spaces.Discrete)


def test_an_exported_stage_is_taken_by_run_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage, file, case = Linear((-2.0, -1.0, 0.0, 0.5, 0.0)), tmp_path / "learnt.yaml", tmp_path / "case.yaml"
    write_policy(ExportedPolicy(Policy("linear", (stage,))), file)
    case.write_text(yaml.safe_dump(CASE))
    assert main(["run", str(case), "--policy", str(file), "--format", "json", "-q"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["policy"] == "linear(weights=[-2.0, -1.0, 0.0, 0.5, 0.0])"
    assert main(["compare", str(case), "--policy", "fifo", "--policy", str(file), "--seeds", "2", "-q"]) == 0
    assert "linear(weights=" in capsys.readouterr().out
