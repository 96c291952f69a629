"""Schedules of a few jobs on few GPUs: which options are worth a look, when they can begin, and the best of all."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.policies.allocation.schedules import Busy, Option, Schedule, best_schedule, earliest_s, useful

INF = math.inf


def option(gpus: int, time_s: float, model: int = 0, **more: bool) -> Option:
    return Option(gpus + 20, gpus, model, time_s, **more)


def test_of_options_as_quick_as_each_other_the_smallest_is_kept() -> None:
    small, large = option(3, 7.0), option(5, 7.0)
    assert useful([large, small]) == useful([small, large]) == [small]
    assert useful([option(5, 6.9), small]) == [option(5, 6.9), small]
    assert useful([option(3, 6.9), small]) == [option(3, 6.9)]
    assert useful([option(3, 6.9, model=2), small]) == [option(3, 6.9, model=2), small]
    stays = option(3, 7.0, stays=True)
    assert useful([small, stays]) == [stays, small]  # it may begin later
    assert useful([option(2, 6.0), stays]) == [option(2, 6.0), stays]
    assert useful([]) == []
    assert (option(2, 6.0).stays, option(2, 6.0).at_once) == (False, False)


def test_gpus_are_free_when_enough_of_those_who_hold_them_have_ended() -> None:
    """Of nine GPUs of model 2, four are held until 30 s and three until 50 s."""
    busy = [Busy(50.0, 3, 2), Busy(30.0, 4, 2), Busy(40.0, 9, 0)]
    for gpus, begin_s in ((2, 7.0), (3, 30.0), (6, 30.0), (7, 50.0), (9, 50.0), (10, INF)):
        assert earliest_s(busy, option(gpus, 1.0, 2), 9, 7.0) == begin_s
    assert earliest_s(busy, option(6, 1.0, 2), 9, 30.0) == 30.0
    assert earliest_s(busy, option(6, 1.0, 2), 9, 29.0) == 30.0
    assert earliest_s(busy, option(7, 1.0, 2), 9, 35.0) == 50.0
    assert earliest_s(busy, option(9, 1.0, 2), 9, 60.0) == 60.0
    assert earliest_s([], option(9, 1.0, 2), 8, 3.0) == INF


def test_a_wider_job_waits_for_what_lets_the_sum_be_least() -> None:
    """Three GPUs: of 2 GPUs for 10 s, of 3 for 4 s, of 1 for 7 s."""
    own = [[option(2, 10.0)], [option(3, 4.0)], [option(1, 7.0)]]
    best = best_schedule(own, np.array([1.0, 1.0, 1.0]), [], [3], 99)
    assert best == Schedule(14.0 + 4.0 + 11.0, (0, 0, 0), (4.0, 0.0, 4.0))
    heavy = best_schedule(own, np.array([5.0, 1.0, 1.0]), [], [3], 99)
    assert heavy == Schedule(50.0 + 14.0 + 7.0, (0, 0, 0), (0.0, 10.0, 0.0))
    held = best_schedule(own, np.array([1.0, 1.0, 1.0]), [Busy(6.0, 1, 0)], [3], 99)
    # Until 6 s there are two: for the first and then the others, or for the third at once.
    assert held == Schedule(7.0 + 11.0 + 21.0, (0, 0, 0), (11.0, 7.0, 0.0))


def test_of_its_options_a_job_takes_the_one_that_ends_first_for_all() -> None:
    own = [[option(2, 5.0), option(1, 8.0)], [option(2, 6.0), option(1, 9.0)]]
    best = best_schedule(own, np.array([1.0, 1.0]), [], [2], 99)
    assert best == Schedule(5.0 + 11.0, (0, 0), (0.0, 5.0))
    both = best_schedule([[*own[0], option(2, 5.5, 1)], own[1]], np.array([1.0, 1.0]), [], [2, 2], 99)
    assert both == Schedule(5.5 + 6.0, (2, 0), (0.0, 0.0))


def test_who_runs_on_or_must_begin_at_once_never_waits() -> None:
    own = [[option(2, 5.0)], [option(2, 60.0, stays=True), option(2, 70.0)]]
    assert best_schedule(own, np.array([1.0, 1.0]), [], [2], 99).begin_s == (0.0, 5.0)
    stays = [[option(2, 5.0)], [option(2, 60.0, stays=True)]]
    assert best_schedule(stays, np.array([1.0, 1.0]), [], [2], 99) == Schedule(125.0, (0, 0), (60.0, 0.0))
    at_once = [[option(2, 5.0)], [option(2, 60.0, at_once=True)]]
    assert best_schedule(at_once, np.array([1.0, 1.0]), [], [2], 99) == Schedule(125.0, (0, 0), (60.0, 0.0))
    with pytest.raises(ValueError, match="some job never fits"):
        best_schedule([stays[1], at_once[1]], np.array([1.0, 1.0]), [], [3], 99)
    with pytest.raises(ValueError, match="some job never fits"):
        best_schedule(stays, np.array([1.0, 1.0]), [Busy(1.0, 1, 0)], [2], 99)


def test_nobody_needs_no_schedule() -> None:
    assert best_schedule([], np.empty(0), [], [2], 0) == Schedule(0.0, (), ())
