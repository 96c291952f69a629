"""How much a rank may be dealt so that it does not wait for files: made-up rates, no clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.data.at_hand import Reading, samples_at_hand, samples_in_time
from equipoise.live.data.index import Shard
from equipoise.live.data.plane import HEAD, packed
from equipoise.live.data.view import DataView
from equipoise.live.stepping import Stepping
from equipoise.live.train.deal import Deal, LivePiece
from equipoise.policies.observation import Ints

MANY = 2**62
EQUAL = np.array([20, 20])


def reading(
    here: int, arrival_s: list[float], supply: float, each_s: float = 0.005, taking_s: float = 0.2
) -> Reading:
    """A rank with `here` samples in its cache, and files of 40 behind them that arrive then."""
    samples, arrivals = [float(here), *[40.0] * len(arrival_s)], [0.0, *arrival_s]
    first = 0 if here else 1
    return Reading(np.array(samples[first:]), np.array(arrivals[first:]), each_s, supply, taking_s)


FAST = reading(40, [0.2, 0.4, 0.6, 0.8], 300.0)  # computes 200 samples/s, and reads more


def bound(
    slow: Reading, fast: Reading = FAST, dealt: Ints = EQUAL, most: int = MANY, rounds: int = 3, unit: int = 1,
    last: bool = False,
) -> list[int]:  # fmt: skip
    return samples_in_time([fast, slow], 0.0, dealt, np.array([MANY, most]), rounds, unit, last=last).tolist()


def test_a_rank_is_dealt_what_it_has_until_its_next_file_is_here() -> None:
    assert bound(reading(20, [0.78, 1.7], 44.0)) == [MANY, 6]  # three rounds of 0.17 s
    assert bound(reading(20, [0.1, 1.0], 44.0)) == [MANY, 20]  # its file comes before it is through


def seconds(shares: tuple[int, int], slow: Reading, rounds: int) -> float:
    """How long some rounds take, of which the slow rank waits for its files; the fast one has all of them."""
    now_s, read = 0.0, 0
    ends = np.cumsum(slow.samples)
    for _ in range(rounds):
        read += shares[1]
        here_s = float(slow.arrival_s[np.searchsorted(ends, read)]) if read <= ends[-1] else np.inf
        now_s = max(now_s + shares[0] * FAST.each_s, max(now_s, here_s) + shares[1] * slow.each_s)
    return now_s


@pytest.mark.parametrize("here", [3, 7, 20, 30, 41])
@pytest.mark.parametrize("first_s", [0.05, 0.2, 0.35, 0.5, 0.9])
@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_the_rounds_so_dealt_wait_for_no_file(here: int, first_s: float, rounds: int) -> None:
    """But for half a round, and not for longer than with the deal by what lasts: 32 and 8 samples."""
    slow = reading(here, [first_s + 0.9 * k for k in range(9)], 44.0)
    most = min(bound(slow, rounds=rounds, dealt=np.array([32, 8]))[1], 8)
    took_s, half_s = seconds((40 - most, most), slow, rounds), 0.5 * (40 - most) * FAST.each_s
    if here >= rounds:  # else all wait in any case
        assert took_s <= 2 * rounds * half_s + half_s
    assert took_s <= seconds((32, 8), slow, rounds) + half_s


def test_more_at_hand_or_a_sooner_arrival_lets_a_rank_have_more() -> None:
    by_hand = [bound(reading(here, [0.9], 44.0))[1] for here in (6, 12, 24, 48)]
    by_arrival = [bound(reading(9, [s], 44.0))[1] for s in (0.9, 0.4, 0.2, 0.1)]
    by_rounds = [bound(reading(24, [0.9], 44.0), rounds=n)[1] for n in (5, 4, 3, 2)]
    for found in (by_hand, by_arrival, by_rounds):
        assert found == sorted(found)
        assert found[-1] > found[0]
    slower = Reading(
        FAST.samples, FAST.arrival_s, 0.02, 300.0, 0.2
    )  # rounds are longer, so more comes in them
    assert bound(reading(9, [0.3], 44.0), slower)[1] > bound(reading(9, [0.3], 44.0))[1]


def test_a_rank_without_anything_at_hand_keeps_its_lasting_part() -> None:
    """All wait for its file in any case."""
    both = [reading(0, [0.7, 1.6], 44.0)] * 2
    assert samples_in_time(both, 0.0, EQUAL, np.array([MANY, MANY]), 3, 1, last=False).tolist() == [20, 20]
    assert bound(reading(0, [0.7, 1.6], 44.0)) == [MANY, 7]  # 44 of 244 samples/s


def test_who_reads_as_fast_as_it_computes_or_is_not_known_is_not_bound() -> None:
    assert bound(reading(20, [0.78], 195.0)) == [MANY, MANY]
    assert bound(reading(20, [np.nan], 44.0)) == [MANY, MANY]
    assert bound(reading(20, [0.78], 44.0, each_s=np.nan)) == [MANY, MANY]
    assert bound(reading(20, [0.78], 44.0, each_s=0.0)) == [MANY, MANY]


def test_a_bound_of_memory_stays_and_all_bounds_together_hold_the_batch() -> None:
    assert bound(reading(40, [0.2, 0.4], 150.0), most=5)[1] == 5
    poor = [reading(8, [0.5, 1.4], 44.0), reading(4, [0.9, 1.8], 44.0)]
    found = samples_in_time(poor, 0.01, EQUAL, np.array([MANY, MANY]), 3, 1, last=False)
    assert found.sum() >= 40
    assert samples_in_time(poor, 0.01, EQUAL, np.array([9, 9]), 3, 1, last=False).tolist() == [9, 9]


def test_whole_micro_batches_fit_under_the_bounds() -> None:
    slow = reading(20, [0.78, 1.7], 44.0)
    assert bound(slow, unit=4) == [MANY, 6]
    assert bound(slow, unit=10) == [MANY, 10]  # not 0: its speed would be seen no more
    poor = [reading(8, [0.5, 1.4], 44.0), reading(4, [0.9, 1.8], 44.0)]
    found = samples_in_time(poor, 0.01, EQUAL, np.array([MANY, MANY]), 3, 8, last=False)
    assert (found // 8).sum() * 8 >= 40
    fast, slow = reading(87, [], np.inf), reading(33, [], np.inf, taking_s=0.9)
    assert bound(slow, fast, unit=4, last=True) == [32, 12]


def test_nearly_what_is_dealt_is_what_is_dealt() -> None:
    some = reading(58, [9.0], 100.0)  # 19.3 in each of three rounds
    assert bound(some) == [MANY, 20]


def test_the_last_rounds_are_dealt_by_what_each_still_has() -> None:
    fast, slow = reading(87, [], np.inf), reading(33, [], np.inf, taking_s=0.9)
    assert bound(slow, fast, last=True) == [29, 11]
    assert bound(slow, fast, last=False) == [MANY, MANY]
    assert bound(reading(30, [], np.inf, taking_s=0.9), reading(80, [], np.inf), last=True) == [
        30,
        11,
    ]  # of 40
    here = Reading(slow.samples, slow.arrival_s, slow.each_s, np.inf, 0.0)  # what it takes is on its node
    assert bound(here, fast, last=True) == [MANY, MANY]
    heavy = reading(114, [], np.inf, each_s=0.05), reading(6, [], np.inf)  # 1.9 s a round, or fetch one file
    assert bound(heavy[1], heavy[0], last=True) == [MANY, MANY]


@pytest.mark.parametrize(
    ("owned", "taking", "most"),
    [
        ((900, 100), (500, 50), (-1, -1)),  # enough for 12 rounds of 8 samples
        ((904, 56), (500, 50), (-1, 2)),  # 56 samples over 24 rounds
        ((904, 56), (500, 250), (-1, -1)),  # it fetches the others' faster than they train on them
        ((904, 56), (500, np.nan), (-1, -1)),  # not known
        ((190, 10), (500, 50), (-1, 2)),  # 5 rounds are left, and 40 samples of them are its part
        ((160, 40), (500, 50), (-1, -1)),  # it has them
        ((0, 0), (500, 50), (-1, -1)),
    ],
)
def test_a_rank_that_would_wait_for_what_others_have_is_dealt_what_it_has(
    owned: tuple[float, ...], taking: tuple[float, ...], most: tuple[int, ...]
) -> None:
    capacity = np.array([200.0, 50.0])
    found = samples_at_hand(np.array(owned, dtype=float), capacity, np.array(taking), 40, 12, -1)
    assert found.tolist() == list(most)


def test_the_last_round_takes_no_file_for_a_few_samples() -> None:
    def last(
        owned: tuple[int, int], shares: tuple[int, int], most: tuple[int, int] = (40, 20), unit: int = 1
    ) -> Any:
        sizes = np.array(owned)
        made = Deal.whole(np.arange(sizes.sum()), 2, np.array([0, 1]), 2, sizes=sizes)
        return made.kept(made.demand(np.array(shares), unit), np.array(most), unit).tolist()

    assert last((29, 11), (30, 10)) == [29, 11]
    assert last((22, 8), (36, 4)) == [27, 3]  # twice its part would hold the others up
    assert last((29, 11), (30, 10), most=(40, 10)) == [30, 10]  # it never had so many before
    assert last((30, 10), (32, 8), unit=4) == [32, 8]  # in whole micro-batches
    assert last((60, 20), (36, 4)) == [36, 4]  # there is another round


def test_arrivals_count_what_is_here_of_a_file_that_is_on_its_way() -> None:
    view = DataView([Shard(f"{k}.tar", 10, 1000, None, 0) for k in range(4)])
    report = np.zeros((1, view.length))
    report[0, 1] = 250.0
    report[0, HEAD : HEAD + 4] = (1000.0, 10.0, 0.5, 1.0)  # 100 bytes/s after half a second
    held, coming = (np.arange(4) == k for k in (0, 1))
    report[0, HEAD + 4 :] = np.concatenate([packed(held), packed(coming)])
    view.update(report, ["a"])
    queue = [LivePiece(k, k, 10 * k, 10 * k + 10) for k in (0, 1, 2)]
    assert view.arrivals_s(0, "a", queue).tolist() == pytest.approx([0.0, 7.5, 18.0])
    assert view.arrivals_s(0, "a", queue[::-1]).tolist() == pytest.approx([10.5, 18.0, 18.0])
    assert np.isnan(view.arrivals_s(0, "b", queue[2:])).all() == (
        view.path(0, "b")[0] != view.path(0, "b")[0]
    )


def test_the_first_decisions_on_files_come_early() -> None:
    def decided(plane: object, every: int) -> list[int]:
        parts = SimpleNamespace(
            options=SimpleNamespace(decide_every=every, takes_passes=False),
            agreement=SimpleNamespace(plane=plane),
        )
        stepping = Stepping(parts, lambda _: None)  # type: ignore[arg-type]
        found, before = [], 0
        for stepping.round in range(1, 60):
            if stepping.round - before >= stepping.decide_after():
                found.append(before := stepping.round)
        return found

    assert decided(object(), 10) == [2, 4, 7, 13, 23, 33, 43, 53]
    assert decided(object(), 3)[:4] == [2, 4, 7, 10]
    assert decided(object(), 1) == list(range(1, 60))
    assert decided(None, 10) == [10, 20, 30, 40, 50]
