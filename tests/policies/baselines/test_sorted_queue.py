"""The queue of waiting jobs from one decision to the next: who came, who came back, when all is sorted anew."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation.gangs import NO_ROWS, frozen
from equipoise.policies.baselines.queueing import preempt_from_queue, start_from_queue, unchanged
from equipoise.policies.baselines.service_levels import next_promotion, promoted
from equipoise.policies.baselines.sorted_queue import first_rows, key_columns, keys_of, queue_now
from equipoise.policies.contract import UNCHANGED
from equipoise.policies.kernels.placement import ANY
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation
from tests.policies.baselines.test_queues import INF, LEVELS

W, R, DONE = JobState.WAITING, JobState.RUNNING, JobState.DONE


def seen(time_s: float = 1000.0, **columns: Any) -> Observation:
    columns.setdefault("id", range(len(columns["state"])))
    return Observation.of(time_s, jobs=Jobs.of(**columns))


def shortest(o: Observation) -> Any:
    return key_columns(o, o.jobs.service_s, o.jobs.id)


def rows_of(*rows: int) -> Any:
    return frozen(np.array(rows, dtype=np.int64))


def front(queue: Any, o: Observation, limit: int = 99) -> list[int]:
    return first_rows(queue, o, shortest(o), limit)[0].tolist()  # type: ignore[no-any-return]


SERVICE = [50.0, 20.0, 30.0, 25.0, 10.0, 5.0, 40.0, 22.0, 33.0]


def begun() -> tuple[Any, Observation]:
    """Of nine jobs 0 to 2 wait first; then 6 and 8 come, and 7, which is done at once."""
    o = seen(state=[W, W, W, R, R, DONE], service_s=SERVICE[:6])
    queue = queue_now({}, o, shortest(o))
    assert queue["row"].tolist() == [1, 2, 0]
    o = seen(1001.0, state=[W, W, W, R, R, DONE, W, DONE, W], service_s=SERVICE)
    queue = queue_now(queue, o, shortest(o))
    assert (queue["new_row"].tolist(), queue["new_key"].tolist()) == ([8, 6], [33.0, 40.0])
    assert (queue["jobs"], queue["waiting"], queue["time_s"], queue["wasted"]) == (9, 5, 1001.0, 0)
    assert front(queue, o) == [1, 2, 8, 6, 0]
    return queue, o


def test_who_was_stopped_or_crashed_is_queued_again() -> None:
    """Job 0 starts; 3 is stopped, 4 crashes at the time of the last decision: both are found."""
    queue, _ = begun()
    queued = [0.0, 0.0, 0.0, 1002.0, 1001.0] + [0.0] * 4
    o = seen(1002.0, state=[R, W, W, W, W, DONE, W, DONE, W], service_s=SERVICE, queued_since_s=queued)
    after = queue_now({**queue, "waiting": 4}, o, shortest(o), rows_of(3))
    assert (after["new_row"].tolist(), after["new_key"].tolist()) == ([4, 3, 8, 6], [10.0, 25.0, 33.0, 40.0])
    assert after["row"] is queue["row"]
    assert front(after, o) == [4, 1, 3, 2, 8, 6]
    # One that is named but runs does not wait; a row that there is not is passed over.
    named = queue_now({**queue, "waiting": 5}, o, shortest(o), rows_of(0, 3))
    assert named["new_row"].tolist() == [3, 8, 6]
    assert queue_now({**queue, "waiting": 5}, o, shortest(o), rows_of(3, 3, -1))["new_row"].tolist() == [
        3,
        8,
        6,
    ]


def test_many_may_come_and_come_back_at_once() -> None:
    o = seen(state=[R] * 24, service_s=[50.0 - k for k in range(24)])
    queue = queue_now({}, o, shortest(o))
    o = seen(1001.0, state=[W] * 48, service_s=[50.0 - k for k in range(48)])
    after = queue_now(queue, o, shortest(o), rows_of(*range(24)))
    assert after["row"] is queue["row"]
    assert after["new_row"].tolist() == front(after, o) == list(range(48))[::-1]


def test_the_first_job_may_come_back_too() -> None:
    queue, _ = begun()
    less = [45.0, *SERVICE[1:]]
    o = seen(
        1003.0, state=[W, W, W, R, R, DONE, W, DONE, W], service_s=less, queued_since_s=[1002.5] + [0.0] * 8
    )
    for named in (rows_of(0), NO_ROWS):  # stopped by a plan, or by a crash
        after = queue_now({**queue, "waiting": 4}, o, shortest(o), named)
        assert (after["new_row"].tolist(), len(after["row"])) == ([8, 6, 0], 3)
        assert front(after, o) == [1, 2, 8, 6, 0]


@pytest.mark.parametrize(("expected", "anew"), [(2, True), (3, True), (4, True), (5, False)])
def test_who_is_missing_without_a_trace_makes_all_be_sorted_anew(expected: int, anew: bool) -> None:
    """Job 3 waits again, with no time that tells so: beside the five, six wait."""
    queue, _ = begun()
    o = seen(1002.0, state=[W, W, W, W, R, DONE, W, DONE, W, W], service_s=[*SERVICE, 60.0])
    after = queue_now({**queue, "waiting": expected + 1}, o, shortest(o))
    assert len(after["row"]) == (3 if expected == 5 else 7)
    assert (front(after, o) == [1, 3, 2, 8, 6, 0, 9]) == anew or expected == 5
    assert after["new_row"].tolist() == ([] if anew else [8, 6, 9])


@pytest.mark.parametrize(("named", "waiting", "rows"), [((1,), 4, 3), ((1, 1), 3, 5), ((1, 1, 1), 2, 5)])
def test_who_comes_back_to_its_place_counts_once(named: tuple[int, ...], waiting: int, rows: int) -> None:
    """Job 1 had started and is stopped with the same key: its entry stands, and it is one of five that wait."""
    queue, _ = begun()
    queued = [0.0, 1001.0] + [0.0] * 7
    o = seen(1002.0, state=[W, W, W, R, R, DONE, W, DONE, W], service_s=SERVICE, queued_since_s=queued)
    after = queue_now({**queue, "waiting": waiting}, o, shortest(o), rows_of(*named))
    assert (len(after["row"]), len(after["new_row"])) == (rows, 5 - rows)
    assert front(after, o) == [1, 2, 8, 6, 0]


def test_who_was_named_but_never_left_explains_nobody() -> None:
    queue, _ = begun()
    o = seen(1002.0, state=[W, W, W, R, R, DONE, W, DONE, W], service_s=SERVICE)
    assert len(queue_now({**queue, "waiting": 4}, o, shortest(o), rows_of(1))["row"]) == 5
    assert len(queue_now({**queue, "waiting": 5}, o, shortest(o), rows_of(1))["row"]) == 3
    # Of the short run, too.
    o = seen(1002.0, state=[W, W, W, R, R, DONE, W, DONE, W], service_s=SERVICE,
             queued_since_s=[0.0] * 6 + [1001.5, 0.0, 0.0])  # fmt: skip
    after = queue_now({**queue, "waiting": 4}, o, shortest(o), rows_of(6))
    assert (len(after["row"]), after["new_row"].tolist()) == (3, [8, 6])


@pytest.mark.parametrize(("back", "anew"), [(16, False), (17, True)])
def test_more_than_sixteen_that_nobody_named_are_sorted_anew(back: int, anew: bool) -> None:
    jobs = {"service_s": np.arange(20.0)}
    o = seen(state=[R] * 18 + [W] * 2, **jobs)
    queue = queue_now({}, o, shortest(o))
    o = seen(
        1001.0,
        state=[W] * back + [R] * (18 - back) + [W] * 2,
        queued_since_s=[1001.0] * 18 + [0.0] * 2,
        **jobs,
    )
    after = queue_now(queue, o, shortest(o))
    assert (len(after["new_row"]) == 0) == anew
    assert front(after, o) == [*range(back), 18, 19]


@pytest.mark.parametrize(("old", "new", "short"), [(0, 512, 512), (0, 513, 0), (500, 12, 512), (500, 13, 0)])
def test_the_short_run_takes_512(old: int, new: int, short: int) -> None:
    o = seen(state=[W], service_s=[9e9])
    queue = queue_now({}, o, shortest(o))
    for jobs in (1 + old, 1 + old + new):
        o = seen(1001.0, state=[W] * jobs, service_s=[9e9, *range(jobs - 1)])
        queue = queue_now(queue, o, shortest(o))
    assert (len(queue["new_row"]), queue["waiting"]) == (short, 1 + old + new)


def test_when_nothing_happened_the_queue_is_the_same() -> None:
    queue, o = begun()
    assert queue_now(queue, o, shortest(o)) is queue
    assert queue_now({**queue, "time_s": 1000.5}, o, shortest(o))["time_s"] == 1000.5
    assert queue_now(queue, o, shortest(o), rows_of(1)) is not queue
    back = queue_now({**queue, "time_s": 1001.5}, o, shortest(o))  # a clock that was set back
    assert (back["time_s"], len(back["row"])) == (1001.0, 5)
    fewer = seen(1001.0, state=[W, W, W, R, R, DONE, W, DONE], service_s=SERVICE[:8])
    assert len(queue_now(queue, fewer, shortest(fewer))["row"]) == 4
    # Of those that a limit keeps out nothing is known one by one.
    o.held = np.array([3])
    kept = queue_now(queue, o, shortest(o))
    assert (len(kept["row"]), kept["held"].tolist()) == (5, [3])
    assert queue_now(kept, o, shortest(o)) is kept
    for held in ([4], [3, 4], []):
        o.held = np.array(held, dtype=np.int64)
        assert len(queue_now({**kept, "new_row": rows_of(7)}, o, shortest(o))["new_row"]) == 0


def test_of_equal_keys_the_lower_id_comes_first_in_both_runs() -> None:
    columns = {"id": [7, 4, 6, 5, 3, 8], "service_s": [2.0] * 6}
    o = seen(state=[W] * 3, id=columns["id"][:3], service_s=[2.0] * 3)
    queue = queue_now({}, o, shortest(o))
    o = seen(1001.0, state=[W] * 6, **columns)
    queue = queue_now(queue, o, shortest(o))
    assert queue["new_row"].tolist() == [4, 3, 5]
    assert front(queue, o) == [4, 1, 3, 2, 0, 5]
    untied = key_columns(o, o.jobs.service_s, NO_ROWS)
    assert first_rows(queue_now({}, o, untied), o, untied, 9)[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_who_crashed_and_is_back_in_its_place_was_not_named() -> None:
    queue, _ = begun()
    queued = [0.0, 1001.0, 1001.0] + [0.0] * 6
    o = seen(1002.0, state=[W, W, W, R, R, DONE, W, DONE, W], service_s=SERVICE, queued_since_s=queued)
    for waiting, named in ((4, ()), (3, (1,))):  # of the two one is told of at most
        after = queue_now({**queue, "waiting": waiting}, o, shortest(o), rows_of(*named))
        assert (len(after["row"]), front(after, o)) == (5, [1, 2, 8, 6, 0])


def test_the_short_run_goes_on_where_its_head_is() -> None:
    """Of jobs 8, 6 and 9 of the short run the first has started."""
    queue, _ = begun()
    state = [W, W, W, R, R, DONE, W, DONE, W, W]
    o = seen(1002.0, state=state, service_s=[*SERVICE, 60.0])
    queue = queue_now(queue, o, shortest(o))
    assert queue["new_row"].tolist() == [8, 6, 9]
    o = seen(1003.0, state=[*state[:8], R, W, W], service_s=[*SERVICE, 60.0, 35.0])
    after = queue_now({**queue, "waiting": 5, "new_head": 1}, o, shortest(o))
    assert (after["new_row"].tolist(), after["new_key"].tolist()) == ([10, 6, 9], [35.0, 40.0, 60.0])


def test_a_named_job_gets_its_new_place_though_nobody_is_missing() -> None:
    queue, _ = begun()
    service = [*SERVICE[:6], 15.0, *SERVICE[7:]]
    o = seen(1002.0, state=[W, W, W, R, R, DONE, W, DONE, W], service_s=service)
    after = queue_now(queue, o, shortest(o), rows_of(6))
    assert (after["new_row"].tolist(), after["new_key"].tolist()) == ([6, 8, 6], [15.0, 33.0, 40.0])


# -- the first of a queue --------------------------------------------------------------------------------------


def made(key: list[float], row: list[int], new: Any = (), **values: Any) -> Any:
    """A queue as it is remembered."""
    new_key, new_row = [each[0] for each in new], [each[1] for each in new]
    return {
        "key": frozen(np.array(key)), "row": rows_of(*row), "head": 0,
        "new_key": frozen(np.array(new_key, dtype=np.float64)), "new_row": rows_of(*new_row), "new_head": 0,
        "wasted": 0,
    } | values  # fmt: skip


@pytest.mark.parametrize(
    ("gone", "before", "anew"), [(32, 0, False), (33, 0, True), (30, 2, False), (30, 3, True)]
)
def test_a_queue_in_which_most_have_gone_is_sorted_anew(gone: int, before: int, anew: bool) -> None:
    """Eight for each of the two that are asked for and the two that wait."""
    n = gone + 2
    o = seen(state=[W] + [DONE] * gone + [W], service_s=np.arange(float(n)))
    queue = made([*map(float, range(n))], [*range(n)], wasted=before)
    rows, key, after = first_rows(queue, o, shortest(o), 2)
    assert (rows.tolist(), key.tolist()) == ([0, n - 1], [0.0, n - 1.0])
    assert (after["wasted"], len(after["row"]), after["head"]) == (
        (0, 2, 0) if anew else (gone + before, n, 0)
    )


def test_the_queue_moves_on_past_those_that_left_its_front() -> None:
    o = seen(state=[DONE, W, DONE, DONE, W, W], service_s=np.arange(6.0))
    queue = made([0.0, 1.0, 5.0], [0, 1, 5], [(2.0, 2), (3.0, 3), (4.0, 4)])
    rows, _, after = first_rows(queue, o, shortest(o), 3)
    assert rows.tolist() == [1, 4, 5]
    assert (after["head"], after["new_head"], after["wasted"]) == (1, 0, 2)
    assert first_rows({**after, "wasted": 0}, o, shortest(o), 1)[2]["head"] == 1
    queue = made([4.0, 5.0], [4, 5], [(2.0, 2), (3.0, 3)])
    rows, _, after = first_rows(
        queue, seen(state=[DONE] * 4 + [W, W], service_s=np.arange(6.0)), shortest(o), 1
    )
    assert (rows.tolist(), after["head"], after["new_head"], after["wasted"]) == ([4], 0, 2, 0)
    o = seen(state=[W, W], service_s=[1.0, 2.0])
    queue = made([1.0, 2.0], [0, 1])
    assert first_rows(queue, o, shortest(o), 2)[2] is queue
    rows, key, _ = first_rows(queue, o, shortest(o), 1)
    assert (rows.tolist(), key.tolist()) == ([0], [1.0])


def test_a_job_with_two_entries_is_there_once() -> None:
    o = seen(state=[W, W, W], service_s=[1.0, 2.0, 3.0])
    queue = made([1.0, 2.0, 3.0], [0, 1, 2], [(1.0, 0), (2.0, 1)])
    rows, key, after = first_rows(queue, o, shortest(o), 3)
    assert (rows.tolist(), key.tolist(), after["wasted"]) == ([0, 1, 2], [1.0, 2.0, 3.0], 2)


@pytest.mark.parametrize(
    ("service", "new", "anew"),
    [
        ([9.0, 2.0, 3.0], [(9.0, 0)], False),  # its new place is known
        ([9.0, 2.0, 3.0], [(8.0, 0)], True), ([9.0, 2.0, 3.0], [(9.5, 0)], True), ([9.0, 2.0, 3.0], [], True),
        ([1.0, 2.0, 0.5], [(0.5, 2)], False), ([1.0, 2.0, 0.5], [(0.75, 2)], True),
    ],
)  # fmt: skip
def test_an_estimate_that_changed_counts_where_its_place_is(
    service: list[float], new: list[tuple[float, int]], anew: bool
) -> None:
    o = seen(state=[W] * 3, service_s=service)
    queue = made([1.0, 2.0, 3.0], [0, 1, 2], new)
    rows, key, after = first_rows(queue, o, shortest(o), 3)
    assert rows.tolist() == np.argsort(service).tolist()
    assert key.tolist() == sorted(service)
    assert (len(after["new_row"]) == 0) == anew
    assert len(after["row"]) == 3


def test_of_levels_only_a_later_one_is_out_of_place() -> None:
    """Who waits long enough is queued again at the decision that finds it so: its old entry is no error."""
    o = seen(state=[W] * 3, attained_gpu_s=[5.0, 500.0, 50.0])
    columns = key_columns(o, o.jobs.attained_gpu_s, NO_ROWS, frozen(np.array([100.0, 1000.0])), 0.0)
    queue = made([0.0, 1.0, 2.0], [0, 1, 2], [(0.0, 2)])
    rows, key, after = first_rows(queue, o, columns, 9)
    assert (rows.tolist(), key.tolist(), len(after["new_row"])) == ([0, 2, 1], [0.0, 0.0, 1.0], 1)
    rows, _, after = first_rows(made([1.0, 2.0], [1, 2], [(0.0, 0)]), o, columns, 2)
    assert (rows.tolist(), len(after["new_row"]), after["wasted"]) == ([0, 1], 1, 0)
    rows, _, after = first_rows(made([0.0, 0.0, 0.0], [0, 1, 2]), o, columns, 3)
    assert (rows.tolist(), after["key"].tolist()) == ([0, 2, 1], [0.0, 0.0, 1.0])
    # A place that it may still have in the long run, whose head has passed it, is none.
    passed = made([0.0, 0.0, 1.0], [0, 1, 1], [(0.0, 2)], head=0)
    assert first_rows(passed, o, columns, 3)[0].tolist() == [0, 2, 1]
    assert len(first_rows(passed, o, columns, 3)[2]["new_row"]) == 1


# -- levels ----------------------------------------------------------------------------------------------------


def level_of(
    row: int, thresholds: list[float], relief: float, time_s: float = 1000.0, **columns: Any
) -> float:
    o = seen(time_s, **columns)
    k = key_columns(o, o.jobs.attained_gpu_s, NO_ROWS, frozen(np.array(thresholds)), relief)
    return keys_of(np.array([row]), k).tolist()[0]  # type: ignore[no-any-return]


def test_only_waiting_counts_and_none_to_come() -> None:
    """A quantum of 100 takes 400 s of waiting on one GPU, of which 399.5 s or 400.5 s are told of before."""

    def level(waited_s: float, state: int, queued_since_s: float) -> float:
        return level_of(
            1, [100.0, 1000.0], 0.25, state=[R, state], attained_gpu_s=[9e9, 150.0], waited_s=[0.0, waited_s],
            queued_since_s=[0.0, queued_since_s], gpus_requested=[7, 1],
        )  # fmt: skip

    assert [level(399.5, R, 0.0), level(400.0, R, 0.0), level(400.5, R, 0.0)] == [1.0, 0.0, 0.0]
    assert [level(399.5, W, 1010.0), level(400.5, W, 1010.0)] == [1.0, 0.0]  # it begins to wait later
    assert [level(390.0, W, 990.5), level(390.0, W, 990.0), level(390.0, W, 989.0)] == [1.0, 0.0, 0.0]


def test_what_is_reached_but_for_rounding_is_reached() -> None:
    for service, level in ((1e9 - 0.9, 1.0), (1e9 - 1.1, 0.0), (1e9, 1.0)):
        assert level_of(0, [1e9], 0.0, state=[R], attained_gpu_s=[service]) == level
    for service, level in ((100.0 - 1.0e-6, 1.0), (100.0 - 1.3e-6, 0.0)):
        assert level_of(0, [100.0], 0.0, state=[R], attained_gpu_s=[service]) == level
    assert level_of(0, [0.5, 7.0], 0.0, state=[R], attained_gpu_s=[math.nan]) == 0.0
    assert level_of(0, [0.5, 7.0], 0.0, state=[R], attained_gpu_s=[7.5]) == 2.0
    assert level_of(0, [0.5, 7.0], 0.25, state=[W], attained_gpu_s=[7.2], gpus_requested=[2]) == 0.0


def test_a_promotion_that_is_overdue_is_not_asked_for_now() -> None:
    """Who has waited long enough already is looked at a moment later, which grows with the clock."""
    past = {"state": [W], "attained_gpu_s": [150.0], "waited_s": [399.0]}
    for time_s, moment_s in ((1000.0, 1e-6), (1e6, 1e-6), (1e9, 1e-3)):
        o = seen(time_s, queued_since_s=[time_s], **past)
        found = next_promotion(rows_of(0), levels_of(o))
        assert found == (pytest.approx(time_s + 1.0, abs=1e-5), 0)
        o = seen(time_s, queued_since_s=[time_s], **past | {"waited_s": [400.0 - 8e-7]})
        found = next_promotion(rows_of(0), levels_of(o))
        assert found[0] - time_s == pytest.approx(moment_s, rel=0.05)


def levels_of(o: Observation, relief: float = 0.25) -> Any:
    return key_columns(o, o.jobs.attained_gpu_s, NO_ROWS, frozen(np.array([100.0, 1000.0])), relief)


def test_when_the_next_promotion_is_taken_as_remembered() -> None:
    """Rounding counts for 2e-9 quanta of 400 s, and 1e-12 of the clock: 0.801 us at 1,000 s."""
    o = seen(
        state=[W, W, R, R, W, W], **{name: LEVELS[name] for name in LEVELS if name not in ("id", "state")}
    )
    known = {"again": NO_ROWS, "jobs": 6, "waiting": 4, "promotion": (1079.0, 0), "time_s": 990.0}
    trusted, anew = (1079.0, 0), (pytest.approx(1080.0), 0)
    one_more = {**known, "again": rows_of(1), "waiting": 3}
    for memory, expected in (
        (known, trusted), ({**known, "jobs": 5, "waiting": 3}, trusted), ({**known, "jobs": 5}, anew),
        ({**known, "waiting": 5}, anew), ({**known, "waiting": 3}, anew),
        ({**known, "promotion": (1000.0 + 8.05e-7, 0)}, (1000.0 + 8.05e-7, 0)),
        ({**known, "promotion": (1000.0 + 7.95e-7, 0)}, anew), ({**known, "promotion": (1000.0, 0)}, anew),
        ({**one_more, "promotion": (INF, -1)}, (INF, -1)), ({**one_more, "promotion": (1080.0, 0)}, anew),
    ):  # fmt: skip
        rows, following = promoted(o, memory, levels_of(o))
        assert following == expected
        assert rows.tolist() == memory["again"].tolist()
    never = {**known, "promotion": (1000.0 + 1e-9, 0)}
    assert promoted(o, never, levels_of(o, 0.0))[1] == (1000.0 + 1e-9, 0)


# -- starting from a queue -------------------------------------------------------------------------------------


def many(wide: int, waiting: int, runs: int = 0, free: int = 3) -> Observation:
    """Jobs wait, the first `wide` of them for four GPUs, the others for two; one of three nodes' GPUs is free."""
    state = [W] * waiting + [R] * runs
    return Observation.of(
        50.0,
        jobs=Jobs.of(
            id=range(len(state)), state=state, service_s=np.arange(1.0, 1 + len(state)), rigid=[True] * len(state),
            gpus_requested=[4] * wide + [2] * (waiting - wide) + [3 - free] * runs,
            gpus_held=[0] * waiting + [3 - free] * runs,
        ),
        nodes=Nodes.of(gpus=[3], first_gpu=[0], gpus_free=[free]),
        gpus=Gpus.of(
            node=[0] * 3, job=[-1] * free + [waiting] * (3 - free), share_free=[1.0] * free + [0.0] * (3 - free)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wide", "waiting", "strict", "started"),
    [
        (15, 40, False, [15]), (16, 40, False, [16]), (17, 40, False, [17]), (255, 258, False, [255]),
        (256, 300, False, [256]), (300, 300, False, []), (16, 40, True, []), (0, 40, True, [0]), (0, 1, False, [0]),
    ],
)  # fmt: skip
def test_as_many_are_looked_at_as_there_is_room_for(
    wide: int, waiting: int, strict: bool, started: list[int]
) -> None:
    o = many(wide, waiting)
    given, queue = start_from_queue(o, queue_now({}, o, shortest(o)), shortest(o), strict, ANY)
    assert ([] if given is None else given.job.tolist()) == started
    assert queue["waiting"] == waiting - len(started)
    if given is not None:
        assert (given.offset.tolist(), len(given.gpu)) == ([0, 2], 2)


@pytest.mark.parametrize(("wide", "lowest"), [(15, 1.0), (16, 1.0), (17, 1.0), (300, 1.0), (0, 2.0)])
def test_a_job_is_stopped_for_one_far_back_in_the_queue(wide: int, lowest: float) -> None:
    """The one that runs has two of three GPUs: who wants two starts in its place."""
    o = many(wide, 300, runs=1, free=1)
    running, bar = rows_of(300), frozen(np.array([1e9]))
    given, stopped, first, queue = preempt_from_queue(
        o, queue_now({}, o, shortest(o)), shortest(o), ANY, running, bar
    )
    starts = [wide] if wide < 300 else []
    assert (given.job.tolist(), stopped.tolist()) == (
        [300, *starts] if starts else [],
        [300] if starts else [],
    )
    assert given.offset.tolist() == ([0, 0, 2] if starts else [0])
    assert (first, queue["waiting"]) == (lowest, 300 - len(starts))
    assert queue["again"].tolist() == stopped.tolist()


@pytest.mark.parametrize(("free", "lowest"), [(15, 16.0), (16, 16.0), (17, 18.0), (40, math.inf)])
def test_from_which_key_on_jobs_wait(free: int, lowest: float) -> None:
    """Forty jobs with keys 1 to 40 ask for a GPU each; behind the first 16 nobody is looked at without need."""
    o = Observation.of(
        50.0, jobs=Jobs.of(id=range(40), state=[W] * 40, service_s=np.arange(1.0, 41.0), rigid=[True] * 40),
        nodes=Nodes.of(gpus=[free], first_gpu=[0], gpus_free=[free]),
        gpus=Gpus.of(node=[0] * free, job=[-1] * free),
    )  # fmt: skip
    given, stopped, first, queue = preempt_from_queue(
        o, queue_now({}, o, shortest(o)), shortest(o), ANY, rows_of(), frozen(np.empty(0))
    )
    assert (given.job.tolist(), len(stopped), first) == (list(range(free)), 0, lowest)
    assert queue["waiting"] == 40 - free


def test_a_reason_is_added_to_what_is_planned() -> None:
    for _ in range(2):
        plan = unchanged(UNCHANGED, "a", "b")
        assert [(reason.stage, reason.text) for reason in plan.reasons] == [("a", "b")]
        twice = unchanged(plan, "c", "d")
        assert [reason.stage for reason in twice.reasons] == ["a", "c"]
