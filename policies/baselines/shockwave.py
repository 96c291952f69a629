"""Shockwave, simplified: a market for the GPU time of a window, with budgets that grow with unfairness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.ranking import gpus_wanted
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
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.observation import RUNNING, Floats, Ints, Observation


@dataclass(frozen=True)
class Shockwave(RoundBased):
    """Shockwave (Zheng et al., NSDI 2023), simplified: rounds of a window by a Fisher market over time.

    Section 5: over the next `window` rounds maximise sum of rho^power x log(part of the job done by then), less
    `makespan` x the longest time left at the end over the sum of all now (equations 9 to 11); rho is the estimated
    time in the system over that on an equal part of the cluster (as for Themis). A round goes to where it
    adds most per GPU, one after another: exact where gangs are equal and `makespan` is 0, as the sum is concave;
    the paper has a solver. The schedule holds until the window ends, or jobs arrive or end. The job furthest behind
    the rounds that it has bought runs first, on ties a running one; GPUs left over go to the others.

    The paper predicts throughput for jobs that change their batches themselves; here only plans change batches, so
    the observed `service_s` and `speeds` are used. Its physical run is missed by 39.8 %, its mean completion by 29 %.
    """

    name: ClassVar[str] = "shockwave-like"
    order: ClassVar[str] = "rounds bought in the window"
    starvation: ClassVar[str] = "never: rho, and so the budget, grows without bound while a job waits"
    fidelity: ClassVar[str] = "like: its physical run is missed by 39.8 %, its mean completion by 29 %"

    round_s: float = 120.0
    window: int = 20
    power: float = 5.0
    makespan: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ValueError("window must be at least 1")
        if not (self.power >= 0 and self.makespan >= 0):
            raise ValueError("power and makespan must not be negative")

    def decide(self, o: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Run the jobs whose rounds are due; sell a new window when the last one no longer holds."""
        rows = open_jobs(o)
        room, speed, gpus = model_counts(o, rows), job_speeds(o, rows), gpus_wanted(o, rows)
        speed = np.where(gpus[:, None] <= room, speed, 0.0)
        able = speed.max(axis=1, initial=0.0) > 0
        rows, speed, gpus = rows[able], speed[able], gpus[able]
        rounds, ahead = memory.get("rounds"), int(memory.get("ahead", 0))
        if rounds is None or ahead < 1 or not np.array_equal(memory["rows"], rows):
            rounds, ahead = self._sell(o, rows, speed, gpus, int(room.sum())), self.window
        credit, old = np.zeros(len(o.jobs)), memory.get("credit", np.empty(0))[: len(o.jobs)]
        credit[: len(old)] = old
        credit[rows] = np.minimum(credit[rows] + rounds / self.window, 2.0)
        grants: list[Grant] = []
        for k in np.lexsort((rows, o.jobs.state[rows] != RUNNING, -credit[rows])).tolist():
            can = np.where((speed[k] > 0) & (gpus[k] <= room), speed[k], 0.0)
            if can.max(initial=0.0) > 0:
                model = int(can.argmax())
                room[model] -= gpus[k]
                credit[rows[k]] = max(credit[rows[k]] - 1.0, 0.0)
                grants.append((int(rows[k]), model, int(gpus[k])))
        memory = {"rounds": rounds, "rows": rows, "ahead": ahead - 1, "credit": credit}
        return hand_out(o, plan, self.name, grants), memory

    def _sell(self, o: Observation, rows: Ints, speed: Floats, gpus: Ints, total: int) -> Ints:
        """Rounds of the next window for each of `rows`."""
        left_s = work_left(o, rows, speed) / np.maximum(speed.max(axis=1, initial=0.0), 1e-9)
        ran_s = np.nan_to_num(o.jobs.attained_gpu_s[rows]) / np.maximum(gpus, 1)
        age_s = np.maximum(o.time_s - np.nan_to_num(o.jobs.arrival_s[rows]), 0.0)
        crowd = np.maximum(1.0, len(rows) * gpus / max(total, 1))
        rho = (age_s + left_s * crowd) / ((ran_s + left_s) * crowd)
        rounds = np.zeros(len(rows), dtype=np.int64)
        budget = np.minimum(rho, 1e3) ** self.power
        market(
            ran_s / self.round_s,
            left_s / self.round_s,
            gpus,
            budget / max(budget.sum(), 1e-300),
            self.makespan * self.round_s / max(float(left_s.sum()), self.round_s),
            self.window,
            total,
            rounds,
        )
        return rounds


@jit_in_place
def market(
    ran: Floats, left: Floats, gpus: Ints, budget: Floats, makespan: float, window: int, total: int, rounds: Ints
) -> None:
    """Write how many of `window` rounds each job buys on `total` GPUs; ran and left are in rounds."""
    room = window * total
    while True:
        longest = 0.0
        for k in range(left.size):
            longest = max(longest, left[k] - rounds[k])
        best, most = -1, 0.0
        for k in range(left.size):
            if rounds[k] >= window or rounds[k] >= left[k] or gpus[k] > room:
                continue
            part = min(1.0, left[k] - rounds[k])
            done = ran[k] + rounds[k] + 1.0  # a round ahead, to avoid log(0)
            gain = budget[k] * np.log1p(part / done)
            if left[k] - rounds[k] >= longest:
                gain += makespan * part
            if gain > most * gpus[k]:
                best, most = k, gain / gpus[k]
        if best < 0:
            return
        rounds[best] += 1
        room -= gpus[best]
