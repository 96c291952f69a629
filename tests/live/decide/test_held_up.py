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


@pytest.mark.parametrize("shares", [[0.08] * 9, [0.02] * 30, [0.01] * 6 + [5.0] * 4 + [0.5] * 20])
def test_few_cheap_or_seldom_dear_ones_are_not(shares: list[float]) -> None:
    assert told(shares) == []


def test_a_window_of_pauses_only_does_not_count() -> None:
    held_up = HeldUp(10)
    assert [held_up.news(1.0, float("nan")) for _ in range(30)] == [None] * 30
