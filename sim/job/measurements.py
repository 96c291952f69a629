"""Measurements of a training job's workers since the last observation, heat update and metering."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.job.period import Period, PeriodOutcome


@dataclass(slots=True)
class JobWindow:
    """Measurements since the last observation, per worker."""

    busy_s: Floats
    busy_square: Floats
    stall_s: Floats
    wait_s: Floats
    samples: Floats
    steps: int = 0
    periods: int = 0
    exchange_s: float = 0.0
    near_periods: int = 0  # of these: with an exchange of near workers only
    near_exchange_s: float = 0.0
    useful_samples: float = 0.0
    since_s: float = 0.0
    own_steps: Ints | None = None  # of workers that do not wait for each other: local steps,
    pushes: Ints | None = None  # pushes,
    push_s: Floats | None = None  # and their time

    @classmethod
    def empty(cls, workers: int, since_s: float) -> JobWindow:
        """A window that begins now."""
        a, b, c, d, e = np.zeros((5, workers))
        return cls(a, b, c, d, e, since_s=since_s)

    def add(self, period: Period, outcome: PeriodOutcome, samples: Ints, wait_s: Floats, useful: float) -> None:
        """Add one period; samples and wait_s (workers,) of it, and its useful samples."""
        self.busy_s += outcome.busy_s
        self.busy_square += outcome.busy_square
        self.stall_s += outcome.stall_s
        self.wait_s += wait_s
        self.samples += samples
        self.steps += period.steps
        self.periods += 1
        self.exchange_s += outcome.exchange_s
        if not period.far:
            self.near_periods += 1
            self.near_exchange_s += outcome.exchange_s
        self.useful_samples += useful
        if outcome.pushes is not None and outcome.steps is not None and outcome.exposed_s is not None:
            self.own_steps = outcome.steps + (0 if self.own_steps is None else self.own_steps)
            self.pushes = outcome.pushes + (0 if self.pushes is None else self.pushes)
            self.push_s = outcome.exposed_s + (0.0 if self.push_s is None else self.push_s)

    def each_push_s(self, known: Floats) -> Floats:
        """Mean time of a push and pull of each worker (workers,); where it made none, the expected time."""
        if self.pushes is None or self.push_s is None:
            return np.full(len(self.samples), np.nan)
        known = known if len(known) == len(self.samples) else np.full(len(self.samples), np.nan)
        return np.where(self.pushes > 0, self.push_s / np.maximum(self.pushes, 1), known)

    def exchanges_s(self, known: tuple[float, float]) -> tuple[float, float]:
        """Mean time of an exchange of all workers and of near ones; where there was none, the expected time."""
        far = self.periods - self.near_periods
        far_s = (self.exchange_s - self.near_exchange_s) / far if far else known[0]
        return far_s, self.near_exchange_s / self.near_periods if self.near_periods else known[1]


MEASURED = (
    "capacity_samples_per_s",
    "input_samples_per_s",
    "step_s",
    "step_cov",
    "wait_s",
    "input_stall_s",
    "response_s_per_sample",
    "gradient_rate_per_s",
    "gradient_norm",
    "push_s",
)
"""Columns of the table of workers that are measured."""


class Measurements:
    """The window of the observation, the computing that was metered, and how busy workers were lately."""

    def __init__(self) -> None:
        self.columns: dict[str, Floats] = dict.fromkeys(MEASURED, np.empty(0))  # as last observed
        self.place(0, 0.0, 0.0)

    def place(self, workers: int, now_s: float, begun_s: float) -> None:
        """The job has taken GPUs and trains from `begun_s` on."""
        self.workers, self.begun_s = workers, begun_s
        self.busy_total_s = np.zeros(workers)  # that was metered
        self._looked_s, self._looked_busy_s = begun_s, np.zeros(workers)
        self._utilisation = np.ones(workers)
        self.active = np.full(workers, np.nan)  # busy share over the last window that was observed
        self.open_window(begun_s)  # a restart is no part of what is measured

    def open_window(self, since_s: float) -> None:
        """Begin a new window."""
        self.window = JobWindow.empty(self.workers, since_s)
        self._busy_taken_s = np.zeros(self.workers)

    def fit_columns(self) -> None:
        """Keep the last observed values without a new period, unless the number of workers has changed."""
        if len(self.columns["step_s"]) != self.workers:
            self.columns = dict.fromkeys(MEASURED, np.full(self.workers, np.nan))

    def fresh_busy_s(self) -> Floats:
        """Computing time of each worker (workers,) since the last call of `take_busy_s`."""
        fresh: Floats = self.window.busy_s - self._busy_taken_s
        return fresh

    def take_busy_s(self) -> Floats:
        """Computing time of each worker since the last call; call it before the window changes."""
        fresh = self.fresh_busy_s()
        self._busy_taken_s = self.window.busy_s.copy()
        self.busy_total_s += fresh
        return fresh

    def utilisation(self, now_s: float, period_start_s: float) -> Floats:
        """Busy share of each worker over the whole periods since the last call, else the last value."""
        if self.begun_s >= now_s:  # it is starting
            return np.zeros(self.workers)
        passed_s = min(now_s, period_start_s) - self._looked_s
        if passed_s > 0.0:
            self._utilisation = (self.busy_total_s - self._looked_busy_s) / passed_s
            self._looked_s, self._looked_busy_s = self._looked_s + passed_s, self.busy_total_s.copy()
        return self._utilisation
