import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.study.statistics import mean_interval, paired_difference, paired_ratio, t_quantile

POSITIVE = st.floats(1e-3, 1e6)


def test_t_quantile_against_printed_tables():
    # Student's t, two-sided 95 %: 1, 4, 30 degrees of freedom.
    assert t_quantile(0.95, 1) == pytest.approx(12.706, abs=5e-4)
    assert t_quantile(0.95, 4) == pytest.approx(2.776, abs=5e-4)
    assert t_quantile(0.95, 30) == pytest.approx(2.042, abs=5e-4)
    with pytest.raises(ValueError, match=r"confidence 1\.5"):
        t_quantile(1.5, 3)


def test_mean_interval_by_hand():
    # 1..5: standard deviation sqrt(2.5), half width 2.776 * sqrt(2.5 / 5).
    interval = mean_interval([1, 2, 3, 4, 5])
    assert (interval.mean, interval.n) == (3.0, 5)
    assert interval.half_width == pytest.approx(2.7764451 * math.sqrt(0.5), rel=1e-6)


def test_interval_covers_the_truth_as_often_as_it_says():
    draws = np.random.Generator(np.random.Philox(7)).normal(10.0, 3.0, size=(4000, 5))
    hits = [low <= 10.0 <= high for low, high in ((i.low, i.high) for i in map(mean_interval, draws))]
    assert 0.935 <= np.mean(hits) <= 0.965  # 95 %, +-4 standard errors


@given(st.lists(POSITIVE, min_size=2, max_size=8), st.floats(0.1, 10))
def test_a_constant_factor_is_found_exactly_whatever_the_seeds_do(reference, factor):
    ratio = paired_ratio([factor * r for r in reference], reference)
    assert ratio.mean == pytest.approx(factor, rel=1e-12)
    assert ratio.high - ratio.low <= 1e-9 * factor


def test_pairing_beats_independent_intervals():
    rng = np.random.Generator(np.random.Philox(3))
    common = rng.lognormal(0, 1, size=20)
    better = common * 0.8 * rng.lognormal(0, 0.01, size=20)
    ratio = paired_ratio(better, common)
    assert ratio.low < 0.8 < ratio.high
    assert ratio.half_width < 0.02
    assert mean_interval(common).half_width > 0.2 * common.mean()


def test_ratio_with_zeros_is_the_ratio_of_means():
    ratio = paired_ratio([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    assert ratio.mean == pytest.approx(0.5)
    residual = np.array([0.0 - 0.5, 1.0 - 1.0, 2.0 - 1.5]) / 2.0
    assert ratio.half_width == pytest.approx(t_quantile(0.95, 2) * residual.std(ddof=1) / math.sqrt(3))


def test_paired_difference():
    difference = paired_difference([2.0, 4.0, 6.0], [1.0, 3.0, 5.0])
    assert (difference.mean, difference.low, difference.high) == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference([1.0], [1.0, 2.0])
