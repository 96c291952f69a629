"""The contract suite over every registered stage, and that the suite would notice a bad one."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, Stage, StageError, check, refine
from equipoise.policies.contract import Policy as PolicyOf
from equipoise.policies.observation import writable
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


def test_a_row_left_as_it_is_is_not_judged():
    """A deal that does not add up is the world's affair until a stage touches that job."""
    odd = one_job([2.0, 1.0], samples=[50, 40])
    assert check(UNCHANGED.with_(samples_per_step=np.array([50, 40])), odd) is None
    assert "global batch" in check(UNCHANGED.with_(samples_per_step=np.array([50, 41])), odd)
