"""The interval of a job that waits, and what the changes of one weigh: the controller by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED
from equipoise.policies.observation import Gpus, Jobs, Nodes, Observation, Speeds, Workers
from equipoise.policies.stages.coefficient import adapted
from equipoise.policies.stages.groups import group_workers
from equipoise.policies.stages.intervals import carried, first_intervals, level_intervals, settled_ratio

NAN = math.nan


@pytest.mark.parametrize("delay", [0.01, 0.5, 2.0, 30.0])
def test_at_the_settled_ratio_the_coefficient_is_zero(delay: float) -> None:
    ratio = settled_ratio(delay)
    assert ratio > 0.0
    assert 1.0 / (1.0 + ratio) - ratio / delay == pytest.approx(0.0, abs=1e-12)


def waits(exchange_s=5.0, **job):
    """A job of 64 samples a step waits for four GPUs; a step's work takes 1 s there, half on the second model."""
    columns = {
        "gpus_requested": 4, "global_batch": 64, "sync_interval": 7, "drift": 0.0, "attained_gpu_s": 0.0,
        "state": 0,
    } | job  # fmt: skip
    speeds = Speeds.of(
        job=[0, 0], gpu_model=[1, 0], gpus=[4, 4], samples_per_s=[128.0, 64.0], exchange_s=[NAN, exchange_s]
    )
    return Observation.of(
        0.0, jobs=Jobs.of(**{name: [value] for name, value in columns.items()}), speeds=speeds
    )


@pytest.mark.parametrize(
    ("o", "interval"),
    [
        (waits(), 5), (waits(2.4), 2), (waits(2.5), 3), (waits(0.5), 1), (waits(0.0), 1), (waits(1e4), 1000),
        (waits(drift=0.05), 3), (waits(drift=0.06), 3), (waits(drift=0.08), 2),
        (waits(7.0), None), (waits(-1.0), None),
        (waits(gpus_requested=3), None), (waits(attained_gpu_s=1.0), None), (waits(state=1), None),
        (waits(NAN), None),
    ],
)  # fmt: skip
def test_the_first_interval_follows_the_estimates(o, interval):
    """A delay of 2 settles at a ratio of 1: an exchange takes as long as the computing between two of them."""
    assert settled_ratio(2.0) == 1.0
    plan = first_intervals(o, UNCHANGED, 2.0)
    assert (None if plan.sync_interval is None else plan.sync_interval.tolist()) == (interval and [interval])


def test_the_first_interval_is_that_of_the_quickest_model():
    o = waits()
    o.speeds = Speeds.of(**o.speeds.as_dict() | {"exchange_s": [5.0, 5.0]})
    assert first_intervals(o, UNCHANGED, 2.0).sync_interval.tolist() == [10]
    memory = {"job": np.array([2, 5]), "x": np.array([1.5, 2.5])}
    assert carried(memory, "x", np.array([2, 3, 5]), np.array([9, 8, 7])).tolist() == [1.5, 8.0, 2.5]
    assert carried({}, "x", np.array([2]), np.array([9])).tolist() == [9.0]


def changed(interval=4, throughput=150.0, goodput=120.0, **columns):
    """Two workers whose longest step is 1 s, as is the exchange; the interval was 1 before."""
    workers = {"job": [0, 0], "index": [0, 1], "gpu": [0, 1], "samples_per_step": [4, 4], "step_s": [1.0, 0.5],
               "push_s": [NAN, NAN]}  # fmt: skip
    workers |= {name: columns.pop(name) for name in list(columns) if name in Workers.columns}
    jobs = {"sync_interval": [interval], "throughput_samples_per_s": [throughput], "exchange_s": [1.0]}
    return Observation.of(
        0.0, jobs=Jobs.of(**jobs, goodput_samples_per_s=[goodput], **columns),
        workers=Workers.of(**workers, node=[0, 0]),
        nodes=Nodes.of(gpus=[2], first_gpu=[0]), gpus=Gpus.of(node=[0, 0]),
    )  # fmt: skip


def weighed(o, noise=0.05, **memory):
    before = changed(1, 100.0, 100.0)
    _, _, seen = adapted(before, group_workers(before), {}, noise)
    alpha, beta, state = adapted(o, group_workers(o), seen | memory, noise)
    return alpha[0], beta[0], state


