"""One synchronisation period: its start, its outcome, and the end times of periods."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.policies.observation import Floats, Ints

TIE = 1e-9
"""Workers that arrive within this part of a period arrive together: the first of them counts as the last."""


@dataclass(frozen=True, slots=True)
class Period:
    """One period as it begins: samples per step and worker; all steps alike but perhaps the last."""

    index: int
    start_s: float
    steps: int
    first_step: int
    samples: Ints
    last_samples: Ints
    compute_s: Floats
    input_s: Floats
    last_compute_s: Floats
    last_input_s: Floats
    far: bool  # whether all workers exchange at its end, not near ones only

    @property
    def demand(self) -> Ints:
        """Samples of the whole period per worker."""
        return self.samples * (self.steps - 1) + self.last_samples

    @property
    def batch(self) -> int:
        """Samples of the whole period."""
        return int(self.demand.sum())


@dataclass(slots=True)
class PeriodOutcome:
    """Outcome of a period: times per worker in seconds, and its end."""

    duration_s: float
    arrival_s: float  # offset at which the last worker reached the barrier
    finish_s: Floats  # offsets of all workers
    busy_s: Floats
    busy_square: Floats
    stall_s: Floats
    exchange_s: float
    end_s: float | None  # absolute end, when it is not start + duration (a wait or contention)
    samples: Ints | None = None  # of an asynchronous round: what each worker really took,
    steps: Ints | None = None  # its local steps
    pushes: Ints | None = None  # and pushes,
    exposed_s: Floats | None = None  # its time on the network,
    staleness: float = 0.0  # the mean staleness of a sample,
    kept: float = 1.0  # and what local steps between pushes leave of it


class Ends:
    """End times of periods: anchor + elapsed periods, where equal periods are multiplied, not summed.

    So ends never drift, and a stretch of periods can be cut anywhere with the same bits. start_s is when the
    running or the next period begins.
    """

    __slots__ = ("anchor_s", "base_s", "count", "period_s", "start_s")

    def __init__(self) -> None:
        self.resume_at(0.0)

    def resume_at(self, time_s: float) -> None:
        """Anchor the next period at an absolute time."""
        self.anchor_s = self.start_s = time_s
        self.base_s = self.period_s = 0.0  # sum before the run of equal periods, and their length
        self.count = 0  # periods in that run

    def of(self, outcome: PeriodOutcome) -> float:
        """When the running period ends."""
        if outcome.end_s is not None:
            return outcome.end_s
        base_s, count = self._run_with(outcome.duration_s)
        return self.anchor_s + (base_s + count * outcome.duration_s)

    def advance(self, outcome: PeriodOutcome) -> None:
        """Move on to the next period."""
        end_s = self.of(outcome)
        if outcome.end_s is not None:
            self.resume_at(end_s)
            return
        self.base_s, self.count = self._run_with(outcome.duration_s)
        self.period_s, self.start_s = outcome.duration_s, end_s

    def _run_with(self, duration_s: float) -> tuple[float, int]:
        """What precedes the run of equally long periods that one of this length ends (s), and their number."""
        if duration_s == self.period_s:
            return self.base_s, self.count + 1
        return self.base_s + self.count * self.period_s, 1
