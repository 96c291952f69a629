"""Whole periods of one job by hand, which exchanges can disturb each other, and how long data stays quiet."""

from __future__ import annotations

import math
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.policies.plan import LINEAR, SCRIPT
from equipoise.sim.advance import periods as p
from equipoise.sim.advance.links import Links
from equipoise.sim.advance.stretch import State, copied, refresh_window
from equipoise.sim.advance.waiting import anyone_waits, awaited, quiet_periods
from equipoise.sim.job.account import (
    BARRIER_WAIT,
    BUSY,
    EXPOSED_COMMUNICATION,
    INPUT_STALL,
    PIPELINE_BUBBLE,
    TENSOR_EXCHANGE,
    USEFUL,
    Use,
)
from equipoise.sim.randomness import noise, step_noise

ANCHOR_S = 50.0
PERIOD_S = 1.3
"""Steps of 200, 300 and 400 ms (the last of input), three of them: the last comes after 1.2 s, and its exchange of
300 ms is hidden for 200 ms behind its step."""


def fixed(**more: Any) -> p.Fixed:
    given = {
        "interval": 3, "batch": 16, "noise": step_noise(7, 0.0), "mean_interval": 3.0, "far_every": 1,
        "alone_s": 0.3, "near_s": 0.08, "gamma": 2.0, "noise_scale": -1.0, "noise_scale_growth": 0.0,
        "reference": 8.0, "drift": 0.0, "learning_rate": 1.0, "given": 16.0, "rate_rule": SCRIPT, "target": 1e6,
        "weight": 3.5, "divided": False, "credit": 1.0, "anchor_s": ANCHOR_S,
    }  # fmt: skip
    return p.Fixed(**(given | more))


def moving(**more: Any) -> p.Moving:
    given = {
        "first_step": 100, "samples": 2000, "steps": 70, "exchanges": 30, "run_count": 0, "run_base_s": 0.0,
        "run_period_s": 0.0, "useful": 0.0, "window_useful": 5.0, "window_exchange_s": 0.5, "turn": 0, "near": 11,
        "window_near_s": 0.25, "start_s": ANCHOR_S, "done": False,
    }  # fmt: skip
    return p.Moving(**(given | more))


class Advanced:
    """Three workers after some periods."""

    def __init__(
        self, periods: int, horizon_s: float = math.inf, checkpoint_s: float = math.inf,
        start: p.Moving | None = None, **more: Any,
    ) -> None:  # fmt: skip
        rows = np.zeros((11, 3))
        rows[:6] = (
            (0.2, 0.3, 0.1), (0.05, 0.1, 0.4), (1.0, 0.5, 2.0), (0.1, 0.2, 0.3), (0.2, 0.1, 0.05), (5.0, 7.0, 4.0),
        )  # fmt: skip
        rows[6:] = ((1.0,), (2.0,), (3.0,), (4.0,), (5.0,))
        self.worker, self.gpu_s, ends_s = p.PerWorker(*rows), np.arange(len(Use)) * 10.0, np.zeros(periods)
        scratch, space = p.scratch_for(3)
        self.done, self.moved = p.advance(
            periods, horizon_s, checkpoint_s, fixed(**more), start or moving(), self.worker, self.gpu_s, scratch,
            space, ends_s,
        )  # fmt: skip
        self.ends_s = ends_s[: self.done]

    def used(self, use: int) -> float:
        return float(self.gpu_s[use] - use * 10.0)


# --- sums ------------------------------------------------------------------------------------------------


def test_two_periods_by_hand() -> None:
    after = Advanced(2, credit=0.8)
    assert after.done == 2
    assert after.ends_s == pytest.approx([ANCHOR_S + PERIOD_S, ANCHOR_S + 2 * PERIOD_S])
    worker = after.worker
    assert worker.busy_s == pytest.approx([1 + 1.2, 1 + 1.8, 1 + 0.6])
    assert worker.busy_square == pytest.approx([2 + 6 * 0.04, 2 + 6 * 0.09, 2 + 6 * 0.01])
    assert worker.stall_s == pytest.approx([3.0, 3.0, 3 + 6 * 0.3])
    assert worker.wait_s == pytest.approx([4 + 2 * 0.6, 4 + 2 * 0.3, 4.0])
    assert worker.samples.tolist() == [5 + 30, 5 + 42, 5 + 24]
    busy = 2 * (0.6 * 1.0 + 0.9 * 0.5 + 0.3 * 2.0)
    useful = 0.8 * 2 * 48
    assert after.used(BUSY) == pytest.approx(busy)
    assert after.used(INPUT_STALL) == pytest.approx(2 * 0.9 * 2.0)
    assert after.used(BARRIER_WAIT) == pytest.approx(2 * (0.6 * 1.0 + 0.3 * 0.5))
    assert after.used(EXPOSED_COMMUNICATION) == pytest.approx(2 * 0.1 * 3.5)
    assert after.used(USEFUL) == pytest.approx(busy * 0.8)
    assert (after.used(PIPELINE_BUBBLE), after.used(TENSOR_EXCHANGE)) == (0.0, 0.0)
    moved = after.moved
    assert (moved.first_step, moved.samples, moved.steps, moved.exchanges) == (106, 2096, 76, 32)
    assert (moved.useful, moved.window_useful) == pytest.approx((useful, 5 + useful))
    assert moved.window_exchange_s == pytest.approx(0.5 + 0.6)
    assert (moved.turn, moved.near, moved.window_near_s) == (0, 11, 0.25)
    assert (moved.run_count, moved.run_base_s, moved.done) == (2, 0.0, False)
    assert (moved.run_period_s, moved.start_s) == pytest.approx((PERIOD_S, ANCHOR_S + 2 * PERIOD_S))


