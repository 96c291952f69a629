"""How a period's events unfold: the plain event-by-event time advance, one SimPy process per worker.

It is written to be read, and it is the oracle that any faster advance is tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from simpy.events import Event

from sim.clock import LATE, Clock
from sim.job import Outcome, Period, TrainingJob
from sim.network import Network
from sim.randomness import noise
from sim.workload import hidden_s

Life = Generator[Event, Any, None]
_SAME = 1e-12
"""An exchange that took its uncontended time to this relative precision took exactly that time."""


class _Barrier:
    """Where the workers of one period meet, and what is known about them on the way."""

    def __init__(self, clock: Clock, workers: int) -> None:
        self.announced, self.arrived = Event(clock), Event(clock)  # all in their last step; all done
        self.finish_s, self.last_step_s = np.zeros(workers), np.zeros(workers)
        self.busy_s, self.busy_square, self.stall_s = np.zeros(workers), np.zeros(workers), np.zeros(workers)
        self.last_begin_s = 0.0
        self.to_announce = self.to_arrive = workers
        self.waited = False


class EventByEvent:
    """Advances training jobs one worker step at a time.

    Args:
        clock, network: where time passes and exchanges flow.
        ended: called after each period that ended, before the job goes on.
        refused: called with (what, why) for each part of a plan that could not be applied.
    """

    def __init__(
        self,
        clock: Clock,
        network: Network,
        ended: Callable[[TrainingJob], None],
        refused: Callable[[str, str], None],
    ) -> None:
        self.clock, self.network, self.ended, self.refused = clock, network, ended, refused
        self._flow: dict[int, int] = {}  # job row -> exchange in the network

    def begin(self, job: TrainingJob) -> None:
        """Let a job run that has been started or regrouped."""
        self.clock.process(self._life(job))

    def halt(self, job: TrainingJob) -> None:
        """Take a job's exchange off the network; its processes end when they find a new generation."""
        flow = self._flow.pop(job.row, None)
        if flow is not None:
            self.network.cancel(flow)

    def settle(self, job: TrainingJob) -> None:
        """Bring a job's accounts up to now: they always are."""

    def reconfigure(self, job: TrainingJob) -> None:
        """Speeds or neighbours of a job have changed: acts from its next period on."""
        job.stale = True

    def network_changed(self) -> None:
        """Traffic has changed: every exchange is a flow anyway."""

    def _life(self, job: TrainingJob) -> Life:
        generation = job.generation
        while not job.done:
            if job.checkpoint_due:
                job.checkpoint()
            yield self.clock.until(job.period_start_s, LATE)
            if job.generation != generation:
                return
            for what, why in job.apply_pending():
                self.refused(what, why)
            period = job.next_period()
            outcome = yield from self._period(job, period, generation)
            if outcome is None:
                return
            job.end_period(period, outcome)
            self.ended(job)
            if job.generation != generation:
                return

    def _period(
        self, job: TrainingJob, period: Period, generation: int
    ) -> Generator[Event, Any, Outcome | None]:
        clock, barrier = self.clock, _Barrier(self.clock, job.workers)
        for worker in range(job.workers):
            clock.process(self._worker(job, period, worker, barrier, generation))
        yield barrier.announced
        if job.generation != generation:
            return None
        arrival_s = float(barrier.finish_s.max())
        last_step_s = float(barrier.last_step_s[int(np.argmax(barrier.finish_s))])
        exchange = job.exchange
        begin_s = max(barrier.last_begin_s, arrival_s - hidden_s(last_step_s, exchange.alone_s, job.model.overlap))
        duration_s = max(arrival_s, begin_s + exchange.alone_s)
        exchange_s, contended = 0.0, False
        if exchange.happens:
            yield from self._exchange(job, period.start_s + begin_s)
            if job.generation != generation:
                return None
            exchange_s = clock.now - (period.start_s + begin_s)
            contended = abs(exchange_s - exchange.alone_s) > _SAME * max(clock.now, exchange.alone_s)
        if contended or barrier.waited:
            end_s = max(period.start_s + arrival_s, clock.now if exchange.happens else 0.0)
            duration_s = end_s - period.start_s
        else:
            end_s, exchange_s = None, exchange.alone_s
        yield clock.until(period.start_s + duration_s)
        if job.generation != generation:
            return None
        return Outcome(
            duration_s, arrival_s, barrier.finish_s, barrier.busy_s, barrier.busy_square, barrier.stall_s,
            exchange_s, end_s,
        )  # fmt: skip

    def _worker(
        self, job: TrainingJob, period: Period, worker: int, barrier: _Barrier, generation: int
    ) -> Life:
        """One worker's local steps: wait for data, compute, and so on until the barrier."""
        clock, offset_s, read = self.clock, 0.0, 0
        for k in range(period.steps):
            last = k == period.steps - 1
            samples = period.last_samples if last else period.samples
            if job.data is not None:
                for piece in job.data.awaited(worker, read, int(samples[worker])):
                    assert piece.transfer is not None
                    yield piece.transfer.done
                    if job.generation != generation:
                        return
                    barrier.waited = True
                    now_s = clock.now - period.start_s
                    barrier.stall_s[worker] += max(0.0, now_s - offset_s)
                    offset_s = max(offset_s, now_s)
                read += int(samples[worker])
            compute_s = float((period.last_compute_s if last else period.compute_s)[worker])
            input_s = float((period.last_input_s if last else period.input_s)[worker])
            factor = noise(job.noise_key, worker, period.first_step + k, job.noise_mu, job.noise_sigma)
            busy_s = compute_s * factor
            work_s = max(busy_s, input_s)
            barrier.busy_s[worker] += busy_s
            barrier.busy_square[worker] += work_s * work_s
            barrier.stall_s[worker] += work_s - busy_s
            if last:
                self._announce(barrier, worker, offset_s, work_s)
            offset_s += work_s
            yield clock.until(period.start_s + offset_s)
            if job.generation != generation:
                return

    @staticmethod
    def _announce(barrier: _Barrier, worker: int, offset_s: float, work_s: float) -> None:
        barrier.finish_s[worker], barrier.last_step_s[worker] = offset_s + work_s, work_s
        barrier.last_begin_s = max(barrier.last_begin_s, offset_s)
        barrier.to_announce -= 1
        if barrier.to_announce == 0:
            barrier.announced.succeed()

    def _exchange(self, job: TrainingJob, begin_s: float) -> Life:
        """One gradient exchange as one flow, after its delay."""
        exchange, generation = job.exchange, job.generation
        yield self.clock.until(begin_s + exchange.delay_s)
        if job.generation != generation or exchange.volume_bytes == 0.0:
            return
        done = Event(self.clock)
        self._flow[job.row] = self.network.start(
            exchange.volume_bytes, exchange.links, exchange.usage, exchange.cap_bytes_per_s,
            lambda _flow: done.succeed(),
        )  # fmt: skip
        yield done
        if job.generation == generation:
            del self._flow[job.row]