def test_what_a_changed_interval_did_weighs_speed_and_delay():
    """Expected: (1 + 1) / (1 + 1/4) = 1.6 times as fast; it was 1.5 times, and of that 1.25 was lost to drift."""
    p, t, lost = math.log(1.6), math.log(1.5), math.log(1.25)
    alpha, beta, state = weighed(changed())
    assert beta == pytest.approx((t * p + 0.0025) / (p * p + 0.0025))
    assert alpha == pytest.approx(1.0 + lost * p / (0.0025 + p * p))
    assert [state[name][0] for name in ("predicted", "faster", "lost")] == pytest.approx(
        [p * p, t * p, lost * p]
    )
    sums = {"predicted": np.array([1.0]), "faster": np.array([0.5]), "lost": np.array([0.25])}
    assert weighed(changed(), **sums)[2]["faster"][0] == pytest.approx(0.4 + t * p)  # four fifths of what was
    assert weighed(changed(throughput=100.0 * 1.6 * 1.6))[1] < 2.0
    assert weighed(changed(throughput=101.0, goodput=101.0))[1] == 0.5  # at least half of the default
    assert weighed(changed(goodput=100.0))[0] == pytest.approx(1.0 + t * p / (0.0025 + p * p))


@pytest.mark.parametrize(
    "columns",
    [
        {"samples_per_step": [5, 3]}, {"samples_per_step": [5, 4]},
        {"gpu": [0, 2]}, {"far_every": [2]}, {"push_s": [NAN, 1.0]}, {"interval": 1},
        {"throughput": 100.0}, {"throughput": 300.0, "goodput": 300.0}, {"throughput": 95.0, "goodput": 95.0},
        {"goodput": 85.0}, {"goodput": 260.0}, {"goodput": NAN},
    ],
)  # fmt: skip
def test_changes_with_another_cause_weigh_nothing(columns):
    alpha, beta, _ = weighed(changed(**columns))
    assert (alpha, beta) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("job", "acts", "hysteresis", "expected"),
    [
        # Both grow by their coefficients, to 4 and 16; the drift would bound the second at 1 + 0.1 / 0.00588 = 18.
        ({}, True, 0.1, (4, 4, 4.0, 16.0)), ({}, True, 0.9, (1, 1, 4.0, 16.0)),
        # At a drift of 0.02 near steps leave 0.6 of what is allowed: 1 + 0.1 / (0.01 / 0.7) = 8.
        ({"drift": [0.02]}, True, 0.1, (4, 2, 4.0, 8.0)), ({}, False, 0.1, (1, 1, 1.0, 1.0)),
        ({"sync_interval": [3], "far_every": [4]}, False, 0.1, (3, 4, 3.0, 12.0)),
        ({"sync_interval": [1], "far_every": [2]}, True, 0.9, (4, 8, 4.0, 32.0)),  # two levels are in force already
    ],
)  # fmt: skip
def test_intervals_of_two_levels_follow_their_coefficients(job, acts, hysteresis, expected):
    """Of four workers with steps of 1 s near exchanges take 0.1 s, those of all 2 s."""
    columns = {
        "near_exchange_s": [0.1],
        "drift": [0.01],
        "far_ratio": [0.5],
        "far_every": [1],
        "sync_interval": [1],
    }
    o = Observation.of(
        0.0, jobs=Jobs.of(**columns | ({"drift": [0.001]} if job.get("far_every") == [2] else {}) | job),
        workers=Workers.of(job=[0] * 4, index=range(4), gpu=range(4), node=[0] * 4, step_s=[1.0] * 4),
        nodes=Nodes.of(gpus=[4], first_gpu=[0]), gpus=Gpus.of(node=[0] * 4),
    )  # fmt: skip
    eta = 0.5

    def coefficient(interval, exchange_s):
        return np.where(exchange_s < 1.0, -math.log(4.0) / eta, -math.log(16.0) / eta)

    one, may = np.array([1]), np.array([acts])
    interval, every, state = level_intervals(
        o, group_workers(o), {}, one, np.array([2.0]), may, coefficient, eta, 0, hysteresis
    )
    assert (interval.tolist(), every.tolist()) == ([expected[0]], [expected[1]])
    assert (state["near_interval"][0], state["far_interval"][0]) == pytest.approx(expected[2:])