def test_gpus_of_divided_workers_wait_for_each_other_and_send() -> None:
    after = Advanced(1, divided=True)
    bubble, inside = 0.6 * 0.1 + 0.9 * 0.2 + 0.3 * 0.3, 0.6 * 0.2 + 0.9 * 0.1 + 0.3 * 0.05
    assert after.used(PIPELINE_BUBBLE) == pytest.approx(bubble)
    assert after.used(TENSOR_EXCHANGE) == pytest.approx(inside)
    assert after.used(BUSY) == pytest.approx(1.65 - bubble - inside)
    assert after.used(USEFUL) == pytest.approx(1.65 - bubble - inside)


def test_what_a_sample_is_worth_grows_with_the_noise_scale() -> None:
    """(24 x (1 + useful / 2 x 1000) + 8) / (that + 16) / (1 + 0.25 x 2), at three quarters of the best rate."""
    more = {
        "noise_scale": 24.0,
        "noise_scale_growth": 0.5,
        "drift": 0.25,
        "learning_rate": 0.75,
        "rate_rule": LINEAR,
    }
    after, useful = Advanced(2, target=1000.0, start=moving(useful=300.0), **more), 300.0
    for _ in range(2):
        phi = 24.0 * (1 + 0.5 * useful / 1000.0)
        useful += 48 * (phi + 8) / (phi + 16) / 1.5 * (0.75 * 1.25)
    assert after.moved.useful == pytest.approx(useful)
    assert after.used(USEFUL) == pytest.approx(1.65 * (useful - 300.0) / 48)
    grown = Advanced(1, target=1000.0, start=moving(useful=1e9), **more).done
    assert grown == 0
    one = Advanced(1, interval=1, noise_scale=0.0, reference=4.0)
    assert one.moved.useful == pytest.approx(16 * 4 / 16)


# --- when periods end ------------------------------------------------------------------------------------


def test_a_period_as_long_as_those_before_it_is_multiplied_and_another_begins_a_run() -> None:
    length_s = Advanced(1).moved.run_period_s
    other = Advanced(2, start=moving(run_count=2, run_base_s=0.5, run_period_s=0.7))
    assert other.ends_s == pytest.approx([ANCHOR_S + 1.9 + PERIOD_S, ANCHOR_S + 1.9 + 2 * PERIOD_S])
    assert (other.moved.run_count, other.moved.run_base_s) == (2, pytest.approx(1.9))
    alike = Advanced(2, start=moving(run_count=4, run_base_s=2.0, run_period_s=length_s))
    assert alike.ends_s.tolist() == [ANCHOR_S + (2.0 + 5 * length_s), ANCHOR_S + (2.0 + 6 * length_s)]
    assert (alike.moved.run_count, alike.moved.run_base_s) == (6, 2.0)


def test_a_stretch_ends_before_the_horizon_but_does_one_period() -> None:
    first, second, third = Advanced(3).ends_s.tolist()
    for horizon_s, done in ((third, 3), (third - 1e-9, 2), (second, 2), (second - 1e-9, 1), (first - 1.0, 1)):
        after = Advanced(9 if done < 3 else 3, horizon_s)
        assert (after.done, after.moved.run_count, after.moved.steps) == (done, done, 70 + 3 * done)


def test_a_stretch_ends_with_the_first_period_at_or_after_a_checkpoint() -> None:
    first, second, third = Advanced(3).ends_s.tolist()
    for checkpoint_s, done in (
        (first - 1.0, 1),
        (first, 1),
        (first + 1e-9, 2),
        (second, 2),
        (third - 1e-9, 3),
    ):
        assert Advanced(9, checkpoint_s=checkpoint_s).done == done


