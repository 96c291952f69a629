"""Arrival times of a service's requests by window, the same for every policy with one seed."""

from __future__ import annotations

import math

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.sim.features.services.section import Requests
from equipoise.sim.randomness import stream
from equipoise.sim.traces.generate import relative_rate, step_s

DAYS = 7
"""Of a week, of which the first five count 1 and the others `weekend`."""


class RequestTimes:
    """Draws the requests of a service from `begin_s` on."""

    def __init__(self, spec: Requests, seed: int, name: str, begin_s: float) -> None:
        self.spec, self._until_s = spec, begin_s
        self._random = stream(seed, f"service:{name}:requests")
        self._late: Floats = np.empty(0)  # of bursts that began in earlier windows
        self._scale = spec.rate / mean_rate(spec)

    def rate_per_s(self, time_s: float) -> float:
        """Expected requests per second at a time."""
        return self._scale * float(relative_rate(self.spec, np.array([time_s]))[0])

    def window(self, end_s: float) -> Floats:
        """Times (n,) of the requests from the end of the last window up to `end_s`, ascending."""
        begin_s, self._until_s = self._until_s, end_s
        edges, cumulative = self._expected(begin_s, end_s)
        spec = self.spec
        count = int(self._random.poisson(cumulative[-1] / spec.burst))
        came = np.sort(self._random.random(count)) * cumulative[-1]
        last_s = math.nextafter(end_s, -math.inf)
        times: Floats = np.interp(came, cumulative, edges).clip(max=last_s).astype(np.float64)
        if spec.burst == 1.0:
            return times
        sizes = self._random.geometric(1.0 / spec.burst, count)
        gap_s = self._random.exponential(spec.within, int(sizes.sum()))
        first_of = np.cumsum(sizes) - sizes
        gap_s[first_of] = 0.0
        passed_s = np.cumsum(gap_s)
        later_s = np.repeat(times - passed_s[first_of], sizes) + passed_s
        known = np.sort(np.concatenate((self._late, np.maximum(later_s, begin_s))))
        cut = int(np.searchsorted(known, end_s))
        self._late = known[cut:]
        return known[:cut]

    def _expected(self, begin_s: float, end_s: float) -> tuple[Floats, Floats]:
        """(times, requests expected until then), ascending; linear in between."""
        step, inner = step_s(self.spec), list[float]()
        if not math.isinf(step):
            inner = [k * step for k in range(math.floor(begin_s / step) + 1, math.ceil(end_s / step))]
        edges = np.array([begin_s, *inner, end_s])
        middle = (edges[:-1] + edges[1:]) / 2.0
        if not math.isinf(step):  # the rate of a step is that at its middle, however it is cut
            middle = (np.floor(middle / step) + 0.5) * step
        rate = self._scale * relative_rate(self.spec, middle)
        return edges, np.concatenate(([0.0], np.cumsum(rate * np.diff(edges))))


def mean_rate(spec: Requests) -> float:
    """Mean of the relative rate over what repeats: days, weeks, or the weights of a profile."""
    if spec.kind == "profile":
        return math.fsum(spec.weights) / len(spec.weights)
    return (5 + 2 * spec.weekend) / DAYS if spec.kind == "diurnal" else 1.0
