"""Jobs as rows, GPUs as their holders, and places as nice values: by hand, without a queue."""

from __future__ import annotations

import math
from typing import Any

import pytest

from equipoise.live.queue.apply import exchange
from equipoise.live.queue.machines import FOREIGN, FREE_NEXT, Machines
from equipoise.live.queue.manager import (
    Change,
    Phase,
    QueuedJob,
    QueueNode,
    Verb,
)
from equipoise.live.queue.options import QueueOptions
from equipoise.live.queue.rows import JobRows
from equipoise.policies.observation import DONE, RUNNING, WAITING

NAN = math.nan


def job(number: int, phase: Phase = Phase.WAITING, **changes: Any) -> QueuedJob:
    """A job of two GPUs and at most 600 s, submitted at 10 s and eligible at once."""
    values: dict[str, Any] = {
        "name": f"j{number}", "user": "ada", "state": phase.upper(), "gpus": 2, "nodes": (), "submit_s": 10.0,
        "eligible_s": 10.0, "start_s": NAN, "end_s": NAN, "limit_s": 600.0, "priority": 100 - number, "nice": 0,
        "held": False, "limited": False, "steerable": True, "requeues": True, "reason": "None",
    }  # fmt: skip
    return QueuedJob(id=number, phase=phase, **(values | changes))


def running(number: int, start_s: float, **changes: Any) -> QueuedJob:
    return job(number, Phase.RUNNING, start_s=start_s, nodes=("a",), **changes)


class Seen:
    """Rows, with what they told."""

    def __init__(self, **options: Any) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.rows = JobRows(
            QueueOptions(**options), lambda event, **values: self.told.append((event, values))
        )

    def at(self, now_s: float, *jobs: QueuedJob, waits: bool = True) -> bool:
        self.told.clear()
        return self.rows.see(jobs, lambda _: waits, now_s)

    def row(self, number: int, *names: str) -> list[Any]:
        """Columns of a job."""
        at = self.rows.row[number]
        return [getattr(self.rows.table, name)[at].item() for name in names]

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.told]


def test_a_job_that_waits_and_starts_and_ends() -> None:
    seen = Seen()
    assert seen.at(20.0, job(1, eligible_s=12.0))
    named = (
        "arrival_s",
        "queued_since_s",
        "state",
        "gpus_requested",
        "gpus_held",
        "duration_s",
        "service_s",
        "waited_s",
    )
    assert seen.row(1, *named) == [12.0, 12.0, WAITING, 2, 0, 600.0, 600.0, 0.0]
    assert seen.told == [
        ("job", {
            "id": 1, "name": "j1", "user": "ada", "gpus": 2, "submit_s": 10.0, "arrival_s": 12.0,
            "estimate_s": 600.0, "estimate_from": "time limit",
        })
    ]  # fmt: skip
    assert not seen.at(21.0, job(1, eligible_s=12.0))
    assert seen.at(30.0, running(1, 27.0))
    assert seen.told == [("start", {"id": 1, "start_s": 27.0, "nodes": ["a"]})]
    assert seen.row(1, "state", "started_s", "gpus_held", "waited_s") == [RUNNING, 27.0, 2, 15.0]
    assert not seen.at(31.0, running(1, 27.0))
    assert seen.at(90.0, job(1, Phase.ENDED, start_s=27.0, end_s=88.0, nodes=("a",), state="FAILED"))
    assert seen.told == [("end", {"id": 1, "start_s": 27.0, "end_s": 88.0, "state": "FAILED"})]
    assert seen.row(1, "state", "gpus_held", "progress") == [DONE, 0, 1.0]
    assert not seen.at(91.0, job(1, Phase.ENDED))
    assert seen.rows.jobs == {}


