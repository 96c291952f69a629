"""The guard by values: what a record holds, which groups are judged, and at which borders."""

import numpy as np
import pytest

from equipoise.policies.stages.guard import (
    guard_acquit,
    guard_blocked,
    guard_empty,
    guard_review,
    guard_watch,
)

NOBODY = np.empty(0, dtype=np.int64)


def ids(*given):
    return np.array(given, dtype=np.int64)


def watched(before, *, time_s=100.0, group=None, record=None):
    """Jobs watched since `time_s`, by id their goodput before; the way back is a tenth of it."""
    values = np.array(list(before.values()))
    groups = None if group is None else ids(*group)
    return guard_watch(record or guard_empty(), ids(*before), values, time_s, values / 10, group=groups)


def judged(record, *goodputs, begin_s=110.0, noise=0.25, known=None, **more):
    """Reviews 10 s apart of the goodputs by id; (kept, rolled back, way back, record)."""
    for k, goodput in enumerate(goodputs):
        verdict, record = guard_review(
            record,
            ids(*goodput),
            np.array(list(goodput.values())),
            begin_s + 10 * k,
            noise=noise,
            settle_s=10.0,
            **more,
        )
    return verdict.keep.tolist(), verdict.rollback.tolist(), verdict.undo.tolist(), record


def test_a_record_is_by_id_and_says_what_was_before():
    record = watched({7: 30.0, 3: 20.0, 5: np.nan, 9: 0.0, 11: -2.0, 13: np.inf}, group=(1, 2, 3, 4, 5, 6))
    assert record["id"].tolist() == [3, 7]
    assert record["group"].tolist() == [2, 1]
    assert (record["before"].tolist(), record["undo"].tolist()) == ([20.0, 30.0], [2.0, 3.0])
    assert (record["since_s"].tolist(), record["watched"].tolist()) == ([100.0, 100.0], [True, True])
    assert (record["reports"].tolist(), record["failures"].tolist()) == ([0, 0], [0, 0])
    assert record["blocked_until_s"].tolist() == [-np.inf, -np.inf]
    alone = watched({7: 30.0, 3: 20.0})
    assert alone["group"].tolist() == [3, 7]


def test_a_job_that_changes_again_is_watched_anew_and_others_as_before():
    _, _, _, record = judged(
        watched({3: 20.0, 7: 30.0}), {3: 1.0, 7: 29.0}, {3: 1.0, 7: 29.0}, backoff_s=50.0
    )
    assert (record["id"].tolist(), record["failures"].tolist(), record["blocked_until_s"].tolist()) == (
        [3],
        [1],
        [170.0],
    )
    record = watched({5: 40.0}, time_s=130.0, record=record)
    again = watched({3: 25.0}, time_s=170.0, record=record)
    assert again["id"].tolist() == [3, 5]
    assert (again["failures"].tolist(), again["since_s"].tolist()) == ([1, 0], [170.0, 130.0])
    assert (again["before"].tolist(), again["watched"].tolist()) == ([25.0, 40.0], [True, True])
    gone = watched({5: np.nan}, time_s=180.0, record=again)
    assert gone["id"].tolist() == [3], "what cannot be judged any more is not watched"
    _, rolled, _, record = judged(again, {3: 1.0, 5: 40.0}, {3: 1.0, 5: 40.0}, begin_s=180.0, backoff_s=50.0)
    assert rolled == [3]
    assert record["blocked_until_s"].tolist() == [290.0], "twice as long the second time"


def test_what_is_just_within_the_noise_is_kept():
    assert judged(watched({3: 20.0}), {3: 15.0}, {3: 15.0})[:2] == ([3], [])
    assert judged(watched({3: 20.0}), {3: 14.75}, {3: 14.75})[:3] == ([], [3], [2.0])
    assert judged(watched({3: 20.0}), {3: 16.0}, {3: 14.0})[:2] == ([3], []), "the mean of the last two"
    assert judged(watched({3: 20.0}), {3: 4.0}, {3: 11.0}, {3: 19.0})[:2] == ([3], [])


def test_what_would_be_good_in_one_more_window_may_go_on():
    assert judged(watched({3: 20.0}), {3: 5.0}, {3: 10.0})[:2] == ([], []), "10 and 5 more are 15"
    assert judged(watched({3: 20.0}), {3: 5.5}, {3: 10.0})[:2] == ([], [3])
    rising = [{3: 2.0}, {3: 9.0}, {3: 12.0}, {3: 13.0}]
    assert judged(watched({3: 20.0}), *rising[:3])[:2] == ([], [])
    assert judged(watched({3: 20.0}), *rising)[:2] == ([], [3])
    assert judged(watched({3: 20.0}), {3: 5.0}, {3: 10.0}, {3: 11.0}, reports=3)[:2] == ([], [3])
    assert judged(watched({3: 20.0}), {3: 5.0}, {3: 10.0}, reports=3)[:2] == ([], [])
    assert judged(watched({3: 20.0}), {3: 5.0}, reports=1)[:2] == ([], [3])


