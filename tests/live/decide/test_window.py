"""What a window of rounds says of each rank: every figure of a small case, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.decide.slow import SlowRanks, causes
from equipoise.live.decide.window import LiveWindow, Telemetry, joined, measure
from equipoise.live.train.rounds import COLUMNS, COMPUTE, SAMPLES, STALL, TAIL, UPDATE

# By rank and round: samples, waiting for data, computing, waiting at the exchange with it, updating (s).
ROUNDS = [
    [(10, 0.1, 1.0, 0.5, 0.1), (20, 0.2, 2.0, 0.4, 0.1), (30, 0.3, 3.0, 0.3, 0.1)],
    [(5, 0.0, 2.0, 0.2, 0.2), (5, 0.0, 2.0, 0.6, 0.2), (5, 0.0, 2.0, 0.3, 0.2)],
    [(0, 0.0, 0.0, 0.9, 0.0), (0, 0.0, 0.0, 0.7, 0.0), (0, 0.0, 0.0, 0.8, 0.0)],
]


def rows(rounds: list[list[tuple[float, ...]]] = ROUNDS) -> Any:
    return np.array([[[*columns, 7.0, 8.0] for columns in rank] for rank in rounds], dtype=np.float64)


def test_every_mean_of_a_window() -> None:
    seen = measure(rows(), [True, False, True])
    assert (seen.rounds, seen.exchanges) == (3, 2)
    assert seen.samples.tolist() == [60.0, 15.0, 0.0]
    # Busy: 1.2, 2.3 and 3.4 s of the first rank, 2.2 s each of the second; the third had no samples.
    assert seen.step_s.tolist() == pytest.approx([2.3, 2.2, math.nan], nan_ok=True)
    spread_s = math.sqrt(2.0 / 3.0)
    assert seen.step_cov.tolist() == pytest.approx([1.1 * spread_s / 2.3, 0.0, math.nan], nan_ok=True)
    # Computing, with the update: 1.1, 2.1 and 3.1 s.
    assert seen.computing_cov.tolist() == pytest.approx([spread_s / 2.1, 0.0, math.nan], nan_ok=True)
    assert seen.response_s_per_sample.tolist() == pytest.approx([6.9 / 60, 6.6 / 15, math.nan], nan_ok=True)
    assert seen.capacity().tolist() == pytest.approx([60 / 6.9, 15 / 6.6, math.nan], nan_ok=True)
    assert seen.stall_s.tolist() == pytest.approx([0.2, 0.0, 0.0])
    assert seen.fixed_s.tolist() == pytest.approx([0.1, 0.2, 0.0])
    # The shortest tails, 0.2, 0.4 and 0.3 s, are the exchange, and what is beyond them is waiting.
    assert seen.wait_s.tolist() == pytest.approx([0.3 / 3, 0.2 / 3, 1.5 / 3])
    assert seen.exchange_s == pytest.approx((0.2 + 0.3) / 2)
    assert math.isnan(seen.near_exchange_s)
    assert seen.span_s == pytest.approx(6.9 + 1.2)
    assert seen.each().tolist() == [20.0, 5.0, 0.0]
    assert seen.throughput() == pytest.approx(75.0 / 8.1)


def test_near_ranks_wait_for_each_other_alone_in_their_rounds() -> None:
    near, group = [False, True, False], np.array([0, 0, 1])
    seen = measure(rows(), [True, False, True], near, group)
    # In the second round the first two met, in 0.4 s, and the third one was alone: 0.7 s are its exchange.
    assert seen.near_exchange_s == pytest.approx(0.7)
    assert seen.wait_s.tolist() == pytest.approx([0.3 / 3, 0.2 / 3, (0.7 + 0.0 + 0.5) / 3])
    assert seen.exchange_s == pytest.approx(0.25)
    both = measure(rows(), [False, False, True], [True, True, False], group)
    assert both.near_exchange_s == pytest.approx((0.9 + 0.7) / 2)
    assert (both.exchange_s, both.exchanges) == (pytest.approx(0.3), 1)
    for more in ((near, None), (None, group)):
        assert math.isnan(measure(rows(), [True, False, True], *more).near_exchange_s)


@pytest.mark.parametrize("column", [SAMPLES, STALL, COMPUTE, TAIL, UPDATE])
def test_a_round_in_which_a_time_is_missing_is_left_out(column: int) -> None:
    some = rows()
    some[1, 0, column] = math.nan
    seen = measure(some, [True, False, True], [False, True, False], np.array([0, 0, 1]))
    assert (seen.rounds, seen.exchanges) == (2, 1)
    assert seen.samples.tolist() == [50.0, 10.0, 0.0]
    assert seen.exchange_s == pytest.approx(0.3)
    assert seen.near_exchange_s == pytest.approx(0.7)
    some[:, :, column] = math.nan
    nothing = measure(some, [True] * 3)
    assert nothing.rounds == 0
    assert np.isnan([nothing.samples, nothing.step_s, nothing.wait_s]).all()


def test_nothing_is_known_of_a_window_without_rounds() -> None:
    for known in (LiveWindow.unknown(2), Telemetry.unknown(2).window):
        assert (known.rounds, known.exchanges) == (0, 0)
        assert np.isnan([known.span_s, known.exchange_s, known.near_exchange_s, known.throughput()]).all()
        assert np.isnan(known.each()).tolist() == [True, True]
    assert Telemetry.unknown(3).first_free_round == 0


def test_the_passes_of_a_step_are_one_round() -> None:
    four = np.arange(28.0).reshape(
        1, 4, 7
    )  # two steps of two passes; the last columns are squares of gradients
    found = joined(four, [False, True, False, True])
    assert found[0].tolist() == [[7, 9, 11, 13, 15, 12, 13], [35, 37, 39, 41, 43, 26, 27]]
    assert joined(four, [False, False, True, True])[0, :, SAMPLES].tolist() == [0 + 7 + 14, 21]
    assert joined(four, [True] * 4) is four
    assert four[0, 1, 0] == 7  # what was given stays as it was


def of(*compute_s: float, **extra_s: float) -> LiveWindow:
    """Six equal rounds of ten samples, so long on each rank, with 10 ms of waiting and as much of updating."""
    made = np.zeros((len(compute_s), 6, len(COLUMNS)))
    made[:, :, SAMPLES], made[:, :, STALL], made[:, :, UPDATE], made[:, :, TAIL] = 10, 0.01, 0.01, 0.02
    made[:, :, COMPUTE] = np.array(compute_s)[:, None]
    made[1, :, STALL] += extra_s.get("input", 0.0)
    made[1, :, UPDATE] += extra_s.get("host", 0.0)
    return measure(made, [True] * 6)


@pytest.mark.parametrize(
    ("window", "told"),
    [
        (of(0.1, 0.2, 0.1), ("compute", "1.83 times; 20 ms per sample, the others 10 ms")),
        (of(0.1, 0.1, 0.1, input=0.06), ("input", "1.50 times; 7 ms per sample, the others 1 ms")),
        (of(0.1, 0.1, 0.1, host=0.06), ("host", "1.50 times; 7 ms per sample, the others 1 ms")),
        (of(0.1, 0.12, 0.1, host=0.04), ("host", "1.50 times; 5 ms per sample, the others 1 ms")),
        (of(0.1, 0.13125, 0.1), ("compute", "1.26 times; 13.1 ms per sample, the others 10 ms")),
        (of(0.1, 0.1299, 0.1), None),  # 149.9 ms for 120: under a quarter longer
        (
            of(0.04, 0.2, 0.1, 0.12),
            ("compute", "1.83 times; 20 ms per sample, the others 10 ms"),
        ),  # the median
    ],
)
def test_the_slow_rank_is_told_with_what_it_takes(window: LiveWindow, told: tuple[str, str] | None) -> None:
    assert causes(window, {}) == ({} if told is None else {1: told})


@pytest.mark.parametrize(("clock", "cause"), [(0.94, "thermal"), (0.96, "compute"), (math.nan, "compute")])
def test_a_clock_under_19_of_20_of_the_others_is_heat(clock: float, cause: str) -> None:
    found = causes(of(0.1, 0.2, 0.1), {"clock_ratio": np.array([1.0, clock, 1.0])})
    assert found[1][0] == cause
    waits = causes(of(0.1, 0.1, 0.1, input=0.1), {"clock_ratio": np.array([1.0, 0.5, 1.0])})
    assert waits[1][0] == "input"  # which no clock makes slow


def test_a_cause_is_told_when_it_has_lasted_for_two_windows() -> None:
    watch = SlowRanks()
    slow, waits, well = of(0.1, 0.2, 0.1), of(0.1, 0.1, 0.1, input=0.1), of(0.1, 0.1, 0.1)
    told = [watch.news(each, {}) for each in (slow, waits, waits, waits, slow, well, slow, slow)]
    assert [[cause for _, cause, _ in one] for one in told] == [
        [], [], ["input"], [], [], [], [], ["compute"]
    ]  # fmt: skip


def test_a_single_rank_and_an_idle_one_are_not_slow() -> None:
    assert causes(measure(rows(ROUNDS[:1]), [True] * 3), {}) == {}
    idle = [[(n, 0.0, 1.0, 0.1, 0.0)] * 3 for n in (10, 10, 0)]
    assert causes(measure(rows(idle), [True] * 3), {}) == {}
