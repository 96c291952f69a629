"""S1: what it remembers of loads, norms and variances, several jobs at once, and the borders of what it decides."""

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED
from equipoise.policies.observation import Paths, Workers
from equipoise.policies.registry import PolicyError, make_stage
from equipoise.policies.stages.groups import WorkersByJob, group_workers, links_of
from equipoise.policies.stages.s1 import (
    _STATE,
    DataFlow,
    _carry_out,
    _imbalance_values,
    _least_time_flow,
    _less_sure,
    _norm_deviation,
    _remember_variance,
    _why_not,
)
from tests.policies import observations
from tests.policies.observations import change, together, with_dead_nodes
from tests.policies.stages.test_s1 import BOTH, one_job, refine

PAIR_AND_THREE = WorkersByJob(np.arange(2), np.array([0, 2, 5]), np.array([2, 3]), np.ones(2, dtype=bool))
NAN = np.nan


def as_read(text):
    """The same letters, as they come from a file or a command line."""
    return "".join(list(text))


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 0.0}, {"sigmas": 0.0}, {"sick_windows": 0}, {"suspect_s": 0.0}, {"smoothing": 0.0},
        {"smoothing": 1.5}, {"trend_smoothing": -0.5}, {"trend_smoothing": 1.5}, {"mode": "best"},
        {"threshold": -0.5}, {"frozen": "S211"},
    ],
)  # fmt: skip
def test_parameters_out_of_their_bounds_are_refused(wrong):
    with pytest.raises(PolicyError, match=r"^s1"):
        make_stage("s1", wrong)


def test_parameters_may_be_at_their_bounds_and_are_as_documented_else():
    for bounds in (
        {"smoothing": 1.0, "trend_smoothing": 0.0, "sick_windows": 1},
        {"trend_smoothing": 1.0, "threshold": 0.5},
    ):
        assert make_stage("s1", bounds) == DataFlow(**bounds)
    assert DataFlow() == DataFlow(
        mode="formula",
        threshold=0.1,
        smoothing=0.5,
        trend_smoothing=0.2,
        sigmas=5.0,
        sick_windows=3,
        suspect_s=3600.0,
    )


# -- S111 --------------------------------------------------------------------------------------------------


def test_loads_are_smoothed_and_what_is_not_known_counts_as_none():
    load = np.array([NAN, 0.4, 0.2, 0.8, NAN])
    factor = DataFlow(smoothing=0.25)._smooth_load(np.array([0.3, 0.6, NAN, 0.0, NAN]), load)
    assert load == pytest.approx([0.3, 0.45, 0.2, 0.6, NAN], nan_ok=True)
    assert factor == pytest.approx([1.3, 1.45, 1.2, 1.6, 1.0])
    assert DataFlow()._smooth_load(np.full(5, NAN), load) == pytest.approx([1.3, 1.45, 1.2, 1.6, 1.0])


def test_a_variance_is_the_mean_of_the_first_errors_and_then_forgets_a_fifth_a_window():
    state = {"rate_variance": np.full(6, 0.5), "rate_windows": np.array([0, 1, 2, 10, 4, 3])}
    _remember_variance(state, "rate", np.array([0.3, 0.4, 0.1, 0.4, NAN, np.inf]))
    assert state["rate_variance"] == pytest.approx([0.09, 0.16, 0.255, 0.432, 0.5, 0.5])


def test_a_norm_must_be_further_off_the_fewer_were_measured():
    """Wallace's t for 2 sigma: of 3, 9 and 1 degrees of freedom in a pair, of 9 * 1.5 at most in a three."""
    pair_and_three = _less_sure(PAIR_AND_THREE, np.array([3, 20, 0, 4, 9]), 2.0)
    freedom = np.array([3.0, 9.0, 1.0, 6.0, 13.5])
    by_hand = [1.673925, 1.160543, 9.906936, 1.260331, 1.101822]
    assert pair_and_three == pytest.approx(by_hand, rel=1e-5), freedom
    assert _less_sure(PAIR_AND_THREE, np.zeros(5, dtype=int), 10.0) == pytest.approx(7.2004899e09)


