"""Progress of a training job: its account, its target, and the efficiency of further samples."""

from __future__ import annotations

import math

from equipoise.policies.levels import mean_interval
from equipoise.policies.physics import efficiency, rate_worth
from equipoise.policies.rate_rules import RULES
from equipoise.sim.job.account import BUSY, USEFUL, GpuTimeAccount
from equipoise.sim.job.period import Period, PeriodOutcome
from equipoise.sim.scenario.model import JobSpec, Model

DONE_TOLERANCE = 1e-9


def target_of(spec: JobSpec) -> float:
    """Useful samples after which a job is done."""
    if spec.steps is not None:
        return float(spec.steps * spec.global_batch)
    if spec.samples is not None:
        return float(spec.samples)
    assert spec.epochs is not None
    assert spec.data is not None
    return spec.epochs * spec.data.samples


class Progress:
    """The account of a job, and the remaining samples until its target."""

    def __init__(self, spec: JobSpec, model: Model, *, asynchronous: bool) -> None:
        self.model, self.asynchronous, self.global_batch = model, asynchronous, spec.global_batch
        self.reference = spec.batch_reference or spec.global_batch
        self.given, self.rate_rule = spec.global_batch, RULES.index(spec.learning_rate)
        self.learning_rate = 1.0  # factor on its own
        self.target = target_of(spec)
        self.account = GpuTimeAccount()
        self.interval = spec.sync_interval
        self.accumulation = 1 if model.transformer is None else 0  # passes of a step; 0: as its layout says
        self.far_every, self.far_ratio = (1, 1.0)  # of so many exchanges one is of all workers; `policies.levels`
        self.turn = 0  # exchanges of near workers since the last one of all
        self.steps_since_decision = self.decisions = 0
        self.done = False

    @property
    def ratio(self) -> float:
        """Share of the target reached."""
        return min(1.0, self.account.useful_samples / self.target)

    @property
    def noise_scale(self) -> float:
        """Gradient noise scale (samples); -1 when the job has none."""
        return -1.0 if self.model.noise_scale is None else self.model.noise_scale

    def efficiency(self, batch: float) -> float:
        """Statistical efficiency of a batch, now; asynchronous workers have no interval.

        What the learning rate costs is that of the whole batch, for the rest of an epoch, too.
        """
        interval, phi = 1.0 if self.asynchronous else self.mean_interval, self.noise_scale
        worth = rate_worth(self.learning_rate, float(self.global_batch), float(self.given), phi, self.rate_rule)
        return efficiency(float(batch), interval, phi, float(self.reference), self.model.drift or 0.0) * worth

    @property
    def mean_interval(self) -> float:
        """Effective steps between exchanges, by the drift left by near exchanges and by all."""
        return mean_interval(self.interval, self.far_every, self.far_ratio)

    def place(self, ratio: float) -> None:
        """Go on with workers of which near exchanges leave this part of the drift, at most as far apart as before.

        All have exchanged before.
        """
        if self.far_every > 1 and ratio > self.far_ratio:
            self.interval, self.far_every = math.ceil(self.mean_interval), 1
        self.far_ratio, self.turn = ratio, 0

    @property
    def far_next(self) -> bool:
        """Whether the next exchange is of all workers; so is the last one."""
        return self.turn + 1 >= self.far_every or self.steps_to_target() <= self.interval

    def steps_to_target(self) -> int:
        """Steps until the job ends, at the present efficiency."""
        missing = self.target * (1.0 - DONE_TOLERANCE) - self.account.useful_samples
        per_step = self.global_batch * self.efficiency(self.global_batch)
        return max(1, math.ceil(missing / per_step))

    def credit(self, period: Period, busy_gpu_s: float, outcome: PeriodOutcome, part: float) -> float:
        """Count the samples of one period, each at the efficiency of its batch; returns how many were useful.

        In an asynchronous round a sample counts 1 / (1 + penalty * staleness), reduced further by local steps
        (see `job.asynchronous`). `part` is the share of samples whose gradients were sound.
        """
        account, useful = self.account, 0.0
        whole = int(period.samples.sum()) if period.steps > 1 else 0
        last = int(period.last_samples.sum())
        if whole:
            useful += (period.steps - 1) * whole * self.efficiency(whole)
        useful += last * self.efficiency(max(last, self.reference))
        useful *= outcome.kept / (1.0 + self.model.staleness * outcome.staleness)
        useful *= part
        account.samples += period.batch
        account.useful_samples += useful
        account.steps += period.steps
        account.exchanges += 1
        account.near_exchanges += not period.far
        self.turn = 0 if period.far else self.turn + 1
        account.gpu_s[BUSY] += busy_gpu_s
        account.gpu_s[USEFUL] += busy_gpu_s * useful / max(1, period.batch)
        self.steps_since_decision += period.steps
        self.done = account.useful_samples >= self.target * (1.0 - DONE_TOLERANCE)
        return useful
