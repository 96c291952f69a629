"""A plan may have a step computed in several passes: each costs what does not grow with its samples, once."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from equipoise import api
from equipoise.policies.contract import Plan, Policy, Stage, check
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import RunFailed
from equipoise.sim.run import run as simulate
from tests.policies.observations import change, one_job

FIXED_S, SAMPLE_S, BATCH, STEPS = 0.1, 0.01, 32, 100


def case(**model):
    given = {"fixed_time": FIXED_S, "sample_time": SAMPLE_S, "gradient": 0} | model
    return {
        "schema_version": 1,
        "name": "passes",
        "cluster": {"nodes": [{"count": 1, "gpus": 2}]},
        "workload": {
            "models": {"m": given},
            "jobs": [{"gpus": 2, "model": "m", "steps": STEPS, "global_batch": BATCH}],
        },
        "decide": {"every": 1.0},
    }


@dataclass(frozen=True)
class Passes(Stage):
    """Asks for so many passes."""

    name: ClassVar[str] = "passes"
    kind: ClassVar[str] = "tasks"
    passes: int = 4

    def refine(self, observation, plan, memory):
        return plan.with_(accumulation=np.full(len(observation.jobs), self.passes)), memory


def policy(passes):
    return Policy("mine", (Passes(passes), *make_policy("fifo").stages))


@pytest.mark.parametrize(("passes", "held", "counted"), [(1, None, 1), (4, None, 4), (3, 4, 4), (4, 8, 4)])
def test_each_pass_costs_its_fixed_part(passes, held, counted):
    """16 samples for each of 2 workers; memory that holds `held` of them asks for passes of its own."""
    limit = {} if held is None else {"samples_per_pass": held}
    made = api.run(case(**limit), policy=policy(passes))
    assert made.jobs["completion_s"][0] == pytest.approx(STEPS * (counted * FIXED_S + 16 * SAMPLE_S), rel=1e-6)
    assert made.jobs["steps"][0] == STEPS  # passes are no steps: nothing counts less


def test_both_ways_of_advancing_time_agree():
    fast, plain = (simulate(from_mapping(case()), policy=policy(3), event_by_event=slow) for slow in (False, True))
    assert fast.summary() == pytest.approx(plain.summary(), nan_ok=True)


@pytest.mark.parametrize("passes", [0, BATCH + 1])
def test_no_fewer_than_one_pass_and_no_more_than_samples(passes):
    with pytest.raises(RunFailed, match=f"gets {passes} passes a step, allowed: 1 to {BATCH}"):
        api.run(case(), policy=policy(passes))


def test_where_a_layout_says_the_passes_a_plan_does_not():
    observation = change(one_job([2.0, 1.0]), "jobs", accumulation=[0])
    assert check(Plan(accumulation=np.array([0])), observation) is None
    assert "allowed: 0, its layout sets them" in check(Plan(accumulation=np.array([2])), observation)
    assert not Plan(accumulation=np.array([2])).changes_nothing()
