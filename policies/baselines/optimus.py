"""Optimus: workers go one by one to the job with the largest reduction of its estimated end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from equipoise.policies.baselines.goodput import Held, Option, Ways, climb, oldest_first
from equipoise.policies.baselines.rounds import (
    RoundBased,
    fits_memory,
    hand_out,
    job_speeds,
    model_counts,
    open_jobs,
    work_left,
)
from equipoise.policies.contract import Memory, Plan
from equipoise.policies.observation import Observation


@dataclass(frozen=True)
class Optimus(RoundBased):
    """Optimus (Peng et al., EuroSys 2018): every round, GPUs by marginal gain of the estimated time to converge.

    Section 4.1: each job gets the fewest GPUs it can run on; then GPUs go where they shorten a job's remaining time
    Q / f(GPUs) most per GPU, while there are any and some job gains (equation 9). f is the estimated speed by GPUs
    (section 3.2), at the batch that the user chose. Q, the work left until convergence, is the observation's
    `remaining_samples`: the paper fits 1 / (b0 k + b1) + b2 to the loss (3.1), which no stage sees. A job with less
    than `beginner` of its progress has `beginner_weight` of its gain, as its Q is the least certain (4.1). Jobs run
    on one GPU model, and resize regardless of the cost, as in the paper.
    """

    name: ClassVar[str] = "optimus"
    order: ClassVar[str] = "time saved per GPU"
    starvation: ClassVar[str] = "a job may wait for as long as smaller ones take the GPUs"
    fidelity: ClassVar[str] = "not compared: no public completion times by job are at hand"

    round_s: float = 600.0
    beginner: float = 0.05
    beginner_weight: float = 0.95

    def decide(self, o: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Assign the GPUs in greedy increments."""
        o = replace(o, jobs=o.jobs.replaced(batch_max=np.zeros(len(o.jobs), dtype=np.int64)))
        rows = open_jobs(o)
        room, speed, fits = model_counts(o, rows), job_speeds(o, rows), fits_memory(o, rows)
        work, left = work_left(o, rows, speed), room.copy()
        ways, held = Ways(o, rows, speed, room, fits), Held(o, rows)
        ladders: dict[int, list[Option]] = {}
        for k in oldest_first(o, rows):
            row = int(rows[k])
            model = (held.of(k) or (int(left.argmax()), 0))[0]
            weight = self.beginner_weight if o.jobs.progress[row] < self.beginner else 1.0
            ladder = self._ladder(ways.of(k)[1], model, float(work[k]) * weight)
            if ladder:
                ladders[row] = ladder
                left[ladder[0].model] -= ladder[0].gpus
        grants = [(row, way.model, way.gpus) for row, way in climb(ladders, room).items()]
        return hand_out(o, plan, self.name, grants), {}

    def _ladder(self, ways: list[Option], model: int, work: float) -> list[Option]:
        """Options on one model by GPUs, each worth more than the last, their goodput 1 / the time of `work`."""
        here = [way for way in ways if way.model == model]
        here = here or [way for way in ways if way.model == ways[0].model]
        found: list[Option] = []
        for way in sorted(here, key=lambda way: way.gpus):
            worth = self._worth(way, work)
            if not found or worth > found[-1].goodput:
                found.append(replace(way, goodput=worth))
        return found

    def _worth(self, way: Option, work: float) -> float:
        """Objective of the greedy growth: GPUs go where 1 / worth falls most per GPU."""
        return way.goodput / work


@dataclass(frozen=True)
class Drf(Optimus):
    """Dominant resource fairness (Ghodsi et al., NSDI 2011) over GPUs alone: the next GPU to the job with fewest.

    Elastic jobs get equal GPUs between their fewest and most; the Optimus paper compares with it.
    """

    name: ClassVar[str] = "drf"
    order: ClassVar[str] = "fewest GPUs"

    def _worth(self, way: Option, work: float) -> float:
        """GPUs: 1 / GPUs falls most for the job with fewest."""
        return float(way.gpus)
