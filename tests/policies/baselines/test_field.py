"""The field's baselines: small cases worked by hand, and the behaviour that their papers publish."""

import numpy as np
import pytest

from equipoise.policies.baselines import gavel, goodput, shockwave
from equipoise.policies.baselines.shockwave import market
from equipoise.policies.contract import UNCHANGED
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Speeds
from equipoise.policies.registry import make_stage
from tests.policies.observations import change, one_job


def kinds(speeds, gpus=(1, 1), wanted=None, **columns):
    """Waiting rigid jobs with `speeds[j][m]` on GPU model m; node m has gpus[m] GPUs of model m."""
    n, models = len(speeds), len(gpus)
    node = np.repeat(np.arange(models), gpus)
    wanted = np.ones(n, dtype=int) if wanted is None else np.array(wanted)
    jobs = {
        "id": np.arange(n),
        "arrival_s": np.zeros(n),
        "state": np.full(n, JobState.WAITING),
        "rigid": np.ones(n),
        "gpus_requested": wanted,
        "workers_min": wanted,
        "workers_max": wanted,
        "duration_s": np.full(n, 3600.0),
        "service_s": np.full(n, 3600.0),
        "one_gpu_model": np.ones(n),
    }
    job = np.repeat(np.arange(n), models)
    return Observation.of(
        0.0,
        10.0,
        jobs=Jobs.of(**jobs | columns),
        nodes=Nodes.of(gpus=gpus, first_gpu=np.cumsum((0, *gpus))[:-1], gpus_free=gpus, up=np.ones(models)),
        gpus=Gpus.of(node=node, model=node, job=np.full(len(node), -1), memory_bytes=np.full(len(node), 1e9)),
        speeds=Speeds.of(
            job=job, gpu_model=np.tile(np.arange(models), n), gpus=wanted[job], samples_per_s=np.ravel(speeds)
        ),
        gpu_models=tuple(f"m{k}" for k in range(models)),
    )


def placed(plan, observation):
    """{job: GPU models}"""
    if plan.allocation is None:
        return {}
    given = plan.allocation
    return {int(job): observation.gpus.model[given.gpus_of(k)].tolist() for k, job in enumerate(given.job)}


def test_gavel_shares_of_two_jobs_by_hand():
    """Job 0 is 4 times as fast on model 0, job 1 twice as fast on model 1: each gets the model that suits it.

    An equal share gives 2.5 and 1.5 of their units, so that the ratios are 4 / 2.5 = 1.6 and 2 / 1.5 = 1.33.
    """
    speed = np.array([[4.0, 1.0], [1.0, 2.0]])
    share, least = gavel.shares(speed, np.ones(2), np.ones(2), np.array([2.5, 1.5]), np.ones(2))
    assert share == pytest.approx(np.eye(2), abs=1e-6)
    assert least == pytest.approx(4 / 3)


def test_gavel_shares_of_equal_jobs_are_those_of_their_class():
    speed, room = np.array([[4.0, 1.0], [1.0, 2.0]]), np.array([2.0, 3.0])
    one, z_one = gavel.shares(speed, np.ones(2), room, np.array([2.5, 1.5]), np.array([3.0, 2.0]))
    each = np.repeat([0, 1], [3, 2])
    many, z_many = gavel.shares(speed[each], np.ones(5), room, np.array([2.5, 1.5])[each], np.ones(5))
    assert z_one == pytest.approx(z_many, rel=1e-6)
    assert (speed * one).sum(axis=1).min() > 0
    assert ((speed[each] * many).sum(axis=1) >= z_many * np.array([2.5, 1.5])[each] * (1 - 1e-6)).all()


def test_gavel_makespan_by_hand():
    """Work of 8 and 4, speeds (4, 1) and (2, 1) on one GPU each: X = (1, 0) and (0, 1) end at 2 and 4 s.

    Sharing model 0 ends both together: 4x + (1 - x) = 2z, 2(1 - x) + x = z give x = 3/5, z = 7/5.
    """
    speed = np.array([[4.0, 1.0], [2.0, 1.0]])
    share, z = gavel.shares(speed, np.ones(2), np.ones(2), np.array([2.0, 1.0]), np.ones(2))
    assert z == pytest.approx(1.4)
    assert share[0] == pytest.approx([0.6, 0.4], abs=1e-6)


