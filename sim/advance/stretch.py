"""Undisturbed periods of one job computed in advance, and the transfer of the job's state to and from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from simpy.events import Event

from equipoise.policies.observation import Floats
from equipoise.sim.advance.periods import Fixed, Moving, PerWorker
from equipoise.sim.job.measurements import JobWindow
from equipoise.sim.job.training import TrainingJob


class StretchState(NamedTuple):
    """State that `sim.advance.periods.advance` reads and updates; it writes to the arrays of `worker` and to gpu_s."""

    fixed: Fixed
    moving: Moving
    worker: PerWorker
    gpu_s: Floats


@dataclass(slots=True, eq=False)
class Stretch:
    """Undisturbed periods of one job that are computed but not all credited yet."""

    count: int  # periods that will be credited, unless cut
    credited: int
    end_s: Floats
    state: StretchState  # before the first period not credited
    after: StretchState | None  # after the last, when nothing was credited or cut
    window: JobWindow  # the job's window when the state was taken
    wake: Event
    timer: Event | None = None


def state_of(job: TrainingJob) -> StretchState:
    """Everything that the jitted advance reads and updates, copied out of a job."""
    config, progress, ends, window = job.config, job.progress, job.ends, job.measured.window
    model, account = job.model, job.progress.account
    fixed = Fixed(
        interval=progress.interval,
        batch=progress.global_batch,
        noise=job.step_noise,
        mean_interval=progress.mean_interval,
        far_every=progress.far_every,
        alone_s=config.exchange.alone_s,
        near_s=config.near.alone_s,
        gamma=model.overlap,
        noise_scale=progress.noise_scale,
        reference=float(progress.reference),
        drift=model.drift or 0.0,
        learning_rate=progress.learning_rate,
        given=float(progress.given),
        rate_rule=progress.rate_rule,
        target=progress.target,
        weight=float(config.weight.sum()),
        divided=config.divided,
        credit=config.credit,
        anchor_s=ends.anchor_s,
    )
    moving = Moving(
        first_step=job.steps_ever,
        samples=account.samples,
        steps=account.steps,
        exchanges=account.exchanges,
        run_count=ends.count,
        run_base_s=ends.base_s,
        run_period_s=ends.period_s,
        useful=account.useful_samples,
        window_useful=window.useful_samples,
        window_exchange_s=window.exchange_s,
        turn=progress.turn,
        near=account.near_exchanges,
        window_near_s=window.near_exchange_s,
        start_s=ends.start_s,
        done=False,
    )
    worker = PerWorker(
        *np.stack(
            (
                config.compute_s,
                config.input_s,
                config.weight,
                config.bubble_weight,
                config.inside_weight,
                config.samples.astype(np.float64),
                window.busy_s,
                window.busy_square,
                window.stall_s,
                window.wait_s,
                window.samples,
            )
        )
    )
    return StretchState(fixed, moving, worker, account.gpu_s.copy())


def copied(state: StretchState) -> StretchState:
    """A copy that can be advanced while this state stays unchanged."""
    worker = PerWorker(*np.stack(state.worker))
    return state._replace(worker=worker, gpu_s=state.gpu_s.copy())


def refresh_window(job: TrainingJob, state: StretchState) -> StretchState:
    """The state with the current sums of the job's window, which an observation may have reset."""
    window, worker = job.measured.window, state.worker
    worker.busy_s[:], worker.busy_square[:] = window.busy_s, window.busy_square
    worker.stall_s[:], worker.wait_s[:], worker.samples[:] = window.stall_s, window.wait_s, window.samples
    moving = state.moving._replace(window_useful=window.useful_samples, window_exchange_s=window.exchange_s)
    moving = moving._replace(window_near_s=window.near_exchange_s)
    return state._replace(moving=moving)


def restore(job: TrainingJob, state: StretchState) -> None:
    """Put an advanced state back into the job."""
    moving, worker = state.moving, state.worker
    account, window, ends = job.progress.account, job.measured.window, job.ends
    steps = moving.steps - account.steps
    window.steps += steps
    window.periods += moving.exchanges - account.exchanges
    window.near_periods += moving.near - account.near_exchanges
    account.near_exchanges, job.progress.turn = moving.near, moving.turn
    window.near_exchange_s = moving.window_near_s
    job.progress.steps_since_decision += steps
    account.samples, account.steps, account.exchanges = moving.samples, moving.steps, moving.exchanges
    account.useful_samples, account.gpu_s = moving.useful, state.gpu_s.copy()
    job.steps_ever = moving.first_step
    ends.count, ends.base_s = moving.run_count, moving.run_base_s
    ends.period_s, ends.start_s = moving.run_period_s, moving.start_s
    job.progress.done = moving.done
    window.useful_samples, window.exchange_s = moving.window_useful, moving.window_exchange_s
    window.busy_s, window.busy_square = worker.busy_s.copy(), worker.busy_square.copy()
    window.stall_s, window.wait_s = worker.stall_s.copy(), worker.wait_s.copy()
    window.samples = worker.samples.copy()
