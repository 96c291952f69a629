"""A plan may change a job's batch where the job says how far: it is dealt, costs and counts as one does."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from equipoise import api
from equipoise.policies.contract import Plan, Policy, Stage, check
from equipoise.policies.learning import with_rates
from equipoise.policies.registry import make_policy
from equipoise.sim.job.pending import Asked, Pending
from equipoise.sim.run import RunFailed
from equipoise.sim.scenario.tree import InputError
from tests.policies.observations import change, one_job

PHI, FIRST, STEP_S = 1000.0, 32, 0.1


def case(**job):
    model = {"fixed_time": STEP_S, "sample_time": 0.001, "noise_scale": PHI}
    return {
        "schema_version": 1,
        "name": "batch",
        "cluster": {"nodes": [{"count": 1, "gpus": 2}]},
        "workload": {
            "models": {"m": model},
            "jobs": [{"gpus": 2, "model": "m", "steps": 100, "global_batch": FIRST} | job],
        },
        "decide": {"every": 1.0},
    }


@dataclass(frozen=True)
class Batch(Stage):
    """Asks for one batch, with the learning rate that belongs to it."""

    name: ClassVar[str] = "batch"
    kind: ClassVar[str] = "tasks"
    batch: int = 128

    def refine(self, observation, plan, memory):
        batch = np.full(len(observation.jobs), self.batch)
        if (batch == observation.jobs.global_batch).all():
            return plan.because(self.name, "as it is"), memory
        plan = with_rates(observation, plan.with_(global_batch=batch))
        return plan.because(self.name, "another batch"), memory


def run(spec, *stages):
    return api.run(spec, policy=Policy("mine", (*stages, *make_policy("fifo").stages)))


@pytest.mark.parametrize("batch", [64, 128])
def test_a_larger_batch_takes_longer_steps_and_fewer_of_them(batch):
    """Each sample counts (phi + M0) / (phi + M); the plan that starts the job acts on its first step."""
    made = run(case(batch_max=256), Batch(batch))
    worth = batch * (PHI + FIRST) / (PHI + batch)
    steps = np.ceil(100 * FIRST / worth)
    assert made.jobs["steps"].tolist() == [steps]
    assert made.jobs["samples"].tolist() == [steps * batch]
    assert made.summary()["makespan_s"] == pytest.approx(steps * (STEP_S + 0.001 * batch / 2))


def test_both_ways_of_advancing_time_agree():
    from equipoise.sim.loading.file import from_mapping
    from equipoise.sim.run import run as simulate

    policy = Policy("mine", (Batch(96), *make_policy("fifo").stages))
    spec = from_mapping(case(batch_max=256))
    fast, plain = (simulate(spec, policy=policy, event_by_event=slow) for slow in (False, True))
    assert fast.summary() == pytest.approx(plain.summary(), nan_ok=True)


@pytest.mark.parametrize(
    ("job", "batch", "said"),
    [
        ({}, 64, "gets a batch of 64, allowed: its own, 32: it has no batch_max"),
        ({"batch_max": 128}, 256, "gets a batch of 256, allowed: 32 to 128"),
        ({"batch_max": 128}, 16, "gets a batch of 16, allowed: 32 to 128"),
    ],
)
def test_no_batch_beyond_what_the_job_allows(job, batch, said):
    with pytest.raises(RunFailed, match=said):
        run(case(**job), Batch(batch))


def test_a_batch_that_would_cost_nothing_is_refused():
    spec = case(batch_max=64)
    del spec["workload"]["models"]["m"]["noise_scale"]
    with pytest.raises(InputError, match="a larger batch would cost nothing"):
        api.run(spec)
    with pytest.raises(InputError, match="'batch_max' must not be below 'global_batch'"):
        api.run(case(batch_max=16))


def test_the_batch_is_a_part_of_the_plan():
    observation = change(one_job([2.0, 1.0]), "jobs", batch_max=[200])
    assert check(Plan(global_batch=np.array([150])), observation) is None
    assert not Plan(global_batch=np.array([150])).changes_nothing()
    assert "global_batch" in check(Plan(global_batch=np.array([150.0])), observation)


def test_a_job_keeps_its_batch_over_a_restart():
    """A node crash in the middle: the job goes on with the batch that it had."""
    spec = case(batch_max=256, steps=400) | {
        "faults": {"events": [{"kind": "crash", "node": "node-0", "at": "5 s", "duration": "1 s"}]}
    }
    made = run(spec, Batch(128))
    assert made.jobs["restarts"][0] > 0
    trained = made.jobs["useful_samples"][0] / made.jobs["samples"][0]
    assert trained == pytest.approx((PHI + FIRST) / (PHI + 128), rel=0.02)


def test_what_is_held_for_later_steps_acts_in_its_order():
    asked = Asked()
    assert asked.steps_left(3) > 1e9
    asked.held = [(5, Pending(interval=2)), (9, Pending(interval=4))]
    assert asked.steps_left(3) == 2
    assert asked.take(5).interval == 2
    assert asked.steps_left(5) == 4
