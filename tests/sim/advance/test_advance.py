"""The fast time advance against its oracle, and the conservation laws of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_policy
from equipoise.sim.job.account import HELD_USES
from equipoise.sim.record import Run
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from tests.scenarios import cases, model, scenario, shared_links, simulate

COUNTS = ("samples", "lost_samples", "steps", "preemptions", "restarts", "gpus", "job_id")
POLICIES = (
    "fifo",
    "s1+s2+fifo",
    "s1+s2+s3+easy",
    "locality+equal+fixed-h+las",
    "srtf",
    "s1+s2+s3+s4",
    "s1+s2+s4+levels",
    "s1+s2+fifo+levels",
)


def assert_equal(fast: Run, oracle: Run) -> None:
    for name in COUNTS:
        assert fast.jobs[name].tolist() == oracle.jobs[name].tolist(), name
    for name, values in oracle.jobs.items():
        if name not in COUNTS and name != "name":
            np.testing.assert_allclose(fast.jobs[name], values, rtol=1e-9, atol=1e-9, err_msg=name)
    for name, value in oracle.totals.items():
        assert fast.totals[name] == pytest.approx(value, rel=1e-9, abs=1e-6), name


def assert_conserved(run: Run) -> None:
    jobs, totals = run.jobs, run.totals
    used = sum(jobs[use.column].sum() for use in HELD_USES)
    capacity = totals["gpus"] * totals["makespan_s"]
    assert used + totals["idle_gpu_s"] == pytest.approx(capacity)
    assert totals["idle_gpu_s"] >= -1e-6 * capacity
    for use in HELD_USES:
        assert (jobs[use.column] >= -1e-6).all(), use
    assert (jobs["start_s"] >= jobs["arrival_s"]).all()
    assert (jobs["completion_s"] >= jobs["start_s"]).all()
    assert (jobs["queueing_s"] >= 0).all()


@dataclass(frozen=True)
class Levels(Stage):
    """Near workers exchange often, all of them seldom, and how often changes with every decision."""

    name: ClassVar[str] = "levels"
    kind: ClassVar[Kind] = "sync"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """One to four exchanges per exchange of all workers, of one or two steps each."""
        jobs, turn = observation.jobs, int(memory.get("turn", 0))
        every = np.where(np.isnan(jobs.near_exchange_s), 1, 1 + (np.arange(len(jobs)) + turn) % 4)
        interval = 1 + (np.arange(len(jobs)) + turn // 2) % 2
        return plan.with_(far_every=every, sync_interval=interval), {"turn": turn + 1}


def run_pair(case: Scenario, text: str, seed: int) -> None:
    """The same in both time advances, and nothing is lost."""
    policy = make_policy(text.removesuffix("+levels"))
    if text.endswith("+levels"):
        policy = Policy(text, (*policy.stages, Levels()))
    fast, oracle = (run(case, policy=policy, seed=seed, event_by_event=plain) for plain in (False, True))
    assert_equal(fast, oracle)
    assert_conserved(fast)


PAIRS = (st.one_of(cases(), cases(), shared_links()), st.sampled_from(POLICIES), st.integers(0, 3))


def run_pairs(seed: int, number: int) -> None:
    """So many random pairs, the same ones for a seed."""
    checks = settings(deadline=None, max_examples=number, database=None, suppress_health_check=list(HealthCheck))
    hypothesis.seed(seed)(checks(given(*PAIRS)(run_pair)))()


@pytest.mark.parametrize("part", range(2))
def test_fast_advance_equals_event_by_event(part: int) -> None:
    run_pairs(1000 + part, 50)


@pytest.mark.long
@pytest.mark.parametrize("part", range(50))
def test_fast_advance_equals_event_by_event_in_5000_pairs(part: int) -> None:
    run_pairs(part, 100)


def test_near_workers_exchange_often_and_all_of_them_seldom() -> None:
    """By hand: steps of 80 ms; near exchanges of 10 MB at 1e10 B/s inside a node, all at 1e8 B/s between nodes."""
    case = scenario(
        cluster={"nodes": [{"name": "n", "count": 2, "gpus": 2, "accelerator": "generic", "nic": 1e8}]},
        workload={
            "models": {"m": model(gradient=1e7, drift=0.1, noise_scale=None)},
            "jobs": [{"gpus": 4, "model": "m", "steps": 100, "global_batch": 32}],
        },
        decide={"every_steps": 4},
    )

    def of(every: int) -> Run:
        policy = Policy("fixed", (*make_policy("fifo").stages, Fixed(every)))
        return run(case, policy=policy, seed=0)

    plain, levels = of(1), of(3)
    near_s, far_s = 2 * 0.5 * 1e7 / 1e10, 2 * 0.75 * 1e7 / 1e8
    assert plain.jobs["completion_s"][0] == pytest.approx(100 * (0.08 + far_s))
    # Decided after 4 steps. One in three of the directions drifts for three steps; the last exchange is of all.
    after = math.ceil(96 * (1 + 0.1 * (1 / 3) * 2))
    far = 4 + math.ceil(after / 3)
    assert levels.jobs["steps"][0] == 4 + after
    expected_s = (4 + after) * 0.08 + far * far_s + (4 + after - far) * near_s
    assert levels.jobs["completion_s"][0] == pytest.approx(expected_s)


@dataclass(frozen=True)
class Fixed(Stage):
    """So many exchanges per exchange of all workers."""

    every: int = 1
    name: ClassVar[str] = "fixed"
    kind: ClassVar[Kind] = "sync"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """The same in every decision."""
        known = np.isfinite(observation.jobs.near_exchange_s)
        return plan.with_(far_every=np.where(known, self.every, 1)), memory


def four_jobs(parameters: tuple[float, float], jobs: list[dict[str, Any]], **changes: Any) -> Scenario:
    """Jobs on a quarter of the same four GPUs, on nodes of which one is slow, with slow exchanges."""
    keys = {"overlap": 1.5, "exchange": {"alpha": 1e-5, "rate": 1e8}}
    models = {f"m{k}": model(sample_time=0.004 + 0.003 * k, parameters=parameters[k], **keys) for k in range(2)}
    base = {"gpus": 4, "gpu_share": 0.25, "epochs": 2}
    return scenario(
        cluster={
            "nodes": [
                {"name": "n", "count": 3, "nic": 1e9, "storage_rate": 5e8},
                {"name": "w", "speed": 0.5, "nic": 1e9},
            ]
        },
        workload={
            "models": models,
            "jobs": [base | {"name": f"j{k}", "model": f"m{k % 2}"} | job for k, job in enumerate(jobs)],
        },
        decide={"every_steps": 5},
        **changes,
    )


def test_what_s2_sees_of_transfers_does_not_depend_on_the_time_advance() -> None:
    """Counted as flows alive, they gave 87.82 s fast and 87.97 s event by event."""
    skewed = {"kind": "skewed", "exponent": 1.5, "over": "cluster"}
    first = {"kind": "nodes", "nodes": ["n-0"]}
    even = {"kind": "even", "over": "cluster"}
    jobs = [
        {
            "arrival": at_s,
            "global_batch": batch,
            "data": dict(zip(("samples", "sample_size", "shards", "placement"), data, strict=True)),
        }
        for at_s, batch, data in (
            (1.866, 24, (2400, 1e5, 12, even)),
            (1.925123, 24, (2400, 1e5, 24, skewed)),
            (0.078123, 24, (2400, 1e6, 12, first)),
            (2.646123, 32, (1200, 1e5, 24, first)),
        )
    ]
    case = four_jobs((5e6, 1e7), jobs, noise={"step_cov": 0.2})
    assert_equal(simulate(case, "s1+s2"), simulate(case, "s1+s2", event_by_event=True))


def two_speeds(batch: int, **changes: object) -> Scenario:
    return scenario(
        cluster={
            "nodes": [
                {"name": "fast", "count": 4, "gpus": 1, "accelerator": "generic"},
                {"name": "slow", "count": 4, "gpus": 1, "accelerator": "generic", "speed": 0.5},
            ]
        },
        workload={
            "models": {"m": model()},
            "jobs": [
                {
                    "gpus": 8,
                    "model": "m",
                    "epochs": 1,
                    "global_batch": batch,
                    "data": {"samples": 2000 * batch, "shards": 64},
                }
            ],
        },
        decide={"every_steps": 10},
        **changes,
    )


def test_equal_shares_wait_for_the_slow_half() -> None:
    run = simulate(two_speeds(96), "none")
    # 12 samples of 20 ms on the slow nodes, 2,000 steps; the fast ones idle half of the time.
    assert run.jobs["completion_s"][0] == pytest.approx(2000 * 12 * 0.02)
    assert run.summary()["gpu_busy_ratio"] == pytest.approx(0.75)


@pytest.mark.parametrize(("batch", "slowest_ms"), [(96, 16 * 10), (100, 17 * 10)])
def test_s1_and_s2_reach_the_best_integer_deal(batch: int, slowest_ms: int) -> None:
    run = simulate(two_speeds(batch), "s1+s2")
    best_s = 2000 * slowest_ms / 1000
    assert run.jobs["completion_s"][0] <= best_s / 0.98
    equal = simulate(two_speeds(96), "none")
    if batch == 96:
        assert equal.jobs["completion_s"][0] / run.jobs["completion_s"][0] >= 1.47


@pytest.mark.parametrize("policy", ["s1", "s2", "s1+s2"])
def test_equal_nodes_leave_the_plan_unchanged_to_the_bit(policy: str) -> None:
    case = scenario(
        cluster={"nodes": [{"count": 8, "gpus": 1, "accelerator": "generic"}]},
        workload={
            "models": {"m": model()},
            "jobs": [{"gpus": 8, "model": "m", "epochs": 1, "global_batch": 96, "data": {"samples": 19200}}],
        },
        decide={"every_steps": 10},
    )
    plain, staged = simulate(case, "none"), simulate(case, policy)
    for name, values in plain.jobs.items():
        assert values.tolist() == staged.jobs[name].tolist(), name


@pytest.mark.parametrize("sample_s", [0.0023, 0.0031, 0.0047, 0.0053])
def test_jobs_of_equal_length_end_at_one_instant(sample_s: float) -> None:
    """Exchanging every step or every second: 17 steps are over at the same bit."""
    job = {"model": "model", "arrival": 1.000123, "steps": 17, "global_batch": 8}
    case = scenario(
        workload={
            "models": {"model": model(sample_time=sample_s, parameters=0)},
            "jobs": [{"name": f"job{h}", "sync_interval": h, **job} for h in (1, 2)],
        }
    )
    fast, oracle = simulate(case), simulate(case, event_by_event=True)
    assert len(set(fast.jobs["completion_s"].tolist() + oracle.jobs["completion_s"].tolist())) == 1
    assert fast.totals["decisions"] == oracle.totals["decisions"]


@pytest.mark.parametrize("at_s", [0.05, 0.1, 0.2])
def test_a_period_that_waited_for_data_is_not_shorter_than_its_last_worker(at_s: float) -> None:
    """Its end is a time and its parts are lengths of time, which differ by rounding: 4.5664 s - 0 s < sum."""
    crash = {"kind": "crash", "node": "a-0", "at": at_s, "duration": at_s}
    case = scenario(
        cluster={"nodes": [{"name": name, "gpus": 1, "nic": 1e9, "storage_rate": 2e9} for name in "ab"]},
        workload={
            "models": {"model": model(sample_time=0.0117, fixed_time=0.0, parameters=0)},
            "jobs": [
                {
                    "name": "job",
                    "gpus": 1,
                    "gpu_share": 0.5,
                    "model": "model",
                    "epochs": 1,
                    "global_batch": 8,
                    "data": {
                        "samples": 24,
                        "sample_size": 200_000,
                        "shards": 1,
                        "placement": {"kind": "even", "over": "job"},
                    },
                    "checkpoint": {"size": 1e9, "interval": "never"},
                }
            ],
        },
        faults={"events": [crash]},
        restart={"detection": 1.1, "rescheduling": 0.0, "initialisation": 2.3},
    )
    run = simulate(case, "fifo-greedy")
    assert run.jobs["restarts"].tolist() == [1]
    assert run.jobs["input_stall_gpu_s"] > 0.0
    assert run.jobs["exposed_communication_gpu_s"].tolist() == [0.0]


def test_an_interruption_that_changes_nothing_changes_nothing() -> None:
    case = two_speeds(96, noise={"step_cov": 0.3})
    plain = simulate(case, "none")
    observed = simulate(case.model_copy(update={"decide": case.decide.model_copy(update={"every": 0.777})}))
    assert plain.jobs["completion_s"].tolist() == observed.jobs["completion_s"].tolist()
    assert plain.jobs["busy_gpu_s"].tolist() == observed.jobs["busy_gpu_s"].tolist()


@dataclass(frozen=True)
class Uneven(Stage):
    """Once, as soon as two workers of different speed are seen: twice as many samples for the first."""

    name: ClassVar[str] = "uneven"
    kind: ClassVar[Kind] = "tasks"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Samples of 20 and 10."""
        if memory or not len(observation.workers):
            return plan, memory
        return plan.with_(samples_per_step=np.array([20, 10])), {"done": 1}


