"""One training job, started, stopped, slowed down and cut, by hand.

Two workers take 4 samples each a step, 10 ms a sample: 0.04 s a step, 8 samples, 0.08 GPU-seconds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.sim.job.account import BUSY, LOST_TO_FAULTS, RESTART, USEFUL
from equipoise.sim.job.pending import Pending
from equipoise.sim.job.rounds import apply_pending, ask, checkpoint_due_s
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.world.world import SimWorld
from tests.scenarios import model
from tests.sim.world.small import to, world_of

RESTARTS = {"initialisation": 3.0, "detection": 2.0, "rescheduling": 0.5, "checkpoint_write": 5.0}
TWO = [{"name": "n", "count": 2, "gpus": 1}]


def training(
    *, nodes: Any = None, restart: Any = None, m: Any = None, jobs: tuple[Any, ...] = (), **keys: Any
) -> tuple[SimWorld, TrainingJob]:
    """A world in which the job has just started."""
    job = {"gpus": 2, "model": "m", "global_batch": 8, "steps": 100} | keys
    world = world_of(
        job,
        *jobs,
        nodes=nodes or [{"name": "n", "gpus": 4}],
        models={"m": model(**(m or {}))},
        restart=restart or RESTARTS,
    )
    to(world, 1e-3)
    return world, world.roster.training[0]


def settled(job: TrainingJob) -> tuple[float, float, float, float]:
    """(busy, useful, restart, lost to faults) GPU-seconds."""
    job.advance.settle(job)
    a = job.gpu_s
    return a[BUSY], a[USEFUL], a[RESTART], a[LOST_TO_FAULTS]


def test_a_job_that_is_preempted_keeps_its_steps_and_pays_for_saving_and_reading() -> None:
    world, job = training()
    to(world, 1.03)
    assert settled(job) == pytest.approx((2.0, 2.0, 0.0, 0.0))
    world.allocator.stop(job, "preempted")
    assert settled(job) == pytest.approx((2.0, 2.0, 0.06, 0.0))
    assert (job.progress.account.steps, job.progress.account.useful_samples, job.kept) == (25, 200, 200)
    assert world.roster.columns["restart_s"][0] == 3.0 + 2 * 5.0
    assert (job.undone_gpu_s, job.computed_gpu_s) == pytest.approx((0.06, 2.06))
    assert (job.holding, job.runs, world.roster.restarts[0]) == (None, False, 0)
    assert world.cluster.workers.tolist() == [0]
    assert world.roster.columns["progress"][0] == 0.25
    assert world.roster.columns["remaining_samples"][0] == 600
    assert world.roster.columns["attained_gpu_s"][0] == pytest.approx(2.06)
    assert world.roster.columns["service_s"][0] == pytest.approx(0.75 * world.roster.columns["duration_s"][0])
    world.decisions.request()
    to(world, 1.04)
    assert job.ends.start_s == pytest.approx(14.03)
    assert world.cluster.workers.tolist() == [2]
    to(world, 5.0)
    assert job.utilisation(5.0).tolist() == [0, 0]
    to(world, 20.0)
    assert world.roster.completion_s[0] == pytest.approx(17.03)
    assert settled(job) == pytest.approx((8.0, 8.0, 0.06 + 26.0, 0.0))
    assert world.cluster.workers.tolist() == [0]


def test_a_crash_without_a_checkpoint_loses_everything() -> None:
    world, job = training(checkpoint={"interval": "never"})
    to(world, 1.03)
    world.allocator.stop(job, "fault")
    assert settled(job) == pytest.approx((0.0, 0.0, 0.0, 2.06))
    assert (job.progress.account.steps, job.progress.account.lost_samples, job.kept) == (0, 200, 0)
    assert (job.undone_gpu_s, job.computed_gpu_s) == pytest.approx((2.06, 2.06))
    assert world.roster.columns["restart_s"][0] == 3.0 + 2.0 + 0.5 + 5.0
    assert world.roster.restarts[0] == 1
    assert job.exchanges == 25


def test_a_stop_in_a_restart_gives_back_what_it_has_not_used() -> None:
    world, job = training()
    world.allocator.stop(job, "preempted")
    world.decisions.request()
    to(world, 2.0)
    assert job.ends.start_s == pytest.approx(13.001)
    world.allocator.stop(job, "preempted")
    assert job.gpu_s[RESTART] == pytest.approx(2 * 2.0)
    assert job.undone_gpu_s == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("crash_s", "steps", "busy", "restart", "lost"),
    [(0.5, 0, 0.0, 0.0, 1.0), (1.35, 13, 1.04, 0.62, 1.04), (1.5, 26, 2.08, 0.8, 0.12)],
)
def test_a_crash_leads_back_to_the_last_checkpoint_that_was_written(
    crash_s: float, steps: int, busy: float, restart: float, lost: float
) -> None:
    """Every 0.5 s, in 0.2 s: from 0.52 to 0.72 s after 13 steps, and from 1.24 to 1.44 s after 26."""
    world, job = training(checkpoint={"interval": 0.5}, restart=RESTARTS | {"checkpoint_write": 0.2})
    to(world, crash_s)
    world.allocator.stop(job, "fault")
    assert settled(job) == pytest.approx((busy, busy, restart, lost))
    assert job.progress.account.steps == steps
    assert job.kept == 8 * steps


def test_when_the_next_checkpoint_is_due() -> None:
    world, job = training(checkpoint={"interval": 0.5}, restart=RESTARTS | {"checkpoint_write": 0.2})
    assert checkpoint_due_s(job) == 0.5
    to(world, 0.9)
    job.advance.settle(job)
    assert checkpoint_due_s(job) == pytest.approx(0.72 + 0.5)


def test_the_end_of_a_run_counts_what_is_under_way_as_training() -> None:
    world, job = training()
    to(world, 1.03)
    world.close(1.03)
    assert settled(job) == pytest.approx((2.06, 2.0, 0.0, 0.0))
    assert job.undone_gpu_s == 0.0


def test_a_node_that_slows_down_does_so_from_the_next_step_on() -> None:
    world, job = training()
    to(world, 1.03)
    world.nodes.set_slow(0, 2.0)
    to(world, 9.0)
    assert world.roster.completion_s[0] == pytest.approx(1.04 + 74 * 0.08)
    assert job.progress.done


def test_a_job_that_regroups_goes_on_with_the_workers_that_are_left() -> None:
    world, job = training(nodes=TWO, on_worker_loss="regroup", workers_min=1)
    to(world, 1.03)
    world.nodes.node_down(1)
    assert (world.roster.restarts[0], world.roster.columns["gpus_held"][0], job.config.workers) == (1, 1, 1)
    assert job.ends.start_s == pytest.approx(6.03)
    to(world, 20.0)
    assert world.roster.completion_s[0] == pytest.approx(6.03 + 75 * 0.08)
    assert settled(job) == pytest.approx((8.0, 8.0, 5.0, 0.06))
    assert job.undone_gpu_s == pytest.approx(0.06)


def test_a_job_with_too_few_workers_left_is_stopped() -> None:
    world, job = training(nodes=TWO, on_worker_loss="regroup", workers_min=2)
    to(world, 1.03)
    assert job.survivors(np.array([False, True])) is None
    world.nodes.node_down(1)
    assert (job.holding, world.roster.waiting.rows.tolist()) == (None, [0])
    _, whole = training(on_worker_loss="restart", workers_min=1)
    assert whole.elastic is None
    _, part = training(on_worker_loss="regroup", workers_min=1)
    assert part.elastic is part
    alive = part.survivors(np.array([True, False]))
    assert alive is not None
    assert alive.tolist() == [False, True]


def test_several_steps_between_exchanges_and_no_more_than_are_left() -> None:
    """Periods of 7 steps, 0.28 s: 14 of them, and one of 2 steps."""
    world, job = training(sync_interval=7)
    to(world, 1.0)
    job.advance.settle(job)
    assert (job.progress.account.steps, job.exchanges) == (21, 3)
    assert job.ends.start_s == pytest.approx(0.84)
    to(world, 6.0)
    assert (world.roster.completion_s[0], job.progress.account.steps) == (pytest.approx(4.0), 100)
    assert (job.exchanges, job.steps_ever) == (15, 100)


def test_an_epoch_ends_with_what_is_left_of_it() -> None:
    """Twenty samples: two steps of eight and one of four; 2.5 epochs are 50 samples."""
    data = {"samples": 20, "sample_size": 0.0, "shards": 2}
    world, job = training(steps=None, epochs=2.5, data=data)
    to(world, 0.11)
    job.advance.settle(job)
    assert job.data is not None
    assert (job.data.epoch, job.data.left, job.progress.account.samples) == (1, 20, 20)
    assert job.ends.start_s == pytest.approx(0.1)
    to(world, 0.15)
    job.advance.settle(job)
    assert (job.data.epoch, job.data.left, job.progress.account.samples) == (1, 12, 28)
    to(world, 2.0)
    assert job.progress.account.samples == 56
    assert world.roster.completion_s[0] == pytest.approx(0.1 + 0.1 + 0.08)


def test_what_plans_ask_acts_at_once_or_so_many_steps_later() -> None:
    world, job = training()
    to(world, 1.03)
    job.advance.settle(job)
    ask(job, Pending(interval=3), 0)
    ask(job, Pending(learning_rate=0.5), 4)
    assert (job.asked.pending.interval, [at for at, _ in job.asked.held]) == (3, [29])
    ask(job, Pending(global_batch=12), 0)
    assert (job.asked.pending.interval, job.asked.pending.global_batch) == (3, 12)
    assert apply_pending(job) == []
    assert (job.progress.interval, job.progress.global_batch, job.progress.learning_rate) == (3, 12, 1.0)
    assert job.config.samples.tolist() == [6, 6]
    job.progress.account.steps = 29
    ask(
        job,
        Pending(
            far_every=5,
            accumulation=2,
            samples=np.array([5, 7]),
            push_interval=np.array([2, 3]),
            weight=np.array([0.25, 0.75]),
        ),
        0,
    )
    assert apply_pending(job) == []
    assert (job.progress.learning_rate, job.progress.far_every, job.progress.accumulation) == (0.5, 1, 2)
    assert job.config.samples.tolist() == [5, 7]
    assert job.config.push_interval.tolist() == [2, 3]
    assert job.config.gradient_weight.tolist() == [0.25, 0.75]
    idle = training()[1]
    idle.holding = None
    ask(idle, Pending(interval=3), 4)
    assert (idle.asked.pending.interval, idle.asked.held) == (3, [])


def test_a_share_that_the_gpu_has_no_room_for_is_refused() -> None:
    other = {"gpus": 1, "duration": 9.0, "gpu_share": 0.5}
    world, job = training(gpus=1, gpu_share=0.5, nodes=[{"name": "n", "gpus": 1}], jobs=(other,))
    ask(job, Pending(share=np.array([0.25])), 0)
    assert apply_pending(job) == []
    assert world.cluster.holding[0].share.tolist() == [0.25]
    ask(job, Pending(share=np.array([0.75])), 0)
    assert apply_pending(job) == [("share of job j0", "the GPU no longer has room for it")]
    assert world.cluster.holding[0].share.tolist() == [0.25]


def test_a_move_that_comes_too_late_is_refused() -> None:
    data = {"samples": 80, "sample_size": 0.0, "shards": 4}
    _, job = training(steps=None, epochs=1, data=data)
    ask(job, Pending(moves=[(99, 1)]), 0)
    assert apply_pending(job) == [("move of shard piece 99 of job j0", "it has been read meanwhile")]


def test_what_exchanges_have_carried_is_told_once() -> None:
    world, job = training(nodes=TWO, m={"parameters": 1e6, "exchange": {"alpha": 0.0, "rate": 1e12}})
    told: list[tuple[int, float]] = []
    job.listeners.carried = (lambda row, links, amounts: told.append((row, float(amounts.sum()))),)
    to(world, 1.0)
    job.advance.settle(job)
    volume, count = job.config.exchange.volume_bytes, job.exchanges
    assert (job.traffic, count > 20) == ((count, 0), True)
    job.report_traffic()
    job.report_traffic()
    assert job.exchanged_bytes == pytest.approx(count * volume)
    assert told == [(0, pytest.approx(count * volume * job.config.exchange.usage.sum()))]
    job.progress.account.exchanges += 3
    job.progress.account.near_exchanges += 2
    amount, links, each = job.on_links((count, 1))
    near = job.config.near
    assert amount == pytest.approx(volume + near.volume_bytes)
    assert (len(links), len(each)) == (len(job.config.exchange.links) + len(near.links),) * 2


def test_the_noise_scale_of_a_job_without_one_is_not_known() -> None:
    world, job = training(m={"noise_scale": 50.0})
    job.fill_row(world.roster.cells, 1.0)
    columns = world.roster.columns
    assert (columns["noise_scale"][0], columns["compute_demand_flops"][0]) == (50.0, 0.0)
    assert (columns["global_batch"][0], columns["sync_interval"][0], columns["learning_rate"][0]) == (8, 1, 1)
    assert columns["input_bytes"][0] == 0.0
    world, job = training(data={"samples": 80, "sample_size": 5.0, "shards": 4})
    job.fill_row(world.roster.cells, 1.0)
    assert math.isnan(world.roster.columns["noise_scale"][0])
    assert world.roster.columns["input_bytes"][0] == 4000.0
