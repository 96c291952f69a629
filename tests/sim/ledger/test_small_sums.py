"""What is left of a sum, and sums in parts: nothing is below nothing, and no part is forgotten."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.sim.advance.periods import dot
from tests.scenarios import scenario, simulate


@pytest.mark.parametrize("size", range(26))
def test_a_sum_in_eight_parts_has_every_product_once(size: int) -> None:
    values, weight = 3.0 ** np.arange(size), np.ones(size)
    assert dot(values, weight) == sum(3**k for k in range(size))
    assert dot(weight, values) == dot(values, weight)


def test_gpus_that_are_never_free_idle_for_nothing() -> None:
    """Durations of which the sums round: 2.3e-14 GPU-seconds were given away, or taken."""
    for k in range(40):
        jobs = [{"gpus": 2, "duration": 0.1 + j / 7 + k / 11} for j in range(7)]
        totals = simulate(scenario(workload={"jobs": jobs})).totals
        assert totals["idle_gpu_s"] == 0.0
        assert math.copysign(1.0, totals["idle_gpu_s"]) == 1.0
        assert totals["idle_usd"] == 0.0


def test_a_little_idling_is_kept() -> None:
    jobs = [{"gpus": 2, "duration": 1000.0}, {"gpus": 1, "duration": 1e-4, "arrival": 1000.0}]
    totals = simulate(scenario(workload={"jobs": jobs})).totals
    assert totals["idle_gpu_s"] == pytest.approx(1e-4, rel=1e-6)
    assert totals["idle_usd"] > 0.0
