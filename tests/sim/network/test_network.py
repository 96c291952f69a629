"""The flow network against its plain twin, against closed forms, and against what it promises."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.sim.clock import STATE, Clock
from equipoise.sim.network.network import Network
from tests.bench.speed.flows import OnClock, TimedFlows, largest_error, read_flows, read_topology
from tests.oracles.network import Flow, end_times, fair_rates

MANY = settings(max_examples=80, deadline=None)
SETS = Path(__file__).resolve().parents[4] / "shared" / "data" / "network"
INF = math.inf
ONE = np.ones(1)
A, B, C = (np.array([k]) for k in range(3))
HALF_OPEN = st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 3.0])


@st.composite
def capacities(draw, most=7):
    whole = st.lists(st.integers(1, 20).map(float), min_size=1, max_size=most)
    return draw(whole | st.lists(st.floats(0.5, 20.0), min_size=1, max_size=most))


@st.composite
def flow_on(draw, links):
    used = draw(st.lists(st.integers(0, links - 1), unique=True, max_size=min(links, 4)))
    cap = draw(st.sampled_from([INF, INF, 0.75, 1.0, 2.5]) if used else st.floats(0.5, 3.0))
    return Flow(
        volume=float(draw(st.integers(0, 40))),
        usage={link: draw(HALF_OPEN) for link in used},
        cap=cap,
        start=draw(st.sampled_from([0.0, 0.0, 1.0, 2.0, 2.5])) + draw(st.sampled_from([0.0, 0.0, 0.125, 1 / 3])),
    )


@st.composite
def cases(draw, most=12):
    capacity = draw(capacities())
    return capacity, draw(st.lists(flow_on(len(capacity)), min_size=1, max_size=most))


def links_and_usage(flow):
    return np.array(list(flow.usage), dtype=np.int64), np.array(list(flow.usage.values()), dtype=np.float64)


def begin(network, flow, on_done=lambda flow: None):
    return network.start(flow.volume, *links_and_usage(flow), flow.cap, on_done)


def timed(drawn, after=None):
    pairs = [links_and_usage(flow) for flow in drawn]
    return TimedFlows.of(
        [flow.start for flow in drawn],
        [flow.volume for flow in drawn],
        [links for links, _ in pairs],
        [usage for _, usage in pairs],
        [flow.cap for flow in drawn],
        after,
    )


def network_of(*capacity):
    clock = Clock()
    return clock, Network(clock, np.array(capacity, dtype=float))


def settle(clock):
    """Let everything of this instant happen."""
    now = clock.now
    while clock.peek() == now:
        clock.step()


def assert_fair(capacity, drawn, rates):
    """Each flow has a bottleneck: its cap, or a full link on which none is faster. No link has too much."""
    load = [sum(f.usage.get(k, 0.0) * r for f, r in zip(drawn, rates, strict=True)) for k in range(len(capacity))]
    for k, c in enumerate(capacity):
        assert load[k] <= c * (1 + 1e-12)
    for flow, rate in zip(drawn, rates, strict=True):
        at_cap = rate >= flow.cap * (1 - 1e-12)
        held_back = any(
            load[link] >= capacity[link] * (1 - 1e-11)
            and all(r <= rate * (1 + 1e-11) for f, r in zip(drawn, rates, strict=True) if link in f.usage)
            for link in flow.usage
        )
        assert at_cap or held_back or rate == INF


# --- rates -----------------------------------------------------------------------------------------------


@MANY
@given(cases())
def test_rates_equal_the_twin(case):
    capacity, drawn = case
    clock, network = network_of(*capacity)
    for flow in drawn:
        flow.volume += 1.0
    handles = [begin(network, flow) for flow in drawn]
    settle(clock)
    rates = [network.rate(handle) for handle in handles]
    np.testing.assert_allclose(rates, fair_rates(capacity, drawn), rtol=1e-12)
    assert_fair(capacity, drawn, rates)


def random_flow(rng, links):
    used = rng.sample(range(links), rng.randint(0, min(links, 5)))
    usage = {link: rng.choice([0.25, 0.5, 1.0, 1.0, 2.0, 3.0, rng.uniform(0.1, 4.0)]) for link in used}
    caps = [INF, INF, 0.75, 1.0, 2.5, rng.uniform(0.1, 3.0)]
    return Flow(1e9, usage, rng.choice(caps) if used else rng.uniform(0.5, 3.0))


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_small_changes_give_what_a_full_computation_gives(rng):
    """Starts, cancellations and capacity changes, one or several an instant; nothing ends by itself."""
    capacity = [rng.choice([rng.uniform(0.5, 20.0), float(rng.randint(1, 20))]) for _ in range(rng.randint(1, 10))]
    clock, network = network_of(*capacity)
    live = {}
    for _ in range(60):
        change = rng.random()
        if change < 0.5 or not live:
            flow = random_flow(rng, len(capacity))
            live[begin(network, flow)] = flow
        elif change < 0.85:
            network.cancel(handle := rng.choice(sorted(live)))
            del live[handle]
        else:
            link = rng.randrange(len(capacity))
            capacity[link] = rng.choice([0.0, 1.0, capacity[link], rng.uniform(0.1, 20.0)])
            network.set_capacity(link, capacity[link])
        if rng.random() < 0.4:
            clock.run(until=clock.now + 1.0)
            flows_now, rates = list(live.values()), [network.rate(handle) for handle in live]
            np.testing.assert_allclose(rates, fair_rates(capacity, flows_now), rtol=1e-12, atol=1e-300)
            assert_fair(capacity, flows_now, rates)
            for link in range(len(capacity)):
                on_link = [handle for handle, flow in live.items() if link in flow.usage]
                assert network.count_on(link) == len(on_link)


@pytest.mark.parametrize("factor", [1 + 1e-9, 1 - 1e-9, 1 + 1e-5, 1 - 1e-5])
def test_a_small_change_is_not_taken_for_rounding(factor):
    clock, network = network_of(10.0, 7.0)
    flows_ = [network.start(1e3, links, ONE, INF, print) for links in (A, A, A, B)]
    settle(clock)
    network.set_capacity(0, 10.0 * factor)
    settle(clock)
    assert [network.rate(flow) for flow in flows_] == [10.0 * factor / 3] * 3 + [7.0]


# --- ends ------------------------------------------------------------------------------------------------


@MANY
@given(cases(most=9))
def test_end_times_equal_the_twin(case):
    capacity, drawn = case
    ends = OnClock(np.array(capacity), timed(drawn)).end_times_s()
    np.testing.assert_allclose(ends, end_times(capacity, drawn), rtol=1e-9)


@MANY
@given(cases(most=9), st.data())
def test_dependencies(case, data):
    capacity, drawn = case
    after = [
        data.draw(st.lists(st.integers(0, k - 1), unique=True, max_size=2)) if k else [] for k in range(len(drawn))
    ]
    for flow, waits in zip(drawn, after, strict=True):
        flow.after = tuple(waits)
    ends = OnClock(np.array(capacity), timed(drawn, after)).end_times_s()
    np.testing.assert_allclose(ends, end_times(capacity, drawn), rtol=1e-9)
    for k, waits in enumerate(after):
        assert all(ends[k] >= ends[before] for before in waits)


@MANY
@given(cases(most=9), st.data())
def test_no_link_carries_more_than_it_can_and_time_runs_forward(case, data):
    capacity, drawn = case
    clock, network = network_of(*capacity)
    handles, through, seen = {}, [0.0] * len(drawn), []

    def start(k):
        def done(handle):
            through[k] = drawn[k].volume
            seen.append(clock.now)
            handles.pop(k)

        handles[k] = begin(network, drawn[k], done)

    def cancel(k):
        if k in handles:
            through[k] = drawn[k].volume - network.cancel(handles.pop(k))

    for k, flow in enumerate(drawn):
        clock.at(flow.start, lambda _, k=k: start(k))
        if data.draw(st.booleans()):
            clock.at(flow.start + data.draw(st.integers(0, 6)), lambda _, k=k: cancel(k))
    clock.run(until=data.draw(st.sampled_from([0.5, 3.0, 7.3])))
    for k, handle in handles.items():
        through[k] = drawn[k].volume - network.remaining(handle)
    carried = [
        sum(f.usage.get(link, 0.0) * bytes_ for f, bytes_ in zip(drawn, through, strict=True))
        for link in range(len(capacity))
    ]
    assert (np.array(carried) <= np.array(capacity) * clock.now * (1 + 1e-12) + 1e-12).all()
    assert seen == sorted(seen)
    clock.run()
    assert not handles


@given(st.floats(1e-3, 1e15), st.floats(1e-3, 1e12), st.floats(0.01, 100.0), st.floats(0.0, 1e6))
@settings(max_examples=60, deadline=None)
def test_a_flow_alone_takes_volume_over_rate_to_the_bit(volume, rate, usage, start):
    clock, network = network_of(rate * usage * 2.0, 1e300)
    ends = []
    clock.at(start, lambda _: network.start(volume, np.array([0, 1]), np.array([usage, 1.0]), rate, ends.append))
    clock.run()
    assert clock.now == start + volume / rate
    assert ends == [0]


def interrupted(disturb):
    """End time of a flow of 7 bytes at 3 bytes/s, another on its link, when `disturb(network)` happens."""
    clock, network = network_of(6.0, 5.0)
    ends = {}
    for volume in (7.0, 11.0):
        network.start(volume, A, ONE, INF, lambda flow: ends.setdefault(flow, clock.now))
    for time_s in (0.1, 0.7, 1.3):
        clock.at(time_s, lambda _: disturb(network))
    clock.run()
    return ends[0]


@pytest.mark.parametrize(
    "disturb",
    [
        lambda network: network.cancel(network.start(5.0, A, ONE, INF, print)),
        lambda network: network.start(1.0, B, ONE, INF, lambda flow: None),
        lambda network: network.set_capacity(0, 6.0),
        lambda network: network.set_capacity(1, 0.1),
        lambda network: (network.remaining(0), network.count_on(0)),
    ],
    ids=["start and cancel", "flow elsewhere", "same capacity", "capacity elsewhere", "questions"],
)
def test_an_interruption_that_changes_nothing_changes_nothing_to_the_bit(disturb):
    assert interrupted(disturb) == interrupted(lambda network: None) == 7.0 / 3.0


def test_a_capacity_of_zero_stops_flows_until_it_comes_back():
    clock, network = network_of(2.0)
    ends = []
    flow = network.start(8.0, A, ONE, INF, lambda flow: ends.append(clock.now))
    clock.at(1.0, lambda _: network.set_capacity(0, 0.0))
    clock.at(5.0, lambda _: network.set_capacity(0, 3.0))
    clock.run(until=4.0)
    assert (network.rate(flow), network.remaining(flow), ends) == (0.0, 6.0, [])
    clock.run()
    assert ends == [7.0]


# --- the order of things ---------------------------------------------------------------------------------


def test_ends_of_one_instant_are_told_in_order_of_start():
    clock, network = network_of(3.0)
    told = []
    for _ in range(3):
        network.start(2.0, A, ONE, INF, told.append)
    clock.run()
    assert told == [0, 1, 2]
    assert clock.now == 2.0


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize(
    ("look", "sees"),
    [
        (lambda network: network.count_on(0), lambda done, other: 1),
        (lambda network: network.start(4.0, A, ONE, INF, print, last=True), lambda done, other: other + 1),
        (lambda network: network.start(4.0, A, ONE, INF, print), lambda done, other: other + 1),
        (lambda network: network.set_capacity(0, 1.0), lambda done, other: None),
    ],
)
def test_a_flow_that_has_ended_is_gone_when_its_end_is_told(look, sees, together):
    """Of flows that share 3 bytes/s some end after 2 s; asked in the call back, and once more after it."""
    clock, network = network_of(3.0)
    seen = []

    def done(flow):
        with pytest.raises(KeyError):
            network.remaining(flow)
        if len(ended) == flow + 1:  # the last of those that end now
            assert network.rate(together) == 3.0 / (together + 1)  # new rates come after all call backs
            seen.append(look(network))
            network.cancel(together)

    ended = [network.start(6.0 / (together + 1), A, ONE, INF, done) for _ in range(together)]
    other = network.start(100.0, A, ONE, INF, print)
    clock.run(until=2.5)
    assert seen == [sees(ended, other)]


@pytest.mark.parametrize("route", [A, np.empty(0, dtype=np.int64)], ids=["with a link", "without links"])
def test_nothing_to_send_is_done_at_once(route):
    clock, network = network_of(0.0)
    ends = []
    clock.at(2.5, lambda _: network.start(0.0, route, np.ones(len(route)), INF, lambda f: ends.append(clock.now)))
    clock.run()
    assert ends == [2.5]


def test_a_cancelled_flow_is_never_told_and_its_bytes_left_are_returned():
    clock, network = network_of(2.0)
    told, left = [], []
    flow = network.start(10.0, A, ONE, INF, told.append)
    clock.at(3.0, lambda _: left.append(network.cancel(flow)))
    clock.run()
    assert (told, left) == ([], [4.0])
    with pytest.raises(KeyError):
        network.rate(flow)


def test_cancelling_at_the_instant_of_the_end_wins_and_the_next_flow_is_not_mistaken_for_it():
    clock, network = network_of(1.0)
    told = []
    first = network.start(2.0, A, ONE, INF, told.append)

    def replace(_):
        assert network.cancel(first) == 0.0
        network.start(3.0, A, ONE, INF, told.append)

    clock.at(2.0, replace, STATE)  # placed before the flow's own end, so it happens first
    clock.run()
    assert (told, clock.now) == ([1], 5.0)


# --- links, collectives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 8, 64])
def test_a_ring_all_reduce_takes_the_closed_form_and_two_share_fairly(workers):
    gradient, rate = 1e9, 12.5e9
    volume = 2 * (workers - 1) / workers * gradient
    clock, network = network_of(*[rate] * workers)
    ring, ends = np.arange(workers), []
    network.start(volume, ring, np.ones(workers), rate, lambda flow: ends.append(clock.now))
    clock.run()
    assert ends == [volume / rate]
    for _ in range(2):
        network.start(volume, ring, np.ones(workers), rate, lambda flow: ends.append(clock.now))
    clock.run()
    assert ends[1] == ends[2] == pytest.approx(3 * volume / rate, rel=1e-15)


# --- the references --------------------------------------------------------------------------------------


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("topology", "name"), [("star64", "ring64"), ("tree64", "w2_tree64_load0.8"), ("tree1024", "w2_tree1024_load0.8")]
)
def test_end_times_equal_another_simulators(topology, name):
    """SimGrid 4.1 with plain max-min fairness, zero latency."""
    if not SETS.is_dir():
        pytest.skip("the public measurements are not here")
    capacity, route = read_topology(SETS / f"topo_{topology}.json")
    drawn = read_flows(SETS / f"flows_{name}.csv.gz", route)
    ends = OnClock(capacity, drawn).end_times_s()
    assert largest_error(ends, SETS / f"ref_{name}.csv.gz") < 1e-9
