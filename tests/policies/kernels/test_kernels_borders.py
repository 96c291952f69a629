"""Kernels where one value decides: just enough, just too late, equal costs; every figure worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.policies.kernels import dataflow, fetching
from equipoise.policies.kernels import sync as kernels
from equipoise.policies.kernels.dataflow import Links, pick_shards
from tests.policies.kernels.arguments import as_used

NAN, INF = math.nan, math.inf


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def flags(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.bool_)


def links(*bytes_per_s: float) -> Links:
    """Nodes with interfaces of these rates, of which no path was measured."""
    return Links(ints(), floats(), floats(), floats(*bytes_per_s))


# -- intervals -------------------------------------------------------------------------------------------------


def test_an_interval_follows_once_it_is_three_quarters_apart() -> None:
    h = floats(4.75, 4.74, 3.25, 3.26, 0.2, 30.0, 9.0, 9.0, 9.0, 9.0)
    drift = floats(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.05, NAN, 0.001)
    k = floats(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, NAN, 0.0, math.log(9.0 / 5.0) / 0.5)
    real, whole = kernels.next_interval(h, np.full(10, 4), k, drift, 0.5, 20.0)
    assert real == pytest.approx([4.75, 4.74, 3.25, 3.26, 1.0, 20.0, 3.0, 9.0, 9.0, 5.0])
    assert whole.tolist() == [5, 4, 3, 4, 1, 20, 3, 4, 4, 5]


def test_the_coefficient_of_the_slowest_that_counts() -> None:
    """With intervals of 2: r is 0.5 / (2 x 0.5), 0.5 / (2 x 0.25), 0 and so on."""
    first, counts = ints(0, 2, 3, 4, 6, 7), flags(1, 1, 1, 1, 1, 0, 1)
    found = kernels.sync_coefficient(
        first, np.full(5, 2.0), floats(0.5, 0.0, NAN, 0.5, 8.0), floats(0.5, 0.25, 1.0, 1.0, 0.5, 0.0, 1.0),
        counts,
        floats(0.75, 3.0, 1.0, 1.5, 1.0), floats(0.125, 1.0, 1.0, 0.25, 2.0),
    )  # fmt: skip
    assert np.array_equal(found, [0.75 / 2 - 0.125, 1.0, NAN, 1.5 / 1.5 - 0.125, -1.0], equal_nan=True)


def test_the_expected_longest_of_several_workers() -> None:
    """Of two and of three that vary alike 1 / sqrt(pi) and 1.5 / sqrt(pi) deviations more than their mean."""
    one, two = 1.0 / math.sqrt(math.pi), 1.0 / math.sqrt(2.0 * math.pi)
    beyond_two = math.exp(-2.0) * two - math.erfc(math.sqrt(2.0))
    for mean, std, expected in (
        ((3.0, 3.0), (0.5, 0.5), 3.0 + 0.5 * one), ((3.0,) * 3, (0.5,) * 3, 3.0 + 0.75 * one),
        ((7.0,), (2.0,), 7.0),
        ((0.0, 0.0), (1.0, 0.0), two), ((5.0, 7.0), (1.0, 0.0), 7.0 + beyond_two), ((2.0, 9.0), (0.5, 0.5), 9.0),
    ):  # fmt: skip
        assert kernels.expected_maximum(floats(*mean), floats(*std)) == pytest.approx(expected, rel=6e-7)
    # Four steps of two workers: the sum varies twice as much.
    period_s = kernels.sync_period(4.0, floats(1.0, 1.0), floats(0.3, 0.3), 0.5, 1.0)
    assert period_s == pytest.approx(4.0 + 0.6 * one - 1.0 + 1.5, rel=1e-7)


def test_the_interval_of_least_cost_is_the_first_of_equals() -> None:
    """(h + 3) / h x (1 + 0.1 (h - 1)): 4, 2.75, 2.4, 2.275, 2.24, 2.25; without exchange and drift all cost 1."""

    def best(longest: int, exchange_s: float = 3.0, drift: float = 0.1, now: int = 1, std: float = 0.0,
             gamma: float = 1.0) -> tuple[int, float]:  # fmt: skip
        found, gain = kernels.best_interval(
            ints(0, 2), floats(1.0, 0.5), floats(0.0, std), floats(exchange_s), floats(gamma), floats(drift),
            ints(now), longest,
        )  # fmt: skip
        return int(found[0]), float(gain[0])

    assert best(24) == (5, pytest.approx(1.0 - 2.24 / 4.0))
    assert best(4) == (4, pytest.approx(1.0 - 2.275 / 4.0))
    assert best(5, now=2) == (5, pytest.approx(1.0 - 2.24 / 2.75))
    assert best(24, 0.0, 0.0, now=7) == (1, pytest.approx(0.0))
    for unknown in ((NAN, 0.1), (-1.0, 0.1), (3.0, NAN), (3.0, -0.1)):
        found, gain = best(24, *unknown, now=3)
        assert (found, math.isnan(gain)) == (3, True)
    assert math.isnan(best(24, std=NAN)[1])
    assert math.isnan(best(24, std=-0.5)[1])
    assert math.isnan(best(24, gamma=0.9)[1])
    levels = (
        ints(0, 1),
        floats(1.0),
        floats(0.0),
        floats(0.0),
        floats(0.0),
        floats(1.0),
        floats(0.0),
        floats(0.5),
    )
    h, every, gain = kernels.best_levels(*levels, ints(3), ints(4), ints(2), 12)
    assert (h.tolist(), every.tolist(), gain.tolist()) == ([1], [1], [pytest.approx(0.0)])
    h, every, _ = kernels.best_levels(*levels, ints(3), ints(4), ints(2), 0)
    assert (h.tolist(), every.tolist()) == ([3], [4])


def test_what_two_levels_cost() -> None:
    """Two steps of 1 s, every third exchange of 3 s, the others of 0.5 s: 5 + 2 x 2.5 s for six steps.

    The drift of 0.25 a step of 2 (1 + 0.5 x 2) - 1 steps costs three quarters more.
    """
    one = (floats(1.0), floats(0.0))
    given = (ints(0, 1), *one, floats(0.5), floats(3.0), floats(1.0), floats(0.25), floats(0.5))
    *_, gain = kernels.best_levels(*given, ints(2), ints(3), ints(4), 0)
    # The one interval of 4: 7 s x 1.75 for four steps.
    assert gain[0] == pytest.approx(1.0 - (10.0 * 1.75 / 6.0) / (7.0 * 1.75 / 4.0))
    h, every, _ = kernels.best_levels(*given, ints(2), ints(3), ints(4), 6)
    costs = {
        (n, m): ((n + 3.0) + (m - 1) * (n + 0.5)) * (1 + 0.25 * (n * (1 + 0.5 * (m - 1)) - 1)) / (n * m)
        for n in range(1, 7) for m in range(1, 7) if n * m <= 6
    }  # fmt: skip
    assert (int(h[0]), int(every[0])) == min(costs, key=lambda each: costs[each])


def test_shares_are_cut_in_quanta_where_some_leaves_its_band() -> None:
    """A quarter of what it has is the band; of an eighth each two workers need two quanta."""

    def cut(new: float, room: float = 1.0, quantum: float = 0.125) -> tuple[list[float], bool]:
        shares, changed = kernels.quantise_shares(
            ints(0, 2), floats(0.5, 0.5), floats(room), floats(new, 1.0 - new), floats(quantum), 0.25
        )  # fmt: skip
        return shares.tolist(), bool(changed[0])

    assert cut(0.625) == ([0.5, 0.5], False)
    assert cut(0.375) == ([0.5, 0.5], False)
    assert cut(0.6875) == ([0.75, 0.25], True)
    assert cut(0.64) == ([0.625, 0.375], True)
    assert cut(0.75, quantum=0.5) == ([0.5, 0.5], False)  # one quantum each is what they have
    assert cut(0.75, 0.999, quantum=0.5) == ([0.5, 0.5], False)  # less than a quantum each
    assert cut(0.75, 1.0 - 1e-10, quantum=0.25) == ([0.75, 0.25], True)


def test_the_longest_step_of_the_others() -> None:
    found = kernels.slowest_other(*as_used("wR", ints(0, 1, 3, 6), floats(9.0, 2.0, 3.0, 5.0, 7.0, 7.0)))
    assert found.tolist() == [0.0, 3.0, 2.0, 7.0, 7.0, 7.0]


# -- gradients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "deviation", "rate", "warm", "healthy"),
    [
        ([1, 1, 1], [5.0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]),
        ([1, 1, 1], [-5.1, 0, 0], [1, 1, 1], [1, 1, 1], [0, 1, 1]),
        ([1, 1, 1], [5.1, 0, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1]),
        ([1, 1, 1], [9, 9, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]),
        ([1, 1, 1, 1], [9, 9, 0, 0], [1] * 4, [1] * 4, [1] * 4),  # half of them: it is not those
        ([1, 1, 1, 1, 1], [9, 9, 0, 0, 0], [1] * 5, [1] * 5, [0, 0, 1, 1, 1]),
        ([1, 1], [9, 0], [1, 1], [1, 1], [0, 1]), ([1, 1], [9, 9], [1, 1], [1, 1], [0, 0]),  # of two either
        ([0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1], [0, 1, 1]),
        ([INF, 1, 1], [0, 0, 0], [1] * 3, [1] * 3, [0, 1, 1]),
        ([NAN, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1], [0, 1, 1]),
        ([NAN, 1, 1], [0, 0, 0], [NAN, 1, 1], [1] * 3, [1, 1, 1]),
        ([NAN, NAN], [0, 0], [1, 1], [1, 1], [1, 1]),
        ([NAN, NAN, 1, 1], [0, 0, 9, 0], [NAN] * 2 + [1] * 2, [1] * 4, [1] * 4),
    ],
)  # fmt: skip
def test_whose_gradients_are_sound(norm: Any, deviation: Any, rate: Any, warm: Any, healthy: Any) -> None:
    """Beyond five times what is usual, but not where half of those whose norm is known are; behind another job."""
    n = len(norm)
    found = dataflow.gradient_health(
        ints(0, 1, 1 + n), floats(1.0, *norm), floats(1.0, *rate), floats(0.0, *deviation), np.ones(n + 1),
        flags(1, *warm), 5.0,
    )  # fmt: skip
    assert found.tolist() == [True, *map(bool, healthy)]


# -- shards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "goes"),
    [
        ({}, True), ({"wanted": 5.0}, None), ({"wanted": 5.1}, True), ({"samples": 0.0}, None),
        ({"owned": (5.0, 0.0)}, False), ({"owned": (5.5, 0.0)}, True),  # 4 s on the way, 1 s to train
        ({"room": 4e6}, True), ({"room": 4e6 - 1}, False),
        # Who gets rid of as long as the transfer takes gains nothing.
        ({"capacity": (2.5, 10.0)}, False), ({"capacity": (2.4, 10.0)}, True),
        ({"sent": 14e6}, True), ({"sent": 15e6}, False), ({"received": 14e6}, True), ({"received": 15e6}, False),
        ({"owned": (20.0, 189.0)}, True), ({"owned": (20.0, 190.0)}, False),
    ],
)  # fmt: skip
def test_a_shard_goes_where_that_just_pays(changed: dict[str, Any], goes: bool | None) -> None:
    """Ten samples of 4 MB from node 0 to node 1 at 1 MB/s; the owner ends at 20 s. None: it is not even wanted."""
    of = {
        "wanted": 10.0, "samples": 10.0, "owned": (20.0, 0.0), "room": 1e9, "capacity": (1.0, 10.0), "sent": 0.0,
        "received": 0.0,
    } | changed  # fmt: skip
    owned, room = floats(*of["owned"]), floats(7e9, of["room"], 8e9)
    sent, received = floats(of["sent"], 2.0, 3.0), floats(5.0, of["received"], 6.0)
    picked, owners, refused = pick_shards(
        ints(0), ints(1), floats(of["wanted"]), ints(0, 1, 1), ints(0), floats(of["samples"]), floats(4e6),
        ints(0), ints(0, 1), floats(*of["capacity"]), owned, room, sent, received, links(1e6, 1e6, 1e6),
    )  # fmt: skip
    assert (picked.tolist(), owners.tolist(), refused) == (
        ([0], [1], 0) if goes else ([], [], int(goes is False))
    )
    if goes:
        assert owned.tolist() == [of["owned"][0] - 10.0, of["owned"][1] + 10.0]
        assert room.tolist() == [7e9, of["room"] - 4e6, 8e9]
        assert (sent.tolist(), received.tolist()) == (
            [of["sent"] + 4e6, 2.0, 3.0],
            [5.0, of["received"] + 4e6, 6.0],
        )
    else:
        assert (owned.tolist(), room[1], sent[0], received[1]) == (
            [*of["owned"]], of["room"], of["sent"], of["received"],
        )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "to_donor", "goes"), [(10.0, 5e5, True), (9.0, 5e5, False), (9.0, 1e6, True)]
)
def test_a_shard_wanted_in_part_stays_where_its_donor_fetches_slower(
    wanted: float, to_donor: float, goes: bool
) -> None:
    """It lies on node 2; if it came back, its donor at half of the speed would have it later."""
    picked, _, refused = pick_shards(
        ints(0), ints(1), floats(wanted), ints(0, 1, 1), ints(0), floats(10.0), floats(4e6), ints(2), ints(0, 1),
        floats(1.0, 10.0), floats(20.0, 0.0), np.full(3, 1e9), floats(0.0, 0.0, 4e6), floats(4e6, 0.0, 0.0),
        links(to_donor, 1e6, 1e6),
    )  # fmt: skip
    assert (picked.tolist(), refused) == (([0], 0) if goes else ([], 1))


def test_shards_that_the_receiver_stores_go_first_until_enough_went() -> None:
    """Of three shards of ten samples the second is where the receiver is; 16 samples are wanted."""
    owned, room, sent, received = floats(90.0, 0.0), floats(1e9, 1e9), floats(8e6, 4e6), floats(4e6, 0.0)
    picked, owners, refused = pick_shards(
        ints(0), ints(1), floats(16.0), ints(0, 3, 3), ints(2, 1, 0), np.full(3, 10.0), np.full(3, 4e6),
        ints(0, 1, 0), ints(0, 1), floats(1.0, 10.0), owned, room, sent, received, links(1e6, 1e6),
    )  # fmt: skip
    assert (picked.tolist(), owners.tolist(), refused) == ([1, 2], [1, 1], 0)
    assert (owned.tolist(), room.tolist()) == ([70.0, 20.0], [1e9, 1e9 - 4e6])
    assert (sent.tolist(), received.tolist()) == ([12e6, 0.0], [0.0, 4e6])


def test_how_urgent_and_how_small_a_shard_is() -> None:
    found = fetching.shard_priority(
        floats(2.0, 2.0, 0.0, 0.0, 3.0), floats(2.0, 4.0, 0.0, 5.0, NAN), floats(5.0, 10.0, 0.0, 0.0, 4.0),
        ints(0, 0, 1, 1, 2), 3, 0.7, 0.3,
    )  # fmt: skip
    assert found.tolist() == pytest.approx([0.7 + 0.15, 0.35, 0.7, 0.0, 0.0])


@pytest.mark.parametrize(("most", "listed"), [(9, [2, 3]), (1, [2])])
def test_what_shards_wait_for(most: int, listed: list[int]) -> None:
    """Node 2 is in another rack. Shards wait for those of the same source, target or way between two racks."""
    arrives_s, late, before = fetching.fetch_queues(*as_used(
        "wwwwww.RR.", floats(1e6, 3e6, 2e6, 1e6), ints(0, 2, 0, 1), ints(0, 0, 1, 1), floats(1.0, 4.0, 2.5, 2.9),
        ints(0, 0, 0, 0), ints(2, 2, 2, 2), most, ints(1, 2), ints(0, 0, 1), links(1e6, 1e6, 1e6),
    ))  # fmt: skip
    assert arrives_s.tolist() == [1.0, 4.0, 3.0, 3.0]
    assert late.tolist() == listed
    assert before.tolist() == [[4e6, 1e6], [4e6, 2e6]][: len(listed)]


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ({}, 1), ({"needed": 5.0}, 1), ({"needed": 4.9}, -1), ({"room": 4e6}, 1), ({"room": 3.9e6}, -1),
        ({"late": 3.6}, 1), ({"late": 3.5}, -1),  # 6 s against 10 / 4 + 3.5
        ({"late": 0.0, "owned": (12.2, 30.0)}, 1), ({"late": 0.0, "owned": (12.0, 30.0)}, -1),  # against 12 / 2
        ({"owned": (20.0, 89.0)}, 1), ({"owned": (20.0, 90.0)}, -1),  # 9 + 1 s against 20 / 2 and 20 / 4 + 5
    ],
)  # fmt: skip
def test_a_late_shard_goes_to_who_still_ends_before_its_owner(changed: dict[str, Any], chosen: int) -> None:
    """4 MB behind 1 MB take 5 s, and its ten samples 1 s."""
    of = {"needed": 9.0, "room": 1e9, "late": 5.0, "owned": (10.0, 30.0)} | changed
    room = floats(1e9, of["room"], 1e9)
    found = fetching.distribute_late(*as_used(
        "wwwwwwwwwwRwwww.", ints(0), floats(4e6), floats(10.0), ints(2), floats(of["needed"]), floats(of["late"]),
        ints(0), ints(0), ints(2), np.array([[0.0, 1e6]]), ints(0, 1), floats(2.0, 10.0), floats(4.0, 20.0),
        floats(*of["owned"]), room, links(1e6, 1e6, 1e6),
    ))  # fmt: skip
    assert found.tolist() == [chosen]
    assert room.tolist() == [1e9, of["room"] - (4e6 if chosen == 1 else 0.0), 1e9]


@pytest.mark.parametrize(
    ("owned", "chosen"), [
        ((90.0, 30.0, 30.0), 1), ((90.0, 60.0, 50.0), 2), ((90.0, 60.0, 30.0), 1), ((90.0, 20.0, 30.0), 2),
    ],
)  # fmt: skip
def test_of_several_the_least_late_then_the_least_busy_takes_a_late_shard(
    owned: tuple[float, ...], chosen: int
) -> None:
    """It arrives after 5 s; who has 3 s of work left stands still for 2 s, who has 5 or 6 s for none."""
    found = fetching.distribute_late(*as_used(
        "wwwwwwwwwwRwwww.", ints(0), floats(4e6), floats(10.0), ints(3), floats(9.0), floats(5.0), ints(0), ints(0),
        ints(3), np.array([[0.0, 1e6, 1e6]]), ints(0, 1, 2), floats(2.0, 10.0, 10.0), floats(4.0, 20.0, 20.0),
        floats(*owned), np.full(4, 1e9), links(1e6, 1e6, 1e6, 1e6),
    ))  # fmt: skip
    assert found.tolist() == [chosen]
