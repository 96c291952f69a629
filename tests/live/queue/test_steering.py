"""In front of a queue: what may be done to it and how fast, what is held and given back, what is written down."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.live.queue import lease, loop, record, world
from equipoise.live.queue.ahead import _Future
from equipoise.live.queue.machines import FREE_NEXT
from equipoise.live.queue.manager import (
    Change,
    ManagerError,
    Snapshot,
    Verb,
)
from equipoise.live.queue.options import QueueOptions, read_estimates
from equipoise.policies.contract import Allocation
from equipoise.policies.observation import DONE, RUNNING, WAITING, Gpus, Jobs, Nodes, Observation
from tests.live.queue.test_rows import NAN, job, node, running

# -- the world -------------------------------------------------------------------------------------------------


def made(**options: Any) -> tuple[world.QueueWorld, list[tuple[str, dict[str, Any]]]]:
    told: list[tuple[str, dict[str, Any]]] = []
    kept: Any = SimpleNamespace(
        touched=record.Touched(),
        event=lambda event, **values: told.append((event, values)),
        keep_touched=lambda: None,
    )
    manager: Any = SimpleNamespace(name="made up", carry_out=lambda changes: "")
    return world.QueueWorld(manager, QueueOptions(mode="act", **options), kept), told


@pytest.mark.parametrize(
    ("rate", "asked", "allowed"),
    [
        (2.0, [(0.0, 5), (0.0, 5), (1.0, 5), (1.5, 5), (100.0, 25), (100.0, 1)], [2, 0, 2, 1, 20, 0]),
        (2.0, [(0.0, 2), (0.5, 1), (0.5, 1)], [2, 1, 0]),
        (0.05, [(0.0, 1), (10.0, 1), (20.0, 2), (90.0, 2)], [0, 0, 1, 1]),
    ],
)
def test_changes_are_made_at_a_pace(
    rate: float, asked: list[tuple[float, int]], allowed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so many a second, saved for ten seconds, or for one change."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(world, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    queue, told = made(changes_per_s=rate)
    found = []
    for at_s, count in asked:
        clock.now_s = at_s
        told.clear()
        found.append(len(queue._within_rate([Change(Verb.RELEASE, k) for k in range(count)])))
        assert queue.behind == (count > found[-1]) == bool(told)
        if told:
            assert told[0][1]["why"] == f"{count - found[-1]} changes: at most {rate:g} a second"
    assert found == allowed


def test_half_of_a_lease_is_left_when_it_is_renewed() -> None:
    queue, _ = made(held=True, lease_s=120.0)
    held = {"held": True, "eligible_s": NAN, "reason": "JobHeldUser"}
    jobs = (
        job(1, **held),
        job(2),
        job(3),
        job(4, **held | {"reason": "JobHeldAdmin"}),
        running(5, 50.0),
        job(6),
    )
    queue.rows.see(jobs, lambda _: True, 100.0)
    queue.record.touched.update({k: {"nice": 0, "lease": k != 6} for k in (2, 3, 5, 6)})
    queue._until_s = {2: 159.0, 3: 160.0, 5: 0.0, 6: 0.0}
    queue.snapshot = Snapshot(100.0, jobs, ())
    assert queue.renewals() == [
        Change(Verb.HOLD, 1, 120, 1, "was submitted held"), Change(Verb.HOLD, 2, 120, 0, "still waits")
    ]  # fmt: skip
    assert queue.renewals(failing=True) == [Change(Verb.HOLD, 1, 0, 1, "was submitted held")]
    queue.by_hand.add(1)
    assert [change.job for change in queue.renewals()] == [2]
    queue._remember(Change(Verb.HOLD, 2, 30))
    queue._remember(Change(Verb.REQUEUE, 3))
    assert (queue._until_s[2], queue._until_s[3]) == (130.0, 220.0)
    queue._remember(Change(Verb.RELEASE, 2))
    assert (queue.record.touched[2]["lease"], 2 in queue._until_s) == (False, False)


@pytest.mark.parametrize(
    ("changes", "touched", "waits"),
    [
        ({"eligible_s": 100.0}, {}, True),
        ({"eligible_s": 100.5}, {}, False),
        ({"eligible_s": 100.5}, {"lease": True}, True),
        ({"limited": True}, {}, False),
        ({"limited": True}, {"lease": True}, True),
        ({"held": True, "reason": "JobHeldUser", "eligible_s": NAN}, {}, True),
        ({"held": True, "reason": "JobHeldUser", "eligible_s": 50.0}, {}, False),  # it was free once
        ({"held": True, "reason": "JobHeldAdmin", "eligible_s": NAN}, {}, False),
        ({"held": True, "reason": "Priority", "eligible_s": NAN}, {}, False),
        ({"held": True, "eligible_s": 50.0}, {"lease": True}, False),
    ],
)
def test_which_jobs_wait_for_a_policy(changes: dict[str, Any], touched: dict[str, Any], waits: bool) -> None:
    queue, _ = made(held=True)
    queue.snapshot = Snapshot(100.0, (), ())
    if touched:
        queue.record.touched[1] = {"nice": 0, **touched}
    assert queue._waits(job(1, **changes)) == waits
    queue.by_hand.add(1)
    free = not changes.get("held") and not changes.get("limited") and changes.get("eligible_s", 10.0) <= 100.0
    assert queue._waits(job(1, **changes)) == free  # only what anybody's job may


def test_a_window_is_the_time_between_two_observations_and_ended_jobs_are_forgotten() -> None:
    queue, _ = made()
    windows = []
    for now_s, jobs in ((100.0, (job(1), job(2))), (250.0, (job(1),)), (257.0, (job(1),))):
        queue.snapshot = Snapshot(now_s, jobs, (node("a", 2, 0),))
        queue.rows.see(jobs, lambda _: True, now_s)
        windows.append(queue.observe().window_s)
        for held in (queue._expected, queue._until_s, queue.record.touched):
            held.setdefault(2, 0)  # type: ignore[attr-defined]
            held.setdefault(1, 0)  # type: ignore[attr-defined]
        queue.forget_ended()
        assert (
            {*queue._expected} == {*queue._until_s} == {*queue.record.touched} == {each.id for each in jobs}
        )
    assert windows == [0.0, 150.0, 7.0]


@pytest.mark.parametrize(
    ("requeue", "said", "stopped"),
    [
        (False, ["requeuing was not allowed", "requeuing was not allowed"], []),
        (True, ["it was submitted with --no-requeue"], [5]),
    ],
)
def test_what_a_plan_starts_and_stops(requeue: bool, said: list[str], stopped: list[int]) -> None:
    queue, _ = made(requeue=requeue)
    jobs = (job(1), job(2), running(3, 5.0), running(4, 5.0, requeues=False), running(5, 5.0))
    queue.rows.see(jobs, lambda _: True, 100.0)
    queue._until_s = {1: 150.0, 3: 150.0}
    row = queue.rows.row
    refused: list[Any] = []
    plan: Any = SimpleNamespace(
        allocation=Allocation.of([(row[1], [0, 1]), (row[2], [2]), (row[3], [3]), (row[4], []), (row[5], [])])
    )
    changes = queue._stops_and_starts(plan, refused)
    assert [(change.verb, change.job) for change in changes] == [
        (Verb.RELEASE, 1), *((Verb.REQUEUE, number) for number in stopped)
    ]  # fmt: skip
    assert refused[0].why == "job 3: a running job of made up keeps its GPUs"
    assert [each.why for each in refused[1:]] == [f"job {4 + k}: {why}" for k, why in enumerate(said)]
    assert queue._stops_and_starts(SimpleNamespace(allocation=None), refused) == []  # type: ignore[arg-type]


def test_tables_are_made_anew_for_other_nodes_or_many_ended_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "_DONE_KEPT", 2)
    queue, told = made()
    queue.snapshot = Snapshot(100.0, (), (node("a", 4, 0),))
    assert queue.needs_new_tables()
    queue.make_new_tables()
    assert told == [("nodes", {"nodes": [["a", 4, ""]]})]
    assert not queue.needs_new_tables()
    for ended, left, due in ((2, 1, False), (3, 1, True), (3, 3, False), (4, 3, True)):
        queue.rows.forget()
        jobs = [job(k) for k in range(ended + left)]
        queue.rows.see(jobs, lambda _: True, 100.0)
        queue.rows.see(jobs[:left], lambda _: True, 101.0)
        assert queue.needs_new_tables() == due


# -- the loop, the lease, the record ---------------------------------------------------------------------------


def test_a_queue_that_does_not_answer_is_asked_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as long each time, up to 64 times, and no longer than half a minute."""
    for every_s, waits_s in (
        (0.25, [0.25, 0.5, 1, 2, 4, 8, 16, 16]),
        (2.0, [2, 4, 8, 16, 30, 30]),
        (40.0, [40, 40]),
    ):
        clock = SimpleNamespace(now_s=0.0)

        def sleep(seconds: float, clock: Any = clock) -> None:
            assert seconds == 0.1
            clock.now_s += 0.0625  # which floating-point numbers add up exactly

        monkeypatch.setattr(
            loop, "time", SimpleNamespace(monotonic=lambda clock=clock: clock.now_s, sleep=sleep)
        )
        scheduler = object.__new__(loop.Scheduler)
        scheduler.options, scheduler._lost = QueueOptions(every_s=every_s), -1
        looks: list[float] = []

        def step(scheduler: Any = scheduler, looks: list[float] = looks, clock: Any = clock) -> None:
            scheduler._lost += 1
            looks.append(clock.now_s)

        scheduler.step = step  # type: ignore[method-assign]
        scheduler.give_back = lambda why: why == "stopped"  # type: ignore[method-assign]
        most = len(waits_s)
        assert scheduler.run(lambda looks=looks, most=most: len(looks) > most)
        assert np.diff(looks).tolist() == waits_s


