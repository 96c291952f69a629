"""The part of a worker's step that does not grow with its samples, learnt from steps around changes of shares.

A fixed part of a step (launches, weights read from memory, a fixed wait) looks slow per sample when few samples are
assigned: a worker that is slow for another reason would be assigned fewer and fewer, with no gain.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from equipoise.policies.observation import Floats

LEAST_PAIRS = 4
LEAST_ROUNDS = 3  # fewest rounds of a window used for learning
_LEAST_CHANGE = 0.05  # of the logarithm of a worker's samples; smaller changes are ignored
_ALL_FIXED = 0.05  # growing part below which all counts as fixed: the most that another split could gain
_FORGOTTEN = 200  # windows after which a change of shares no longer counts, so that one is tried again
_PAIRS = 512  # that are kept


@dataclass(frozen=True, slots=True)
class Law:
    """A step of n samples takes the worker's time per sample * (`fixed_samples` + n).

    0: the whole step grows with the samples; infinity: none of it does.
    """

    fixed_samples: float = 0.0

    def work(self, samples: Floats) -> Floats:
        """Work of a step of `samples` in units of equal duration on one worker: samples, or steps; any shape."""
        return np.ones_like(samples) if math.isinf(self.fixed_samples) else self.fixed_samples + samples

    def fixed_s(self, samples: Floats, took_s: Floats) -> Floats:
        """Fixed part (s) of steps of `samples` with these durations; any shape."""
        if math.isinf(self.fixed_samples):
            return took_s
        with np.errstate(divide="ignore", invalid="ignore"):
            return took_s * (self.fixed_samples / (self.fixed_samples + samples))


ALL_GROWS = Law()


class Growth:
    """Learns one law for all workers of a job, whose speeds may differ and drift, by least squares.

    Two consecutive windows with different samples of a worker are a pair: ln t2/t1 = ln (c + n2)/(c + n1), at any
    speed. The laws of least and of most fixed time within two standard errors bound it.
    """

    def __init__(self, forgotten: int = _FORGOTTEN) -> None:
        """`forgotten`: windows after which a pair no longer counts."""
        self._forgotten = forgotten
        self._windows = 0
        self._last: tuple[Floats, Floats] | None = None  # samples per step and seconds, by worker
        self._pairs: deque[tuple[int, float, float, float]] = deque(maxlen=_PAIRS)  # window, n1, n2, ln t2/t1
        self._laws: tuple[Law, Law, Law] | None = None

    def learn(self, samples: Floats, took_s: Floats) -> None:
        """Take in the next window of the same workers: samples and seconds of a step, (workers,); NaN: unknown."""
        self._windows += 1
        while self._pairs and self._pairs[0][0] < self._windows - self._forgotten:
            self._pairs.popleft()
            self._laws = None
        before, self._last = self._last, (samples, took_s)
        if before is None:
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            change, answer = np.log(samples / before[0]), np.log(took_s / before[1])
        for n1, n2, c, a in zip(before[0].tolist(), samples.tolist(), change.tolist(), answer.tolist(), strict=True):
            if abs(c) >= _LEAST_CHANGE and math.isfinite(c) and math.isfinite(a):
                self._pairs.append((self._windows, n1, n2, a))
                self._laws = None

    @property
    def is_known(self) -> bool:
        """Whether shares changed often enough to fit a law."""
        return len(self._pairs) >= LEAST_PAIRS

    @property
    def law(self) -> Law:
        """The law that fits best; without enough data the one in which the whole step grows."""
        return self._found()[0]

    def fixed_s(self, samples: Floats, took_s: Floats, update_s: Floats) -> Floats:
        """Fixed part (s) of these steps, (workers,): the measured update, within what changes of shares show.

        A worker's update beyond that of most workers may grow with its samples: it counts only where changes show it.
        """
        known = np.sort(update_s[np.isfinite(update_s)])
        usual_s = np.fmin(update_s, known[(len(known) - 1) // 2]) if len(known) else update_s
        _, least, most = self._found()
        return np.fmin(np.fmax(usual_s, least.fixed_s(samples, took_s)), most.fixed_s(samples, took_s))

    def _found(self) -> tuple[Law, Law, Law]:
        if not self.is_known:
            return ALL_GROWS, ALL_GROWS, Law(math.inf)
        if self._laws is None:
            self._laws = self._fit()
        return self._laws

    def _fit(self) -> tuple[Law, Law, Law]:
        _, n1, n2, answer = np.array(self._pairs).T
        usual = math.exp(float(np.log(n1 * n2).mean()) / 2.0)

        def left(growing: Floats) -> Floats:
            """Residual sum of squares if these parts of a step of `usual` samples grow."""
            fixed = usual * (1.0 - growing)[:, None]
            more = growing[:, None] * (n2 - n1) / (fixed + growing[:, None] * n1)
            return np.asarray(((answer - np.log1p(more)) ** 2).sum(axis=1))

        parts = np.linspace(0.0, 1.0, 101)
        near = parts[int(np.argmin(left(parts)))]
        finer = np.unique(np.clip(near + np.linspace(-0.01, 0.01, 201), 0.0, 1.0))
        parts = np.unique(np.concatenate([parts, finer]))
        squares = left(parts)
        best = int(np.argmin(squares))
        likely = squares <= squares[best] * (1.0 + 4.0 / (len(answer) - 1))
        likeliest = parts[best], parts[likely].max(), parts[likely].min()
        best_law, least, most = (_law(float(growing), usual) for growing in likeliest)
        return best_law, least, most


def _law(growing: float, usual: float) -> Law:
    """The law in which this part of a step of `usual` samples grows."""
    return Law(usual * (1.0 - growing) / growing if growing >= _ALL_FIXED else math.inf)
