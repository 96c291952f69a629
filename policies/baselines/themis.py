"""Themis and Tiresias: finish-time fairness, and least attained GPU time in two queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.ranking import gpus_wanted
from equipoise.policies.baselines.allocation import Las
from equipoise.policies.baselines.rounds import (
    Grant,
    RoundBased,
    hand_out,
    job_speeds,
    model_counts,
    open_jobs,
    work_left,
)
from equipoise.policies.contract import Memory, Plan
from equipoise.policies.observation import Observation


@dataclass(frozen=True)
class Themis(RoundBased):
    """Themis (Mahajan et al., NSDI 2020), simplified: for each round, GPUs go to the jobs whose finish is delayed most.

    rho = (age + time left at the best speed) / (time alone on an equal part of the cluster) (section 3). Of each
    round's GPUs the share 1 - f of the jobs, those with the largest rho, choose first, then the others by age.
    Bids are truthful here, so the auction's hidden payments (section 4.2) are left out; leases are whole rounds.
    """

    name: ClassVar[str] = "themis"
    order: ClassVar[str] = "worst finish-time fairness, then arrival"
    starvation: ClassVar[str] = "never: rho grows without bound while a job waits"
    fidelity: ClassVar[str] = "not compared: no public completion times by job are at hand"

    fairness: float = 0.8  # f: the larger, the fewer jobs choose first

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.fairness <= 1.0:
            raise ValueError("fairness must be 0 to 1")

    def decide(self, o: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Let the jobs of largest rho choose the model on which they are fastest."""
        rows = open_jobs(o)
        room, speed, gpus = model_counts(o, rows), job_speeds(o, rows), gpus_wanted(o, rows)
        speed = np.where(gpus[:, None] <= room, speed, 0.0)
        best = np.maximum(speed.max(axis=1, initial=0.0), 1e-9)
        left_s = work_left(o, rows, speed) / best
        age_s = np.maximum(o.time_s - o.jobs.arrival_s[rows], 0.0)
        part = np.minimum(1.0, room.sum() / np.maximum(len(rows) * gpus, 1))
        ran_s = o.jobs.attained_gpu_s[rows] / np.maximum(gpus, 1)
        rho = (age_s + left_s) / np.maximum((ran_s + left_s) / np.maximum(part, 1e-9), 1e-9)
        order = np.lexsort((rows, -rho))
        first = int(np.ceil((1.0 - self.fairness) * len(rows)))
        order = np.concatenate((order[:first], np.sort(order[first:])))
        grants: list[Grant] = []
        for k in order.tolist():
            able = np.where((speed[k] > 0) & (gpus[k] <= room), speed[k], 0.0)
            if able.max(initial=0.0) > 0:
                model = int(able.argmax())
                room[model] -= gpus[k]
                grants.append((int(rows[k]), model, int(gpus[k])))
        worst = float(rho.max(initial=0.0))
        return hand_out(o, plan, self.name, grants, rho_worst=worst), {}


@dataclass(frozen=True)
class Tiresias(Las):
    """Tiresias-like (Gu et al., NSDI 2019): discretised 2D-LAS with two queues, each in order of arrival.

    As `las`, with K = 2 queues that a job leaves at 3,200 GPU-seconds. `promote` is the paper's PROMOTEKNOB: a job
    whose waiting time exceeds this multiple of its running time, in whole thresholds, returns to the first queue
    (0: never, as in most of the paper's experiments). The authors' code orders a queue by entry into it, running jobs
    first: the mean completion on one of their traces differs by 15.4 %.
    """

    name: ClassVar[str] = "tiresias"

    thresholds_gpu_s: tuple[float, ...] = (3200.0,)
    promote: float = 8.0
