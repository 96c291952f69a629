"""Corners of the kernels that random inputs seldom reach: ties, room for nothing more, nobody and nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.policies.kernels.allocation import entitlements, remote_share
from equipoise.policies.kernels.dataflow import Links, pick_shards
from equipoise.policies.kernels.deal import deal_by_share, exact_deal
from tests.oracles import policies as naive


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def dealt(most: tuple[int, ...], batch: int, micro: int, speed: tuple[float, ...]) -> tuple[list[int], bool]:
    """(samples, whether it was dealt) of one job that has 3 samples on each worker, shares by speed."""
    n = len(most)
    share = np.array(speed) / sum(speed)
    samples = np.full(n, 3, dtype=np.int64)
    response_s = 3.0 / np.array(speed)
    out, done = deal_by_share(
        ints(0, n), np.ones(1, dtype=np.bool_), share, response_s, np.zeros(n), samples, ints(*most),
        ints(batch), ints(micro),
    )  # fmt: skip
    return out.tolist(), bool(done[0])


@pytest.mark.parametrize(
    ("most", "batch", "micro", "speed", "wanted"),
    [
        ((9, 9), 5, 2, (1.0, 1.0), ([3, 2], True)),  # equal ends: the rest goes to the first
        ((9, 9), 5, 2, (1.0, 1.5), ([2, 3], True)),  # or to whoever ends it first
        ((2, 9), 5, 2, (1.0, 0.9), ([2, 3], True)),  # among those who have room
        ((2, 2), 5, 2, (1.0, 1.0), ([3, 3], False)),  # nobody has: all keep what they have
        ((3, 2), 5, 2, (1.0, 1.0), ([3, 2], True)),  # just enough room
        ((2, 2), 4, 2, (1.0, 1.0), ([2, 2], True)),  # no rest, no room needed
    ],
)
def test_what_a_batch_leaves_over(
    most: tuple[int, ...], batch: int, micro: int, speed: tuple[float, ...], wanted: tuple[list[int], bool]
) -> None:
    assert dealt(most, batch, micro, speed) == wanted


def test_a_worker_without_samples_counts_as_if_it_had_one() -> None:
    """Of its response nothing is known per sample; the rest of 1 goes to the other, which is five times as fast."""
    out, done = deal_by_share(
        ints(0, 2), np.ones(1, dtype=np.bool_), np.array([0.5, 0.5]), np.array([5.0, 1.0]), np.full(2, 0.5),
        ints(0, 3), ints(9, 9), ints(5), ints(2),
    )  # fmt: skip
    assert (out.tolist(), done.tolist()) == ([2, 3], [True])


def test_shards_of_nobody_and_without_bytes_count_for_nobody() -> None:
    worker, size = ints(-1, 0, 0, 1, 1, 2), np.array([5.0, 3.0, 1.0, 2.0, 0.0, 0.0])
    local = np.array([False, True, False, False, True, False])
    total, remote = np.full(3, np.nan), np.full(3, np.nan)
    remote_share(worker, size, local, total, remote)
    assert total.tolist() == [4.0, 2.0, 0.0]
    assert remote.tolist() == [0.25, 1.0, 0.0]


def test_a_job_gets_of_each_node_what_it_wants_or_what_is_free() -> None:
    """A_i times the sum over nodes of min(wanted, free) by their weight; a node can be more than full."""
    wanted, free, weight = ints(0, 1, 3, 9, -2), ints(0, 2, 4, -1), np.array([7.0, 0.5, 0.25, 9.0])
    a, ratio = np.array([1.0, 2.0, 1.0, 1.0, 1.0]), np.full(5, np.nan)
    entitlements(wanted, a, free, weight, np.empty(5), ratio)
    assert ratio.tolist() == [
        a[i] * sum(w * max(0, min(wanted[i], f)) for f, w in zip(free, weight, strict=True)) for i in range(5)
    ]


@pytest.mark.parametrize(("ahead_bytes", "goes"), [(14e6, True), (18e6, False)])
@pytest.mark.parametrize("donor_node", [0, 2])
def test_a_shard_that_its_owner_would_fetch_does_not_wait_behind_itself(
    donor_node: int, ahead_bytes: float, goes: bool
) -> None:
    """It is among the bytes that its source still has to send; 14 MB before it, 4 MB of its own and a second of
    training end at 19 s, the owner at 20 s: and at 23 s behind itself. The numbers of the nodes decide nothing.
    """
    source, size = 2 - donor_node, 4e6
    nobody = np.empty(0)
    links = Links(nobody.astype(np.int64), nobody, nobody, np.full(3, 1e6))
    sent = np.zeros(3)
    sent[source] = ahead_bytes + size
    received = np.zeros(3)
    received[donor_node] = size
    picked, owners, refused = pick_shards(
        ints(0), ints(1), np.array([10.0]), ints(0, 1, 1), ints(0), np.array([10.0]), np.array([size]),
        ints(source), ints(donor_node, 1), np.array([1.0, 10.0]), np.array([20.0, 0.0]), np.full(3, 1e9),
        sent, received, links,
    )  # fmt: skip
    assert (picked.tolist(), owners.tolist(), refused) == (([0], [1], 0) if goes else ([], [], 1))
    assert received[donor_node] == (0.0 if goes else size)


def test_a_part_of_a_byte_is_a_size_too() -> None:
    total, remote = np.full(1, np.nan), np.full(1, np.nan)
    remote_share(ints(0, 0), np.array([0.375, 0.125]), np.array([True, False]), total, remote)
    assert (total.tolist(), remote.tolist()) == ([0.5], [0.25])


UNITS = 10**15


def test_any_number_of_units_is_dealt_at_once() -> None:
    """One at a time, these would take a month."""
    dealt = exact_deal(np.array([5.0, 0.0, 1.0]), np.array([1.0, 2.0, 4.0]), UNITS, 1, np.full(3, UNITS))
    assert dealt.sum() == UNITS
    assert dealt / UNITS == pytest.approx([4 / 7, 2 / 7, 1 / 7], rel=1e-12)


@given(st.integers(0, 2**32))
def test_a_deal_with_many_equal_ends_is_as_good_as_one_unit_at_a_time(seed: int) -> None:
    """Times far from zero, too, where several units of a worker end at what floats call the same time."""
    rng = np.random.default_rng(seed)
    workers, units = int(rng.integers(2, 8)), int(rng.integers(1, 30))
    low = 1 if units >= workers else 0
    cap = np.maximum(rng.integers(low, units + 1, workers), low)
    while cap.sum() < units:
        cap[rng.integers(workers)] += 1
    far_s = float(rng.choice([0.0, 0.0, 2.0**52, 2.0**53, 2.0**54]))
    fixed_s = far_s + rng.integers(0, 5, workers) * float(rng.integers(0, 2))
    unit_s = rng.choice([0.25, 0.5, 1.0, 2.0, 3.0], workers)
    dealt = exact_deal(fixed_s, unit_s, units, low, cap)
    assert dealt.sum() == units
    assert ((dealt >= low) & (dealt <= cap)).all()
    slow = naive.exact_deal(fixed_s, unit_s, units, low, cap)
    ends_s = [
        max(fixed_s[i] + given_[i] * unit_s[i] for i in range(workers) if given_[i])
        for given_ in (dealt, slow)
    ]
    assert ends_s[0] == ends_s[1]
