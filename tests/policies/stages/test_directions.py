"""Direction: each variable of the formulas of S1 to S3, changed alone, moves its decision as the text says.

Those of S4 are in `test_directions_s4`.
"""

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED
from equipoise.policies.kernels.batch_split import resource_shares
from equipoise.policies.kernels.fetching import shard_priority
from equipoise.policies.kernels.sync import level_cost, step_spread, sync_coefficient, weighted_shares
from equipoise.policies.observation import Paths
from equipoise.policies.registry import make_stage
from tests.policies.observations import change, one_job
from tests.policies.stages.test_parameters import decisions, waiting

FIRST = np.array([0, 2])
UP, DOWN = 1, -1
MOVES, SAMPLES, INTERVAL, WEIGHT = 0, 1, 3, 6


def moved(rate_0=2.0, rows_3=300, path=None):
    """Shards that worker 0 is given, where worker 3 has too much: by its speed, and the path there."""
    speeds = np.array([rate_0, 2.0, 2.0, 2.0])
    o = one_job(
        speeds,
        samples=speeds * 12,
        batch=12 * (6 + rate_0),
        shards_each=8,
        shard_samples=[100, 100, 100, rows_3],
        nic_bytes_per_s=1e9 if path is None else path,
    )
    (plan,) = decisions(make_stage("s1", {"threshold": 0.01}), [o])
    return 0 if plan[MOVES] is None else int((plan[MOVES].worker == 0).sum())


def given_to_0(load=0.0, mode="formula", prepared=np.inf):
    """Samples that worker 0 of four is given, its node's interface and cores being loaded so by others."""
    o = one_job([2.0] * 4, shard_samples=[80, 100, 100, 120], shards_each=20, nic_busy=[load, 0.0, 0.0, 0.0])
    o = change(o, "nodes", nic_busy_ratio=0.0)  # the way there stays as it is
    o = change(o, "workers", input_samples_per_s=[prepared, np.inf, np.inf, np.inf])
    (plan,) = decisions(make_stage("s1", {"threshold": 0.01, "mode": mode}), [o])
    return int(o.shards.samples[plan[MOVES].shard[plan[MOVES].worker == 0]].sum())


def first_chosen(**of_0):
    """1 where worker 0 of three that lack as much is served first."""
    load, paths = of_0.get("load", 0.5), of_0.get("paths", 1e6)
    o = one_job([2.0] * 4, shard_samples=[100, 100, 100, 130], shards_each=10, nic_busy=[load, 0.5, 0.5, 0.9])
    o.paths = Paths.of(source=[3, 3, 3], target=[0, 1, 2], bytes_per_s=[paths, 1e6, 1e6])
    (plan,) = decisions(make_stage("s1", {"threshold": 0.01}), [o])
    return int(plan[MOVES].worker[0] == 0)


def imbalance(**options):
    """S112's index, which decides whether S113 acts."""
    o = one_job(
        options.get("speeds", [2.0] * 4),
        samples=[24] * 4,
        shards_each=8,
        shard_samples=[100, 100, 100, options.get("rows_3", 100)],
    )
    plan, _ = make_stage("s1").refine(o, UNCHANGED, {})
    return plan.reasons[-1].values["s112_imbalance"]


def weight_of_1(norm):
    """Weight of worker 1's gradient after eight steady windows and one with this norm."""
    steady = one_job([2.0] * 4, norm=[1.0, 1.1, 0.9, 1.0])
    plans = decisions(make_stage("s1"), [steady] * 8 + [change(steady, "workers", gradient_norm=[1.0, norm, 0.9, 1.0])])
    return 1.0 if plans[-1][WEIGHT] is None else plans[-1][WEIGHT][1]


def priority(fetch_s=1.0, needed_s=10.0, size=4e6):
    return shard_priority(
        np.array([fetch_s, 1.0]), np.array([needed_s, 10.0]), np.array([size, 1e7]), np.array([0, 0]), 1, 0.7, 0.3
    )[0]


def s2_fetch_s(rate=1e6, latency=0.1):
    """What S211 expects of a fetch, which decides what is late."""
    o = one_job([1.0, 1.0], shards_each=4, stored_on=[1] * 8)
    o.paths = Paths.of(source=[1], target=[0], bytes_per_s=[rate], latency_s=[latency])
    plan, _ = make_stage("s2").refine(o, UNCHANGED, {})
    return plan.reasons[-1].values["s211_fetch_s"]


