"""When the policy is asked: seldom enough to cost 0.2 % of training, and at once when a rank's speed changes."""

from __future__ import annotations

import math
import statistics
from collections import deque

import numpy as np

from equipoise.policies.observation import Floats

_FIRST = 10  # decisions that are always asked for
_WANTED = 0.002  # share of training time
_LONGEST = 64  # windows between two
_JUMP, _SURE = 0.1, 4.0  # relative change of a rank's time per sample, at least, and in standard errors


class Cadence:
    """Decides window by window, from what earlier decisions took, whether to ask the policy."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=_FIRST)  # of training time, of the last decisions
        self._windows = self._asked = 0  # windows since the last decision; decisions
        self._seen: Floats = np.empty(0)  # time per sample of each rank at the last decision

    def took(self, took_s: float, trained_s: float) -> None:
        """A decision took `took_s`, after `trained_s` of rounds."""
        if trained_s > 0.0:
            self._shares.append(took_s / trained_s)

    def is_due(self, each_s: Floats, error: Floats, changed: bool) -> bool:
        """Whether to ask now.

        `each_s`: time per sample of each rank, `error`: relative standard error of it; `changed`: the last decision
        changed something.
        """
        self._windows += 1
        # The median ignores decisions next to a pause.
        usual = statistics.median(self._shares) if self._shares else 0.0
        wait = min(_LONGEST, math.ceil(usual / _WANTED))
        with np.errstate(invalid="ignore", divide="ignore"):
            known = len(self._seen) == len(each_s)
            jumped = not known or bool((np.abs(each_s / self._seen - 1.0) > np.fmax(_JUMP, _SURE * error)).any())
        if self._asked >= _FIRST and self._windows < wait and not changed and not jumped:
            return False
        self._windows, self._asked, self._seen = 0, self._asked + 1, each_s.copy()
        return True
