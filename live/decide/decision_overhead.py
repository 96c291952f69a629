"""The share of training time spent on decisions, and the decision interval that would make it small."""

from __future__ import annotations

import math
import statistics

_FIRST = 10  # decisions until it is reported
_TOLD, _WANTED = 0.02, 0.01  # shares of training time


class DecisionOverhead:
    """Reports once, after the first decisions, if they take more than 2 % of training."""

    def __init__(self, decide_every: int) -> None:
        self._every = decide_every
        self._shares: list[float] = []

    def news(self, took_s: float, trained_s: float) -> str | None:
        """The report, or None, after a decision that took `took_s`, after `trained_s` of rounds."""
        if len(self._shares) == _FIRST or not trained_s > 0.0:
            return None
        self._shares.append(took_s / trained_s)
        share = statistics.median(self._shares)  # the median ignores decisions next to a pause
        if len(self._shares) < _FIRST or share <= _TOLD:
            return None
        seldom = math.ceil(self._every * share / _WANTED)
        return f"decisions take {share:.1%} of training; with decide_every={seldom} they would take 1 %"