def test_a_norm_is_off_from_its_forecast_not_from_the_last():
    """Levels and trends are of the logarithm; a norm that is no number says nothing."""
    state = {
        "norm_level": np.array([0.5, 0.5, 2.0, 1.0, 1.0]), "norm_trend": np.array([0.25, 0.0, 0.5, 0.0, 1.0]),
        "norm_windows": np.array([4, 5, 6, 0, 9]), "norm_variance": np.array([0.01, 0.0, 0.09, 0.0, 0.0]),
    }  # fmt: skip
    norm = np.array([1.0, 4.5, 2.5, 1.75, 5.0])
    deviation, sigma, warm = _norm_deviation(PAIR_AND_THREE, state, norm)
    assert deviation == pytest.approx([0.25, 4.0, -0.75, 0.0, 2.25])
    assert sigma == pytest.approx([0.1, 0.1, 0.3, 0.05, 0.05])
    assert warm.tolist() == [False, True, True, False, True]
    deviation, _, _ = _norm_deviation(PAIR_AND_THREE, state, np.array([1e9, -1e9, NAN, 1.75, 5.0]))
    assert np.isnan(deviation).tolist() == [True, True, True, False, False]


def watched(stage, seen, **remembered):
    """What S111 remembers after a window, from given columns; others as of workers seen for the first time."""
    workers, n = seen.workers, len(seen.workers)
    memory = {name: np.full(n, default) for name, default in _STATE.items()}
    memory |= {"id": workers.id, "gpu": workers.gpu, **{k: np.array(v) for k, v in remembered.items()}}
    return stage._watch_gradients(seen, group_workers(seen), memory)


def test_an_outlier_moves_the_usual_norm_by_no_more_than_its_border():
    """sigma is 0.05, so that the border is 0.2; before five windows are known there is none."""
    seen = observations.one_job([2.0] * 4, norm=np.exp([0.0, 2.0, 0.0, 0.0]), job={"noise_scale": NAN})
    level = {"samples": [24] * 4, "norm_level": [0.0] * 4}
    _, healthy, state = watched(
        DataFlow(sigmas=4.0, trend_smoothing=0.5), seen, **level, norm_windows=[5] * 4
    )
    assert healthy.tolist() == [True, False, True, True]
    assert state["norm_level"] == pytest.approx([0.0, 0.1, 0.0, 0.0])
    assert state["norm_trend"] == pytest.approx([0.0, 0.05, 0.0, 0.0])
    assert state["norm_variance"] == pytest.approx([0.0, 0.2 * 0.04, 0.0, 0.0])
    assert state["norm_windows"].tolist() == [6] * 4
    assert state["sick_windows"].tolist() == [0, 1, 0, 0]
    _, healthy, state = watched(DataFlow(sigmas=4.0), seen, **level, norm_windows=[4] * 4)
    assert healthy.all()
    assert state["norm_level"] == pytest.approx([0.0, 1.0, 0.0, 0.0])
    assert state["norm_variance"] == pytest.approx([0.0, 1.0, 0.0, 0.0])


