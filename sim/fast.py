"""The fast time advance: stretches of undisturbed periods in one jitted call, the rest period by period.

A job is undisturbed while nothing else can use its exchange's links to the full and none of its workers waits
for data. It gives the results of `sim.advance.EventByEvent`, which stays as its oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from simpy.events import Event

from policies.observation import Floats, Ints
from sim import periods as p
from sim.advance import EventByEvent
from sim.clock import Clock
from sim.job import Outcome, Period, TrainingJob, Window
from sim.network import Network

MAX_PERIODS = 1 << 14
State = tuple[Ints, Floats, Floats, Floats]
"""Arrays of `sim.periods.advance`: whole, real, worker, gpu_s."""


@dataclass(slots=True, eq=False)
class Stretch:
    """Undisturbed periods of one job that have been worked out and not all been credited."""

    count: int  # periods that will be credited, unless cut
    credited: int
    end_s: Floats
    state: State  # before the first period not credited
    after: State | None  # after the last, when nothing was credited or cut
    window: Window  # the job's window when the state was taken
    wake: Event
    timer: Event | None = None


class Links:
    """Which exchanges and transfers can use each link, to tell which exchanges may be disturbed."""

    def __init__(self, capacity_bytes_per_s: Floats) -> None:
        self.capacity_bytes_per_s = capacity_bytes_per_s.copy()
        self.load = np.zeros(len(capacity_bytes_per_s))  # bytes/s that all exchanges together can put on it
        self.transfers = np.zeros(len(capacity_bytes_per_s), dtype=np.int64)
        self.users: dict[int, dict[int, None]] = {}  # link -> job rows
        self._of: dict[int, tuple[Ints, Floats]] = {}

    def set_job(self, job: TrainingJob | None, row: int) -> list[int]:
        """Note a job's exchange (None: it has none any more); returns the rows that share a link with it."""
        touched: dict[int, None] = {}
        links, load = self._of.pop(row, (None, None))
        if links is not None and load is not None:
            self.load[links] -= load
            for link in links.tolist():
                del self.users[link][row]
                touched.update(self.users[link])
        if job is not None and job.exchange.volume_bytes > 0.0:
            links = job.exchange.links
            load = job.exchange.usage * job.exchange.rate_bytes_per_s
            self._of[row] = (links, load)
            self.load[links] += load
            for link in links.tolist():
                self.users.setdefault(link, {})[row] = None
                touched.update(self.users[link])
        touched.pop(row, None)
        return sorted(touched)

    def disturbed(self, job: TrainingJob) -> bool:
        """Whether anything else may slow the job's exchange."""
        if job.exchange.volume_bytes == 0.0:
            return False
        links = job.exchange.links
        room = self.capacity_bytes_per_s[links] * (1.0 + 1e-9)
        return bool((self.transfers[links] > 0).any() or (self.load[links] > room).any())