def test_a_window_that_began_at_the_change_counts():
    assert judged(watched({3: 20.0}), {3: 1.0}, {3: 1.0}, begin_s=110.0)[1] == [3]
    assert judged(watched({3: 20.0}), {3: 1.0}, {3: 1.0}, begin_s=109.0)[1] == []


def test_groups_are_judged_by_the_mean_of_their_own():
    """Ratios 1.5, 0.5, 0.25 of one group, 0.5 of another, 0.875 and 0.5 of a third, which ends at 0.6875."""
    record = watched({2: 10.0, 3: 20.0, 5: 40.0, 7: 30.0, 8: 16.0, 9: 10.0}, group=(4, 4, 4, 6, 1, 1))
    goodput = {2: 15.0, 3: 10.0, 5: 10.0, 7: 15.0, 8: 14.0, 9: 5.0}
    assert judged(record, goodput, goodput)[:3] == ([2, 3, 5], [7, 8, 9], [3.0, 1.6, 1.0])
    assert judged(record, goodput, goodput, noise=0.3125)[:2] == ([2, 3, 5, 8, 9], [7])


def test_a_group_waits_for_the_last_of_its_members():
    record = watched({2: 10.0, 3: 20.0}, group=(4, 4))
    one = {2: 1.0, 3: np.nan}
    assert judged(record, one, one)[:2] == ([], [])
    both = {2: 1.0, 3: 1.0}
    assert judged(record, one, both, both)[:2] == ([], [2, 3])


def test_a_group_of_which_one_has_gone_is_forgotten():
    record = watched({2: 10.0, 3: 20.0, 5: 30.0}, group=(4, 4, 6))
    *verdict, left = judged(record, {2: 1.0, 5: 1.0})
    assert verdict == [[], [], []]
    assert left["id"].tolist() == [5]
    assert judged(record, {9: 1.0})[3]["id"].tolist() == []
    assert judged(record, {})[3]["id"].tolist() == []


def test_back_offs_are_300_s_at_first_and_double():
    record, begin_s = guard_empty(), 100.0
    for doubled in (1, 2, 4, 8):
        record = watched({3: 20.0}, time_s=begin_s, record=record)
        _, rolled, _, record = judged(record, {3: 1.0}, {3: 1.0}, begin_s=begin_s + 10)
        assert rolled == [3]
        until_s = begin_s + 20 + 300.0 * doubled
        assert record["blocked_until_s"].tolist() == [until_s]
        assert guard_blocked(record, ids(2, 3, 4), until_s - 0.5).tolist() == [False, True, False]
        assert not guard_blocked(record, ids(3), until_s).any()
        begin_s = until_s
    record = watched({3: 20.0}, time_s=begin_s, record=record)
    kept, _, _, record = judged(record, {3: 20.0}, {3: 20.0}, begin_s=begin_s + 10)
    assert (kept, len(record["id"])) == ([3], 0)


def test_many_failures_block_for_very_long_but_not_for_a_number_that_is_none():
    record = dict(watched({3: 20.0}))
    record["failures"] = np.array([80])
    _, rolled, _, record = judged(record, {3: 1.0}, {3: 1.0}, backoff_s=1.0)
    assert rolled == [3]
    assert record["blocked_until_s"].tolist() == [120.0 + 2.0**60]
    assert record["failures"].tolist() == [81]


def test_who_is_acquitted_has_one_failure_less_and_may_change():
    record = dict(watched({3: 20.0, 5: 10.0, 7: 30.0}))
    record |= {
        "watched": np.array([False, True, False]), "failures": np.array([2, 0, 1]),
        "blocked_until_s": np.array([500.0, -np.inf, 600.0]),
    }  # fmt: skip
    after = guard_acquit(record, ids(3, 5, 6))
    assert (after["id"].tolist(), after["failures"].tolist()) == ([3, 5, 7], [1, 0, 1])
    assert after["blocked_until_s"].tolist() == [-np.inf, -np.inf, 600.0]
    assert guard_acquit(record, ids(7))["id"].tolist() == [3, 5]
    assert guard_acquit(record, NOBODY)["failures"].tolist() == [2, 0, 1]
    assert guard_acquit({}, ids(7))["id"].tolist() == []


@pytest.mark.parametrize("record", [{}, guard_empty()])
def test_an_empty_record_judges_and_blocks_nobody(record):
    assert judged(record, {3: 1.0})[:3] == ([], [], [])
    assert guard_blocked(record, ids(1, 3), 0.0).tolist() == [False, False]
    assert len(watched({3: np.nan}, record=record)["id"]) == 0
