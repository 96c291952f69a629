"""All traces together, by hand: means of means, and what is left out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from equipoise.study.bounds import Bound
from equipoise.study.runs import warm
from equipoise.study.runs.across import Line, Together, across
from equipoise.study.runs.compare import Comparison, Result
from equipoise.study.statistics import Interval, mean_interval


def compared(
    values: dict[str, list[float]],
    bound: tuple[float, float, bool] = (40.0, 20.0, False),
    failures: tuple[str, ...] = (),
    *,
    random: bool = True,
    **more: Any,
) -> Comparison:
    """Policies with one makespan by seed, from seed 5 on; `more`: groups of their runs."""
    seeds = tuple(range(5, 5 + max(map(len, values.values()))))
    results = tuple(
        Result(
            policy, seed, "x", {"jobs": 2.0, "completed": 2.0, "makespan_s": made_s},
            groups={name: made_s * times[k] for name, times in more.items() if k < len(times)},
        )
        for policy, listed in values.items()
        for k, (seed, made_s) in enumerate(zip(seeds, listed, strict=False))
    )  # fmt: skip
    return Comparison(
        "one", tuple(values), seeds, results, Bound(*bound), (), failures=failures, random=random
    )


def test_a_trace_counts_once_however_many_seeds_it_has() -> None:
    a = compared(
        {"fifo": [50.0, 70.0], "sjf": [44.0, 46.0], "las": [9.0, 9.0]}, (40.0, 20.0, False), ("las bad",)
    )
    b = compared({"fifo": [90.0], "sjf": [80.0]}, (70.0, 26.0, True), ("sjf worse", "x"))
    c = compared({"sjf": [31.0], "fifo": [33.0]}, (25.0, 5.0, False))
    whole = across({"a": a, "b": b, "c": c})
    assert (whole.scenario_name, whole.policies, whole.seeds, whole.unit) == (
        "all traces", ("fifo", "sjf"), (0, 1, 2), "trace"
    )  # fmt: skip
    assert whole.bound == Bound(45.0, 17.0, True)
    assert whole.failures == ("a: las bad", "b: sjf worse", "b: x")
    assert [(r.policy, r.seed, r.identity, r.metrics["makespan_s"]) for r in whole.results] == [
        ("fifo", 0, "a", 60.0), ("fifo", 1, "b", 90.0), ("fifo", 2, "c", 33.0), ("sjf", 0, "a", 45.0),
        ("sjf", 1, "b", 80.0), ("sjf", 2, "c", 31.0),
    ]  # fmt: skip
    assert set(whole.results[0].metrics) == {"jobs", "completed", "makespan_s"}
    assert across({"a": a, "c": c}).bound.noise_free is False
    with pytest.raises(ValueError, match="no policy has run everywhere"):
        across({"a": compared({"fifo": [1.0]}), "b": compared({"sjf": [1.0]})})


def test_a_group_is_told_where_every_seed_has_it() -> None:
    made = across({"a": compared({"fifo": [50.0, 70.0]}, both=(2.0, 3.0), once=(5.0,))})
    assert made.results[0].groups == {"both": 155.0}


def test_what_is_over_all_scenarios() -> None:
    """Each has the same weight, and a policy that is missing somewhere is nowhere."""
    a = compared({"fifo": [40.0, 90.0], "sjf": [10.0, 22.5], "las": [1.0, 2.0]}, failures=("late",))
    b = compared({"fifo": [64.0, 32.0], "sjf": [64.0, 32.0]}, random=False)
    both = Together({"a": a, "b": b})
    assert both.policies == ("fifo", "sjf")
    assert both.failures == ("a: late",)
    assert repr(both) == "<fifo, sjf on a, b>"
    assert both.title == (
        "2 scenarios, 4 pairs of runs: mean ± 95 % interval; ratio to fifo, Cohen's d; * p < 0.05, ** p < 0.01 "
        "after Holm"
    )
    lines = {(x.scenario, x.policy): x for x in both.lines if x.metric == "makespan_s"}
    assert list(lines) == [
        (name, policy)
        for name in ("a", "b", "all, over seeds", "all, over scenarios")
        for policy in ("fifo", "sjf")
    ]  # fmt: skip
    assert lines["a", "sjf"].value == mean_interval([10.0, 22.5])
    assert [lines["a", p].pairs for p in ("fifo", "sjf")] == [2, 2]
    assert [lines[name, "sjf"].ratio.mean for name in ("a", "b")] == pytest.approx([0.25, 1.0])
    assert math.isnan(lines["a", "fifo"].p)
    for name in ("all, over seeds", "all, over scenarios"):
        assert math.isnan(lines[name, "fifo"].p)
        assert lines[name, "fifo"].ratio.mean == 1.0
        assert math.isnan(lines[name, "sjf"].value.mean)
        assert lines[name, "sjf"].value.n == 0
    assert lines["all, over seeds", "sjf"].ratio.mean == pytest.approx(0.5)  # of a quarter and one
    # Means of 65 and 48, and of 16.25 and 48.
    assert lines["all, over scenarios", "sjf"].ratio.mean == pytest.approx(0.5)
    assert lines["all, over scenarios", "sjf"].pairs == 2
    content = json.loads(both.as_json())
    assert (content["schema_version"], content["scenarios"], content["policies"]) == (
        1,
        ["a", "b"],
        ["fifo", "sjf"],
    )
    assert (content["confidence"], content["failures"]) == (0.95, ["a: late"])
    assert len(content["rows"]) == len(both.lines)


def test_a_line_as_plain_data() -> None:
    made = Line("m", "s", "p", 3, Interval(5.0, 4.0, 6.5, 3), Interval(0.5, 0.25, 0.75, 3), 0.125, -2.0)
    assert made.row() == {
        "metric": "m", "scenario": "s", "policy": "p", "pairs": 3, "mean": 5.0, "low": 4.0, "high": 6.5,
        "ratio": 0.5, "ratio_low": 0.25, "ratio_high": 0.75, "p": 0.125, "effect": -2.0,
    }  # fmt: skip


def test_the_case_that_compiles_kernels_is_small_and_has_of_everything() -> None:
    """Two kinds of nodes, a slow link, jobs that train and jobs that do not, data, noise and a fault."""
    made = warm._case(alone=False, moves=True, noise=True)
    assert [(group.count, group.gpus, group.speed) for group in made.cluster.groups] == [
        (2, 2, 1.0),
        (2, 2, 0.5),
    ]
    training, rigid = made.workload.jobs
    assert (training.count, training.gpus, training.steps, training.global_batch) == (2, 4, 60, 32)
    assert training.data is not None
    assert (training.data.samples, training.data.shards) == (640, 32)
    assert training.data.samples == 20 * training.global_batch
    assert (rigid.count, rigid.gpus, rigid.duration, rigid.spacing) == (3, 2, 5.0, 1.0)
    model = made.workload.models["model"]
    assert (model.fixed_time, model.sample_time, model.parameters, model.overlap) == (1e-3, 1e-3, 1e6, 2.0)
    assert (model.noise_scale, model.drift, made.decide.every_steps, made.noise.step_cov) == (
        100.0,
        0.01,
        5,
        0.1,
    )
    (fault,) = made.faults.events
    assert (fault.kind, fault.node, fault.at, fault.duration) == ("slow", "slow-0", 1.0, 2.0)