class Fast(EventByEvent):
    """Advances training jobs by stretches of periods; the same interface and results as `EventByEvent`."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        capacity_bytes_per_s: Floats,
        ended: Callable[[TrainingJob], None],
        refused: Callable[[str, str], None],
        steps_to_decision: Callable[[TrainingJob], int],
        next_tick_s: Callable[[], float],
    ) -> None:
        super().__init__(clock, network, ended, refused)
        self.links = Links(capacity_bytes_per_s)
        self.steps_to_decision, self.next_tick_s = steps_to_decision, next_tick_s
        self._stretch: dict[int, Stretch] = {}
        self._jobs: dict[int, TrainingJob] = {}

    # -- what the world tells ------------------------------------------------------------------------------

    def begin(self, job: TrainingJob) -> None:
        """Let a job run that has been started or regrouped."""
        self._jobs[job.row] = job
        self._exchange_changed(job)
        super().begin(job)

    def halt(self, job: TrainingJob) -> None:
        """The job stops at once: drop what was worked out ahead."""
        super().halt(job)
        stretch = self._stretch.pop(job.row, None)
        if stretch is not None:
            self.clock.cancel(stretch.timer)
            if stretch.credited < stretch.count:
                job.steps_ever += job.interval  # the running period's steps have been drawn
        self._jobs.pop(job.row, None)
        for row in self.links.set_job(None, job.row):
            self._check(row)

    def settle(self, job: TrainingJob, *, before: bool = False) -> None:
        """Credit all periods that have ended by now (`before`: strictly before now)."""
        stretch = self._stretch.get(job.row)
        if stretch is None:
            return
        ends_s = stretch.end_s[: stretch.count]
        ended = int(np.searchsorted(ends_s, self.clock.now, side="left" if before else "right"))
        self._credit(job, stretch, ended)
        if job.data is not None and not before:
            job.data.mark_started(job.samples * job.interval)

    def reconfigure(self, job: TrainingJob) -> None:
        """Something about the job changes when its running period ends."""
        job.stale = True
        self.plan_changed(job)

    def plan_changed(self, job: TrainingJob) -> None:
        """A plan asks for changes: the stretch ends with the running period."""
        stretch = self._stretch.get(job.row)
        if stretch is not None:
            self._cut(stretch)

    def links_changed(self, links: Ints, transfers: int) -> None:
        """Transfers begin (+1) or end (-1) to use links, or the links' capacity changed (0)."""
        self.links.transfers[links] += transfers
        if transfers >= 0:
            rows: dict[int, None] = {}
            for link in links.tolist():
                rows.update(self.links.users.get(link, {}))
            for row in sorted(rows):
                self._check(row)

    def set_capacity(self, link: int, bytes_per_s: float) -> None:
        """Change the capacity of a link."""
        super().set_capacity(link, bytes_per_s)
        self.links.capacity_bytes_per_s[link] = bytes_per_s
        self.links_changed(np.array([link]), 0)

    def _configured(self, job: TrainingJob) -> None:
        self._exchange_changed(job)

    def _exchange_changed(self, job: TrainingJob) -> None:
        for row in self.links.set_job(job, job.row):
            self._check(row)

    def _check(self, row: int) -> None:
        """Wake a job whose exchange can be disturbed from now on, so that its flow enters the network."""
        stretch, job = self._stretch.get(row), self._jobs.get(row)
        if stretch is not None and job is not None and self.links.disturbed(job):
            self.clock.cancel(stretch.timer)
            if not stretch.wake.triggered:
                stretch.wake.succeed()

    # -- a job's life --------------------------------------------------------------------------------------

    def _periods(self, job: TrainingJob, generation: int) -> Generator[Event, Any, bool]:
        """Advance by a stretch, or by one period; returns whether the job goes on."""
        count = self._undisturbed(job)
        if count == 0:
            return (yield from super()._periods(job, generation))
        stretch = self._work_out(job, count)
        if stretch is None:
            return (yield from super()._periods(job, generation))
        yield stretch.wake
        if job.generation != generation:
            return False
        del self._stretch[job.row]
        if stretch.timer is not None and not stretch.timer.processed:
            return (yield from self._finish_disturbed(job, stretch, generation))
        self._credit(job, stretch, stretch.count)
        return True

    def _undisturbed(self, job: TrainingJob) -> int:
        """Whole periods that can pass before anything has to happen."""
        if job.asynchronous or self.links.disturbed(job):
            return 0
        per_period = job.samples * job.interval
        count = min(MAX_PERIODS, -(-self.steps_to_decision(job) // job.interval))
        if job.data is not None:
            if job.data.left == 0:
                job.data.next_epoch()
            count = min(count, job.data.quiet_periods(per_period))
        return count

    def _work_out(self, job: TrainingJob, count: int) -> Stretch | None:
        state = _state_of(job)
        after, end_s = _copied(state), np.empty(count)
        checkpoint_s = job.last_checkpoint_s + job.checkpoint_interval_s()
        done = p.advance(count, self.next_tick_s(), checkpoint_s, *after, *p.scratch_for(job.workers), end_s)
        if done == 0:
            return None
        stretch = Stretch(done, 0, end_s[:done], state, after, job.window, Event(self.clock))
        self._set_timer(stretch)
        self._stretch[job.row] = stretch
        return stretch

    def _set_timer(self, stretch: Stretch) -> None:
        self.clock.cancel(stretch.timer)
        at_s = max(self.clock.now, float(stretch.end_s[stretch.count - 1]))
        stretch.timer = self.clock.at(
            at_s, lambda _: None if stretch.wake.triggered else stretch.wake.succeed()
        )

    def _cut(self, stretch: Stretch) -> None:
        ends_s = stretch.end_s[: stretch.count]
        # The running period is the last, or one that ends right now: the next has not begun (`clock.LATE`).
        count = int(np.searchsorted(ends_s, self.clock.now, side="left")) + 1
        if count < stretch.count:
            stretch.count, stretch.after = count, None
            self._set_timer(stretch)

    def _credit(self, job: TrainingJob, stretch: Stretch, upto: int) -> None:
        """Book periods of a stretch up to `upto`."""
        count = upto - stretch.credited
        if count <= 0:
            return
        if stretch.after is not None and upto == stretch.count and stretch.window is job.window:
            after = stretch.after
        else:
            _refresh_window(job, stretch.state)
            after = stretch.state
            p.advance(
                count, np.inf, np.inf, *after, *p.scratch_for(job.workers), np.empty(count)
            )  # the same periods again, in the same order: the same bits
        stretch.credited, stretch.after = upto, None
        _restore(job, after)
        if job.data is not None:
            job.data.consume(job.samples * (job.interval * count))

    # -- periods with contention ---------------------------------------------------------------------------

    def _finish_disturbed(
        self, job: TrainingJob, stretch: Stretch, generation: int
    ) -> Generator[Event, Any, bool]:
        """The running period's exchange may be disturbed from now on: let it end as a flow."""
        now = self.clock.now
        ended = int(np.searchsorted(stretch.end_s[: stretch.count], now, side="right"))
        self._credit(job, stretch, ended)
        if ended == stretch.count:
            return True
        return (yield from super()._periods(job, generation))

    def _unfold(
        self, job: TrainingJob, period: Period, generation: int
    ) -> Generator[Event, Any, Outcome | None]:
        """One period: in closed form up to the exchange when no worker has to wait for data."""
        if job.data is not None and job.data.anyone_waits(period.demand):
            return (yield from super()._unfold(job, period, generation))
        n, (scratch, space) = job.workers, p.scratch_for(job.workers)
        p.unfold(
            period.steps, period.first_step, job.noise_key, job.noise_mu, job.noise_sigma,
            period.compute_s, period.input_s, period.last_compute_s, period.last_input_s, *scratch[:7], space,
        )  # fmt: skip
        exchange = job.exchange
        finish_s, last_s, begins_s, busy_s, square, stall_s, _, _ = scratch
        arrival_s, begin_s, duration_s = p.meet(
            n, finish_s, begins_s, last_s, exchange.alone_s, job.model.overlap
        )
        outcome = Outcome(
            duration_s, arrival_s, finish_s[:n], busy_s[:n], square[:n], stall_s[:n], 0.0, None,
        )  # fmt: skip
        return (yield from self._end(job, period, outcome, begin_s, False, generation))


def _state_of(job: TrainingJob) -> State:
    """Everything the jitted advance reads and updates, copied out of a job."""
    account, window, model = job.account, job.window, job.model
    whole = np.zeros(9, dtype=np.int64)
    whole[[p.INTERVAL, p.BATCH, p.FIRST_STEP, p.SAMPLES, p.STEPS, p.EXCHANGES, p.RUN_COUNT, p.KEY]] = (
        job.interval, job.global_batch, job.steps_ever, account.samples, account.steps, account.exchanges,
        job._run_count, job.noise_key,
    )  # fmt: skip
    phi = -1.0 if model.noise_scale is None else model.noise_scale
    real = np.array([
        job.noise_mu, job.noise_sigma, job.exchange.alone_s, model.overlap, phi, model.noise_scale_growth,
        float(job.reference), model.drift, job.target, float(job.weight.sum()), job.anchor_s, job._run_base,
        job._run_period, account.useful_samples, window.useful_samples, window.exchange_s, job.period_start_s,
    ])  # fmt: skip
    worker = np.stack((
        job.compute_s, job.input_s, job.weight, window.busy_s, window.busy_square, window.stall_s,
        window.wait_s, window.samples, job.samples.astype(np.float64),
    ))  # fmt: skip
    return whole, real, worker, account.gpu_s.copy()


def _copied(state: State) -> State:
    whole, real, worker, gpu_s = state
    return whole.copy(), real.copy(), worker.copy(), gpu_s.copy()


def _refresh_window(job: TrainingJob, state: State) -> None:
    """An observation may have emptied the window since the state was taken."""
    _, real, worker, _ = state
    window = job.window
    real[p.WINDOW_USEFUL], real[p.WINDOW_EXCHANGE_S] = window.useful_samples, window.exchange_s
    for row, values in (
        (p.BUSY_S, window.busy_s), (p.BUSY_SQUARE, window.busy_square), (p.STALL_S, window.stall_s),
        (p.WAIT_S, window.wait_s), (p.W_SAMPLES, window.samples),
    ):  # fmt: skip
        worker[row] = values


def _restore(job: TrainingJob, state: State) -> None:
    """Put an advanced state back into the job."""
    whole, real, worker, gpu_s = state
    account, window = job.account, job.window
    steps = int(whole[p.STEPS]) - account.steps
    window.steps += steps
    window.periods += int(whole[p.EXCHANGES]) - account.exchanges
    job.steps_since_decision += steps
    account.samples, account.steps = int(whole[p.SAMPLES]), int(whole[p.STEPS])
    account.exchanges, account.useful_samples = int(whole[p.EXCHANGES]), float(real[p.USEFUL])
    account.gpu_s = gpu_s.copy()
    job.steps_ever = int(whole[p.FIRST_STEP])
    job._run_count, job._run_base = int(whole[p.RUN_COUNT]), float(real[p.RUN_BASE_S])
    job._run_period, job.period_start_s = float(real[p.RUN_PERIOD_S]), float(real[p.START_S])
    job.done = bool(whole[p.DONE])
    window.useful_samples, window.exchange_s = float(real[p.WINDOW_USEFUL]), float(real[p.WINDOW_EXCHANGE_S])
    window.busy_s, window.busy_square = worker[p.BUSY_S].copy(), worker[p.BUSY_SQUARE].copy()
    window.stall_s, window.wait_s = worker[p.STALL_S].copy(), worker[p.WAIT_S].copy()
    window.samples = worker[p.W_SAMPLES].copy()