def test_a_job_is_done_with_the_period_that_reaches_its_target() -> None:
    done = Advanced(9, target=96.0)
    assert (done.done, done.moved.done, done.moved.useful) == (2, True, 96.0)
    more = Advanced(9, target=96.0 * (1 + 1e-8))
    assert (more.done, more.moved.done) == (2, False)  # a step is left, which is no whole period


@pytest.mark.parametrize(("far_every", "left"), [(1, 3), (2, 4)])
def test_a_period_that_would_be_cut_short_is_not_taken(far_every: int, left: int) -> None:
    """The last exchange is of all: where near workers meet, one step more has to be left."""
    for steps, done in ((left, 1), (left - 1, 0), (left - 0.5, 1)):
        after = Advanced(1, target=16.0 * steps, far_every=far_every)
        assert after.done == done
    assert Advanced(1, target=16.0 * (left - 1), far_every=far_every).moved == moving()


def test_near_workers_exchange_until_it_is_the_turn_of_all() -> None:
    """Near exchanges of 80 ms are hidden but for 7.9 ms behind steps of 400 ms."""
    after = Advanced(4, far_every=3, start=moving(turn=1))
    hidden_s = 0.4 + 0.08 - math.hypot(0.4, 0.08)
    near_s = 1.2 + 0.08 - hidden_s
    assert np.diff(after.ends_s, prepend=ANCHOR_S) == pytest.approx([near_s, PERIOD_S, near_s, near_s])
    assert (after.moved.turn, after.moved.near) == (2, 14)
    assert after.moved.window_near_s == pytest.approx(0.25 + 3 * 0.08)
    assert after.moved.window_exchange_s == pytest.approx(0.5 + 3 * 0.08 + 0.3)
    assert after.moved.exchanges == 34
    assert Advanced(5, far_every=3, start=moving(turn=1)).moved.turn == 0


def test_no_exchange_begins_before_all_are_in_their_last_step() -> None:
    """An exchange of 9 s would be hidden for all of its worker's last step, but another one is not there yet."""
    scratch, _ = p.scratch_for(3)
    scratch.finish[:3], scratch.begin[:3], scratch.last_s[:3] = (
        (2.0, 5.0, 4.0),
        (1.0, 1.5, 3.5),
        (1.0, 3.5, 0.5),
    )
    hidden_s = 3.5 + 9.0 - math.hypot(3.5, 9.0)
    assert p.meet(3, scratch, 9.0, 2.0) == pytest.approx((5.0, 3.5, 12.5))
    scratch.begin[2] = 1.25
    assert p.meet(3, scratch, 9.0, 2.0) == pytest.approx((5.0, 5.0 - hidden_s, 14.0 - hidden_s))
    assert p.meet(3, scratch, 0.0, 2.0) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize("workers", [1, 8, 9, 16, 19])
def test_the_slowest_worker_is_found_wherever_it_is_and_the_first_of_several(workers: int) -> None:
    for slowest in range(workers):
        scratch, _ = p.scratch_for(workers)
        scratch.finish[:workers] = 1.0 + np.arange(workers) / 64
        scratch.last_s[:workers] = 0.25 + np.arange(workers) / 32
        scratch.finish[slowest] = 3.0
        scratch.finish[slowest + 1 : workers] = 3.0 * (1 - 1e-10)
        last_s = 0.25 + slowest / 32
        begin_s = 3.0 - (last_s + 0.5 - math.hypot(last_s, 0.5))
        assert p.meet(workers, scratch, 0.5, 2.0) == pytest.approx((3.0, begin_s, begin_s + 0.5))
        scratch.begin[slowest] = 2.875
        assert p.meet(workers, scratch, 0.5, 2.0) == pytest.approx(
            (3.0, max(2.875, begin_s), max(2.875, begin_s) + 0.5)
        )


