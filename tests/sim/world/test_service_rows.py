"""Rows of services and their windows, and runs that never end, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.sim.ledger.serving import ServingAccount
from equipoise.sim.serving.queue import Tally
from equipoise.sim.serving.service import ServiceWindow
from equipoise.sim.world import stall
from equipoise.sim.world.queue import RowQueue
from equipoise.sim.world.service_tables import service_row, window_row


def tally(served: int) -> Tally:
    """Answers of 1 s: within half a class of 1/256."""
    classes = np.zeros_like(Tally().classes)
    classes[20 * 256] = served
    return Tally(served, 3, 2, 8.0, classes)


def test_a_service_over_a_run() -> None:
    """Of 12 requests 4 were answered, 3 of them in time, 2 turned away, 6 wait, of which one is late."""
    spec = SimpleNamespace(name="s", latency=SimpleNamespace(within_s=2.0, share=0.99))
    queue = SimpleNamespace(unanswered=lambda end_s: (6, int(end_s == 30.0)))
    state = SimpleNamespace(total=tally(4), arrived=12, queue=queue, begin_s=10.0)
    tenant: Any = SimpleNamespace(spec=spec, state=state, account=ServingAccount(7.0, 5.0), taken=2)
    row = service_row(tenant, 30.0, 100.0, 8.0)
    percentiles = [row.pop(f"latency_p{q}_s") for q in (50, 95, 99)]
    assert percentiles == pytest.approx([1 + q / 256 for q in (0.5, 0.95, 0.99)])
    assert row == {
        "service": "s",
        "requests": 12,
        "answered": 4,
        "within": 3,
        "refused": 2,
        "unanswered": 6,
        "late": 1,
        "target_s": 2.0,
        "target_ratio": 0.99,
        "goodput_ratio": 3 / 7,
        "goodput_per_s": 3 / 20,
        "latency_mean_s": 2.0,
        "gpu_s": 7.0,
        "busy_gpu_s": 5.0,
        "energy_j": 100.0,
        "cost_usd": 8.0,
        "usd_per_million": 2e6,
        "jobs_stopped": 2,
    }
    state.total = Tally()
    state.queue = SimpleNamespace(unanswered=lambda _: (0, 0))
    nothing = service_row(tenant, 10.0, 0.0, 0.0)
    for name in ("goodput_ratio", "goodput_per_s", "latency_mean_s", "latency_p50_s", "usd_per_million"):
        assert math.isnan(nothing[name]), name
    window = window_row("s", ServiceWindow(1.0, 2.0, 9, tally(4), 5, 3, 4, 6.0))
    named = ("start_s", "end_s", "requests", "waiting", "replicas", "wanted", "gpu_s")
    assert [window[name] for name in named] == [1, 2, 9, 5, 3, 4, 6]
    assert (window["answered"], window["within"], window["refused"]) == (4, 3, 2)
    assert [window[f"latency_p{q}_s"] for q in (50, 95, 99)] == percentiles


def queue_of(*rows: int) -> RowQueue:
    made = RowQueue()
    for row in rows:
        made.add(row)
    return made


def test_a_job_that_keeps_nothing_a_thousand_times_in_a_row_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "FRUITLESS_RESTARTS", 3)
    demand: Any = type("Jobs", (), {"__len__": lambda _: 2, "name": ["a", "b"], "gpus": [1, 8]})()
    watch = stall.StallDetection(demand, queue_of(), queue_of(), 50.0)
    job: Any = SimpleNamespace(row=1, kept=0.0, name="b")
    watch.rolled_back(job)
    watch.rolled_back(job)
    job.kept = 5.0
    watch.rolled_back(job)  # it has kept something new
    watch.rolled_back(job)
    watch.rolled_back(job)
    with pytest.raises(
        stall.Stalled, match="job b was thrown back by faults 3 times in a row and kept nothing: with 50 s"
    ):
        watch.rolled_back(job)


def test_nodes_that_fail_while_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "IDLE_FAILURES", 3)
    demand: Any = type("Jobs", (), {"__len__": lambda _: 2, "name": ["a", "b"], "gpus": [1, 8]})()
    waiting, running = queue_of(1), queue_of()
    watch = stall.StallDetection(demand, waiting, running, 50.0)
    for _ in range(2):
        watch.node_down(0, 1.0)
    running.add(0)
    watch.node_down(0, 1.0)  # something ran again
    running.remove(0)
    waiting.remove(1)
    for _ in range(9):
        watch.node_down(0, 1.0)  # nobody waits
    waiting.add(1)
    for _ in range(2):
        watch.node_down(0, 1.0)
    with pytest.raises(stall.Stalled, match="during the last 3 node failures: job b waits for 8 GPUs"):
        watch.node_down(0, 1.0)
