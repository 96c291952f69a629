"""Kernels of max-min fair sharing: flows, links, and which flow uses which link how much.

Rates rise together from zero; a flow stops rising at its own limit or when a link it uses is full
(progressive filling, Bertsekas & Gallager, "Data Networks", 1992, section 6.5.2), with
`sum of usage * rate <= capacity` on every link. All state stands in five arrays:

- `flows[slot]` (FLOW), `links[link]` (LINK), `uses[...]` (USE): a flow's uses are consecutive, the uses of
  one link form a doubly linked list;
- `reals[row, ...]` (FINISH: time a flow ends; BLOCK: least of BLOCK_SIZE of them; KEY: heap keys) and
  `ints[row, ...]` (COUNT: the counters below; the other rows are lists of links or slots).

Units: bytes, bytes/s, s. Nothing here allocates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.jit import jit

Records = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FLOW = np.dtype(
    [
        ("rate", "f8"),  # bytes/s since `anchor_s`
        ("next_rate", "f8"),  # result of the filling in progress
        ("bottleneck", "i8"),  # the full link on which no flow is faster; OWN_LIMIT: none
        ("next_bottleneck", "i8"),
        ("left", "f8"),  # bytes left at `anchor_s`
        ("anchor_s", "f8"),  # when the rate last changed
        ("volume", "f8"),
        ("cap", "f8"),  # the highest rate it reaches by itself
        ("limit", "f8"),  # that, or what its narrowest link gives to it alone
        ("first", "i8"),  # its uses are uses[first : first + length]
        ("length", "i8"),
        ("stamp", "i8"),  # last filling that it took part in
        ("fixed", "i8"),  # last filling that has fixed its rate
        ("fresh", "i8"),  # 1: in the list of flows to fill anew
    ]
)
LINK = np.dtype(
    [
        ("capacity", "f8"),
        ("demand", "f8"),  # sum of usage * limit
        ("load", "f8"),  # sum of usage * rate while it binds, but for rounding
        ("trial", "f8"),  # the same with the rates of the filling in progress
        ("room", "f8"),  # capacity not yet taken by fixed flows
        ("rising", "f8"),  # usage of the flows that are not fixed yet
        ("rising_flows", "i8"),
        ("carried", "f8"),  # bytes of flows that have left
        ("offered", "f8"),  # integral of the capacity up to `offered_s`
        ("offered_s", "f8"),
        ("head", "i8"),  # first of its uses, -1: none
        ("flows", "i8"),
        ("group", "i8"),  # flows whose bottleneck it is
        ("share", "f8"),  # rate that it gives in the filling in progress, inf: all they want
        ("fastest", "f8"),  # rate of the fastest flow that takes no part
        ("binds", "i8"),  # 1: its flows together could fill it
        ("dirty", "i8"),  # 1: in the list of changed links
        ("stamp", "i8"),
        ("touched", "i8"),
    ]
)
USE = np.dtype([("usage", "f8"), ("flow", "i8"), ("link", "i8"), ("next", "i8"), ("previous", "i8")])

FINISH, BLOCK, KEY = range(3)
COUNT, DIRTY, FRESH, MEMBER, OPEN, TOUCHED, DUE, HEAP = range(8)
ROWS = 8
N_DIRTY, N_FRESH, N_MEMBER, N_OPEN, N_TOUCHED, STAMP, ROUND, HIGH, USES_END, LIVE, FREE_USES = range(11)
COUNTERS = FREE_USES + 64  # FREE_USES + k: head of the list of free stretches of 2**k uses
BLOCK_SIZE = 64
STALE = -1.0  # in BLOCK: to be computed anew
GONE = -1  # in a flow's stamp: the slot is free
SAME_RATE = 1e-13  # relative; less is rounding, and the old rate and its anchor stay
NEAR = 1e-9  # relative; sums kept up to date are trusted to be that good, and added up anew within it
OWN_LIMIT = -1


@jit
def size_class(length: int) -> int:
    """Least k with 2**k >= length."""
    k = 0
    while (1 << k) < length:
        k += 1
    return k


@jit
def reserve_uses(uses: Records, ints: Ints, length: int) -> int:
    """First of a free stretch of `length` uses; -1 when there is none."""
    count = ints[COUNT]
    k = size_class(length)
    first = count[FREE_USES + k]
    if first >= 0:
        count[FREE_USES + k] = uses[first].next
        return first  # type: ignore[no-any-return]
    first = count[USES_END]
    if first + (1 << k) > uses.size:
        return -1
    count[USES_END] = first + (1 << k)
    return first  # type: ignore[no-any-return]


@jit
def mark_dirty(links: Records, ints: Ints, link: int) -> None:
    """Put `link` on the list of changed links."""
    if links[link].dirty == 0:
        links[link].dirty = 1
        ints[DIRTY, ints[COUNT, N_DIRTY]] = link
        ints[COUNT, N_DIRTY] += 1


@jit
def mark_fresh(flows: Records, ints: Ints, slot: int) -> None:
    """Put a flow on the list of those to fill anew."""
    if flows[slot].fresh == 0:
        flows[slot].fresh = 1
        ints[FRESH, ints[COUNT, N_FRESH]] = slot
        ints[COUNT, N_FRESH] += 1


@jit
def narrowest(flow: Any, links: Records, uses: Records) -> float:
    """Rate of a flow that has all its links to itself."""
    limit = flow.cap
    for e in range(flow.first, flow.first + flow.length):
        limit = min(limit, links[uses[e].link].capacity / uses[e].usage)
    return limit  # type: ignore[no-any-return]


@jit
def attach(
    flows: Records,
    links: Records,
    uses: Records,
    reals: Floats,
    ints: Ints,
    slot: int,
    volume: float,
    cap: float,
    now_s: float,
    route: Ints,
    usage: Floats,
) -> bool:
    """Enter a flow into free `slot`, with rate 0 until the next `settle`; False when `uses` is full."""
    first = reserve_uses(uses, ints, route.size)
    if first < 0:
        return False
    flow = flows[slot]
    flow.rate, flow.left, flow.volume, flow.anchor_s = 0.0, volume, volume, now_s
    flow.cap, flow.first, flow.length, flow.stamp = cap, first, route.size, 0
    flow.bottleneck = OWN_LIMIT
    for k in range(route.size):
        use, link = uses[first + k], links[route[k]]
        use.usage, use.flow, use.link = usage[k], slot, route[k]
        use.next, use.previous = link.head, -1
        if link.head >= 0:
            uses[link.head].previous = first + k
        link.head = first + k
        link.flows += 1
        mark_dirty(links, ints, route[k])
    flow.limit = narrowest(flow, links, uses)
    for k in range(route.size):
        links[route[k]].demand += usage[k] * flow.limit
    mark_fresh(flows, ints, slot)
    count = ints[COUNT]
    count[LIVE] += 1
    count[HIGH] = max(count[HIGH], slot + 1)
    return True


@jit
def left_at(flow: Any, now_s: float) -> float:
    """Bytes left at `now_s`."""
    if now_s <= flow.anchor_s:
        return flow.left  # type: ignore[no-any-return]
    return max(flow.left - flow.rate * (now_s - flow.anchor_s), 0.0)


@jit
def detach(
    flows: Records, links: Records, uses: Records, reals: Floats, ints: Ints, slot: int, left: float
) -> None:
    """Take a flow out; `left` bytes of it were not carried."""
    flow = flows[slot]
    for e in range(flow.first, flow.first + flow.length):
        use, link = uses[e], links[uses[e].link]
        if use.previous >= 0:
            uses[use.previous].next = use.next
        else:
            link.head = use.next
        if use.next >= 0:
            uses[use.next].previous = use.previous
        link.flows -= 1
        link.carried += use.usage * (flow.volume - left)
        link.demand -= use.usage * flow.limit
        link.load -= use.usage * flow.rate
        if link.flows == 0:
            link.demand = 0.0  # no rounding is carried on
        mark_dirty(links, ints, use.link)
    if flow.bottleneck != OWN_LIMIT:
        links[flow.bottleneck].group -= 1
    k = FREE_USES + size_class(flow.length)
    uses[flow.first].next = ints[COUNT, k]
    ints[COUNT, k] = flow.first
    flow.stamp = GONE
    reals[FINISH, slot] = np.inf
    reals[BLOCK, slot // BLOCK_SIZE] = STALE
    ints[COUNT, LIVE] -= 1


@jit
def change_capacity(
    flows: Records, links: Records, uses: Records, ints: Ints, link: int, capacity: float, now_s: float
) -> None:
    """Set a link's capacity, and the limits of its flows with it."""
    changed = links[link]
    changed.offered += changed.capacity * (now_s - changed.offered_s)
    changed.offered_s = now_s
    changed.capacity = capacity
    mark_dirty(links, ints, link)
    e = changed.head
    while e >= 0:
        flow = flows[uses[e].flow]
        limit = narrowest(flow, links, uses)
        for other in range(flow.first, flow.first + flow.length):
            links[uses[other].link].demand += uses[other].usage * (limit - flow.limit)
            mark_dirty(links, ints, uses[other].link)
        flow.limit = limit
        mark_fresh(flows, ints, uses[e].flow)
        e = uses[e].next


