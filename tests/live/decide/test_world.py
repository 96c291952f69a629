"""The live side of the seam: tables from telemetry, changes from plans, hard bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from equipoise.live.decide.window import Telemetry, measure
from equipoise.live.decide.world import UNBOUNDED, LiveWorld
from equipoise.live.group.places import RankPlace, places_from
from equipoise.live.options import Bounds, Options
from equipoise.live.train.epoch_split import EpochSplit
from equipoise.live.train.rounds import SAMPLES, UPDATE
from equipoise.policies.contract import Plan, check, refine
from equipoise.policies.registry import make_policy

NAN = math.nan


def rows_of(*ranks: Sequence[tuple[float, float, float, float, float]]) -> Any:
    return np.array([[[*row, NAN, NAN] for row in rank] for rank in ranks])


# -- the window ----------------------------------------------------------------------------------------------


def naive_measure(rows: list[list[list[float]]], exchanged: list[bool]) -> dict[str, Any]:
    """The plain twin of `live.decide.window.measure`."""
    good = [k for k in range(len(exchanged)) if all(math.isfinite(v) for rank in rows for v in rank[k][:5])]
    shortest = {k: min(rank[k][3] for rank in rows) for k in good}
    found: dict[str, Any] = {"step_s": [], "wait_s": [], "response": []}
    for rank in rows:
        busy = [rank[k][1] + rank[k][2] + rank[k][4] for k in good]
        samples = sum(rank[k][0] for k in good)
        found["step_s"].append(sum(busy) / len(busy) if samples else NAN)
        found["wait_s"].append(sum(rank[k][3] - shortest[k] for k in good) / len(good))
        found["response"].append(sum(busy) / samples if samples else NAN)
    ends = [shortest[k] for k in good if exchanged[k]]
    found["exchange_s"] = sum(ends) / len(ends) if ends else NAN
    found["span_s"] = max(sum(sum(rank[k][1:5]) for k in good) for rank in rows)
    return found


times = st.floats(0, 10) | st.just(NAN)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_window_equals_its_plain_twin(data: st.DataObject) -> None:
    ranks, rounds = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    row = st.tuples(st.integers(0, 20), st.floats(0, 10), st.floats(0, 10), times, st.floats(0, 10))
    rows = rows_of(*[[data.draw(row) for _ in range(rounds)] for _ in range(ranks)])
    exchanged = [data.draw(st.booleans()) for _ in range(rounds)]
    window = measure(rows, exchanged)
    if not np.isfinite(rows[:, :, SAMPLES : UPDATE + 1]).all(axis=(0, 2)).any():
        assert window.rounds == 0
        assert np.isnan(window.step_s).all()
        return
    naive = naive_measure(rows.tolist(), exchanged)
    np.testing.assert_allclose(window.step_s, naive["step_s"])
    np.testing.assert_allclose(window.wait_s, naive["wait_s"], atol=1e-12)
    np.testing.assert_allclose(window.response_s_per_sample, naive["response"])
    np.testing.assert_allclose([window.exchange_s, window.span_s], [naive["exchange_s"], naive["span_s"]])


# -- observing -----------------------------------------------------------------------------------------------


def places(*members: int, hosts: str = "aaaa", devices: Sequence[str] = ()) -> list[RankPlace]:
    raw = [
        {**vars(RankPlace(m, hosts[k], devices[k] if devices else f"d{m}")), "memory_bytes": None, "share": None}
        for k, m in enumerate(members)
    ]
    return places_from(raw)


def world(active: Sequence[RankPlace], **options: Any) -> LiveWorld:
    made = LiveWorld(Options(global_batch=12, drift=0.01, **options), active)
    ranks = len(active)
    made.shares = np.full(ranks, 12 // ranks)
    made.deal = EpochSplit.whole(np.arange(96), 8, None, ranks)
    rows = rows_of(*[[(12 // ranks, 0.01, 0.1 * (k + 1), 0.02, 0.001)] * 5 for k in range(ranks)])
    made.telemetry = Telemetry(
        measure(rows, [True] * 5), np.arange(1.0, ranks + 1), *(np.full(ranks, NAN),) * 2, 50.0, 7
    )
    return made


def test_the_job_row_says_what_is_measured() -> None:
    seen = world(places(0, 1), samples_target=1000).observe()
    assert seen.jobs.work_s[0] == pytest.approx((0.111 + 0.211) / 2)
    assert seen.jobs.exchange_s[0] == pytest.approx(0.02)
    assert seen.jobs.noise_scale[0] == 50.0
    assert seen.jobs.throughput_samples_per_s[0] == pytest.approx(12 / 0.231)
    assert seen.jobs.goodput_samples_per_s[0] == seen.jobs.throughput_samples_per_s[0]
    assert seen.jobs.remaining_samples[0] == 1000
    assert (seen.running.tolist(), seen.waiting.tolist()) == ([0], [])
    assert (seen.workers.samples_max == UNBOUNDED).all()
    assert seen.workers.samples_owned.tolist() == [48.0, 48.0]


def test_ranks_on_one_device_share_it() -> None:
    seen = world(places(0, 1, 2, hosts="aab", devices=["x", "x", "y"])).observe()
    assert seen.workers.gpu_share.tolist() == [0.5, 0.5, 1.0]
    assert seen.gpus.job.tolist() == [-2, 0]
    assert seen.gpus.share_free.tolist() == [0.0, 0.0]
    assert seen.nodes.gpus.tolist() == [1, 1]
    assert seen.nodes.first_gpu.tolist() == [0, 1]


@pytest.mark.parametrize("policy", ["s1+s2+s3", "s1(mode=optimal)+s2(mode=optimal)+s3(mode=optimal)", "none"])
@pytest.mark.parametrize("blank", [True, False])
def test_policies_decide_on_what_a_live_job_shows(policy: str, blank: bool) -> None:
    made = world(places(3, 0, 2, 1))
    if blank:
        made.forget()
    decision = refine(make_policy(policy), made.observe(), {})
    assert check(decision.plan, decision.observation) is None
    made.apply(decision.plan)
    if policy != "none" and not blank:
        assert made.change.shares is not None
        assert sum(made.change.shares) == 12
        assert made.change.shares[0] == max(made.change.shares)  # rank 0 is the fastest
        assert made.change.round == 7


# -- applying ------------------------------------------------------------------------------------------------


FULL = Plan(
    samples_per_step=np.array([5, 7]),
    sync_interval=np.array([8]),
    gpu_share=np.array([0.5, 0.5]),
    fetch_order=np.array([0]),
)


def applied(made: LiveWorld, plan: Plan) -> tuple[Any, list[str]]:
    seen = made.observe()
    assert check(plan, seen) is None
    refused = made.apply(plan)
    return made.change, [f"{r.what}: {r.why}" for r in refused]


@pytest.mark.parametrize("mode", ["advise", "observe"])
def test_only_act_acts(mode: Any) -> None:
    change, refused = applied(world(places(0, 1), mode=mode), FULL)
    assert change.is_empty()
    assert len(refused) == 4
    assert all("advice only" in line for line in refused)


def test_levers_that_are_not_allowed_are_advice() -> None:
    change, refused = applied(world(places(0, 1), allow=frozenset(["samples"])), FULL)
    assert change.shares == (5, 7)
    assert (change.interval, change.gpu_share, change.order) == (None, None, None)
    assert [line.split(":")[0] for line in refused] == ["order", "interval", "share"]


def test_hard_bounds_hold_whatever_the_policy_says() -> None:
    bounds = Bounds(samples_min=6, interval_max=4, share_min=0.6)
    change, refused = applied(world(places(0, 1), bounds=bounds), FULL)
    assert [line.split(":")[0] for line in refused] == ["interval", "share"]
    assert (change.shares, change.interval, change.gpu_share) == ((6, 6), None, None)


def test_another_global_batch_is_dealt_in_the_proportions_of_the_shares() -> None:
    bigger = Plan(global_batch=np.array([24]))
    change, refused = applied(world(places(0, 1), batch_max=48), bigger)
    assert (change.global_batch, change.shares, refused) == (24, (12, 12), [])
    with_shares = bigger.with_(samples_per_step=np.array([3, 9]))
    change, refused = applied(world(places(0, 1), batch_max=48), with_shares)
    assert (change.global_batch, change.shares, refused) == (24, (6, 18), [])
    change, refused = applied(world(places(0, 1), batch_max=48, bounds=Bounds(samples_max=11)), bigger)
    assert change.is_empty()
    assert refused == ["batch: 24 gives a rank more samples than allowed"]
    assert check(bigger, world(places(0, 1)).observe()) is not None  # without batch_max it is fixed
    weighted = Plan(gradient_weight=np.array([0.0, 1.0]))
    assert applied(world(places(0, 1)), weighted)[1] == [
        "gradient_weight: a live job cannot leave out a rank's gradient"
    ]
    change, refused = applied(world(places(0, 1)), weighted.with_(samples_per_step=np.array([1, 11])))
    assert change.is_empty()  # a share of next to nothing would cost speed, and leave nothing out
    assert refused[1:] == ["samples: split so as to leave out a rank's gradient"]
    suspect = Plan(suspect=np.array([False, True]))
    assert applied(world(places(0, 1)), suspect)[1] == ["suspect: a live job cannot replace a GPU; check that of row 1"]


# -- two levels ----------------------------------------------------------------------------------------------


def test_levels_are_observed_and_planned_within_the_bound() -> None:
    world = LiveWorld(
        Options(global_batch=8, bounds=Bounds(interval_max=12)), [RankPlace(k, f"h{k // 2}", "cpu") for k in range(4)]
    )
    world.shares = np.full(4, 2)
    assert check(Plan(far_every=np.array([3])), world.observe())  # not where it is not known what is near
    world.near, world.far_ratio, world.near_exchange_s = np.array([0, 0, 1, 1]), 1 / 3, 0.01
    seen = world.observe()
    assert (seen.jobs.near_exchange_s[0], seen.jobs.far_every[0]) == (0.01, 1)
    plan = Plan(sync_interval=np.array([4]), far_every=np.array([3]))
    assert not check(plan, seen)
    assert not world.apply(plan)
    assert (world.change.interval, world.change.far_every) == (4, 3)
    (refusal,) = world.apply(plan.with_(far_every=np.array([4])))
    assert "16 steps per exchange of all ranks are above the bound of 12" in refusal.why
    assert world.change.far_every is None


def test_pollux_is_shown_what_its_batch_is_worth_where_it_may_choose_one() -> None:
    window = measure(rows_of([(6, 0.0, 2.0, 0.5, 0.1)], [(6, 0.0, 1.0, 1.5, 0.1)]), [True])
    nothing = np.full(2, NAN)
    pollux = make_policy("pollux")

    def decided(**options: Any) -> tuple[Any, Plan]:
        made = world(places(0, 1), **options)
        made.telemetry = Telemetry(window, nothing, nothing, nothing, noise_scale=500.0)
        seen = made.observe()
        return seen.speeds, refine(pollux, seen, pollux.initial()).plan

    speeds, plan = decided(batch_max=48)
    assert (speeds.gpus.tolist(), speeds.exchange_s.tolist()) == ([2], [0.5])
    assert speeds.samples_per_s[0] == pytest.approx(12 / 2.1)  # of the slowest rank, without its exchange
    assert plan.global_batch is not None
    # m (phi + M0) / (phi + m) / (s m + e) is greatest at the root of phi e / s.
    assert plan.global_batch[0] == pytest.approx(math.sqrt(500.0 * 0.5 / (2.1 / 12)), abs=1.0)
    speeds, plan = decided()
    assert len(speeds) == 0
    assert plan.global_batch is None
