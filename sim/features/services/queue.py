"""The queue of one service, from which free replicas take batches of requests.

Simulated request by request in one kernel call from one change to the next, so that a million requests cost less
than a thousand events. A free replica takes all that wait at once, up to the largest batch, without waiting for
more; of several free ones the fastest, then the lowest slot. Answers come when the whole batch is done.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.observation import Bools, Floats, Ints

S = TypeVar("S", bound=np.generic)

PER_OCTAVE = 256
"""Latencies are counted in so many classes from each power of 2 to the next: 0.4 % wide at most."""
LOWEST, OCTAVES = -20, 44
"""From a microsecond (2^LOWEST s) on; what is shorter, or longer than half a year, counts in the last class."""
CLASSES = OCTAVES * PER_OCTAVE
_NOISE = 4096  # factors drawn at a time

ARRIVED, FIRST, LAST, DRAWN, SERVED, WITHIN = range(6)
"""Entries of the counter: requests of the window that have come, the queue's ends, factors used, and results."""


@jit_in_place
def _soonest(done_s: Floats) -> tuple[float, int]:
    best_s, slot = math.inf, -1
    for k in range(done_s.size):
        if done_s[k] < best_s:
            best_s, slot = done_s[k], k
    return best_s, slot


@jit_in_place
def _fastest_idle(there: Bools, done_s: Floats, factor: Floats) -> int:
    slot = -1
    for k in range(done_s.size):
        if there[k] and done_s[k] == math.inf and (slot < 0 or factor[k] < factor[slot]):
            slot = k
    return slot


@jit_in_place
def _class_of(latency_s: float) -> int:
    if latency_s <= 0.0:
        return 0
    part, exponent = math.frexp(latency_s)  # part in [0.5, 1)
    place = (exponent - 1 - LOWEST) * PER_OCTAVE + int((2.0 * part - 1.0) * PER_OCTAVE)
    return min(max(place, 0), CLASSES - 1)


@jit_in_place
def _dispatch(
    now_s: float,
    slot: int,
    waiting_s: Floats,
    batch_s: Floats,
    noise: Floats,
    factor: Floats,
    done_s: Floats,
    began_s: Floats,
    size: Ints,
    batch: Floats,
    counter: Ints,
) -> None:
    count = min(counter[LAST] - counter[FIRST], batch_s.size - 1)
    for k in range(count):
        batch[slot, k] = waiting_s[counter[FIRST] + k]
    counter[FIRST] += count
    took_s = batch_s[count] * factor[slot]
    if noise.size:
        took_s *= noise[counter[DRAWN]]
        counter[DRAWN] += 1
    size[slot], began_s[slot], done_s[slot] = count, now_s, now_s + took_s


@jit_in_place
def serve(
    until_s: float,
    within_s: float,
    arrival_s: Floats,
    waiting_s: Floats,
    batch_s: Floats,
    noise: Floats,
    there: Bools,
    factor: Floats,
    done_s: Floats,
    began_s: Floats,
    size: Ints,
    batch: Floats,
    busy_s: Floats,
    counter: Ints,
    latency_s: Floats,
    classes: Ints,
) -> bool:
    """Go on until just before `until_s`; true: factors of `noise` have run out before, call again with others.

    arrival_s (n,): requests of the window, ascending; waiting_s: the queue, between FIRST and LAST of `counter`.
    batch_s (most + 1,): time of a batch by its requests. By slot: there (takes batches), factor (on batch_s),
    done_s (of its batch, or of its start with `size` 0; inf: idle), began_s, size, batch (slots, most), busy_s.
    latency_s (1,): sum of latencies; classes (CLASSES,): requests by latency. noise (0,): batches do not vary.
    """
    next_s, slot = _soonest(done_s)
    while True:
        arrived = counter[ARRIVED]
        come_s = arrival_s[arrived] if arrived < arrival_s.size else math.inf
        if come_s >= until_s and next_s >= until_s:
            break
        if noise.size and counter[DRAWN] == noise.size:
            return True
        if next_s <= come_s:
            for k in range(size[slot]):
                took_s = next_s - batch[slot, k]
                latency_s[0] += took_s
                counter[WITHIN] += took_s <= within_s
                classes[_class_of(took_s)] += 1
            counter[SERVED] += size[slot]
            if size[slot] > 0:
                busy_s[slot] += next_s - began_s[slot]
            size[slot], done_s[slot] = 0, math.inf
            if there[slot] and counter[LAST] > counter[FIRST]:
                _dispatch(next_s, slot, waiting_s, batch_s, noise, factor, done_s, began_s, size, batch, counter)
            next_s, slot = _soonest(done_s)
            continue
        counter[ARRIVED] += 1
        waits = counter[LAST] - counter[FIRST]
        free = -1 if waits else _fastest_idle(there, done_s, factor)
        waiting_s[counter[LAST]] = come_s
        counter[LAST] += 1
        if free >= 0:
            _dispatch(come_s, free, waiting_s, batch_s, noise, factor, done_s, began_s, size, batch, counter)
            next_s, slot = _soonest(done_s)
    for k in range(size.size):
        if size[k] > 0:
            busy_s[k] += until_s - began_s[k]
            began_s[k] = until_s
    return False