def test_what_was_held_is_let_go_when_a_policy_has_failed_three_times() -> None:
    scheduler, asked = object.__new__(loop.Scheduler), list[Any]()
    scheduler.world = SimpleNamespace(renewals=lambda failing: failing, carry_out=asked.append)  # type: ignore[assignment]
    for failures in (0, 2, 3, 4):
        scheduler.decider = SimpleNamespace(failures=failures)  # type: ignore[assignment]
        scheduler._renew()
    assert asked == [False, False, True, True]


@pytest.mark.parametrize(("lost", "given", "waited"), [(0, True, 0), (2, True, 2), (3, False, 3)])
def test_giving_back_is_tried_three_times(
    lost: int, given: bool, waited: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, told, answers = (
        list[float](),
        list[str](),
        [manager_down] * lost + [lambda: Snapshot(0.0, (), ())] * 3,
    )
    monkeypatch.setattr(loop, "time", SimpleNamespace(sleep=waits.append))
    scheduler = object.__new__(loop.Scheduler)
    scheduler.options = QueueOptions(mode="act")
    scheduler.manager = SimpleNamespace(  # type: ignore[assignment]
        snapshot=lambda: answers.pop(0)(), carry_out=lambda changes: ""
    )
    scheduler.record = SimpleNamespace(  # type: ignore[assignment]
        touched={}, event=lambda event, **_: told.append(event), actions=lambda changes, event: None
    )
    scheduler.world = SimpleNamespace(forget_touched=lambda: told.append("forgotten"))  # type: ignore[assignment]
    assert scheduler.give_back("why") == given
    assert waits == [1.0] * waited
    assert told == ["lost"] * lost + (["given back", "forgotten"] if given else [])
    scheduler.options = QueueOptions(mode="advise")
    assert scheduler.give_back("why")  # nothing was changed
    assert len(told) == lost + 2 * given


def manager_down() -> Snapshot:
    raise ManagerError("no answer")


def test_time_goes_on_to_the_end_of_the_job_that_ends_first() -> None:
    """Two jobs run for 10 and 25 s more, two wait, and the GPUs of one that is over come free before anything."""
    jobs = Jobs.of(
        id=np.arange(4), state=np.array([RUNNING, RUNNING, WAITING, WAITING]), gpus_requested=np.ones(4),
        gpus_held=np.array([1, 2, 0, 0]), service_s=np.array([10.0, 25.0, 5.0, 5.0]), attained_gpu_s=np.zeros(4),
    )  # fmt: skip
    gpus = Gpus.of(node=np.array([0, 0, 0, 1]), job=np.array([0, 1, 1, FREE_NEXT]), share_free=np.zeros(4))
    nodes = Nodes.of(gpus=[3, 1], first_gpu=[0, 3], gpus_free=[0, 0], up=[True, False])
    future = _Future(Observation.of(100.0, nodes=nodes, gpus=gpus, jobs=jobs), None)

    def now() -> tuple[Any, ...]:
        seen = future.seen
        return (seen.time_s, seen.gpus.job.tolist(), seen.gpus.share_free.tolist(), future.free.tolist(),
                future.state.tolist(), future.left_s.tolist(), seen.jobs.attained_gpu_s.tolist(),
                seen.running.tolist(), seen.waiting.tolist())  # fmt: skip

    states = [RUNNING, RUNNING, WAITING, WAITING]
    assert future._end_first()
    soon_s = math.nextafter(100.0, 200.0)
    left = [10.0, 25.0, 5.0, 5.0]
    # The node of what comes free is down: nothing of it can be had.
    assert now() == (soon_s, [0, 1, 1, -1], [0.0] * 4, [0, 0], states, left, [0.0] * 4, [0, 1], [2, 3])
    assert future._end_first()
    states[0], left = DONE, [0.0, 15.0, 5.0, 5.0]
    assert now() == (
        soon_s + 10.0, [-1, 1, 1, -1], [1.0, 0.0, 0.0, 0.0], [1, 0],
        states, left, [10.0, 20.0, 0.0, 0.0], [1], [2, 3],
    )  # fmt: skip
    future.left_s[1] = math.nan
    assert future._end_first()
    states[1], left[1] = DONE, 0.0
    assert now() == (
        soon_s + 10.0 + 3600.0, [-1] * 4, [1.0, 1.0, 1.0, 0.0], [3, 0],
        states, left, [10.0, 7220.0, 0.0, 0.0], [], [2, 3],
    )  # fmt: skip
    assert not future._end_first()


def test_the_queue_that_is_made_up_could_be_one() -> None:
    """One job runs, one of those that wait fits, one does not, and everything adds up."""
    seen = loop._made_up()
    jobs, gpus, nodes = seen.jobs, seen.gpus, seen.nodes
    assert jobs.state.tolist() == [RUNNING, WAITING, WAITING, WAITING]
    assert jobs.gpus_held.tolist() == [np.count_nonzero(gpus.job == row) for row in range(4)]
    assert jobs.gpus_held[0] == jobs.gpus_requested[0] == 1
    assert set(jobs.gpus_requested[1:].tolist()) == {1, 2}
    assert (gpus.share_free == (gpus.job == -1)).all()
    assert (nodes.gpus.tolist(), nodes.first_gpu.tolist()) == ([len(gpus.job)], [0])
    assert nodes.gpus_free.tolist() == [np.count_nonzero(gpus.job == -1)] == [1]
    assert gpus.node.tolist() == [0, 0]
    assert jobs.arrival_s.tolist() == sorted(jobs.queued_since_s.tolist()) == jobs.id.tolist() == [0, 1, 2, 3]
    assert jobs.arrival_s.max() <= seen.time_s
    assert np.isnan(jobs.started_s).tolist() == [False, True, True, True]
    assert (jobs.started_s[0], np.isinf(jobs.restart_s).tolist()) == (0.0, [True, False, False, False])
    assert (jobs.duration_s == jobs.service_s).all()
    assert jobs.rigid.all()


@pytest.mark.parametrize(
    ("now_s", "revisit_s", "due"),
    [(129.0, math.inf, False), (130.0, math.inf, True), (110.0, 110.0, True), (110.0, 110.5, False)],
)
def test_a_decision_is_due_when_it_is_asked_for_or_half_a_minute_after_the_last(
    now_s: float, revisit_s: float, due: bool
) -> None:
    scheduler = object.__new__(loop.Scheduler)
    scheduler.options, scheduler._decided_s, scheduler._revisit_s = QueueOptions(), 100.0, revisit_s
    scheduler.world = SimpleNamespace(snapshot=Snapshot(now_s, (), ()))  # type: ignore[assignment]
    assert scheduler._due() == due


@pytest.mark.parametrize(
    ("there", "kept"), [("", ""), ('{"a":1}\n', '{"a":1}\n'), ('{"a":1}\n{"b', '{"a":1}\n{"b\n')]
)
def test_what_the_watchdog_did_begins_a_line(tmp_path: Path, there: str, kept: str) -> None:
    (tmp_path / "events.jsonl").write_text(there)
    lease._tell(tmp_path, [Change(Verb.PRIORITY, 3, -5, 7, "given back")], "it hurts")
    text = (tmp_path / "events.jsonl").read_text()
    assert text.startswith(kept)
    lines = [json.loads(line) for line in text.removeprefix(kept).splitlines()]
    assert [line.pop("time_s") > 1e9 for line in lines] == [True, True]
    assert lines == [
        {"event": "watchdog", "verb": "priority", "id": 3, "value": -5, "was": 7},
        {"event": "watchdog", "why": "it hurts"},
    ]


def test_what_is_given_back() -> None:
    jobs = (
        job(1, nice=5),
        job(2, nice=0),
        job(3, nice=5, held=True),
        running(4, 0.0, nice=5),
        job(5),
        job(6, nice=1),
    )
    manager: Any = SimpleNamespace(snapshot=lambda: Snapshot(0.0, jobs, ()))
    touched = record.Touched({k: {"nice": 0, "lease": k in (1, 2)} for k in (1, 2, 3, 4, 5)})
    assert lease.to_give_back(manager, touched) == [
        Change(Verb.RELEASE, 1, 0, 0, "given back"), Change(Verb.PRIORITY, 1, 0, 5, "given back"),
        Change(Verb.RELEASE, 2, 0, 0, "given back"),
    ]  # fmt: skip


def test_a_queue_is_given_back_until_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again two seconds after what it did, whether that went wrong or not."""
    waits: list[float] = []
    monkeypatch.setattr(lease, "time", SimpleNamespace(sleep=waits.append, time=lambda: 1e9))
    changed = Snapshot(0.0, (job(1, nice=5),), ())
    answers: list[Any] = [manager_down, lambda: changed, lambda: changed, lambda: Snapshot(0.0, (), ())]
    said = ["it hurts", ""]
    manager: Any = SimpleNamespace(snapshot=lambda: answers.pop(0)(), carry_out=lambda changes: said.pop(0))
    (tmp_path / "touched.json").write_text('{"1": {"nice": 0, "lease": false}}')
    lease._give_back(tmp_path, manager)
    assert waits == [2.0, 2.0, 2.0]
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line.get("why", line.get("verb")) for line in lines] == [
        "no answer",
        "priority",
        "it hurts",
        "priority",
    ]


def test_a_lock_is_waited_for_as_long_as_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0)

    def sleep(seconds: float) -> None:
        assert seconds == 0.1
        clock.now_s += 0.125

    monkeypatch.setattr(
        record, "time", SimpleNamespace(monotonic=lambda: clock.now_s, sleep=sleep, time=lambda: 1e9)
    )
    held = record.Record(tmp_path)
    with (tmp_path / "events.jsonl").open() as file, pytest.raises(OSError, match="unavailable"):
        record.lock(file, 0.25)
    assert clock.now_s == 0.375
    clock.now_s = 0.0
    with pytest.raises(record.BusyError, match="another scheduler, or the watchdog of one that was killed"):
        record.Record(tmp_path)
    assert clock.now_s == 15.125  # a quarter of a minute
    held.close()
    record.Record(tmp_path).close()


def test_what_was_touched_is_written_when_it_is_news(tmp_path: Path) -> None:
    kept, file = record.Record(tmp_path), tmp_path / "touched.json"
    kept.keep_touched()
    assert not file.exists()
    kept.touched[3] = {"nice": 5, "lease": True}
    for lease_now in (True, False):
        kept.touched[3]["lease"] = lease_now
        kept.keep_touched()
        assert record.Touched.read(tmp_path) == {3: {"nice": 5, "lease": lease_now}}
        file.unlink()
        kept.keep_touched()
        assert not file.exists()
    kept.close()
    for damaged in ("[]", "{", '{"x": {}}', '{"3": 5}'):
        file.write_text(damaged)
        with pytest.raises(ValueError, match=r"touched\.json: is damaged"):
            record.Touched.read(tmp_path)


def test_events_leave_out_what_is_no_number(tmp_path: Path) -> None:
    heard: list[Any] = []
    kept = record.Record(tmp_path, heard.append)
    kept.event("start", id=3, start_s=NAN, end_s=math.inf, why="x", left_s=0.0)
    kept.close()
    first, line = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert first == {"format": "equipoise-queue", "version": 1}
    assert heard == [line]
    assert line.pop("time_s") > 1e9
    assert line == {"event": "start", "id": 3, "why": "x", "left_s": 0.0}
    record.Record(tmp_path).close()
    assert (tmp_path / "events.jsonl").read_text().count("format") == 1


@pytest.mark.parametrize(
    ("text", "value"), [("0.5", 0.5), ("1e9", 1e9), ("0", None), ("-1", None), ("inf", None), ("x", None)]
)
def test_estimates_are_above_0(tmp_path: Path, text: str, value: float | None) -> None:
    file = tmp_path / "estimates.csv"
    file.write_text(f"name,duration_s\na,7\nb,{text}\n")
    if value is None:
        with pytest.raises(
            ValueError, match=rf"{file}:3: duration_s: '{text}' is not a number of seconds above 0"
        ):
            read_estimates(file)
    else:
        assert read_estimates(file) == {"a": 7.0, "b": value}
