"""Tables of flows and links, and which flow uses which link how much; kernels that keep them.

- `flows[slot]` (FLOW), `links[link]` (LINK) and `uses[...]` (USE): the uses of a flow are consecutive, those
  of a link form a doubly linked list.
- `reals[row, ...]`: FINISH, when the flow in a slot ends; BLOCK, the least of BLOCK_SIZE of them; KEY, keys
  of a heap.
- `ints[row, ...]`: COUNT, the counters below; the other rows are lists of links or of slots.

Units: bytes, bytes/s, s. Kernels allocate nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.kernels.jit import jit_in_place, jit_in_place_for_both

Records = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FLOW = np.dtype(
    [
        ("rate", "f8"),  # since `anchor_s`
        ("next_rate", "f8"),  # what the filling in progress gives it
        ("limit", "f8"),  # the lower of `cap` and what its narrowest link would give to it alone
        ("stamp", "i8"),  # last recomputation that it took part in; GONE: the slot is free
        ("fixed", "i8"),  # last filling that has fixed its rate
        ("first", "i4"),  # its uses are uses[first : first + length]
        ("length", "i4"),
        ("bottleneck", "i4"),  # the full link on which no flow is faster; OWN_LIMIT: its own limit
        ("next_bottleneck", "i4"),
        ("left", "f8"),  # bytes left at `anchor_s`
        ("anchor_s", "f8"),  # when the rate last changed
        ("cap", "f8"),  # the highest rate it reaches by itself
        ("reserved", "i4"),  # for so many uses there is room from `first` on
        ("fresh", "i4"),  # 1: in the list FRESH
    ]
)
LINK = np.dtype(
    [
        ("load", "f8"),  # sum of usage * rate while it binds, but for rounding
        ("trial", "f8"),  # the same with the rates of the filling in progress
        ("room", "f8"),  # capacity that no flow fixed so far takes
        ("rising", "f8"),  # usage of the flows not fixed so far
        ("stamp", "i8"),  # last recomputation that it took part in
        ("touched", "i8"),  # last filling that changed its load though it took no part
        ("rising_flows", "i4"),
        ("binds", "i4"),  # 1: its flows could fill it together
        ("group", "i4"),  # flows whose bottleneck it is
        ("head", "i4"),  # first of its uses, -1: none
        ("capacity", "f8"),
        ("share", "f8"),  # rate at which it became full in the filling in progress, inf: it did not
        ("fastest", "f8"),  # rate of its fastest flow that takes no part
        ("demand", "f8"),  # sum of usage * limit, but for rounding
        ("flows", "i4"),
        ("dirty", "i4"),  # 1: in the list DIRTY
    ]
)
USE = np.dtype([("usage", "f8"), ("flow", "i4"), ("link", "i4"), ("next", "i4"), ("previous", "i4")])

FINISH, BLOCK, KEY = range(3)
ROWS = 9
COUNT, DIRTY, FRESH, MEMBER, OPEN, TOUCHED, CHOSEN, DUE, HEAP = range(ROWS)
N_DIRTY, N_FRESH, N_MEMBER, N_OPEN, N_TOUCHED, N_CHOSEN, STAMP, ROUND, HIGH, USES_END, FREE_USES = range(11)
COUNTERS = FREE_USES + 64  # FREE_USES + k: first of the free stretches of 2**k uses
BLOCK_SIZE = 64
STALE = -1.0  # in BLOCK: to be computed anew
GONE = -1
ENTERED, FULL, WRONG = range(3)
OWN_LIMIT = -1


class State(NamedTuple):
    """The arrays that all kernels take, in this order."""

    flows: Records
    links: Records
    uses: Records
    reals: Floats
    ints: Ints


def make_state(capacity_bytes_per_s: Floats, flows: int, uses: int) -> State:
    """Tables without flows, with room for `flows` flows and `uses` uses."""
    links = np.zeros(len(capacity_bytes_per_s), LINK)
    links["capacity"], links["head"] = capacity_bytes_per_s, -1
    reals, ints = np.zeros((3, 0)), np.zeros((ROWS, 0), dtype=np.int64)
    state = grow_flows(State(np.zeros(0, FLOW), links, np.zeros(uses, USE), reals, ints), flows)
    state.ints[COUNT, FREE_USES:COUNTERS] = -1
    return state


def grow_flows(state: State, flows: int) -> State:
    """A copy with room for `flows` flows. The lists of links and of slots share their width."""
    whole_blocks = -(-flows // BLOCK_SIZE) * BLOCK_SIZE
    width, old = max(whole_blocks, len(state.links), COUNTERS), state.ints.shape[1]
    reals, ints = np.zeros((3, width)), np.zeros((ROWS, width), dtype=np.int64)
    reals[FINISH] = reals[BLOCK] = np.inf
    reals[:, :old], ints[:, :old] = state.reals, state.ints
    table = np.zeros(flows, FLOW)
    table[: len(state.flows)] = state.flows
    return state._replace(flows=table, reals=reals, ints=ints)


def grow_uses(state: State, more: int) -> State:
    """A copy with room for at least `more` uses more, and for twice as many as now."""
    return state._replace(uses=np.concatenate((state.uses, np.zeros(len(state.uses) + 2 * more, USE))))


@jit_in_place
def size_class(length: int) -> int:
    """Least k with 2**k >= length."""
    k = 0
    while (1 << k) < length:
        k += 1
    return k


@jit_in_place
def reserve_uses(uses: Records, ints: Ints, length: int) -> int:
    """First of a free stretch of `length` uses; -1 when there is none."""
    count, k = ints[COUNT], size_class(length)
    first = count[FREE_USES + k]
    if first >= 0:
        count[FREE_USES + k] = uses[first].next
        return int(first)
    first = count[USES_END]
    if first + (1 << k) > uses.size:
        return -1
    count[USES_END] = first + (1 << k)
    return int(first)


@jit_in_place
def mark_dirty(links: Records, ints: Ints, number: int) -> None:
    """Put a link on the list of those that changed."""
    if links[number].dirty == 0:
        links[number].dirty = 1
        ints[DIRTY, ints[COUNT, N_DIRTY]] = number
        ints[COUNT, N_DIRTY] += 1


@jit_in_place
def mark_fresh(flows: Records, ints: Ints, slot: int) -> None:
    """Put a flow on the list of those whose rate must be found anew."""
    if flows[slot].fresh == 0:
        flows[slot].fresh = 1
        ints[FRESH, ints[COUNT, N_FRESH]] = slot
        ints[COUNT, N_FRESH] += 1


@jit_in_place
def alone(flow: Any, links: Records, uses: Records) -> float:
    """Rate of a flow that has all its links to itself."""
    limit = flow.cap
    for e in range(flow.first, flow.first + flow.length):
        limit = min(limit, links[uses[e].link].capacity / uses[e].usage)
    return float(limit)


@jit_in_place
def left_at(flow: Any, now_s: float) -> float:
    """Bytes left at `now_s`."""
    if now_s <= flow.anchor_s:
        return float(flow.left)
    return float(max(flow.left - flow.rate * (now_s - flow.anchor_s), 0.0))


@jit_in_place
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
) -> int:
    """Enter a flow into free `slot`, with rate 0 until rates are recomputed. A link named twice counts twice.

    Returns ENTERED, or without a change FULL when `uses` is full or WRONG for a bad link or usage.
    """
    for k in range(route.size):
        if not (0 <= route[k] < links.size and 0.0 < usage[k] < np.inf):
            return WRONG
    first = reserve_uses(uses, ints, route.size)
    if first < 0:
        return FULL
    end = first
    for k in range(route.size):
        link = links[route[k]]
        if first <= link.head < end:
            uses[link.head].usage += usage[k]
            continue
        use = uses[end]
        use.usage, use.flow, use.link, use.next, use.previous = usage[k], slot, route[k], link.head, -1
        if link.head >= 0:
            uses[link.head].previous = end
        link.head = end
        link.flows += 1
        mark_dirty(links, ints, route[k])
        end += 1
    flow = flows[slot]
    flow.rate, flow.left, flow.anchor_s, flow.cap = 0.0, volume, now_s, cap
    flow.first, flow.length, flow.stamp, flow.bottleneck = first, end - first, 0, OWN_LIMIT
    flow.reserved = route.size
    flow.limit = alone(flow, links, uses)
    for e in range(first, end):
        links[uses[e].link].demand += uses[e].usage * flow.limit
    mark_fresh(flows, ints, slot)
    ints[COUNT, HIGH] = max(ints[COUNT, HIGH], slot + 1)
    return ENTERED


@jit_in_place_for_both
def detach(flows: Records, links: Records, uses: Records, reals: Floats, ints: Ints, slot: int) -> None:
    """Take a flow out."""
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
        link.load -= use.usage * flow.rate
        link.demand -= use.usage * flow.limit
        if link.flows == 0:
            link.demand = 0.0  # no rounding is carried on
        mark_dirty(links, ints, use.link)
    if flow.bottleneck != OWN_LIMIT:
        links[flow.bottleneck].group -= 1
    k = FREE_USES + size_class(flow.reserved)
    uses[flow.first].next = ints[COUNT, k]
    ints[COUNT, k] = flow.first
    flow.stamp = GONE
    reals[FINISH, slot] = np.inf
    reals[BLOCK, slot // BLOCK_SIZE] = STALE


@jit_in_place
def change_capacity(
    flows: Records, links: Records, uses: Records, reals: Floats, ints: Ints, number: int, capacity: float
) -> None:
    """Set a link's capacity, and with it the limits of its flows."""
    changed = links[number]
    changed.capacity = capacity
    mark_dirty(links, ints, number)
    e = changed.head
    while e >= 0:
        flow = flows[uses[e].flow]
        limit = alone(flow, links, uses)
        for other in range(flow.first, flow.first + flow.length):
            links[uses[other].link].demand += uses[other].usage * (limit - flow.limit)
            mark_dirty(links, ints, uses[other].link)
        flow.limit = limit
        mark_fresh(flows, ints, uses[e].flow)
        e = uses[e].next


@jit_in_place
def next_due(reals: Floats, ints: Ints) -> tuple[float, int, int]:
    """Earliest end of a flow, how many end then (slots in `ints[DUE]`), the first; none: (inf, 0, -1)."""
    finish, least = reals[FINISH], reals[BLOCK]
    blocks = (ints[COUNT, HIGH] + BLOCK_SIZE - 1) // BLOCK_SIZE
    end_s = np.inf
    for b in range(blocks):
        if least[b] == STALE:
            first = b * BLOCK_SIZE
            w = x = y = z = np.inf  # four, because each comparison waits for the one before it
            for slot in range(first, first + BLOCK_SIZE, 4):
                w, x = min(w, finish[slot]), min(x, finish[slot + 1])
                y, z = min(y, finish[slot + 2]), min(z, finish[slot + 3])
            least[b] = min(w, x, y, z)
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


@jit_in_place
def left_of(flows: Records, slot: int, now_s: float) -> float:
    """Bytes that the flow in `slot` has left at `now_s`."""
    return left_at(flows[slot], now_s)