class RequestQueue:
    """Requests of one service and the slots of its replicas.

    batch_s (most + 1,): time of a batch by its requests, at factor 1; cov: its coefficient of variation.
    busy_s (slots,): time spent on batches; the reader resets it.
    """

    def __init__(self, batch_s: Floats, within_s: float, cov: float, random: Generator) -> None:
        self.batch_s, self.within_s = batch_s, within_s
        self._cov, self._random = cov, random
        self._arrival_s, self._waiting_s = np.empty(0), np.empty(256)
        self._counter = np.zeros(6, dtype=np.int64)
        self._sum_s, self._classes = np.zeros(1), np.zeros(CLASSES, dtype=np.int64)
        self._noise: Floats = self._draw()
        self._there: Bools = np.zeros(0, dtype=np.bool_)
        self._taken: Bools = np.zeros(0, dtype=np.bool_)
        self._factor: Floats = np.zeros(0)
        self._done_s: Floats = np.zeros(0)
        self._began_s: Floats = np.zeros(0)
        self.busy_s: Floats = np.zeros(0)
        self._size: Ints = np.zeros(0, dtype=np.int64)
        self._batch: Floats = np.zeros((0, self.batch_s.size - 1))
        self._make_slots(4)

    def _draw(self) -> Floats:
        if self._cov == 0.0:
            return np.empty(0)
        shape = 1.0 / self._cov**2
        drawn: Floats = self._random.gamma(shape, 1.0 / shape, _NOISE)
        return drawn

    def _make_slots(self, count: int) -> None:
        more = count - self.busy_s.size
        self._there, self._taken = _grown(self._there, more, False), _grown(self._taken, more, False)
        self._factor, self._done_s = _grown(self._factor, more, 1.0), _grown(self._done_s, more, math.inf)
        self._began_s, self.busy_s = _grown(self._began_s, more, 0.0), _grown(self.busy_s, more, 0.0)
        self._size, self._batch = _grown(self._size, more, 0), _grown(self._batch, more, 0.0)

    # -- replicas ------------------------------------------------------------------------------------------

    def add(self, ready_s: float, factor: float) -> int:
        """A replica that takes batches from `ready_s` on, `factor` times as long as stated; returns its slot."""
        if self._taken.all():
            self._make_slots(2 * self._taken.size)
        slot = int(np.argmin(self._taken))
        self._taken[slot] = self._there[slot] = True
        self._factor[slot], self._done_s[slot], self._size[slot], self.busy_s[slot] = factor, ready_s, 0, 0.0
        return slot

    def set_factor(self, slot: int, factor: float) -> None:
        """Set the slowdown of batches that a replica begins from now on."""
        self._factor[slot] = factor

    def leave(self, slot: int, now_s: float) -> float:
        """Stop giving batches to a replica; returns the end of its last one (s)."""
        self._there[slot] = False
        if self._size[slot] == 0:
            self._done_s[slot] = math.inf
            return now_s
        return float(self._done_s[slot])

    def gone(self, slot: int, now_s: float) -> None:
        """A replica's slot is free again; a batch that it was at goes back to the head of the queue."""
        count = int(self._size[slot])
        if count:
            counter = self._counter
            waiting = self._waiting_s[counter[FIRST] : counter[LAST]]
            held = np.sort(np.concatenate((self._batch[slot, :count], waiting)))
            self._hold(held)
        self._size[slot], self._done_s[slot] = 0, math.inf
        self._taken[slot] = self._there[slot] = False
        idle = np.flatnonzero(self._there & (self._done_s == math.inf))
        if count and idle.size:  # the fastest that is idle takes the batch at once
            self._done_s[idle[np.argmin(self._factor[idle])]] = now_s

    # -- time ------------------------------------------------------------------------------------------------

    def open(self, arrival_s: Floats) -> None:
        """Begin a window with these requests, ascending."""
        counter = self._counter
        waiting = self._waiting_s[counter[FIRST] : counter[LAST]]
        self._arrival_s = arrival_s
        counter[ARRIVED] = 0
        self._hold(waiting)

    def _hold(self, waiting: Floats) -> None:
        """Put these requests into the queue, with room for later ones of the window."""
        held = np.empty(len(waiting) + len(self._arrival_s) - int(self._counter[ARRIVED]))
        held[: len(waiting)] = waiting
        self._waiting_s = held
        self._counter[FIRST], self._counter[LAST] = 0, len(waiting)

    def advance(self, until_s: float) -> None:
        """Answer requests until just before `until_s`."""
        while serve(
            until_s,
            self.within_s,
            self._arrival_s,
            self._waiting_s,
            self.batch_s,
            self._noise,
            self._there,
            self._factor,
            self._done_s,
            self._began_s,
            self._size,
            self._batch,
            self.busy_s,
            self._counter,
            self._sum_s,
            self._classes,
        ):
            self._noise = self._draw()
            self._counter[DRAWN] = 0

    # -- what has come of it -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return int(self._counter[LAST] - self._counter[FIRST])

    def unanswered(self, now_s: float) -> tuple[int, int]:
        """(requests that wait or are in a batch, those of them that are late already)."""
        counter = self._counter
        held = [self._batch[k, : self._size[k]] for k in range(self._size.size)]
        open_s = np.concatenate((self._waiting_s[counter[FIRST] : counter[LAST]], *held))
        return len(open_s), int(np.count_nonzero(now_s - open_s > self.within_s))

    def take(self) -> Tally:
        """Return and reset the tally since the last call."""
        counter = self._counter
        found = Tally(int(counter[SERVED]), int(counter[WITHIN]), float(self._sum_s[0]), self._classes.copy())
        counter[SERVED : WITHIN + 1] = 0
        self._sum_s[0] = 0.0
        self._classes[:] = 0
        return found


