"""Policies written as text: what is no policy is one clear line."""

from __future__ import annotations

import pytest

from policies import PolicyError, make_policy


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("fifo+fifo", "stage 'fifo' is listed twice; give each stage once"),
        ("s1+s2+s1(threshold=0.2)", "stage 's1' is listed twice; give each stage once"),
        ("s2(epsilon=inf)", "s2.epsilon: inf is not a finite number"),
        ("s4(ageing=nan)", "s4.ageing: nan is not a finite number"),
        ("s4(margin=-inf)", "s4.margin: -inf is not a finite number"),
    ],
)
def test_what_is_no_policy(text: str, wrong: str) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(text)
    assert str(error.value) == wrong


def test_numbers_in_lists_are_checked() -> None:
    with pytest.raises(PolicyError, match=r"las.thresholds_gpu_s: .* is not a finite number"):
        make_policy([{"las": {"thresholds_gpu_s": [3600.0, float("inf")]}}])


def test_each_stage_once_is_a_policy() -> None:
    policy = make_policy("s1+s2(epsilon=0.5)+fifo")
    assert [stage.name for stage in policy.stages] == ["s1", "s2", "fifo"]
