"""S4: what its steps do with the smallest inputs, and the borders of what it decides."""

import math
from dataclasses import replace

import numpy as np
import pytest

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.gangs import NO_ROWS, request_columns
from equipoise.policies.contract import UNCHANGED
from equipoise.policies.observation import Observation, Speeds
from equipoise.policies.registry import PolicyError, make_stage
from equipoise.policies.stages.guard import guard_empty, guard_watch
from equipoise.policies.stages.s4 import NodeAllocation, _changed, _heaviest_first, _takes_s, _use, _waited_s
from tests.policies.stages.borders.test_s1 import as_read
from tests.policies.stages.test_s4 import ELASTIC, cluster, decide

NAN = np.nan
ABOVE_ZERO = (
    "ageing",
    "patience_s",
    "run_s",
    "growth",
    "horizon_s",
    "unknown_s",
    "speed_memory_s",
    "search_limit",
    "time_limit_s",
)
NOT_NEGATIVE = (
    "demand",
    "lead_s",
    "reserve_after_s",
    "slowdown",
    "longest_wait_s",
    "reluctance",
    "margin",
    "noise",
    "backoff_s",
)


@pytest.mark.parametrize("name", ABOVE_ZERO)
def test_what_must_be_above_zero_is_not_zero(name):
    assert getattr(make_stage("s4", {name: 2}), name) == 2
    for wrong in (0, -1):
        with pytest.raises(PolicyError, match=rf"^s4: {name} must be above 0"):
            make_stage("s4", {name: wrong})


@pytest.mark.parametrize("name", NOT_NEGATIVE)
def test_what_must_not_be_negative_may_be_zero(name):
    assert getattr(make_stage("s4", {name: 0.0}), name) == 0.0
    with pytest.raises(PolicyError, match=rf"^s4: {name} must not be negative"):
        make_stage("s4", {name: -0.5})


def test_parameters_are_as_documented():
    assert NodeAllocation() == NodeAllocation(
        mode="formula", ageing=4.0, demand=0.1, lead_s=360000.0, patience_s=86400.0, reserve_after_s=3600.0,
        slowdown=10.0, longest_wait_s=1814400.0, run_s=600.0, growth=0.1, preempt_ratio=0.5, reluctance=2.0,
        horizon_s=1800.0, margin=0.05, unknown_s=3600.0, speed_memory_s=600.0, noise=0.05, backoff_s=600.0,
    )  # fmt: skip
    with pytest.raises(PolicyError, match=r"^s4: frozen"):
        make_stage("s4", {"frozen": "S311"})


def test_it_says_what_it_does():
    def said(o, plan=UNCHANGED):
        return NodeAllocation().refine(o, plan, {})[0].reasons[-1].text

    assert said(Observation.of()) == "no job waits or runs"
    assert said(cluster([2], [{"holds": [0]}])) == "nothing is free, and no change would pay"
    assert said(cluster([2], [{}])) == "starts 1, stops 0, resizes 0"
    assert said(cluster([2], [{"gpus_requested": 3}])) == "all stays as it is"
    one = NodeAllocation().refine(cluster([2], [{}]), UNCHANGED, {})[0]
    assert said(cluster([2], [{}]), one) == "an earlier stage has handed out GPUs already"


@pytest.mark.parametrize("size", [0, 1, 2])
def test_nodes_of_one_weight_are_ordered_by_what_is_free(size):
    free = np.array([5, 3])[:size]
    assert _heaviest_first(np.full(size, 2.5), free).tolist() == [[], [0], [1, 0]][size]


def test_how_long_a_job_has_waited_in_all():
    o = cluster(
        [1],
        [
            {"waited_s": 30.0, "queued_since_s": 940.0},
            {"waited_s": NAN, "queued_since_s": 900.0},
            {"queued_since_s": 1400.0},
        ],
    )
    assert [_waited_s(o, row) for row in range(3)] == [90.0, 100.0, 0.0]


def test_a_job_that_has_run_takes_its_restart_first():
    jobs = [
        {"attained_gpu_s": 7.0},
        {},
        {"attained_gpu_s": 7.0, "restart_s": NAN},
        {"attained_gpu_s": 7.0, "service_s": 5.0},
    ]
    o = cluster([1], jobs)
    assert _takes_s(o, np.array([0, 1, 2])).tolist() == [630.0, 600.0, 600.0, 5.0]