def test_gavel_finish_time_fairness_evens_out_who_waited():
    """The job that has waited long gets the larger share: its rho is the worst."""
    speed = np.array([[1.0], [1.0]])
    age_s, left, alone_s = np.array([0.0, 30.0]), np.array([60.0, 60.0]), np.array([120.0, 120.0])
    share, solves = gavel._fairest(speed, np.ones(2), np.ones(1), left, age_s, alone_s)
    rho = (age_s + left / share[:, 0]) / alone_s
    assert rho[0] == pytest.approx(rho[1], rel=1e-2)
    assert share[1, 0] > share[0, 0]
    assert solves == 13


@pytest.mark.parametrize("objective", gavel.OBJECTIVES)
def test_gavel_places_each_job_where_it_gains(objective):
    observation = kinds([[4.0, 1.0], [1.0, 2.0]])
    plan, memory = make_stage("gavel", {"objective": objective}).refine(observation, UNCHANGED, {})
    assert placed(plan, observation) == {0: [0], 1: [1]}
    assert plan.revisit_s == 360.0
    assert (memory["solved"] >= 1) == (objective != "throughput"), "only the sum of speeds needs no programme"


def test_themis_serves_the_worst_off_first():
    """Equal jobs, one GPU: the one that has waited longest in terms of its own length."""
    observation = kinds([[1.0]] * 3, gpus=(1,), arrival_s=[0.0, 0.0, 0.0], service_s=[3600.0, 600.0, 1800.0])
    observation.time_s = 600.0
    plan, _ = make_stage("themis").refine(observation, UNCHANGED, {})
    assert list(placed(plan, observation)) == [1]


def test_tiresias_is_two_queues():
    stage = make_stage("tiresias")
    observation = kinds([[1.0]] * 2, gpus=(1,), attained_gpu_s=[3200.0, 3199.0])
    assert list(placed(stage.refine(observation, UNCHANGED, {})[0], observation)) == [1]
    promoted = make_stage("tiresias", {"promote": 1.0})
    waited = kinds([[1.0]] * 2, gpus=(1,), attained_gpu_s=[3200.0, 0.0], waited_s=[6400.0, 0.0])
    assert list(placed(promoted.refine(waited, UNCHANGED, {})[0], waited)) == [0], "back in the first queue"
    never = make_stage("tiresias", {"promote": 0.0})
    assert list(placed(never.refine(waited, UNCHANGED, {})[0], waited)) == [1]


def elastic(batch_max=0, phi=1000.0):
    """A waiting job of 1 to 4 workers: a step takes 0.1 s + 0.01 s a sample of each; batch 32."""
    observation = kinds([[1.0]], gpus=(4,), rigid=[False], workers_max=[4], global_batch=[32])
    observation = change(
        observation, "jobs", batch_reference=[32], batch_max=[batch_max], noise_scale=[phi], one_gpu_model=[False]
    )
    sizes = np.arange(1, 5)
    observation.speeds = Speeds.of(
        job=np.zeros(4),
        gpu_model=np.zeros(4),
        gpus=sizes,
        samples_per_s=32 / (0.1 + 0.01 * np.ceil(32 / sizes)),
        exchange_s=np.zeros(4),
    )
    return observation


def test_goodput_by_hand():
    """Four workers, batch M: M / (0.1 + 0.01 M / 4) samples/s at efficiency (1000 + 32) / (1000 + M)."""
    fits = np.ones((1, 1), dtype=np.bool_)
    _, ways = goodput.Ways(elastic(1024), np.array([0]), np.ones((1, 1)), np.array([4]), fits).of(0)
    best = next(way for way in ways if way.gpus == 4)

    def worth(m):
        return m / (0.1 + 0.01 * m / 4) * 1032 / (1000 + m)

    assert best.goodput == pytest.approx(worth(best.batch), rel=0.01)
    assert worth(best.batch) >= max(worth(m) for m in range(32, 1025)) * 0.98
    assert 150 < best.batch < 260, "the optimum: sqrt(1000 * 40) = 200"


@pytest.mark.parametrize("name", ["pollux", "sia"])
def test_batches_follow_the_gpus_where_they_may(name):
    plan, _ = make_stage(name).refine(elastic(1024), UNCHANGED, {})
    assert placed(plan, elastic()) == {0: [0, 0, 0, 0]}
    assert 150 < plan.global_batch[0] < 260
    fixed, _ = make_stage(name).refine(elastic(0), UNCHANGED, {})
    assert fixed.global_batch is None


