"""The interval of a job that waits: at its ratio the coefficient of the controller is 0."""

from __future__ import annotations

import pytest

from equipoise.policies.stages.intervals import settled_ratio


@pytest.mark.parametrize("delay", [0.01, 0.5, 2.0, 30.0])
def test_at_the_settled_ratio_the_coefficient_is_zero(delay: float) -> None:
    ratio = settled_ratio(delay)
    assert ratio > 0.0
    assert 1.0 / (1.0 + ratio) - ratio / delay == pytest.approx(0.0, abs=1e-12)
