"""How far a job is, what was measured of it, and when its periods end: by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.sim.job.account import BUSY, USEFUL
from equipoise.sim.job.gradients import mean_norm, norm_noise
from equipoise.sim.job.measurements import Measurements
from equipoise.sim.job.period import Ends, Period, PeriodOutcome
from equipoise.sim.job.progress import Progress, target_of
from equipoise.sim.scenario.model import JobSpec, Model


def job(**keys: Any) -> JobSpec:
    given = {"gpus": 2, "model": "m", "global_batch": 32}
    return JobSpec.model_validate(given | ({} if {"samples", "epochs"} & keys.keys() else {"steps": 10}) | keys)


def progress(model: dict[str, Any] | None = None, **keys: Any) -> Progress:
    return Progress(job(**keys), Model.model_validate({"sample_time": 1.0} | (model or {})), asynchronous=False)


def period(steps: int = 3, *, far: bool = True) -> Period:
    """Two workers: 16 samples each a step, 8 in the last."""
    each, last, none = np.array([16, 16]), np.array([8, 8]), np.zeros(2)
    return Period(0, 0.0, steps, 0, each, last, none, none, none, none, far)


def outcome(duration_s: float = 1.0, end_s: float | None = None, **keys: Any) -> PeriodOutcome:
    parts = {name: np.array([1.0, 2.0]) * k for k, name in enumerate(("busy_s", "busy_square", "stall_s"), 1)}
    return PeriodOutcome(duration_s, 0.5, np.zeros(2), **parts, exchange_s=4.0, end_s=end_s, **keys)


def test_targets_in_steps_samples_and_epochs() -> None:
    data = {"samples": 50, "sample_size": 1.0}
    assert [target_of(job(**k)) for k in ({}, {"samples": 99}, {"epochs": 2.5, "data": data})] == [320, 99, 125]


def test_efficiency_and_steps_to_the_target() -> None:
    """With a noise scale of 100 a batch of 64 is worth 132/164 of its samples; the scale doubles over the run."""
    own = progress({"noise_scale": 100.0, "noise_scale_growth": 1.0})
    assert (own.noise_scale, own.ratio) == (100.0, 0.0)
    assert own.efficiency(64) == pytest.approx(132 / 164)
    own.account.useful_samples = 160.0
    assert (own.noise_scale, own.ratio) == (150.0, 0.5)
    own.account.useful_samples = 999.0
    assert own.ratio == 1.0
    own.account.useful_samples, own.learning_rate = 0.0, 0.5  # half of the best rate is worth 0.5 * 1.5
    assert own.efficiency(64) == pytest.approx(132 / 164 * 0.75)
    plain = progress()
    assert (plain.noise_scale, plain.accumulation, plain.far_ratio) == (-1.0, 1, 1.0)
    for useful, left in ((0.0, 10), (287.0, 2), (288.0, 1), (320.0, 1), (400.0, 1)):
        plain.account.useful_samples = useful
        assert plain.steps_to_target() == left
    apart = progress({"drift": 0.5}, sync_interval=3)
    assert apart.efficiency(32) == pytest.approx(1 / (1 + 0.5 * 2))
    waiting_for_none = Progress(
        job(sync_interval=3), Model.model_validate({"sample_time": 1.0, "drift": 0.5}), asynchronous=True
    )
    assert waiting_for_none.efficiency(32) == 1.0


def test_exchanges_of_all_come_in_their_turn_and_last() -> None:
    own = progress()
    own.interval, own.far_every, own.far_ratio = 2, 4, 0.5
    assert own.mean_interval == 5.0
    nexts = []
    for own.turn in (0, 2, 3):
        nexts.append(own.far_next)
    assert nexts == [False, False, True]
    own.turn, own.account.useful_samples = 0, 320.0 - 3 * 32
    assert not own.far_next
    own.account.useful_samples = 320.0 - 2 * 32
    assert own.far_next
    own.turn = 2
    own.place(0.5)
    assert (own.interval, own.far_every, own.far_ratio, own.turn) == (2, 4, 0.5, 0)
    own.place(0.75)  # further apart than before: one level, with as much drift
    assert (own.interval, own.far_every, own.far_ratio) == (5, 1, 0.75)
    own.place(1.0)
    assert (own.interval, own.far_every, own.far_ratio) == (5, 1, 1.0)
    pairs = progress()
    pairs.interval, pairs.far_every, pairs.far_ratio = 2, 2, 0.5
    pairs.place(1.0)
    assert (pairs.interval, pairs.far_every) == (3, 1)


def test_a_period_is_credited_by_what_is_left_of_it() -> None:
    """Two steps of 32 and one of 16, of which half is kept, stale by 2 at 1/4 each, and half sound."""
    own = progress({"staleness": 0.25, "noise_scale": 32.0})
    useful = own.credit(period(far=False), 40.0, outcome(kept=0.5, staleness=2.0), 0.5)
    assert useful == pytest.approx(80 * 0.5 / 1.5 * 0.5)
    account = own.account
    assert (account.samples, account.steps, account.exchanges, account.near_exchanges) == (80, 3, 1, 1)
    assert account.gpu_s[[BUSY, USEFUL]] == pytest.approx([40.0, 40.0 * useful / 80])
    assert (own.turn, own.steps_since_decision, own.done) == (1, 3, False)
    assert own.credit(period(1), 10.0, outcome(), 1.0) == pytest.approx(16.0)  # no more than at the reference
    assert (own.turn, account.near_exchanges, account.steps) == (0, 1, 4)
    assert own.credit(period(2), 10.0, outcome(), 1.0) == pytest.approx(32 + 16.0)
    account.useful_samples = 320.0 * (1 - 2e-9) - 16.0
    own.credit(period(1), 10.0, outcome(), 1.0)
    assert not own.done
    account.useful_samples = 320.0 - 16.0
    own.credit(period(1), 10.0, outcome(), 1.0)
    assert own.done


def test_what_a_window_measures() -> None:
    """Three periods, one of near workers: exchanges of 4 s, and means only of what there was."""
    found = Measurements()
    found.place(2, 0.0, 5.0)
    window = found.window
    assert window.since_s == 5.0
    assert window.exchanges_s((7.0, 8.0)) == (7.0, 8.0)
    assert np.isnan(window.each_push_s(np.zeros(2))).all()
    wait_s, samples = np.array([0.25, 0.0]), np.array([5, 6])
    for k in range(3):
        pushed = {"steps": np.array([2, 0]), "pushes": np.array([2, 0]), "exposed_s": np.array([3.0, 0.0])} if k else {}
        window.add(period(far=k != 1), outcome(**pushed), samples, wait_s, 10.0)
    assert (window.steps, window.periods, window.near_periods, window.useful_samples) == (9, 3, 1, 30.0)
    assert (window.exchange_s, window.near_exchange_s) == (12.0, 4.0)
    assert window.exchanges_s((7.0, 8.0)) == (4.0, 4.0)
    assert window.busy_s.tolist() == [3, 6]
    assert window.busy_square.tolist() == [6, 12]
    assert window.stall_s.tolist() == [9, 18]
    assert window.wait_s.tolist() == [0.75, 0]
    assert window.samples.tolist() == [15, 18]
    assert window.own_steps is not None
    assert window.own_steps.tolist() == [4, 0]
    assert window.each_push_s(np.array([9.0, 9.0])).tolist() == [1.5, 9]
    assert window.each_push_s(np.zeros(3))[0] == 1.5
    assert math.isnan(window.each_push_s(np.zeros(3))[1])
    assert found.fresh_busy_s().tolist() == [3, 6]
    assert found.take_busy_s().tolist() == [3, 6]
    assert found.take_busy_s().tolist() == [0, 0]
    assert found.busy_total_s.tolist() == [3, 6]
    assert found.utilisation(5.0, 5.0).tolist() == [0, 0]  # it is starting
    assert found.utilisation(12.0, 11.0).tolist() == [0.5, 1.0]  # whole periods: 6 s
    assert found.utilisation(12.0, 11.0).tolist() == [0.5, 1.0]
    window.busy_s += 1.0
    found.take_busy_s()
    assert found.utilisation(13.0, 20.0).tolist() == [0.5, 0.5]  # 1 s of the 2 s since
    found.fit_columns()
    assert [len(column) for column in found.columns.values()] == [2] * 10


def test_equal_periods_are_multiplied_and_a_wait_begins_anew() -> None:
    ends = Ends()
    ends.resume_at(10.0)
    for duration_s, end_s in ((2.0, 12.0), (2.0, 14.0), (3.0, 17.0), (3.0, 20.0), (2.0, 22.0)):
        assert ends.of(outcome(duration_s)) == end_s
        ends.advance(outcome(duration_s))
        assert ends.start_s == end_s
    assert (ends.anchor_s, ends.base_s, ends.count) == (10.0, 10.0, 1)
    ends.advance(outcome(5.0, 30.0))
    assert (ends.anchor_s, ends.start_s, ends.base_s, ends.count) == (30.0, 30.0, 0.0, 0)
    assert ends.of(outcome(0.0)) == 30.0


def test_norms_of_gradients_fall_with_progress_and_vary_with_noise() -> None:
    """With as much noise as signal the squared norm varies by half of sqrt(2 / 100), the norm by half of that."""
    assert mean_norm(1.0, np.array([0.0, 3.0])) == pytest.approx([1 / math.e, 2 / math.e])
    ratio = np.array([1.0, 0.0, math.inf])
    with np.errstate(invalid="ignore"):
        one, four = (np.array([norm_noise(7, k, ratio, steps) for k in range(3000)]) for steps in (1, 4))
    spread = math.sqrt(2 / 100) / 2
    assert one.mean(axis=0) == pytest.approx([1, 1, 1], abs=0.005)
    assert one.std(axis=0) == pytest.approx([0.5 * spread, 0, spread], rel=0.04)
    assert four.std(axis=0) == pytest.approx([0.25 * spread, 0, 0.5 * spread], rel=0.04)
    assert norm_noise(7, 3, ratio[:1], 0).tolist() == norm_noise(7, 3, ratio[:1], 1).tolist()
