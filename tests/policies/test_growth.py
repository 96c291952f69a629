"""What of a step does not grow with its samples: the law by hand, and learnt from exact steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.policies.growth import ALL_GROWS, LEAST_PAIRS, LEAST_ROUNDS, Growth, Law, _law

NAN = math.nan


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
    assert (few.is_known, few.law, few.sure) == (False, ALL_GROWS, ALL_GROWS)
    found = taught(fixed, [EVEN, ODD, EVEN])
    assert found.is_known  # two workers, twice
    assert found.law.fixed_samples == pytest.approx(fixed, rel=2e-3, abs=1e-9)
    assert found.sure.fixed_samples <= found.law.fixed_samples
    assert found.law is found.law


def test_small_changes_and_what_is_not_known_teach_nothing() -> None:
    for other, known in (([33.0, 33.0], False), ([34.0, 34.0], True), ([30.0, 30.0], True), ([NAN, 48.0], False)):
        assert taught(16.0, [EVEN, other, EVEN]).is_known == known
    none = Growth()
    for _ in range(3):
        none.learn(np.zeros(2), np.zeros(2))
    assert not none.is_known


def test_four_changes_are_enough_to_tell() -> None:
    one = Growth()
    for k, known in enumerate((False, False, False, False, True)):
        one.learn(np.array([32.0 + 16.0 * (k % 2)]), np.array([1.0 + k % 2]))
        assert one.is_known == known


def test_old_changes_are_forgotten() -> None:
    found = taught(16.0, [EVEN, ODD, EVEN], Growth(forgotten=3))  # changes in the windows 2 and 3
    for known in (True, True, False):
        found.learn(np.array(EVEN), np.array([48e-3, 144e-3]))  # the windows 4, 5 and 6
        assert found.is_known == known
    assert found.law == ALL_GROWS


def test_the_law_is_that_of_the_last_changes_too() -> None:
    found = taught(16.0, [EVEN, ODD, EVEN])
    first = found.law.fixed_samples
    taught(100.0, [EVEN, ODD, EVEN, ODD, EVEN, ODD], found)
    assert found.law.fixed_samples > 1.5 * first
    assert found.sure.fixed_samples < found.law.fixed_samples  # the two disagree


@pytest.mark.parametrize("error", [0.003, 0.001])
def test_what_is_sure_is_two_standard_errors_from_what_is_likely(error: float) -> None:
    """Four changes between 32 and 48 samples, 16 of them fixed, whose logarithm of 4 / 3 is off by `error`.

    The law leaves the four errors; another one is as likely whose logarithm is off by 2 errors / sqrt(3) at most.
    """
    growth, took_s = Growth(), 1.0
    true = math.log(4 / 3)
    growth.learn(np.array([32.0]), np.array([took_s]))
    for k, change in enumerate((true + error, -true - error, true - error, -true + error)):
        took_s *= math.exp(change)
        growth.learn(np.array([48.0 if k % 2 == 0 else 32.0]), np.array([took_s]))
    ratio = math.exp(true + 2.0 * error / math.sqrt(3.0))
    usual, fixed = math.sqrt(32 * 48), (48 - 32 * ratio) / (ratio - 1.0)

    def grows(law_fixed: float) -> float:
        return usual / (usual + law_fixed)

    assert grows(growth.law.fixed_samples) == pytest.approx(grows(16.0), abs=1.1e-4)
    assert grows(growth.sure.fixed_samples) == pytest.approx(grows(fixed), abs=1.1e-4)


def test_512_changes_are_kept() -> None:
    """Of 600 windows without fixed time the last 512 changes are of the other law."""
    growth = Growth(forgotten=10_000)
    for k in range(88):
        growth.learn(np.array([32.0 + 16.0 * (k % 2)]), np.array([1.0]))
    assert math.isinf(growth.law.fixed_samples)
    for k in range(513):
        samples = 32.0 + 16.0 * (k % 2)
        growth.learn(np.array([samples]), np.array([samples]))
        assert k < 512 or growth.law.fixed_samples == 0.0
    assert len(growth._pairs) == 512


def test_a_law_of_which_a_twentieth_grows_is_not_told_from_a_fixed_step() -> None:
    """Of a step of 40 samples: 760 samples' worth is fixed where a twentieth grows."""
    for growing, fixed in ((0.05, 760.0), (0.0499, math.inf), (0.25, 120.0), (1.0, 0.0), (0.0, math.inf)):
        assert _law(growing, 40.0).fixed_samples == pytest.approx(fixed)
    assert (LEAST_PAIRS, LEAST_ROUNDS) == (4, 3)
