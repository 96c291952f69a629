"""Many flows at once, without a clock: when does each end, given when it may start and what it waits for.

The events run inside one kernel, over the tables and with the kernels that `sim.network.network` uses on the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.kernels.arrays import pop, push
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.sim.network.fairness import settle
from equipoise.sim.network.tables import DUE, Floats, Ints, Records, attach, detach, make_state


@dataclass(frozen=True)
class TimedFlows:
    """A list of flows, in arrays by flow (n,) and in compressed rows.

    Flow k uses links `link[link_offset[k] : link_offset[k + 1]]`, each as much as `usage` says. It starts at
    `start_s[k]`, or when the last of `after[after_offset[k] : after_offset[k + 1]]` has ended, if later.
    """

    start_s: Floats
    volume_bytes: Floats
    cap_bytes_per_s: Floats
    link_offset: Ints
    link: Ints
    usage: Floats
    after_offset: Ints
    after: Ints

    @classmethod
    def of(
        cls,
        start_s: Sequence[float],
        volume_bytes: Sequence[float],
        links: Sequence[Sequence[int] | Ints],
        usage: Sequence[Sequence[float] | Floats] | None = None,
        cap_bytes_per_s: float | Sequence[float] = np.inf,
        after: Sequence[Sequence[int]] | None = None,
    ) -> TimedFlows:
        """From one sequence per flow; without `usage` 1 on every link, without `after` no dependencies."""
        n = len(start_s)
        link_offset, link = _rows(links, np.int64)
        uses = np.ones(len(link)) if usage is None else _rows(usage, np.float64)[1]
        after_offset, waits = _rows([()] * n if after is None else after, np.int64)
        return cls(
            np.asarray(start_s, dtype=np.float64),
            np.asarray(volume_bytes, dtype=np.float64),
            np.broadcast_to(np.asarray(cap_bytes_per_s, dtype=np.float64), n).copy(),
            link_offset,
            link,
            uses,
            after_offset,
            waits,
        )

    def __len__(self) -> int:
        return len(self.start_s)


def end_times_s(capacity_bytes_per_s: Floats, flows: TimedFlows) -> Floats:
    """When each flow ends (n,), s. Raises ValueError for values out of range and for flows that never end."""
    _check(len(capacity_bytes_per_s), flows)
    n = len(flows)
    state = make_state(capacity_bytes_per_s, n, 4 * len(flows.link) + 2 * n)
    waits = np.diff(flows.after_offset)
    follower_offset = np.concatenate(([0], np.cumsum(np.bincount(flows.after, minlength=n))))
    follower = np.repeat(np.arange(n), waits)[np.argsort(flows.after, kind="stable")]
    end_s = np.full(n, np.nan)
    _run(
        *state,
        flows.start_s,
        flows.volume_bytes,
        flows.cap_bytes_per_s,
        flows.link_offset,
        flows.link,
        flows.usage,
        follower_offset,
        follower,
        waits,
        end_s,
        np.empty(n),
        np.empty(n, dtype=np.int64),
        np.arange(n)[::-1].copy(),
        np.empty(n, dtype=np.int64),
    )
    stuck = np.flatnonzero(np.isnan(end_s))
    if len(stuck):
        raise ValueError(f"flow {stuck[0]} never ends: no capacity on its way, or it waits for itself")
    return end_s


@jit_in_place
def _run(
    flows: Records,
    links: Records,
    uses: Records,
    reals: Floats,
    ints: Ints,
    start_s: Floats,
    volume: Floats,
    cap: Floats,
    offset: Ints,
    link: Ints,
    usage: Floats,
    follower_offset: Ints,
    follower: Ints,
    waits: Ints,
    end_s: Floats,
    keys: Floats,
    ids: Ints,
    free: Ints,
    owner: Ints,
) -> None:
    """The event loop: at each instant ends, then starts, then the new rates."""
    n_free, ready, due, next_end_s = free.size, 0, 0, np.inf
    for k in range(start_s.size):
        if waits[k] == 0:
            ready = push(keys, ids, ready, start_s[k], k)
    while ready > 0 or due > 0:
        now_s = min(next_end_s, keys[0]) if ready > 0 else next_end_s
        if next_end_s == now_s:
            for d in range(due):
                slot = ints[DUE, d]
                done = owner[slot]
                end_s[done] = now_s
                detach(flows, links, uses, reals, ints, slot)
                free[n_free] = slot
                n_free += 1
                for f in range(follower_offset[done], follower_offset[done + 1]):
                    k = follower[f]
                    waits[k] -= 1
                    if waits[k] == 0:
                        ready = push(keys, ids, ready, max(now_s, start_s[k]), k)
        while ready > 0 and keys[0] <= now_s:
            k = ids[0]
            ready = pop(keys, ids, ready)
            n_free -= 1
            slot = free[n_free]
            owner[slot] = k
            route = slice(offset[k], offset[k + 1])
            attach(flows, links, uses, reals, ints, slot, volume[k], cap[k], now_s, link[route], usage[route])
        none = slice(0, 0)
        next_end_s, due, _ = settle(flows, links, uses, reals, ints, -1, -1, 0.0, 0.0, now_s, link[none], usage[none])


def _rows(rows: Sequence[Sequence[float] | Floats | Ints], dtype: type) -> tuple[Ints, NDArray[Any]]:
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
    flat = np.concatenate([np.asarray(row, dtype=dtype) for row in rows]) if len(rows) else np.empty(0, dtype)
    return offset, flat


def _check(links: int, flows: TimedFlows) -> None:
    n = len(flows)
    lengths = {n, len(flows.volume_bytes), len(flows.cap_bytes_per_s), len(flows.link_offset) - 1}
    if len(lengths) > 1 or not len(flows.usage) == len(flows.link) == flows.link_offset[-1]:
        raise ValueError("the arrays of the flows do not have matching lengths")
    start_s, volume, usage = flows.start_s, flows.volume_bytes, flows.usage
    for must, good in (
        ("start_s must be finite and not negative", np.isfinite(start_s) & (start_s >= 0)),
        ("volume_bytes must be finite and not negative", np.isfinite(volume) & (volume >= 0)),
        ("cap_bytes_per_s must be above 0", flows.cap_bytes_per_s > 0),
        ("usage must be finite and above 0", np.isfinite(usage) & (usage > 0)),
        (f"links must be 0..{links - 1}", (flows.link >= 0) & (flows.link < links)),
        (f"flows to wait for must be 0..{n - 1}", (flows.after >= 0) & (flows.after < n)),
    ):
        if not good.all():
            raise ValueError(f"{must}; entry {int(np.argmin(good))} is not")