def late_moved(needed_s=1.0, owned_1=20.0):
    """Late shards that S213 gives to worker 1, who stores them."""
    o = one_job([1.0, 1.0], shards_each=4, shard_samples=10, stored_on=[1] * 8, nic_bytes_per_s=2e4)
    o = change(o, "shards", needed_in_s=np.repeat([needed_s, 30.0], 4))
    o = change(o, "workers", samples_owned=[40.0, owned_1], capacity_samples_per_s=[1.0, 1.0])
    (plan,) = decisions(make_stage("s2"), [o])
    return 0 if plan[MOVES] is None else len(plan[MOVES].shard)


def share_of_0(rate=2.0, response_s=0.5, fixed_s=0.0):
    """Part of the work for the first of two workers; the other one makes 1 sample/s."""
    both = (np.array([rate, 1.0]), np.array([response_s, 1.0]), np.array([fixed_s, 0.0]), np.array([16, 16]))
    return resource_shares(FIRST, *both, 0.5, 0.5)[0]


def samples_of_0(most=64, weight=1.0):
    """Samples dealt to the faster of two workers: its memory's bound, and whether its gradient counts."""
    o = one_job([4.0, 1.0], batch=64, samples_max=[most, 64])
    plan = UNCHANGED if weight == 1.0 else UNCHANGED.with_(gradient_weight=np.array([weight, 1.0]))
    dealt = make_stage("s2", {"damping": 1.0}).refine(o, plan, {})[0].samples_per_step
    return 32 if dealt is None else dealt[0]


def coefficient(exchange_s=1.0, step_s=4.0, interval=2.0, alpha=1.0, beta=5.0, counts=True):
    """K of a job of two workers, the first of which computes no longer than the other."""
    return sync_coefficient(
        FIRST,
        np.array([interval]),
        np.array([exchange_s]),
        np.array([step_s, 8.0]),
        np.array([counts, True]),
        np.array([alpha]),
        np.array([beta]),
    )[0]


def interval_adapted(faster=0.0, better=0.0):
    """The interval after one of 2 became 4, which made training, and useful training, so much faster."""
    seen = [
        one_job(
            [2.0] * 4,
            job={
                "exchange_s": 6.0,
                "sync_interval": h,
                "throughput_samples_per_s": 10.0 * throughput,
                "goodput_samples_per_s": 10.0 * goodput,
                "drift": 0.001,
            },
        )
        for h, throughput, goodput in ((2, 1.0, 1.0), (4, 1.0 + faster, 1.0 + better))
    ]
    stage, memory = make_stage("s3"), {}
    for o in seen:
        _, memory = stage.refine(o, UNCHANGED, memory)
    return memory["interval"][0]


def interval_after(exchange_s=20.0, drift=0.01, **levels):
    """H times exchanges per exchange of all after 20 decisions, each carried out."""
    job = {"exchange_s": exchange_s, "far_exchange_s": exchange_s, "drift": drift, "gamma": 1.0, **levels}
    memory, now, every, stage = {}, 1, 1, make_stage("s3")
    for _ in range(20):
        o = one_job([2.0] * 4, job={**job, "sync_interval": now, "far_every": every})
        plan, memory = stage.refine(o, UNCHANGED, memory)
        now = now if plan.sync_interval is None else int(plan.sync_interval[0])
        every = every if plan.far_every is None else int(plan.far_every[0])
    return now * every


def push_interval_of_0(push_s=0.5, step_s=2.0, drift=0.01, now=1, mode="formula", decisions=20):
    """Local steps between the pushes of worker 0, of two that do not wait, after so many decisions."""
    memory, every, stage = {}, np.array([now, 1]), make_stage("s3", {"mode": mode})
    for _ in range(decisions):
        o = one_job([2.0, 2.0], job={"drift": drift})
        o = change(o, "workers", push_s=[push_s, 0.01], step_s=[step_s, 2.0], push_interval=every)
        plan, memory = stage.refine(o, UNCHANGED, memory)
        every = plan.pushes(o)
    return int(every[0])


def interval_held(other_speed):
    """Whether S311 keeps the interval while work is dealt anew (1), by the spread of the steps."""
    o = one_job([2.0, 2.0, other_speed, other_speed], job={"exchange_s": 25.0, "sync_interval": 20})
    planned = UNCHANGED.with_(samples_per_step=np.array([32, 32, 16, 16]))
    return int(make_stage("s3").refine(o, planned, {})[0].sync_interval is None)


