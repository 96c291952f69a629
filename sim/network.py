"""The network at flow level: max-min fair rates, each flow one start and one end event.

As in fluid models of the SimGrid kind (Velho et al., "On the validity of flow-level TCP network models",
ACM TOMACS 23(4), 2013): a flow has a volume in bytes, and per link that it crosses a usage, the bytes on
that link per byte of volume. A collective is one flow that uses every link of its ring or tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from sim import fairness
from sim.clock import RATES, STATE, Clock
from sim.fairness import (
    BLOCK,
    COUNTERS,
    DUE,
    FINISH,
    FLOW,
    FREE_USES,
    LINK,
    ROWS,
    USE,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OnDone = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of all links at one time: bytes carried, and bytes that the capacity could have carried."""

    time_s: float
    carried_bytes: Floats
    offered_bytes: Floats


class Network:
    """Flows over links with fixed capacities, on the simulation's clock.

    Rates are recomputed once per instant, after all starts and ends of that instant (priority RATES); until
    then `rate` gives the rate of before, 0 for a flow just started. A delay before the first byte is the
    caller's: place `start` that much later.
    """

    def __init__(self, clock: Clock, capacity_bytes_per_s: Floats) -> None:
        capacity = np.asarray(capacity_bytes_per_s, dtype=np.float64)
        if not (np.isfinite(capacity) & (capacity >= 0)).all():
            raise ValueError("link capacities must be finite and not negative")
        self.clock = clock
        self._links = np.zeros(len(capacity), LINK)
        self._links["capacity"], self._links["head"] = capacity, -1
        self._links["offered_s"] = clock.now
        self._flows = np.zeros(0, FLOW)
        self._uses = np.zeros(256, USE)
        self._reals = np.zeros((3, 0))
        self._ints = np.zeros((ROWS, 0), dtype=np.int64)
        self._slot_of: dict[int, int] = {}  # live flows by handle, in order of their start
        self._owner: list[tuple[int, OnDone]] = []  # handle and callback by slot
        self._free_slots: list[int] = []
        self._next_handle = 0
        self._dirty = False
        self._end: Event | None = None
        self._end_s = np.inf
        self._due: list[int] = []  # handles that end at `_end_s`
        self._grow_slots(64)
        self._ints[0, FREE_USES:COUNTERS] = -1

    # --- flows -------------------------------------------------------------------------------------------

    def start(
        self, volume_bytes: float, links: Ints, usage: Floats, cap_bytes_per_s: float, on_done: OnDone
    ) -> int:
        """Start a flow now and return its handle; `on_done(handle)` is called when its last byte is through.

        `links` (n,) int64 are links, `usage` (n,) float64 the bytes on each per byte of volume, above 0;
        `cap_bytes_per_s` above 0 (inf: none) is the highest rate it reaches by itself. A volume of 0 is
        done at this instant. Raises ValueError for a volume, cap or shapes that make no sense.
        """
        if not (0 <= volume_bytes < np.inf and cap_bytes_per_s > 0 and len(links) == len(usage)):
            raise ValueError(
                f"flow of {volume_bytes} bytes at up to {cap_bytes_per_s} bytes/s over {len(links)} links "
                f"with {len(usage)} usages: volume must be finite and >= 0, cap > 0, lengths equal"
            )
        if not self._free_slots:
            self._grow_slots(2 * len(self._flows))
        slot = self._free_slots.pop()
        while not fairness.attach(
            self._flows, self._links, self._uses, self._reals, self._ints,
            slot, volume_bytes, cap_bytes_per_s, self.clock._now, links, usage,
        ):  # fmt: skip
            self._uses = np.concatenate((self._uses, np.zeros(len(self._uses) + 2 * len(links), USE)))
        handle = self._next_handle
        self._next_handle = handle + 1
        self._slot_of[handle] = slot
        self._owner[slot] = (handle, on_done)
        self._changed()
        return handle

    def cancel(self, flow: int) -> float:
        """Take a flow out without calling back; returns the bytes that were left. Raises KeyError: no such flow."""
        left = self.remaining(flow)
        self._remove(flow, left)
        self._changed()
        return left

    def set_capacity(self, link: int, bytes_per_s: float) -> None:
        """Change a link's capacity from now on; 0 stops its flows. Raises ValueError when not finite or negative."""
        if not 0 <= bytes_per_s < np.inf:
            raise ValueError(f"capacity of link {link} must be finite and not negative, is {bytes_per_s}")
        fairness.change_capacity(
            self._flows, self._links, self._uses, self._ints, link, bytes_per_s, self.clock._now
        )
        self._changed()

    def rate(self, flow: int) -> float:
        """Rate of a live flow (bytes/s), as of the last recomputation. Raises KeyError when it is not live."""
        return float(self._flows[self._slot_of[flow]]["rate"])

    def remaining(self, flow: int) -> float:
        """Bytes a live flow has left now. Raises KeyError when it is not live."""
        return float(fairness.left_of(self._flows, self._slot_of[flow], self.clock._now))

    def flows_on(self, link: int) -> list[int]:
        """Handles of the live flows that use a link, in order of their start."""
        uses, found, e = self._uses, set(), int(self._links[link]["head"])
        while e >= 0:
            found.add(self._owner[int(uses[e]["flow"])][0])
            e = int(uses[e]["next"])
        return sorted(found)

    # --- links -------------------------------------------------------------------------------------------

    def carried_bytes(self) -> Floats:
        """Bytes that each link has carried up to now, (links,)."""
        carried = self._links["carried"].copy()
        fairness.add_live(self._flows, self._uses, self._slots(), carried, self.clock._now)
        return carried

    def reading(self) -> Reading:
        """The links' counters now, to compare a later time with."""
        links, now = self._links, self.clock._now
        offered = links["offered"] + links["capacity"] * (now - links["offered_s"])
        return Reading(now, self.carried_bytes(), offered)

    def busy_ratio(self, since: Reading) -> Floats:
        """Share of each link's capacity in use since that reading, 0..1; NaN where it had none, (links,)."""
        now = self.reading()
        carried, offered = now.carried_bytes - since.carried_bytes, now.offered_bytes - since.offered_bytes
        return np.divide(carried, offered, out=np.full(len(carried), np.nan), where=offered > 0)

    # --- events ------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        if not self._dirty:
            self._dirty = True
            self.clock.at(self.clock._now, self._settle, RATES)

    def _settle(self, event: Event) -> None:
        """Recompute the rates and place the one event of the earliest end."""
        self._dirty = False
        end_s, due, first = fairness.settle(
            self._flows, self._links, self._uses, self._reals, self._ints, self.clock._now
        )
        if due == 1:
            self._due = [self._owner[first][0]]
        else:
            self._due = sorted(self._owner[slot][0] for slot in self._ints[DUE, :due].tolist())
        if end_s != self._end_s:
            Clock.cancel(self._end)
            self._end_s = end_s
            self._end = self.clock.at(end_s, self._finish, STATE) if due else None

    def _finish(self, event: Event) -> None:
        """End the flows that are due, in order of their start, call back, and recompute the rates."""
        self._end, self._end_s = None, np.inf
        done = [(self._remove(flow, 0.0), flow) for flow in self._due if flow in self._slot_of]
        self._dirty = True
        for on_done, flow in done:
            on_done(flow)
        queue, now_s = self.clock._queue, self.clock._now
        if queue and queue[0][0] == now_s:
            self.clock.at(now_s, self._settle, RATES)
        else:  # nothing else happens at this instant
            self._settle(event)

    # --- slots -------------------------------------------------------------------------------------------

    def _remove(self, flow: int, left_bytes: float) -> OnDone:
        slot = self._slot_of.pop(flow)
        fairness.detach(
            self._flows, self._links, self._uses, self._reals, self._ints, slot, left_bytes
        )
        self._free_slots.append(slot)
        return self._owner[slot][1]

    def _slots(self) -> Ints:
        return np.fromiter(self._slot_of.values(), dtype=np.int64, count=len(self._slot_of))

    def _grow_slots(self, size: int) -> None:
        """Make room for `size` flows; the lists of links and of slots share their width."""
        old, width = len(self._flows), max(size, len(self._links), COUNTERS)
        flows, reals, ints = np.zeros(size, FLOW), np.zeros((3, width)), np.zeros((ROWS, width), dtype=np.int64)
        reals[FINISH] = reals[BLOCK] = np.inf
        flows[:old] = self._flows
        reals[:, : self._reals.shape[1]] = self._reals
        ints[:, : self._ints.shape[1]] = self._ints
        self._flows, self._reals, self._ints = flows, reals, ints
        self._owner.extend([(-1, _nobody)] * (size - old))
        self._free_slots.extend(range(size - 1, old - 1, -1))


def _nobody(flow: int) -> None:
    raise AssertionError(f"flow {flow} was never started")