@jit
def sift_down(keys: Floats, ids: Ints, size: int, hole: int) -> None:
    """Restore the order of a binary heap of (key, id) below position `hole`."""
    key, item = keys[hole], ids[hole]
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[hole], ids[hole] = keys[child], ids[child]
        hole = child
    keys[hole], ids[hole] = key, item


@jit
def pop(keys: Floats, ids: Ints, size: int) -> int:
    """Take the first item off the heap; returns the size that remains."""
    size -= 1
    keys[0], ids[0] = keys[size], ids[size]
    sift_down(keys, ids, size, 0)
    return size


@jit
def same(rate: float, other: float) -> bool:
    """Whether two rates differ by rounding only."""
    return rate == other or abs(rate - other) <= SAME_RATE * other


@jit
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
    return 1 if demand > link.capacity * (1.0 + SAME_RATE) else 0


@jit
def sum_rates(flows: Records, links: Records, uses: Records, number: int) -> float:
    """Sum of usage * rate on a link."""
    load, e = 0.0, links[number].head
    while e >= 0:
        load += uses[e].usage * flows[uses[e].flow].rate
        e = uses[e].next
    return load


@jit
def join(flows: Records, ints: Ints, slot: int) -> None:
    """Let a flow take part in the filling."""
    count = ints[COUNT]
    if flows[slot].stamp != count[STAMP]:
        flows[slot].stamp = count[STAMP]
        ints[MEMBER, count[N_MEMBER]] = slot
        count[N_MEMBER] += 1


