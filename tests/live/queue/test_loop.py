"""The loop in front of a fake queue, whose clock the tests set: order, failures, requeues, twins."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise import cli
from equipoise.live.queue.lease import to_give_back
from equipoise.live.queue.loop import Guard, Scheduler
from equipoise.live.queue.manager import Phase
from equipoise.live.queue.options import QueueOptions
from equipoise.live.queue.record import BusyError, Record, Touched
from equipoise.live.queue.rows import FOREIGN
from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage, refine
from equipoise.policies.observation import Observation, Refusal
from equipoise.policies.queues.ahead import FREE_NEXT, order_of, with_order
from equipoise.policies.record.journal import read, replay
from equipoise.policies.registry import make_policy
from equipoise.sim.scenario.tree import InputError
from equipoise.study.twin.queue import orders, read_queue, sentence, verdict
from tests.live.queue.fake import FakeQueue


@dataclass
class Case:
    queue: FakeQueue
    folder: Path
    scheduler: Scheduler

    def step(self, seconds: float = 1.0) -> None:
        """Time goes on, and the scheduler looks."""
        self.queue.advance(self.queue.now_s + seconds)
        self.scheduler.step()

    def until_over(self, seconds: float = 1.0) -> None:
        for _ in range(2000):
            if all(job["state"] in ("COMPLETED", "CANCELLED") for job in self.queue.jobs.values()):
                self.scheduler.step()
                return
            self.step(seconds)
        raise AssertionError([job for job in self.queue.jobs.values() if job["state"] != "COMPLETED"])

    def starts(self) -> list[str]:
        """Names in order of their starts."""
        jobs = [job for job in self.queue.jobs.values() if not math.isnan(job["start"])]
        return [job["name"] for job in sorted(jobs, key=lambda job: (job["start"], job["id"]))]

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [e for e in map(json.loads, lines) if e.get("event") == kind]


Make = Callable[..., Case]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Make]:
    records: list[Record] = []

    def make(policy: str | Policy = "sjf", queue: FakeQueue | None = None, **options: Any) -> Case:
        for record in records:
            record.close()
        queue = queue or FakeQueue()
        chosen = make_policy(policy) if isinstance(policy, str) else policy
        records.append(Record(tmp_path))
        options = {"mode": "act", "changes_per_s": 1e6, "budget_s": 120.0} | options
        scheduler = Scheduler(queue, chosen, QueueOptions(**options), records[-1])
        records[-1].event("begun", policy=chosen.name)
        return Case(queue, tmp_path, scheduler)

    yield make
    for record in records:
        record.close()


ESTIMATES = {"a": 60.0, "b": 20.0, "c": 40.0, "d": 30.0, "block": 10.0}


def submit_all(queue: FakeQueue, **options: Any) -> None:
    """A job that holds all GPUs, then four whose order of submission is not their order of length."""
    queue.submit(10.0, 8, "block")
    for name in "abcd":
        queue.submit(ESTIMATES[name], 8, name, **options)


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fifo", "abcd"), ("sjf", "bdca"), ("sjf-greedy", "bdca"), ("srtf", "bdca"), ("easy", "abcd"), ("s4", "bdca")],
)
def test_jobs_start_in_the_order_of_the_policy(case: Make, policy: str, order: str) -> None:
    c = case(policy, estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    c.until_over()
    assert c.starts() == ["block", *order]


def test_the_time_limit_is_the_estimate_where_there_is_no_other(case: Make) -> None:
    c = case("sjf")
    c.queue.submit(10.0, 8, "block")
    for name, minutes in (("long", 20), ("short", 5), ("none", math.inf)):
        c.queue.submit(10.0, 8, name, limit_s=60.0 * minutes)
    c.step()
    c.until_over()
    assert c.starts() == ["block", "short", "long", "none"]
    assert [(e["name"], e.get("estimate_s"), e["estimate_from"]) for e in c.events("job")][1:] == [
        ("long", 1200.0, "time limit"),
        ("short", 300.0, "time limit"),
        ("none", None, "none"),
    ]


def test_slurm_needs_no_second_word_when_gpus_come_free(case: Make) -> None:
    """The order is there before: the next three start while nobody looks."""
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    c.queue.advance(c.queue.now_s + 200.0)
    assert c.starts() == ["block", *"bdca"]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_observe_and_advise_touch_nothing(case: Make, mode: str) -> None:
    c = case("sjf", mode=mode, estimates=ESTIMATES)
    c.queue.carry_out = None  # type: ignore[assignment, method-assign] # nobody may call it
    submit_all(c.queue)
    c.step()
    c.until_over()
    assert c.starts() == ["block", *"abcd"]
    assert bool(c.events("would")) == (mode == "advise")
    assert len(c.events("start")) == len(c.events("end")) == 5
    assert not (c.folder / "touched.json").exists()


def test_advice_is_written_down_once(case: Make) -> None:
    c = case("sjf", mode="advise", estimates=ESTIMATES, decide_s=1.0)
    submit_all(c.queue)
    for _ in range(5):
        c.step()
    told = [(e["id"], e["value"]) for e in c.events("would")]
    assert told
    assert len(told) == len(set(told))


def test_decisions_are_a_journal_that_replays(case: Make) -> None:
    c = case("s4", estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    c.until_over()
    path = c.folder / "decisions.jsonl"
    assert len(list(read(path))) == c.scheduler.decisions > 5
    assert replay(c.scheduler.decider.policy, path) == []


def test_a_gang_that_does_not_fit_is_passed_over_as_the_policy_says(case: Make) -> None:
    """easy: what ends before the gang can start goes first, what would delay it does not."""
    c = case("easy", estimates={"half": 50.0, "gang": 10.0, "short": 20.0, "long": 90.0})
    for name, gpus, seconds in (("half", 4, 50.0), ("gang", 8, 10.0), ("long", 4, 90.0), ("short", 4, 20.0)):
        c.queue.submit(seconds, gpus, name)
    c.step()
    c.until_over()
    assert c.starts() == ["half", "short", "gang", "long"]


# -- what fails ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failing(Stage):
    name: ClassVar[str] = "failing"
    kind: ClassVar[Kind] = "allocation"
    after: int = 1

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        if len(observation.jobs) > self.after:
            raise ValueError("nonsense")
        return plan, memory


class Stuck(Failing):
    held = threading.Event()

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        self.held.wait()
        return plan, memory


@pytest.mark.parametrize("stage", [Failing(), Stuck()])
def test_a_policy_that_fails_or_is_slow_leaves_the_queue_to_slurm(case: Make, stage: Stage) -> None:
    Stuck.held.clear()
    c = case(Policy("bad", (stage,)), decide_s=1.0, budget_s=0.05)
    submit_all(c.queue)
    for _ in range(12):
        c.step(0.1)
    c.until_over()
    Stuck.held.set()
    assert c.starts() == ["block", *"abcd"]
    assert c.events("failed")


def test_after_three_failures_what_was_changed_is_given_back(case: Make) -> None:
    good, bad = make_policy("sjf").stages[0], Failing(after=5)
    c = case(Policy("sjf+bad", (good, bad)), estimates=ESTIMATES, decide_s=0.0)
    submit_all(c.queue)
    c.step()
    assert any(job["nice"] for job in c.queue.jobs.values())
    c.queue.submit(5.0, 1, "one more")
    for _ in range(12):
        c.step(0.1)
    assert not any(job["nice"] for job in c.queue.jobs.values())
    assert [e["why"] for e in c.events("given back")] == ["the policy failed 3 times in a row"]


def test_a_lost_connection_is_waited_for(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.queue.down = True
    c.step()
    c.step()
    c.queue.down = False
    c.until_over()
    assert c.starts() == ["block", *"bdca"]
    assert len(c.events("lost")) == 2
    assert len(c.events("found again")) == 1


def test_the_end_gives_everything_back(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    assert any(job["nice"] for job in c.queue.jobs.values())
    assert c.scheduler.give_back("stopped")
    assert not any(job["nice"] for job in c.queue.jobs.values())
    assert Touched.read(c.folder) == {}


# -- what others do ---------------------------------------------------------------------------------------------


def test_a_job_submitted_held_stays_its_users(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    held = c.queue.submit(5.0, 1, "held", hold=True)
    c.step()
    assert (c.queue.jobs[held]["priority"], c.events("did")) == (0, [])


def test_what_a_killed_scheduler_left_is_given_back_by_whoever_comes(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    left = Touched.read(c.folder)  # the process is gone, this is what there is
    assert left
    c.queue.carry_out(to_give_back(c.queue, left))
    assert not any(job["nice"] for job in c.queue.jobs.values())
    assert to_give_back(c.queue, left) == []  # though they wait
    c.queue.advance(c.queue.now_s + 1000.0)
    assert c.starts() == ["block", *"abcd"]


def test_a_new_scheduler_takes_over_what_the_last_one_left(case: Make) -> None:
    first = case("sjf", estimates=ESTIMATES)
    submit_all(first.queue)
    first.step()
    second = case("sjf", first.queue, estimates=ESTIMATES)
    second.until_over()
    assert second.starts() == ["block", *"bdca"]
    assert second.events("left alone") == []


def test_a_job_held_by_hand_is_not_set_free(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    c.queue.control("hold 3")
    for _ in range(100):
        c.step()
    assert c.starts() == ["block", *"dca"]
    c.queue.control("release 3")
    c.until_over()
    assert c.starts() == ["block", *"dcab"]


def test_a_job_whose_nice_somebody_changed_is_left_alone(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    c.queue.control("update jobid=3 nice=5000")
    c.until_over()
    assert c.queue.jobs[3]["nice"] == 5000
    assert c.starts() == ["block", *"dcab"]
    assert [e["id"] for e in c.events("left alone")] == [3]


def test_what_a_user_changes_about_a_waiting_job_counts(case: Make) -> None:
    c = case("sjf")
    c.queue.submit(30.0, 8, "block")
    for name, minutes in (("a", 20), ("b", 10), ("c", 30)):
        c.queue.submit(5.0, 8, name, limit_s=60.0 * minutes)
    c.step()
    c.queue.jobs[4].update(limit=300.0, gpus=4)
    c.until_over()
    assert c.starts() == ["block", *"cba"]
    assert [(e["id"], e["gpus"], e["estimate_s"]) for e in c.events("changed")] == [(4, 4, 300.0)]


def test_gpus_that_others_hold_are_not_free(case: Make) -> None:
    """Jobs of another partition on the same node: what they hold shows in the node alone."""
    c = case("sjf")
    c.queue.submit(30.0, 3, "mine")
    look = c.queue.snapshot
    with_others = look()._replace(nodes=(look().nodes[0]._replace(gpus_used=5),))
    c.queue.advance(c.queue.now_s + 1.0)
    taken = look()._replace(nodes=with_others.nodes)
    c.queue.snapshot = lambda: taken  # type: ignore[method-assign]
    c.scheduler.world.look()
    c.scheduler.world.make_new_tables()
    o = c.scheduler.world.observe()
    assert o.gpus.job.tolist() == [0, 0, 0, -2, -2, -1, -1, -1]
    assert (o.nodes.gpus_free.tolist(), o.gpus.share_free.tolist()) == ([3], [0.0] * 5 + [1.0] * 3)


def test_gpus_of_others_are_expected_when_their_limits_end(case: Make) -> None:
    """easy: the gang waits for the 6 GPUs of another account's job until 300 s, and 200 s fit before it, 400 do not.

    So does the twin, whose waits are those of the jobs to schedule: 250, 310 and 0 s.
    """
    c = case("easy")
    theirs = c.queue.submit(250.0, 6, "theirs", limit_s=300.0)
    c.queue.jobs[theirs]["mine"] = False
    c.queue.advance(c.queue.now_s)
    for name, gpus, limit_s in (("gang", 8, 60.0), ("long", 2, 400.0), ("fits", 2, 200.0)):
        c.queue.submit(60.0, gpus, name, limit_s=limit_s)
    c.step()
    c.until_over()
    assert c.starts() == ["theirs", "fits", "gang", "long"]
    c.scheduler.record.site({"conf.txt": SITE.encode()})
    found = orders(read_queue(c.folder), make_policy("easy"))
    assert found.run.name == ("gang", "long", "fits")
    assert np.abs(found.steered_s - [250.0, 310.0, 0.0]).max() < 2.0


def test_a_job_that_its_user_queues_again_gets_its_nice_back(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    c.step(10.0)
    (job,) = (job for job in c.queue.jobs.values() if job["state"] == "RUNNING" and job["nice"])
    job["state"] = "COMPLETING"  # what Slurm shows first
    c.step(0.0)
    job.update(state="PENDING", start=math.nan, end=math.nan)
    c.scheduler.give_back("stopped")
    assert job["nice"] == 0


def test_a_full_journal_is_put_aside_and_the_twin_reads_both_parts(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    c.scheduler.record.most_bytes = 3000.0
    submit_all(c.queue)
    c.step()
    c.until_over()
    kept = [c.folder / name for name in ("events.jsonl", "events.1.jsonl", "decisions.jsonl", "decisions.1.jsonl")]
    assert all(path.exists() for path in kept)
    assert sum(path.stat().st_size for path in kept[:2]) < 4000
    assert len(read_queue(c.folder).id) > 1


def test_a_job_that_a_limit_keeps_is_not_there_until_it_may_start(case: Make) -> None:
    c = case("sjf")
    first = c.queue.submit(30.0, 8, "block")
    c.queue.submit(5.0, 8, "a")
    look, limited = c.queue.snapshot, True

    def snapshot() -> Any:
        found = look()
        jobs = tuple(j._replace(limited=limited and j.id != first) for j in found.jobs)
        return found._replace(jobs=jobs)

    c.queue.snapshot = snapshot  # type: ignore[method-assign]
    c.step()
    assert c.scheduler.world.observe().waiting.tolist() == []
    limited = False
    c.step()
    o = c.scheduler.world.observe()
    assert [int(o.jobs.id[row]) for row in o.waiting] == [2]
    c.until_over()
    assert c.starts() == ["block", "a"]


def test_a_cancelled_job_is_forgotten(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    c.queue.jobs[3]["state"] = "CANCELLED"
    c.until_over()
    assert c.starts() == ["block", *"dca"]
    assert [e["state"] for e in c.events("end") if e["id"] == 3] == ["CANCELLED"]


# -- stopping jobs, rate, tables ---------------------------------------------------------------------------------


def test_running_jobs_are_stopped_only_when_that_was_allowed(case: Make) -> None:
    for requeue, order in ((False, ["long", "short"]), (True, ["short", "long"])):
        c = case("las(thresholds_gpu_s=[80])", FakeQueue(), requeue=requeue, estimates={"long": 500.0, "short": 5.0})
        c.queue.submit(500.0, 8, "long")
        c.step()
        c.queue.advance(c.queue.now_s + 30.0)
        c.queue.submit(5.0, 8, "short")
        c.until_over()
        assert c.starts() == order
    assert [e["id"] for e in c.events("requeued")] == [1]
    with pytest.raises(InputError, match="requeued; a twin of their remaining work is not possible"):
        read_queue(c.folder)


def test_what_the_manager_says_against_a_plan_is_told_with_the_next_observation(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.queue.said = "Access/permission denied"
    c.step()
    c.queue.said = ""
    c.until_over()
    seen = [entry.decision.observation.refused for entry in read(c.folder / "decisions.jsonl")]
    told = (Refusal("changes", "fake: Access/permission denied"),)
    assert seen[:2] == [(), told]
    assert set(seen[2:]) == {()}


def test_what_is_refused_at_once_is_told_once(case: Make) -> None:
    c = case("las(thresholds_gpu_s=[80])", estimates={"long": 500.0, "short": 5.0})
    c.queue.submit(500.0, 8, "long")
    c.step()
    c.queue.advance(c.queue.now_s + 30.0)
    c.queue.submit(5.0, 8, "short")
    c.step()
    c.until_over()
    entries = list(read(c.folder / "decisions.jsonl"))
    assert Refusal("stop", "job 1: requeue is not allowed") in {r for e in entries for r in e.refused}
    assert not any(e.decision.observation.refused for e in entries)


def test_no_more_changes_than_allowed_are_made_and_the_rest_follows(case: Make) -> None:
    c = case("sjf", estimates={f"job-{k}": 100.0 - k for k in range(30)}, changes_per_s=1e-9, decide_s=1e9)
    c.queue.submit(50.0, 8, "block")
    for k in range(30):
        c.queue.submit(5.0, 8, f"job-{k}")
    world = c.scheduler.world
    for made in (1, 2):
        world._budget = 1.0
        c.step(0.01)
        assert world.behind
        assert len(c.events("put off")) == len(c.events("did")) == made


def test_ended_jobs_are_forgotten_in_the_end(case: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.live.queue.world._DONE_KEPT", 10)
    c = case("sjf", estimates={f"job-{k}": 5.0 for k in range(60)})
    for k in range(60):
        c.queue.submit(5.0, 8, f"job-{k}")
        c.step(2.0)
    c.until_over()
    assert len(c.scheduler.world.rows.table) < 30
    assert len(c.events("end")) == len(c.events("start")) == len(c.events("job")) == 60


def test_gpus_that_come_free_later_than_their_job_ended_are_news(case: Make) -> None:
    c = case("fifo")
    c.queue.submit(5.0, 8, "block")
    c.step()
    true, late = c.queue.snapshot, True

    def snapshot() -> Any:
        found = true()
        used = tuple(node._replace(gpus_used=8) for node in found.nodes)
        return found._replace(nodes=used) if late else found

    c.queue.snapshot = snapshot  # type: ignore[method-assign]
    c.step(10.0)
    before = c.scheduler.decisions
    c.step()
    assert c.scheduler.decisions == before
    late = False
    c.step()
    assert c.scheduler.decisions == before + 1


def test_gpus_of_a_job_that_is_over_are_the_next_to_be_free(case: Make) -> None:
    """Between a job's end and the release of its GPUs, the gang that waits for them still comes first."""
    c = case("sjf-greedy", estimates={"over": 5.0, "runs": 60.0, "gang": 10.0, "small": 20.0})
    c.queue.submit(5.0, 6, "over")
    c.queue.submit(60.0, 2, "runs")
    gang, small = c.queue.submit(10.0, 6, "gang"), c.queue.submit(20.0, 2, "small")
    c.step()
    true, first = c.queue.snapshot, c.queue.snapshot().jobs
    c.queue._start = lambda: None  # type: ignore[method-assign]

    def snapshot() -> Any:
        found, ending = true(), first[0]._replace(phase=Phase.ENDING)
        jobs = (ending, *(job for job in found.jobs if job.id != ending.id))
        return found._replace(jobs=jobs, nodes=tuple(node._replace(gpus_used=8) for node in found.nodes))

    c.queue.snapshot = snapshot  # type: ignore[method-assign]
    c.step(10.0)
    seen = c.scheduler.world.observe()
    assert [np.count_nonzero(seen.gpus.job == held) for held in (FREE_NEXT, FOREIGN, 1)] == [6, 0, 2]
    policy = with_order(make_policy("sjf-greedy"))
    plan = refine(policy, seen, policy.initial()).plan
    assert plan.allocation is None
    assert seen.jobs.id[order_of(plan)].tolist() == [gang, small]


