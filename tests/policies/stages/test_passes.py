"""S2 where memory does not hold a worker's samples at once: passes worked by hand, and in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_policy
from equipoise.policies.stages.s2 import Tasks
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from tests.oracles.policies import exact_deal
from tests.policies.observations import change, one_job

BOTH = pytest.mark.parametrize("mode", ["formula", "optimal"])


def seen(
    speeds: list[float],
    samples: list[int],
    *,
    pass_s: float,
    per_pass: int,
    passes: int = 1,
    **columns: object,
) -> Observation:
    """A job whose step is `passes` passes of `pass_s`, and 1 / speed a sample."""
    made = one_job(speeds, batch=sum(samples), samples=samples, fixed_s=passes * pass_s, **columns)
    workers = len(speeds)
    made = change(made, "workers", samples_per_pass=[per_pass] * workers, pass_s=[pass_s] * workers)
    return change(made, "jobs", accumulation=[passes])


def settled(
    mode: str, speeds: list[float], batch: int, pass_s: float, per_pass: int
) -> tuple[list[int], int]:
    """(deal, passes) after twelve decisions from equal shares."""
    stage, samples, memory = Tasks(mode=mode), [batch // len(speeds)] * len(speeds), None
    passes = max(1, -(-samples[0] // per_pass))
    for _ in range(12):
        observation = seen(speeds, samples, pass_s=pass_s, per_pass=per_pass, passes=passes)
        plan, memory = stage.refine(observation, UNCHANGED, stage.initial() if memory is None else memory)
        assert check(plan, observation) is None
        samples = plan.samples(observation).tolist()
        passes = passes if plan.accumulation is None else int(plan.accumulation[0])
        assert max(samples) <= per_pass * passes
    return samples, passes


def best_step_s(speeds: list[float], batch: int, pass_s: float, per_pass: int) -> tuple[float, int]:
    """The shortest step over all numbers of passes, by the plain twin of the exact deal: (s, passes)."""
    found = []
    for passes in range(1, batch + 1):
        room = [passes * per_pass] * len(speeds)
        if sum(room) >= batch:
            fixed = [passes * pass_s] * len(speeds)
            dealt = np.array(exact_deal(fixed, [1 / v for v in speeds], batch, 1, room))
            found.append((float((passes * pass_s + dealt / np.array(speeds)).max()), passes))
    return min(found)


@BOTH
@pytest.mark.parametrize(
    ("pass_s", "passes", "deal"), [(0.1, 2, [24, 8]), (16.0, 1, [16, 16])], ids=["cheap", "dear"]
)
def test_passes_are_planned_where_they_cost_less_than_the_slower_worker(
    mode: str, pass_s: float, passes: int, deal: list[int]
) -> None:
    """24 / 3 + 2 c against 16 / 1 + c: workers of 3 and 1 samples/s, whose memory holds 16 at once."""
    assert settled(mode, [3.0, 1.0], 32, pass_s, 16) == (deal, passes)


@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_the_step_is_nearly_the_shortest_over_all_passes(mode: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    speeds = draw.uniform(1.0, 4.0, 4).tolist()
    pass_s, per_pass = float(draw.uniform(0.05, 4.0)), int(draw.integers(8, 30))
    samples, passes = settled(mode, speeds, 64, pass_s, per_pass)
    took_s = float((passes * pass_s + np.array(samples) / np.array(speeds)).max())
    assert took_s <= 1.03 * best_step_s(speeds, 64, pass_s, per_pass)[0]


def test_passes_that_are_not_needed_any_more_are_taken_back() -> None:
    stage = Tasks(mode="optimal")
    observation = seen([1.0, 1.0], [16, 16], pass_s=1.0, per_pass=16, passes=3)
    plan, _ = stage.refine(observation, UNCHANGED, stage.initial())
    assert plan.accumulation is not None
    assert plan.accumulation.tolist() == [1]


@pytest.mark.parametrize(
    ("accumulation", "per_pass"), [(0, 16), (1, 2**62)], ids=["its layout's", "no bound"]
)
def test_no_passes_are_planned_where_none_can_be(accumulation: int, per_pass: int) -> None:
    observation = seen([3.0, 1.0], [16, 16], pass_s=0.1, per_pass=per_pass)
    observation = change(observation, "jobs", accumulation=[accumulation])
    plan, _ = Tasks().refine(observation, UNCHANGED, {})
    assert plan.samples_per_step is not None
    assert plan.accumulation is None


def test_a_larger_batch_pays_for_its_passes_and_plans_them() -> None:
    """As in test_batches: 200 samples are best; one pass holds 25 of the 50 of each worker."""

    def batch_of(pass_s: float) -> tuple[int, int]:
        observation = one_job([100.0] * 4, batch=32, samples=[8] * 4, fixed_s=0.1)
        asks = {"batch_reference": [32], "batch_max": [1024], "noise_scale": [1000.0], "exchange_s": [0.0]}
        observation = change(observation, "jobs", **asks)
        observation = change(observation, "workers", samples_per_pass=[25] * 4, pass_s=[pass_s] * 4)
        plan, _ = Tasks().refine(observation, UNCHANGED, {})
        assert check(plan, observation) is None
        assert plan.global_batch is not None
        return int(plan.global_batch[0]), 1 if plan.accumulation is None else int(plan.accumulation[0])

    free, paid = batch_of(0.0), batch_of(0.1)
    assert free[0] > 150
    assert free[1] == -(-free[0] // 100)
    assert 80 <= paid[0] <= 100, "what one pass holds: a second one costs as much again"
    assert paid[1] == 1


def test_in_the_simulator_a_worker_with_room_is_better_than_dear_passes_and_cheap_passes_than_that() -> None:
    """One node three times as fast, 16 samples a pass: with passes that weigh nothing S2 would always take two."""

    def took_s(fixed: str, policy: str) -> float:
        nodes = [{"name": f"n{v}", "gpus": 1, "accelerator": "t4", "speed": v} for v in (1.0, 0.33)]
        case = from_mapping({
            "schema_version": 1, "name": "passes",
            "cluster": {"nodes": nodes},
            "workload": {
                "models": {"m": {"fixed_time": fixed, "sample_time": "10 ms", "samples_per_pass": 16,
                                 "parameters": 1e6}},
                "jobs": [{"gpus": 2, "model": "m", "steps": 400, "global_batch": 32}],
            },
            "decide": {"every": "10 s"},
        })  # fmt: skip
        return run(case, policy=make_policy(policy)).summary()["makespan_s"]  # type: ignore[no-any-return]

    assert took_s("2 s", "s2") <= took_s("2 s", "none"), "equal shares in one pass are the best there are"
    assert took_s("10 ms", "s2") < 0.6 * took_s("10 ms", "none")
