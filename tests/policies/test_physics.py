"""The shared laws against their sources."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from equipoise.policies.kernels.arrays import heapify, pop, position, push
from equipoise.policies.physics import deal, efficiency, hidden_s, overlapped_s, share_for, speed_at
from tests.oracles import physics as plain

SECONDS = st.floats(1e-6, 1e3) | st.just(0.0)


@given(SECONDS, SECONDS, st.floats(1.0, 20.0))
@example(0.0, 0.0, 2.0)
def test_overlap_is_the_published_one(work: float, exchange: float, gamma: float) -> None:
    scale = max(work, exchange)
    both = plain.overlapped(work, exchange, gamma)
    assert overlapped_s(work, exchange, gamma) == pytest.approx(both, rel=1e-12)
    assert hidden_s(work, exchange, gamma) == pytest.approx(work + exchange - both, abs=1e-9 * scale)
    assert 0 <= hidden_s(work, exchange, gamma) <= min(work, exchange)


@given(st.floats(0.01, 1.0), st.floats(0.01, 1e3) | st.sampled_from([np.nan, np.inf]))
def test_share_curve_and_its_inverse(share: float, kappa: float) -> None:
    assert speed_at(share, kappa) == plain.speed_at(share, kappa)
    assert share_for(speed_at(share, kappa), kappa) == pytest.approx(share, rel=1e-9)


@given(st.floats(1, 1e6), st.integers(1, 64), st.floats(0, 1e6), st.floats(0, 0.5))
def test_efficiency_is_at_most_one_and_falls_with_batch_and_interval(
    batch: float, interval: int, phi: float, drift: float
) -> None:
    value = efficiency(batch, interval, phi, 1.0, drift)
    assert value == pytest.approx(plain.efficiency(batch, interval, phi, 1.0, drift), rel=1e-12)
    assert 0 < value <= 1
    assert efficiency(2 * batch, interval, phi, 1.0, drift) <= value
    assert efficiency(batch, interval + 1, phi, 1.0, drift) <= value


@pytest.mark.parametrize("unknown", [-1.0, np.nan])
def test_what_is_not_known_costs_no_efficiency(unknown: float) -> None:
    assert efficiency(64.0, 8, unknown, 32.0, unknown) == 1.0
    assert efficiency(64.0, 1, 64.0, 32.0, unknown) == 0.75
    assert efficiency(64.0, 2, unknown, 32.0, 1.0) == 0.5


# -- whole samples ---------------------------------------------------------------------------------------------


@given(st.integers(0, 3000), st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 7))
@example(1, [0, 3], 2)  # less than one unit: to who has a weight
@example(2, [1, 3], 1)  # equal remainders: to the larger share
def test_a_batch_is_dealt_whole(batch: int, weights: list[int], unit: int) -> None:
    dealt = deal(batch, weights, unit)
    assert dealt.tolist() == plain.deal(batch, weights, unit)
    assert dealt.sum() == batch
    assert (dealt >= 0).all()
    assert np.count_nonzero(dealt % unit) <= 1
    if any(weights):
        exact = np.array(weights) / sum(weights) * batch
        assert (np.abs(dealt - exact) < 2 * unit).all()
        assert not dealt[np.array(weights) == 0].any()


# -- heap and search -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.integers(0, 5), max_size=10))
def test_a_heap_gives_the_least_key_first_then_the_lowest_id(first: list[int], later: list[int]) -> None:
    keys, ids = np.array([*first, *later], dtype=float), np.arange(len(first) + len(later))
    expected = sorted(zip(keys.tolist(), ids.tolist(), strict=True))
    size = len(first)
    heapify(keys, ids, size)
    for item, key in enumerate(later, start=len(first)):
        size = push(keys, ids, size, float(key), item)
    found = []
    while size:
        found.append((float(keys[0]), int(ids[0])))
        size = pop(keys, ids, size)
    assert found == expected


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(-1, 31))
def test_position_is_where_a_value_is_or_belongs(values: list[int], wanted: int) -> None:
    ascending = np.array(sorted(values), dtype=np.int64)
    assert position(ascending, wanted) == np.searchsorted(ascending, wanted)
