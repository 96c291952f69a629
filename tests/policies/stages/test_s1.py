"""S1: what gradients tell, when data is in imbalance, and which shards move."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies.contract import UNCHANGED, Plan, check
from equipoise.policies.observation import Paths
from equipoise.policies.stages.s1 import DataFlow
from tests.policies import observations
from tests.policies.observations import change, same, with_dead_nodes

BOTH = pytest.mark.parametrize("stage", [DataFlow(), DataFlow(mode="optimal")], ids=["formula", "optimal"])
SKEWED = {"shard_samples": [100, 100, 100, 300], "shards_each": 8}


def one_job(speeds, **options):
    """As in `observations`, with a batch dealt by speed: workers then read their data as fast as they train."""
    speed, batch = np.asarray(speeds, dtype=float), options.get("batch", 96)
    dealt = np.floor(batch * speed / speed.sum()).astype(np.int64)
    dealt[0] += batch - dealt.sum()
    return observations.one_job(speeds, **{"samples": dealt, **options})


def refine(stage, observation, memory=None, plan=UNCHANGED):
    plan, memory = stage.refine(observation, plan, stage.initial() if memory is None else memory)
    assert check(plan, observation) is None
    return plan, memory, plan.reasons[-1].values


def carry_out(observation, plan, time_s):
    """The observation after the planned moves have arrived."""
    shards, workers = observation.shards, observation.workers
    owner, node = shards.worker.copy(), shards.node.copy()
    if plan.moves is not None:
        owner[plan.moves.shard], node[plan.moves.shard] = plan.moves.worker, plan.moves.target
    owned = np.bincount(owner, weights=shards.samples, minlength=len(workers))
    moved = change(observation, "shards", worker=owner, node=node, local=workers.node[owner] == node)
    moved = change(moved, "workers", samples_owned=owned)
    moved.time_s = time_s
    return moved


def test_s113_no_data_goes_where_it_is_not_read():
    """The fast worker trains as much of a batch as the others: more data would lie there unread."""
    even = observations.one_job([4.0, 1.0, 1.0], shards_each=8)
    assert refine(DataFlow(), even)[0].moves is None
    assert refine(DataFlow(), one_job([4.0, 1.0, 1.0], shards_each=8))[0].moves is not None


def test_s113_no_shard_is_moved_over_a_link_that_has_enough_to_carry():
    """Worker 1 keeps its shards once its node still has gigabytes to send to worker 0."""
    stored = {"shard_bytes": 1e6, "nic_bytes_per_s": 2e5, "shards_each": 8}
    free = one_job([4.0, 1.0, 1.0], **stored)
    assert refine(DataFlow(), free)[0].moves is not None
    busy = one_job([4.0, 1.0, 1.0], **stored)
    shards = busy.shards
    away = (shards.worker == 0) & ~shards.started
    busy = change(
        busy,
        "shards",
        node=np.where(away, 1, shards.node),
        local=shards.local & ~away,
        bytes=np.where(away, 5e8, shards.bytes),
    )
    plan = refine(DataFlow(), busy)[0]
    assert plan.moves is None or not np.isin(shards.worker[plan.moves.shard], [1]).any()


# -- S111 gradient monitoring ------------------------------------------------------------------------------


def windows(stage, count, **unusual):
    """`count` steady windows, then one with unusual columns; returns the last plan, memory and values."""
    memory, steady = stage.initial(), one_job([2.0] * 4, norm=[1.0, 1.1, 0.9, 1.0], **SKEWED)
    for _ in range(count):
        plan, memory, values = refine(stage, steady, memory)
    if unusual:
        plan, memory, values = refine(stage, change(steady, "workers", **unusual), memory)
    return plan, memory, values


@BOTH
@pytest.mark.parametrize("norm", [np.nan, 0.0, np.inf, 5.0])
def test_s111_an_unsound_worker_receives_no_data(stage, norm):
    plan, _, values = windows(stage, 8)
    assert set(plan.moves.worker) == {0, 1, 2}
    assert values["s111_unhealthy"] == 0
    plan, _, values = windows(stage, 8, gradient_norm=[1.0, norm, 0.9, 1.0])
    assert values["s111_unhealthy"] == 1
    assert set(plan.moves.worker) == {0, 2}


def test_s111_a_strange_norm_is_suspicious_only_once_the_usual_one_is_known():
    _, _, values = windows(DataFlow(), 2, gradient_norm=[1.0, 5.0, 0.9, 1.0])
    assert values["s111_unhealthy"] == 0
    assert windows(DataFlow(), 8, gradient_norm=[1.0, 1.2, 0.9, 1.0])[2]["s111_unhealthy"] == 0
    for count, unhealthy in ((4, 0), (5, 1)):
        _, _, values = windows(DataFlow(), count, gradient_norm=[1.0, 1e6, 0.9, 1.0])
        assert values["s111_unhealthy"] == unhealthy


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_s111_norms_of_sound_gradients_that_vary_and_fall_raise_no_alarm(workers):
    """By a quarter, as those of small batches do, falling to a fifth within some windows, then shares change."""
    rng, stage, memory, alarms = np.random.default_rng(workers), DataFlow(), None, 0
    for window in range(400):
        fall = 0.2 + 0.8 * 0.8 ** (window % 80)
        samples = np.full(workers, 48)
        if window % 80 >= 40:
            samples[0] -= 20
        usual = fall * np.sqrt(1 + 66 / samples)
        norm = usual * np.exp(0.25 * rng.standard_normal(workers))
        seen = observations.one_job([2.0] * workers, samples=samples, norm=norm, job={"noise_scale": 66.0})
        _, memory, values = refine(stage, seen, memory)
        alarms += values["s111_unhealthy"]
    assert alarms == 0


def test_s111_half_the_workers_are_not_strange_together():
    _, _, values = windows(DataFlow(), 8, gradient_norm=[9.0, 9.9, 0.9, 1.0])
    assert values["s111_unhealthy"] == 0


def test_s111_a_window_without_norms_changes_no_verdict():
    """Norms are measured now and then; a GPU is suspect only after as many that were."""
    stage = DataFlow(sick_windows=2)
    plan, memory, values = windows(stage, 8, gradient_norm=[1.0, 9.0, 0.9, 1.0])
    assert (values["s111_unhealthy"], values["s111_suspect"]) == (1, 0)
    unknown = one_job([2.0] * 4, norm=[np.nan] * 4, **SKEWED)
    for _ in range(3):
        plan, memory, values = refine(stage, unknown, memory)
        assert (values["s111_unhealthy"], values["s111_suspect"]) == (1, 0)
        assert plan.weights(unknown).tolist() == [1.0, 0.0, 1.0, 1.0]
    _, _, values = refine(stage, one_job([2.0] * 4, norm=[1.0, 9.0, 0.9, 1.0], **SKEWED), memory)
    assert (values["s111_unhealthy"], values["s111_suspect"]) == (1, 1)


def test_s111_a_norm_that_stays_elsewhere_becomes_usual():
    stage = DataFlow()
    _, memory, values = windows(stage, 8, gradient_norm=[1.0, 5.0, 0.9, 1.0])
    assert values["s111_unhealthy"] == 1
    shifted = one_job([2.0] * 4, norm=[1.0, 5.0, 0.9, 1.0], **SKEWED)
    for _ in range(40):
        _, memory, values = refine(stage, shifted, memory)
    assert values["s111_unhealthy"] == 0


@pytest.mark.parametrize("phi", [1000.0, np.nan])
def test_s111_a_new_deal_is_not_a_strange_norm_or_a_slower_worker(phi):
    """Three times the samples: the norm falls as sqrt(1 + phi / b), the gradient rate to a third."""
    stage, memory, job = DataFlow(), {}, {"noise_scale": phi}
    for samples in ([24, 24, 24, 24],) * 8 + ([60, 12, 12, 12],) * 2:
        norm = np.sqrt(1 + 1000.0 / np.array(samples))
        observation = one_job([2.0] * 4, samples=samples, norm=norm, job=job)
        plan, memory, values = refine(stage, observation, memory)
        assert values["s111_unhealthy"] == 0
        assert values["s112_imbalance"] == pytest.approx(0, abs=1e-12)
        assert plan.changes_nothing()


def drifting(slope, windows=12, last=1.6):
    """Observations of four workers, the last of which changes its speed by `slope` a window and ends at `last`."""
    dealt = np.array([27, 27, 27, 15])
    even = one_job([2.0] * 4, shards_each=24, shard_samples=50, samples=dealt)
    speeds = np.full((windows, 4), 2.0)
    speeds[:, 3] = last - slope * np.arange(windows - 1, -1, -1)
    return [change(even, "workers", gradient_rate_per_s=speed / dealt, step_s=dealt / speed) for speed in speeds]


def test_s111_a_worker_that_keeps_slowing_down_counts_as_slow_as_it_will_be():
    """It ends as fast as one that never changed: the trend makes the difference, and decides what it keeps."""
    forecast = {}
    for slope in (-0.1, 0.0, 0.1):
        stage, memory = DataFlow(threshold=9.0), None
        for seen in drifting(slope):
            _, memory, values = refine(stage, seen, memory)
        forecast[slope] = (values["s111_forecast_gradients_per_s"] - 3 * 2.0 / 27) * 15
    assert forecast[-0.1] == pytest.approx(1.5, abs=0.03), "a window ahead"
    assert forecast[0.0] == pytest.approx(1.6)
    assert forecast[0.1] == pytest.approx(1.7, abs=0.03)
    left = {}
    for slope in (-0.1, 0.1):
        stage, memory = DataFlow(threshold=9.0), None
        *before, last = drifting(slope)
        for seen in before:
            _, memory, _ = refine(stage, seen, memory)
        plan, _, _ = refine(DataFlow(threshold=0.01), last, memory)
        left[slope] = 0 if plan.moves is None else len(plan.moves.shard)
    assert left[-0.1] > left[0.1], "who gets slower gives more away"


def test_s111_a_norm_that_drifts_slowly_is_sound():
    """It grows by 3 % a window, and is twice as large in the end; the same in one window is not sound."""
    stage, memory = DataFlow(), None
    for k in range(25):
        seen = observations.one_job([2.0] * 4, norm=[1.0, 1.03**k, 1.0, 1.0])
        _, memory, values = refine(stage, seen, memory)
        assert values["s111_unhealthy"] == 0, k
    seen = observations.one_job([2.0] * 4, norm=[1.0, 2.0 * 1.03**24, 1.0, 1.0])
    assert refine(stage, seen, memory)[2]["s111_unhealthy"] == 1


# -- S112 imbalance ----------------------------------------------------------------------------------------


def test_s112_hysteresis():
    stage = DataFlow(threshold=0.1)
    # Equal speeds, shares x and 1 - x: I = 2x - 1.
    high, low, lower = ({"shard_samples": [50 + x, 50 - x], "shards_each": 20} for x in (6, 4, 2))
    _, memory, values = refine(stage, one_job([1.0, 1.0], **low))
    assert values["s112_acting"] == values["s113_moves"] == 0, "0.08 does not start it"
    _, memory, values = refine(stage, one_job([1.0, 1.0], **high), memory)
    assert values["s113_moves"] > 0, "0.12 does"
    _, memory, values = refine(stage, one_job([1.0, 1.0], **low), memory)
    assert values["s112_acting"] == 1, "it goes on at 0.08"
    _, memory, values = refine(stage, one_job([1.0, 1.0], **lower), memory)
    assert values["s112_acting"] == 0, "it stops at 0.04"
    _, memory, values = refine(stage, one_job([1.0, 1.0], **low), memory)
    assert values["s112_acting"] == 0


# -- S113 flow ---------------------------------------------------------------------------------------------


@BOTH
def test_s113_data_follows_speed_and_settles(stage):
    observation = one_job([2.0, 2.0, 1.0, 1.0], shards_each=24, shard_samples=50)
    memory, total = None, 0
    for window in range(8):
        plan, memory, values = refine(stage, observation, memory)
        moved = 0 if plan.moves is None else len(plan.moves.shard)
        total += moved
        observation = carry_out(observation, plan, 110.0 + 10 * window)
    assert moved == 0, "it comes to rest"
    assert values["s112_imbalance"] < 0.1
    assert total <= 17, "16 shards of 50 make it even; none goes back"
    assert observation.workers.samples_owned == pytest.approx([1600, 1600, 800, 800], abs=50)


@BOTH
@settings(max_examples=25)
@given(
    speeds=st.lists(st.floats(0.5, 4.0), min_size=3, max_size=5),
    busy=st.lists(st.floats(0.0, 0.9), min_size=5, max_size=5),
    alternates=st.booleans(),
    rows=st.lists(st.sampled_from([50, 100, 300]), min_size=5, max_size=5),
)
def test_s113_moves_end_under_constant_or_alternating_load(stage, speeds, busy, alternates, rows):
    """No shard returns within ten decisions, and nobody falls under a tenth of its fair share."""
    n = len(speeds)
    seen = one_job(speeds, shards_each=20, shard_samples=rows[:n], nic_busy=busy[:n])
    memory, owners = None, [seen.shards.worker.copy()]
    for window in range(14):
        plan, memory, _ = refine(stage, seen, memory)
        load = busy[::-1] if alternates and window % 2 else busy
        seen = change(carry_out(seen, plan, 110.0 + 10 * window), "workers", load_ratio=load[:n])
        owners.append(seen.shards.worker.copy())
    assert (owners[-1] == owners[-2]).all(), "it comes to rest"
    for k in range(1, len(owners)):
        gone = owners[k] != owners[k - 1]
        for later in owners[k : k + 10]:
            assert (later[gone] != owners[k - 1][gone]).all(), "a shard is back"
    fair = seen.workers.samples_owned.sum() * np.array(speeds) / np.sum(speeds)
    least = np.minimum(0.1 * fair, np.bincount(owners[0], weights=seen.shards.samples, minlength=n))
    assert (seen.workers.samples_owned >= least).all()


@BOTH
def test_s113_only_unstarted_shards_stored_on_living_nodes_move(stage):
    observation = one_job([4.0, 1.0, 1.0], shards_each=8)
    started = observation.shards.started.copy()
    started[8:14] = True
    node = observation.shards.node.copy()
    node[14] = -1
    observation = change(observation, "shards", started=started, node=node)
    plan, _, _ = refine(stage, observation)
    mine = [row for row in plan.moves.shard.tolist() if 8 <= row < 16]
    assert mine == [15]


@BOTH
def test_s113_a_transfer_that_takes_longer_than_it_gains_is_not_made(stage):
    fast = one_job([2.0, 1.0], shards_each=16, nic_bytes_per_s=1e6)  # 1 s a shard, 100 s of work each
    slow = one_job([2.0, 1.0], shards_each=16, nic_bytes_per_s=9e3)  # 111 s a shard
    assert refine(stage, fast)[2]["s113_moves"] > 0
    plan, _, values = refine(stage, slow)
    assert plan.moves is None
    assert values["s113_not_worth_it"] > 0


@BOTH
def test_s113_what_arrives_too_late_is_not_sent(stage):
    """Each shard is worth its transfer, but the interface can carry a few only before the epoch is over."""
    observation = one_job([9.0, 1.0], shards_each=40, shard_samples=10, nic_bytes_per_s=1.2e5)
    plan, _, _ = refine(stage, observation)
    arrival_s = len(plan.moves.shard) * 1e6 / 1.2e5
    assert 3 < len(plan.moves.shard) < 30
    assert arrival_s < 400 / 1.0, "the slow worker alone would have taken 400 s"


@BOTH
def test_s113_a_full_node_receives_nothing(stage):
    observation = one_job([2.0, 2.0, 1.0, 1.0], shards_each=12)
    observation = change(observation, "nodes", storage_free_bytes=[1e12, 1.5e6, 1e12, 1e12])
    plan, _, _ = refine(stage, observation)
    assert (plan.moves.worker == 1).sum() == 1
    assert (plan.moves.worker == 0).sum() > 1
    more, _, _ = refine(stage, observation, plan=Plan(moves=plan.moves))
    assert (more.moves.worker == 1).sum() == 1, "what was planned before takes its room"


def transfer_seconds(observation, plan):
    rates = dict(
        zip(
            zip(observation.paths.source.tolist(), observation.paths.target.tolist(), strict=True),
            observation.paths.bytes_per_s.tolist(),
            strict=True,
        )
    )
    return sum(
        observation.shards.bytes[shard] / rates[int(source), int(target)]
        for shard, source, target in zip(plan.moves.shard, plan.moves.source, plan.moves.target, strict=True)
    )


def test_s113_optimal_transfers_no_longer_than_the_formula():
    """A greedy first choice of the best link leaves the worst one over: 1 + 1/0.1 against 1/0.8 + 1/0.8."""
    observation = one_job(
        [1.0] * 4, shard_samples=[150, 150, 50, 50], shards_each=10, nic_bytes_per_s=1e9, shard_bytes=1e6
    )
    observation.paths = Paths.of(source=[0, 0, 1, 1], target=[2, 3, 2, 3], bytes_per_s=[1e6, 8e5, 8e5, 1e5])
    greedy, _, _ = refine(DataFlow(), observation)
    exact, _, _ = refine(DataFlow(mode="optimal"), observation)
    assert transfer_seconds(observation, exact) < 0.5 * transfer_seconds(observation, greedy)


def test_s113_shards_stored_at_the_receiver_go_first_and_cost_nothing():
    stored = [0] * 4 + [1] * 4 + [1] * 4
    observation = one_job([2.0, 2.0, 1.0], stored_on=stored, nic_bytes_per_s=1.0, shards_each=4)
    plan, _, _ = refine(DataFlow(), observation)
    assert set(plan.moves.worker) == {1}, "over the network nothing is worth it"
    assert (plan.moves.source == plan.moves.target).all()


def test_earlier_moves_are_kept_and_not_made_twice():
    observation = one_job([2.0, 1.0], shards_each=16)
    first, _, _ = refine(DataFlow(), observation)
    again, _, _ = refine(DataFlow(), observation, plan=Plan(moves=first.moves))
    moved = again.moves.shard.tolist()
    assert moved[: len(first.moves.shard)] == first.moves.shard.tolist()
    assert len(set(moved)) == len(moved)


# -- steadiness --------------------------------------------------------------------------------------------


@BOTH
def test_rounding_moves_nothing(stage):
    memory, rng = None, np.random.default_rng(1)
    for _ in range(6):
        observation = one_job(2.0 * (1 + 1e-13 * rng.standard_normal(8)), shards_each=8)
        plan, memory, _ = refine(stage, observation, memory)
        assert plan.changes_nothing()


@BOTH
@pytest.mark.parametrize("dead", [0, 3])
def test_a_job_on_a_dead_node_is_left_alone(stage, dead):
    observation = one_job([2.0, 2.0, 1.0, 1.0], shards_each=8)
    assert refine(stage, observation)[0].moves is not None
    assert refine(stage, with_dead_nodes(observation, [dead]))[0].changes_nothing()


def test_memory_follows_the_worker_and_forgets_one_that_moved():
    stage = DataFlow()
    _, memory, _ = refine(stage, one_job([2.0, 1.0, 1.0], shards_each=8))
    fewer = one_job([2.0, 1.0], shards_each=8)
    _, after, _ = refine(stage, fewer, memory)
    assert after["rate_windows"].tolist() == [2, 2]
    moved = change(fewer, "workers", gpu=[1, 0], node=[1, 0])
    _, after, _ = refine(stage, moved, memory)
    assert after["rate_windows"].tolist() == [1, 1]
    assert same(stage.refine(moved, UNCHANGED, {})[0].moves, stage.refine(moved, UNCHANGED, memory)[0].moves)
