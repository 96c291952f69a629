"""Max-min fair rates, recomputed only where a change reaches.

Rates rise together from zero; a flow stops at its own limit or when a link that it uses is full, with
`sum of usage * rate <= capacity` on every link (progressive filling). The result is the only one in which
every flow has a bottleneck: its own limit, or a full link on which no flow is faster (Bertsekas & Gallager,
"Data Networks", 2nd ed. 1992, section 6.5.2). That property is what makes a small change cheap:

1. The links that changed and are somebody's bottleneck are *open*; the flows they hold back are *members*.
   A member's rate changes, so other bottlenecks on its way open too.
2. Fill the members over the open links; all other flows keep their rates.
3. Where that overfills a link, changes the load of a bottleneck, or gives a bottleneck to a link that has a
   faster flow, open and admit more, and fill again. Otherwise every flow has a bottleneck: done.

The arrays are those of `sim.network.tables`. Links that their flows cannot fill together are never looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.policies.kernels.arrays import heapify, pop, sift_down
from equipoise.policies.kernels.jit import ZERO, jit_in_place
from equipoise.sim.network.tables import (
    BLOCK,
    BLOCK_SIZE,
    CHOSEN,
    COUNT,
    DIRTY,
    ENTERED,
    FINISH,
    FRESH,
    GONE,
    HEAP,
    KEY,
    MEMBER,
    N_CHOSEN,
    N_DIRTY,
    N_FRESH,
    N_MEMBER,
    N_OPEN,
    N_TOUCHED,
    OPEN,
    OWN_LIMIT,
    ROUND,
    STALE,
    STAMP,
    TOUCHED,
    Floats,
    Ints,
    Records,
    attach,
    detach,
    left_at,
    next_due,
)

SAME_RATE = 1e-13  # relative; a smaller change is rounding: the old rate stays, and its anchor with it
NEAR = 1e-9  # relative; sums kept up to date are trusted that far, and added up anew where it matters


@jit_in_place
def same(rate: float, other: float) -> bool:
    """Whether two rates differ by rounding only."""
    return rate == other or abs(rate - other) <= SAME_RATE * other


# --- who takes part --------------------------------------------------------------------------------------


@jit_in_place
def can_bind(flows: Records, links: Records, uses: Records, number: int) -> int:
    """1 when the flows of a link could fill it together."""
    link = links[number]
    if link.flows < 2 or link.demand < link.capacity * (1.0 - NEAR):
        return 0
    if link.demand > link.capacity * (1.0 + NEAR):
        return 1
    demand, e = 0.0, link.head
    while e >= 0:
        demand += uses[e].usage * flows[uses[e].flow].limit
        e = uses[e].next
    link.demand = demand
    return 1 if demand > link.capacity * (1.0 + SAME_RATE) else 0


@jit_in_place
def sum_rates(flows: Records, links: Records, uses: Records, number: int) -> float:
    """Sum of usage * rate on a link."""
    load, e = 0.0, links[number].head
    while e >= 0:
        load += uses[e].usage * flows[uses[e].flow].rate
        e = uses[e].next
    return load


@jit_in_place
def equal_part(links: Records, uses: Records, number: int) -> float:
    """Rate of the flows of a link if all had the same."""
    usage, e = 0.0, links[number].head
    while e >= 0:
        usage += uses[e].usage
        e = uses[e].next
    return float(links[number].capacity / usage)


@jit_in_place
def join(flows: Records, ints: Ints, slot: int) -> None:
    """Add a flow to the recomputation."""
    count = ints[COUNT]
    if flows[slot].stamp != count[STAMP]:
        flows[slot].stamp = count[STAMP]
        ints[MEMBER, count[N_MEMBER]] = slot
        count[N_MEMBER] += 1


@jit_in_place
def open_link(links: Records, ints: Ints, number: int) -> None:
    """Add a link to the recomputation."""
    count = ints[COUNT]
    if links[number].stamp != count[STAMP]:
        links[number].stamp = count[STAMP]
        ints[OPEN, count[N_OPEN]] = number
        count[N_OPEN] += 1


@jit_in_place
def admit(flows: Records, links: Records, uses: Records, ints: Ints, first: int) -> None:
    """Let the flows held back by open links join, from the `first` link on, and open what they change too.

    The rates of all flows with one bottleneck change together, and with them the load of every other
    bottleneck on their way. Of a link that was no bottleneck, those join that have more than an equal part.
    """
    count = ints[COUNT]
    i = first
    while i < count[N_OPEN]:
        number = ints[OPEN, i]
        link = links[number]
        i += 1
        equal = np.inf if link.group > 0 else equal_part(links, uses, number)
        e = link.head
        while e >= 0:
            flow = flows[uses[e].flow]
            if flow.bottleneck == number:
                join(flows, ints, uses[e].flow)
                for other in range(flow.first, flow.first + flow.length):
                    if links[uses[other].link].group > 0:
                        open_link(links, ints, uses[other].link)
            elif flow.rate > equal:
                join(flows, ints, uses[e].flow)
            e = uses[e].next


@jit_in_place
def take_changes(flows: Records, links: Records, uses: Records, ints: Ints) -> None:
    """Begin with the fresh flows, and with the changed links that are bottlenecks or are too full by now."""
    count = ints[COUNT]
    count[STAMP] += 1
    count[N_MEMBER] = count[N_OPEN] = 0
    for i in range(count[N_FRESH]):
        slot = ints[FRESH, i]
        flows[slot].fresh = 0
        if flows[slot].stamp != GONE:
            join(flows, ints, slot)
    for i in range(count[N_DIRTY]):
        number = ints[DIRTY, i]
        link = links[number]
        link.dirty = 0
        did_bind, link.binds = link.binds, can_bind(flows, links, uses, number)
        if link.binds > did_bind:
            link.load = sum_rates(flows, links, uses, number)
        if link.group > 0 or (link.binds and link.load > link.capacity * (1.0 - NEAR)):
            open_link(links, ints, number)
    count[N_FRESH] = count[N_DIRTY] = 0
    admit(flows, links, uses, ints, ZERO)


# --- filling ---------------------------------------------------------------------------------------------


@jit_in_place
def survey(flows: Records, links: Records, uses: Records, ints: Ints, number: int) -> None:
    """Choose the members of an open link that are not fixed, and add up what they use and what is left."""
    link, stamp, turn = links[number], ints[COUNT, STAMP], ints[COUNT, ROUND]
    taken = fastest = rising = 0.0
    rising_flows = 0
    e = link.head
    while e >= 0:
        usage, flow = uses[e].usage, flows[uses[e].flow]
        if flow.stamp != stamp:
            taken += usage * flow.rate
            fastest = max(fastest, flow.rate)
        elif flow.fixed == turn:
            taken += usage * flow.next_rate
        else:
            rising += usage
            ints[CHOSEN, rising_flows] = uses[e].flow
            rising_flows += 1
        e = uses[e].next
    link.room, link.rising, link.rising_flows = max(link.capacity - taken, 0.0), rising, rising_flows
    link.fastest, ints[COUNT, N_CHOSEN] = fastest, rising_flows


@jit_in_place
def choose_limited(flows: Records, ints: Ints, share: float) -> float:
    """Choose the members whose own limit is at most `share`; returns the least limit of the others."""
    count = ints[COUNT]
    n, lowest = 0, np.inf
    for i in range(count[N_MEMBER]):
        flow = flows[ints[MEMBER, i]]
        if flow.fixed == count[ROUND]:
            continue
        if flow.limit <= share:
            ints[CHOSEN, n] = ints[MEMBER, i]
            n += 1
        else:
            lowest = min(lowest, flow.limit)
    count[N_CHOSEN] = n
    return lowest


@jit_in_place
def prepare(flows: Records, links: Records, uses: Records, reals: Floats, ints: Ints) -> int:
    """Survey the open links and put those with members into the heap; returns its size."""
    keys, ids, heap = reals[KEY], ints[HEAP], ZERO
    for i in range(ints[COUNT, N_OPEN]):
        number = ints[OPEN, i]
        link = links[number]
        survey(flows, links, uses, ints, number)
        link.share = np.inf
        if link.rising_flows > 0:
            keys[heap], ids[heap] = link.room / link.rising, number
            heap += 1
    heapify(keys, ids, heap)
    return heap


@jit_in_place
def fill(flows: Records, links: Records, uses: Records, reals: Floats, ints: Ints) -> None:
    """Progressive filling of the members over the open links, all other flows as they are.

    No link's share (room / rising usage) falls while flows are fixed below it, so the keys of the heap may
    be stale: the first is refreshed and put back until it stays first, and then added up anew, free of the
    rounding of its updates.
    """
    ints[COUNT, ROUND] += 1
    heap = prepare(flows, links, uses, reals, ints)
    count, keys, ids, chosen = ints[COUNT], reals[KEY], ints[HEAP], ints[CHOSEN]
    turn, rising, lowest = count[ROUND], count[N_MEMBER], np.inf
    for i in range(rising):
        lowest = min(lowest, flows[ints[MEMBER, i]].limit)
    while rising > 0:
        share = np.inf
        while heap > 0:
            link = links[ids[0]]
            if link.rising_flows == 0:
                heap = pop(keys, ids, heap)
                continue
            share = max(link.room, 0.0) / link.rising
            if share <= keys[0]:
                survey(flows, links, uses, ints, ids[0])
                share = link.room / link.rising
                break
            keys[0] = share
            sift_down(keys, ids, heap, ZERO)
            share = np.inf
        bottleneck = ids[0]
        if lowest <= share:  # some are held back by their own limits first
            bottleneck = OWN_LIMIT
            lowest = choose_limited(flows, ints, share)
        else:
            links[bottleneck].share = share
        for i in range(count[N_CHOSEN]):
            flow = flows[chosen[i]]
            if flow.fixed == turn:
                continue
            rising -= 1
            rate = min(share, flow.limit)
            flow.next_rate, flow.next_bottleneck, flow.fixed = rate, bottleneck, turn
            for e in range(flow.first, flow.first + flow.length):
                link = links[uses[e].link]  # of links that are not open these are never read
                link.room -= uses[e].usage * rate
                link.rising -= uses[e].usage
                link.rising_flows -= 1


# --- checking and applying -------------------------------------------------------------------------------


@jit_in_place
def try_rates(flows: Records, links: Records, uses: Records, ints: Ints) -> None:
    """Add up the load that links which could bind, but are not open, would have; they go to TOUCHED."""
    count = ints[COUNT]
    touched, turn, stamp = 0, count[ROUND], count[STAMP]
    for i in range(count[N_MEMBER]):
        flow = flows[ints[MEMBER, i]]
        if same(flow.next_rate, flow.rate):
            flow.next_rate = flow.rate
            continue
        for e in range(flow.first, flow.first + flow.length):
            link = links[uses[e].link]
            if link.binds == 0 or link.stamp == stamp:
                continue
            if link.touched != turn:
                link.touched, link.trial = turn, link.load
                ints[TOUCHED, touched] = uses[e].link
                touched += 1
            link.trial += uses[e].usage * (flow.next_rate - flow.rate)
    count[N_TOUCHED] = touched


@jit_in_place
def overfull(flows: Records, links: Records, uses: Records, ints: Ints, number: int) -> bool:
    """Whether a touched link would carry more than its capacity."""
    link = links[number]
    if link.trial < link.capacity * (1.0 - NEAR):
        return False
    load, e = 0.0, link.head
    while e >= 0:
        flow = flows[uses[e].flow]
        load += uses[e].usage * (flow.next_rate if flow.stamp == ints[COUNT, STAMP] else flow.rate)
        e = uses[e].next
    return bool(load > link.capacity * (1.0 + SAME_RATE))


@jit_in_place
def widen(flows: Records, links: Records, uses: Records, ints: Ints) -> bool:
    """Open and admit what the members' new rates concern; False when nothing is left to do."""
    count = ints[COUNT]
    members, opened = count[N_MEMBER], count[N_OPEN]
    try_rates(flows, links, uses, ints)
    for i in range(count[N_TOUCHED]):
        number = ints[TOUCHED, i]
        if links[number].group > 0 or overfull(flows, links, uses, ints, number):
            open_link(links, ints, number)
    for i in range(opened):
        link = links[ints[OPEN, i]]
        if link.fastest <= link.share or same(link.fastest, link.share):
            continue
        e = link.head
        while e >= 0:
            flow = flows[uses[e].flow]
            if flow.stamp != count[STAMP] and flow.rate > link.share and not same(flow.rate, link.share):
                if flow.bottleneck != OWN_LIMIT:
                    open_link(links, ints, flow.bottleneck)
                join(flows, ints, uses[e].flow)
            e = uses[e].next
    admit(flows, links, uses, ints, opened)
    return bool(count[N_MEMBER] > members or count[N_OPEN] > opened)


