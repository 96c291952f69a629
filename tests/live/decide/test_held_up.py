"""Decisions that hold training up are told once, with the setting that would make them cost little."""

from __future__ import annotations

import pytest

from equipoise.live.decide.held_up import HeldUp


def told(shares: list[float], every: int = 10) -> list[str]:
    held_up = HeldUp(every)
    return [news for share in shares if (news := held_up.news(share * 0.4, 0.4)) is not None]


def test_dear_decisions_are_told_once_with_what_makes_them_cheap() -> None:
    assert told([0.08] * 30) == [
        "decisions take 8.0% of training; with decide_every=80 they would take 1 %",
    ]


@pytest.mark.parametrize(
    ("share", "every", "seldom"), [(0.0333, 10, 34), (0.0211, 7, 15), (0.5, 1, 50), (0.03125, 64, 200)]
)
def test_so_seldom_that_they_take_a_hundredth(share: float, every: int, seldom: int) -> None:
    """decide_every times share over 0.01, rounded up."""
    assert [f"decide_every={seldom} " in news for news in told([share] * 10, every)] == [True]


def test_windows_without_time_are_not_counted() -> None:
    held_up = HeldUp(10)
    found = [held_up.news(0.4, 0.0 if k % 2 else 0.4) for k in range(20)]
    assert [k for k, news in enumerate(found) if news is not None] == [18]  # the tenth that counts


@pytest.mark.parametrize("shares", [[0.08] * 9, [0.02] * 30, [0.01] * 6 + [5.0] * 4 + [0.5] * 20])
def test_few_cheap_or_seldom_dear_ones_are_not(shares: list[float]) -> None:
    assert told(shares) == []


def test_a_window_of_pauses_only_does_not_count() -> None:
    held_up = HeldUp(10)
    assert [held_up.news(1.0, float("nan")) for _ in range(30)] == [None] * 30
