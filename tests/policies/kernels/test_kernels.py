"""Every kernel of the data, task and sync stages against its plain twin, and against what it promises."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from equipoise.policies import physics
from equipoise.policies.kernels import batch_split as kernels_deal
from equipoise.policies.kernels import dataflow as kernels
from equipoise.policies.kernels import fetching
from equipoise.policies.kernels import sync as kernels_sync
from equipoise.policies.stages.optimal import least_cost_assignment, least_cost_transport
from tests.oracles import policies as naive
from tests.policies.kernels.arguments import as_used

MANY = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
NAN = math.nan


class Drawn:
    """Random jobs and workers of modest size, some values unknown."""

    def __init__(self, seed, jobs=3, workers=5, nodes=4):
        self.rng = np.random.default_rng(seed)
        sizes = self.rng.integers(1, workers + 1, self.rng.integers(1, jobs + 1))
        self.first = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        self.jobs, self.n, self.nodes = len(sizes), int(sizes.sum()), nodes
        self.node = self.rng.integers(0, nodes, self.n)

    def floats(self, low, high, size=None, unknown=0.0, grid=None):
        size = self.n if size is None else size
        values = self.rng.uniform(low, high, size)
        if grid:  # equal values are where ties are
            values = np.round(values / grid) * grid
        return np.where(self.rng.random(size) < unknown, np.nan, values)

    def ints(self, low, high, size=None):
        return self.rng.integers(low, high + 1, self.n if size is None else size)

    def bools(self, size=None, often=0.7):
        return self.rng.random(self.n if size is None else size) < often

    def links(self):
        nic = self.floats(1e6, 1e8, self.nodes, grid=1e7)
        nic[nic == 0] = np.inf
        pairs = {}
        for a in range(self.nodes):
            for b in range(self.nodes):
                if a != b and self.rng.random() < 0.5:
                    pairs[a, b] = (float(self.rng.choice([NAN, 1e6, 5e7])), float(self.rng.choice([0, 0.1, NAN])))
        key = np.array([a * self.nodes + b for a, b in sorted(pairs)], dtype=np.int64)
        rates = np.array([pairs[p][0] for p in sorted(pairs)], dtype=float)
        delays = np.array([pairs[p][1] for p in sorted(pairs)], dtype=float)
        return kernels.LinkArrays(key, rates, delays, nic), naive.Links(pairs, nic)


def close(values):
    return pytest.approx(np.asarray(values, dtype=float), rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_of_shards(seed):
    rng = np.random.default_rng(seed)
    n, workers, nodes = int(rng.integers(0, 12)), 3, 4
    owner, node, local = rng.integers(-1, workers, n), rng.integers(-1, nodes, n), rng.random(n) < 0.3
    size, owner_node = rng.choice([0.0, 5.0, 7.5], n), rng.integers(0, nodes, workers)
    total = np.zeros(workers)
    kernels.sum_by(*as_used("RRw", owner, size, total))
    assert total.tolist() == naive.sum_by(owner, size, workers)
    started, up, free = rng.random(n) < 0.5, rng.random(nodes) < 0.7, np.empty(n, dtype=np.bool_)
    kernels.may_move(*as_used("RRRRw", owner, node, started, up, free))
    assert free.tolist() == naive.may_move(owner, node, started, up)
    kernels.may_move(*as_used("RRRRw", owner, node, started, np.ones(0, dtype=np.bool_), free))
    assert free.tolist() == naive.may_move(owner, node, started, np.ones(nodes))
    sent, received = np.zeros(nodes), np.zeros(nodes)
    kernels.to_fetch(*as_used("RRRRRww", owner, node, local, size, owner_node, sent, received))
    assert (sent.tolist(), received.tolist()) == naive.to_fetch(owner, node, local, size, owner_node, nodes)


@MANY
@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_match_sorted(old, new):
    old, new = (np.array(sorted(s), dtype=np.int64) for s in (old, new))
    assert kernels.match_sorted(old, new).tolist() == naive.match_sorted(old, new)


@MANY
@given(
    st.lists(st.one_of(st.none(), st.floats(0.1, 1e3)), min_size=1, max_size=12),
    st.floats(0.1, 1),
    SEEDS,
    st.sampled_from([0.5, 0.0]),
)
def test_holt(series, alpha, seed, least):
    beta = float(np.random.default_rng(seed).uniform(0, 1))
    level, trend, windows = np.array([NAN]), np.zeros(1), np.zeros(1, dtype=np.int64)
    for value in series:
        forecast = kernels.holt(level, trend, windows, np.array([NAN if value is None else value]), alpha, beta, least)
    expected = naive.holt(series, alpha, beta, least)
    assert forecast[0] == pytest.approx(NAN if expected is None else expected, rel=1e-9, abs=1e-9, nan_ok=True)
    assert windows[0] == sum(value is not None for value in series)


def test_holt_follows_a_straight_line_exactly():
    level, trend, windows = np.array([NAN]), np.zeros(1), np.zeros(1, dtype=np.int64)
    for step in range(200):
        forecast = kernels.holt(level, trend, windows, np.array([10.0 + 3 * step]), 0.5, 0.5, 0.5)
    assert forecast[0] == pytest.approx(10.0 + 3 * 200, rel=1e-12)


@MANY
@given(SEEDS)
def test_gradient_health(seed):
    d = Drawn(seed)
    norm = np.where(d.bools(often=0.2), 0.0, d.floats(0.5, 2, unknown=0.3))
    arguments = (norm, d.floats(1, 2, unknown=0.2), d.floats(-1, 1, unknown=0.2), d.floats(0, 0.3), d.bools())
    expected = naive.gradient_health(d.first, *arguments, 5.0)
    assert kernels.gradient_health(d.first, *arguments, 5.0).tolist() == expected


@MANY
@given(SEEDS)
def test_imbalance(seed):
    d = Drawn(seed)
    capacity, owned = d.floats(0.5, 4, unknown=0.05), d.floats(0, 100, grid=25, unknown=0.05)
    receives = d.bools()
    index, surplus = kernels.imbalance(*as_used("wwRw", d.first, capacity, owned, receives))
    expected_index, expected_surplus = naive.imbalance(d.first, capacity, owned, receives)
    assert index == close(expected_index)
    assert surplus == close(expected_surplus)


@MANY
@given(SEEDS)
def test_links(seed):
    d = Drawn(seed)
    links, plain = d.links()
    for source in range(d.nodes):
        for target in range(d.nodes):
            assert kernels.link(links, source, target)[0] == plain.rate(source, target)
            assert kernels.transfer_time(links, source, target, 1e6) == close(plain.time(source, target, 1e6))


@MANY
@given(SEEDS)
def test_greedy_flow(seed):
    d = Drawn(seed, workers=7)
    links, plain = d.links()
    surplus, pull, acting = d.floats(-50, 50, grid=10), d.floats(0.5, 4, grid=0.5) + 0.5, d.bools(d.jobs)
    (donor, receiver, amount), value = kernels.greedy_flow(
        *as_used("wwwwR.", d.first, acting, surplus, pull, d.node, links)
    )
    flow, expected_value = naive.greedy_flow(d.first, acting, surplus, pull, d.node, plain)
    assert list(zip(donor.tolist(), receiver.tolist(), strict=True)) == [(i, j) for i, j, _ in flow]
    assert amount == close([part for *_, part in flow])
    assert value == close(expected_value)


@MANY
@given(seed=SEEDS, workers=st.sampled_from([5, 80]))
def test_common_ratio(seed, workers):
    d = Drawn(seed, workers=workers)
    ratio = d.floats(0.5, 2.0, unknown=0.3, grid=0.25)
    found = kernels.common_ratio(d.first, ratio)
    assert found.tolist() == naive.common_ratio(d.first.tolist(), ratio.tolist())


@MANY
@given(seed=SEEDS)
def test_last_needed_first(seed):
    d = Drawn(seed)
    shards = int(d.rng.integers(0, 20))
    worker, needed = d.ints(0, d.n - 1, shards), d.floats(0, 9, shards, unknown=0.2, grid=3)
    rows = np.flatnonzero(d.bools(shards))
    first, order = kernels.last_needed_first(*as_used("wRR.", rows, worker, needed, d.n))
    expected = naive.last_needed_first(rows.tolist(), worker.tolist(), needed.tolist(), d.n)
    assert [order[a:b].tolist() for a, b in pairwise(first)] == expected


@MANY
@given(SEEDS)
def test_pick_shards(seed):
    d = Drawn(seed, jobs=1, workers=5)
    links, plain = d.links()
    count = int(d.rng.integers(0, 12))
    owner = np.sort(d.rng.integers(0, d.n, count))
    rows = d.rng.permutation(count)
    stored = d.rng.integers(0, d.nodes, count)
    samples, size = d.floats(0, 40, count, grid=10), d.floats(0, 4e6, count, grid=1e6)
    capacity, owned, room = d.floats(0.5, 4), d.floats(0, 200), d.floats(0, 1e7, d.nodes)
    sent, received = d.floats(0, 2e7, d.nodes, grid=1e6), d.floats(0, 2e7, d.nodes, grid=1e6)
    flow = [(int(d.rng.integers(d.n)), int(d.rng.integers(d.n)), float(d.rng.uniform(0, 80))) for _ in range(4)]
    flow = [(i, j, part) for i, j, part in flow if i != j]
    donors, receivers = (np.array([f[c] for f in flow], dtype=np.int64) for c in (0, 1))
    first = np.searchsorted(owner, np.arange(d.n + 1))
    picked, owners, refused = kernels.pick_shards(
        *as_used(
            "wwwwwwRRRwwwww.",
            donors,
            receivers,
            np.array([f[2] for f in flow]),
            first,
            rows,
            samples,
            size,
            stored,
            d.node,
            capacity,
            owned.copy(),
            room.copy(),
            sent.copy(),
            received.copy(),
            links,
        )
    )
    queue = {i: rows[first[i] : first[i + 1]].tolist() for i in range(d.n)}
    expected = naive.pick_shards(
        flow, queue, samples, size, stored, d.node, capacity, owned, room, sent, received, plain
    )
    assert (list(zip(picked.tolist(), owners.tolist(), strict=True)), refused) == expected


@MANY
@given(SEEDS)
def test_shard_priority_and_fetch_times(seed):
    d = Drawn(seed)
    links, plain = d.links()
    count = int(d.rng.integers(1, 9))
    size, job = d.floats(0, 5e6, count, grid=1e6), d.ints(0, 2, count)
    rows, source, target = np.arange(count), d.ints(0, 3, count), d.ints(0, 3, count)
    fetch = fetching.fetch_times(*as_used("wRRw.", rows, size, source, target, links))
    assert fetch == close([plain.time(source[k], target[k], size[k]) for k in range(count)])
    needed = d.floats(0, 1, count, unknown=0.2)
    expected = naive.shard_priority(fetch, needed, size, job, 0.7, 0.3)
    assert fetching.shard_priority(fetch, needed, size, job, 3, 0.7, 0.3) == close(expected)


@MANY
@given(SEEDS)
def test_fetch_queues(seed):
    d = Drawn(seed)
    links, plain = d.links()
    count = int(d.rng.integers(1, 9))
    owner, rack = d.rng.integers(0, d.n, count), d.ints(0, 3, d.nodes)
    job = np.searchsorted(d.first, owner, side="right") - 1
    size, source, needed = d.floats(0, 5e6, count, grid=1e6), d.ints(0, 3, count), d.floats(0, 30, count)
    begin, end = d.first[job], d.first[job + 1]
    arrives, late, before = fetching.fetch_queues(
        *as_used("wwwwww.RR.", size, source, owner, needed, begin, end, 9, d.node, rack, links)
    )
    shards = [(size[k], source[k], owner[k], needed[k], range(begin[k], end[k])) for k in range(count)]
    expected, late_ones = naive.fetch_queues(shards, d.node, rack, plain)
    assert arrives == close(expected)
    assert late.tolist() == list(late_ones)
    for row, k in zip(before, late_ones, strict=True):
        assert row[: len(late_ones[k])] == close(late_ones[k])


@MANY
@given(SEEDS)
def test_distribute_late(seed):
    d = Drawn(seed)
    links, plain = d.links()
    count = int(d.rng.integers(1, 9))
    owner = d.rng.integers(0, d.n, count)
    job = np.searchsorted(d.first, owner, side="right") - 1
    size, samples, source = d.floats(0, 5e6, count), d.floats(1, 50, count), d.ints(0, 3, count)
    needed, late = d.floats(0, 5, count), d.floats(0, 20, count)
    capacity, owned, room = d.floats(0.5, 4), d.floats(0, 100), d.floats(0, 1e7, d.nodes)
    computing = capacity * d.floats(1, 3)
    begin, end = d.first[job], d.first[job + 1]
    before = d.floats(0, 5e6, count * d.n).reshape(count, d.n)
    chosen = fetching.distribute_late(
        *as_used(
            "wwwwwwwwwwRwwww.",
            np.arange(count),
            size,
            samples,
            source,
            needed,
            late,
            owner,
            begin,
            end,
            before,
            d.node,
            capacity,
            computing,
            owned,
            room.copy(),
            links,
        )
    )
    rows = [
        (size[k], samples[k], source[k], needed[k], late[k], owner[k], range(begin[k], end[k])) for k in range(count)
    ]
    expected = naive.distribute_late(rows, before, d.node, capacity, computing, owned, room, plain)
    assert chosen.tolist() == expected


def deals(seed):
    """Arguments of a deal that are consistent: response includes the fixed part."""
    d = Drawn(seed)
    samples = d.ints(1, 20)
    fixed = np.where(d.bools(often=0.5), 0.0, d.floats(0, 2))
    response = fixed / samples + d.floats(0.1, 2)
    rate = np.where(d.bools(often=0.8), 1 / response, 0.7 / response)
    return d, samples, fixed, response, rate


@MANY
@given(SEEDS)
def test_resource_shares(seed):
    d, samples, fixed, response, rate = deals(seed)
    response = np.where(d.bools(often=0.05), np.nan, response)
    arguments = as_used("wwRwR..", d.first, rate, response, fixed, samples, 0.5, 0.5)
    got = kernels_deal.resource_shares(*arguments)
    assert got == close(naive.resource_shares(d.first, rate, response, fixed, samples, 0.5, 0.5))


@MANY
@given(SEEDS)
def test_resource_shares_make_steps_equally_long(seed):
    d, samples, fixed, response, _ = deals(seed)
    share = kernels_deal.resource_shares(*as_used("wwRwR..", d.first, 1 / response, response, fixed, samples, 0.5, 0.5))
    for rows in naive.segments(d.first):
        batch = samples[rows.start : rows.stop].sum()
        busy = [fixed[i] + share[i] * batch * naive.sample_time(response[i], fixed[i], samples[i]) for i in rows]
        assert sum(share[i] for i in rows) == pytest.approx(1)
        if batch * min(response) > 20 * max(fixed):  # else the shares may still be on their way
            assert max(busy) == pytest.approx(min(busy), rel=1e-3)


@MANY
@given(SEEDS)
def test_slowest_step(seed):
    d, samples, fixed, response, _ = deals(seed)
    dealt = d.ints(0, 20)
    got = kernels_deal.slowest_step(*as_used("wRwRw", d.first, response, fixed, samples, dealt))
    assert got == close(naive.slowest_step(d.first, response, fixed, samples, dealt))


@MANY
@given(SEEDS)
def test_largest_remainder(seed):
    rng = np.random.default_rng(seed)
    n, units = int(rng.integers(1, 8)), int(rng.integers(0, 60))
    low = int(rng.integers(0, 2)) if units >= n else 0
    cap = rng.integers(low, units + 1, n) if rng.random() < 0.5 else np.full(n, units)
    while cap.sum() < units:
        cap[rng.integers(n)] += 1
    ideal = np.round(rng.dirichlet(np.ones(n)) * 8) / 8 * units
    dealt = physics.largest_remainder(ideal, units, low, cap)
    assert dealt.sum() == units
    assert ((dealt >= low) & (dealt <= cap)).all()
    assert dealt.tolist() == naive.largest_remainder(ideal, units, low, cap)


@MANY
@given(SEEDS)
def test_exact_deal_is_exact(seed):
    rng = np.random.default_rng(seed)
    n, units = int(rng.integers(1, 6)), int(rng.integers(1, 30))
    low = 1 if units >= n else 0
    cap = np.maximum(rng.integers(low, units + 1, n), low)
    while cap.sum() < units:
        cap[rng.integers(n)] += 1
    fixed = np.round(rng.uniform(0, 5, n)) * rng.integers(0, 2)
    unit = np.round(rng.uniform(1, 6, n)) if rng.random() < 0.5 else rng.uniform(0.1, 3, n)
    dealt = kernels_deal.exact_deal(fixed, unit, units, low, cap)
    assert dealt.sum() == units
    assert ((dealt >= low) & (dealt <= cap)).all()
    busy = [fixed[i] + dealt[i] * unit[i] for i in range(n) if dealt[i] > 0]
    greedy = naive.exact_deal(fixed, unit, units, low, cap)
    best = max(fixed[i] + greedy[i] * unit[i] for i in range(n) if greedy[i] > 0)
    assert max(busy) == pytest.approx(best, rel=1e-12)
    if low == 1 or not fixed.any():
        assert max(busy) == pytest.approx(naive.best_makespan(fixed, unit, units, low, cap), rel=1e-12)


@MANY
@given(SEEDS)
def test_deals(seed):
    d, samples, fixed, response, _ = deals(seed)
    share = d.floats(0.1, 1)
    for rows in naive.segments(d.first):
        share[rows.start : rows.stop] /= share[rows.start : rows.stop].sum()
    batch, micro = d.ints(1, 60, d.jobs), d.ints(1, 3, d.jobs)
    most = np.where(d.bools(), 2**40, d.ints(5, 40))
    wanted = d.bools(d.jobs, often=0.9)
    limits = (samples, most, batch, micro)
    for dealt, done, expected in (
        (
            *kernels_deal.deal_by_share(*as_used("wwwRwRRww", d.first, wanted, share, response, fixed, *limits)),
            naive.deal(d.first, wanted, share, response, fixed, *limits),
        ),
        (
            *kernels_deal.deal_exactly(*as_used("wwRwRRww", d.first, wanted, response, fixed, *limits)),
            naive.deal(d.first, wanted, None, response, fixed, *limits),
        ),
    ):
        assert (dealt.tolist(), done.tolist()) == expected
        for k, rows in enumerate(naive.segments(d.first)):
            part = dealt[rows.start : rows.stop]
            if done[k]:
                assert part.sum() == batch[k]
                assert (part <= most[rows.start : rows.stop]).all()
                assert (part % micro[k] != 0).sum() <= 1
            else:
                assert (part == samples[rows.start : rows.stop]).all()


@MANY
@given(SEEDS)
def test_synchronisation_kernels(seed):
    d = Drawn(seed)
    step = d.floats(0.1, 2, unknown=0.05)
    assert kernels_sync.step_spread(d.first, step) == close(naive.step_spread(d.first, step))
    busy = d.floats(0, 5, d.nodes)
    assert kernels_sync.busiest_node(*as_used("wRw", d.first, d.node, busy)) == close(
        naive.busiest_node(d.first, d.node, busy)
    )
    step = d.floats(0.1, 2, grid=0.1)
    assert kernels_sync.slowest_other(*as_used("wR", d.first, step)) == close(naive.slowest_other(d.first, step))
    h, current = d.floats(1, 30, d.jobs), d.ints(1, 30, d.jobs)
    exchange, work = d.floats(0, 5, d.jobs, unknown=0.1), d.floats(0.1, 2, unknown=0.05)
    counts, alpha, beta = d.rng.random(len(work)) < 0.9, d.floats(0.5, 2, d.jobs), d.floats(5, 20, d.jobs)
    k = kernels_sync.sync_coefficient(d.first, h, exchange, work, counts, alpha, beta)
    assert k == close(naive.sync_coefficient(d.first, h, exchange, work, counts, alpha, beta))
    bound = d.rng.choice([1.0, 3.5, 100.0, NAN], d.jobs)
    real, whole = kernels_sync.next_interval(h, current, k, bound, 0.5)
    expected = naive.next_interval(h, current, k, bound, 0.5)
    assert real == close(expected[0])
    assert whole.tolist() == expected[1]


@MANY
@given(SEEDS)
def test_expected_maximum(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    mean, std = rng.uniform(1, 3, n), rng.uniform(0.05, 0.5, n)
    low, top = float(min(mean - 8 * std)), float(max(mean + 8 * std))

    def above(x):
        return 1 - np.prod(stats.norm.cdf(x, mean, std))

    expected = low + integrate.quad(above, low, top, limit=400, points=mean)[0]
    assert kernels_sync.expected_maximum(mean, std) == pytest.approx(expected, rel=1e-4)
    assert kernels_sync.expected_maximum(mean, np.zeros(n)) == mean.max()


@pytest.mark.parametrize("gamma", [1.0, 2.0, 1e9])
def test_period_without_noise_is_the_closed_form(gamma):
    period = kernels_sync.sync_period(4.0, np.array([1.0, 2.0]), np.zeros(2), 0.5, gamma)
    last = 2.0
    hidden = last + 0.5 - (2.0 if gamma > 100 else (last**gamma + 0.5**gamma) ** (1 / gamma))
    assert period == pytest.approx(4 * 2.0 + 0.5 - hidden)


@MANY
@given(SEEDS)
def test_best_interval_is_the_best(seed):
    d = Drawn(seed)
    step, std = d.floats(0.5, 1.5), d.floats(0, 0.3)
    exchange, gamma, drift = (d.floats(0, 3, d.jobs), d.floats(1, 3, d.jobs), d.floats(0, 0.05, d.jobs, unknown=0.2))
    current, input_s = d.ints(1, 20, d.jobs), d.floats(0, 3, d.jobs)
    best, gain = kernels_sync.best_interval(d.first, step, std, exchange, gamma, drift, input_s, current, 24)
    for k, rows in enumerate(naive.segments(d.first)):
        part = slice(rows.start, rows.stop)

        def cost(h, k=k, part=part):
            period = kernels_sync.sync_period(float(h), step[part], std[part], exchange[k], gamma[k])
            return max(period / h, input_s[k]) * (1 + drift[k] * (h - 1))

        if np.isnan(drift[k]):
            assert best[k] == current[k]
            assert np.isnan(gain[k])
        else:
            assert cost(best[k]) == pytest.approx(min(cost(h) for h in range(1, 25)))
            assert gain[k] == pytest.approx(1 - cost(best[k]) / cost(current[k]), abs=1e-12)


@settings(MANY, max_examples=10)
@given(SEEDS)
def test_best_levels_are_the_best(seed):
    d = Drawn(seed)
    step, std = d.floats(0.5, 1.5), d.floats(0, 0.3)
    near, far, gamma = d.floats(0, 0.3, d.jobs), d.floats(0, 3, d.jobs), d.floats(1, 3, d.jobs)
    drift, ratio = d.floats(0, 0.05, d.jobs, unknown=0.2), d.floats(0.1, 0.9, d.jobs)
    one, input_s = d.ints(1, 9, d.jobs), d.floats(0, 3, d.jobs)
    given_h, given_every = d.ints(1, 4, d.jobs), d.ints(1, 5, d.jobs)
    for longest in (0, 12):
        args = (d.first, step, std, near, far, gamma, drift, ratio, input_s, given_h, given_every, one, longest)
        h, every, gain = kernels_sync.best_levels(*args)
        for k, rows in enumerate(naive.segments(d.first)):
            mean, spread = step[rows.start : rows.stop], std[rows.start : rows.stop]

            def cost(h, m, k=k, mean=mean, spread=spread):
                """By the exchanges of one turn, one after the other."""
                exchanges = [near[k]] * (m - 1) + [far[k]]
                turn_s = sum(kernels_sync.sync_period(float(h), mean, spread, x, gamma[k]) for x in exchanges)
                drifts = ratio[k] * (m * h - 1) + (1 - ratio[k]) * (h - 1)
                return max(turn_s / (m * h), input_s[k]) * (1 + drift[k] * drifts)

            if np.isnan(drift[k]):
                assert np.isnan(gain[k])
                continue
            tried = [(h, m) for h in range(1, longest + 1) for m in range(1, longest // h + 1)]
            best = min((cost(*t) for t in tried), default=cost(given_h[k], given_every[k]))
            assert cost(h[k], every[k]) == pytest.approx(best)
            assert gain[k] == pytest.approx(1 - best / cost(one[k], 1), abs=1e-12)


@MANY
@given(SEEDS)
def test_share_kernels(seed):
    d = Drawn(seed, jobs=3, workers=4)
    share = d.floats(0.05, 1, grid=0.01) + 0.05
    for rows in naive.segments(d.first):
        share[rows.start : rows.stop] /= max(1.0, share[rows.start : rows.stop].sum())
    used, load, delay = d.floats(0.2, 1, unknown=0.05), d.floats(0.2, 1), d.floats(0, 0.5)
    held = np.add.reduceat(share, d.first[:-1])
    room = held + d.rng.choice([0.0, 0.5], d.jobs) * (1.0 - held)
    new = kernels_sync.weighted_shares(d.first, share, room, used, load, delay, 0.5, 0.1)
    assert new == close(naive.weighted_shares(d.first, share, room, used, load, delay, 0.5, 0.1))
    quantum = d.rng.choice([0.01, 0.125], d.jobs)
    result, changed = kernels_sync.quantise_shares(d.first, share, room, new, quantum, 0.02)
    expected = naive.quantise_shares(d.first, share, room, new, quantum, 0.02)
    assert result == close(expected[0])
    assert changed.tolist() == expected[1]
    for k, rows in enumerate(naive.segments(d.first)):
        part = slice(rows.start, rows.stop)
        known = np.isfinite(used[part]).all()
        assert new[part].sum() == pytest.approx(room[k] if known else held[k])
        assert (new[part] >= np.minimum(share[part], 0.1) - 1e-12).all()
        assert result[part].sum() <= room[k] + 1e-9
        if changed[k]:
            assert result[part] / quantum[k] == pytest.approx(np.round(result[part] / quantum[k]), abs=1e-6)


@MANY
@given(SEEDS)
def test_fair_shares_are_the_fairest(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 4))
    held, first, room = rng.dirichlet(np.ones(n) * 5), np.array([0, n]), np.ones(1)
    held *= rng.choice([1.0, 0.6])
    step, kappa = rng.uniform(0.5, 3, n), rng.choice([0.1, 0.5, 3.0, NAN], n)
    others = rng.choice([0.0, 1.0, 4.0], n)
    shares = kernels_sync.fair_shares(first, held, room, step, others, kappa, 0.01)
    assert (shares > 0).all()
    assert (shares <= 1).all()
    assert shares.sum() <= 1 + 1e-9
    got = naive.worst_slowdown(shares, held, step, others, kappa)
    grid = np.linspace(0.01, 0.99, 50)
    splits = ([f, 1 - f] for f in grid) if n == 2 else ([f, g, 1 - f - g] for f in grid for g in grid if f + g < 0.995)
    best = min(naive.worst_slowdown(split, held, step, others, kappa) for split in splits)
    assert got <= best * (1 + 1e-6)


@MANY
@given(SEEDS)
def test_transport_meets_demand_at_least_cost(seed):
    rng = np.random.default_rng(seed)
    supply = np.round(rng.uniform(0.5, 10, rng.integers(1, 4)))
    demand = rng.dirichlet(np.ones(rng.integers(1, 4))) * supply.sum()
    cost = rng.uniform(0, 5, (len(supply), len(demand)))
    flow = least_cost_transport(cost, supply, demand)
    assert (flow >= -1e-9).all()
    assert flow.sum(axis=0) == pytest.approx(demand, abs=1e-6)
    assert (flow.sum(axis=1) <= supply + 1e-6).all()
    for _ in range(20):  # no cycle of four lowers the cost
        if min(flow.shape) < 2:
            break
        i, n = rng.choice(flow.shape[0], 2, replace=False)
        j, m = rng.choice(flow.shape[1], 2, replace=False)
        if min(flow[i, j], flow[n, m]) > 1e-6:
            assert cost[i, j] + cost[n, m] <= cost[i, m] + cost[n, j] + 1e-6


def test_transport_that_cannot_be_met_is_an_error():
    with pytest.raises(ValueError, match="transportation problem"):
        least_cost_transport(np.ones((1, 1)), np.array([1.0]), np.array([2.0]))


def test_assignment_leaves_out_what_is_not_allowed():
    cost = np.array([[-5.0, np.inf], [-4.0, np.inf], [np.inf, np.inf]])
    assert least_cost_assignment(cost).tolist() == [0, -1, -1]
    assert least_cost_assignment(np.array([[-5.0, -4.0], [-4.5, -1.0]])).tolist() == [1, 0]


def test_what_is_left_of_a_gpu_is_dealt_in_proportion():
    """Peers take 4 and 8 s, 8 and 16 times as long as each alone: an eighth and a sixteenth are enough."""
    first, held, room = np.array([0, 2]), np.array([0.5, 0.5]), np.ones(1)
    step, others, kappa = np.ones(2), np.array([4.0, 8.0]), np.full(2, NAN)
    shares = kernels_sync.fair_shares(first, held, room, step, others, kappa, 0.01)
    assert shares == pytest.approx([2 / 3, 1 / 3])
