"""What is done to a queue and what is only written down; and which jobs would start next, job by job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.live.queue.ahead import Ahead, _Future, order_of, with_order
from equipoise.live.queue.manager import Change, ManagerError, Phase, Snapshot, Verb
from equipoise.live.queue.options import QueueOptions
from equipoise.policies.contract import Allocation, Kind, Memory, Plan, Policy, Refusal, Stage
from equipoise.policies.observation import RUNNING, WAITING, Gpus, Jobs, Nodes, Observation
from tests.live.queue.test_rows import NAN, job, node
from tests.live.queue.test_steering import made

HELD = {"held": True, "eligible_s": NAN, "reason": "JobHeldUser"}

# -- the world -------------------------------------------------------------------------------------------------


def test_what_nobody_asked_for_is_not_done() -> None:
    plain = QueueOptions()
    assert (plain.mode, plain.requeue, plain.restart_s, plain.held) == ("advise", False, None, False)
    assert (plain.every_s, plain.decide_s, plain.budget_s, plain.changes_per_s) == (2.0, 30.0, 2.0, 20.0)
    assert (plain.lease_s, dict(plain.estimates)) == (120.0, {})
    assert Change(Verb.HOLD, 3) == Change(Verb.HOLD, 3, 0, 0, "")


def test_a_look_is_news_when_jobs_or_free_gpus_change() -> None:
    queue, _ = made()
    looks = [
        ((job(1),), (node("a", 4, 0),), True), ((job(1),), (node("a", 4, 0),), False),
        ((job(1),), (node("a", 4, 2),), True), ((job(1),), (node("a", 4, 2, up=False),), True),
        ((job(1), job(2)), (node("a", 4, 2, up=False),), True),
        ((job(1), job(2)), (node("b", 4, 2, up=False),), True),
        ((job(1), job(2)), (node("b", 4, 2, up=False),), False),
    ]  # fmt: skip
    for jobs, nodes, news in looks:
        queue.manager.snapshot = lambda jobs=jobs, nodes=nodes: Snapshot(100.0, jobs, nodes)  # type: ignore[method-assign]
        assert queue.look() == news
    assert [*queue.rows.jobs] == [1, 2]
    assert queue.rows.table.rigid.tolist() == [True, True]  # they get what they ask for, or nothing


@pytest.mark.parametrize(
    ("now", "left"),
    [
        ({"nice": 9}, True),
        ({"nice": 5}, False),
        ({"nice": 9, "held": True}, False),
        ({"phase": Phase.RUNNING}, False),
    ],
)
def test_a_job_whose_nice_others_changed_is_theirs(now: dict[str, Any], left: bool) -> None:
    queue, told = made()
    queue._expected, queue.record.touched[1] = {1: 5, 2: 7}, {"nice": 0, "lease": False}
    phase = now.pop("phase", Phase.WAITING)
    queue._watch(job(1, phase, **{"nice": 8} | now))
    queue._watch(job(3, nice=4))  # never touched
    assert (queue.by_hand, queue._expected) == (({1}, {2: 7}) if left else (set(), {1: 5, 2: 7}))
    assert (1 in queue.record.touched) == (not left)
    why = "nice is 9, was set to 5: changed by others"
    assert told == ([("left alone", {"id": 1, "why": why})] if left else [])


def acting(said: str = "", mode: str = "act") -> tuple[Any, list[Any]]:
    """A world with three waiting jobs, and what it asks its manager to do and writes down."""
    queue, told = made(held=True)
    done: list[Any] = []
    queue.options = QueueOptions(mode=mode, held=True)  # type: ignore[arg-type]
    jobs = (job(1, nice=3), job(2), job(3))
    queue.snapshot = Snapshot(100.0, jobs, ())
    queue.rows.see(jobs, lambda _: True, 100.0)
    told.clear()

    def carry_out(changes: Any) -> str:
        """Note them; what is said by `!` is an error."""
        done.append(list(changes))
        if said == "!":
            raise ManagerError("gone")
        return said

    queue.manager.carry_out = carry_out  # type: ignore[method-assign]
    queue.record.actions = lambda changes, event: told.append((event, list(changes)))  # type: ignore[method-assign]
    return queue, [done, told]


PLACES = [Change(Verb.PRIORITY, 1, -5, 3, "place 1"), Change(Verb.HOLD, 2, 120, 0, "still waits")]


def test_what_is_done_is_remembered_and_told() -> None:
    queue, (done, told) = acting()
    queue.carry_out([])
    assert (done, told) == ([], [])
    queue.carry_out(PLACES)
    assert (done, told) == ([PLACES], [("did", PLACES)])
    assert queue.record.touched == {1: {"nice": 3, "lease": False}, 2: {"nice": 0, "lease": True}}
    assert (queue._expected, queue._until_s, queue.refused) == ({1: -5}, {2: 220.0}, [])
    queue.carry_out([Change(Verb.PRIORITY, 1, -8, -5)])
    assert (queue.record.touched[1], queue._expected) == ({"nice": 3, "lease": False}, {1: -8})
    queue.forget_touched()
    assert (queue.record.touched, queue._expected, queue._until_s) == ({}, {}, {})


def test_what_the_manager_says_against_it_is_told() -> None:
    queue, (_, told) = acting("no such job")
    queue.carry_out(PLACES)
    assert told == [("did", PLACES), ("said", {"why": "no such job"})]
    assert queue.refused == [Refusal("changes", "made up: no such job")]
    queue, (done, told) = acting("!")
    queue._expected = {1: 4, 3: 6}
    with pytest.raises(ManagerError):
        queue.carry_out(PLACES)
    assert (len(done), told, queue._expected) == (1, [], {3: 6})  # what was done is not known


def test_advice_is_written_down_when_it_is_another() -> None:
    """Leases are none, and what was not advised meanwhile is told again."""
    queue, (done, told) = acting(mode="advise")
    first, other = PLACES[0], Change(Verb.PRIORITY, 1, -6, 3, "place 1")
    release = Change(Verb.RELEASE, 1, -5)
    for changes, news in (
        (PLACES, [first]), (PLACES, []), ([other, release], [other, release]), ([other], []), (PLACES, [first]),
        ([], []), (PLACES, [first]),
    ):  # fmt: skip
        told.clear()
        queue.carry_out(changes)
        assert told == [("would", news)]
    assert (done, queue.record.touched) == ([], {})


def placed(*rows: int, leases: Any = (), by_hand: Any = (), **changes: dict[str, Any]) -> list[Any]:
    """Changes that bring jobs of these rows to the front, of four of which 1 comes first."""
    queue, _ = made(held=True)
    jobs = tuple(job(k, **changes.get(f"j{k}", {})) for k in (1, 2, 3, 4))
    queue.snapshot = Snapshot(100.0, jobs, ())
    queue.rows.see(jobs, lambda _: True, 100.0)
    queue._until_s, queue.by_hand = dict.fromkeys(leases, 150.0), set(by_hand)
    queue.record.touched.update({k: {"nice": 0, "lease": True} for k in leases})
    plan = Plan().because("x", "y", order=np.array([queue.rows.row[k] for k in rows], dtype=np.int64))
    return [(change.verb, change.job, change.value) for change in queue._places(plan)]


def test_jobs_that_start_next_change_places_with_those_in_front() -> None:
    """Only free ones do: none that is held, limited, not yet eligible, or that somebody else changed."""
    to, release = Verb.PRIORITY, Verb.RELEASE
    assert placed(3) == [(to, 3, -2), (to, 1, 2)]
    assert placed(1, 2) == []
    assert placed() == []
    assert placed(2, 3, j2={"held": True}) == [(to, 3, -2), (to, 1, 2)]
    assert placed(2, 3, j2={"limited": True}) == [(to, 3, -2), (to, 1, 2)]
    assert placed(2, 3, j2={"eligible_s": 100.5}) == [(to, 3, -2), (to, 1, 2)]
    assert placed(2, 3, by_hand=[2]) == [(to, 3, -2), (to, 1, 2)]
    assert placed(2, j2={"eligible_s": 100.0}) == [(to, 2, -1), (to, 1, 1)]
    # A lease is let go before a job that has none, and else kept.
    assert placed(2, 3, leases=[2], j2={"eligible_s": 100.5}) == [
        (release, 2, 0), (to, 2, -1), (to, 3, -1), (to, 1, 2)
    ]  # fmt: skip
    assert placed(1, 2, 3, 4, leases=[1, 3, 4]) == [(release, 1, 0)]
    assert placed(1, 2, 3, leases=[2, 3]) == []
    assert placed(1, 2, leases=[1, 2]) == []


def test_a_plan_is_carried_out_leases_first() -> None:
    queue, (done, _) = acting()
    held = (job(7, **HELD), *queue.snapshot.jobs)
    queue.rows.see(held, lambda _: True, 100.0)
    rows = queue.rows.row
    plan = Plan(allocation=Allocation.of([(rows[1], [0])]))
    queue._until_s = {1: 300.0}
    assert queue.apply(plan.because("x", "y", order=np.array([rows[3]]))) == []
    assert [(change.verb, change.job) for change in done[0]] == [
        (Verb.HOLD, 7), (Verb.RELEASE, 1), (Verb.PRIORITY, 3), (Verb.PRIORITY, 1)
    ]  # fmt: skip


# -- what would start next -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InOrder(Stage):
    """Starts waiting jobs in their order until one does not fit, and notes at what time."""

    name: ClassVar[str] = "in-order"
    kind: ClassVar[Kind] = "allocation"

    asked_s: list[float]

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Begin with the first one."""
        self.asked_s.append(observation.time_s)
        free, given = np.flatnonzero(observation.gpus.job == -1).tolist(), []
        for row in observation.waiting.tolist():
            most = int(observation.jobs.gpus_requested[row])
            if most > len(free):
                break
            given.append((row, free[:most]))
            free = free[most:]
        return plan.with_(allocation=Allocation.of(given)), memory


