"""How much of a rank's round does not grow with its samples, learnt from the rounds around changes of shares.

Without that, a round that takes equally long whatever is dealt looks slow per sample where few are dealt, and gets
fewer still: shares drift apart.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from equipoise.live.decide.window import Window
from equipoise.policies.observation import Floats

_LEAST_CHANGE = 0.05  # of the logarithm of a rank's samples; a smaller one tells nothing
_LEAST_ROUNDS = 3
_KEPT = 32  # pairs of windows
_ELASTIC_LEAST = 0.01
_ALL_FIXED = (
    0.1  # of an equal deal's round; where less grows with samples, nothing is said to: it gains no more
)


class FixedPart:
    """The fixed part as a number of samples f, the same for all ranks: a round of n takes b_i * (f + n) on rank i.

    Two windows of a rank with n1 and n2 samples a round, which took t1 and t2, give the elasticity
    e = ln(t2 / t1) / ln(n2 / n1), and with it f = n (1 - e) / e at their geometric mean n. A rank that became
    slower or faster meanwhile gives a wrong one, so the weighted median counts, and of two the smaller: in doubt,
    everything grows with the samples.
    """

    def __init__(self) -> None:
        self._last: tuple[Floats, Floats] | None = None  # samples per round and seconds, by rank
        self._found: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # (f, weight)

    def learn(self, window: Window) -> None:
        """Take in the next window of the same ranks."""
        if window.rounds < _LEAST_ROUNDS:
            return
        samples, took_s = window.samples / window.rounds, window.step_s
        before, self._last = self._last, (samples, took_s)
        if before is None:
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            change, answer = np.log(samples / before[0]), np.log(took_s / before[1])
            elastic = np.clip(answer / change, _ELASTIC_LEAST, 1.0)
        fixed = np.sqrt(samples * before[0]) * (1 - elastic) / elastic
        told = np.isfinite(elastic) & (np.abs(change) >= _LEAST_CHANGE)
        self._found.extend(zip(fixed[told].tolist(), np.abs(change)[told].tolist(), strict=True))

    @property
    def samples(self) -> float:
        """f; NaN while no shares have changed."""
        if not self._found:
            return math.nan
        found = np.array(sorted(self._found))
        below = np.cumsum(found[:, 1])
        return float(found[int(np.searchsorted(below, 0.5 * below[-1])), 0])

    def of(self, window: Window) -> Floats:
        """Seconds of each rank's round that do not grow: what was learnt, and before that the update; (ranks,)."""
        fixed = self.samples
        if math.isnan(fixed) or not window.rounds:
            return window.fixed_s
        samples = window.samples / window.rounds
        if samples.mean() < _ALL_FIXED * (fixed + samples.mean()):
            return window.step_s
        part_s: Floats = window.step_s * fixed / (fixed + samples)
        return part_s
