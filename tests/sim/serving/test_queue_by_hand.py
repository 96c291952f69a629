"""A few requests at a time, in batches by hand: who is answered when, and what is counted of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from equipoise.sim.serving.queue import CLASSES, RequestQueue, Tally

TIMES_S = (0.0, 2.0, 3.0, 3.5)
"""Of batches of none, 1, 2 and 3 requests."""


def queue_of(
    *replicas: tuple[float, float], within_s: float = 4.0, most: int = 0, cov: float = 0.0
) -> RequestQueue:
    queue = RequestQueue(np.array(TIMES_S), within_s, most, cov, np.random.default_rng(7))
    for ready_s, factor in replicas:
        queue.add(ready_s, factor)
    return queue


def opened(queue: RequestQueue, *arrival_s: float) -> RequestQueue:
    queue.open(np.array(arrival_s))
    return queue


def told(queue: RequestQueue) -> tuple[int, int, int, float]:
    tally = queue.take()
    return tally.served, tally.within, tally.refused, tally.latency_s


def test_what_waits_goes_into_the_next_batch_up_to_the_largest() -> None:
    """One at 10 until 12; three of the four that wait until 15.5; the last until 17.5."""
    queue = opened(queue_of((0.0, 1.0)), 10.0, 10.5, 11.0, 11.25, 11.5)
    queue.advance(12.0)
    assert (queue.waiting, told(queue), queue.busy_s[0]) == (4, (0, 0, 0, 0.0), 2.0)
    queue.advance(12.25)
    assert (queue.waiting, told(queue)) == (1, (1, 1, 0, 2.0))
    queue.advance(100.0)
    assert told(queue) == (4, 0, 0, 5.0 + 4.5 + 4.25 + 6.0)
    assert queue.busy_s[0] == 2.0 + 3.5 + 2.0
    assert queue.unanswered(100.0) == (0, 0)


def test_an_answer_just_in_time_counts() -> None:
    for within_s, count in ((2.0, 1), (1.75, 0)):
        queue = opened(queue_of((0.0, 1.0), within_s=within_s), 10.0)
        queue.advance(20.0)
        assert told(queue) == (1, count, 0, 2.0)


def test_a_request_goes_to_the_fastest_idle_replica_and_of_equal_ones_to_the_first() -> None:
    queue = opened(queue_of((0.0, 3.0), (0.0, 1.5), (0.0, 1.5), (0.0, 4.0)), 10.0, 10.25, 10.5)
    queue.advance(10.75)
    assert queue.busy_s.tolist() == [0.25, 0.75, 0.5, 0.0]
    queue.advance(40.0)
    assert queue.busy_s.tolist() == [6.0, 3.0, 3.0, 0.0]
    assert told(queue) == (3, 2, 0, 12.0)


def test_a_replica_takes_batches_from_when_it_is_ready() -> None:
    queue = opened(queue_of((12.0, 2.0)), 10.0, 11.0)
    queue.advance(11.5)
    assert (queue.waiting, queue.unanswered(14.5)) == (2, (2, 1))
    queue.advance(13.0)
    assert (queue.waiting, queue.busy_s[0]) == (0, 1.0)
    queue.advance(30.0)
    assert told(queue) == (2, 0, 0, 8.0 + 7.0)


def test_of_batches_that_end_together_the_first_slots_comes_first() -> None:
    """Both end at 12; slot 0 takes three of the four that wait, and slot 1 the last."""
    queue = opened(queue_of((0.0, 1.0), (0.0, 0.5)), 10.0, 10.0, 11.0, 11.25, 11.5, 11.625, 11.75)
    queue.advance(100.0)
    assert queue.busy_s[:2].tolist() == [2.0 + 3.5, 1.0 + 1.0 + 1.0]


def test_a_changed_factor_holds_for_batches_that_begin_later() -> None:
    """Slot 0 from 10 to 14; slot 1 comes anew: from 11 until 12, three more until 13.75, one until 14.75."""
    queue = opened(queue_of((0.0, 1.0), (0.0, 0.25)), 10.0, 11.0, 11.25, 11.5, 11.75, 13.0)
    queue.set_factor(1, 1.5)
    queue.set_factor(0, 2.0)
    assert queue.leave(1, 5.0) == 5.0
    queue.gone(1, 5.0)
    assert queue.add(11.0, 0.5) == 1
    queue.advance(11.5)
    queue.set_factor(0, 9.0)
    queue.advance(100.0)
    assert queue.busy_s[:2].tolist() == [4.0, 1.0 + 1.75 + 1.0]
    assert told(queue)[:3] == (6, 6, 0)


def test_a_queue_that_is_full_turns_away_and_one_without_a_bound_never_does() -> None:
    queue = opened(queue_of((0.0, 1.0), most=2), 10.0, 10.25, 10.5, 10.75, 11.0)
    queue.advance(11.5)
    assert (queue.waiting, told(queue)) == (2, (0, 0, 2, 0.0))
    queue.advance(40.0)
    assert told(queue)[:3] == (3, 1, 0)
    free = opened(queue_of((0.0, 1.0)), *[10.0] * 9)
    free.advance(10.5)
    assert (free.waiting, told(free)[2]) == (8, 0)
    none = opened(queue_of((20.0, 1.0), most=1), 10.0, 10.5)
    none.advance(11.0)
    assert (none.waiting, told(none)[2]) == (1, 1)


def test_requests_wait_from_one_window_to_the_next() -> None:
    queue = opened(queue_of((15.0, 1.0)), 10.0, 11.0)
    queue.advance(12.0)
    opened(queue, 12.5, 13.0, 13.5)
    queue.advance(14.0)
    assert queue.waiting == 5
    queue.advance(100.0)
    assert told(queue)[:3] == (5, 0, 0)
    assert queue.busy_s[0] == 3.5 + 3.0


def test_a_lost_batch_goes_back_to_the_head_of_the_queue() -> None:
    queue = opened(queue_of((0.0, 1.0), (0.0, 5.0)), 10.0, 10.5, 11.0, 11.5, 16.0)
    queue.advance(11.75)
    assert queue.waiting == 2
    queue.gone(1, 11.75)
    assert queue.waiting == 3
    queue.advance(13.0)
    assert queue.waiting == 0
    queue.advance(50.0)
    assert told(queue) == (5, 3, 0, 2.0 + 5.0 + 4.5 + 4.0 + 2.0)
    idle = queue_of((0.0, 1.0))
    idle.gone(0, 1.0)
    assert (idle.waiting, idle.add(3.0, 2.0)) == (0, 0)


def test_a_lost_batch_goes_to_the_fastest_replica_that_is_idle() -> None:
    """Slot 0 is at a request when it is lost at 10.25 s; slot 2 takes it until 11.25, and slot 1 the next."""
    queue = opened(queue_of((0.0, 0.25), (0.0, 3.0), (0.0, 0.5)), 10.0, 11.0)
    queue.advance(10.25)
    queue.gone(0, 10.25)
    assert queue.waiting == 1
    queue.advance(30.0)
    assert told(queue) == (2, 1, 0, 1.25 + 6.0)
    assert queue.busy_s[1:3].tolist() == [6.0, 1.0]


def test_a_replica_that_leaves_ends_its_batch_and_takes_no_other() -> None:
    queue = opened(queue_of((0.0, 1.0), (0.0, 2.0)), 10.0, 10.5, 11.0)
    queue.advance(11.25)
    assert queue.leave(0, 11.25) == 12.0
    queue.advance(13.0)
    assert (queue.waiting, told(queue)) == (1, (1, 1, 0, 2.0))
    queue.advance(15.0)
    assert told(queue)[0] == 1
    assert queue.leave(1, 15.0) == 18.5
    early = queue_of((20.0, 1.0))
    assert early.leave(0, 7.0) == 7.0
    opened(early, 21.0).advance(30.0)
    assert early.waiting == 1


def test_a_new_replica_has_a_slot_that_is_free_and_a_clean_account() -> None:
    queue = opened(queue_of((0.0, 1.0), (0.0, 1.0), (0.0, 1.0)), 10.0)
    queue.advance(20.0)
    assert queue.busy_s[0] == 2.0
    assert queue.add(0.0, 1.0) == 3
    assert queue.busy_s.size == 4
    queue.gone(0, 20.0)
    queue.gone(2, 20.0)
    assert [queue.add(0.0, 1.0) for _ in range(3)] == [0, 2, 4]
    assert (queue.busy_s[0], queue.busy_s.size) == (0.0, 8)


def test_batches_vary_about_the_stated_time_and_no_factor_is_used_twice() -> None:
    queue = queue_of((0.0, 1.0), cov=0.5)
    count = 4300
    opened(queue, *(10.0 * k for k in range(1, count + 1)))
    queue.advance(10.0 * count + 1e4)
    tally = queue.take()
    factors = np.random.default_rng(7).gamma(4.0, 0.25, 2 * 4096)[:count]
    assert tally.served == count
    assert tally.latency_s == pytest.approx(2.0 * factors.sum(), rel=1e-9)
    assert queue.busy_s[0] == pytest.approx(2.0 * factors.sum(), rel=1e-9)
    assert len(np.unique(queue._noise)) == 4096


def classes(*places: int) -> np.ndarray:
    found = np.zeros(CLASSES, dtype=np.int64)
    for place in places:
        found[place] += 1
    return found


def test_tallies_add_up() -> None:
    tally = Tally(5, 3, 2, 7.5, classes(1, 1, 4))
    tally.add(Tally(11, 6, 4, 1.25, classes(4, 9)))
    assert (tally.served, tally.within, tally.refused, tally.latency_s) == (16, 9, 6, 8.75)
    assert tally.classes[[1, 4, 9]].tolist() == [2, 2, 1]
    empty = Tally()
    assert (empty.served, empty.within, empty.refused, empty.latency_s, empty.classes.sum()) == (
        0,
        0,
        0,
        0.0,
        0,
    )
    assert len(empty.classes) == 44 * 256


@pytest.mark.parametrize(
    ("share", "steps"), [(0.125, 0.25), (0.25, 0.5), (0.5, 1.0), (0.625, 64.5), (0.75, 65.0), (1.0, 514.0)]
)
def test_percentiles_lie_within_their_class_in_proportion(share: float, steps: float) -> None:
    """Of 8: 4 in the first class, 2 in the 65th, 2 in the second of the third octave."""
    tally = Tally(8, classes=classes(0, 0, 0, 0, 64, 64, 513, 513))
    octave, step = divmod(steps, 256)
    assert tally.percentiles_s(share) == [pytest.approx(2.0 ** (octave - 20) * (1 + step / 256), rel=1e-12)]


def test_percentiles_of_nothing_are_not_known() -> None:
    found: Sequence[float] = Tally().percentiles_s(0.5, 0.9)
    assert [math.isnan(one) for one in found] == [True, True]