def test_a_new_deal_changes_rates_and_levels_by_what_each_gradient_means():
    """Half the samples: twice the gradients. Levels of norms stay where their noise scale is known."""
    seen = together(
        observations.one_job([2.0] * 3, samples=[12, 24, 0], batch=36, job={"noise_scale": 66.0}),
        observations.one_job([2.0] * 2, samples=[12, 24], batch=36, job={"noise_scale": NAN}),
    )
    forecast, _, state = watched(
        DataFlow(), seen, samples=[24, 0, 20, 24, 24], rate_level=[0.0625, NAN, 0.25, 0.0625, 0.0625],
        rate_trend=[0.03125, 0.0, 0.0, 0.0, 0.0], rate_windows=[3, 0, 4, 3, 3], norm_windows=[7, 0, 7, 7, 7],
        norm_level=[0.0] * 5,
    )  # fmt: skip
    assert state["samples"].tolist() == [12, 24, 20, 12, 24]
    # Twice (0.0625 + 0.03125) was to be expected, 2 / 12 came; the error is 1 / 9 of that, in three windows before.
    assert state["rate_level"][0] == pytest.approx(0.1875 - 0.5 * (0.1875 - 1 / 6))
    assert state["rate_trend"][0] == pytest.approx(0.0625 - 0.1 * (0.1875 - 1 / 6))
    assert state["rate_variance"] == pytest.approx([1 / 81 / 3, 0, 0, (1 / 3) ** 2 / 3, (1 / 3) ** 2 / 3])
    assert forecast[1:3] == pytest.approx([1 / 12, 0.25])
    assert state["rate_windows"].tolist() == [4, 1, 4, 4, 4]
    assert state["norm_windows"].tolist() == [8, 1, 7, 1, 8]
    assert state["norm_level"][1] == pytest.approx(-0.5 * np.log1p(66 / 24))


def test_a_rate_of_nothing_says_nothing():
    seen = change(observations.one_job([2.0] * 3, batch=36), "workers", gradient_rate_per_s=[0.0, 0.125, NAN])
    known = {"samples": [12] * 3, "rate_level": [0.25] * 3, "rate_windows": [4] * 3}
    forecast, _, state = watched(DataFlow(trend_smoothing=0.0), seen, **known)
    assert forecast.tolist() == [0.25, 0.1875, 0.25]
    assert state["rate_windows"].tolist() == [4, 5, 4]


def test_sick_windows_count_where_norms_were_measured_and_a_verdict_lasts_until_then():
    unsound = {"gradient_norm": [1.0, NAN, 1.0, NAN, NAN]}
    seen = together(observations.one_job([2.0] * 3), observations.one_job([2.0] * 2))
    _, healthy, state = watched(DataFlow(), change(seen, "workers", **unsound), sick_windows=[0, 2, 4, 0, 3])
    assert healthy.tolist() == [True, False, True, True, False]
    assert state["sick_windows"].tolist() == [0, 3, 4, 0, 3]


def test_values_tell_of_all_jobs():
    """Two unsound workers; rates 2 / 24 and 3 / 32; a rate fell by a fifth of what was expected."""
    seen = together(observations.one_job([2.0] * 4), observations.one_job([3.0] * 3))
    seen = change(seen, "workers", gradient_norm=[1.0, NAN, 1.0, 1.0, np.inf, 1.0, 1.0])
    stage = DataFlow(sick_windows=2)
    plan, memory, values = refine(stage, seen)
    assert (values["s111_unhealthy"], values["s111_suspect"]) == (2, 0)
    assert values["s111_forecast_gradients_per_s"] == pytest.approx(4 / 12 + 9 / 32)
    assert plan.gradient_weight.tolist() == [1, 0, 1, 1, 0, 1, 1]
    slower = change(
        seen, "workers", gradient_rate_per_s=seen.workers.gradient_rate_per_s * [1, 1, 0.8, 1, 1, 0.9, 1]
    )
    plan, memory, values = refine(stage, slower, memory)
    assert values["s111_rate_cov"] == pytest.approx(0.2)
    assert (values["s111_unhealthy"], values["s111_suspect"]) == (2, 2)
    assert memory["sick_windows"].tolist() == [0, 2, 0, 0, 2, 0, 0]
    well = change(seen, "workers", gradient_norm=[1.0] * 7)
    assert refine(stage, well, memory)[1]["sick_windows"].tolist() == [0] * 7


