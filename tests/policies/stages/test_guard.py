"""The before/after guard: keep, let recover, roll back, back off; and which measurement counts."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.shunned import remember_nodes
from equipoise.policies.observation import Gpus, Jobs, Nodes, Observation, Speeds
from equipoise.policies.stages.guard import (
    guard_acquit,
    guard_blocked,
    guard_empty,
    guard_review,
    guard_watch,
)
from equipoise.policies.stages.watch import corrected, going_back_pays, measured, remember_exchanges, way_back
from equipoise.policies.stages.watch import review as look

IDS = np.array([3, 7, 9], dtype=np.int64)
RULES = {"noise": 0.05, "settle_s": 10.0, "backoff_s": 100.0}


def watched(before=(10.0, 20.0), ids=(3, 7), time_s=0.0, record=None, group=None):
    return guard_watch(
        guard_empty() if record is None else record,
        np.array(ids, dtype=np.int64),
        np.array(before),
        time_s,
        np.arange(1.0, 1.0 + len(ids)),
        group=None if group is None else np.array(group, dtype=np.int64),
    )


def review(record, time_s, goodput, ids=IDS):
    return guard_review(record, ids, np.array(goodput), time_s, **RULES)


def after(record, *goodputs, start_s=20.0):
    """Reviews one window apart; returns the last verdict and the record."""
    for n, goodput in enumerate(goodputs):
        verdict, record = review(record, start_s + 10 * n, goodput)
    return verdict, record


def test_a_gain_is_kept_and_a_loss_rolled_back():
    verdict, record = after(watched(), [11.0, 15.0, 1.0], [11.0, 15.0, 1.0])
    assert verdict.keep.tolist() == [3]
    assert verdict.rollback.tolist() == [7]
    assert verdict.undo.tolist() == [2.0]
    assert guard_blocked(record, IDS, 35.0).tolist() == [False, True, False]


@pytest.mark.parametrize(("goodput", "kept"), [(9.51, True), (9.49, False)])
def test_noise_is_not_a_loss(goodput, kept):
    verdict, _ = after(watched((10.0,), (3,)), [goodput, 1, 1], [goodput, 1, 1])
    assert bool(len(verdict.keep)) == kept
    assert bool(len(verdict.rollback)) != kept


def test_nothing_is_judged_before_two_windows_that_began_after_the_change():
    record = watched((10.0,), (3,))
    for time_s in (5.0, 9.0, 15.0):  # the first two windows began before the change
        verdict, record = review(record, time_s, [1.0, 1.0, 1.0])
        assert len(verdict.keep) + len(verdict.rollback) == 0
        assert guard_blocked(record, IDS, time_s)[0], "what is watched is left alone"
    verdict, _ = review(record, 25.0, [1.0, 1.0, 1.0])
    assert verdict.rollback.tolist() == [3]


def test_a_rising_trend_may_recover():
    rising = ([6.0, 1, 1], [8.0, 1, 1])
    verdict, record = after(watched((10.0,), (3,)), *rising)
    assert len(verdict.keep) + len(verdict.rollback) == 0
    verdict, record = after(record, [14.0, 1, 1], start_s=40.0)
    assert verdict.keep.tolist() == [3], "the last two are what counts"


def test_a_trend_that_comes_to_nothing_is_rolled_back_in_the_end():
    verdict, _ = after(watched((10.0,), (3,)), [4.0, 1, 1], [7.0, 1, 1], [8.0, 1, 1])
    assert verdict.rollback.tolist() == [3], "8 and one more step of 1 is not enough"
    slow = ([4.0, 1, 1], [7.0, 1, 1], [8.4, 1, 1])
    verdict, record = after(watched((10.0,), (3,)), *slow)
    assert len(verdict.rollback) == 0
    verdict, _ = after(record, [9.0, 1, 1], start_s=50.0)
    assert verdict.rollback.tolist() == [3], "four measurements are all it gets"


def test_a_group_is_judged_by_its_mean_ratio():
    paid, _ = after(watched(group=(5, 5)), [14.0, 16.0, 1], [14.0, 16.0, 1])
    assert paid.keep.tolist() == [3, 7]
    lost, _ = after(watched(group=(5, 5)), [11.0, 10.0, 1], [11.0, 10.0, 1])
    assert lost.rollback.tolist() == [3, 7]
    assert lost.undo.tolist() == [1.0, 2.0]


def test_backoff_doubles_until_a_change_is_kept():
    record, time_s = guard_empty(), 0.0
    for failures in range(3):
        record = watched((10.0,), (3,), time_s, record)
        verdict, record = after(record, [1.0, 1, 1], [1.0, 1, 1], start_s=time_s + 20)
        judged_s = time_s + 30
        assert verdict.rollback.tolist() == [3]
        end_s = judged_s + 100.0 * 2**failures
        assert guard_blocked(record, IDS, end_s - 1)[0]
        assert not guard_blocked(record, IDS, end_s)[0]
        time_s = end_s
    record = watched((10.0,), (3,), time_s, record)
    verdict, record = after(record, [10.0, 1, 1], [10.0, 1, 1], start_s=time_s + 20)
    assert verdict.keep.tolist() == [3]
    assert len(record["id"]) == 0, "a kept change clears the record"


def test_what_vanished_or_cannot_be_judged_is_forgotten():
    record = watched(group=(5, 5))
    verdict, record = review(record, 20.0, [10.0], ids=np.array([7], dtype=np.int64))
    assert len(verdict.keep) + len(verdict.rollback) == 0
    assert not guard_blocked(record, IDS, 20.0).any()
    unknown = watched((np.nan, 0.0))
    assert not guard_blocked(unknown, IDS, 0.0).any()


def test_missing_measurements_postpone_the_verdict():
    verdict, record = after(watched((10.0,), (3,)), [np.nan, 1, 1], [np.nan, 1, 1], [np.nan, 1, 1])
    assert len(verdict.keep) + len(verdict.rollback) == 0
    assert guard_blocked(record, IDS, 50.0)[0]


def test_records_are_never_changed_in_place():
    record = watched()
    before = {name: values.copy() for name, values in record.items()}
    for values in record.values():
        values.flags.writeable = False
    review(record, 30.0, [1.0, 1.0, 1.0])
    guard_watch(record, np.array([7]), np.array([5.0]), 1.0, np.array([0.5]))
    assert all(np.array_equal(record[name], before[name], equal_nan=True) for name in before)


def test_an_empty_memory_is_a_record():
    verdict, record = guard_review({}, IDS, np.ones(3), 0.0, **RULES)
    assert len(verdict.keep) == 0
    assert not guard_blocked({}, IDS, 0.0).any()
    assert len(record["id"]) == 0


@pytest.mark.parametrize(
    ("measured_s", "started_s", "counts"),
    [(20.0, 10.0, True), (10.0, 10.0, False), (5.0, 10.0, False), (5.0, np.nan, True)],
)
def test_a_goodput_counts_if_it_was_measured_after_the_start(measured_s, started_s, counts):
    """What was measured before was of other GPUs; of a job whose start is not known, all counts."""
    o = SimpleNamespace(jobs=SimpleNamespace(started_s=np.array([0.0, started_s, 0.0])))
    memory = {"goodput_id": np.array([1]), "goodput_s": np.array([measured_s])}
    assert measured(o, memory, np.array([1])).tolist() == [counts]


def test_a_goodput_that_was_never_measured_does_not_count():
    o = SimpleNamespace(jobs=SimpleNamespace(started_s=np.array([0.0, 0.0, 0.0, np.nan])))
    memory = {"goodput_id": np.array([1]), "goodput_s": np.array([5.0])}
    assert measured(o, memory, np.arange(4)).tolist() == [False, True, False, True]
    nothing = {"goodput_id": np.empty(0, np.int64), "goodput_s": np.empty(0)}
    assert measured(o, nothing, np.arange(4)).tolist() == [False, False, False, True]


@pytest.mark.parametrize(("restart_s", "pays"), [(0.7, True), (0.8, False)])
def test_going_back_pays_where_it_saves_more_than_a_restart(restart_s, pays):
    """15 samples take 1.5 s at 10 samples/s and 0.75 s at 20."""
    jobs = {"remaining_samples": 15.0, "goodput_samples_per_s": 10.0, "restart_s": restart_s}
    o = SimpleNamespace(jobs=SimpleNamespace(**{name: np.array([value]) for name, value in jobs.items()}))
    assert going_back_pays(o, 0, 20.0) is pays


def test_nodes_are_left_alone_twice_as_long_each_time():
    """A trial at 1000 s that cost 20 s at a noise of 0.1, and a job that is left alone for 300 s."""
    jobs = {"goodput_samples_per_s": np.array([10.0]), "restart_s": np.array([10.0])}
    o = SimpleNamespace(
        time_s=1000.0, jobs=SimpleNamespace(**jobs), nodes=range(3),
        gpus=SimpleNamespace(job=np.array([0, 0, 0]), node=np.arange(3)),
    )  # fmt: skip
    row = np.array([0])
    memory = {
        "guard": {"id": row, "blocked_until_s": np.array([1300.0]), "failures": np.array([1])},
        "undo_id": row, "undo_gpu": np.array([0]), "undo_offset": np.array([0, 1]),
        "shunned": np.array([0, 0, 2]), "shunned_until_s": np.full(3, -np.inf),
    }  # fmt: skip
    before = {"id": row, "since_s": np.array([900.0]), "before": np.array([10.0])}
    after = remember_nodes(SimpleNamespace(observation=o), memory, before, row[:0], row, 0.1)
    assert after["shunned"].tolist() == [0, 1, 3]
    assert after["shunned_until_s"].tolist() == [-np.inf, 1300.0, 2200.0]
    assert after["guard"]["blocked_until_s"].tolist() == [1300.0]


def test_exchanges_are_expected_to_take_as_much_longer_as_they_did_last():
    """Four times as long 600 s ago is twice as long by a half-life of 600 s; 0.6 s in place of 0.2 is thrice."""
    held = {"gpus_held": [0, 1, 2, 2], "gpus_per_worker": [1, 1, 1, 2], "exchange_s": [0.6, 0.6, 0.6, 0.6]}
    speeds = Speeds.of(
        job=[0, 1, 2, 2, 3],
        gpu_model=[0] * 5,
        gpus=[1, 1, 2, 3, 2],
        samples_per_s=[1.0] * 5,
        exchange_s=[0.2] * 5,
    )
    o = Observation.of(1000.0, jobs=Jobs.of(**held), speeds=speeds)
    before = {"exchange_over": np.array([4.0, 1.0]), "exchange_s": 400.0}
    after = remember_exchanges(o, before, 600.0)
    assert after["exchange_over"].tolist() == [2.0, 1.0, pytest.approx(3.0), 1.0]
    assert after["exchange_s"] == 1000.0
    assert remember_exchanges(o, before | {"exchange_s": 2000.0}, 600.0)["exchange_over"][0] == 4.0
    assert remember_exchanges(Observation.of(1000.0, jobs=o.jobs), before, 600.0)[
        "exchange_over"
    ].tolist() == [2.0, 1, 1, 1]
    table = (np.array([0, 1, 2, 3]), None, None, None, np.full(4, 0.5), None)
    over = {"exchange_over": np.array([2.0, 3.0, 4.0, 5.0])}
    assert corrected(table, o, over)[4].tolist() == [1.0, 1.5, 0.5, 2.5]  # who exchanges now is measured


def test_the_way_back_is_open_while_its_gpus_are_there():
    """Job 1 held GPUs 0 and 2, and holds GPU 0 now."""
    memory = {
        "undo_id": np.array([1, 4]),
        "undo_offset": np.array([0, 2, 3]),
        "undo_gpu": np.array([0, 2, 1]),
    }
    for third, up, open_again in ((-1, True, True), (1, True, True), (3, True, False), (-1, False, False)):
        o = Observation.of(
            nodes=Nodes.of(gpus=[2, 1], first_gpu=[0, 2], gpus_free=[0, 0], up=[True, up]),
            jobs=Jobs.of(id=range(5)),
            gpus=Gpus.of(node=[0, 0, 1], job=[1, 3, third]),
        )  # fmt: skip
        back = way_back(Draft(o), memory, 1)
        assert (None if back is None else back.tolist()) == ([0, 2] if open_again else None)
        assert [way_back(Draft(o), memory, row) for row in (0, 2, 4, 9)] == [None] * 4
    assert not going_back_pays(o_of(15.0, 10.0, 0.75), 0, 20.0)  # just as much as it saves
    assert going_back_pays(o_of(15.0, 10.0, math.nan), 0, 20.0)


def o_of(remaining, goodput, restart_s):
    jobs = {"remaining_samples": remaining, "goodput_samples_per_s": goodput, "restart_s": restart_s}
    return SimpleNamespace(jobs=SimpleNamespace(**{name: np.array([value]) for name, value in jobs.items()}))


def test_a_goodput_is_fresh_where_it_or_what_is_left_has_changed():
    jobs = Jobs.of(
        id=range(4), state=[1, 1, 1, 1], rigid=[False, False, False, True],
        goodput_samples_per_s=[5.0, 5.0, 6.0, 5.0], remaining_samples=[100.0, 99.0, 100.0, 1.0],
    )  # fmt: skip
    o = Observation.of(1000.0, 10.0, jobs=jobs)
    memory = {
        "goodput_id": np.arange(3), "goodput": np.full(3, 5.0), "goodput_s": np.full(3, 900.0),
        "remaining": np.full(3, 100.0),
    }  # fmt: skip
    _, after = look(o, memory, 0.05, 300.0)
    assert (after["goodput_id"].tolist(), after["goodput_s"].tolist()) == ([0, 1, 2], [900.0, 1000.0, 1000.0])
    _, first = look(o, {}, 0.05, 300.0)
    assert first["goodput_s"].tolist() == [1000.0] * 3
    nan = Observation.of(1000.0, 10.0, jobs=jobs.replaced(goodput_samples_per_s=np.full(4, np.nan)))
    assert look(nan, {}, 0.05, 300.0)[1]["goodput_s"].tolist() == [-np.inf] * 3


def test_a_failure_is_taken_back_with_its_back_off():
    """Job 3 has failed twice, and once by another cause; job 7 once, and that by another cause."""
    record = {name: values.copy() for name, values in watched().items()}
    record |= {
        "watched": np.zeros(2, dtype=bool), "failures": np.array([2, 1]), "blocked_until_s": np.array([99.0, 99.0]),
    }  # fmt: skip
    after = guard_acquit(record, np.array([3, 7, 9]))
    assert (after["id"].tolist(), after["failures"].tolist()) == ([3], [1])
    assert not guard_blocked(after, IDS, 50.0).any()
    assert guard_blocked(guard_acquit(record, np.array([7])), IDS, 50.0).tolist() == [True, False, False]