def test_use_of_nodes_that_are_up():
    o = cluster([4, 3, 2], [{"holds": [0]}, {"holds": [4]}, {}], up=[True, True, False])
    assert _use(o) == {
        "s421_used_ratio": pytest.approx(2 / 7),
        "s421_free": 5,
        "s421_largest_block": 3,
        "s421_waiting": 1,
    }
    down = _use(cluster([4, 3], [{}], up=[False, False]))
    assert math.isnan(down["s421_used_ratio"])
    assert (down["s421_free"], down["s421_largest_block"]) == (0, 0)
    assert _use(Observation.of(0.0))["s421_largest_block"] == 0


def test_changed_jobs_are_told_of_with_what_asked_for_it():
    jobs = [{"holds": [0, 1]}, {"holds": [2]}, {"holds": [3]}, {"holds": [4, 5, 6]}, {}]
    draft = Draft(cluster([12], jobs))
    for row, held, gpus in (
        (3, [4, 5, 6], [4]),
        (0, [0, 1], [0, 1, 7, 8, 9]),
        (1, [2], [2, 10]),
        (2, [3], [11]),
    ):
        draft.resize(row, np.array(held), np.array(gpus))
    draft.start((np.array([4]), np.array([0, 1]), np.array([5]), np.ones(1)))
    told = _changed(
        draft, {"s413_undone": np.array([3]), "s422_grown": np.array([0, 4]), "s422_shrunk": np.array([1])}
    )
    assert told["s423_changed"].tolist() == [0, 1, 2, 3]
    assert told["s423_gpus_before"].tolist() == [2, 1, 1, 3]
    assert told["s423_gpus_after"].tolist() == [5, 2, 1, 1]
    assert told["s423_asked"] == ["S422: free GPUs", "S422: fewer GPUs", "S422: optimal", "S413"]


def running(**more):
    """A job of 4000 s that has worked for 700 s since its start, with a restart of 100 s; its bar is 1800 s."""
    return {
        "holds": [0],
        "service_s": 4000.0,
        "duration_s": 4700.0,
        "started_s": 300.0,
        "restart_s": 100.0,
        "attained_gpu_s": 700.0,
        **more,
    }


@pytest.mark.parametrize(
    ("columns", "may"),
    [
        ({}, True), ({"started_s": 700.0}, True), ({"started_s": 701.0}, False),
        ({"started_s": 701.0, "restart_s": NAN}, True),
    ],
)  # fmt: skip
def test_a_whole_schedule_stops_who_has_worked_for_a_restart_and_the_reluctance(columns, may):
    """1 + 2 restarts of 100 s."""
    o = cluster([1], [running(**columns), {}])
    stage = NodeAllocation(reluctance=2.0, growth=1e-6)
    assert stage._may_be_stopped(o, o.running).tolist() == ([0] if may else [])


def test_there_is_nothing_to_do_where_nobody_who_waits_could_start():
    stage = NodeAllocation()
    full = [running(), {"service_s": 1900.0}]
    assert stage._bars(cluster([1], full), np.array([0])).tolist() == [1800.0]
    assert stage._nothing_to_do(cluster([1], full))
    assert stage._nothing_to_do(cluster([1], [running(), {"service_s": 1800.0}]))
    assert not stage._nothing_to_do(cluster([1], [running(), {"service_s": 1799.0}]))
    assert not stage._nothing_to_do(cluster([1], [running(), {"service_s": 1799.0}, {"service_s": NAN}]))
    assert stage._nothing_to_do(cluster([1], [running(), {"service_s": NAN}]))
    assert not stage._nothing_to_do(cluster([2], full)), "a GPU is free"
    assert stage._nothing_to_do(cluster([2], [running()])), "and nobody waits"
    assert stage._nothing_to_do(cluster([1], [running(started_s=999.0), {"service_s": 1.0}])), (
        "it began just now"
    )