@jit_in_place
def regroup(flow: Any, links: Records) -> None:
    """Make the new bottleneck of a flow its bottleneck."""
    if flow.bottleneck != flow.next_bottleneck:
        if flow.bottleneck != OWN_LIMIT:
            links[flow.bottleneck].group -= 1
        if flow.next_bottleneck != OWN_LIMIT:
            links[flow.next_bottleneck].group += 1
        flow.bottleneck = flow.next_bottleneck


@jit_in_place
def apply_rates(flows: Records, links: Records, reals: Floats, ints: Ints, now_s: float) -> None:
    """Give members their new rates. An unchanged rate keeps its anchor and its end, to the bit."""
    count = ints[COUNT]
    for i in range(count[N_TOUCHED]):
        link = links[ints[TOUCHED, i]]
        link.load = link.trial
    for i in range(count[N_OPEN]):
        link = links[ints[OPEN, i]]
        link.load = link.capacity - link.room
    for i in range(count[N_MEMBER]):
        slot = ints[MEMBER, i]
        flow = flows[slot]
        regroup(flow, links)
        if flow.next_rate == flow.rate and flow.rate > 0.0:
            continue
        flow.left = left_at(flow, now_s)
        flow.anchor_s = now_s
        flow.rate = flow.next_rate
        reals[FINISH, slot] = now_s if flow.left == 0.0 else now_s + flow.left / flow.rate
        reals[BLOCK, slot // BLOCK_SIZE] = STALE


@jit_in_place
def settle(
    flows: Records,
    links: Records,
    uses: Records,
    reals: Floats,
    ints: Ints,
    ended: int,
    slot: int,
    volume: float,
    cap: float,
    now_s: float,
    route: Ints,
    usage: Floats,
) -> tuple[float, int, int]:
    """Make all rates max-min fair again after the changes since the last call; returns `next_due`.

    First takes out the flow in slot `ended` and enters one into `slot`; -1 for none. Most changes come one
    at a time, and calling a kernel costs as much as entering a flow does. Where `attach` changes nothing,
    and answers why: (inf, -why, -1).
    """
    if ended >= 0:
        detach(flows, links, uses, reals, ints, ended)
    if slot >= 0:
        answer = attach(flows, links, uses, reals, ints, slot, volume, cap, now_s, route, usage)
        if answer != ENTERED:
            return np.inf, -answer, -1
    take_changes(flows, links, uses, ints)
    if ints[COUNT, N_MEMBER] > 0:
        fill(flows, links, uses, reals, ints)
        while widen(flows, links, uses, ints):
            fill(flows, links, uses, reals, ints)
        apply_rates(flows, links, reals, ints, now_s)
    return next_due(reals, ints)