def share_after(use=1.0, load=1.0, delay=0.0, held=0.5):
    return weighted_shares(
        FIRST,
        np.array([held, 1.0 - held]),
        np.array([1.0]),
        np.array([use, 1.0]),
        np.array([load, 1.0]),
        np.array([delay, 0.0]),
        0.5,
        0.05,
    )[0]


def cap_of_0(interval=1, **seen):
    """Cap (W) of the node of worker 0, which waits in two windows in a row."""
    o = waiting(job={"sync_interval": interval, "drift": 0.0}, **seen)
    stage, memory = make_stage("s3", {"power_least": 0.2}), {}
    for _ in range(2):
        plan, memory = stage.refine(o, UNCHANGED, memory)
    return 300.0 if plan.power_cap_w is None else plan.power_cap_w[0]


def cost(near_s=0.1, ratio=0.3, every=4):
    return level_cost(1, every, np.full(4, 1.0), np.zeros(4), near_s, 2.0, 1.0, 0.05, ratio, 0.0)


LEVELS = {"near_exchange_s": 0.05, "far_ratio": 1 / 3}
CASES = [
    ("S111 norm: a strange one is left out", weight_of_1, "norm", 1.1, 3.0, DOWN),
    ("S112 data share: more data, more imbalance", imbalance, "rows_3", 100, 300, UP),
    (
        "S112 capacity: unequal speeds, more imbalance",
        lambda s: imbalance(speeds=[2.0, 2.0, 2.0, s]),
        "s",
        2.0,
        0.5,
        UP,
    ),
    ("S113 C: the faster gets more data", moved, "rate_0", 2.0, 6.0, UP),
    ("S113 deficit: more surplus, more moves", moved, "rows_3", 130, 300, UP),
    ("S113 L: a loaded receiver comes later", first_chosen, "load", 0.2, 0.9, DOWN),
    ("S113 L: a loaded receiver gets less data", given_to_0, "load", 0.0, 0.1, DOWN),
    (
        "S113 L, optimal: a loaded receiver gets less data",
        lambda load: given_to_0(load, "optimal"),
        "load",
        0.0,
        0.1,
        DOWN,
    ),
    ("S113 L: whose host's cores others use gets less data", given_to_0, "prepared", 2.0, 1.7, DOWN),
    ("S113 b: a fast path comes first", first_chosen, "paths", 1e5, 1e7, UP),
    ("S113 b: what takes longer than it gains stays", moved, "path", 1e9, 1.0, DOWN),
    ("S211 speed: faster path, sooner here", s2_fetch_s, "rate", 1e5, 1e7, DOWN),
    ("S211 delay: later first byte, later here", s2_fetch_s, "latency", 0.0, 2.0, UP),
    ("S212 U: less time left, fetched earlier", priority, "needed_s", 10.0, 1.0, UP),
    ("S212 U: slower to fetch, fetched earlier", priority, "fetch_s", 1.0, 8.0, UP),
    ("S212 S: smaller, fetched earlier", priority, "size", 4e6, 1e6, UP),
    ("S213 need: what comes late moves", late_moved, "needed_s", 1e4, 10.0, UP),
    ("S213 capacity: who has enough to do gets nothing", late_moved, "owned_1", 20.0, 1e4, DOWN),
    ("S222 C: faster, more work", share_of_0, "rate", 2.0, 4.0, UP),
    ("S222 T: slower response, less work", share_of_0, "response_s", 0.5, 1.0, DOWN),
    ("S222 fixed part: of two alike, who has less per sample gets more", share_of_0, "fixed_s", 0.0, 4.0, UP),
    ("S223 memory: never more than fits", samples_of_0, "most", 64, 40, DOWN),
    ("S223 weight: a gradient left out is dealt little", samples_of_0, "weight", 1.0, 0.0, DOWN),
    ("S311 spread: tasks first", interval_held, "other_speed", 2.0, 0.5, UP),
    ("S312 V: slow steps synchronise more often", coefficient, "step_s", 2.0, 4.0, UP),
    ("S312 d: dear exchanges synchronise less often", coefficient, "exchange_s", 1.0, 2.0, DOWN),
    ("S312 K: the least of the workers, who has most delay", coefficient, "step_s", 4.0, 2.0, DOWN),
    ("S312 K: who is left out has no say", coefficient, "counts", True, False, UP),
    ("S312 alpha: update speed weighs more, more often", coefficient, "alpha", 1.0, 2.0, UP),
    ("S312 beta: delay weighs more, less often", coefficient, "beta", 5.0, 8.0, DOWN),
    (
        "S312 beta: a change that gained little, more often again",
        lambda t: interval_adapted(t, t),
        "t",
        0.11,
        0.01,
        DOWN,
    ),
    ("S312 alpha: a gain lost to drift, more often again", lambda g: interval_adapted(0.11, g), "g", 0.11, 0.01, DOWN),
    ("S312 h: what is seldom already becomes no more so", coefficient, "interval", 2.0, 8.0, UP),
    ("S313 K: dearer exchange, longer interval", interval_after, "exchange_s", 5.0, 60.0, UP),
    ("S313 drift: shorter interval", interval_after, "drift", 0.001, 0.1, DOWN),
    (
        "S313 levels: near exchanges let all exchange less often",
        lambda on: interval_after(60.0, 0.1, **(LEVELS if on else {})),
        "on",
        False,
        True,
        UP,
    ),
    ("S313 levels: more groups, less is gained", cost, "ratio", 0.2, 0.8, UP),
    ("S313 levels: dear near exchanges gain less", cost, "near_s", 0.1, 1.0, UP),
    ("S313 by worker: who pushes slowly, more steps apart", push_interval_of_0, "push_s", 0.5, 2.0, UP),
    (
        "S313 by worker, optimal: who pushes slowly, more steps apart",
        lambda p: push_interval_of_0(p, mode="optimal"),
        "p",
        0.5,
        8.0,
        UP,
    ),
    ("S313 by worker: long steps, pushed sooner", push_interval_of_0, "step_s", 0.5, 4.0, DOWN),
    ("S313 by worker: drift, pushed sooner", lambda d: push_interval_of_0(2.0, drift=d), "d", 0.001, 0.1, DOWN),
    ("S313 by worker: from what is in force", lambda n: push_interval_of_0(20.0, now=n, decisions=1), "n", 4, 9, UP),
    ("S321 E / P: what uses it well gets more", share_after, "use", 1.0, 0.5, DOWN),
    ("S322 R: who has more keeps more", share_after, "held", 0.5, 0.7, UP),
    ("S322 lambda: who is waited for gets more", share_after, "load", 1.0, 0.4, DOWN),
    ("S322 delta: who waits for input gets less", share_after, "delay", 0.0, 2.0, DOWN),
    ("S324 pace: the slower the slowest, the less power", cap_of_0, "others_s", 15.0, 17.0, DOWN),
    (
        "S324 pace: who waits for input needs less power",
        lambda s: cap_of_0(stall_s=s, others_s=12.0),
        "s",
        0.0,
        4.0,
        DOWN,
    ),
    ("S324 lead: steps that vary need more power", cap_of_0, "step_cov", 0.0, 0.03, UP),
    (
        "S324 lead: of many steps between exchanges the mean varies less",
        lambda h: cap_of_0(interval=h, step_cov=0.03),
        "h",
        1,
        4,
        DOWN,
    ),
]