def test_there_may_be_something_to_do_for_running_jobs_alone():
    stage, optimal = NodeAllocation(), NodeAllocation(mode=as_read("optimal"))
    full = [running(), {"service_s": 1900.0}]
    assert not optimal._nothing_to_do(cluster([1], full))
    assert optimal._nothing_to_do(cluster([1], [running(started_s=999.0), {"service_s": 1900.0}]))
    assert not stage._nothing_to_do(cluster([1, 1], [running()], models=[0, 1])), "it may change its model"
    assert stage._nothing_to_do(replace(cluster([1, 1], [running()], models=[0, 1]), running=NO_ROWS))
    elastic = {**ELASTIC, "holds": [0, 1]}
    assert not stage._nothing_to_do(cluster([2], [elastic])), "it may change its size"
    assert stage._nothing_to_do(cluster([2], [{**elastic, "workers_min": 2, "workers_max": 2}]))


def empty(o):
    """A draft in which no node weighs more than another."""
    return Draft(o, np.ones(len(o.nodes)), order=np.arange(len(o.nodes)))


def smaller(free, *jobs):
    """(how many start, GPUs of each) where so many GPUs are free."""
    o = cluster([free], list(jobs))
    draft = empty(o)
    count = NodeAllocation()._start_smaller(draft, o.waiting, request_columns(o))
    return count, {row: len(gpus) for row, (gpus, _) in draft.given.items()}


def test_s422_elastic_jobs_start_with_a_half_or_a_quarter():
    wide = {**ELASTIC, "gpus_requested": 8, "workers_max": 8}
    assert smaller(5, wide) == (1, {0: 4})
    assert smaller(3, wide) == (1, {0: 2})
    assert smaller(2, {**wide, "workers_min": 2}) == (1, {0: 2})
    assert smaller(1, {**wide, "workers_min": 2}) == (0, {})
    assert smaller(3, {**wide, "workers_min": 3}) == (0, {}), "a quarter is too few"
    assert smaller(7, wide, {"gpus_requested": 2}, wide) == (2, {0: 4, 2: 2})
    assert smaller(9, {**wide, "gpus_requested": 12, "gpus_per_worker": 2, "workers_min": 2}) == (1, {0: 6})
    assert smaller(1, {**wide, "gpus_requested": 4, "gpus_per_worker": 2}) == (0, {})
    assert smaller(0, wide) == (0, {})
    assert smaller(8, wide) == (1, {0: 4}), "a half, whatever is free"


def test_s422_jobs_start_in_order_up_to_the_first_that_cannot():
    def first(*sizes):
        o = cluster([5], [{"gpus_requested": size} for size in sizes])
        draft = empty(o)
        blocked = NodeAllocation()._start_first(draft, o.waiting, request_columns(o), None)
        return blocked, sorted(draft.given)

    assert first(2, 3) == (-1, [0, 1])
    assert first(2, 4, 1) == (1, [0])
    assert first(6, 1) == (0, [])
    wide = {**ELASTIC, "gpus_requested": 4, "workers_max": 4}
    o = cluster([5], [{"gpus_requested": 2}, wide, {"gpus_requested": 1}, {"gpus_requested": 1}])
    draft = empty(o)
    assert NodeAllocation()._start_first(draft, o.waiting, request_columns(o), None) == 3
    assert {row: len(gpus) for row, (gpus, _) in draft.given.items()} == {0: 2, 1: 2, 2: 1}


def test_s422_a_reservation_is_made_for_who_has_waited_longer_than_that():
    """Two of three GPUs are free, the third for 600 s more; the first of the queue asks for three."""

    def found(waited_s):
        first = {
            "gpus_requested": 3,
            "queued_since_s": 1000.0 - waited_s,
            "priority": 9.0,
            "duration_s": 100.0,
            "service_s": 100.0,
        }
        long = {"service_s": 5000.0, "duration_s": 5000.0}
        given, values, _ = decide(
            cluster([3], [{"holds": [0], "started_s": 990.0}, first, long]), reserve_after_s=50.0
        )
        return values["s422_overdue"], given

    assert found(50.0) == (-1, {2: [1]})
    assert found(51.0) == (1, {})


def test_s422_a_reservation_is_for_the_first_job_of_the_table_too():
    first = {
        "gpus_requested": 3,
        "queued_since_s": 900.0,
        "priority": 9.0,
        "duration_s": 100.0,
        "service_s": 100.0,
    }
    long = {"service_s": 5000.0, "duration_s": 5000.0}
    o = cluster([3], [first, {"holds": [0], "started_s": 990.0}, long])
    given, values, _ = decide(o, reserve_after_s=50.0)
    assert (given, values["s422_overdue"]) == ({}, 0)