@jit
def open_link(links: Records, ints: Ints, number: int) -> None:
    """Let a link take part in the filling."""
    count = ints[COUNT]
    if links[number].stamp != count[STAMP]:
        links[number].stamp = count[STAMP]
        ints[OPEN, count[N_OPEN]] = number
        count[N_OPEN] += 1


@jit
def admit(flows: Records, links: Records, uses: Records, ints: Ints, first: int) -> None:
    """Let the flows of the open links join, from the `first` open link on, and open what they change too.

    The rates of all flows with one bottleneck change together, and with them the load of every other
    bottleneck on their way. Of a link that is no bottleneck yet, those join that get more than an equal part.
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


@jit
def equal_part(links: Records, uses: Records, number: int) -> float:
    """Rate of the flows of a link if it were shared equally by usage."""
    usage, e = 0.0, links[number].head
    while e >= 0:
        usage += uses[e].usage
        e = uses[e].next
    return links[number].capacity / usage  # type: ignore[no-any-return]


@jit
def take_changes(flows: Records, links: Records, uses: Records, ints: Ints) -> None:
    """Begin with the fresh flows and with the changed links that are bottlenecks."""
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
        links[number].dirty = 0
        did_bind, links[number].binds = links[number].binds, can_bind(flows, links, uses, number)
        if links[number].binds > did_bind:
            links[number].load = sum_rates(flows, links, uses, number)
        if links[number].group > 0:
            open_link(links, ints, number)
    count[N_FRESH] = count[N_DIRTY] = 0
    admit(flows, links, uses, ints, 0)


@jit
def fix(flow: Any, links: Records, uses: Records, rate: float, bottleneck: int, stamp: int, turn: int) -> None:
    """Fix the rate of a flow and take it off the open links."""
    flow.next_rate, flow.next_bottleneck, flow.fixed = rate, bottleneck, turn
    for e in range(flow.first, flow.first + flow.length):
        link = links[uses[e].link]
        if link.stamp == stamp:
            link.room -= uses[e].usage * rate
            link.rising -= uses[e].usage
            link.rising_flows -= 1


@jit
def empty(flows: Records, links: Records, uses: Records, ints: Ints, number: int) -> None:
    """Prepare an open link for the filling: what it has left for the members, and what they use of it."""
    link, stamp = links[number], ints[COUNT, STAMP]
    load = fastest = rising = 0.0
    members = 0
    e = link.head
    while e >= 0:
        usage, flow = uses[e].usage, flows[uses[e].flow]
        if flow.stamp == stamp:
            rising += usage
            members += 1
        else:
            load += usage * flow.rate
            fastest = max(fastest, flow.rate)
        e = uses[e].next
    link.room, link.rising, link.rising_flows = link.capacity - load, rising, members
    link.share, link.fastest = np.inf, fastest


@jit
def narrowest_open(links: Records, keys: Floats, ids: Ints, heap: int) -> tuple[float, int]:
    """Least share (room / rising usage) of the open links, which comes to stand first, and the heap's size.

    No share falls while flows are fixed below it, so the heap may be stale: its first is refreshed and put
    back until it stays first.
    """
    while heap > 0:
        link = links[ids[0]]
        if link.rising_flows == 0:
            heap = pop(keys, ids, heap)
            continue
        share = max(link.room, 0.0) / link.rising
        if share <= keys[0]:
            return share, heap
        keys[0] = share
        sift_down(keys, ids, heap, 0)
    return np.inf, 0


@jit
def fill(flows: Records, links: Records, uses: Records, reals: Floats, ints: Ints) -> None:
    """Progressive filling of the members over the open links, all other flows as they are."""
    count, keys, ids = ints[COUNT], reals[KEY], ints[HEAP]
    count[ROUND] += 1
    turn, stamp, members, heap = count[ROUND], count[STAMP], count[N_MEMBER], 0
    for i in range(count[N_OPEN]):
        number = ints[OPEN, i]
        empty(flows, links, uses, ints, number)
        if links[number].rising_flows > 0:
            keys[heap], ids[heap] = max(links[number].room, 0.0) / links[number].rising, number
            heap += 1
    for i in range(heap // 2 - 1, -1, -1):
        sift_down(keys, ids, heap, i)
    lowest = np.inf
    for i in range(members):
        lowest = min(lowest, flows[ints[MEMBER, i]].limit)
    rising = members
    while rising > 0:
        share, heap = narrowest_open(links, keys, ids, heap)
        if lowest <= share:
            lowest = np.inf
            for i in range(members):
                flow = flows[ints[MEMBER, i]]
                if flow.fixed != turn:
                    if flow.limit <= share:
                        fix(flow, links, uses, flow.limit, OWN_LIMIT, stamp, turn)
                        rising -= 1
                    else:
                        lowest = min(lowest, flow.limit)
            continue
        links[ids[0]].share = share
        e = links[ids[0]].head
        while e >= 0:
            flow = flows[uses[e].flow]
            if flow.stamp == stamp and flow.fixed != turn:
                fix(flow, links, uses, share, ids[0], stamp, turn)
                rising -= 1
            e = uses[e].next


@jit
def try_rates(flows: Records, links: Records, uses: Records, ints: Ints) -> int:
    """Add the members' new rates to links that could bind but are not open; returns how many (TOUCHED)."""
    count, touched = ints[COUNT], 0
    for i in range(count[N_MEMBER]):
        flow = flows[ints[MEMBER, i]]
        if same(flow.next_rate, flow.rate):
            flow.next_rate = flow.rate
            continue
        for e in range(flow.first, flow.first + flow.length):
            link = links[uses[e].link]
            if link.binds == 0 or link.stamp == count[STAMP]:
                continue
            if link.touched != count[ROUND]:
                link.touched, link.trial = count[ROUND], link.load
                ints[TOUCHED, touched] = uses[e].link
                touched += 1
            link.trial += uses[e].usage * (flow.next_rate - flow.rate)
    return touched