def _grown(array: NDArray[S], more: int, value: float) -> NDArray[S]:
    """Append this many entries of this value."""
    added: NDArray[S] = np.full((more, *array.shape[1:]), value, dtype=array.dtype)
    return np.concatenate((array, added))


class Tally:
    """Requests answered, those of them in time, their latencies' sum (s) and classes."""

    def __init__(self, served: int = 0, within: int = 0, latency_s: float = 0.0, classes: Ints | None = None) -> None:
        self.served, self.within, self.latency_s = served, within, latency_s
        self.classes: Ints = np.zeros(CLASSES, dtype=np.int64) if classes is None else classes

    def add(self, other: Tally) -> None:
        """Count another tally in."""
        self.served += other.served
        self.within += other.within
        self.latency_s += other.latency_s
        self.classes += other.classes

    def percentiles_s(self, *shares: float) -> list[float]:
        """Latencies that these shares of the answered requests do not exceed, within 0.4 %; NaN without any."""
        if not self.served:
            return [math.nan for _ in shares]
        below = np.cumsum(self.classes)
        found = []
        for share in shares:
            rank = share * self.served
            place = int(np.searchsorted(below, rank))
            octave, step = divmod(place, PER_OCTAVE)
            before = int(below[place - 1]) if place else 0
            inside = (rank - before) / int(self.classes[place])
            found.append(math.ldexp(1.0 + (step + inside) / PER_OCTAVE, octave + LOWEST))
        return found
