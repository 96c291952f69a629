"""New deals and the way back, of two jobs at once and by values; and the GPUs to go back to."""

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED
from equipoise.policies.stages.groups import group_workers
from equipoise.policies.stages.redeals import _changed, _old_deals, _slowest_s, review_deals
from equipoise.policies.stages.watch import _joined
from tests.policies.observations import change, one_job, together

NAN = np.nan
NOW = [24, 24, 20, 20, 20]


def two(time_s=100.0, goodput=(4.0, 3.0), samples=NOW, **columns):
    """A job of two workers at 2 samples/s, and one of three at 1, of which each has a third of 60."""
    o = together(one_job([2.0] * 2, batch=48, fixed_s=3.0), one_job([1.0] * 3, batch=60))
    o = change(
        change(o, "jobs", goodput_samples_per_s=goodput), "workers", samples_per_step=samples, **columns
    )
    o.time_s = time_s
    return o


def remembered(o, deal, deal_s, seen=NOW, rows=slice(0, 4)):
    ids = o.workers.id[rows]
    return {
        "deal_id": ids,
        "deal": np.array(deal),
        "deal_s": np.array(deal_s),
        "deal_seen": np.array(seen)[rows],
    }


@pytest.mark.parametrize(
    ("deal", "most", "old"),
    [
        ([30, 18, 10, 30], 99, [30, 18, 10, 30, 20]),  # the last was not there then
        ([30, 17, 10, 30], 99, [24, 24, 10, 30, 20]), ([30, 18, 10, 29], 99, [30, 18, 20, 20, 20]),
        ([30, 18, 10, 30], 30, [30, 18, 10, 30, 20]), ([30, 18, 10, 30], 29, NOW),
        ([31, 17, 10, 30], 30, [24, 24, 10, 30, 20]),
    ],
)  # fmt: skip
def test_the_old_deal_counts_where_it_is_the_whole_batch_and_fits(deal, most, old):
    o = two(samples_max=most)
    found, found_s = _old_deals(o, group_workers(o), remembered(o, deal, [0.1, 0.2, 0.3, 0.4]))
    assert found.tolist() == old
    now_s = o.workers.response_s_per_sample
    then_s = [0.1, 0.2, 0.3, 0.4, now_s[4]]
    assert found_s.tolist() == [
        t if n != m else s for s, t, n, m in zip(now_s, then_s, old, [24, 24, 20, 20, -1], strict=True)
    ]


def test_without_a_memory_the_deal_is_that_of_now():
    o = two()
    deal, deal_s = _old_deals(o, group_workers(o), {})
    assert deal.tolist() == NOW
    assert deal_s.tolist() == o.workers.response_s_per_sample.tolist()


@pytest.mark.parametrize(
    ("old_s", "seen", "cov", "changed"),
    [
        ([1.0, 1.0], NOW, NAN, False), ([1.0, 0.89], NOW, NAN, True), ([1.0, 0.92], NOW, NAN, False),
        ([1.12, 1.0], NOW, NAN, True), ([1.1, 1.0], NOW, NAN, False),
        ([1.0, 0.6], NOW, 0.2, False), ([1.0, 0.5], NOW, 0.2, True),  # 0.1 + 3 * 0.2: the window is of one step
        ([1.0, 0.5], [24, 24, 20, 19, 20], NAN, False),  # it had another deal in the window
    ],
)  # fmt: skip
def test_a_speed_has_changed_where_it_differs_by_more_than_noise_at_the_old_deal(old_s, seen, cov, changed):
    """Only workers 2 and 3 of the second job, of 1 s per sample, took other times before."""
    o = two(step_cov=cov)
    groups, now_s = group_workers(o), o.workers.response_s_per_sample.copy()
    now_s[2:4] = old_s
    memory = remembered(o, NOW, now_s, seen, slice(0, 5))
    assert _changed(o, groups, memory, np.array(NOW), now_s, 0.1).tolist() == [False, changed]
    other = np.array([24, 24, 19, 21, 20])
    assert _changed(o, groups, memory, other, now_s, 0.1).tolist() == [False, False]
    assert _changed(o, groups, {}, np.array(NOW), now_s, 0.1).tolist() == [False, False]


def test_the_slowest_step_of_a_deal_counts_fixed_parts():
    """3 s and half a second a sample; a second a sample."""
    o = two()
    assert _slowest_s(o, group_workers(o), np.array([10, 38, 25, 30, 5])).tolist() == pytest.approx(
        [22.0, 30.0]
    )