def test_pollux_evens_out_speed_ups():
    """Two elastic jobs that scale alike share four GPUs equally; 1 / speed-up falls most where it is largest."""
    ladders = {row: [goodput.Option(0, n, 32, float(n)) for n in (1, 2, 3, 4)] for row in (0, 1)}
    chosen = goodput.climb(ladders, np.array([4]))
    assert {row: way.gpus for row, way in chosen.items()} == {0: 2, 1: 2}
    ladders[1] = [goodput.Option(0, n, 32, 1.0 + 0.01 * n) for n in (1, 2, 3, 4)]
    chosen = goodput.climb(ladders, np.array([4]))
    assert {row: way.gpus for row, way in chosen.items()} == {0: 3, 1: 1}


def test_sia_gives_each_kind_to_who_gains_most():
    """One GPU of each model: 4 and 1 against 2 and 1, so that the first job takes model 0."""
    observation = kinds([[4.0, 1.0], [2.0, 1.0]])
    plan, _ = make_stage("sia").refine(observation, UNCHANGED, {})
    assert placed(plan, observation) == {0: [0], 1: [1]}


def test_lb_bsp_deals_by_speed():
    observation = one_job([2.0, 1.0, 1.0], batch=96, samples=[32, 32, 32])
    plan, _ = make_stage("lb-bsp").refine(observation, UNCHANGED, {})
    assert plan.samples_per_step.tolist() == [48, 24, 24]
    smoothed = make_stage("lb-bsp", {"memory": 0.5})
    _, memory = smoothed.refine(observation, UNCHANGED, {})
    slower = one_job([1.0, 1.0, 1.0], batch=96, samples=[48, 24, 24])
    plan, _ = smoothed.refine(slower, UNCHANGED, memory)
    assert plan.samples_per_step.tolist() == [41, 28, 27], "half way: speeds of 1.5, 1 and 1"


def test_adacomm_communicates_more_as_the_gradient_falls():
    stage, memory, taken = make_stage("adacomm"), {}, []  # every 60 s, from 10 on
    observation = one_job([1.0, 1.0])
    for k, norm in enumerate((1.0, 0.81, 0.4, 0.4, 0.1)):
        now = change(observation, "workers", gradient_norm=[norm, norm])
        now = change(now, "jobs", sync_interval=[taken[-1] if taken else 1])
        now.time_s = 100.0 + 60.0 * k
        plan, memory = stage.refine(now, UNCHANGED, memory)
        taken.append(int(plan.intervals(now)[0]))
    assert taken == [10, 9, 4, 2, 1], "ceil(10 x 0.81), ceil(10 x 0.4), halved where it does not fall"


def test_optimus_gives_the_next_worker_where_most_time_is_saved():
    """T(n) = Q / f(n): 100 / (1, 2, 3), 60 / (1, 1.2, 1.3): after one each -50 s against -10, -17 against -10."""
    ladders = {
        0: [goodput.Option(0, n, 32, n / 100) for n in (1, 2, 3)],
        1: [goodput.Option(0, n, 32, f / 60) for n, f in ((1, 1.0), (2, 1.2), (3, 1.3))],
    }
    chosen = goodput.climb(ladders, np.array([4]))
    assert {row: way.gpus for row, way in chosen.items()} == {0: 3, 1: 1}


@pytest.mark.parametrize(("name", "gpus"), [("optimus", {0: 4}), ("drf", {0: 4})])
def test_optimus_scales_one_job_at_its_own_batch(name, gpus):
    plan, _ = make_stage(name).refine(elastic(1024), UNCHANGED, {})
    assert {job: len(models) for job, models in placed(plan, elastic()).items()} == gpus
    assert plan.global_batch is None, "the batch is the user's"


def test_shockwave_sells_rounds_by_budget():
    """One GPU, four rounds: equal budgets share them; who is worth 8 times as much buys all."""
    rounds = np.zeros(2, dtype=np.int64)
    market(np.zeros(2), np.full(2, 9.0), np.ones(2, dtype=np.int64), np.array([0.5, 0.5]), 0.0, 4, 1, rounds)
    assert rounds.tolist() == [2, 2]
    rounds[:] = 0
    market(np.zeros(2), np.full(2, 9.0), np.ones(2, dtype=np.int64), np.array([8 / 9, 1 / 9]), 0.0, 4, 1, rounds)
    assert rounds.tolist() == [4, 0]
    rounds[:] = 0
    market(np.zeros(2), np.array([3.0, 9.0]), np.ones(2, dtype=np.int64), np.full(2, 0.5), 10.0, 4, 1, rounds)
    assert rounds.tolist() == [0, 4], "the longest job first, where the makespan weighs"


