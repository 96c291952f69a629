"""Textbook max-min fairness in plain Python, and an event loop around it: the oracle of the flow network.

Rates are computed with fractions, so they are exact; nothing here is shared with the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Flow:
    """One flow: `usage` by link, `cap` on its own rate (inf: none), and since when and what it waits for."""

    volume: float
    usage: Mapping[int, float]
    cap: float = math.inf
    start: float = 0.0
    after: Sequence[int] = field(default_factory=tuple)


def fair_rates(capacity: Sequence[float], flows: Sequence[Flow]) -> list[float]:
    """Max-min fair rates: raise all together, stop each at its cap or with the first link it fills."""
    room = [Fraction(c) for c in capacity]
    rate = [Fraction(0)] * len(flows)
    rising = {k for k, flow in enumerate(flows) if flow.usage or flow.cap < math.inf}
    while rising:
        slope = [sum(Fraction(flows[k].usage.get(link, 0)) for k in sorted(rising)) for link in range(len(room))]
        steps = [room[link] / slope[link] for link in range(len(room)) if slope[link]]
        steps += [Fraction(flows[k].cap) - rate[k] for k in rising if flows[k].cap < math.inf]
        step = min(steps)
        for k in rising:
            rate[k] += step
        for link, s in enumerate(slope):
            room[link] -= s * step
        full = {link for link, s in enumerate(slope) if s and room[link] == 0}
        rising = {k for k in rising if rate[k] < flows[k].cap and not full & set(flows[k].usage)}
    return [float(r) if f.usage or f.cap < math.inf else math.inf for r, f in zip(rate, flows, strict=True)]


def end_times(capacity: Sequence[float], flows: Sequence[Flow]) -> list[float]:
    """When each flow ends; nan for one that never does."""
    left = [flow.volume for flow in flows]
    start = [flow.start if not flow.after else math.inf for flow in flows]
    end = [math.nan] * len(flows)
    now = 0.0
    while True:
        live = [k for k in range(len(flows)) if start[k] <= now and math.isnan(end[k])]
        rates = dict(zip(live, fair_rates(capacity, [flows[k] for k in live]), strict=True))
        ends = {k: now + left[k] / rates[k] for k in live if rates[k] > 0 or left[k] == 0}
        ends |= {k: now for k in live if left[k] == 0}
        later = min((s for s in start if s > now), default=math.inf)
        then = min(min(ends.values(), default=math.inf), later)
        if then == math.inf:
            return end
        for k in live:
            left[k] -= rates[k] * (then - now) if then > now else 0.0
            if ends.get(k) == then:
                end[k] = then
        now = then
        for k, flow in enumerate(flows):
            if start[k] == math.inf and all(end[before] <= now for before in flow.after):
                start[k] = max(now, flow.start)