@jit
def overfull(flows: Records, links: Records, uses: Records, ints: Ints, number: int) -> bool:
    """Whether a link would carry more than its capacity."""
    link = links[number]
    if link.trial < link.capacity * (1.0 - NEAR):
        return False
    load, e = 0.0, link.head
    while e >= 0:
        flow = flows[uses[e].flow]
        load += uses[e].usage * (flow.next_rate if flow.stamp == ints[COUNT, STAMP] else flow.rate)
        e = uses[e].next
    return load > link.capacity * (1.0 + SAME_RATE)  # type: ignore[no-any-return]


@jit
def widen(flows: Records, links: Records, uses: Records, ints: Ints) -> bool:
    """Open what the members' new rates would make unfair or overfull; False when there is nothing.

    Rates are max-min fair when every flow has its own limit or a full link on which none is faster
    (Bertsekas & Gallager, 1992, section 6.5.2). So a bottleneck whose load changes must be opened, and where an open link
    has become a bottleneck, faster flows that took no part must join.
    """
    count = ints[COUNT]
    members, n_open = count[N_MEMBER], count[N_OPEN]
    count[N_TOUCHED] = try_rates(flows, links, uses, ints)
    for i in range(count[N_TOUCHED]):
        number = ints[TOUCHED, i]
        if links[number].group > 0 or overfull(flows, links, uses, ints, number):
            open_link(links, ints, number)
    for i in range(n_open):
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
    admit(flows, links, uses, ints, n_open)
    return bool(count[N_MEMBER] > members or count[N_OPEN] > n_open)