def test_without_training_jobs_suspicions_are_remembered_and_end():
    seen = observations.one_job([2.0] * 3)
    bad = change(seen, "workers", gradient_norm=[1.0, NAN, 1.0])
    stage = DataFlow(sick_windows=1, suspect_s=50.0)
    _, memory, _ = refine(stage, bad)
    assert (memory["suspect_gpu"].tolist(), memory["suspect_until_s"].tolist()) == ([1], [150.0])
    gone = change(seen, "gpus", suspect=[False, True, False])
    gone.workers, gone.time_s = Workers(), 120.0
    plan, memory = stage.refine(gone, UNCHANGED, memory)
    assert plan.reasons[-1].text == "no training job runs"
    assert memory["suspect_gpu"].tolist() == [1]
    gone.time_s = 150.0
    plan, memory = stage.refine(gone, UNCHANGED, memory)
    assert plan.suspect.tolist() == [False, False, False]


def test_s111_frozen_takes_the_last_rate_and_every_gradient_as_sound():
    seen = observations.one_job([2.0] * 4)
    bad = change(
        seen, "workers", gradient_norm=[1.0, NAN, 1.0, 1.0], gradient_rate_per_s=[0.25, 0.5, 0.125, NAN]
    )
    stage = DataFlow(frozen=as_read("S111"))
    _, memory, _ = refine(stage, seen)
    plan, _, values = refine(stage, bad, memory)
    assert (plan.gradient_weight, values["s111_unhealthy"]) == (None, 0)
    assert values["s111_forecast_gradients_per_s"] == pytest.approx(0.875 + 1 / 12), (
        "of the last the forecast"
    )


# -- S112 --------------------------------------------------------------------------------------------------


def short_of(owned, *, loads=(0.0, 0.0, 0.0), dealt=(48, 32, 16), stage=None, **columns):
    """(imbalance, samples that are lacking) of three workers of speeds 3, 2 and 1; samples have 10 kB."""
    stage = stage or DataFlow()
    seen = observations.one_job([3.0, 2.0, 1.0], samples=list(dealt), shards_each=4)
    seen = change(seen, "workers", samples_owned=owned, load_ratio=loads, **columns)
    values = refine(stage, seen)[2]
    return values["s112_imbalance"], values.get("s112_demand_bytes", NAN) / 1e4


@pytest.mark.parametrize(
    ("changes", "index", "lacking"),
    [
        ({}, 200 / (350 / 3) - 1, 100.0),  # 300, 200 and 100 would be fair: tau is as 100, 50, 200
        ({"loads": [0.0, 1.0, 0.0]}, 200 / (400 / 3) - 1, 20.0),  # of 3, 1, 1 would be 360, 120, 120
        ({"loads": [0.0, 9.0, 0.0]}, 500 / (800 / 3) - 1, 0.0),  # of 3, 0.2, 1 it has too much
        ({"dealt": [32, 32, 32]}, 200 / (350 / 3) - 1, 100.0),  # what it is short of, and reads
        ({"dealt": [40, 24, 32]}, 200 / (350 / 3) - 1, 50.0),  # it reads a quarter of 600 only
        ({"dealt": [56, 16, 24]}, 200 / (350 / 3) - 1, 0.0),  # it reads a sixth, which it has
        ({"input_samples_per_s": [3.0, 1.0, 1.0]}, 200 / (400 / 3) - 1, 20.0),
        ({"stage": DataFlow(frozen=as_read("S112"))}, 300 / 200 - 1, 100.0),
    ],
)  # fmt: skip
def test_s112_a_worker_lacks_what_capacity_load_and_deal_all_call_for(changes, index, lacking):
    assert short_of([300.0, 100.0, 200.0], **changes) == pytest.approx((index, lacking))


