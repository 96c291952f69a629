"""The plain twin of the kernel that answers requests: one event after the other, written to be read."""

from __future__ import annotations

import math


def answer(arrivals, times, ready, factors, noise=None, until=math.inf):
    """(latencies in order of answers, batches as (start, slot, size), still waiting or in a batch).

    times: by requests of a batch, from 0 on. ready, factors: by replica. noise: factors of batches in their order.
    """
    most, queue = len(times) - 1, []
    noise = iter(noise) if noise is not None else None
    ends = dict(enumerate(ready))  # when a replica is free again; None: it is
    under_way = {slot: [] for slot in ends}
    coming, latencies, batches = list(arrivals), [], []

    def begin(slot, now):
        batch = [queue.pop(0) for _ in range(min(most, len(queue)))]
        took = times[len(batch)] * factors[slot] * (1.0 if noise is None else next(noise))
        under_way[slot], ends[slot] = batch, now + took
        batches.append((now, slot, len(batch)))

    while True:
        busy = [(end, slot) for slot, end in ends.items() if end is not None]
        end, slot = min(busy, default=(math.inf, -1))
        come = coming[0] if coming else math.inf
        if min(end, come) >= until:
            break
        if end <= come:
            latencies += [end - asked for asked in under_way[slot]]
            under_way[slot], ends[slot] = [], None
            if queue:
                begin(slot, end)
            continue
        coming.pop(0)
        idle = sorted((factors[slot], slot) for slot, end in ends.items() if end is None)
        queue.append(come)
        if idle and len(queue) == 1:
            begin(idle[0][1], come)
    return latencies, batches, len(queue) + sum(map(len, under_way.values()))
