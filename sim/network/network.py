"""The network at flow level: max-min fair rates, one event for the start and one for the end of a flow.

As in fluid models of the SimGrid kind (Velho et al., "On the validity of flow-level TCP network models",
ACM TOMACS 23(4), 2013): a flow has a volume in bytes and, per link that it crosses, a usage, the bytes on
that link per byte of volume. A collective is one flow that uses every link of its ring or tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from simpy.events import Event

from equipoise.policies.kernels.jit import compiled_for
from equipoise.sim.clock import RATES, STATE, Clock
from equipoise.sim.network import fairness
from equipoise.sim.network import tables as flows
from equipoise.sim.network.tables import DUE, Floats, Ints, State

OnDone = Callable[[int], object]
Kernel = Callable[..., tuple[float, int, int]]
INFINITY = math.inf
_NO_LINKS: tuple[Ints, Floats] = (np.empty(0, dtype=np.int64), np.empty(0))


class Network:
    """Flows over links, on the simulation's clock.

    Rates are recomputed once per instant, after all starts and ends of that instant (priority RATES); until
    then `rate` is that of before, 0 for a flow just started. A flow's end is reckoned from the last change
    of its rate, so that undisturbed it takes exactly volume / rate. A delay before the first byte is the
    caller's: call `start` that much later.

    `capacity_bytes_per_s` (links,) is finite and not negative. Raises ValueError otherwise.
    """

    def __init__(self, clock: Clock, capacity_bytes_per_s: Floats) -> None:
        capacity = np.asarray(capacity_bytes_per_s, dtype=np.float64)
        if not (np.isfinite(capacity) & (capacity >= 0)).all():
            raise ValueError("link capacities must be finite and not negative")
        self.clock = clock
        self._tables = flows.make_state(capacity, flows=64, uses=256)
        self._kernel: Kernel | None = None  # compiled when first needed
        self._leaving = -1  # slot of a flow that has ended; the next kernel takes it out of the tables
        self._slot_of: dict[int, int] = {}  # live flows by handle, in order of their start
        self._owner: list[tuple[int, OnDone]] = [_NOBODY] * 64  # handle and callback by slot
        self._free_slots = list(range(63, -1, -1))
        self._started = 0
        self._settling = False  # the rates will be recomputed at this instant
        self._due: list[int] = []  # flows that end first, at `_end_s`
        self._end_s = INFINITY
        self._end: Event | None = None

    # --- flows -------------------------------------------------------------------------------------------

    def start(
        self,
        volume_bytes: float,
        links: Ints,
        usage: Floats,
        cap_bytes_per_s: float,
        on_done: OnDone,
        *,
        last: bool = False,
    ) -> int:
        """Start a flow now and return its handle; `on_done(handle)` is called when its last byte is through.

        `links` (n,) int64 are links; `usage` (n,) float64, above 0, the bytes on each per byte of volume;
        `cap_bytes_per_s`, above 0 or inf, the highest rate it reaches by itself. A volume of 0 is done at
        this instant. `last`: the caller does nothing else to the network at this instant, which saves an
        event. Raises ValueError for what makes no sense, and changes nothing then.
        """
        if not (0 <= volume_bytes < INFINITY and cap_bytes_per_s > 0 and len(links) == len(usage)):
            raise ValueError(
                f"flow of {volume_bytes} bytes at up to {cap_bytes_per_s} bytes/s on {len(links)} links with "
                f"{len(usage)} usages: needs a finite volume >= 0, a cap > 0 and equal lengths"
            )
        if self._leaving >= 0:
            self._take_out()
        if not self._free_slots:
            self._grow()
        slot, flow, now_s = self._free_slots[-1], self._started, self.clock._now
        volume, cap = float(volume_bytes), float(cap_bytes_per_s)
        settled = last and not self._settling and not self._more_happens()
        while True:
            if settled:
                next_end = fairness.settle(*self._tables, -1, slot, volume, cap, now_s, links, usage)
                answer = -next_end[1]
            else:
                answer = flows.attach(*self._tables, slot, volume, cap, now_s, links, usage)
            if answer <= 0:
                break
            if answer == flows.WRONG:
                raise ValueError(f"flow on links {links} with usages {usage}: unknown link, or a usage that is not > 0")
            self._tables = flows.grow_uses(self._tables, len(links))
        self._free_slots.pop()
        self._started = flow + 1
        self._slot_of[flow] = slot
        self._owner[slot] = (flow, on_done)
        if settled:
            self._place_end(*next_end)
        else:
            self._changed()
        return flow

    def cancel(self, flow: int) -> float:
        """Take a flow out without a call back; returns the bytes left. Raises KeyError: not live."""
        left = self.remaining(flow)
        self._remove(flow)
        self._changed()
        return left

    def set_capacity(self, link: int, bytes_per_s: float) -> None:
        """Change a link's capacity from now on; 0 stops its flows. Raises ValueError for inf, nan or < 0."""
        if not (0 <= bytes_per_s < INFINITY):
            raise ValueError(f"capacity of link {link} must be finite and not negative, not {bytes_per_s}")
        if not 0 <= link < len(self._state.links):
            raise ValueError(f"no link {link}, there are {len(self._state.links)}")
        flows.change_capacity(*self._state, int(link), float(bytes_per_s))
        self._changed()

    def rate(self, flow: int) -> float:
        """Rate of a live flow, bytes/s. Raises KeyError when it is not live."""
        return float(self._state.flows[self._slot_of[flow]]["rate"])

    def remaining(self, flow: int) -> float:
        """Bytes that a live flow has left now. Raises KeyError when it is not live."""
        return flows.left_of(self._state.flows, self._slot_of[flow], self.clock._now)

    def count_on(self, link: int) -> int:
        """Number of live flows that use a link."""
        return int(self._state.links[link]["flows"])

    # --- events ------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        if not self._settling:
            self._settling = True
            self.clock.at(self.clock._now, self._settle, RATES)

    def _settle(self, _: Event | None = None) -> None:
        """Recompute the rates and place the one event of the earliest end."""
        self._settling = False
        leaving, self._leaving = self._leaving, -1
        if leaving >= 0:
            self._free_slots.append(leaving)
        kernel = self._kernel or self._compile()
        self._place_end(*kernel(*self._tables, leaving, -1, 0.0, 0.0, self.clock._now, *_NO_LINKS))

    def _compile(self) -> Kernel:
        like = (*self._tables, -1, -1, 0.0, 0.0, 0.0, *_NO_LINKS)
        self._kernel = compiled_for(fairness.settle, *like)
        return self._kernel

    def _place_end(self, end_s: float, due: int, first: int) -> None:
        if due == 1:
            self._due = [self._owner[first][0]]
        else:
            self._due = sorted(self._owner[slot][0] for slot in self._tables.ints[DUE, :due].tolist())
        if end_s != self._end_s:
            Clock.cancel(self._end)
            self._end_s = end_s
            self._end = self.clock.at(end_s, self._finish, STATE) if due else None

    def _finish(self, _: Event) -> None:
        """Call back the flows that are due in order of their start, and recompute the rates."""
        self._end, self._end_s, self._settling = None, INFINITY, True
        if len(self._due) == 1:
            flow = self._due[0]
            if flow in self._slot_of:
                self._leaving = self._slot_of.pop(flow)
                self._owner[self._leaving][1](flow)
        else:
            live = [flow for flow in self._due if flow in self._slot_of]
            for on_done, flow in [(self._remove(flow), flow) for flow in live]:
                on_done(flow)
        if self._more_happens():
            self.clock.at(self.clock._now, self._settle, RATES)
        else:
            self._settle()

    def _more_happens(self) -> bool:
        """Whether other events follow at this instant."""
        queue = self.clock._queue
        return bool(queue) and queue[0][0] == self.clock._now

    # --- slots -------------------------------------------------------------------------------------------

    @property
    def _state(self) -> State:
        """The tables, without a flow that has ended."""
        if self._leaving >= 0:
            self._take_out()
        return self._tables

    def _take_out(self) -> None:
        slot, self._leaving = self._leaving, -1
        flows.detach(*self._tables, slot)
        self._free_slots.append(slot)

    def _remove(self, flow: int) -> OnDone:
        slot = self._slot_of.pop(flow)
        flows.detach(*self._state, slot)
        self._free_slots.append(slot)
        return self._owner[slot][1]

    def _grow(self) -> None:
        old = len(self._owner)
        self._tables = flows.grow_flows(self._tables, 2 * old)
        self._owner.extend([_NOBODY] * old)
        self._free_slots.extend(range(2 * old - 1, old - 1, -1))


def _never(flow: int) -> None:
    raise AssertionError(f"flow {flow} was never started")


_NOBODY: tuple[int, OnDone] = (-1, _never)
