"""Splits the time of a round by marks on the host's or the device's clock.

begin -> forward    waiting for data (stall_s)
forward -> local    computing the local gradient (compute_s)
local -> done       waiting for the others and exchanging gradients (tail_s)
enter -> leave      exchanging parameters instead, where local steps do (added to tail_s)
wait -> waited      waiting for the others in the middle of computing, any number of times (moved to tail_s)
done -> end         optimiser and whatever else the script does, but for that (update_s)
"""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

MARKS = ("begin", "forward", "local", "done", "end")  # in this order; enter and leave need not be there
Spans = tuple[float, float, float, float]


Mark = TypeVar("Mark")


class Timer(ABC, Generic[Mark]):
    """Marks moments of the running round; `moment` reads the clock."""

    def __init__(self, moment: Callable[[], Mark]) -> None:
        self._moment = moment
        self._marks: dict[str, Mark] = {}
        self._waits = 0  # that ended, in the running round
        self._ended: list[dict[str, Mark]] = []

    def mark(self, name: str) -> None:
        """Mark the moment `name` of the running round; a later call replaces an earlier one, except for `forward`."""
        if name != "forward" or "forward" not in self._marks:
            self._marks[name] = self._moment()

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

    def spans(self) -> list[Spans]:
        """(stall_s, compute_s, tail_s, update_s) of every ended round since the last call.

        NaN where a mark is missing.
        """
        ended, self._ended = self._ended, []
        return [_spans(marks) for marks in self._seconds(ended)]

    @abstractmethod
    def _seconds(self, rounds: list[dict[str, Mark]]) -> list[dict[str, float]]:
        """The marks on one clock, in seconds."""


class HostTimer(Timer[float]):
    """Marks on the host's clock: right where computing blocks the script (CPU)."""

    def __init__(self) -> None:
        super().__init__(time.perf_counter)

    def _seconds(self, rounds: list[dict[str, float]]) -> list[dict[str, float]]:
        return rounds


class CudaTimer(Timer[torch.cuda.Event]):
    """Marks as events on the current CUDA stream, read later."""

    def __init__(self) -> None:
        super().__init__(_event)

    def _seconds(self, rounds: list[dict[str, torch.cuda.Event]]) -> list[dict[str, float]]:
        """Waits for the device to reach the end of the last round."""
        if rounds:
            rounds[-1]["end"].synchronize()
        return [{name: marks["begin"].elapsed_time(event) / 1e3 for name, event in marks.items()} for marks in rounds]


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def make_timer(device: torch.device) -> HostTimer | CudaTimer:
    """The timer that measures where a model on `device` computes."""
    return CudaTimer() if device.type == "cuda" else HostTimer()


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