def test_a_job_that_is_running_already_or_goes_unseen() -> None:
    seen = Seen(estimates={"j1": 50.0})
    assert seen.at(40.0, running(1, 25.0), running(2, 5.0, limit_s=math.inf))
    named = "arrival_s", "state", "started_s", "queued_since_s", "waited_s", "gpus_held", "duration_s"
    assert seen.row(1, *named) == [10.0, RUNNING, 25.0, 25.0, 15.0, 2, 50.0]
    assert seen.row(2, "started_s", "waited_s") == [5.0, 0.0]  # by its clock it began before it was submitted
    assert math.isnan(*seen.row(2, "duration_s"))
    assert [values["estimate_from"] for event, values in seen.told if event == "job"] == ["estimates", "none"]
    assert seen.at(60.0, running(2, 5.0))
    assert seen.told == [("end", {"id": 1, "start_s": 25.0, "end_s": 60.0, "state": "gone"})]
    assert seen.at(70.0)
    assert seen.at(80.0, job(3, Phase.ENDING, start_s=71.0, nodes=("a",))) is False  # never seen before
    assert seen.events == []


def test_a_job_counts_once_it_may_start_and_not_while_it_may_not() -> None:
    seen = Seen()
    assert not seen.at(20.0, job(1), waits=False)
    assert (seen.rows.row, list(seen.rows.jobs)) == ({}, [1])
    assert not seen.at(20.0, job(4, gpus=0), job(5, steerable=False))
    assert seen.at(30.0, job(1))
    assert seen.at(40.0, job(1), waits=False)
    assert seen.row(1, "state", "queued_since_s") == [DONE, 10.0]
    assert seen.at(50.0, job(1))
    assert seen.row(1, "state", "queued_since_s") == [WAITING, 50.0]
    assert seen.at(60.0, running(1, 55.0))
    assert seen.row(1, "waited_s") == [5.0]
    seen = Seen()
    assert seen.at(20.0, job(1))
    assert seen.at(30.0, job(1), waits=False)
    assert seen.at(40.0, running(1, 35.0), waits=False)  # it started all the same, and was not queued again
    assert (seen.events, seen.row(1, "attained_gpu_s", "waited_s")) == (["start"], [0.0, 25.0])
    seen = Seen()
    assert not seen.at(20.0, job(1), waits=False)
    assert not seen.at(30.0)  # it ended, but no policy had seen it
    assert seen.told == [
        ("end", {"id": 1, "start_s": pytest.approx(NAN, nan_ok=True), "end_s": 30.0, "state": "gone"})
    ]


@pytest.mark.parametrize(
    ("submit_s", "eligible_s", "arrival_s"),
    [
        (10.0, 15.0, 15.0),
        (10.0, 5.0, 10.0),
        (10.0, NAN, 10.0),
        (10.0, 20.0, 20.0),
        (10.0, 20.5, 10.0),
        (25.0, 5.0, 25.0),
    ],
)
def test_a_job_arrives_when_it_is_eligible(submit_s: float, eligible_s: float, arrival_s: float) -> None:
    seen = Seen()
    seen.at(20.0, job(1, submit_s=submit_s, eligible_s=eligible_s))
    assert seen.row(1, "arrival_s") == [arrival_s]


def test_rows_stand_in_the_order_of_arrival() -> None:
    seen = Seen()
    seen.at(20.0, job(3), job(2, submit_s=12.0), job(1))
    assert seen.rows.table.id.tolist() == [1, 3, 2]
    seen.at(30.0, *(job(k) for k in (1, 2, 3)), job(9, submit_s=5.0, eligible_s=5.0))
    assert seen.row(9, "arrival_s") == [12.0]  # never before one that has a row
    assert seen.rows.table.id.tolist() == [1, 3, 2, 9]