def test_s112_the_worst_job_is_told_of_and_the_deficits_of_all():
    seen = together(
        one_job([2.0] * 2, shards_each=3),
        one_job([2.0] * 3, shards_each=2, shard_samples=50, shard_bytes=3e6),
    )
    groups, index = group_workers(seen), np.array([0.25, 0.5])
    surplus = np.array([-5.0, 5.0, -3.0, 2.0, 1.0])
    values = _imbalance_values(seen, groups, index, surplus)
    assert values == {
        "s112_imbalance": 0.5,
        "s112_job": 1,
        "s112_demand_bytes": pytest.approx(8 * 24e6 / 900),
    }
    assert _imbalance_values(seen, groups, np.array([0.25, NAN]), surplus)["s112_job"] == 0
    unknown = _imbalance_values(seen, groups, np.array([NAN, NAN]), surplus)
    assert list(unknown) == ["s112_imbalance"]
    assert np.isnan(unknown["s112_imbalance"])
    bare = observations.one_job([2.0] * 2, shards_each=0)
    assert (
        _imbalance_values(bare, group_workers(bare), np.array([0.25]), surplus[:2])["s112_demand_bytes"]
        == 0.0
    )


def test_s112_it_begins_above_the_threshold_and_ends_under_half_of_it():
    groups = WorkersByJob(
        np.array([2, 3, 5, 7, 8]), np.arange(6), np.ones(5, dtype=int), np.ones(5, dtype=bool)
    )
    index = np.array([0.5, 0.25, 0.24, NAN, 0.51])
    kept, acting = DataFlow(threshold=0.5)._acting(groups, index, {})
    assert (kept.tolist(), acting.tolist()) == ([8], [False, False, False, False, True])
    kept, acting = DataFlow(threshold=0.5)._acting(groups, index, {"acting": np.array([3, 5, 7])})
    assert (kept.tolist(), acting.tolist()) == ([3, 7, 8], [False, True, False, False, True])


def test_it_says_why_no_data_moves():
    known = np.array([NAN, 0.1])
    assert _why_not(known, True) == "data and speed are in balance"
    assert _why_not(known, False) == "no job has data to move"
    assert _why_not(np.full(2, NAN), True) == "capacity or data of every job is unknown or gone"
    plan, _, values = refine(DataFlow(), with_dead_nodes(one_job([2.0, 1.0]), [1]))
    assert plan.reasons[-1].text == "capacity or data of every job is unknown or gone"
    assert values["s113_moves"] == 0
    bare = refine(DataFlow(), observations.one_job([2.0, 1.0], shards_each=0))[0]
    assert bare.reasons[-1].text == "no job has data to move"


def test_s112_a_worker_without_work_keeps_its_job_in_balance_and_one_unseen_does_not():
    """It is known how fast it was; of one that trains, nothing is known without a rate."""
    seen = observations.one_job([2.0] * 3, samples=[32] * 3, shard_samples=[100, 100, 300])
    stage = DataFlow()
    _, memory, values = refine(stage, seen)
    assert values["s112_acting"] == 1
    idle = change(seen, "workers", samples_per_step=[48, 48, 0], gradient_rate_per_s=[1 / 24, 1 / 24, NAN])
    assert refine(stage, idle, memory)[2]["s112_imbalance"] == pytest.approx(values["s112_imbalance"])
    unseen = change(seen, "workers", gradient_rate_per_s=[1 / 16, 1 / 16, NAN])
    _, after, values = refine(stage, unseen, memory)
    assert np.isnan(values["s112_imbalance"])
    assert values["s112_acting"] == 0
    assert after["acting"].tolist() == [0], "it goes on once it is seen again"


# -- S113 --------------------------------------------------------------------------------------------------


@BOTH
def test_s113_two_shards_make_good_what_the_faster_worker_lacks(stage):
    """Of 800 samples the faster should own 600: 200 flow, at weight 3 where one link counts whole."""
    plan, _, values = refine(stage, one_job([3.0, 1.0], shards_each=4))
    names = ("flow_samples", "flow_value", "moves", "bytes", "not_worth_it")
    assert [values[f"s113_{name}"] for name in names] == pytest.approx([200.0, 600.0, 2, 2e6, 0])
    assert plan.reasons[-1].text == "moves 2 shards"
    assert plan.moves.shard.tolist() == [7, 6], "those needed last"
    frozen = DataFlow(mode=stage.mode, frozen=as_read("S113"))
    plan, _, values = refine(frozen, one_job([3.0, 1.0], shards_each=4))
    assert (plan.moves, values["s112_acting"], values["s113_moves"]) == (None, 1, 0)


