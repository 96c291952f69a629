"""SimPy's environment with absolute times: an event scheduled for t happens at t, to the last bit.

`timeout(t - now)` would round twice. Within one instant events run by priority: state changes first, then
the network's rates, then the one decision that sees them all.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush

import simpy
from simpy.events import Event, EventPriority

FAULTS = EventPriority(0)  # strike before anything else at the same instant
STATE = EventPriority(1)  # completions, arrivals, ends of periods
RATES = EventPriority(5)  # the network, once all flows of this instant are known
DECISION = EventPriority(8)  # one decision per instant
LATE = EventPriority(9)  # what a decision caused at this same instant


class Clock(simpy.Environment):
    """A SimPy environment whose events can be placed at an absolute time."""

    def __init__(self, initial_time_s: float = 0.0) -> None:
        super().__init__(float(initial_time_s))  # an int would have kernels compiled for it, too

    def at(self, time_s: float, callback: Callable[[Event], object], priority: EventPriority = STATE) -> Event:
        """Call `callback(event)` at `time_s` (s, not before now). Raises ValueError for a past time."""
        if not time_s >= self._now:
            raise ValueError(f"cannot schedule for {time_s} s, it is {self._now} s")
        event = _Timed(self, callback)
        heappush(self._queue, (time_s, priority, next(self._eid), event))
        return event

    @staticmethod
    def cancel(event: Event | None) -> None:
        """Cancel a scheduled event; one that has already happened, or None, is ignored."""
        if event is not None and event.callbacks is not None:
            event.callbacks.clear()

    def until(self, time_s: float, priority: EventPriority = STATE) -> Event:
        """An event at `time_s`, or now if that has just passed, that a process can wait for."""
        return self.at(max(time_s, self._now), _nothing, priority)


class _Timed(Event):
    """An event that is triggered already, created in one step for speed."""

    _ok, _value = True, None

    def __init__(self, clock: Clock, callback: Callable[[Event], object]) -> None:
        self.env, self.callbacks = clock, [callback]  # type: ignore[list-item]


def _nothing(_: Event) -> None:
    return None