@pytest.mark.parametrize("event_by_event", [False, True])
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_a_plan_acts_so_many_rounds_later_and_falls_with_its_workers(delay: int, event_by_event: bool) -> None:
    """By hand: 300 ms a step as dealt at first, 200 ms as planned after 5 of 20 steps."""

    def completion_s(**changes: Any) -> float:
        case = scenario(
            cluster={"nodes": [{"name": "fast"}, {"name": "slow", "speed": 0.5}]},
            workload={
                "models": {"m": model()},
                "jobs": [
                    {"gpus": 2, "model": "m", "steps": 20, "global_batch": 30, "checkpoint": {"interval": "never"}}
                ],
            },
            decide={"every_steps": 5, "delay_rounds": delay},
            restart={"detection": 0.0, "rescheduling": 0.0, "initialisation": 0.0},
            **changes,
        )
        policy = Policy("late", (*make_policy("fifo").stages, Uneven()))
        return float(run(case, policy=policy, seed=0, event_by_event=event_by_event).jobs["completion_s"][0])

    assert completion_s() == pytest.approx((5 + delay) * 0.3 + (15 - delay) * 0.2)
    crash = {"kind": "crash", "node": "fast-0", "at": 1.6, "duration": 0.4}
    assert completion_s(faults={"events": [crash]}) == pytest.approx(2.0 + 20 * 0.3)
