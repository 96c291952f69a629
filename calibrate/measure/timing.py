"""Timing: warm-up, then repeats until the budget is spent; every single time is kept."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import numpy as np

from equipoise.calibrate.device.cuda import Device, Event, PinnedBuffer

LEAST_BATCH_S = 2e-4  # device events resolve about 1e-6 s
LARGEST_BATCH = 256  # launches queued behind a held stream; its queue holds about 1,000
HOLD_CLOCKS = 2_000_000_000  # about a second; then the hold gives up
LEAST_REPEATS = 5
MOST_REPEATS = 200


def time_calls(
    function: Callable[[], object],
    budget_s: float,
    least: int = LEAST_REPEATS,
    most: int = MOST_REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """Seconds of each call on the given clock, after one warm-up call, for about `budget_s` of real time.

    `time.process_time` as clock leaves out what other processes take from a function that runs on one core.
    """
    function()
    times: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(times) < least or (time.perf_counter() < deadline and len(times) < most):
        start = clock()
        function()
        times.append(clock() - start)
    return tuple(times)


def time_calls_batched(function: Callable[[], object], budget_s: float, batch_s: float = 1e-3) -> tuple[float, ...]:
    """Seconds per call of something too short for the clock: batches of at least `batch_s`."""
    function()
    start = time.perf_counter()
    function()
    once = max(time.perf_counter() - start, 1e-7)
    inner = max(1, int(np.ceil(batch_s / once)))

    def batch() -> None:
        """As many calls as make a stretch long enough for the clock."""
        for _ in range(inner):
            function()

    return tuple(t / inner for t in time_calls(batch, budget_s))


class DeviceTimer:
    """Times queued work with device events, the stream held back until all of it is queued.

    Without the hold the host's queueing, not the device, would be timed for short kernels.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._hold = device.kernel("latency", "hold")
        self._go = PinnedBuffer(4)
        self._start, self._end = Event(), Event()

    def once(self, queue: Callable[[int], None], inner: int) -> float:
        """Seconds on the device per call of `queue(k)`, k = 0 .. inner - 1, which must only queue."""
        stream = self._device.stream
        flag = self._go.array.view(np.int32)
        flag[0] = 0
        limit = ctypes.c_longlong(HOLD_CLOCKS)
        self._device.launch(self._hold, 1, 1, [self._go.device_pointer, limit])
        try:
            self._start.record(stream)
            for k in range(inner):
                queue(k)
            self._end.record(stream)
        finally:
            flag[0] = 1
        return self._end.elapsed_s(self._start) / inner

    def times(self, queue: Callable[[int], None], budget_s: float) -> tuple[float, ...]:
        """Seconds per call, many times, after a warm-up that also sizes the batches.

        The first call is not held back: loading a kernel may wait for the device to be idle.
        """
        queue(0)
        self._device.wait(self._device.stream)
        rough = max(self.once(queue, 2), 1e-7)
        inner = int(min(max(1.0, np.ceil(LEAST_BATCH_S / rough)), LARGEST_BATCH))
        times: list[float] = []
        deadline = time.perf_counter() + budget_s
        while len(times) < LEAST_REPEATS or (time.perf_counter() < deadline and len(times) < MOST_REPEATS):
            times.append(self.once(queue, inner))
        return tuple(times)
