"""The headline says what the numbers say, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.study.report.study import UNKNOWN, Study, StudyRow
from equipoise.study.report.words import _inverse, best_policy, headline
from equipoise.study.statistics import Interval, mean_interval, paired_ratio


def study_of(values: dict[str, list[float]], jobs: float = 4.0, **more: dict[str, float]) -> Study:
    """A study in which completion_mean_s takes those values; `more`: other metrics by policy."""
    first = next(iter(values))
    rows = []
    for policy, found in values.items():
        mean = mean_interval(found)
        rows += [
            StudyRow("jobs", policy, mean_interval([jobs])),
            StudyRow("completed", policy, mean_interval([more.get("completed", {}).get(policy, jobs)])),
            StudyRow("makespan_s", policy, mean, paired_ratio(found, values[first])),
            StudyRow("completion_mean_s", policy, mean, paired_ratio(found, values[first])),
        ]
        for metric in ("idle_ratio", "barrier_wait_ratio"):
            rows.append(StudyRow(metric, policy, mean_interval([more.get(metric, {}).get(policy, 0.0)])))
    seeds = len(values[first])
    return Study(
        "comparison",
        Path(),
        "made",
        tuple(values),
        seeds,
        tuple(rows),
        (),
        (),
        lambda a, b, m: paired_ratio(values[a], values[b]),
    )


def texts(study: Study) -> list[str]:
    return [sentence.text for sentence in headline(study)]


def test_a_clear_winner_and_the_next_best() -> None:
    first, *rest = texts(study_of({"none": [100, 110, 120], "s1": [80, 88, 96.5], "s2": [50, 55.1, 60]}))
    assert first.startswith("s2 has the shortest mean completion time, 55.0")
    assert "none takes 2.00 times as long (95 % interval 1.99 to 2.00)" in first
    assert rest[0] == "s1, the next best, takes 1.60 times as long (95 % interval 1.59 to 1.62)."


def test_what_is_not_told_apart_is_not_called_sure() -> None:
    told = texts(study_of({"none": [100, 130, 90], "s1": [90, 140, 80]}))
    assert told[0].startswith("3 seeds do not tell s1 and none apart: mean completion time 103")
    assert told[0].endswith("none takes 1.05 times as long (95 % interval 0.805 to 1.37).")
    assert told[1] == "More seeds (--seeds) may tell them apart."


def test_where_nothing_is_random_the_numbers_are_exact() -> None:
    study = replace(study_of({"fifo": [50], "easy": [49]}), exact=True)
    assert texts(study)[1] == "Nothing in this scenario is random: the numbers are exact for this trace."


def test_the_first_policy_can_win() -> None:
    told = texts(study_of({"fifo": [50, 55, 60], "easy": [100, 110, 121]}))
    assert told[0].startswith("fifo has the shortest mean completion time, 55.0")
    assert "easy takes 2.0" in told[0]
    assert not any("next best" in text for text in told)


def test_one_seed_says_nothing_of_chance() -> None:
    told = texts(study_of({"fifo": [50], "easy": [100]}))
    assert "easy takes 2.00 times as long." in told[0]
    assert told[1] == "One seed was run, so the effect of chance is unknown."


def test_equal_policies_are_called_equal() -> None:
    told = texts(study_of({"fifo": [50, 51], "easy": [50, 51]}))
    assert told[0] == "fifo and easy have the same mean completion time, 50.5 ±6.4 s."
    assert told[1] == "easy does exactly as well on every seed."


def test_a_policy_that_leaves_jobs_undone_does_not_win() -> None:
    study = study_of({"fifo": [100, 101], "hasty": [10, 11]}, completed={"hasty": 1.0})
    assert best_policy(study) == "fifo"
    assert "hasty completes 1 of 4 jobs" in texts(study)[-1]


def test_what_wastes_most_comes_first() -> None:
    waste = {"idle_ratio": {"a": 0.1, "b": 0.4}, "barrier_wait_ratio": {"a": 0.3, "b": 0.2}}
    told = texts(study_of({"a": [1, 1.1], "b": [2, 2.3]}, **waste))
    assert "Largest losses of GPU time: waiting for slower workers 30.0 %, idle GPUs 10.0 % under a." in told


def test_money_is_told_where_it_is_known() -> None:
    study = study_of({"a": [50, 51], "b": [60, 62]})
    assert not any("Cost" in text for text in texts(study))
    extra = (StudyRow("cost_usd", "a", mean_interval([1234.5])), StudyRow("waste_usd", "a", mean_interval([200.0])))
    told = texts(replace(study, rows=study.rows + extra))
    assert "Cost: 1,234 USD under a, 200 USD of it wasted." in told


def test_one_job_is_judged_by_the_makespan() -> None:
    assert "apart: makespan" in texts(study_of({"a": [1, 2], "b": [3, 4]}, jobs=1.0))[0]


def test_nothing_completed() -> None:
    nan = math.nan
    told = texts(study_of({"a": [nan, nan], "b": [nan, nan]}, completed={"a": 0.0, "b": 0.0}))
    assert told[0] == "No policy completed a job."
    assert "a completes 0 of 4 jobs" in told[-1]


def test_a_bound_is_told_with_its_kind() -> None:
    study = study_of({"a": [50, 51], "b": [60, 62]})
    rows = tuple(replace(r, bound=25.0, over_bound=2.02) if r.metric == "completion_mean_s" else r for r in study.rows)
    assert "a takes 2.02x the lower bound." in texts(replace(study, rows=rows))
    assert "a takes 2.02x the lower bound (without noise)." in texts(replace(study, rows=rows, noise_free=True))


@given(st.floats(0.01, 100), st.floats(0.01, 1), st.floats(1, 10))
def test_the_inverse_of_the_inverse(mean: float, down: float, up: float) -> None:
    ratio = Interval(mean, mean * down, mean * up, 3)
    back = _inverse(_inverse(ratio))
    assert (back.mean, back.low, back.high) == pytest.approx((ratio.mean, ratio.low, ratio.high))


def test_an_interval_that_reaches_zero_has_no_inverse() -> None:
    turned = _inverse(Interval(1.0, -0.5, 2.5, 3))
    assert turned.mean == 1.0
    assert math.isnan(turned.low + turned.high)
    assert math.isnan(_inverse(UNKNOWN).mean)
