"""What this machine does bare: events per CPU second of heapq and of SimPy, to state costs in.

The yardstick is 1,000 timers of different periods that are rescheduled 300 times each. CPU seconds times its
rate are events' worth of bare heapq, which change less from machine to machine than seconds do.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

import simpy

TIMERS, TIMES, REPEATS = 1_000, 300, 5
PERIODS_S = [0.001 + (k * 618_034 % TIMERS) / TIMERS for k in range(TIMERS)]  # scattered evenly


def heapq_events_per_s(repeats: int = REPEATS) -> float:
    """Best events per CPU second of heappop and heappush of (time, sequence) tuples."""
    return max(_events_per_s(_heapq_run) for _ in range(repeats))


def simpy_events_per_s(repeats: int = REPEATS) -> float:
    """Best events per CPU second of processes that wait for SimPy timeouts."""
    return max(_events_per_s(_simpy_run) for _ in range(repeats))


def _events_per_s(run: Callable[[], None]) -> float:
    began_s = time.process_time()
    run()
    return TIMERS * TIMES / (time.process_time() - began_s)


def _heapq_run() -> None:
    queue = [(period_s, timer) for timer, period_s in enumerate(PERIODS_S)]
    heapify(queue)
    for sequence in range(TIMERS, TIMERS * (TIMES + 1)):
        now_s, _ = heappop(queue)
        heappush(queue, (now_s + PERIODS_S[sequence % TIMERS], sequence))


def _simpy_run() -> None:
    environment = simpy.Environment()
    for period_s in PERIODS_S:
        environment.process(_timer(environment, period_s))
    environment.run()


def _timer(environment: simpy.Environment, period_s: float) -> Iterator[simpy.Event]:
    for _ in range(TIMES):
        yield environment.timeout(period_s)


def main() -> None:
    """Print both rates, as text or with `--format json` as one JSON object."""
    heap, sim = heapq_events_per_s(), simpy_events_per_s()
    if sys.argv[1:] == ["--format", "json"]:
        print(json.dumps({"heapq_events_per_cpu_s": heap, "simpy_events_per_cpu_s": sim}))
    else:
        print(f"heapq {heap:,.0f} events per CPU second\nsimpy {sim:,.0f} events per CPU second")


if __name__ == "__main__":
    main()
