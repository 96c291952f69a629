"""What one service can answer, how many replicas it wants, and what its windows count: by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.sim.scenario.services import BatchLatency
from equipoise.sim.serving.queue import Tally
from equipoise.sim.serving.service import ServiceState, ServiceWindow, batch_times_s, capacity_per_s
from tests.scenarios import scenario

LINE = {"fixed": 0.5, "per_request": 0.25, "most": 4}
"""Batches of 1 to 4 take 0.75, 1, 1.25 and 1.5 s."""


def state(times: Any = None, begin_s: float = 100.0, **sections: Any) -> ServiceState:
    service = {"name": "chat", "batch_latency": LINE, "requests": {"rate": 2.0}, "latency": {"p95": 2.5}}
    case = scenario(services=[service | sections])
    return ServiceState(case.services[0], 3, begin_s, None if times is None else np.array(times))


def test_times_of_batches_lie_on_a_line_or_between_what_was_measured() -> None:
    assert batch_times_s(BatchLatency.model_validate(LINE)).tolist() == [0.0, 0.75, 1.0, 1.25, 1.5]
    assert batch_times_s(BatchLatency(fixed=3.0, most=2)).tolist() == [0.0, 3.0, 3.0]
    measured = BatchLatency(measured={5: 6.0, 1: 2.0, 3: 3.0})
    assert batch_times_s(measured).tolist() == [0.0, 2.0, 2.5, 3.0, 4.5, 6.0]
    assert batch_times_s(BatchLatency(measured={1: 2.0, 3: 3.0}, most=2)).tolist() == [0.0, 2.0, 2.5]


def test_a_replica_answers_with_the_largest_batch_of_which_two_take_no_longer_than_the_target() -> None:
    times = np.array([0.0, 0.75, 1.0, 1.25, 1.5])
    assert capacity_per_s(times, 2.5, 1.0) == 3 / 1.25
    assert capacity_per_s(times, 2.25, 1.0) == 2 / 1.0
    assert capacity_per_s(times, 2.5, 0.5) == 4 / 0.75
    assert capacity_per_s(times, 2.5, 1.25) == 2 / 1.25
    assert capacity_per_s(times, 0.25, 2.0) == 1 / 1.5
    assert capacity_per_s(times, 1.5, 1.0) == 1 / 0.75


def test_as_many_replicas_as_answer_at_the_utilisation_aimed_at_within_min_and_max() -> None:
    """One answers 2.4 a second, at half of it 1.2."""
    found = state(replicas={"min": 2, "max": 7}, autoscaler={"utilisation": 0.5})
    counts = [found.replicas_for(rate, 1.0) for rate in (0.0, 2.4, 2.5, 3.6, 6.1, 8.4, 8.5, 1e300)]
    assert counts == [2, 2, 3, 3, 6, 7, 7, 7]
    assert [found.replicas_for(2.5, factor) for factor in (1.25, 2.0)] == [4, 7]
    own = state(replicas={"min": 2, "max": 5}, placement={"kind": "own"})
    assert own.replicas_for(0.0, 1.0) == 5
    assert own.wanted == 5
    assert found.wanted == 2


def window(start_s: float, end_s: float, arrived: int, waiting: int = 0) -> ServiceWindow:
    return ServiceWindow(start_s, end_s, arrived, Tally(), waiting, 1, 1, 0.0)


def test_more_replicas_at_once_and_fewer_when_they_were_not_needed_for_a_while() -> None:
    """At 1.2 a second of each: 40 requests in 10 s and 8 that wait are 4.8 a second, 4 replicas."""
    found = state(replicas={"min": 1, "max": 9}, autoscaler={"utilisation": 0.5, "every": 10.0, "hold": 20.0})
    for end_s, arrived, waiting, wanted in (
        (10.0, 40, 8, 4),
        (20.0, 60, 0, 5),
        (30.0, 30, 0, 5),
        (40.0, 10, 0, 5),
        (50.0, 10, 0, 3),
        (60.0, 5, 0, 1),
    ):
        found.look(window(end_s - 10.0, end_s, arrived, waiting), 1.0)
        assert found.wanted == wanted
    found.look(window(60.0, 65.0, 30), 1.0)
    assert found.wanted == 5
    found.look(window(65.0, 65.0, 3), 1.0)
    assert found.wanted == 9


def test_windows_follow_each_other_and_count_what_came_in_them() -> None:
    """Of a file: at 3, 4, 31 and 65 s from the begin; one replica from 105 s on."""
    found = state(times=[3.0, 4.0, 31.0, 65.0, 66.0], autoscaler={"every": 30.0}, requests={"file": "x.csv"})
    assert (found.window_s, found.next_s, found.total.served, found.arrived) == (100.0, 130.0, 0, 0)
    found.queue.add(105.0, 1.0)
    found.open_window()
    found.queue.advance(130.0)
    first = found.close_window(130.0, 3, 7.5)
    assert found.last is first
    assert (first.start_s, first.end_s, first.arrived, first.waiting) == (100.0, 130.0, 2, 0)
    assert (first.replicas, first.wanted, first.gpu_s) == (3, 1, 7.5)
    assert (first.tally.served, first.tally.within, first.tally.latency_s) == (2, 1, 3.0 + 2.0)
    assert (found.window_s, found.next_s) == (130.0, 160.0)
    found.open_window()
    found.queue.advance(140.0)
    found.close_window(140.0, 2, 1.0)
    assert (found.arrived, found.total.served, found.windows) == (3, 3, 2)
    assert found.window_s == 160.0
    found.open_window()
    found.queue.advance(165.5)
    last = found.close_window(165.5, 2, 1.0)
    assert (last.arrived, last.waiting, last.start_s) == (1, 0, 160.0)
    assert last.percentile_s(0.99) != last.percentile_s(0.99)
    assert first.percentile_s(1.0) == pytest.approx(3.0, rel=0.004)


def test_a_queue_is_as_long_as_the_service_says() -> None:
    found = state(times=[1.0, 2.0, 3.0, 4.0], queue_most=3, requests={"file": "x.csv"})
    found.open_window()
    found.queue.advance(110.0)
    assert (found.queue.waiting, found.queue.take().refused) == (3, 1)
    free = state(times=[1.0, 2.0, 3.0, 4.0], requests={"file": "x.csv"})
    free.open_window()
    free.queue.advance(110.0)
    assert (free.queue.waiting, free.queue.take().refused) == (4, 0)
