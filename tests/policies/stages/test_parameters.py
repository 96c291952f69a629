"""Every parameter of S1 to S4 changes some decision: for each, an input and two values that decide differently."""

import dataclasses

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.registry import make_stage
from tests.policies.observations import change, one_job, same, shared_gpu
from tests.policies.stages.test_s4 import ELASTIC, cluster

SKEWED = {"shard_samples": [100, 100, 100, 300], "shards_each": 8}
PLANNED = (
    "moves",
    "samples_per_step",
    "fetch_order",
    "sync_interval",
    "gpu_share",
    "allocation",
    "gradient_weight",
    "suspect",
    "power_cap_w",
)


def decisions(stage, observations, memory=None):
    """The plans of successive decisions, as what they change."""
    plans, memory = [], stage.initial() if memory is None else memory
    for o in observations:
        plan, memory = stage.refine(o, UNCHANGED, memory)
        assert check(plan, o) is None
        plans.append(tuple(getattr(plan, name) for name in PLANNED))
    return plans


def rates(*windows, **more):
    """Windows in which the workers' gradient rates and times per sample are as given."""
    base = one_job([2.0] * 4, **{**SKEWED, **more})
    return [
        change(base, "workers", gradient_rate_per_s=rate, response_s_per_sample=1 / (24 * np.array(rate)))
        for rate in np.array(windows)
    ]


def strange_norm():
    steady = one_job([2.0] * 4, norm=[1.0, 1.1, 0.9, 1.0], **SKEWED)
    return [steady] * 8 + [change(steady, "workers", gradient_norm=[1.0, 2.2, 0.9, 1.0])]


def sick():
    """Worker 1 sends no sound gradient three times, does again 100 s later, and its GPU is suspect meanwhile."""
    well = one_job([2.0] * 4)
    bad = change(well, "workers", gradient_norm=[1.0, np.nan, 1.0, 1.0])
    after = change(well, "gpus", suspect=[False, True, False, False])
    after.time_s = 200.0
    return [bad] * 3 + [after]


def remote():
    """Two shards of worker 0 on node 1: one urgent and large, one later and small."""
    o = one_job([2.0, 2.0], shards_each=4, stored_on=[1, 1, 1, 1, 1, 1, 1, 1], nic_bytes_per_s=1e6)
    size = [1e6, 9e6, 9e6, 1e5, 1e6, 1e6, 1e6, 1e6]
    return [change(o, "shards", bytes=size, needed_in_s=[0.0, 60.0, 80.0, 120.0, 0.0, 50.0, 100.0, 150.0])]


def uneven(speeds=(2.0, 2.0, 1.0, 1.0), **more):
    return [one_job(list(speeds), batch=96, **more)] * 2


def unlike_response():
    """Worker 1 is half as fast as worker 0, and lives on what was read ahead: it cannot sustain even that."""
    o = one_job([2.0, 2.0], batch=96)
    return [change(o, "workers", response_s_per_sample=[0.5, 1.0], input_samples_per_s=[np.inf, 0.5])] * 2


def exchange(exchange_s=3.0, **columns):
    job = {"exchange_s": exchange_s, "exchange_alone_s": exchange_s, "sync_interval": 1, "drift": 0.01, **columns}
    return [one_job([2.0] * 4, job=job)]


def shares(goodput=(100.0, 100.0), time_s=100.0, held=(0.5, 0.5)):
    return shared_gpu(list(held), [2.0, 1.0], others_s=[1.0, 2.0], goodput=list(goodput), time_s=time_s)


def shares_undone(loss, *later_s):
    """Shares change at 100 s, the goodput falls by `loss`, and decisions follow at `later_s`."""
    begin, less = shares(), (100.0 * (1 - loss), 100.0 * (1 - loss))
    return [
        begin,
        *(shares(less, t, (0.65, 0.35)) for t in (110.0, 120.0, 130.0)),
        *(shares(time_s=t) for t in later_s),
    ]


def waiting(cap_w=300.0, *, own_s=12.0, others_s=15.0, stall_s=0.0, **more):
    """Worker 0 of four on a GPU of 50 to 300 W, of which all work `own_s` a step, but the last one `others_s`."""
    o = one_job(24 / np.array([own_s, own_s, own_s, others_s]), samples=[24] * 4, **more)
    whole_s = o.workers.step_s + np.array([stall_s, 0.0, 0.0, 0.0])
    o = change(o, "workers", wait_s=whole_s.max() - whole_s, input_stall_s=[stall_s, 0.0, 0.0, 0.0])
    return change(o, "nodes", power_idle_w=50.0, power_max_w=300.0, power_cap_w=cap_w)


def queue(*jobs, sizes=(1,), **more):
    return [cluster(list(sizes), list(jobs), **more)]


def grown(loss, *later_s):
    """A job grows, its goodput falls, and decisions follow."""
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2, "goodput_samples_per_s": 100.0}
    more = {**job, "holds": [0, 1, 2, 3]}
    return [
        cluster([4], [job]),
        cluster([4], [{**more, "goodput_samples_per_s": 100.0 - loss}], time_s=1020.0),
        cluster([4], [{**more, "goodput_samples_per_s": 101.0 - loss}], time_s=1030.0),
        *(cluster([4], [{**job, "goodput_samples_per_s": 100.5}], time_s=t) for t in later_s),
    ]


