"""The sentence that a comparison begins with: which policy is fastest, and when that cannot be said."""

from __future__ import annotations

import math

from equipoise.study.runs.answer import answer
from equipoise.study.statistics import Interval
from equipoise.study.table import Cell

NONE = Interval(math.nan, math.nan, math.nan, 0)


def cells(metric: str, **values: tuple[float, Interval]) -> list[Cell]:
    """Cells of one metric: the value, and the ratio to the first policy."""
    return [Cell(metric, p, Interval(v, v, v, 3), r, math.nan, math.nan, NONE) for p, (v, r) in values.items()]


def ratio(mean: float, half: float) -> Interval:
    return Interval(mean, mean - half, mean + half, 3)


def test_the_fastest_is_named_with_its_ratio_and_cost() -> None:
    found = cells("makespan_s", a=(100.0, ratio(1.0, 0.0)), b=(60.0, ratio(0.6, 0.02)))
    found += cells("cost_usd", a=(10.0, ratio(1.0, 0.0)), b=(7.0, ratio(0.7, 0.01)))
    text = answer(found, ("a", "b"), 1, {})
    assert text.startswith("b is the fastest of 2")
    assert "0.6 ±0.02 times" in text
    assert "0.7 ±0.01 times" in text


def test_what_is_not_certain_is_not_claimed() -> None:
    found = cells("completion_mean_s", a=(100.0, ratio(1.0, 0.0)), b=(99.0, ratio(0.99, 0.03)))
    assert answer(found, ("a", "b"), 5, {}).startswith("No policy is certainly faster than a")
    slower = cells("completion_mean_s", a=(100.0, ratio(1.0, 0.0)), b=(120.0, ratio(1.2, 0.03)))
    assert answer(slower, ("a", "b"), 5, {}).startswith("No policy is faster than a:")


def test_a_policy_that_leaves_jobs_does_not_win() -> None:
    found = cells("makespan_s", a=(100.0, ratio(1.0, 0.0)), b=(10.0, ratio(0.1, 0.0)), c=(90.0, ratio(0.9, 0.01)))
    text = answer(found, ("a", "b", "c"), 1, {"b": 2})
    assert text.startswith("c is the fastest of 2")
    assert "b leaves 2 jobs undone" in text
    assert answer(found, ("a", "b"), 1, {"b": 2}) == ""
    assert answer(found, ("a",), 1, {}) == ""
