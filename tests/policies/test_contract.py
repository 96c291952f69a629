"""The contract suite over every registered stage, and that the suite would notice a bad one."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, Allocation, Stage, StageError, check, refine
from equipoise.policies.contract import Policy as PolicyOf
from equipoise.policies.observation import Gpus, Jobs, Nodes, Observation, writable
from equipoise.policies.registry import BUILT_IN
from tests.policies import contract_suite
from tests.policies.contract_suite import *  # noqa: F403 - collects the suite's tests
from tests.policies.observations import one_job

OBSERVATION = one_job([2.0, 1.0])
calls = []


def test_every_built_in_stage_is_in_the_suite():
    assert {label for label, _ in contract_suite.cases()} >= set(BUILT_IN)
    assert {stage.name for _, stage in contract_suite.cases()} >= set(BUILT_IN), "a stage is named otherwise"


@dataclass(frozen=True)
class Bad(Stage):
    """Breaks one rule, chosen by `how`."""

    name: ClassVar[str] = "bad"
    kind: ClassVar[str] = "tasks"
    how: str = "raises"

    def refine(self, observation, plan, memory):
        """Break a rule."""
        workers = observation.workers
        if self.how == "raises":
            raise RuntimeError("no idea")
        if self.how == "infeasible":
            return plan.with_(samples_per_step=workers.samples_per_step + 1).because("bad", "deals too much"), {}
        if self.how == "writes":
            writable(workers, "wait_s")[0] += 1.0
        if self.how == "unrepeatable":
            calls.append(how := len(calls))
            return plan.because("bad", "counts its calls", calls=how), {}
        if self.how == "silent":
            return plan, {}
        if self.how == "remembers objects":
            return plan.because("bad", "keeps the table"), {"table": workers}
        if self.how == "writes memory":
            memory["seen"] += 1
        return plan.because("bad", "did it"), memory


@pytest.mark.parametrize("how", ["infeasible", "writes", "remembers objects", "unrepeatable", "silent"])
def test_the_suite_notices(how):
    with pytest.raises((AssertionError, TypeError)):
        contract_suite.run(Bad(how), one_job([2.0, 1.0]))


def test_the_suite_notices_memory_written_in_place():
    with pytest.raises((AssertionError, ValueError)):
        contract_suite.run(Bad("writes memory"), OBSERVATION, memory={"seen": np.zeros(1)})


@pytest.mark.parametrize("how", ["raises", "infeasible"])
def test_a_bad_stage_is_named(how):
    with pytest.raises(StageError, match=r"stage bad at 100 s: .*(no idea|samples_per_step)"):
        refine(PolicyOf("p", (Bad(how),)), OBSERVATION, {})


@pytest.mark.parametrize(
    ("job", "given", "said"),
    [
        ({}, range(9), "job row 0 gets 9 GPUs of the 4 there are, allowed: 2, or none: it is rigid"),
        ({"workers_min": 1, "workers_max": 2}, range(3), "gets 3 GPUs of the 4 there are, allowed: 1 to 2"),
        ({"rigid": False, "workers_max": 3}, range(6), "gets 6 GPUs of the 4 there are, allowed: 1 to 3, or none"),
        (
            {"rigid": False, "gpus_per_worker": 2, "workers_max": 2},
            range(3),
            "gets 3 GPUs of the 4 there are, allowed: 2 to 4 in steps of 2, or none",
        ),
        ({"rigid": False, "workers_max": 9}, range(6), "GPU 4 for job row 0 does not exist: there are 4, from 0"),
        ({}, (1, -1), "GPU -1 for job row 0 does not exist: there are 4, from 0"),
        ({}, (1, 3), None),
    ],
)
def test_more_gpus_than_a_job_may_have_or_there_are(job, given, said):
    columns = {"id": 7, "rigid": True, "gpus_requested": 2, "workers_min": 1, "workers_max": 1} | job
    observation = Observation.of(
        0.0,
        1.0,
        jobs=Jobs.of(**{name: [value] for name, value in columns.items()}),
        nodes=Nodes.of(gpus=[4], first_gpu=[0], gpus_free=[4], up=[True]),
        gpus=Gpus.of(node=np.zeros(4), job=np.full(4, -1), memory_bytes=np.full(4, np.inf)),
    )
    problem = check(UNCHANGED.with_(allocation=Allocation.of([(0, given)])), observation)
    assert (problem is None) if said is None else (said in problem)


def test_a_row_left_as_it_is_is_not_judged():
    """A deal that does not add up is the world's affair until a stage touches that job."""
    odd = one_job([2.0, 1.0], samples=[50, 40])
    assert check(UNCHANGED.with_(samples_per_step=np.array([50, 40])), odd) is None
    assert "global batch" in check(UNCHANGED.with_(samples_per_step=np.array([50, 41])), odd)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"gradient_weight": np.array([1.0, 1.5])}, "gradient_weight: worker 1 of job row 0 has weight 1.5"),
        ({"gradient_weight": np.array([np.nan, 1.0])}, "gradient_weight: worker 0 of job row 0 has weight nan"),
        ({"gradient_weight": np.zeros(2)}, "gradient_weight: job row 0 is left without any gradient"),
        ({"gradient_weight": np.ones(3)}, "gradient_weight: needs one value per row of workers"),
        ({"suspect": np.zeros(2)}, "suspect: has dtype float64"),
        (
            {"push_interval": np.array([1, 2])},
            "push_interval: worker 1 of job row 0 pushes every 2 steps; allowed: at least 1, and only",
        ),
        ({"push_interval": np.array([0, 1])}, "push_interval: worker 0 of job row 0 pushes every 0 steps"),
        ({"push_interval": np.array([1, 1])}, None),
        ({"gradient_weight": np.array([0.0, 1.0])}, None),
        ({"suspect": np.array([True, False])}, None),
    ],
)
def test_gradients_are_weighed_by_worker_and_gpus_are_suspected_by_row(change, problem):
    found = check(UNCHANGED.with_(**change), OBSERVATION)
    assert (found is None) if problem is None else problem in found
    assert not UNCHANGED.with_(**change).changes_nothing()