@pytest.mark.parametrize(("restart_s", "left_s"), [(None, 600.0), (7.0, 560.0)])
def test_a_job_that_is_queued_again_keeps_its_work_where_it_has_a_checkpoint(
    restart_s: float | None, left_s: float
) -> None:
    seen = Seen(restart_s=restart_s, requeue=True)
    seen.at(20.0, running(1, 15.0))
    assert seen.at(55.0, job(1))
    assert seen.told == [("requeued", {"id": 1, "start_s": 15.0, "end_s": 55.0})]
    named = "state", "gpus_held", "queued_since_s", "duration_s", "service_s", "attained_gpu_s"
    assert seen.row(1, *named) == [WAITING, 0, 55.0, left_s, left_s, 80.0]  # 40 s on two GPUs
    assert seen.at(70.0, running(1, 65.0))
    assert seen.row(1, "waited_s", "started_s", "gpus_held") == [15.0, 65.0, 2]  # 5 s before its first start
    seen.rows.refresh(75.0)
    assert seen.row(1, "service_s", "attained_gpu_s") == [left_s - 10.0, 100.0]
    assert seen.row(1, "restart_s") == [10.0 if restart_s is None else 7.0]
    assert seen.at(90.0, running(1, 85.0))  # it has started anew between two looks
    assert seen.events == ["requeued", "start"]
    assert seen.row(1, "attained_gpu_s", "started_s", "waited_s") == [130.0, 85.0, 15.0]  # queued since 90 s


def test_what_running_jobs_have_had_and_would_lose() -> None:
    seen = Seen(requeue=True, restart_s=7.0)
    seen.at(20.0, running(1, 15.0), running(2, 15.0, requeues=False), running(3, 99.0), job(4))
    seen.rows.refresh(25.0)
    found = [seen.row(k, "service_s", "attained_gpu_s", "restart_s") for k in (1, 2, 3)]
    assert found == [[590.0, 20.0, 7.0], [590.0, 20.0, math.inf], [600.0, 0.0, 7.0]]
    seen.rows.refresh(1000.0)
    assert seen.row(1, "service_s") == [0.0]  # it takes longer than its limit says
    assert seen.row(4, "service_s") == [600.0]
    for options, cost_s in (({"requeue": False}, math.inf), ({"requeue": True}, 5.0)):
        seen = Seen(**options)
        seen.at(20.0, running(1, 15.0))
        seen.rows.refresh(20.0)
        assert seen.row(1, "restart_s") == [cost_s]


def test_what_its_user_changes_about_a_waiting_job() -> None:
    seen = Seen()
    seen.at(20.0, job(1))
    assert seen.at(30.0, job(1, gpus=3))
    assert seen.row(1, "gpus_requested", "duration_s") == [3, 600.0]
    assert seen.at(40.0, job(1, gpus=3, limit_s=60.0))
    assert seen.row(1, "gpus_requested", "duration_s", "service_s") == [3, 60.0, 60.0]
    assert seen.told == [("changed", {"id": 1, "gpus": 3, "estimate_s": 60.0, "estimate_from": "time limit"})]
    assert not seen.at(50.0, job(1, gpus=3, limit_s=60.0, priority=7))
    seen.rows.forget()
    assert seen.at(60.0, job(1, gpus=3, limit_s=60.0))
    assert seen.events == []  # it was told of before


# -- nodes and GPUs --------------------------------------------------------------------------------------------


def node(name: str, gpus: int, used: int, up: bool = True, kind: str = "") -> QueueNode:
    return QueueNode(name, gpus, used, up, 8, 2**30, kind)


def test_which_gpus_are_held_by_whom() -> None:
    machines = Machines()
    nodes = (node("a", 4, 3), node("b", 2, 1, up=False, kind="a100"))
    one = running(1, 5.0)
    models, gpus, table = machines.tables(nodes, [one], {1: 6})
    assert models == ("gpu", "a100")
    assert (FOREIGN, FREE_NEXT) == (-2, -3)  # no row of a job, and not free: policies and records know them
    assert gpus.job.tolist() == [6, 6, FOREIGN, -1, FOREIGN, -1]
    assert gpus.share_free.tolist() == [
        0.0,
        0.0,
        0.0,
        1.0,
        0.0,
        0.0,
    ]  # of a node that is down nothing is free
    assert gpus.node.tolist() == [0, 0, 0, 0, 1, 1]
    assert gpus.model.tolist() == [0, 0, 0, 0, 1, 1]
    assert table.gpus.tolist() == [4, 2]
    assert table.first_gpu.tolist() == [0, 4]
    assert table.gpus_free.tolist() == [1, 0]
    assert table.up.tolist() == [True, False]
    # A second job of one GPU comes before what is not ours, which keeps none of its own.
    both = machines.tables((node("a", 4, 4), nodes[1]), [one, running(2, 9.0, gpus=1)], {1: 6, 2: 7})[1]
    assert both.job.tolist() == [6, 6, 7, FOREIGN, FOREIGN, -1]
    # The first is over, and its GPUs are not given back yet; the second keeps the one that it had.
    over = machines.tables((node("a", 4, 3), nodes[1]), [running(2, 9.0, gpus=1)], {2: 7}, [one])[1]
    assert over.job.tolist() == [FREE_NEXT, FREE_NEXT, 7, -1, FOREIGN, -1]
    assert machines.tables((), [], {})[0] == ("gpu",)


