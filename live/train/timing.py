"""Where the time of a round goes, from a few marks: on the host's clock, or on the device's.

begin -> forward    waiting for data (stall_s)
forward -> local    computing the local gradient (compute_s)
local -> done       waiting for the others and exchanging gradients (tail_s)
enter -> leave      exchanging parameters instead, where local steps do (added to tail_s)
done -> end         optimiser and whatever else the script does, but for that (update_s)
"""

from __future__ import annotations

import itertools
import math
import time
from typing import Protocol

import torch

MARKS = ("begin", "forward", "local", "done", "end")  # in this order; enter and leave need not be there
Spans = tuple[float, float, float, float]


class Timer(Protocol):
    """Marks moments of the running round."""

    def mark(self, name: str) -> None:
        """The moment `name` of the running round is now; a later call replaces an earlier one."""

    def end_round(self) -> None:
        """The running round ends now."""

    def begin_round(self) -> None:
        """The next round begins now."""

    def spans(self) -> list[Spans]:
        """(stall_s, compute_s, tail_s, update_s) of every ended round since the last call.

        NaN where a mark is missing.
        """


class HostTimer:
    """Marks on the host's clock: right where computing blocks the script (CPU)."""

    def __init__(self) -> None:
        self._marks: dict[str, float] = {}
        self._ended: list[dict[str, float]] = []

    def mark(self, name: str) -> None:
        """See `Timer`."""
        if name != "forward" or "forward" not in self._marks:
            self._marks[name] = time.perf_counter()

    def end_round(self) -> None:
        """See `Timer`."""
        self.mark("end")
        self._ended.append(self._marks)

    def begin_round(self) -> None:
        """See `Timer`."""
        self._marks = {}
        self.mark("begin")

    def spans(self) -> list[Spans]:
        """See `Timer`."""
        ended, self._ended = self._ended, []
        return [_spans(marks) for marks in ended]


class CudaTimer:
    """Marks as events on the current CUDA stream, read when they are long past."""

    def __init__(self) -> None:
        self._marks: dict[str, torch.cuda.Event] = {}
        self._ended: list[dict[str, torch.cuda.Event]] = []

    def mark(self, name: str) -> None:
        """See `Timer`."""
        if name != "forward" or "forward" not in self._marks:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks[name] = event

    def end_round(self) -> None:
        """See `Timer`."""
        self.mark("end")
        self._ended.append(self._marks)

    def begin_round(self) -> None:
        """See `Timer`."""
        self._marks = {}
        self.mark("begin")

    def spans(self) -> list[Spans]:
        """See `Timer`. Waits for the device to reach the end of the last ended round."""
        ended, self._ended = self._ended, []
        if ended:
            ended[-1]["end"].synchronize()
        since = [
            {name: marks["begin"].elapsed_time(event) / 1e3 for name, event in marks.items()}
            for marks in ended
        ]
        return [_spans(marks) for marks in since]


def make_timer(device: torch.device) -> Timer:
    """The timer that measures where a model on `device` computes."""
    return CudaTimer() if device.type == "cuda" else HostTimer()


def _spans(marks: dict[str, float]) -> Spans:
    at = [marks.get(name, math.nan) for name in MARKS]
    stall, compute, tail, update = (b - a for a, b in itertools.pairwise(at))
    exchange = marks["leave"] - marks["enter"] if "leave" in marks else 0.0
    return stall, compute, tail + exchange, update - exchange
