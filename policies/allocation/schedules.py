"""S4's `optimal` mode for few jobs: the GPU count, GPU model and start time of every job until all are done.

All orders and configurations are searched with a bound (depth first, branch and bound), so the schedule found has
the least weighted sum of completion times of all in which a job keeps its GPUs once it has them. Only the first
starts of such a schedule are applied; the next decision plans the rest again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.policies.observation import Floats


@dataclass(frozen=True, slots=True)
class StartOption:
    """One configuration of a job: `stays` as it runs now, or a new start, restart cost included.

    at_once: it must begin now, as must one that stays.
    """

    workers: int
    gpus: int
    model: int
    time_s: float
    stays: bool = False
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Busy:
    """GPUs of a model that are held until `end_s` (from now)."""

    end_s: float
    gpus: int
    model: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Option chosen and start (s from now) of each job, and the weighted sum of completion times."""

    cost: float
    chosen: tuple[int, ...]
    begin_s: tuple[float, ...]


def useful(options: Sequence[StartOption]) -> list[StartOption]:
    """Options that no other one of the same model and GPU count beats in time; quickest first."""
    kept: list[StartOption] = []
    for option in sorted(options, key=lambda o: (o.time_s, not o.stays, o.gpus)):
        better = (k for k in kept if k.model == option.model and k.gpus <= option.gpus and not k.stays)
        if option.stays or not any(better):
            kept.append(option)
    return kept


def earliest_s(busy: Sequence[Busy], option: StartOption, capacity: int, after_s: float) -> float:
    """Earliest time (s) at which the GPUs of an option are free, at least `after_s`, when all of `busy` have begun."""
    later = [b for b in busy if b.model == option.model and b.end_s > after_s]
    for begin_s in (after_s, *sorted(b.end_s for b in later)):
        if sum(b.gpus for b in later if b.end_s > begin_s) + option.gpus <= capacity:
            return begin_s
    return math.inf


class _Search:
    """Depth-first search: jobs in the order of their starts, each in all its options, as early as it can."""

    def __init__(
        self, options: Sequence[Sequence[StartOption]], weight: Floats, capacity: Sequence[int], most: int
    ) -> None:
        self.options, self.weight, self.capacity, self.left = options, weight.tolist(), capacity, most
        self.least_s = [min(o.time_s for o in own) for own in options]
        self.best = Schedule(math.inf, (), ())
        self.chosen, self.begin_s = [-1] * len(options), [0.0] * len(options)

    def go(self, busy: tuple[Busy, ...], jobs: frozenset[int], cost: float, last_s: float) -> None:
        """Try each remaining job as the next to start, not before `last_s`."""
        if not jobs:
            if cost < self.best.cost * (1.0 - 1e-12):
                self.best = Schedule(cost, tuple(self.chosen), tuple(self.begin_s))
            return
        for k in sorted(jobs, key=lambda k: self.least_s[k] / self.weight[k]):
            others = jobs - {k}
            rest = cost + math.fsum(self.weight[j] * (last_s + self.least_s[j]) for j in others)
            for i, option in enumerate(self.options[k]):
                if rest + self.weight[k] * (last_s + option.time_s) >= self.best.cost:
                    continue
                self.left -= 1
                if self.left < 0:
                    raise TimeoutError("too many schedules")
                begin_s = earliest_s(busy, option, self.capacity[option.model], last_s)
                if begin_s == math.inf or (begin_s > 0.0 and (option.stays or option.at_once)):
                    continue
                self.chosen[k], self.begin_s[k] = i, begin_s
                end_s = begin_s + option.time_s
                taken = Busy(end_s, option.gpus, option.model)
                self.go((*busy, taken), others, cost + self.weight[k] * end_s, begin_s)


def best_schedule(
    options: Sequence[Sequence[StartOption]], weight: Floats, busy: Sequence[Busy], capacity: Sequence[int], most: int
) -> Schedule:
    """The schedule of least weighted sum of completion times (s from now).

    options: of each job; busy: GPUs held by other jobs; capacity: GPUs of each model. Raises TimeoutError
    after `most` placements, ValueError when there is no schedule.
    """
    search = _Search(options, weight, capacity, most)
    search.go(tuple(busy), frozenset(range(len(options))), 0.0, 0.0)
    if search.best.cost == math.inf:
        raise ValueError("some job never fits")
    return search.best