def queue_of(free: int = 0) -> Observation:
    """At 100 s: row 0 holds two GPUs for 10 s more; 1, 2 and 3 wait for one, two and one, for 5, 7 and 3 s."""
    gpus = 2 + free
    jobs = Jobs.of(
        id=np.arange(4) + 5, state=np.array([RUNNING, WAITING, WAITING, WAITING]), rigid=np.ones(4, dtype=bool),
        gpus_requested=np.array([2, 1, 2, 1]), gpus_held=np.array([2, 0, 0, 0]),
        service_s=np.array([10.0, 5.0, 7.0, 3.0]), arrival_s=np.zeros(4),
    )  # fmt: skip
    table = Gpus.of(
        node=np.zeros(gpus),
        job=np.array([0, 0, *[-1] * free]),
        share_free=np.array([0.0, 0.0, *[1.0] * free]),
    )
    nodes = Nodes.of(gpus=[gpus], first_gpu=[0], gpus_free=[free], up=[True])
    return Observation.of(100.0, nodes=nodes, gpus=table, jobs=jobs)


@pytest.mark.parametrize(
    ("bounds", "order", "asked_s"),
    [
        # At 110 s the first starts alone (the second does not fit), at 115 s the second, at 122 s the third.
        ({}, [1, 2, 3], [110.0, 115.0, 122.0]),
        ({"least": 1, "horizon_s": 14.0}, [1, 2], [110.0, 115.0]),
        ({"least": 1, "horizon_s": 15.0}, [1, 2, 3], [110.0, 115.0, 122.0]),
        ({"least": 1, "horizon_s": 9.0}, [1], [110.0]),
        ({"least": 2, "horizon_s": 9.0}, [1, 2], [110.0, 115.0]),
        ({"least": 3, "horizon_s": 9.0}, [1, 2, 3], [110.0, 115.0, 122.0]),
        ({"most": 2}, [1, 2], [110.0, 115.0]),
        ({"most": 1}, [1], [110.0]),
    ],
)
def test_jobs_that_follow_are_those_that_the_policy_starts_when_others_end(
    bounds: dict[str, Any], order: list[int], asked_s: list[float]
) -> None:
    seen, stage = queue_of(), InOrder([])
    ahead = Ahead(Policy("p", (stage,)), **bounds)
    plan, memory = ahead.refine(seen, Plan(), {"kept": 1})
    assert (order_of(plan), memory) == (order, {"kept": 1})
    assert stage.asked_s == asked_s
    (reason,) = plan.reasons
    assert (reason.stage, reason.text) == ("ahead", f"the next {len(order)} of 3")
    assert (seen.time_s, seen.gpus.job.tolist(), seen.waiting.tolist()) == (100.0, [0, 0], [1, 2, 3])
    assert seen.jobs.service_s.tolist() == [10.0, 5.0, 7.0, 3.0]  # of a copy time went on


