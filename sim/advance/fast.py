"""The fast time advance: stretches of undisturbed periods in one jitted call, the rest period by period.

A job is undisturbed while nothing else can use its exchange's links to the full and none of its workers waits
for data. It gives the results of `sim.job.event_by_event.EventByEvent`, which is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from simpy.events import Event

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.advance import periods as p
from equipoise.sim.advance.event_by_event import EventByEvent, exchange_of
from equipoise.sim.advance.stretch import Stretch, copied, refresh_window, restore, state_of
from equipoise.sim.advance.waiting import anyone_waits, quiet_periods
from equipoise.sim.clock import Clock
from equipoise.sim.job.period import Period, PeriodOutcome
from equipoise.sim.job.rounds import checkpoint_due_s
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.network.network import Network

MAX_PERIODS = 1 << 14


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
        """Run a job that was started."""
        self._jobs[job.row] = job
        self._exchange_changed(job)
        super().begin(job)

    def halt(self, job: TrainingJob) -> None:
        """Stop the job at once and drop what was computed ahead."""
        super().halt(job)
        stretch = self._stretch.pop(job.row, None)
        if stretch is not None:
            self.clock.cancel(stretch.timer)
            if stretch.credited < stretch.count:
                job.steps_ever += job.progress.interval  # the running period's steps have been drawn
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
            job.data.mark_started(job.config.samples * job.progress.interval)

    def reconfigure(self, job: TrainingJob) -> None:
        """Note that the job changes when its running period ends."""
        job.config.stale = True
        stretch = self._stretch.get(job.row)
        if stretch is not None:
            self._cut(stretch)

    def plan_changed(self, job: TrainingJob) -> None:
        """Note that a plan changes the job: the stretch ends with the running period, or when changes are due."""
        stretch = self._stretch.get(job.row)
        if stretch is not None:
            steps = job.asked.steps_left(job.progress.account.steps)
            self._cut(stretch, stretch.credited - (-steps // job.progress.interval))

    def links_changed(self, links: Ints, transfers: int) -> None:
        """Transfers begin (+1) or end (-1) to use links, or the links' capacity changed (0)."""
        self.links.transfers[links] += transfers
        if transfers >= 0:
            rows: set[int] = set()
            for link in links.tolist():
                rows |= self.links.rows_on(link)
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
        """Advance by a stretch or by one period; returns whether the job continues."""
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
        """Number of whole periods before the next event that affects the job."""
        if job.config.asynchronous or self.links.disturbed(job):
            return 0
        per_period = job.config.samples * job.progress.interval
        steps = min(self.steps_to_decision(job), job.asked.steps_left(job.progress.account.steps))
        count = min(MAX_PERIODS, -(-steps // job.progress.interval))
        if job.data is not None:
            if job.data.left == 0:
                job.data.next_epoch()
            count = min(count, quiet_periods(job.data, per_period))
        return count

    def _work_out(self, job: TrainingJob, count: int) -> Stretch | None:
        state, end_s = state_of(job), np.empty(count)
        after, space = copied(state), p.scratch_for(job.config.workers)
        done, moving = p.advance(count, self.next_tick_s(), checkpoint_due_s(job), *after, *space, end_s)
        if done == 0:
            return None
        after = after._replace(moving=moving)
        stretch = Stretch(done, 0, end_s[:done], state, after, job.measured.window, Event(self.clock))
        self._set_timer(stretch)
        self._stretch[job.row] = stretch
        return stretch

    def _set_timer(self, stretch: Stretch) -> None:
        self.clock.cancel(stretch.timer)
        at_s = max(self.clock.now, float(stretch.end_s[stretch.count - 1]))
        stretch.timer = self.clock.at(at_s, lambda _: None if stretch.wake.triggered else stretch.wake.succeed())

    def _cut(self, stretch: Stretch, least: int = 0) -> None:
        """End a stretch with its running period, or after `least` of its periods where that is later."""
        ends_s = stretch.end_s[: stretch.count]
        # The running period is the last, or one that ends right now: the next has not begun (`clock.LATE`).
        count = max(least, int(np.searchsorted(ends_s, self.clock.now, side="left")) + 1)
        if count < stretch.count:
            stretch.count, stretch.after = count, None
            self._set_timer(stretch)

    def _credit(self, job: TrainingJob, stretch: Stretch, upto: int) -> None:
        """Book periods of a stretch up to `upto`."""
        count = upto - stretch.credited
        if count <= 0:
            return
        if stretch.after is not None and upto == stretch.count and stretch.window is job.measured.window:
            after = stretch.after
        else:  # the same periods again, in the same order: the same bits
            before, space = refresh_window(job, stretch.state), p.scratch_for(job.config.workers)
            _, moving = p.advance(count, np.inf, np.inf, *before, *space, np.empty(count))
            after = stretch.state = before._replace(moving=moving)
        stretch.credited, stretch.after = upto, None
        restore(job, after)
        if job.data is not None:
            job.data.consume(job.config.samples * (job.progress.interval * count))

    # -- periods with contention ---------------------------------------------------------------------------

    def _finish_disturbed(self, job: TrainingJob, stretch: Stretch, generation: int) -> Generator[Event, Any, bool]:
        """End the running period's exchange as a flow, because other traffic may disturb it."""
        now = self.clock.now
        ended = int(np.searchsorted(stretch.end_s[: stretch.count], now, side="right"))
        self._credit(job, stretch, ended)
        if ended == stretch.count:
            return True
        return (yield from super()._periods(job, generation))

    def _unfold(self, job: TrainingJob, period: Period, generation: int) -> Generator[Event, Any, PeriodOutcome | None]:
        """Simulate one period, in closed form up to the exchange when no worker waits for data."""
        if job.data is not None and anyone_waits(job.data, period.demand):
            return (yield from super()._unfold(job, period, generation))
        n = job.config.workers
        scratch, space = p.scratch_for(n)
        p.unfold(
            period.steps,
            period.first_step,
            job.step_noise,
            period.compute_s,
            period.input_s,
            period.last_compute_s,
            period.last_input_s,
            scratch,
            space,
        )
        arrival_s, begin_s, duration_s = p.meet(n, scratch, exchange_of(job, period).alone_s, job.model.overlap)
        outcome = PeriodOutcome(
            duration_s,
            arrival_s,
            scratch.finish[:n],
            scratch.busy_s[:n],
            scratch.square[:n],
            scratch.stall_s[:n],
            0.0,
            None,
        )
        return (yield from self._end(job, period, outcome, begin_s, False, generation))


def _uses(job: TrainingJob | None) -> tuple[Ints, Floats]:
    """Links that a job's exchanges use, and the highest rate (bytes/s) on each over the levels."""
    if job is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    far, near = job.config.exchange, job.config.near
    load = far.usage * far.rate_bytes_per_s
    if job.progress.far_every == 1 or near.volume_bytes == 0.0:
        return (far.links, load) if far.volume_bytes > 0.0 else (far.links[:0], load[:0])
    links, place = np.unique(np.concatenate((far.links, near.links)), return_inverse=True)
    most = np.zeros(len(links))
    np.maximum.at(most, place, np.concatenate((load, near.usage * near.rate_bytes_per_s)))
    return links, most


class Links:
    """Exchanges and transfers on each link, to find out which exchanges may be disturbed."""

    def __init__(self, capacity_bytes_per_s: Floats) -> None:
        self.capacity_bytes_per_s = capacity_bytes_per_s.copy()
        self.load = np.zeros(len(capacity_bytes_per_s))  # bytes/s that all exchanges together can put on it
        self.transfers = np.zeros(len(capacity_bytes_per_s), dtype=np.int64)
        self._count = np.zeros(len(capacity_bytes_per_s), dtype=np.int64)  # exchanges
        self._row = np.zeros(len(capacity_bytes_per_s), dtype=np.int64)  # of the last job set, where it is alone
        self._shared: dict[int, set[int]] = {}  # link of several jobs -> their rows
        self._of: dict[int, tuple[Ints, Floats]] = {}

    def rows_on(self, link: int) -> set[int]:
        """Rows of the jobs whose exchanges use a link."""
        return {int(self._row[link])} if self._count[link] == 1 else self._shared.get(link, set())

    def set_job(self, job: TrainingJob | None, row: int) -> list[int]:
        """Set a job's exchange (None: no longer any); returns the rows of jobs that share a link with it."""
        touched: set[int] = set()
        links, load = self._of.pop(row, (None, None))
        if links is not None and load is not None:
            self.load[links] -= load
            for link in links[self._count[links] > 1].tolist():
                users = self._shared[link]
                users.remove(row)
                touched |= users
                if len(users) == 1:
                    (self._row[link],) = self._shared.pop(link)
            self._count[links] -= 1
        links, load = _uses(job)
        if len(links):
            self._of[row] = (links, load)
            self.load[links] += load
            for link in links[self._count[links] > 0].tolist():
                touched |= self.rows_on(link)
                self._shared[link] = {*self.rows_on(link), row}
            self._row[links[self._count[links] == 0]] = row
            self._count[links] += 1
        return sorted(touched - {row})

    def disturbed(self, job: TrainingJob) -> bool:
        """Whether anything else may slow the job's exchange."""
        if job.row not in self._of:
            return False
        links, _ = self._of[job.row]
        room = self.capacity_bytes_per_s[links] * (1.0 + 1e-9)
        return bool((self.transfers[links] > 0).any() or (self.load[links] > room).any())