def test_two_schedulers_do_not_share_a_record(case: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    c = case("sjf")
    monkeypatch.setattr("equipoise.live.queue.record._PATIENCE_S", 0.0)
    with pytest.raises(BusyError, match="another scheduler"):
        Record(c.folder)


def test_a_policy_that_does_worse_than_the_queues_own_order_steps_back(case: Make) -> None:
    c = case("sjf", estimates=ESTIMATES)
    c.scheduler.guard = Guard([sys.executable, "-c", 'print(\'{"why": "it waits longer"}\')'], least=1, every_s=0.0)
    submit_all(c.queue)
    c.step()
    assert any(job["nice"] for job in c.queue.jobs.values())
    for _ in range(2000):
        if c.scheduler.stepped_back:
            break
        c.step(0.01 if c.queue.now_s > 1011.0 else 1.0)
        time.sleep(0.01)
    assert [e["why"] for e in c.events("given back")] == ["it waits longer"]
    assert not any(job["nice"] for job in c.queue.jobs.values() if job["state"] == "PENDING")
    made = len(c.events("did"))
    c.until_over()
    assert len(c.events("did")) == made


# -- the twin ----------------------------------------------------------------------------------------------------


SITE = """\
ClusterName=lab
SchedulerType=sched/backfill
PriorityType=priority/multifactor
PriorityWeightQOS=1000
NodeName=vm Gres=gpu:8 CPUs=64 RealMemory=20000
PartitionName=main Nodes=ALL Default=YES
"""


def test_a_record_says_what_a_policy_would_have_changed_and_for_whom(case: Make, capsys: Any) -> None:
    """Behind one of 10 s wait, for all GPUs, a (60 s) and b (20 s), and c (40 s) and d (30 s) of QOS urgent.

    Own order: c 9, d 49, a 79, b 139 s; sjf within a QOS: d 9, c 39, b 79, a 99 s. (226 - 276) / 5 = -10 s, urgent
    (48 - 58) / 2 = -5 s.
    """
    c = case("sjf", mode="observe")
    c.queue.submit(10.0, 8, "block", limit_s=60.0)
    c.queue.advance(c.queue.now_s)
    c.queue.advance(c.queue.now_s + 1.0)
    for name in "abcd":
        job = c.queue.submit(ESTIMATES[name], 8, name, limit_s=ESTIMATES[name])
        c.queue.jobs[job]["qos"] = "urgent" if name in "cd" else "normal"
        c.queue.jobs[job]["priority"] += 10**6 * (name in "cd")
    c.step(0.0)
    c.until_over()
    c.scheduler.record.site({"conf.txt": SITE.encode(), "qos.txt": b"Name|Priority\nnormal|0\nurgent|5\n"})
    found = orders(read_queue(c.folder, make_policy("sjf")), make_policy("sjf"))
    assert found.measured_s.tolist() == [0.0, 79.0, 139.0, 9.0, 49.0]
    assert np.abs(found.own_s - found.measured_s).max() < 1.5
    assert np.abs(found.steered_s - [0.0, 99.0, 79.0, 39.0, 9.0]).max() < 1.5
    assert "changed the mean wait of 5 jobs by -10 s" in sentence(found)
    assert "of the 2 urgent ones by -5 s" in sentence(found)
    assert verdict(read_queue(c.folder))["why"] == ""
    assert cli.main(["twin", str(c.folder), "--policy", "sjf"]) == cli.OK
    assert "changed the mean wait of 5 jobs by -10 s" in capsys.readouterr().out
    assert cli.main(["twin", str(c.folder), "--tolerance", "0.05", "--format", "json", "--policy", "sjf"]) == cli.OK
    told = {job["name"]: job["steered_s"] for job in json.loads(capsys.readouterr().out)["jobs"]}
    assert sorted(told, key=lambda name: told[name]) == ["block", *"dcba"[:2], "b", "a"]


def test_a_policy_whose_estimates_are_wrong_is_found_out_while_jobs_wait(case: Make) -> None:
    """Twelve jobs of 10 s have limits of 1000 s, twelve that come later and take 100 s have 500 s: sjf starts these."""
    c = case("sjf")
    for seconds, limit_s in ((10.0, 1000.0), (100.0, 500.0)):
        for _ in range(12):
            c.queue.submit(seconds, 8, limit_s=limit_s)
    c.scheduler.record.site({"conf.txt": SITE.encode()})
    c.scheduler.step()
    while c.scheduler.world.rows.ended < 21:
        c.step(5.0)
    found = verdict(read_queue(c.folder, whole=True))
    assert str(found["why"]).startswith("24 jobs have waited")
    # At 1290 s one runs and two wait, which are expected to take 0.2 of their limits, as the median does. Waits so far:
    # sjf 0, 100 ... 1100, 1200, 1210 ... 1290, twice 1290; own order 0, 10 ... 90, 290, 490, 690 ... 1290, five 1290.
    waits_s = [found[name] for name in ("measured_s", "own_s", "steered_s")]
    assert waits_s == [901.25, 608.75, 901.25]


def test_the_command_twin_says_what_is_missing(case: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    c = case("sjf", estimates=ESTIMATES)
    submit_all(c.queue)
    c.step()
    c.until_over()
    assert cli.main(["twin", str(c.folder)]) == cli.WRONG_INPUT
    assert "no description of the site" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "events.jsonl").write_text('{"format":"equipoise-queue","version":1}\n')
    assert cli.main(["twin", str(tmp_path / "empty")]) == cli.WRONG_INPUT
    assert capsys.readouterr().err.endswith("events.jsonl: no scheduler has looked at a queue here\n")
