"""Whether a rank's round grows with its samples at all, learnt from the rounds around changes of shares.

A round that takes equally long whatever is dealt (launches, weights read from memory, a fixed wait) looks slow per
sample where few are dealt: a rank that is slow for another reason is dealt fewer and fewer, and nothing is gained.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from equipoise.live.decide.window import Window
from equipoise.policies.observation import Floats

_LEAST_CHANGE = 0.05  # of the logarithm of a rank's samples; a smaller one tells nothing
_LEAST_ROUNDS = 3
_LEAST_PAIRS = 4
_ALL_FIXED = 0.15  # elasticity; what another deal could gain at most
_FORGOTTEN = 200  # windows after which a change of shares no longer counts, so that one is tried again


class Growth:
    """The elasticity of a round's time t in its samples n, over all ranks, by least squares: ln t = e ln n.

    1: all of it grows with the samples; 0: nothing does. Two windows in a row in which a rank had other samples are
    a pair. While two standard errors leave room for one that is worth a new deal, rounds count as growing.
    """

    def __init__(self) -> None:
        self._windows = 0
        self._last: tuple[Floats, Floats] | None = None  # samples per round and seconds, by rank
        self._pairs: deque[tuple[int, float, float]] = deque()  # window, ln n2/n1, ln t2/t1

    def learn(self, window: Window) -> None:
        """Take in the next window of the same ranks."""
        if window.rounds < _LEAST_ROUNDS:
            return
        self._windows += 1
        while self._pairs and self._pairs[0][0] < self._windows - _FORGOTTEN:
            self._pairs.popleft()
        samples, took_s = window.samples / window.rounds, window.step_s
        before, self._last = self._last, (samples, took_s)
        if before is None:
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            change, answer = np.log(samples / before[0]), np.log(took_s / before[1])
        for c, a in zip(change.tolist(), answer.tolist(), strict=True):
            if abs(c) >= _LEAST_CHANGE and math.isfinite(c) and math.isfinite(a):
                self._pairs.append((self._windows, c, a))

    @property
    def is_seen(self) -> bool:
        """Whether a round may grow with its samples; False where it was found not to."""
        if len(self._pairs) < _LEAST_PAIRS:
            return True
        _, change, answer = np.array(self._pairs).T
        square = float(change @ change)
        elastic = float(change @ answer) / square
        left = answer - elastic * change
        error = math.sqrt(float(left @ left) / (len(left) - 1) / square)
        return elastic + 2.0 * error >= _ALL_FIXED

    def fixed_s(self, window: Window) -> Floats:
        """Seconds of each rank's round that do not grow: the update, or all of it; (ranks,)."""
        return window.fixed_s if self.is_seen else window.step_s