def test_shockwave_runs_the_job_that_has_waited_longer():
    """An hour of work each on one GPU: rho is (0 + 2) / 2 = 1 and (2 + 2) / 2 = 2, so that the second buys more."""
    observation = kinds([[2.0], [2.0]], gpus=(1,), arrival_s=np.array([0.0, -7200.0]))
    plan, _ = make_stage("shockwave-like").refine(observation, UNCHANGED, {})
    assert list(placed(plan, observation)) == [1]


def test_shockwave_is_exact_for_equal_gangs():
    """Against all ways to share 6 rounds among three jobs."""
    ran, left, budget = np.array([0.0, 2.0, 5.0]), np.full(3, 9.0), np.array([0.2, 0.3, 0.5])
    rounds = np.zeros(3, dtype=np.int64)
    market(ran, left, np.ones(3, dtype=np.int64), budget, 0.0, 6, 1, rounds)
    best = max(
        (np.array([a, b, 6 - a - b]) for a in range(7) for b in range(7 - a)),
        key=lambda n: float(budget @ np.log(ran + 1.0 + n)),
    )
    assert rounds.tolist() == best.tolist()


@pytest.mark.parametrize(
    ("name", "near_s", "progress", "expected"),
    [
        ("hierarchical-local-sgd", 0.1, 0.5, (2, 8)),
        ("hierarchical-local-sgd", np.nan, 0.5, (2, 1)),
        ("diloco", 0.1, 0.5, (1, 500)),
        ("diloco", np.nan, 0.5, (500, 1)),
        ("diloco", 0.1, 0.2, (1, 1)),
    ],
)
def test_intervals_of_two_levels(name, near_s, progress, expected):
    observation = one_job([1.0] * 4, job={"near_exchange_s": near_s, "progress": progress})
    plan, _ = make_stage(name).refine(observation, UNCHANGED, {})
    assert (int(plan.intervals(observation)[0]), int(plan.far(observation)[0])) == expected


def test_shares_of_many_classes_are_as_good_as_those_of_the_dense_table(monkeypatch):
    """Both reach the same least throughput over need, within the GPUs and the time that there is."""
    rng, room = np.random.default_rng(0), np.array([16.0, 16.0])
    speed, need, one = rng.uniform(1.0, 5.0, (60, 2)), rng.uniform(10.0, 1000.0, 60), np.ones(60)
    _, dense = gavel.shares(speed, one, room, need, one)
    monkeypatch.setattr(gavel, "_DENSE", 10)
    part, least = gavel.shares(speed, one, room, need, one)
    assert least == pytest.approx(dense, rel=1e-6)
    assert ((speed * part).sum(axis=1) / need).min() == pytest.approx(least, rel=1e-6)
    assert (part.sum(axis=0) <= room + 1e-6).all()
    assert (part.sum(axis=1) <= 1.0 + 1e-6).all()


def test_shockwave_sells_rounds_once_in_a_window(monkeypatch):
    """12 rounds with the same jobs, in windows of 6."""
    sold = []
    monkeypatch.setattr(shockwave, "market", lambda *given: sold.append(given) or market(*given))
    stage, memory, after = make_stage("shockwave-like", {"window": 6}), {}, []
    seen = elastic(1024)
    for k in range(12):
        seen.time_s = k * stage.round_s
        _, memory = stage.refine(seen, UNCHANGED, memory)
        after.append(len(sold))
    assert after == [1] * 6 + [2] * 6


def test_gavel_gives_whole_shares_to_the_worthiest_that_fit():
    """Model 0 has 3 GPUs and model 1 two: job 1 does not fit beside job 0, and job 3 runs nowhere."""
    worth = np.array([[0.9, 0.8], [0.7, 0.0], [0.5, 0.4], [0.0, 0.0], [0.3, 0.1]])
    part = gavel._worthiest(worth, np.array([2, 2, 1, 1, 1]), np.array([3, 2]))
    assert part.tolist() == [[1, 0], [0, 0], [1, 0], [0, 0], [0, 1]]
