"""How much of training decisions hold up, and how seldom they would have to be made to hold up little."""

from __future__ import annotations

import math
import statistics

_FIRST = 10  # decisions until it is told
_TOLD, _WANTED = 0.02, 0.01  # of the time that is trained


class DecisionOverhead:
    """Tells once, after the first decisions, when they take more than 2 % of training."""

    def __init__(self, decide_every: int) -> None:
        self._every = decide_every
        self._shares: list[float] = []

    def news(self, took_s: float, trained_s: float) -> str | None:
        """What there is to tell of one more decision, that `took_s` and came after `trained_s` of rounds."""
        if len(self._shares) == _FIRST or not trained_s > 0.0:
            return None
        self._shares.append(took_s / trained_s)
        share = statistics.median(self._shares)  # one that is made beside a pause tells nothing
        if len(self._shares) < _FIRST or share <= _TOLD:
            return None
        seldom = math.ceil(self._every * share / _WANTED)
        return f"decisions take {share:.1%} of training; with decide_every={seldom} they would take 1 %"