def reviewed(o, memory, planned=None, **more):
    plan = UNCHANGED if planned is None else UNCHANGED.with_(samples_per_step=np.array(planned))
    return review_deals(o, group_workers(o), plan, memory, 0.125, 50.0, **more)


NEW = [24, 24, 10, 30, 20]


def test_a_job_is_watched_from_its_first_new_deal_on():
    plan, state, values = reviewed(two(), {}, NEW)
    assert plan.samples_per_step.tolist() == NEW
    assert values == {"s311_undone": 0, "s311_backed_off": 0}
    record = state["deal_guard"]
    assert (record["id"].tolist(), record["since_s"].tolist(), record["before"].tolist()) == (
        [1],
        [100.0],
        [3.0],
    )
    assert (state["deal"].tolist(), state["deal_seen"].tolist()) == (NOW, NOW)
    later = two(105.0, samples=NEW)
    _, state, _ = reviewed(later, state, [24, 24, 15, 25, 20])
    assert state["deal_guard"]["since_s"].tolist() == [100.0], "a further deal begins no new watch"
    assert (state["deal"].tolist(), state["deal_seen"].tolist()) == (NOW, NEW)
    _, state, _ = reviewed(later, state, [20, 28, *NEW[2:]])
    assert state["deal_guard"]["id"].tolist() == [0, 1]
    assert reviewed(two(), {})[1]["deal_guard"]["id"].tolist() == []


def lost(last=(4.0, 2.5), **columns):
    """The second job had 3 samples/s; (plan, state, values) once that was measured twice at the new deal."""
    _, state, _ = reviewed(two(), {}, NEW)
    _, state, _ = reviewed(two(110.0, last, NEW, **columns), state)
    return reviewed(two(120.0, last, NEW, **columns), state)


def test_a_deal_that_lost_more_than_the_noise_is_undone_for_that_job():
    plan, state, values = lost()
    assert plan.samples_per_step.tolist() == NOW
    assert values == {"s311_undone": 1, "s311_backed_off": 1}
    record = state["deal_guard"]
    assert (record["id"].tolist(), record["blocked_until_s"].tolist()) == ([1], [170.0])
    plan, state, values = reviewed(two(130.0), state, [20, 28, *NEW[2:]])
    assert plan.samples_per_step.tolist() == [20, 28, 20, 20, 20], "the other job may"
    assert values == {"s311_undone": 0, "s311_backed_off": 1}
    plan, _, values = reviewed(two(170.0), state, NEW)
    assert (plan.samples_per_step.tolist(), values["s311_backed_off"]) == (NEW, 0)


def test_a_deal_is_kept_within_the_noise_or_where_the_old_one_would_be_no_faster():
    assert lost((4.0, 2.625))[0].samples_per_step is None
    slow = [3 / 24 + 0.5, 3 / 24 + 0.5, 1.5, 1.0, 1.0]  # 20 take 30 s then, as 30 of the other do now
    plan, state, values = lost(response_s_per_sample=slow)
    assert (plan.samples_per_step, values["s311_undone"]) == (None, 0)
    assert state["deal_guard"]["id"].tolist() == [], "nobody is backed off for it"
    faster = [*slow[:2], 1.4, 1.0, 1.0]
    assert lost(response_s_per_sample=faster)[2]["s311_undone"] == 1
    assert lost(samples_max=[99, 99, 99, 29, 99])[2]["s311_undone"] == 0, "who holds more than it can"


def test_gpus_to_go_back_to_are_kept_while_their_job_is_watched():
    memory = {
        "undo_id": np.array([2, 5, 7]), "undo_offset": np.array([0, 1, 3, 6]), "undo_gpu": np.arange(9, 15),
    }  # fmt: skip
    rows, offset, gpu = np.array([5, 6]), np.array([0, 2, 5]), np.arange(20, 25)
    found = _joined(memory, rows, offset, gpu, np.array([2, 5, 6]))
    assert [value.tolist() for value in found.values()] == [[2, 5, 6], [0, 1, 3, 6], [9, 20, 21, 22, 23, 24]]
    none = {"undo_id": rows[:0], "undo_offset": np.zeros(1, dtype=np.int64), "undo_gpu": gpu[:0]}
    found = _joined(none, rows, offset, gpu, np.array([5, 6]))
    assert [value.tolist() for value in found.values()] == [[5, 6], [0, 2, 5], [20, 21, 22, 23, 24]]
