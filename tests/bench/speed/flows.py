"""Cost and exactness of the flow network: python tests/bench/speed/flows.py [TOPOLOGY FLOWS [REFERENCE]]

TOPOLOGY is JSON with `links` (id, capacity_Bps) in two tiers (`hosts_per_rack`) or one; FLOWS a CSV, gz or
not, of id, start, src, dst, bytes and perhaps `after` (ids separated by ;); REFERENCE a CSV of id, finish.

Without them, 10,000 flows are made up for 64 and for 1,024 hosts. They run one by one on the simulator's clock with
a callback each. Compiling the kernels is not counted.
"""

from __future__ import annotations

import argparse
import csv
import gc
import gzip
import io
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from equipoise.sim.clock import Clock
from equipoise.sim.network.network import Network
from equipoise.sim.network.tables import Floats, Ints
from tests.bench.speed.yardstick import heapq_events_per_s

REPEATS = 5


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


def _rows(rows: Sequence[Sequence[float] | Floats | Ints], dtype: type) -> tuple[Ints, NDArray[Any]]:
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
    flat = np.concatenate([np.asarray(row, dtype=dtype) for row in rows]) if len(rows) else np.empty(0, dtype)
    return offset, flat


def read_topology(path: Path) -> tuple[Floats, Callable[[int, int], list[int]]]:
    """Capacities (links,) and the route between two hosts."""
    topology = json.loads(path.read_text())
    number = {link["id"]: k for k, link in enumerate(topology["links"])}
    capacity = np.array([float(link["capacity_Bps"]) for link in topology["links"]])
    per_rack = topology.get("hosts_per_rack", topology["hosts"])

    def route(source: int, target: int) -> list[int]:
        up, down = source // per_rack, target // per_rack
        core = [] if up == down else [f"r{up}_up", f"r{down}_dn"]
        return [number[name] for name in (f"h{source}_up", *core, f"h{target}_dn")]

    return capacity, route


