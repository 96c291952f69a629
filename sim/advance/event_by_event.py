"""How a period's events unfold: the plain event-by-event time advance, one SimPy process per worker.

It is the readable reference against which any faster advance is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from simpy.events import Event

from equipoise.policies.observation import Ints
from equipoise.policies.physics import hidden_s
from equipoise.sim.advance.asynchronous import Asynchronous
from equipoise.sim.advance.waiting import awaited
from equipoise.sim.clock import LATE, Clock
from equipoise.sim.cost.step import Exchange
from equipoise.sim.job.period import TIE, Period, PeriodOutcome
from equipoise.sim.job.rounds import apply_pending, checkpoint_if_due, checkpoint_written, end_period, next_period
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.network.network import Network
from equipoise.sim.randomness import noise

Life = Generator[Event, Any, None]
_SAME = 1e-12
"""An exchange that took its uncontended time to this relative precision took exactly that time."""


def exchange_of(job: TrainingJob, period: Period) -> Exchange:
    """The exchange at the end of a period: of all workers, or within groups (near)."""
    return job.config.exchange if period.far else job.config.near


class _Barrier:
    """The barrier of one period, with the progress of each worker until then."""

    def __init__(self, clock: Clock, workers: int) -> None:
        self.announced, self.arrived = Event(clock), Event(clock)  # all in their last step; all done
        self.finish_s, self.last_step_s = np.zeros(workers), np.zeros(workers)
        self.busy_s, self.busy_square, self.stall_s = np.zeros(workers), np.zeros(workers), np.zeros(workers)
        self.last_begin_s = 0.0
        self.to_announce = workers
        self.waited = False


class EventByEvent:
    """Advances training jobs one worker step at a time.

    Args:
        clock, network: where time passes and exchanges flow.
        ended: called after each period that ended, before the job goes on.
        refused: called with (what, why) for each part of a plan that could not be applied.
    """

    def __init__(
        self, clock: Clock, network: Network, ended: Callable[[TrainingJob], None], refused: Callable[[str, str], None]
    ) -> None:
        self.clock, self.network, self.ended, self.refused = clock, network, ended, refused
        self._flow: dict[int, int] = {}  # job row -> exchange in the network
        self._asynchronous = Asynchronous(clock, network)

    def begin(self, job: TrainingJob) -> None:
        """Run a job that was started."""
        self.clock.process(self._life(job, job.generation))

    def halt(self, job: TrainingJob) -> None:
        """Take a job's exchange off the network; its processes end when they find a new generation."""
        flow = self._flow.pop(job.row, None)
        if flow is not None:
            self.network.cancel(flow)
        self._asynchronous.halt(job.row)

    def settle(self, job: TrainingJob, *, before: bool = False) -> None:
        """Do nothing: a job's accounts are always up to date here."""

    def reconfigure(self, job: TrainingJob) -> None:
        """Note that speeds or neighbours of a job have changed, which takes effect with its next period."""
        job.config.stale = True

    def plan_changed(self, job: TrainingJob) -> None:
        """Note that a plan changes the job; the changes take effect when they are due."""

    def links_changed(self, links: Ints, transfers: int) -> None:
        """Do nothing when traffic or capacity of links changes: every exchange is a flow here."""

    def set_capacity(self, link: int, bytes_per_s: float) -> None:
        """Change the capacity of a link."""
        self.network.set_capacity(link, bytes_per_s)

    def _life(self, job: TrainingJob, generation: int) -> Life:
        while job.generation == generation and not job.progress.done:
            checkpoint_if_due(job, self.clock.now)
            yield self.clock.until(job.ends.start_s, LATE)
            if job.generation != generation:
                return
            checkpoint_written(job, self.clock.now)
            for what, why in apply_pending(job):
                self.refused(what, why)
            if job.ends.start_s > self.clock.now:  # it has to wait first
                continue
            if job.config.stale:
                job.config.work_out()
                self._configured(job)
            if not (yield from self._periods(job, generation)):
                return
            self.ended(job)
            if job.generation != generation:
                return

    def _configured(self, job: TrainingJob) -> None:
        """Note that a job's exchange may have changed."""

    def _periods(self, job: TrainingJob, generation: int) -> Generator[Event, Any, bool]:
        """Advance by one period; returns whether the job continues."""
        period = next_period(job)
        if job.config.asynchronous:
            outcome = yield from self._asynchronous.unfold(job, period, generation)
        else:
            outcome = yield from self._unfold(job, period, generation)
        if outcome is None:
            return False
        end_period(job, period, outcome)
        return True

    def _unfold(self, job: TrainingJob, period: Period, generation: int) -> Generator[Event, Any, PeriodOutcome | None]:
        """Simulate one period with one process per worker; None when the job was stopped meanwhile."""
        barrier = _Barrier(self.clock, job.config.workers)
        for worker in range(job.config.workers):
            self.clock.process(self._worker(job, period, worker, barrier, generation))
        yield barrier.announced
        if job.generation != generation:
            return None
        arrival_s = float(barrier.finish_s.max())
        last = int(np.argmax(barrier.finish_s >= arrival_s * (1.0 - TIE)))
        last_step_s = float(barrier.last_step_s[last])
        alone_s = exchange_of(job, period).alone_s
        begin_s = max(barrier.last_begin_s, arrival_s - hidden_s(last_step_s, alone_s, job.model.overlap))
        outcome = PeriodOutcome(
            max(arrival_s, begin_s + alone_s),
            arrival_s,
            barrier.finish_s,
            barrier.busy_s,
            barrier.busy_square,
            barrier.stall_s,
            0.0,
            None,
        )
        return (yield from self._end(job, period, outcome, begin_s, barrier.waited, generation))

    def _end(
        self, job: TrainingJob, period: Period, outcome: PeriodOutcome, begin_s: float, waited: bool, generation: int
    ) -> Generator[Event, Any, PeriodOutcome | None]:
        """Simulate the exchange (from offset `begin_s` on) and the end of a period."""
        clock, exchange, contended = self.clock, exchange_of(job, period), False
        alone_s = outcome.exchange_s = exchange.alone_s
        if exchange.happens:
            yield from self._exchange(job, exchange, period.start_s + begin_s)
            if job.generation != generation:
                return None
            exchange_s = clock.now - (period.start_s + begin_s)
            contended = abs(exchange_s - alone_s) > _SAME * max(clock.now, alone_s)
            if contended:
                outcome.exchange_s = exchange_s
        if contended or waited:
            outcome.end_s = max(period.start_s + outcome.arrival_s, clock.now if exchange.happens else 0.0)
            outcome.duration_s = max(outcome.end_s - period.start_s, outcome.arrival_s)  # but for rounding
        yield clock.until(job.ends.of(outcome))
        return outcome if job.generation == generation else None

    def _worker(self, job: TrainingJob, period: Period, worker: int, barrier: _Barrier, generation: int) -> Life:
        """Simulate one worker's local steps: wait for data, compute, repeat until the barrier."""
        clock, offset_s, read = self.clock, 0.0, 0
        for k in range(period.steps):
            last = k == period.steps - 1
            samples = period.last_samples if last else period.samples
            if job.data is not None:
                for piece in awaited(job.data, worker, read, int(samples[worker])):
                    if piece.transfer is None:  # arrived while the worker waited for another
                        continue
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
            factor = noise(job.step_noise, worker, period.first_step + k)
            busy_s = compute_s * factor
            work_s = max(busy_s, input_s)
            barrier.busy_s[worker] += busy_s
            barrier.busy_square[worker] += busy_s * busy_s
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

    def _exchange(self, job: TrainingJob, exchange: Exchange, begin_s: float) -> Life:
        """Simulate one gradient exchange as one flow, after its delay; bytes due by now count as sent."""
        generation, clock = job.generation, self.clock
        start_s = begin_s + exchange.delay_s
        yield clock.until(start_s)
        late_s = clock.now - start_s
        volume = exchange.volume_bytes
        if late_s > _SAME * clock.now:
            volume = max(0.0, volume - late_s * exchange.rate_bytes_per_s)
        if job.generation != generation or volume == 0.0:
            return
        done = Event(clock)
        self._flow[job.row] = self.network.start(
            volume, exchange.links, exchange.usage, exchange.cap_bytes_per_s, lambda _flow: done.succeed(), last=True
        )
        yield done
        if job.generation == generation:
            del self._flow[job.row]
