"""What of a step does not grow with its samples: the law by hand, and learnt from exact steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.policies.growth import ALL_GROWS, LEAST_PAIRS, LEAST_ROUNDS, Growth, Law, _law


def test_a_law_by_hand() -> None:
    """10 samples' worth is fixed: of 10 samples in 2 s half, of 30 a quarter."""
    samples, took_s = np.array([10.0, 30.0]), np.array([2.0, 2.0])
    assert Law(10.0).work(samples).tolist() == [20.0, 40.0]
    assert Law(10.0).fixed_s(samples, took_s).tolist() == [1.0, 0.5]
    assert ALL_GROWS.work(samples).tolist() == [10.0, 30.0]
    assert ALL_GROWS.fixed_s(samples, took_s).tolist() == [0.0, 0.0]
    assert Law(math.inf).work(samples).tolist() == [1.0, 1.0]
    assert Law(math.inf).fixed_s(samples, took_s).tolist() == [2.0, 2.0]


def taught(fixed: float, deals: list[list[float]], growth: Growth | None = None) -> Growth:
    """Steps of (fixed + samples) ms, of which the second worker takes three times as long."""
    found = growth or Growth()
    for deal in deals:
        samples = np.array(deal)
        grows = samples if math.isfinite(fixed) else np.zeros(2)
        found.learn(samples, (grows + (fixed if math.isfinite(fixed) else 1.0)) * np.array([1e-3, 3e-3]))
    return found


EVEN, ODD = [32.0, 32.0], [48.0, 16.0]


@pytest.mark.parametrize("fixed", [0.0, 16.0, 100.0, math.inf])
def test_exact_steps_teach_their_law(fixed: float) -> None:
    few = taught(fixed, [EVEN, EVEN, ODD])
    assert (few.is_known, few.law) == (False, ALL_GROWS)
    found = taught(fixed, [EVEN, ODD, EVEN])
    assert found.is_known  # two workers, twice
    assert found.law.fixed_samples == pytest.approx(fixed, rel=2e-3, abs=1e-9)
    even, took_s = np.array(EVEN), np.array([1.0, 3.0])
    for update_s in (took_s, 0.0 * took_s):  # whatever is measured as the update
        assert found.fixed_s(even, took_s, update_s) == pytest.approx(
            found.law.fixed_s(even, took_s), rel=0.02, abs=0.02
        )
    assert few.fixed_s(even, took_s, np.array([0.1, 1.5])).tolist() == [0.1, 0.1]  # not known: what both have
    assert found.law is found.law


def test_a_law_of_which_a_twentieth_grows_is_not_told_from_a_fixed_step() -> None:
    """Of a step of 40 samples: 760 samples' worth is fixed where a twentieth grows."""
    for growing, fixed in ((0.05, 760.0), (0.0499, math.inf), (0.25, 120.0), (1.0, 0.0), (0.0, math.inf)):
        assert _law(growing, 40.0).fixed_samples == pytest.approx(fixed)
    assert (LEAST_PAIRS, LEAST_ROUNDS) == (4, 3)