def read_rows(path: Path) -> dict[int, dict[str, str]]:
    """Rows of a CSV file, gz or not, by their id and in order of it."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = {int(row["id"]): row for row in csv.DictReader(io.StringIO(raw.decode()))}
    return dict(sorted(rows.items()))


def read_flows(path: Path, route: Callable[[int, int], list[int]]) -> TimedFlows:
    """The flow list, with routes."""
    by_id = read_rows(path)
    place, rows = {k: n for n, k in enumerate(by_id)}, list(by_id.values())
    return TimedFlows.of(
        [float(row["start"]) for row in rows],
        [float(row["bytes"]) for row in rows],
        [route(int(row["src"]), int(row["dst"])) for row in rows],
        after=[[place[int(k)] for k in (row.get("after") or "").split(";") if k] for row in rows],
    )


def made_up(hosts: int, count: int = 10_000) -> tuple[Floats, TimedFlows]:
    """Capacities (links,) of 16 racks, 4 times oversubscribed, and flows between racks that load 80 % of them.

    Arrivals are Poisson, sizes heavy-tailed; links of a host are 100 Gbit/s.
    """
    rng, per_rack, nic = np.random.default_rng(20260103), hosts // 16, 12.5e9
    capacity = np.concatenate([np.full(2 * hosts, nic), np.full(32, per_rack * nic / 4)])
    source = rng.integers(0, hosts, count)
    target = (source + per_rack * rng.integers(1, 16, count) + rng.integers(0, per_rack, count)) % hosts
    size = 1e6 * (1.0 + rng.pareto(1.5, count))
    start_s = np.cumsum(rng.exponential(1.0, count)) * size.sum() / (0.8 * 16 * per_rack * nic / 4) / count
    up, down = source // per_rack, target // per_rack
    first = 2 * hosts
    routes = [
        [2 * a, first + 2 * u, first + 2 * v + 1, 2 * b + 1] if u != v else [2 * a, 2 * b + 1]
        for a, b, u, v in zip(source.tolist(), target.tolist(), up.tolist(), down.tolist(), strict=True)
    ]
    return capacity, TimedFlows.of(start_s, size, routes)


class OnClock:
    """The same through `Network`: every start and every end an event with a callback."""

    def __init__(self, capacity: Floats, flows: TimedFlows) -> None:
        self.capacity, rows = capacity, list(itertools.pairwise(flows.link_offset.tolist()))
        self.routes = [(flows.link[a:b], flows.usage[a:b]) for a, b in rows]
        self.volumes, self.caps = flows.volume_bytes.tolist(), flows.cap_bytes_per_s.tolist()
        self.starts = flows.start_s.tolist()
        self.waits = np.diff(flows.after_offset).tolist()
        self.followers: list[list[int]] = [[] for _ in self.waits]
        for k, (a, b) in enumerate(itertools.pairwise(flows.after_offset.tolist())):
            for before in flows.after[a:b].tolist():
                self.followers[before].append(k)

    def end_times_s(self) -> Floats:
        """When each flow ends (n,), s."""
        clock = Clock()
        network, waits, end_s = Network(clock, self.capacity), list(self.waits), [math.nan] * len(self.waits)
        flow_of: dict[int, int] = {}

        upcoming = iter(sorted((k for k, wait in enumerate(waits) if wait == 0), key=self.starts.__getitem__))

        def arrange(k: int, source: bool = False) -> None:
            def arrive(_: Event) -> None:
                if source:
                    arrange_next()
                start(k, last=True)

            clock.at(self.starts[k], arrive)

        def arrange_next() -> None:
            if (k := next(upcoming, None)) is not None:
                arrange(k, source=True)

        def start(k: int, last: bool = False) -> None:
            flow_of[network.start(self.volumes[k], *self.routes[k], self.caps[k], done, last=last)] = k

        def done(handle: int) -> None:
            k = flow_of.pop(handle)
            end_s[k] = clock.now
            for follower in self.followers[k]:
                waits[follower] -= 1
                if waits[follower] > 0:
                    continue
                if self.starts[follower] > clock.now:
                    arrange(follower)
                else:
                    start(follower)

        arrange_next()
        clock.run()
        return np.array(end_s)


def best_of(run: Callable[[], Floats], repeats: int = REPEATS) -> tuple[Floats, float]:
    """Result and least CPU seconds of several runs after one that compiles; no garbage collection."""
    run()
    result, least_s = np.empty(0), np.inf
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            began_s = time.process_time()
            result = run()
            least_s = min(least_s, time.process_time() - began_s)
    finally:
        gc.enable()
    return result, least_s


def largest_error(end_s: Floats, reference: Path | None) -> float | None:
    """Largest relative error of an end time against the reference, None without one."""
    if reference is None:
        return None
    expected = np.array([float(row["finish"]) for row in read_rows(reference).values()])
    return float(np.max(np.abs(end_s - expected) / expected))


def measure(capacity: Floats, flows: TimedFlows, reference: Path | None) -> dict[str, float | int | None]:
    """All figures of one flow list."""
    end_s, cpu_s = best_of(OnClock(capacity, flows).end_times_s)
    yardstick = heapq_events_per_s()
    return {
        "flows": len(flows),
        "largest_relative_error": largest_error(end_s, reference),
        "cpu_s": cpu_s,
        "heapq_events_per_cpu_s": yardstick,
        "heapq_events_worth": cpu_s * yardstick,
    }


def main() -> None:
    """Measure the given flow list, or those made up, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topology", type=Path, nargs="?")
    parser.add_argument("flows", type=Path, nargs="?")
    parser.add_argument("reference", type=Path, nargs="?")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    given = parser.parse_args()
    if given.topology is None:
        for hosts in (64, 1024):
            show({"hosts": hosts, **measure(*made_up(hosts), None)}, given.format)
        return
    if given.flows is None:
        parser.error("TOPOLOGY needs FLOWS")
    capacity, route = read_topology(given.topology)
    show(measure(capacity, read_flows(given.flows, route), given.reference), given.format)


def show(figures: Mapping[str, float | int | None], form: str) -> None:
    """Print figures as text or as a line of JSON."""
    if form == "json":
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if value is not None:
            print(f"{name:32} {value:.6g}")


if __name__ == "__main__":
    main()