@pytest.mark.parametrize(("running", "order"), [(3, [3]), (4, [4]), (5, [])])
def test_no_more_than_four_jobs_end_for_each_that_may_start(running: int, order: list[int]) -> None:
    """One waits for all GPUs, of which one comes free each second."""
    rows = np.arange(running + 1)
    jobs = Jobs.of(
        id=rows, state=np.where(rows < running, RUNNING, WAITING), rigid=np.ones(running + 1, dtype=bool),
        gpus_requested=np.where(rows < running, 1, running), gpus_held=(rows < running).astype(int),
        service_s=rows + 1.0, arrival_s=np.zeros(running + 1),
    )  # fmt: skip
    gpus = Gpus.of(node=np.zeros(running), job=rows[:-1], share_free=np.zeros(running))
    nodes = Nodes.of(gpus=[running], first_gpu=[0], gpus_free=[0], up=[True])
    seen = Observation.of(100.0, nodes=nodes, gpus=gpus, jobs=jobs)
    assert order_of(Ahead(Policy("p", (InOrder([]),)), most=1).refine(seen, Plan(), {})[0]) == order


def test_what_a_plan_starts_comes_first() -> None:
    seen, stage = queue_of(free=1), InOrder([])
    ahead = Ahead(Policy("p", (stage,)))
    starts = Plan(allocation=Allocation.of([(3, [2])]))
    assert order_of(ahead.refine(seen, starts, {})[0]) == [3, 1, 2]
    assert stage.asked_s == [103.0, 108.0, 110.0]
    nothing = Plan(allocation=Allocation.of([(2, []), (3, [2])]))  # a job that waits gets none
    assert order_of(ahead.refine(seen, nothing, {})[0]) == [3, 1, 2]
    stops = Plan(allocation=Allocation.of([(0, []), (2, [0, 1])]))
    assert order_of(ahead.refine(seen, stops, {})[0])[:1] == [2]
    everything = Plan(allocation=Allocation.of([(0, []), (2, [0, 1]), (1, [2])]))
    few = Ahead(Policy("p", (stage,)), most=1)
    stage.asked_s.clear()
    plan, _ = few.refine(seen, everything, {})
    assert (order_of(plan), stage.asked_s) == ([2], [])
    assert plan.reasons[-1].text == "the next 1 of 3"
    assert (ahead.horizon_s, ahead.least, ahead.most) == (60.0, 8, 128)


