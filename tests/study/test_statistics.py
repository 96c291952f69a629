import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.study.statistics import (
    _Pool,
    mean_interval,
    paired_bootstrap,
    paired_difference,
    paired_ratio,
    pooled_percentile,
    pooled_percentile_ratio,
    t_quantile,
)

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


GROUPS = st.lists(st.lists(POSITIVE, min_size=1, max_size=6), min_size=1, max_size=5)


@given(GROUPS, st.floats(0, 100), st.data())
def test_pooled_percentile_is_that_of_the_repeated_values(groups, q, data):
    counts = data.draw(st.lists(st.integers(0, 3), min_size=len(groups), max_size=len(groups)))
    repeated = [x for group, count in zip(groups, counts, strict=True) for x in group * count]
    found = _Pool(groups, q).percentile(np.array(counts))
    if repeated:
        assert found == pytest.approx(np.percentile(repeated, q), rel=1e-9)
    else:
        assert math.isnan(found)
    assert pooled_percentile(groups, q, resamples=5).mean == pytest.approx(
        np.percentile(np.concatenate(groups), q), rel=1e-9
    )


def test_pooled_percentile_covers_where_jobs_of_one_seed_are_alike():
    rng = np.random.Generator(np.random.Philox(11))
    # Seeds shift all their 30 jobs together: jobs drawn one by one would look far too sure.
    truth = 3.2897  # 95th percentile of N(0, 1) + N(0, sqrt(3))
    hits, naive = 0, 0
    for trial in range(150):
        groups = list(math.sqrt(3) * rng.normal(size=(30, 1)) + rng.normal(size=(30, 30)))
        found = pooled_percentile(groups, 95, resamples=300, key=trial)
        hits += found.low <= truth <= found.high
        pool = np.concatenate(groups)
        alone = paired_bootstrap(pool, pool, lambda x, _: float(np.percentile(x, 95)), resamples=100, key=trial)
        naive += alone.low <= truth <= alone.high
    assert hits / 150 >= 0.85  # some 0.92: the bootstrap of 30 groups is a little narrow
    assert naive / 150 < 0.7


def test_pooled_ratio_gains_from_pairing():
    rng = np.random.Generator(np.random.Philox(12))
    common = [rng.lognormal(rng.normal(), 0.3, size=40) for _ in range(15)]
    better = [0.7 * group * rng.lognormal(0, 0.02, size=40) for group in common]
    paired = pooled_percentile_ratio(better, common, 95, resamples=400)
    alone = pooled_percentile(better, 95, resamples=400)
    assert paired.low <= 0.7 <= paired.high
    assert paired.half_width < 0.1 * alone.half_width / alone.mean
    assert pooled_percentile_ratio(common, common, 50, resamples=20).half_width == 0.0
    with pytest.raises(ValueError, match="15 groups cannot be paired with 1"):
        pooled_percentile_ratio(better, common[:1], 95)
    assert math.isnan(pooled_percentile_ratio(better[:1], common[:1], 95).low)


def test_paired_bootstrap_of_a_difference_of_medians():
    rng = np.random.Generator(np.random.Philox(13))
    common = rng.lognormal(0, 1, size=41)
    shifted = common + 0.25 + rng.normal(0, 0.01, size=41)

    def between(x, y):
        return float(np.median(x) - np.median(y))

    found = paired_bootstrap(shifted, common, between, resamples=500, key=2)
    assert found == paired_bootstrap(shifted, common, between, resamples=500, key=2)
    assert found.low <= 0.25 <= found.high
    assert found.half_width < 0.05
    unpaired = paired_bootstrap(shifted, shifted, lambda x, _: float(np.median(x)), resamples=500)
    assert unpaired.half_width > 3 * found.half_width
    assert math.isnan(paired_bootstrap([1.0], [2.0], between).low)
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_bootstrap([1.0, 2.0], [1.0], between)