ONE = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2}
BUSY = {
    "holds": [0],
    "gpus_requested": 1,
    "service_s": 1e4,
    "restart_s": 30.0,
    "started_s": 100.0,
    "attained_gpu_s": 5000.0,
}
LONG = {"duration_s": 1e6, "service_s": 1e5, "waited_s": 1e6}
BRIEF = {"duration_s": 60.0, "service_s": 60.0}
LATE = {"duration_s": 60.0, "service_s": 6000.0, "waited_s": 5000.0}
MANY = [{"priority": 1.0 + k / 10, "service_s": 100.0 * (k + 1)} for k in range(8)]

CASES = {
    "s1.threshold": ((0.1, 3.0), rates([2.0] * 4)),
    "s1.smoothing": ((0.05, 1.0), rates([2.0] * 4, [2.0, 2.0, 2.0, 8.0])),
    "s1.trend_smoothing": ((0.0, 1.0), rates([2.0] * 4, [2, 2, 2, 4], [2, 2, 2, 6], [2, 2, 2, 8])),
    "s1.sigmas": ((5.0, 50.0), strange_norm()),
    "s1.sick_windows": ((3, 4), sick()),
    "s1.suspect_s": ((50.0, 150.0), sick()),
    "s2.priority_alpha": ((0.0, 1.0), remote()),
    "s2.rate_alpha": ((0.0, 1.0), unlike_response()),
    "s2.damping": ((0.1, 1.0), uneven()),
    "s2.epsilon": ((0.005, 0.5), uneven()),
    "s3.delay": ((0.05, 0.4), exchange() * 2),
    "s3.eta": ((0.1, 2.0), exchange(30.0)),
    "s3.interval_max": ((2, 64), exchange(30.0)),
    "s3.hysteresis": ((0.02, 0.9), exchange(30.0)),
    "s3.share_damping": ((0.2, 1.0), [shares()]),
    "s3.share_floor": ((0.1, 0.45), [shares()]),
    "s3.share_band": ((0.02, 5.0), [shares()]),
    "s3.slack": ((0.02, 0.1), [waiting()] * 2),
    "s3.power_least": ((1 / 3, 0.9), [waiting()] * 2),
    "s3.noise": ((0.01, 0.3), shares_undone(0.1)),
    "s3.backoff_windows": ((1, 100), shares_undone(0.5, 140.0, 150.0)),
    "s4.reserve_after_s": ((3600.0, 1e5), queue(LATE, BRIEF)),
    "s4.slowdown": ((10.0, 1000.0), queue(LATE, BRIEF)),
    "s4.longest_wait_s": ((1000.0, 1814400.0), queue({**LATE, "duration_s": 1e6}, BRIEF)),
    "s4.run_s": ((600.0, 5000.0), queue(BUSY, BRIEF)),
    "s4.growth": ((0.1, 10.0), queue(BUSY, BRIEF)),
    "s4.reluctance": ((2.0, 1000.0), queue(BUSY, BRIEF)),
    "s4.horizon_s": ((10.0, 1800.0), queue(ONE, sizes=(4, 2))),
    "s4.noise": ((0.01, 0.3), grown(10.0)),
    "s4.backoff_s": ((10.0, 5000.0), grown(40.0, 2500.0)),
}
OPTIMAL = ("s3.interval_max", "s3.hysteresis")


@pytest.mark.parametrize("name", CASES)
def test_it_changes_a_decision(name):
    (stage, parameter), (values, observations) = name.split("."), CASES[name]
    mode = {"mode": "optimal"} if name in OPTIMAL else {}
    one, other = (decisions(make_stage(stage, {parameter: v, **mode}), observations) for v in values)
    assert not same(one, other)


def test_the_integer_programme_has_a_time_limit():
    jobs = [{**ELASTIC, **job, "workers_max": 8} for job in MANY]
    values = []
    for limit_s in (1e-9, 5.0):
        stage = make_stage("s4", {"mode": "optimal", "time_limit_s": limit_s})
        values.append(stage.refine(cluster([8, 8], jobs), UNCHANGED, {})[0].reasons[-1].values)
    assert "s422_fallback" in values[0]
    assert "s422_configurations" in values[1]


def test_s3_waits_for_a_new_deal_above_spread():
    skewed = one_job([2.0, 2.0, 1.0, 1.0], job={"exchange_s": 500.0, "sync_interval": 4})
    planned = UNCHANGED.with_(samples_per_step=np.array([32, 32, 16, 16]))
    changed = [make_stage("s3", {"spread": s}).refine(skewed, planned, {})[0].sync_interval for s in (0.1, 0.5)]
    assert changed[0] is None
    assert changed[1] is not None


def test_every_parameter_is_here():
    elsewhere = {"s4.time_limit_s", "s3.spread"}
    for stage in ("s1", "s2", "s3", "s4"):
        for field in dataclasses.fields(make_stage(stage)):
            if field.name not in ("mode", "frozen"):
                assert f"{stage}.{field.name}" in {*CASES, *elsewhere}
