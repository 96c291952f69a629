"""Times of policy decisions: on events, at intervals, after a number of steps, and on request of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable

from simpy.events import Event

from equipoise.sim.clock import DECISION, Clock
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.scenario.model import Decide
from equipoise.sim.world.roster import Roster


class Decisions:
    """Calls `decide()` at most once per instant, after everything else that happens at it.

    next_look_s: when something else that all running jobs have to stop for is planned (s).
    """

    def __init__(
        self, spec: Decide, clock: Clock, roster: Roster, decide: Callable[[], None], next_look_s: Callable[[], float]
    ) -> None:
        self.spec, self.clock, self.roster = spec, clock, roster
        self.decide, self.next_look_s = decide, next_look_s
        self._asked: Event | None = None
        self._revisit: Event | None = None
        self._revisit_s = math.inf
        self._ticks = 0
        self.busy_until_s = -math.inf  # no decision before: the last one is still being written down

    def begin(self) -> None:
        """Plan the first of the regular decisions, when there are any."""
        if self.spec.every is not None:
            self.clock.at(0.0, self._on_tick)

    def event(self) -> None:
        """Request a decision at this instant if the scenario decides on events."""
        if self.spec.on_events:
            self.request()

    def last_event(self) -> None:
        """As `event`, at the end of a handler: decides at once if nothing else happens at this instant."""
        now_s = self.clock._now
        if self._asked is None and self.clock.peek() > now_s and self.busy_until_s <= now_s:
            if self.spec.on_events:
                self.decide()
        else:
            self.event()

    def request(self) -> None:
        """Decide once at this instant, after everything else; while the last decision is written, after that."""
        if self._asked is None:
            at_s = max(self.clock._now, self.busy_until_s)
            self._asked = self.clock.at(at_s, self._on_request, DECISION)

    def _on_request(self, _: Event) -> None:
        self._asked = None
        self.decide()

    def _on_tick(self, _: Event) -> None:
        assert self.spec.every is not None
        self._ticks += 1
        self.clock.at(self._ticks * self.spec.every, self._on_tick)
        if self.roster.waiting or self.roster.running:
            self.request()

    def revisit_at(self, time_s: float) -> None:
        """Decide again at this time at the latest, instead of the last time given; inf: not planned."""
        if time_s == self._revisit_s == math.inf:
            return
        self.clock.cancel(self._revisit)
        self._revisit, self._revisit_s = None, time_s
        if time_s < math.inf:
            self._revisit = self.clock.at(time_s, self._on_revisit)

    def _on_revisit(self, _: Event) -> None:
        self._revisit, self._revisit_s = None, math.inf
        self.request()

    @property
    def revisits(self) -> bool:
        """Whether a plan has asked for another decision."""
        return self._revisit is not None

    @property
    def ticks(self) -> bool:
        """Whether decisions come at regular times."""
        return self.spec.every is not None

    def next_planned_s(self) -> float:
        """Time of the next decision, or other look at all jobs, that is planned already."""
        tick_s = math.inf if self.spec.every is None else self._ticks * self.spec.every
        asked_s = math.inf if self._asked is None else self.busy_until_s
        return min(tick_s, self._revisit_s, asked_s if asked_s > self.clock._now else math.inf, self.next_look_s())

    def steps_left(self, job: TrainingJob) -> int:
        """Steps of a job until it asks for a decision."""
        return max(1, self._steps(job) - job.progress.steps_since_decision)

    def stepped(self, job: TrainingJob) -> None:
        """A job has done some steps."""
        if job.progress.steps_since_decision >= self._steps(job):
            job.progress.steps_since_decision = 0
            job.progress.decisions += 1
            self.request()

    def _steps(self, job: TrainingJob) -> int:
        """Steps of a job between its last decision and its next."""
        first, made = self.spec.first_steps, job.progress.decisions
        return first[made] if made < len(first) else self.spec.every_steps or 2**40