@jit
def regroup(flow: Any, links: Records) -> None:
    """Make the new bottleneck of a flow its bottleneck."""
    if flow.bottleneck != flow.next_bottleneck:
        if flow.bottleneck != OWN_LIMIT:
            links[flow.bottleneck].group -= 1
        if flow.next_bottleneck != OWN_LIMIT:
            links[flow.next_bottleneck].group += 1
        flow.bottleneck = flow.next_bottleneck


@jit
def apply_rates(flows: Records, links: Records, reals: Floats, ints: Ints, now_s: float) -> None:
    """Give members their new rates. An unchanged rate keeps its anchor and its end, to the bit."""
    count = ints[COUNT]
    for i in range(count[N_TOUCHED]):
        links[ints[TOUCHED, i]].load = links[ints[TOUCHED, i]].trial
    for i in range(count[N_OPEN]):
        links[ints[OPEN, i]].load = links[ints[OPEN, i]].capacity - links[ints[OPEN, i]].room
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


@jit
def next_due(reals: Floats, ints: Ints) -> tuple[float, int, int]:
    """Earliest end of a flow, how many end then (their slots in `ints[DUE]`), the first; none: (inf, 0, -1)."""
    finish, least = reals[FINISH], reals[BLOCK]
    blocks = (ints[COUNT, HIGH] + BLOCK_SIZE - 1) // BLOCK_SIZE
    end_s = np.inf
    for b in range(blocks):
        if least[b] == STALE:
            earliest = np.inf
            for slot in range(b * BLOCK_SIZE, (b + 1) * BLOCK_SIZE):
                earliest = min(earliest, finish[slot])
            least[b] = earliest
        end_s = min(end_s, least[b])
    due = 0
    if end_s < np.inf:
        for b in range(blocks):
            if least[b] == end_s:
                for slot in range(b * BLOCK_SIZE, (b + 1) * BLOCK_SIZE):
                    if finish[slot] == end_s:
                        ints[DUE, due] = slot
                        due += 1
    return end_s, due, ints[DUE, 0] if due else -1


@jit
def settle(
    flows: Records, links: Records, uses: Records, reals: Floats, ints: Ints, now_s: float
) -> tuple[float, int, int]:
    """Recompute the rates that the changes since the last call touch; returns `next_due`.

    Starts from the flows that share a bottleneck with what changed, and widens until all rates are fair.
    """
    take_changes(flows, links, uses, ints)
    if ints[COUNT, N_MEMBER] > 0:
        fill(flows, links, uses, reals, ints)
        while widen(flows, links, uses, ints):
            fill(flows, links, uses, reals, ints)
        apply_rates(flows, links, reals, ints, now_s)
    return next_due(reals, ints)


@jit
def left_of(flows: Records, slot: int, now_s: float) -> float:
    """Bytes that the flow in `slot` has left at `now_s`."""
    return left_at(flows[slot], now_s)


@jit
def add_live(flows: Records, uses: Records, slots: Ints, carried: Floats, now_s: float) -> None:
    """Add what the flows in `slots` have carried so far to `carried` (links,)."""
    for slot in slots:
        flow = flows[slot]
        through = flow.volume - left_at(flow, now_s)
        for e in range(flow.first, flow.first + flow.length):
            carried[uses[e].link] += uses[e].usage * through