def test_gpus_of_a_job_on_several_nodes_are_dealt_evenly() -> None:
    wide = running(1, 5.0, gpus=5)._replace(nodes=("c", "a", "b", "elsewhere"))
    nodes = tuple(node(name, 3, used) for name, used in (("a", 1), ("b", 1), ("c", 2)))
    _, gpus, _ = Machines().tables(nodes, [wide, job(2), running(3, 6.0)], {1: 0, 2: 1})
    assert gpus.job.tolist() == [0, -1, -1, 0, -1, -1, 0, 0, -1]  # c has two, a, b and another one each
    twice = running(4, 7.0, gpus=1)
    again = Machines().tables((node("a", 2, 2),), [twice, running(5, 8.0, gpus=1)], {4: 0, 5: 1})[1]
    assert again.job.tolist() == [0, 1]


# -- places ----------------------------------------------------------------------------------------------------


def places(order: list[int], **priority: int) -> dict[str, int]:
    """Nice values by job; jobs are named by letters, `order` numbers them from 0."""
    waiting = [job(k, priority=value) for k, value in enumerate(priority.values())]
    made = exchange([waiting[k] for k in order], waiting)
    assert all((change.verb, change.was) == (Verb.PRIORITY, 0) for change in made)
    return {"abcd"[change.job]: change.value for change in made}


@pytest.mark.parametrize(
    ("order", "priority", "nice"),
    [
        ([0], {"a": 10, "b": 20, "c": 30, "d": 5}, {"a": -20, "c": 20}),  # a and c change places
        ([0, 1], {"a": 10, "b": 20, "c": 30, "d": 5}, {"a": -20, "c": 20}),  # b has its place already
        ([3, 0], {"a": 10, "b": 20, "c": 30, "d": 5}, {"d": -25, "a": -10, "c": 20, "b": 15}),
        ([2], {"a": 10, "b": 20, "c": 30}, {}),
        ([2, 1, 0], {"a": 10, "b": 20, "c": 30}, {}),
        ([], {"a": 10}, {}),
        ([1, 0], {"a": 10, "b": 5}, {"b": -5, "a": 5}),  # there are no others
        ([1], {"a": 10, "b": 10}, {"b": -1}),  # equal ones are told apart by a point
        ([0], {"a": 10, "b": 10}, {"a": -1}),
        ([1, 2], {"a": 10, "b": 10, "c": 10}, {"b": -2, "c": -1}),
        ([0, 1], {"a": 0, "b": 0}, {"a": -1}),
        ([0], {"a": 0}, {}),
        ([0], {"a": 0, "b": 2**32 - 1}, {"a": 4 - 2**31, "b": 2**31 - 4}),  # no nice value goes further
    ],
)
def test_jobs_exchange_their_places(order: list[int], priority: dict[str, int], nice: dict[str, int]) -> None:
    assert places(order, **priority) == nice


def test_a_nice_value_is_part_of_the_priority_and_the_reason_is_told() -> None:
    waiting = [job(1, priority=10, nice=7), job(2, priority=30, nice=-3)]
    assert exchange(waiting[:1], waiting) == [
        Change(Verb.PRIORITY, 1, -13, 7, "place 1"), Change(Verb.PRIORITY, 2, 17, -3, "gives way")
    ]  # fmt: skip
