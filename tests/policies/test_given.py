"""What callers give for a policy, and parameters of its stages in a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.policies.contract import Policy
from equipoise.policies.parameters import as_policies, as_policy, check_used, split_point, with_parameters
from equipoise.policies.registry import PolicyError, make_policy, make_stage

LAS, SIA = make_stage("las", {"promote": 0.0}), make_stage("sia")


def test_keys_of_a_sweep_that_name_a_parameter() -> None:
    point = {"workload.seed": 1, "policy.las.promote": 2.0, "policy.las.placement": "packed", "policy.s2.mode": "x"}
    assert split_point(point) == (
        {"workload.seed": 1},
        {"las": {"promote": 2.0, "placement": "packed"}, "s2": {"mode": "x"}},
    )
    for half in ("policy.las", "policy.las."):
        with pytest.raises(PolicyError, match=r"write policy\.STAGE\.PARAMETER"):
            split_point({half: 1})


def test_what_may_be_given_for_a_policy() -> None:
    named = Policy("mine", (SIA,))
    assert as_policy("easy") == "easy"
    assert as_policy(named) is named
    assert as_policy([]) == "none"
    found = as_policy(LAS)
    assert isinstance(found, Policy)
    assert (found.name, found.stages) == ("las(promote=0.0)", (LAS,))
    several = as_policy(["s1", make_stage("s2")])
    assert isinstance(several, Policy)
    assert several.name == "s1+s2"
    assert [stage.name for stage in several.stages] == ["s1", "s2", "fifo"]  # no stage of them allocates
    for wrong, said in ((3, "3 is not a policy"), (type(SIA), "Sia itself"), ([None], "None is not a policy")):
        with pytest.raises(PolicyError, match=said):
            as_policy(wrong)  # type: ignore[arg-type]
    assert as_policies("easy") == ["easy"]
    assert as_policies(named) == [named]
    assert [getattr(each, "name", each) for each in as_policies(SIA)] == ["sia"]
    assert [getattr(each, "name", each) for each in as_policies(["easy", LAS])] == ["easy", "las(promote=0.0)"]


def values(policy: Any, stage: str) -> dict[str, Any]:
    (found,) = (each for each in policy.stages if each.name == stage)
    return vars(found)


def test_parameters_of_a_sweep_are_set_in_the_stages_that_they_name() -> None:
    assert with_parameters("las", {}) == "las"
    found = with_parameters("s2+las(promote=3)", {"las": {"placement": "packed"}, "other": {"x": 1}})
    assert (values(found, "las")["promote"], values(found, "las")["placement"]) == (3.0, "packed")
    assert [stage.name for stage in found.stages] == ["s2", "las"]  # type: ignore[union-attr]
    mine = with_parameters(Policy("mine", (LAS, SIA)), {"las": {"promote": 5.0}, "sia": {"power": 1.0}})
    assert (mine.name, values(mine, "las")["promote"]) == ("mine[promote=5.0][power=1.0]", 5.0)  # type: ignore[union-attr]
    check_used(["policy.las.promote", "workload.seed"], ["easy", Policy("mine", (LAS,))])
    check_used(["policy.s2.mode"], ["s2+easy"])
    with pytest.raises(PolicyError, match=r"policy\.las: no policy has that stage; allowed: easy, s2"):
        check_used(["policy.s2.mode", "policy.las.promote"], [make_policy("s2+easy")])


BORDERS: dict[str, dict[str, tuple[list[float], list[float]]]] = {
    "s1": {
        **dict.fromkeys(("threshold", "sigmas", "suspect_s"), ([0.01], [0.0])),
        "sick_windows": ([1], [0]),
        "smoothing": ([0.01, 1.0], [0.0, 1.01]),
        "trend_smoothing": ([0.0, 1.0], [-0.01, 1.01]),
    },
    "s2": {
        "priority_alpha": ([0.0, 1.0], [-0.01, 1.01]),
        "rate_alpha": ([0.0, 1.0], [-0.01, 1.01]),
        "damping": ([0.01, 1.0], [0.0, 1.01]),
        "epsilon": ([0.01], [0.0]),
    },
    "s3": {
        "delay": ([0.01], [0.0]),
        "eta": ([0.01], [0.0]),
        "interval_max": ([1], [0]),
        "share_damping": ([0.01, 1.0], [0.0, 1.01]),
        "share_floor": ([0.01, 0.5], [0.0, 0.51]),
        "slack": ([0.0, 0.99], [-0.01, 1.0]),
        "power_least": ([0.01, 1.0], [0.0, 1.01]),
        **dict.fromkeys(("spread", "hysteresis", "share_band", "noise"), ([0.0], [-0.01])),
        "backoff_windows": ([0], [-1]),
    },
    "s4": {
        **dict.fromkeys(("ageing", "patience_s", "run_s", "growth", "horizon_s"), ([0.01], [0.0])),
        "speed_memory_s": ([0.01], [0.0]),
        **dict.fromkeys(("unknown_s", "search_limit", "time_limit_s"), ([1], [0])),
        **dict.fromkeys(("demand", "lead_s", "reserve_after_s", "slowdown", "longest_wait_s"), ([0.0], [-0.01])),
        **dict.fromkeys(("reluctance", "margin", "noise", "backoff_s"), ([0.0], [-0.01])),
    },
    "sia": dict.fromkeys(("search_limit", "time_limit_s"), ([1], [0])),
    "las": {"promote": ([0.0], [-0.01])},
}
"""By stage and parameter: the last values that are taken, and the first that are not."""


@pytest.mark.parametrize("stage", BORDERS)
def test_parameters_at_their_borders(stage: str) -> None:
    for name, (taken, refused) in BORDERS[stage].items():
        for value in taken:
            assert getattr(make_stage(stage, {name: value}), name) == value
        for value in refused:
            with pytest.raises(PolicyError, match=name):
                make_stage(stage, {name: value})
