"""Periods of a training job: their start, their booking, and changes between two of them.

Time passes in synchronisation periods: H local steps and one gradient exchange. A period runs to its end under
the configuration it began with; only a stop (crash, preemption, resize) acts at once and loses the period.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.policies.shards import next_batch
from equipoise.sim.job.account import BARRIER_WAIT, EXPOSED_COMMUNICATION, INPUT_STALL, PIPELINE_BUBBLE, TENSOR_EXCHANGE
from equipoise.sim.job.pending import Pending
from equipoise.sim.job.period import Period, PeriodOutcome
from equipoise.sim.job.training import TrainingJob


def next_period(job: TrainingJob) -> Period:
    """Begin a period: set its steps, and the samples of each worker per step."""
    config, batch = job.config, job.progress.global_batch
    steps, last = min(job.progress.interval, job.progress.steps_to_target()), config.samples
    compute_s, input_s = config.compute_s, config.input_s
    if job.data is not None:
        if job.data.left == 0:
            job.data.next_epoch()
        left = job.data.left
        steps = min(steps, -(-left // batch))
        rest = left - (steps - 1) * batch
        if rest < batch:  # the last batch of an epoch deals what is left
            last = next_batch(rest, config.samples, job.spec.micro_batch)
            compute_s, input_s = config.step_s(last)
    first_step, job.steps_ever = job.steps_ever, job.steps_ever + steps
    period = Period(
        job.exchanges,
        job.ends.start_s,
        steps,
        first_step,
        config.samples,
        last,
        config.compute_s,
        config.input_s,
        compute_s,
        input_s,
        job.progress.far_next,
    )
    if job.data is not None and config.asynchronous:
        job.round = job.data.snapshot()
    elif job.data is not None:
        job.data.prepare(period.demand, config.seconds_per_sample())
    return period


def end_period(job: TrainingJob, period: Period, outcome: PeriodOutcome) -> None:
    """Book one finished period and find out when the next may begin."""
    job.ends.advance(outcome)
    demand = period.demand if outcome.samples is None else outcome.samples
    if job.data is not None and outcome.samples is None:
        job.data.consume(demand)
    job.round = None
    if outcome.pushes is not None:
        job.pushed += float(outcome.pushes.mean())
    wait_s = outcome.arrival_s - outcome.finish_s
    gpu_s, weight = job.gpu_s, job.config.weight
    gpu_s[INPUT_STALL] += float(outcome.stall_s @ weight)
    gpu_s[BARRIER_WAIT] += float(wait_s @ weight)
    gpu_s[EXPOSED_COMMUNICATION] += (outcome.duration_s - outcome.arrival_s) * float(weight.sum())
    if outcome.exposed_s is not None:
        gpu_s[EXPOSED_COMMUNICATION] += float(outcome.exposed_s @ weight)
    busy_gpu_s = float(outcome.busy_s @ weight)
    if job.config.divided:
        bubble, inside = (float(outcome.busy_s @ part) for part in (job.config.bubble_weight, job.config.inside_weight))
        gpu_s[PIPELINE_BUBBLE] += bubble
        gpu_s[TENSOR_EXCHANGE] += inside
        busy_gpu_s -= bubble + inside
    useful = job.progress.credit(period, busy_gpu_s, outcome, job.config.credit)
    job.measured.window.add(period, outcome, demand, wait_s, useful)


def ask(job: TrainingJob, asked: Pending, delay_rounds: int) -> None:
    """Queue a plan's changes until the running period ends, or `delay_rounds` steps from now.

    What is held so falls when the job is stopped or regrouped.
    """
    if delay_rounds and job.runs:
        job.asked.held.append((job.progress.account.steps + delay_rounds, asked))
    else:
        job.asked.pending = job.asked.pending.then(asked)


def apply_pending(job: TrainingJob) -> list[tuple[str, str]]:
    """Apply the due changes of plans; returns (what, why) of refused changes."""
    pending, refused = job.asked.take(job.progress.account.steps), []
    if pending.samples is not None:
        job.config.set_samples(pending.samples)
    if pending.global_batch is not None:
        job.progress.global_batch = pending.global_batch
        job.config.set_batch(pending.global_batch)
    if pending.learning_rate is not None:
        job.progress.learning_rate = pending.learning_rate
    if pending.accumulation is not None:
        job.progress.accumulation = pending.accumulation
        job.config.set_accumulation(pending.accumulation)
    if pending.interval is not None:
        job.progress.interval = pending.interval
    if pending.far_every is not None:
        job.progress.far_every = pending.far_every if job.config.near.happens else 1
        job.config.stale = True  # other links may be in use from now on
    if job.data is not None:
        for piece, worker in pending.moves:
            why = job.data.move(piece, worker)
            if why:
                refused.append((f"move of shard piece {piece} of job {job.name}", why))
        if pending.order:
            job.data.reorder(pending.order)
    if pending.push_interval is not None:
        job.config.push_interval = pending.push_interval
    if pending.weight is not None:
        job.config.set_gradient_weight(pending.weight)
    if pending.share is not None and not _set_share(job, pending.share):
        refused.append((f"share of job {job.name}", "the GPU no longer has room for it"))
    return refused


def _set_share(job: TrainingJob, by_worker: Floats) -> bool:
    """Change the share of its GPUs; False if another job has taken it since the decision."""
    share = np.repeat(by_worker, job.config.gpus_per_worker)
    if not job.cluster.has_room(job.row, share):
        return False
    job.meter_booked()  # at the share it had
    moved = np.abs(by_worker - job.config.share) > 0.01
    if job.cluster.gpus.mig[job.config.gpu[moved]].any():  # a slice is made anew without its process
        job.pause(job.initialisation_s + 2.0 * job.save_s)
    job.measured.open_window(job.ends.start_s)
    job.config.set_share(by_worker)
    job.cluster.set_share(job.row, share)
    for tell in job.listeners.shares_changed:
        tell(job.cluster.holding[job.row].gpu)
    return True


def checkpoint_due_s(job: TrainingJob) -> float:
    """When the next checkpoint is due, counted from the last."""
    return job.checkpoints.last_s + job.checkpoints.interval_s


def checkpoint_if_due(job: TrainingJob, now_s: float) -> None:
    """Begin to write a checkpoint before the next period, when one is due."""
    if job.ends.start_s - job.checkpoints.last_s < job.checkpoints.interval_s:
        return
    for tell in job.listeners.checkpointing:
        tell(job, now_s)
    job.pause(job.checkpoints.pause_s)
    job.checkpoints.begin(job.saved_state(), job.ends.start_s)


def checkpoint_written(job: TrainingJob, now_s: float) -> None:
    """Complete a checkpoint, so that its work can no longer be lost."""
    if job.checkpoints.complete():
        for tell in job.listeners.checkpointed:
            tell(job, now_s)
