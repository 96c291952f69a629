"""When policies decide, and what the roster keeps of jobs that come, start, stop and end: by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.sim.clock import STATE, Clock
from equipoise.sim.scenario.model import Decide
from equipoise.sim.world.decisions import Decisions
from equipoise.sim.world.roster import Roster
from equipoise.sim.world.writes import Writes
from tests.sim.world.small import to, world_of


class Desk:
    """Decisions beside a clock; `at` are the times at which it was decided."""

    def __init__(self, look_s: float = math.inf, **spec: Any) -> None:
        self.clock, self.at = Clock(), list[float]()
        self.roster = SimpleNamespace(waiting=[0], running=[])
        self.decisions = Decisions(
            Decide.model_validate(spec),
            self.clock,
            self.roster,
            lambda: self.at.append(self.clock.now),  # type: ignore[arg-type]
            lambda: look_s,
        )

    def to(self, time_s: float) -> list[float]:
        self.clock.run(until=self.clock.until(time_s))
        return self.at


def test_one_decision_an_instant_after_all_else() -> None:
    desk, seen = Desk(), list[int]()
    desk.clock.at(3.0, lambda _: desk.decisions.event())
    desk.clock.at(3.0, lambda _: desk.decisions.request())
    desk.clock.at(3.0, lambda _: seen.append(len(desk.at)), STATE)
    assert desk.to(5.0) == [3.0]
    assert seen == [0]


def test_where_events_do_not_count_only_requests_do() -> None:
    desk = Desk(on_events=False, every=50.0)
    desk.clock.at(3.0, lambda _: desk.decisions.event())
    desk.clock.at(4.0, lambda _: desk.decisions.last_event())
    desk.clock.at(5.0, lambda _: desk.decisions.request())
    assert desk.to(6.0) == [5.0]


def test_the_last_event_of_an_instant_decides_right_away() -> None:
    desk, seen = Desk(), list[list[float]]()

    def ends(_: object) -> None:
        desk.decisions.last_event()
        seen.append([*desk.at])

    desk.clock.at(3.0, ends)
    desk.clock.at(4.0, ends)
    desk.clock.at(4.0, lambda _: None)
    assert desk.to(5.0) == [3.0, 4.0]
    assert seen == [[3.0], [3.0]]
    desk.decisions.busy_until_s = 9.0
    desk.clock.at(7.0, ends)
    assert desk.to(8.0) == [3.0, 4.0]
    assert desk.decisions.next_planned_s() == 9.0
    assert desk.to(10.0) == [3.0, 4.0, 9.0]
    assert desk.decisions.next_planned_s() == math.inf
    desk.decisions.busy_until_s = 12.0
    desk.clock.at(12.0, ends)
    assert desk.to(13.0)[3:] == [12.0]
    assert seen[-1][-1] == 12.0


def test_regular_decisions_while_jobs_wait_or_run() -> None:
    desk = Desk(every=3.0)
    assert desk.decisions.next_planned_s() == 0.0
    desk.decisions.begin()
    assert desk.to(4.0) == [0.0, 3.0]
    assert (desk.decisions.ticks, desk.decisions.next_planned_s()) == (True, 6.0)
    desk.roster.waiting.clear()
    assert desk.to(7.0) == [0.0, 3.0]
    desk.roster.running.append(1)
    assert desk.to(10.0) == [0.0, 3.0, 9.0]
    none = Desk()
    none.decisions.begin()
    assert (none.to(9.0), none.decisions.ticks) == ([], False)


def test_a_plan_asks_for_another_decision_and_may_think_better_of_it() -> None:
    desk = Desk(look_s=70.0)
    desk.decisions.revisit_at(math.inf)
    assert (desk.decisions.revisits, desk.decisions.next_planned_s()) == (False, 70.0)
    desk.decisions.revisit_at(5.0)
    assert (desk.decisions.revisits, desk.decisions.next_planned_s()) == (True, 5.0)
    desk.decisions.revisit_at(8.0)
    assert desk.to(6.0) == []
    assert desk.to(9.0) == [8.0]
    assert (desk.decisions.revisits, desk.decisions.next_planned_s()) == (False, 70.0)
    desk.decisions.revisit_at(12.0)
    desk.decisions.revisit_at(math.inf)
    assert (desk.to(15.0), desk.decisions.revisits) == ([8.0], False)
    desk.decisions.revisit_at(20.0)
    assert desk.to(25.0) == [8.0, 20.0]


def test_a_decision_after_so_many_steps_of_a_job() -> None:
    desk, job = Desk(every_steps=7), SimpleNamespace(progress=SimpleNamespace(steps_since_decision=3))
    steps = job.progress
    assert desk.decisions.steps_left(job) == 4  # type: ignore[arg-type]
    steps.steps_since_decision = 9
    assert desk.decisions.steps_left(job) == 1  # type: ignore[arg-type]
    steps.steps_since_decision = 6
    desk.decisions.stepped(job)  # type: ignore[arg-type]
    assert (steps.steps_since_decision, desk.to(2.0)) == (6, [])
    steps.steps_since_decision = 7
    desk.decisions.stepped(job)  # type: ignore[arg-type]
    assert (steps.steps_since_decision, desk.to(4.0)) == (0, [2.0])
    free = Desk()
    steps.steps_since_decision = 99
    free.decisions.stepped(job)  # type: ignore[arg-type]
    assert (free.decisions.steps_left(job), free.to(1.0), steps.steps_since_decision) == (2**40, [], 99)  # type: ignore[arg-type]


def test_writes_go_at_once_up_to_the_burst_and_then_at_their_rate() -> None:
    """4 a second, 3 at once."""
    writes = Writes(4.0, 3)
    assert [writes.take(10.0) for _ in range(5)] == [10.0, 10.0, 10.0, 10.25, 10.5]
    assert writes.take(10.5, 0) == 10.5
    assert writes.take(10.5, 2) == 11.0
    assert writes.take(20.0, 5) == 20.5


# -- the roster ---------------------------------------------------------------------------------------------


def roster_of(*jobs: dict[str, Any], initialisation_s: float = 6.0, factor: Any = None) -> Roster:
    demand = world_of(*jobs).demand
    return Roster(demand, np.array(factor or [1.0] * len(jobs)), initialisation_s)


class Fake:
    """A job of which only the row and what is filled in count."""

    def __init__(self, row: int) -> None:
        self.row, self.filled = row, list[float]()

    def fill_row(self, cells: Any, factor: float) -> None:
        self.filled.append(factor)


def held(gpus: int) -> Any:
    return SimpleNamespace(gpu=np.arange(gpus))


JOBS = (
    {"gpus": 2, "duration": 30.0},
    {"gpus": 3, "duration": 50.0, "arrival": 2.0, "priority": 4},
    {"gpus": 4, "duration": 70.0, "arrival": 5.0, "gpus_min": 2},
)


def test_what_policies_see_of_jobs_before_they_run() -> None:
    roster = roster_of(*JOBS, factor=[1.5, 2.0, 0.5])
    told = {
        name: roster.columns[name].tolist()
        for name in (
            "id",
            "arrival_s",
            "queued_since_s",
            "priority",
            "gpus_requested",
            "duration_s",
            "service_s",
            "restart_s",
            "rigid",
            "one_gpu_model",
            "workers_min",
            "workers_max",
            "gpus_per_worker",
        )
    }
    assert told["id"] == [0, 1, 2]
    assert told["arrival_s"] == told["queued_since_s"] == [0, 2, 5]
    assert told["priority"] == [1, 4, 1]
    assert told["gpus_requested"] == [2, 3, 4]
    assert told["duration_s"] == told["service_s"] == [45, 100, 35]
    assert told["restart_s"] == [6, 6, 6]
    assert told["rigid"] == [True] * 3
    assert (told["workers_min"][2], told["workers_max"][2], told["gpus_per_worker"][2]) == (2, 4, 1)
    assert len(roster.table) == 0


def test_a_job_that_starts_stops_and_ends() -> None:
    roster, job = roster_of(*JOBS, factor=[1.5, 2.0, 0.5]), Fake(1)
    for row in (0, 1):
        roster.waiting.add(row)
    assert roster.queueing_s(9.0).tolist()[:2] == [9, 7]
    assert roster.started(job, held(3), 12.0) == 0.0  # type: ignore[arg-type]
    columns = roster.columns
    assert (columns["waited_s"][1], columns["started_s"][1], columns["queued_since_s"][1]) == (10, 12, 12)
    assert (columns["gpus_held"][1], roster.start_s[1], columns["restart_s"][1]) == (3, 12, 6)
    assert (roster.waiting.rows.tolist(), roster.running.rows.tolist()) == ([0], [1])
    assert roster.queueing_s(14.0).tolist()[:2] == [14, 10]
    roster.stopped(job, 20.0, 8.5)  # type: ignore[arg-type]
    assert (columns["restart_s"][1], columns["gpus_held"][1], columns["queued_since_s"][1]) == (8.5, 0, 20)
    assert (roster.waiting.rows.tolist(), roster.running.rows.tolist(), roster.running_jobs) == ([0, 1], [], {})
    assert roster.started(job, held(2), 27.0) == 8.5  # type: ignore[arg-type]
    assert (columns["waited_s"][1], roster.start_s[1], columns["restart_s"][1]) == (17, 12, 6)
    roster.regrouped(job, held(1), 30.0)  # type: ignore[arg-type]
    assert (columns["gpus_held"][1], columns["started_s"][1], roster.restarts[1]) == (1, 30, 1)
    roster.finished(job, 41.0)  # type: ignore[arg-type]
    assert (roster.completion_s[1], columns["gpus_held"][1], columns["progress"][1]) == (41, 0, 1)
    assert (roster.completed, roster.running.rows.tolist(), roster.running_jobs) == (1, [], {})
    assert job.filled == [2.0, 2.0]
    assert len({*columns["state"].tolist()}) == 2
    assert math.isnan(roster.completion_s[0])


def test_a_start_that_is_written_later_has_waited_until_then() -> None:
    roster, job = roster_of(*JOBS), Fake(0)
    roster.waiting.add(0)
    roster.started(job, held(2), 4.0)  # type: ignore[arg-type]
    roster.writing(0, 4.0, 7.0)
    assert (roster.start_s[0], roster.columns["waited_s"][0]) == (7, 7)
    roster.stopped(job, 5.0, 0.0)  # type: ignore[arg-type]
    assert (math.isnan(roster.start_s[0]), roster.columns["waited_s"][0]) == (True, 5)
    roster.started(job, held(2), 9.0)  # type: ignore[arg-type]
    roster.writing(0, 9.0, 10.0)
    roster.stopped(job, 10.0, 0.0)  # type: ignore[arg-type]
    assert (roster.start_s[0], roster.columns["waited_s"][0]) == (10, 10)
    roster.started(job, held(2), 15.0)  # type: ignore[arg-type]
    roster.writing(0, 15.0, 18.0)
    assert roster.start_s[0] == pytest.approx(10.0)


def test_a_policy_that_only_starts_jobs_is_asked_when_it_could_start_one() -> None:
    """At 0 s, and at 10 s when the GPUs come free; not at 3 s, as none is free, nor at 20 s, as none waits."""
    world = world_of({"gpus": 4, "duration": 10.0}, {"gpus": 4, "duration": 10.0, "arrival": 3.0})
    to(world, 5.0)
    assert (world.decided, world.roster.waiting.rows.tolist()) == (1, [1])
    to(world, 15.0)
    assert (world.decided, world.done.triggered) == (2, False)
    to(world, 25.0)
    assert (world.decided, world.done.triggered) == (2, True)
    assert world.roster.start_s.tolist() == [0.0, 10.0]


def test_beside_services_a_run_lasts_to_its_horizon() -> None:
    service = {"batch_latency": {"fixed": 1.0, "most": 2}, "requests": {"rate": 1.0}, "latency": {"p99": 5.0}}
    job = {"gpus": 1, "duration": 10.0}
    for sections, lasts in (
        ({"services": [service], "horizon": 50.0}, True),
        ({"services": [service]}, False),
        ({"horizon": 50.0}, False),
    ):
        world = world_of(job, **sections)
        to(world, 12.0)
        assert (world.lasts, world.done.triggered) == (lasts, not lasts)