def test_a_policy_that_drives_a_queue_says_the_order_last() -> None:
    stage = InOrder([])
    policy = with_order(Policy("p", (stage,)))
    assert (policy.name, policy.stages) == ("p", (stage, Ahead(Policy("p", (stage,)))))
    assert order_of(Plan()) == []
    assert order_of(Plan().because("a", "b", other=3).because("c", "d", order=np.array([4, 2]))) == [4, 2]


def test_a_plan_is_carried_out_on_the_copy() -> None:
    """The job that runs goes back to the queue, and one that waited gets its GPUs."""
    seen = queue_of(free=1)
    future = _Future(seen, Allocation.of([(0, []), (2, [0, 2])]))
    copy = future.seen
    assert (copy.gpus.job.tolist(), copy.gpus.share_free.tolist()) == ([2, -1, 2], [0.0, 1.0, 0.0])
    assert future.free.tolist() == [1]
    assert (copy.waiting.tolist(), copy.running.tolist()) == ([0, 1, 3], [2])
    assert copy.jobs.gpus_held.tolist() == [0, 0, 2, 0]
    assert (copy.jobs.queued_since_s[0], copy.jobs.started_s[2]) == (100.0, 100.0)
    assert seen.gpus.job.tolist() == [0, 0, -1]
    moved = _Future(seen, Allocation.of([(0, [2])]))  # it goes on, on another one
    assert (moved.seen.gpus.job.tolist(), moved.free.tolist()) == ([-1, -1, 0], [2])
    assert moved.seen.running.tolist() == [0]
    assert _Future(seen, None).seen.refused == ()
