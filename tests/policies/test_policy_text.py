"""Policies written as text: what is no policy is one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import cli
from equipoise.policies.registry import PolicyError, make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.study.runs.orders import policy_text


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("fifo+fifo", "stage 'fifo' is listed twice; give each stage once"),
        ("s1+s2+s1(threshold=0.2)", "stage 's1' is listed twice; give each stage once"),
        ("s2(epsilon=inf)", "s2.epsilon: 'inf' is not a float"),
        ("s4(growth=nan)", "s4.growth: 'nan' is not a float"),
        ("s4(run_s=-inf)", "s4.run_s: '-inf' is not a float"),
    ],
)
def test_what_is_no_policy(text: str, wrong: str) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(text)
    assert str(error.value) == wrong


thresholds = st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=4, unique=True).map(sorted)
LAS = {"policy": [{"las": {"thresholds_gpu_s": [3600.0, 36000.0], "promote": 2.0}}]}


@given(thresholds, st.floats(0.0, 1e6), st.sampled_from([list, tuple]))
def test_a_name_gives_the_same_policy_again(levels: list[float], promote: float, kind: Any) -> None:
    policy = make_policy(["s1", {"las": {"thresholds_gpu_s": kind(levels), "promote": promote}}, {"s2": None}])
    again = make_policy(policy.name)
    assert again.name == policy.name
    assert again.stages == policy.stages


def scenario(**more: Any) -> dict[str, Any]:
    jobs = [{"gpus": 1, "duration": 10.0}]
    return {"schema_version": 1, "name": "s", "cluster": {"gpus": 2}, "workload": {"jobs": jobs}, **more}


def test_a_study_takes_the_parameters_of_a_scenario() -> None:
    text = policy_text(from_mapping(scenario(**LAS)), None)
    assert text == "las(thresholds_gpu_s=[3600.0, 36000.0],promote=2.0)"
    assert policy_text(from_mapping(scenario(policy=[])), None) == "none"
    with pytest.raises(PolicyError):
        policy_text(from_mapping(scenario()), "nope")


@pytest.mark.parametrize(
    "command",
    [
        "compare {} --seeds 1",
        "limits {} --seeds 1",
        "sensitivity {} --seeds 1 --vary workload.jobs.0.duration=x0.5..x2",
        "size {} --seeds 1 --vary cluster.gpus=1,2 --target makespan<=1h",
    ],
)
def test_commands_take_them_too(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(scenario(**LAS)))
    assert cli.main(command.format(path).split()) == 0, capsys.readouterr().err