def test_steps_unfold_with_the_noise_of_each_worker_and_step() -> None:
    """The last of three steps is another one; input takes longer than some of them."""
    drawn = step_noise(7, 0.4)
    compute_s, input_s = np.array([0.2, 0.3, 0.1]), np.array([0.05, 0.29, 0.12])
    last_compute_s, last_input_s = np.array([0.4, 0.1, 0.7]), np.array([0.1, 0.5, 0.02])
    scratch, space = p.scratch_for(3)
    p.unfold(3, 41, drawn, compute_s, input_s, last_compute_s, last_input_s, scratch, space)
    for w in range(3):
        busy = [
            (last_compute_s if k == 2 else compute_s)[w] * noise(drawn, w, 41 + k) for k in range(3)
        ]  # fmt: skip
        work = [max(busy[k], (last_input_s if k == 2 else input_s)[w]) for k in range(3)]
        assert scratch.busy_s[w] == pytest.approx(sum(busy))
        assert scratch.square[w] == pytest.approx(sum(b * b for b in busy))
        assert scratch.stall_s[w] == pytest.approx(sum(work) - sum(busy))
        assert (scratch.begin[w], scratch.finish[w], scratch.last_s[w]) == pytest.approx(
            (work[0] + work[1], sum(work), work[2])
        )


def test_noise_is_drawn_anew_for_every_period() -> None:
    drawn = step_noise(7, 0.4)
    after = Advanced(2, noise=drawn)
    busy = [sum(c * noise(drawn, w, 100 + k) for k in range(6)) for w, c in enumerate((0.2, 0.3, 0.1))]
    assert after.worker.busy_s == pytest.approx([1 + b for b in busy])
    assert [len(part) for part in p.scratch_for(3)[0]] == [4] * 8
    assert [len(part) for part in p.scratch_for(4)[0]] == [4] * 8


# --- what is worked out ahead ----------------------------------------------------------------------------


def test_a_state_goes_on_with_the_sums_of_a_window_that_was_emptied() -> None:
    rows = np.arange(33.0).reshape(11, 3)
    state = State(fixed(), moving(), p.PerWorker(*rows), np.arange(9.0))
    other = copied(state)
    other.worker.busy_s[:], other.gpu_s[:] = -1.0, -1.0
    assert (state.worker.busy_s.tolist(), state.gpu_s.tolist()) == ([18.0, 19.0, 20.0], list(range(9)))
    names = ("busy_s", "busy_square", "stall_s", "wait_s", "samples")
    sums = {name: np.array([k + 0.25, k + 0.5, k + 0.75]) for k, name in enumerate(names)}
    window = SimpleNamespace(useful_samples=77.0, exchange_s=88.0, near_exchange_s=99.0, **sums)
    job: Any = SimpleNamespace(measured=SimpleNamespace(window=window))
    fresh = refresh_window(job, state)
    assert fresh.moving == moving(window_useful=77.0, window_exchange_s=88.0, window_near_s=99.0)
    for name in names:
        assert getattr(fresh.worker, name).tolist() == sums[name].tolist()
    assert fresh.worker.compute_s.tolist() == [0.0, 1.0, 2.0]


# --- links -----------------------------------------------------------------------------------------------


def exchanging(row: int, far: dict[int, float], near: dict[int, float] | None = None, every: int = 1) -> Any:
    """A job whose exchanges of all put so many bytes/s on links, at 4 bytes/s; those of near ones, at 8."""

    def of(loads: dict[int, float], rate: float) -> Any:
        usage = np.array(list(loads.values())) / rate
        links = np.array(list(loads), dtype=np.int64)
        return SimpleNamespace(
            links=links, usage=usage, rate_bytes_per_s=rate, volume_bytes=7.0 if loads else 0.0
        )

    config = SimpleNamespace(exchange=of(far, 4.0), near=of(near or {}, 8.0))
    return SimpleNamespace(row=row, config=config, progress=SimpleNamespace(far_every=every))


def test_exchanges_are_disturbed_where_they_could_overfill_a_link_together() -> None:
    links = Links(np.array([10.0, 20.0, 30.0]))
    first, second, third = (
        exchanging(5, {0: 6.0, 1: 9.0}),
        exchanging(2, {0: 4.0}),
        exchanging(3, {0: 0.5, 2: 1.0}),
    )
    assert links.set_job(first, 5) == []
    assert links.set_job(second, 2) == [5]
    assert links.load.tolist() == [10.0, 9.0, 0.0]
    assert not links.disturbed(first)
    assert links.set_job(third, 3) == [2, 5]
    assert [links.disturbed(job) for job in (first, second, third)] == [True, True, True]
    assert links.set_job(exchanging(2, {1: 12.0}), 2) == [3, 5]
    assert links.load.tolist() == [6.5, 21.0, 1.0]
    assert [links.disturbed(job) for job in (first, second, third)] == [True, True, False]
    assert links.set_job(None, 5) == [2, 3]
    assert links.load.tolist() == [0.5, 12.0, 1.0]
    assert links.set_job(None, 5) == []
    assert not links.disturbed(first)
    links.transfers[1] += 1
    assert [links.disturbed(job) for job in (second, third)] == [True, False]


