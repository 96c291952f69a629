"""The tables of flows and links, field by field, and rates that were reckoned by hand."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from equipoise.sim.clock import DECISION, Clock
from equipoise.sim.network import fairness
from equipoise.sim.network import tables as t
from equipoise.sim.network.network import Network
from tests.oracles.network import Flow, end_times, fair_rates

INF = math.inf
NO_LINKS = np.empty(0, dtype=np.int64), np.empty(0)


def tables(*capacity, flows=64, uses=64):
    return t.make_state(np.array(capacity, dtype=float), flows, uses)


def enter(state, slot, usage, volume=1000.0, cap=INF, now_s=0.0):
    """Let a flow with usage by link (pairs) into a slot."""
    links, parts = [link for link, _ in usage], [part for _, part in usage]
    route = np.array(links, dtype=np.int64), np.array(parts, dtype=np.float64)
    return t.attach(*state, slot, volume, cap, now_s, *route)


def settle(state, now_s=0.0):
    return fairness.settle(*state, -1, -1, 0.0, 0.0, now_s, *NO_LINKS)


def chain(state, link):
    """Slots of the flows on a link, from its head on, and back from its end."""
    forward, backward, e, last = [], [], int(state.links[link]["head"]), -1
    while e >= 0:
        forward.append(int(state.uses[e]["flow"]))
        last, e = e, int(state.uses[e]["next"])
    while last >= 0:
        backward.append(int(state.uses[last]["flow"]))
        last = int(state.uses[last]["previous"])
    assert forward == backward[::-1]
    return forward


def rates(state, *slots):
    return [float(state.flows[slot]["rate"]) for slot in slots]


# --- room ------------------------------------------------------------------------------------------------


def test_new_tables_hold_no_flow():
    state = tables(5.0, 7.0, flows=3, uses=11)
    assert (len(state.flows), len(state.links), len(state.uses)) == (3, 2, 11)
    assert state.links["capacity"].tolist() == [5.0, 7.0]
    assert state.links["head"].tolist() == [-1, -1]
    assert (state.reals[[t.FINISH, t.BLOCK]] == INF).all()
    count = state.ints[t.COUNT]
    assert count[: t.FREE_USES].tolist() == [0] * t.FREE_USES
    assert (count[t.FREE_USES : t.COUNTERS] == -1).all()
    assert len({t.N_DIRTY, t.N_FRESH, t.N_MEMBER, t.N_OPEN, t.N_TOUCHED, t.N_CHOSEN, t.STAMP}) == 7
    assert (t.FREE_USES, t.COUNTERS) == (10, 74)
    assert len({t.COUNT, t.DIRTY, t.FRESH, t.MEMBER, t.OPEN, t.TOUCHED, t.CHOSEN, t.DUE, t.HEAP}) == t.ROWS


@pytest.mark.parametrize(
    ("flows", "links", "width"),
    [(64, 2, 74), (65, 2, 128), (128, 2, 128), (129, 2, 192), (3, 101, 101), (130, 191, 192), (130, 193, 193)],
)
def test_lists_are_as_wide_as_whole_blocks_of_flows_the_links_and_the_counters(flows, links, width):
    state = tables(*[1.0] * links, flows=flows)
    assert state.reals.shape == (3, width)
    assert state.ints.shape == (t.ROWS, width)


def test_room_for_more_keeps_what_is_there():
    state = tables(5.0, flows=64, uses=5)
    assert enter(state, 2, [(0, 3.0)], volume=9.0) == t.ENTERED
    settle(state)
    more = t.grow_flows(state, 130)
    assert len(more.flows) == 130
    assert more.flows[:64].tolist() == state.flows.tolist()
    assert more.flows[64:].tolist() == np.zeros(66, t.FLOW).tolist()
    assert more.reals[t.FINISH, 2] == pytest.approx(9.0 / (5.0 / 3.0))
    assert np.isinf(np.delete(more.reals[t.FINISH], 2)).all()
    assert np.isinf(more.reals[t.BLOCK, 1:]).all()
    assert more.ints[:, :74].tolist() == state.ints.tolist()
    assert more.links is state.links
    longer = t.grow_uses(state, 3)
    assert len(longer.uses) == 5 + 5 + 2 * 3
    assert longer.uses[:5].tolist() == state.uses.tolist()
    assert longer.uses[5:].tolist() == np.zeros(11, t.USE).tolist()


def test_uses_are_given_in_powers_of_two_and_a_stretch_that_fits_exactly_is_given():
    state = tables(*[9.0] * 9, uses=15)
    first = [
        (enter(state, slot, [(link, 2.0) for link in range(length)]), int(state.flows[slot]["first"]))
        for slot, length in enumerate((3, 1, 2, 9))
    ]
    assert first[:3] == [(t.ENTERED, 0), (t.ENTERED, 4), (t.ENTERED, 5)]
    assert first[3][0] == t.FULL
    assert state.ints[t.COUNT, t.USES_END] == 7
    assert enter(state, 3, [(link, 2.0) for link in range(8)]) == t.ENTERED
    assert (int(state.flows[3]["first"]), int(state.ints[t.COUNT, t.USES_END])) == (7, 15)
    assert enter(state, 4, [(0, 2.0)]) == t.FULL
    assert enter(state, 4, []) == t.FULL


def test_stretches_that_were_given_back_are_given_again_the_last_first():
    state = tables(*[9.0] * 4, uses=64)
    lengths = (3, 4, 2, 3)
    for slot, length in enumerate(lengths):
        enter(state, slot, [(link, 2.0) for link in range(length)])
    assert state.flows["first"][:4].tolist() == [0, 4, 8, 10]
    for slot in (1, 3, 0):
        t.detach(*state, slot)
    assert [enter(state, slot, [(2, 5.0)] * 1 + [(0, 3.0), (1, 4.0)]) for slot in (5, 6, 7)] == [t.ENTERED] * 3
    assert state.flows["first"][5:8].tolist() == [0, 10, 4]
    enter(state, 8, [(0, 2.0), (1, 2.0), (3, 2.0)])
    assert int(state.flows[8]["first"]) == 14


# --- flows -----------------------------------------------------------------------------------------------


def test_a_flow_that_enters_is_written_down_whole():
    state = tables(30.0, 20.0, 70.0)
    assert enter(state, 5, [(2, 4.0), (0, 3.0), (2, 1.5)], volume=50.0, cap=11.0, now_s=6.5) == t.ENTERED
    flow = state.flows[5]
    assert {key: flow[key].item() for key in ("rate", "left", "anchor_s", "cap", "limit")} == {
        "rate": 0.0,
        "left": 50.0,
        "anchor_s": 6.5,
        "cap": 11.0,
        "limit": 10.0,
    }
    assert [flow[key].item() for key in ("first", "length", "reserved", "stamp", "bottleneck", "fresh")] == [
        0,
        2,
        3,
        0,
        t.OWN_LIMIT,
        1,
    ]
    assert state.uses[:2].tolist() == [(5.5, 5, 2, -1, -1), (3.0, 5, 0, -1, -1)]
    assert state.links["flows"].tolist() == [1, 0, 1]
    assert state.links["demand"].tolist() == [30.0, 0.0, 55.0]
    assert state.links["dirty"].tolist() == [1, 0, 1]
    count = state.ints[t.COUNT]
    assert state.ints[t.DIRTY, : count[t.N_DIRTY]].tolist() == [2, 0]
    assert state.ints[t.FRESH, : count[t.N_FRESH]].tolist() == [5]
    assert count[t.HIGH] == 6
    assert enter(state, 3, [(0, 7.0)], cap=2.0) == t.ENTERED
    assert (count[t.HIGH], chain(state, 0), float(state.flows[3]["limit"])) == (6, [3, 5], 2.0)
    assert state.links["demand"].tolist() == [44.0, 0.0, 55.0]
    assert state.ints[t.DIRTY, : count[t.N_DIRTY]].tolist() == [2, 0]


@pytest.mark.parametrize("route", [[(1, 2.0), (-1, 2.0)], [(1, 2.0), (2, 2.0)], [(1, 0.0)], [(1, INF)]])
def test_a_flow_on_no_link_or_with_no_usage_changes_nothing(route):
    state = tables(5.0, 7.0)
    before = [table.tolist() for table in state]
    assert enter(state, 0, route) == t.WRONG
    assert [table.tolist() for table in state] == before


@pytest.mark.parametrize("leaving", [0, 1, 2, 3])
def test_a_flow_leaves_its_links_in_order_whichever_it_was(leaving):
    state = tables(60.0, 35.0)
    for slot, usage in enumerate((2.0, 3.0, 5.0, 7.0)):
        enter(state, slot, [(1, usage * 4.0), (0, usage)], cap=1.0 + slot / 8)
    settle(state, 3.0)
    held = rates(state, 0, 1, 2, 3)
    limit = state.flows["limit"][:4].copy()
    t.detach(*state, leaving)
    stay = [slot for slot in range(4) if slot != leaving]
    assert chain(state, 0) == chain(state, 1) == stay[::-1]
    assert state.links["flows"].tolist() == [3, 3]
    usages = (2.0, 3.0, 5.0, 7.0)
    for link, factor in ((0, 1.0), (1, 4.0)):
        demand = sum(factor * usages[slot] * limit[slot] for slot in stay)
        assert state.links[link]["demand"] == pytest.approx(demand, rel=1e-12)
    assert state.links[1]["load"] == pytest.approx(sum(4.0 * usages[slot] * held[slot] for slot in stay))
    assert state.links["dirty"].tolist() == [1, 1]
    assert int(state.flows[leaving]["stamp"]) == t.GONE
    assert state.reals[t.FINISH, leaving] == INF
    assert state.reals[t.BLOCK, 0] == t.STALE
    assert state.links[1]["group"] == 3
    for slot in stay:
        t.detach(*state, slot)
    assert state.links["group"].tolist() == state.links["flows"].tolist() == [0, 0]
    assert state.links["demand"].tolist() == [0.0, 0.0]


def test_a_changed_capacity_changes_what_its_flows_ask_of_all_their_links():
    state = tables(40.0, 90.0, 50.0)
    enter(state, 0, [(0, 2.0), (1, 3.0)])
    enter(state, 1, [(1, 5.0), (2, 7.0)], cap=6.0)
    enter(state, 2, [(0, 4.0), (2, 2.0)], cap=8.0)
    settle(state)
    assert state.flows["limit"][:3].tolist() == [20.0, 6.0, 8.0]
    assert state.links["demand"].tolist() == [72.0, 90.0, 58.0]
    t.change_capacity(*state, 0, 12.0)
    assert state.flows["limit"][:3].tolist() == [6.0, 6.0, 3.0]
    assert state.links["demand"].tolist() == [24.0, 48.0, 48.0]
    assert state.links["capacity"].tolist() == [12.0, 90.0, 50.0]
    count = state.ints[t.COUNT]
    assert sorted(state.ints[t.DIRTY, : count[t.N_DIRTY]].tolist()) == [0, 1, 2]
    assert sorted(state.ints[t.FRESH, : count[t.N_FRESH]].tolist()) == [0, 2]
    assert state.links["dirty"].tolist() == [1, 1, 1]


def test_bytes_left_fall_from_when_the_rate_changed_and_never_below_none():
    state = tables(5.0)
    enter(state, 0, [(0, 2.0)], volume=20.0, now_s=3.0)
    settle(state, 3.0)
    left = [t.left_of(state.flows, 0, now_s) for now_s in (1.0, 3.0, 5.0, 11.0, 13.0)]
    assert left == [20.0, 20.0, 15.0, 0.0, 0.0]


def test_the_earliest_end_is_found_among_all_slots_with_all_that_end_then():
    state = t.grow_flows(tables(*[7.0] * 6), 256)
    assert settle(state) == (INF, 0, -1)
    ends = {1: 21.0, 67: 14.0, 127: 14.0, 130: 14.0, 195: 35.0, 62: 14.5}
    for link, (slot, end_s) in enumerate(ends.items()):
        enter(state, slot, [(link, 1.0)], volume=7.0 * end_s)
    assert settle(state) == (14.0, 3, 67)
    assert state.ints[t.DUE, :3].tolist() == [67, 127, 130]
    for slot in (67, 130):
        t.detach(*state, slot)
    assert settle(state, 2.0) == (14.0, 1, 127)
    t.detach(*state, 127)
    assert settle(state, 2.0) == (14.5, 1, 62)
    t.detach(*state, 62)
    assert settle(state, 2.0) == (21.0, 1, 1)
    t.detach(*state, 1)
    assert settle(state, 2.0) == (35.0, 1, 195)


@pytest.mark.parametrize("slot", range(60, 68))
def test_the_end_of_a_flow_in_any_slot_is_seen(slot):
    state = t.grow_flows(tables(2.0), 128)
    enter(state, slot, [(0, 1.0)], volume=6.0)
    assert settle(state) == (3.0, 1, slot)


# --- rates -----------------------------------------------------------------------------------------------


def test_of_flows_with_limits_of_their_own_the_others_share_what_is_left():
    state = tables(29.0)
    for slot, cap in enumerate((2.0, 3.0, 7.5, 9.0, INF)):
        enter(state, slot, [(0, 1.0)], cap=cap)
    settle(state)
    assert rates(state, 0, 1, 2, 3, 4) == [2.0, 3.0, 7.5, 8.25, 8.25]
    assert state.flows["bottleneck"][:5].tolist() == [t.OWN_LIMIT] * 3 + [0] * 2
    assert state.links[0]["group"] == 2
    assert state.links[0]["load"] == 29.0


def test_what_is_taken_out_and_entered_at_once_is_as_if_one_after_the_other():
    state = tables(12.0, 5.0)
    for slot in range(3):
        enter(state, slot, [(0, 1.0)], volume=48.0)
    settle(state)
    route = np.array([0, 1]), np.array([1.0, 2.0])
    found = fairness.settle(*state, 1, 7, 25.0, INF, 2.0, *route)
    assert rates(state, 0, 2, 7) == [4.75, 4.75, 2.5]
    assert found == (2.0 + 40.0 / 4.75, 2, 0)
    assert t.left_of(state.flows, 0, 3.0) == 40.0 - 4.75
    wrong = np.array([9]), np.array([1.0])
    assert fairness.settle(*state, -1, 8, 25.0, INF, 2.0, *wrong) == (INF, -t.WRONG, -1)


def test_a_flow_gone_before_it_was_reckoned_takes_no_part():
    state = tables(6.0)
    enter(state, 0, [(0, 1.0)])
    enter(state, 1, [(0, 1.0)])
    t.detach(*state, 1)
    settle(state)
    assert rates(state, 0) == [6.0]
    assert int(state.flows[1]["stamp"]) == t.GONE


def test_flows_that_could_just_fill_a_link_are_not_held_back_by_it():
    state = tables(10.0)
    for slot, cap in enumerate((3.0, 7.0)):
        enter(state, slot, [(0, 1.0)], cap=cap)
    settle(state)
    assert (rates(state, 0, 1), int(state.links[0]["binds"])) == ([3.0, 7.0], 0)
    enter(state, 2, [(0, 1.0)], cap=0.5)
    settle(state)
    assert (rates(state, 0, 1, 2), int(state.links[0]["binds"])) == ([3.0, 6.5, 0.5], 1)


def test_a_link_that_a_change_elsewhere_overfills_takes_part():
    state = tables(4.0, 10.0, 9.0)
    enter(state, 0, [(0, 1.0), (1, 1.0)])
    enter(state, 1, [(0, 1.0)])
    enter(state, 2, [(1, 1.0), (2, 2.0)])
    settle(state)
    assert rates(state, 0, 1, 2) == [2.0, 2.0, 4.5]
    t.change_capacity(*state, 0, 14.0)
    settle(state, 1.0)
    assert rates(state, 0, 1, 2) == [5.5, 8.5, 4.5]
    t.change_capacity(*state, 2, 11.0)
    settle(state, 2.0)
    assert rates(state, 0, 1, 2) == [5.0, 9.0, 5.0]
    t.change_capacity(*state, 0, 6.0)
    settle(state, 3.0)
    assert rates(state, 0, 1, 2) == [3.0, 3.0, 5.5]


@pytest.mark.parametrize("seed", range(6))
def test_rates_after_each_change_are_those_of_a_full_reckoning(seed):
    """Fourteen changes of flows over five links, by numbers that are never alike."""
    rng = random.Random(seed)
    capacity = [rng.uniform(2.0, 20.0) for _ in range(5)]
    clock = Clock()
    network, live = Network(clock, np.array(capacity)), {}
    for step in range(14):
        if rng.random() < 0.6 or len(live) < 3:
            usage = {link: rng.uniform(0.3, 3.0) for link in rng.sample(range(5), rng.randint(1, 3))}
            flow = Flow(1e9, usage, rng.choice([INF, rng.uniform(0.2, 5.0)]))
            route = np.array(list(usage)), np.array(list(usage.values()))
            live[network.start(flow.volume, *route, flow.cap, print)] = flow
        elif rng.random() < 0.6:
            gone = rng.choice(sorted(live))
            network.cancel(gone)
            del live[gone]
        else:
            link = rng.randrange(5)
            capacity[link] = rng.uniform(1.0, 20.0)
            network.set_capacity(link, capacity[link])
        clock.run(until=step + 1.0)
        found, expected = [network.rate(flow) for flow in live], fair_rates(capacity, list(live.values()))
        assert found == pytest.approx(expected, rel=1e-12)
        links = network._state.links
        for link in range(5):
            on = [
                (flow.usage[link], rate) for flow, rate in zip(live.values(), found, strict=True) if link in flow.usage
            ]
            assert int(links[link]["flows"]) == len(on)
            if links[link]["binds"]:
                assert links[link]["load"] == pytest.approx(sum(usage * rate for usage, rate in on))
        groups = [int(network._state.flows[network._slot_of[flow]]["bottleneck"]) for flow in live]
        assert links["group"].tolist() == [groups.count(link) for link in range(5)]


@pytest.mark.parametrize("seed", range(4))
def test_flows_end_when_a_plain_reckoning_says(seed):
    rng = random.Random(seed)
    capacity = [rng.uniform(2.0, 20.0) for _ in range(3)]
    drawn = [
        Flow(
            rng.uniform(3.0, 40.0),
            {link: rng.uniform(0.3, 3.0) for link in rng.sample(range(3), rng.randint(1, 3))},
            rng.choice([INF, rng.uniform(0.5, 4.0)]),
            rng.choice([0.0, 1.5, rng.uniform(0.0, 4.0)]),
        )
        for _ in range(6)
    ]
    clock, ends = Clock(), {}
    network = Network(clock, np.array(capacity))

    def begin(flow, k):
        route = np.array(list(flow.usage)), np.array(list(flow.usage.values()))
        network.start(flow.volume, *route, flow.cap, lambda _: ends.setdefault(k, clock.now), last=k % 2 == 0)

    for k, flow in enumerate(drawn):
        clock.at(flow.start, lambda _, flow=flow, k=k: begin(flow, k))
    clock.run()
    assert [ends[k] for k in range(6)] == pytest.approx(end_times(capacity, drawn), rel=1e-9)


# --- the network -----------------------------------------------------------------------------------------


def test_there_is_room_for_as_many_flows_as_come():
    network = Network(Clock(), np.array([260.0]))
    for k in range(66):
        assert network.start(3.0 + k, np.array([0]), np.ones(1), INF, print) == k
        assert len(network._owner) == len(network._state.flows) == (64 if k < 64 else 128)
    assert sorted(network._slot_of.values()) == list(range(66))
    assert network._free_slots == list(range(127, 65, -1))


def test_slots_are_given_from_the_first_on_and_the_last_left_is_taken_first():
    clock = Clock()
    network = Network(clock, np.array([9.0]))
    route = np.array([0]), np.ones(1)
    flows = [network.start(5.0, *route, INF, print) for _ in range(3)]
    assert [network._slot_of[flow] for flow in flows] == [0, 1, 2]
    network.cancel(flows[1])
    network.cancel(flows[0])
    assert [network._slot_of[network.start(5.0, *route, INF, print)] for _ in range(3)] == [0, 1, 3]


def test_a_flow_said_to_be_the_last_has_its_rate_at_once_where_nothing_else_happens():
    clock = Clock()
    network = Network(clock, np.array([9.0, 4.0]))
    route = np.array([0]), np.ones(1)
    first = network.start(18.0, *route, INF, print, last=True)
    assert (network.rate(first), clock.peek()) == (9.0, 2.0)
    plain = network.start(18.0, *route, INF, print)
    assert (network.rate(plain), network.rate(first), clock.peek()) == (0.0, 9.0, 0.0)
    last = network.start(18.0, *route, INF, print, last=True)  # the rates are to be reckoned anyway
    assert network.rate(last) == 0.0
    clock.run(until=0.5)
    assert [network.rate(flow) for flow in (first, plain, last)] == [3.0] * 3
    clock.at(0.5, lambda _: None, DECISION)
    more = network.start(18.0, *route, INF, print, last=True)  # something happens at this instant
    assert network.rate(more) == 0.0


def test_links_and_capacities_are_refused_at_their_borders():
    network = Network(Clock(), np.array([9.0, 4.0, 0.0]))
    for link in (-1, 3):
        with pytest.raises(ValueError, match=f"no link {link}, there are 3"):
            network.set_capacity(link, 5.0)
    network.set_capacity(2, 0.0)
    network.set_capacity(0, 6.0)
    assert network._state.links["capacity"].tolist() == [6.0, 4.0, 0.0]
    for bad in ([1.0, -0.5], [1.0, INF], [math.nan, 1.0]):
        with pytest.raises(ValueError, match="link capacities must be finite and not negative"):
            Network(Clock(), np.array(bad))


def test_a_flow_that_cannot_be_is_told_by_what_it_was_given():
    network = Network(Clock(), np.array([9.0]))
    with pytest.raises(ValueError, match=r"flow of 5.0 bytes at up to -2.0 bytes/s on 1 links with 1 usages"):
        network.start(5.0, np.array([0]), np.ones(1), -2.0, print)
    with pytest.raises(ValueError, match=r"flow on links \[4\] with usages \[3.\]: no such link"):
        network.start(5.0, np.array([4]), np.array([3.0]), INF, print)
    with pytest.raises(ValueError, match="no such link"):
        network.start(5.0, np.array([4]), np.array([3.0]), INF, print, last=True)
    assert network.start(5.0, np.array([0]), np.ones(1), INF, print) == 0
