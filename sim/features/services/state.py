"""One service: its queue, its answers, and its wanted number of replicas."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.sim.features.services.queue import RequestQueue, Tally
from equipoise.sim.features.services.section import BatchLatency, Requests, Service
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


def batch_times_s(spec: BatchLatency) -> Floats:
    """Time (s) of a batch by its requests, (most + 1,): as measured with straight lines between, or a line."""
    requests = np.arange(spec.largest + 1, dtype=np.float64)
    if spec.measured:
        sizes = sorted(spec.measured)
        times = np.interp(requests, sizes, [spec.measured[size] for size in sizes])
    else:
        times = (spec.fixed or 0.0) + spec.per_request * requests
    times[0] = 0.0
    return times


def capacity_per_s(batch_s: Floats, within_s: float, factor: float) -> float:
    """Requests a second that a replica can answer in time, with batches `factor` times as long.

    A request waits for the batch under way and is then part of the next: the largest batch of which two take no
    longer than the target counts, at least a batch of one.
    """
    took_s = factor * batch_s
    fits = np.flatnonzero(2.0 * took_s <= within_s)
    best = max(1, int(fits[-1]) if fits.size else 1)
    return float(best / took_s[best])


@dataclass
class ServiceWindow:
    """Rates, latencies and counts of a service from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    arrived: int
    tally: Tally
    waiting: int
    replicas: int
    wanted: int
    gpu_s: float

    def percentile_s(self, share: float) -> float:
        """Latency that this share of its answers does not exceed; NaN without any."""
        return self.tally.percentiles_s(share)[0]


class ServiceState:
    """A service while a run goes on. begin_s: of the run."""

    def __init__(self, spec: Service, seed: int, begin_s: float) -> None:
        self.spec = spec
        self.batch_s = batch_times_s(spec.batch_latency)
        self.within_s = spec.latency.within_s
        self.queue = RequestQueue(
            self.batch_s, self.within_s, spec.batch_latency.cov, stream(seed, f"service:{spec.name}:batches")
        )
        self.requests = RequestTimes(spec.requests, seed, spec.name, begin_s)
        self.begin_s, self.windows = begin_s, 0
        self.total, self.arrived = Tally(), 0
        self.last: ServiceWindow | None = None
        self.wanted = spec.kept
        self._earlier: deque[tuple[float, int]] = deque()  # (time, wanted) of the last looks

    @property
    def window_s(self) -> float:
        """When the window under way began."""
        return self.begin_s + self.windows * self.spec.autoscaler.every

    @property
    def next_s(self) -> float:
        """When the window under way ends."""
        return self.begin_s + (self.windows + 1) * self.spec.autoscaler.every

    def open_window(self) -> None:
        """Begin the next window and draw its requests."""
        self._came = self.requests.window(self.next_s)
        self.queue.open(self._came)

    def close_window(self, now_s: float, replicas: int, gpu_s: float) -> ServiceWindow:
        """End the window and return its results."""
        start_s = self.window_s
        tally = self.queue.take()
        arrived = int(np.searchsorted(self._came, now_s))
        window = ServiceWindow(start_s, now_s, arrived, tally, self.queue.waiting, replicas, self.wanted, gpu_s)
        self.total.add(tally)
        self.arrived += arrived
        self.windows += 1
        self.last = window
        return window

    def replicas_for(self, requests_per_s: float, factor: float) -> int:
        """Replicas needed for a request rate at the target utilisation, within min and max."""
        spec = self.spec
        if spec.placement.kind == "own":
            return spec.replicas.max
        one = spec.autoscaler.utilisation * capacity_per_s(self.batch_s, self.within_s, factor)
        needed = math.ceil(min(requests_per_s / one, 1e9))
        return min(max(needed, spec.replicas.min), spec.replicas.max)

    def look(self, window: ServiceWindow, factor: float) -> None:
        """Update the wanted number of replicas; factor: of a replica's batches, in the mean."""
        spec, now_s = self.spec, window.end_s
        every_s = max(window.end_s - window.start_s, math.ulp(1.0))
        now = self.replicas_for((window.arrived + window.waiting) / every_s, factor)
        self._earlier.append((now_s, now))
        while self._earlier[0][0] < now_s - spec.autoscaler.hold:
            self._earlier.popleft()
        self.wanted = max(count for _, count in self._earlier)
