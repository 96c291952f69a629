"""The clock of a device: two or three events a round, read late and never waited for."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train import timing  # noqa: E402


class Device:
    """Events of a device whose clock the test sets; those later than `reached_s` are not reached."""

    def __init__(self) -> None:
        self.now_s, self.reached_s, self.made = 0.0, math.inf, 0

    def event(self, enable_timing: bool) -> Any:
        """A new one."""
        device = self
        device.made += 1

        class Event:
            at_s = math.nan

            def record(self) -> None:
                self.at_s = device.now_s

            def query(self) -> bool:
                return self.at_s <= device.reached_s

            def elapsed_time(self, other: Event) -> float:
                return 1e3 * (other.at_s - self.at_s)

        return Event()


@pytest.mark.parametrize("update", [False, True])
def test_a_round_on_a_device(update: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 100 ms: 10 for data, 60 computing, 20 exchange, 10 update; without a mark the update is of the tail."""
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: device.now_s)
    timer, found = timing.CudaTimer(update), []
    for k in range(40):
        device.now_s = 0.1 * k
        timer.begin_round()
        device.now_s += 0.01
        timer.mark("forward")
        device.now_s += 0.06
        timer.mark("local")
        device.now_s += 0.02
        timer.mark("done")
        device.now_s = 0.1 * (k + 1)
        timer.end_round()
        if k % 10 == 9:
            device.reached_s = device.now_s - 0.15  # never asked for what is not there
            found.append(timer.spans())
    assert [len(spans) for spans in found] == [8, 10, 10, 10]
    expected = (0.01, 0.06, 0.02, 0.01) if update else (0.01, 0.06, 0.03, 0.0)
    for spans in found:
        assert all(span == pytest.approx(expected, abs=1e-9) for span in spans)
    assert device.made <= (3 if update else 2) * 13  # they are used again