def test_s113_each_job_moves_its_own():
    for mode in ("formula", as_read("optimal")):
        alone = refine(DataFlow(mode=mode), one_job([3.0, 1.0], shards_each=4))[0].moves
        even = one_job([2.0, 2.0], shards_each=4)
        seen = together(even, one_job([3.0, 1.0], shards_each=4), one_job([1.0, 3.0], shards_each=4))
        plan, _, values = refine(DataFlow(mode=mode), seen)
        assert plan.moves.shard.tolist() == [8 + alone.shard[0], 8 + alone.shard[1], 19, 18]
        assert plan.moves.worker.tolist() == [2, 2, 5, 5]
        assert values["s112_acting"] == 2


def flows(seen, surplus, acting, pull):
    """The flow of least time, as (donor, receiver, samples) and its value."""
    groups, node = group_workers(seen), seen.workers.node
    (donor, receiver, amount), value = _least_time_flow(
        groups, np.array(acting), np.array(surplus), np.array(pull), node, links_of(seen)
    )
    return [
        (i, j, round(a, 6)) for i, j, a in zip(donor.tolist(), receiver.tolist(), amount, strict=True)
    ], value


def test_s113_optimal_gives_what_there_is_and_values_it_by_link_and_pull():
    seen = together(one_job([1.0] * 2), one_job([1.0] * 3))
    seen.paths = Paths.of(source=[2, 2], target=[3, 4], bytes_per_s=[1e6, 4e6])
    pull = [2.0, 3.0, 5.0, 7.0, 11.0]
    surplus = [
        5.0,
        3.0,
        60.0,
        -45.0,
        -75.0,
    ]  # nobody of the first lacks any; half of what the second lacks is there
    flow, value = flows(seen, surplus, [True, True], pull)
    assert flow == [(2, 3, 22.5), (2, 4, 37.5)]
    assert value == pytest.approx(22.5 * 7 / 4 + 37.5 * 11)
    assert flows(seen, surplus, [True, False], pull) == ([], 0.0)
    flow, value = flows(seen, [5.0, -4.0, 60.0, -30.0, -20.0], [False, True], pull)
    assert flow == [(2, 3, 30.0), (2, 4, 20.0)]
    flow, value = flows(seen, [5.0, -4.0, 0.0, 0.0, 0.0], [True, True], pull)
    assert (flow, value) == ([(0, 1, 4.0)], pytest.approx(12.0))
    flow, value = flows(seen, [0.5, -0.25, 0.0, 0.0, 0.0], [True, True], pull)
    assert (flow, value) == ([(0, 1, 0.25)], pytest.approx(0.75))
    near = change(seen, "workers", node=[0, 0, 2, 3, 4])
    assert flows(near, [5.0, -4.0, 0.0, 0.0, 0.0], [True, False], pull) == (
        [(0, 1, 4.0)],
        pytest.approx(12.0),
    )


def test_s113_only_shards_of_who_gives_are_looked_at():
    seen = one_job([3.0, 1.0, 1.0], shards_each=4)
    flow = (np.array([1]), np.array([0]), np.array([250.0]))
    capacity = np.array([3.0, 1.0, 1.0])
    rows, owners, refused = _carry_out(seen, UNCHANGED, flow, capacity, links_of(seen))
    assert (rows.tolist(), owners.tolist(), refused) == ([7, 6], [0, 0], 0)
    unowned = change(seen, "shards", worker=[0] * 4 + [1, 1, -1, 1] + [2] * 4)
    assert _carry_out(unowned, UNCHANGED, flow, capacity, links_of(seen))[0].tolist() == [7, 5]