def test_s422_frozen_starts_whole_requests_in_order_and_changes_nothing():
    stage = {"frozen": as_read("S422")}
    wide = {**ELASTIC, "gpus_requested": 4}
    given, values, _ = decide(cluster([3], [{"gpus_requested": 2}, wide]), **stage)
    assert given == {0: [0, 1]}
    assert values["s422_overdue"] == -1
    assert "s422_grown" not in values
    speeds = Speeds.of(job=[0, 0], gpu_model=[0, 1], gpus=[1, 1], samples_per_s=[1.0, 9.0])
    two = cluster([1, 1], [running()], models=[0, 1], speeds=speeds)
    assert decide(two, **stage)[0] == {}
    assert "s422_moved" not in decide(two, **stage)[1]


def test_the_first_five_of_the_queue_are_told_of():
    _, values, _ = decide(
        cluster([2], [{"holds": [0]}, *({"gpus_requested": 2, "priority": 10.0 - k} for k in range(7))])
    )
    assert values["s422_order"].tolist() == [1, 2, 3, 4, 5]
    assert len(values["s412_priority"]) == len(values["s422_ratio"]) == 5
    assert values["s412_priority"][0] / values["s412_priority"][4] == pytest.approx(10 / 6)


def test_s413_a_change_that_harmed_is_undone_where_going_back_pays():
    """It held GPUs 0 and 1 at 100 samples/s, and has 60 on three; 9000 samples are left: 150 s, or 90."""
    job = {
        **ELASTIC,
        "holds": [0, 1, 2],
        "goodput_samples_per_s": 60.0,
        "remaining_samples": 9000.0,
        "started_s": 900.0,
    }

    def found(restart_s, frozen=""):
        o = cluster([4], [{**job, "restart_s": restart_s}])
        record = dict(guard_watch(guard_empty(), np.array([0]), np.array([100.0]), 950.0, np.array([2.0])))
        record |= {"reports": np.array([1]), "last": np.array([60.0])}
        memory = {
            "guard": record, "goodput_id": np.array([0]), "goodput": np.array([61.0]),
            "goodput_s": np.array([980.0]), "remaining": np.array([9600.0]),
            "undo_id": np.array([0]), "undo_offset": np.array([0, 2]),
            "undo_gpu": np.array([0, 1]),
        }  # fmt: skip
        return decide(o, memory, frozen=frozen)

    given, values, _ = found(59.0)
    assert given == {0: [0, 1]}
    assert (
        values["s413_undone"].tolist(),
        values["s413_rejected"].tolist(),
        values["s413_kept"].tolist(),
    ) == ([0], [0], [])
    assert (values["s413_before"].tolist(), values["s413_after"].tolist(), values["s413_watched"]) == (
        [100.0],
        [60.0],
        0,
    )
    assert values["s423_asked"] == ["S413"]
    assert found(61.0)[1]["s413_undone"].tolist() == []
    assert found(59.0, as_read("S413"))[1].get("s413_rejected", np.array([])).tolist() == []


def test_s422_elastic_jobs_make_room_for_an_overdue_job_first():
    job = {**ELASTIC, "holds": [0, 1, 2, 3], "exchange_s": 2.0}  # mostly exchange: it loses little
    given, values, _ = decide(
        cluster([4], [job, {"gpus_requested": 2, "queued_since_s": -9e4}, {"gpus_requested": 2}])
    )
    assert (values["s422_overdue"], values["s422_shrunk"].tolist()) == (1, [0])
    assert {row: len(gpus) for row, gpus in given.items()} == {0: 2, 1: 2}


@pytest.mark.parametrize(("service_s", "stops"), [(300.0, False), (299.0, True)])
def test_s422_a_job_that_needs_just_as_long_as_the_bar_stops_nobody(service_s, stops):
    """Half of 1000 s, less two restarts of 100 s."""
    short = {"service_s": service_s, "queued_since_s": 500.0}
    given, values, _ = decide(cluster([1], [{"holds": [0], "service_s": 1000.0, "restart_s": 100.0}, short]))
    assert values.get("s422_stopped", NO_ROWS).tolist() == ([0] if stops else [])
    assert given == ({0: [], 1: [0]} if stops else {})
