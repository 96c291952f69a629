"""The line in the log that says which rank is slow, and why."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.decide.slow_ranks import LASTS, SlowRanks, causes
from equipoise.live.decide.window import LiveWindow, measure
from equipoise.live.train.rounds import COLUMNS, COMPUTE, SAMPLES, STALL, TAIL, UPDATE
from equipoise.policies.growth import Law
from equipoise.policies.slow_ranks import SlowRank


def window(ranks: int = 3, **extra_s: float) -> LiveWindow:
    """Equal ranks, but for rank 1: what it takes longer per round."""
    rows = np.zeros((ranks, 6, len(COLUMNS)))
    rows[:, :, SAMPLES] = 10
    columns = {"compute": COMPUTE, "input": STALL, "update": UPDATE}
    for name, column in columns.items():
        rows[:, :, column] = 0.1 if name == "compute" else 0.01
        rows[-1 if ranks == 1 else 1, :, column] += extra_s.get(name, 0.0)
    rows[:, :, TAIL] = 0.02
    return measure(rows, [True] * 6)


@pytest.mark.parametrize(("part", "cause"), [("compute", "compute"), ("input", "input"), ("update", "compute")])
def test_a_slow_rank_is_told_of_once_with_its_cause(part: str, cause: str) -> None:
    watch, slow = SlowRanks(), window(**{part: 0.1})
    told = [watch.news(slow, {}) for _ in range(LASTS + 3)]
    assert [len(one) for one in told] == [0] * (LASTS - 1) + [1] + [0] * 3
    rank, found = told[LASTS - 1][0]
    assert (rank, found.cause) == (1, cause)
    assert found.times == pytest.approx(0.22 / 0.12)
    assert watch.news(window(), {}) == []
    again = [watch.news(slow, {}) for _ in range(LASTS)]
    assert len(again[-1]) == 1  # it had gone meanwhile


def test_heat_is_told_from_computing_and_equal_ranks_from_slow_ones() -> None:
    watch, clock = SlowRanks(), {"clock_ratio": np.array([1.0, 0.7, 1.0])}
    told = [watch.news(window(compute=0.1), clock) for _ in range(LASTS)]
    assert told[-1][0][1].cause == "thermal"
    assert "clock at 70%" in told[-1][0][1].evidence
    for known in (window(), window(compute=0.01), window(1, compute=1.0), LiveWindow.unknown(3)):
        watch = SlowRanks()
        assert [watch.news(known, {}) for _ in range(3)] == [[]] * 3


def test_a_rank_that_is_dealt_few_samples_is_not_slow_for_what_does_not_grow_with_them() -> None:
    rows = np.zeros((2, 6, len(COLUMNS)))
    rows[:, :, SAMPLES] = np.array([[30], [10]])
    rows[:, :, COMPUTE] = 0.1
    rows[:, :, TAIL] = 0.02
    seen = measure(rows, [True] * 6)
    assert list(causes(seen, {})) == [1]
    assert causes(seen, {}, Law(math.inf)) == {}
    rows[0, :, COMPUTE] *= 2
    slow = causes(measure(rows, [True] * 6), {}, Law(math.inf))
    assert slow == {0: SlowRank(2.0, "compute", "200 ms per round of 30 samples, the others 100 ms")}
    rows[:, :, COMPUTE] = np.array([[0.04], [0.04]])  # (10 + n) ms, and twice that
    slow = causes(measure(rows, [True] * 6), {}, Law(10.0))
    assert slow == {1: SlowRank(2.0, "compute", "40 ms per round of 10 samples, the others 20 ms")}
