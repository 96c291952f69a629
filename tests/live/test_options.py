"""The borders of every setting: the last value that is allowed, and the first that is not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from equipoise.live.options import Options


def options(**changes: Any) -> Options:
    return Options(**({"global_batch": 20} | changes))


def refused(name: str, make: Any, **changes: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: .* is not allowed"):
        make(**changes)


def test_what_does_not_go_together() -> None:
    refused("weighted", options, weighted=True, loss_reduction="sum")
    assert options(weighted=True).weighted
    assert options(loss_reduction="sum").loss_reduction == "sum"
    refused("micro_batch", options, micro_batch=21)
    passes = {"allow": {"accumulation"}}
    assert options(**passes, accumulation=1).takes_passes
    for other, said in (({"accumulation": 2}, "accumulation of 2"), ({"weighted": True}, "weighted batches")):
        with pytest.raises(ValueError, match=f"allow: 'accumulation' is not allowed with {said}"):
            options(**passes, **other)
    assert not options(accumulation=2).takes_passes


@pytest.mark.parametrize(
    ("changes", "local", "alone", "assumed"),
    [
        ({}, False, False, math.nan),
        ({"drift": 0}, True, True, 0.0),
        ({"drift": 0.02}, True, True, 0.02),
        ({"drift": "measured"}, True, True, 0.1),
        ({"drift": 0.02, "mode": "advise"}, True, False, 0.02),
        ({"drift": 0.02, "allow": {"samples"}}, True, False, 0.02),
    ],
)
def test_local_steps_are_taken_where_their_drift_is_known_and_a_policy_may(
    changes: dict[str, Any], local: bool, alone: bool, assumed: float
) -> None:
    """A drift that is to be measured begins with one that allows two local steps."""
    made = options(**changes)
    assert (made.local_steps, made.may_step_alone) == (local, alone)
    assert made.assumed_drift == pytest.approx(assumed, nan_ok=True)
