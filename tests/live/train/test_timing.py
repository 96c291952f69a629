"""Rounds timed by a device's events, whose clock is given."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train.timing import CudaTimer  # noqa: E402

PARTS = {"begin": 1.0, "forward": 4.0, "local": 2.0, "done": 8.0}  # seconds from a mark to the next one


@pytest.mark.parametrize(("update", "events", "spans"), [(True, 3, (1, 4, 2, 8)), (False, 2, (1, 12, 2, 0))])
def test_a_round_on_a_device(update: bool, events: int, spans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data 1 s, computing 4 s, exchange 2 s, update 8 s: computing, and not exchange, if not told apart."""
    now, recorded = [0.0], []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at_s = 0.0

        def record(self) -> None:
            self.at_s = now[0]
            recorded.append(self)

        def query(self) -> bool:
            return True

        def elapsed_time(self, other: Any) -> float:
            return 1e3 * (other.at_s - self.at_s)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    timer, found = CudaTimer(update), []
    for k in range(9):
        timer.begin_round()
        for name, took_s in PARTS.items():
            timer.mark(name)
            now[0] += took_s
        timer.end_round()
        found += timer.spans() if k % 3 == 0 else []
    assert len(found) == 5  # the last two come later
    assert found[1:] == [pytest.approx(spans)] * 4
    assert len(recorded) == 9 * events + (not update)
    assert len({id(event) for event in recorded}) < 6 * events  # they are used again
