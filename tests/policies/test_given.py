"""What callers give for a policy, and parameters of its stages in a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.policies.registry import PolicyError, make_stage

LAS, SIA = make_stage("las", {"promote": 0.0}), make_stage("sia")


def values(policy: Any, stage: str) -> dict[str, Any]:
    (found,) = (each for each in policy.stages if each.name == stage)
    return vars(found)


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
        **dict.fromkeys(("run_s", "growth", "horizon_s"), ([0.01], [0.0])),
        "time_limit_s": ([1], [0]),
        **dict.fromkeys(("reserve_after_s", "slowdown", "longest_wait_s"), ([0.0], [-0.01])),
        **dict.fromkeys(("reluctance", "noise", "backoff_s"), ([0.0], [-0.01])),
    },
    "sia": {"time_limit_s": ([1], [0])},
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
