"""Asynchronous data parallelism through a parameter server: no barrier, stale gradients.

Time still passes in periods, here *rounds*: as many samples as H synchronous steps would take, from one pool. A
worker takes its share of samples and computes; after as many steps as its interval it pushes its gradient, pulls the
parameters and continues at once, so a fast worker takes more samples. All push at the end of a round: plans and
checkpoints act between two of them. The staleness of an update is the number of updates that others made since its
worker last pulled; each sample counts 1 / (1 + penalty * staleness), and 1 / (1 + drift * (h - 1)) after h local
steps (Downpour SGD, Dean et al. 2012, section 4.1, with the drift of local SGD).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from simpy.events import Event

from equipoise.sim.advance.waiting import awaited
from equipoise.sim.clock import Clock
from equipoise.sim.cost.step import Exchange
from equipoise.sim.job.period import Period, PeriodOutcome
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.network.network import Network
from equipoise.sim.randomness import noise


@dataclass(slots=True)
class _Round:
    """The remaining samples of a round and what its workers have done."""

    left: int
    running: int
    done: Event
    version: int = 0  # updates the server has made
    staleness: float = 0.0  # summed over samples
    kept: float = 0.0  # samples that count in spite of local steps


class Asynchronous:
    """Unfolds the rounds of asynchronous jobs, one process per worker."""

    def __init__(self, clock: Clock, network: Network) -> None:
        self.clock, self.network = clock, network
        self._flows: dict[int, set[int]] = {}

    def halt(self, row: int) -> None:
        """Take a stopped job's transfers off the network."""
        for flow in sorted(self._flows.pop(row, ())):
            self.network.cancel(flow)

    def unfold(self, job: TrainingJob, period: Period, generation: int) -> Generator[Event, Any, PeriodOutcome | None]:
        """Simulate one round; returns None when the job was stopped meanwhile."""
        n = job.config.workers
        finish_s, busy_s, busy_square, stall_s, exposed_s = np.zeros((5, n))
        samples, steps, pushes = np.zeros((3, n), dtype=np.int64)
        outcome = PeriodOutcome(
            0.0, 0.0, finish_s, busy_s, busy_square, stall_s, 0.0, None, samples, steps, pushes, exposed_s
        )
        work = _Round(period.batch, n, Event(self.clock))
        for worker in range(n):
            self.clock.process(self._worker(job, period, worker, work, outcome, generation))
        yield work.done
        if job.generation != generation:
            return None
        outcome.end_s = self.clock.now
        outcome.duration_s = outcome.arrival_s = self.clock.now - period.start_s
        outcome.exchange_s = float(np.mean([push.alone_s for push in job.config.pushes]))
        outcome.staleness = work.staleness / max(1, period.batch)
        outcome.kept = work.kept / max(1, period.batch)
        return outcome

    def _worker(
        self, job: TrainingJob, period: Period, worker: int, work: _Round, outcome: PeriodOutcome, generation: int
    ) -> Generator[Event, Any, None]:
        assert outcome.samples is not None
        assert outcome.steps is not None
        assert outcome.pushes is not None
        assert outcome.exposed_s is not None
        clock, pulled, held, steps = self.clock, work.version, 0, 0
        each, interval = int(period.samples[worker]), int(job.config.push_interval[worker])
        compute_s, input_s = float(period.compute_s[worker]), float(period.input_s[worker])
        while work.left > 0 and each > 0:
            take = min(each, work.left)
            work.left -= take
            began_s = clock.now
            if not (yield from self._read(job, worker, take, generation)):
                return
            stalled_s = clock.now - began_s
            factor = noise(job.step_noise, worker, _count_step(job, worker))
            busy_s = compute_s * factor * (take / each)
            work_s = max(busy_s, input_s * (take / each))
            yield clock.until(clock.now + work_s)
            if job.generation != generation:
                return
            outcome.samples[worker] += take
            outcome.steps[worker] += 1
            outcome.busy_s[worker] += busy_s
            outcome.busy_square[worker] += busy_s * busy_s
            outcome.stall_s[worker] += stalled_s + work_s - busy_s
            held, steps = held + take, steps + 1
            if steps < interval and work.left > 0:
                continue
            sent_s = clock.now
            yield from self._push_and_pull(job, job.config.pushes[worker], generation)
            if job.generation != generation:
                return
            work.staleness += held * (work.version - pulled)
            work.kept += held / (1.0 + (job.model.drift or 0.0) * (steps - 1))
            work.version += 1
            pulled, held, steps = work.version, 0, 0
            outcome.pushes[worker] += 1
            outcome.exposed_s[worker] += clock.now - sent_s
        outcome.finish_s[worker] = clock.now - period.start_s
        work.running -= 1
        if work.running == 0:
            work.done.succeed()

    def _read(self, job: TrainingJob, worker: int, take: int, generation: int) -> Generator[Event, Any, bool]:
        """Read samples from the worker's queue, waiting for missing pieces; False when the job was stopped."""
        if job.data is None:
            return True
        demand = np.zeros(job.config.workers, dtype=np.int64)
        demand[worker] = take
        job.data.prepare(demand, job.config.seconds_per_sample())
        pieces = awaited(job.data, worker, 0, take)
        job.data.consume(demand)  # nobody else may take them while this worker waits
        for piece in pieces:
            if piece.transfer is not None:
                yield piece.transfer.done
                if job.generation != generation:
                    return False
        return True

    def _push_and_pull(self, job: TrainingJob, exchange: Exchange, generation: int) -> Generator[Event, Any, None]:
        if not exchange.happens:
            return
        yield self.clock.until(self.clock.now + exchange.delay_s)
        if job.generation != generation or exchange.volume_bytes == 0.0:
            return
        done = Event(self.clock)
        flow = self.network.start(
            exchange.volume_bytes,
            exchange.links,
            exchange.usage,
            exchange.cap_bytes_per_s,
            lambda _flow: done.succeed(),
            last=True,
        )
        self._flows.setdefault(job.row, set()).add(flow)
        yield done
        if job.generation == generation:
            self._flows[job.row].discard(flow)


def _count_step(job: TrainingJob, worker: int) -> int:
    """Number of the worker's next local step; never rewound."""
    step = job.steps_of.get(worker, 0)
    job.steps_of[worker] = step + 1
    return step