def test_a_link_is_asked_for_the_most_of_both_levels() -> None:
    links = Links(np.full(4, 100.0))
    links.set_job(exchanging(0, {0: 6.0, 1: 9.0}, {1: 5.0, 2: 3.0}, every=2), 0)
    assert links.load.tolist() == [6.0, 9.0, 3.0, 0.0]
    links.set_job(exchanging(0, {0: 6.0, 1: 2.0}, {1: 5.0, 2: 3.0}, every=2), 0)
    assert links.load.tolist() == [6.0, 5.0, 3.0, 0.0]
    links.set_job(exchanging(0, {0: 6.0}, {1: 5.0}, every=1), 0)
    assert links.load.tolist() == [6.0, 0.0, 0.0, 0.0]
    links.set_job(exchanging(0, {0: 6.0}, {}, every=2), 0)
    assert links.load.tolist() == [6.0, 0.0, 0.0, 0.0]
    links.set_job(exchanging(0, {}, {}, every=2), 0)
    assert links.load.tolist() == [0.0] * 4
    assert not links.disturbed(exchanging(0, {}))


# --- data ------------------------------------------------------------------------------------------------


def queued(*pieces: list[tuple[int, str]], prefetch: int = 1) -> Any:
    """Workers with pieces of so many samples: here, on their way, or not yet asked for."""
    queues = [
        deque(
            SimpleNamespace(
                left=left, ready=state == "here", transfer="on its way" if state == "coming" else None
            )
            for left, state in of
        )
        for of in pieces
    ]
    left = sum(piece.left for queue in queues for piece in queue)
    return SimpleNamespace(
        queues=queues, prefetch=prefetch, left=left, is_ready=lambda worker, piece: piece.ready
    )


def test_a_worker_waits_for_pieces_that_hold_its_next_samples_and_are_not_here() -> None:
    data = queued([(5, "coming"), (3, "here"), (4, "coming"), (2, "coming")])
    first, _, third, fourth = data.queues[0]

    def waits(before: int, count: int) -> list[int]:
        found: list[Any] = list(awaited(data, 0, before, count))
        return [[first, None, third, fourth].index(piece) for piece in found]

    assert [waits(0, count) for count in (1, 5, 6, 8, 9, 12, 13, 99)] == [
        [0], [0], [0], [0], [0, 2], [0, 2], [0, 2, 3], [0, 2, 3],
    ]  # fmt: skip
    assert [waits(before, 1) for before in (4, 5, 7, 8, 11, 12, 14)] == [[0], [], [], [2], [2], [3], []]
    assert waits(4, 5) == [0, 2]
    assert waits(4, 4) == [0]
    two = queued([(5, "here")], [(2, "here"), (6, "coming")])
    for demand, waiting in (((5, 2), False), ((5, 3), True), ((0, 0), False)):
        assert anyone_waits(two, np.array(demand)) == waiting


def test_periods_are_quiet_until_a_piece_is_fetched_waited_for_or_the_epoch_is_over() -> None:
    def quiet(per_period: tuple[int, ...], *pieces: list[tuple[int, str]], prefetch: int = 1) -> int:
        return quiet_periods(queued(*pieces, prefetch=prefetch), np.array(per_period))

    here = [(7, "here"), (9, "here")]
    assert [quiet((need,), here) for need in (1, 5, 8, 9, 16, 17)] == [16, 3, 2, 1, 1, 0]
    assert quiet((3,), [(7, "here"), (9, "coming")]) == 2
    assert quiet((3,), [(6, "here"), (9, "coming"), (5, "asked")]) == 2
    assert quiet((1,), [(6, "here"), (5, "here"), (9, "asked")]) == 6  # fetched when the second is begun
    assert quiet((1,), [(6, "here"), (5, "here"), (9, "asked")], prefetch=2) == 0
    assert quiet((1,), [(6, "here"), (5, "here"), (4, "here"), (9, "asked")], prefetch=2) == 6
    assert quiet((1,), [(6, "here"), (5, "coming"), (4, "here"), (9, "asked")], prefetch=2) == 6
    assert quiet((1,), [(6, "here"), (5, "here"), (4, "coming"), (9, "asked")], prefetch=1) == 11
    assert quiet((1,), [(5, "coming"), (4, "coming"), (3, "here")]) == 0
    assert quiet((1,), [(5, "here"), (4, "coming"), (3, "coming")]) == 5
    assert quiet((3, 2), [(7, "here"), (9, "here")], [(5, "here"), (8, "coming")]) == 2
    assert quiet((3, 0), [(7, "here"), (9, "here")], [(8, "coming")]) == 5
    assert quiet((2, 3), here, here) == 5