@pytest.mark.parametrize(
    ("measure", "variable", "one", "other", "sign"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_it_moves_the_decision_that_way(measure, variable, one, other, sign):
    before, after = float(measure(**{variable: one})), float(measure(**{variable: other}))
    assert sign * (after - before) > 1e-9, f"{before} and then {after}"


def test_s311_spread_is_what_the_slowest_is_behind_the_mean():
    assert step_spread(FIRST, np.array([1.0, 3.0]))[0] == pytest.approx(0.5)


def runs_dry(kept_samples):
    """Worker 0 is to give one shard of two; how long what it keeps lasts against the time to fetch one back."""
    o = one_job([2.0, 2.0], samples=[24, 24], shards_each=2, shard_samples=[kept_samples, 20], shard_bytes=1e6)
    o = change(o, "shards", samples=[kept_samples, 400, 20, 20], bytes=[1e6, 4e7, 1e6, 1e6])
    o = change(o, "workers", samples_owned=[kept_samples + 400.0, 40.0])
    o.paths = Paths.of(source=[0, 1], target=[1, 0], bytes_per_s=[1e6, 1e6])  # 40 s each way
    (plan,) = decisions(make_stage("s1", {"threshold": 0.01}), [o])
    return plan[MOVES] is not None


def test_s113_takes_no_last_shard_that_could_not_be_back_in_time():
    """At 2 samples/s it must keep 80 samples for the 40 s that its shard would take to come back."""
    assert runs_dry(200)
    assert not runs_dry(30)
