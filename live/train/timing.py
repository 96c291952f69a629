"""Splits the time of a round by marks on the host's or the device's clock.

begin -> forward    waiting for data (stall_s)
forward -> local    computing the local gradient (compute_s); local is the end of the backward pass, before its waits
local -> done       waiting for the others and exchanging gradients (tail_s)
enter -> leave      exchanging parameters instead, where local steps do (added to tail_s)
wait -> waited      waiting for the others in the middle of computing, any number of times (moved to tail_s): also the
                    exchange of each backward pass of a round but the last
done -> end         optimiser and whatever else the script does, but for that (update_s)
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import torch

MARKS = ("begin", "forward", "local", "done", "end")  # in this order; enter and leave need not be there
LATE = 2  # rounds after which a device has reached its events: they are read then, and never waited for
Spans = tuple[float, float, float, float]


class HostTimer:
    """Marks on the host's clock: right where computing blocks the script (CPU)."""

    late = 0

    def __init__(self) -> None:
        self._marks: dict[str, Any] = {}
        self._waits = 0  # that ended, in the running round
        self._ended: list[dict[str, Any]] = []
        self._moment: Callable[[], Any] = time.perf_counter

    def mark(self, name: str) -> None:
        """Mark the moment `name` of the running round; a later call replaces an earlier one, except for `forward`."""
        self._end_pass(name)
        if name != "forward" or "forward" not in self._marks:
            self._marks[name] = self._moment()

    def _end_pass(self, name: str) -> None:
        """Before another backward pass of the round is marked: the exchange of the last one was a wait."""
        if name == "local" and "done" in self._marks and f"wait{self._waits}" not in self._marks:
            self._marks[f"wait{self._waits}"] = self._marks.pop("local")
            self._marks[f"waited{self._waits}"] = self._marks.pop("done")
            self._waits += 1

    def begin_wait(self) -> None:
        """Begin a wait for other ranks during computing; of two calls in a row, the first counts."""
        if f"wait{self._waits}" not in self._marks:
            self._marks[f"wait{self._waits}"] = self._moment()

    def end_wait(self) -> None:
        """End the wait."""
        if f"wait{self._waits}" in self._marks:
            self._marks[f"waited{self._waits}"] = self._moment()
            self._waits += 1

    def end_round(self) -> None:
        """End the running round."""
        self.mark("end")
        self._ended.append(self._marks)

    def begin_round(self) -> None:
        """Begin the next round."""
        self._marks, self._waits = {}, 0
        self.mark("begin")

    def spans(self, final: bool = False) -> list[Spans]:
        """(stall_s, compute_s, tail_s, update_s) of every ended round since the last call; NaN where a mark is missing.

        Without the last `late` rounds, which the next call returns; with them if `final`.
        """
        ended, self._ended = self._ended, []
        return [_spans(marks) for marks in ended]


class CudaTimer(HostTimer):
    """Marks as events on the current CUDA stream: three a round, or two if `update` need not be told from computing.

    A round ends where the next one's forward begins; without `update`, computing begins where the last exchange
    ended. The wait for data is the host's, if the device waits at all.
    """

    late = LATE

    def __init__(self, update: bool = True) -> None:
        super().__init__()
        self._update, self._spare = update, list[Any]()
        self._exchanged: Any = None  # the end of the last exchange, where that is the begin of computing
        self._moment = self._event

    def _event(self) -> Any:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mark(self, name: str) -> None:
        """See `HostTimer`; begin and end are the host's."""
        self._end_pass(name)
        if name in ("begin", "end"):
            self._marks[name] = time.perf_counter()
        elif name == "forward" and name not in self._marks:
            self._marks["host"] = time.perf_counter()
            self._marks[name], self._exchanged = self._exchanged or self._event(), None
        elif name != "forward":
            if name in self._marks:
                self._spare.append(self._marks[name])
            self._marks[name] = self._event()
            if name == "done" and not self._update:
                self._exchanged = self._marks[name]

    def spans(self, final: bool = False) -> list[Spans]:
        """See `HostTimer`; `final` waits for the device."""
        if final and self._ended:
            torch.cuda.synchronize()
        count = max(0, len(self._ended) - (0 if final else LATE))
        found = [
            self._span(self._ended[k], self._ended[k + 1] if k + 1 < len(self._ended) else None) for k in range(count)
        ]
        for marks in self._ended[:count]:  # without `update`, `done` is the next round's `forward`
            kept = () if self._update else ("done",)
            self._spare += [e for name, e in marks.items() if not isinstance(e, float) and name not in kept]
        self._ended = self._ended[count:]
        return found

    def _span(self, marks: dict[str, Any], following: dict[str, Any] | None) -> Spans:
        events = {name: event for name, event in marks.items() if not isinstance(event, float)}
        ends = (following or {}).get("forward") if self._update else None
        if "forward" not in events or not all(e.query() for e in (*events.values(), *([ends] if ends else []))):
            return math.nan, math.nan, math.nan, math.nan
        begin, stall_s = events["forward"], marks["host"] - marks["begin"]
        at: dict[str, float] = {name: begin.elapsed_time(event) / 1e3 for name, event in events.items()}
        at["begin"], at["end"] = -stall_s, at.get("done", at.get("local", 0.0))
        if not self._update:
            at["begin"], at["forward"] = 0.0, min(stall_s, at.get("local", 0.0))
        elif ends:
            idle_s = following["host"] - following["begin"] if following and "host" in following else 0.0
            at["end"] = max(at["end"], begin.elapsed_time(ends) / 1e3 - idle_s)
        return _spans(at)


def make_timer(device: torch.device, update: bool = True) -> HostTimer:
    """The timer that measures where a model on `device` computes; `update`: tell the update from the exchange."""
    return CudaTimer(update) if device.type == "cuda" else HostTimer()


def _spans(marks: dict[str, float]) -> Spans:
    at = [marks.get(name, math.nan) for name in MARKS]
    stall, compute, tail, update = (b - a for a, b in itertools.pairwise(at))
    exchange = marks["leave"] - marks["enter"] if "leave" in marks else 0.0
    waited = _waited(marks) if "local" in marks else 0.0
    return stall, compute - waited, tail + waited + exchange, update - exchange


def _waited(marks: dict[str, float]) -> float:
    """Seconds of waiting up to the local gradient."""
    ends = [(name.replace("waited", "wait"), name) for name in marks if name.startswith("waited")]
    return sum(max(0.0, min(marks[b], marks["local"]) - marks[a]) for a, b in ends)
