"""A policy that raises, is late or returns nonsense is ignored, backed off from, and never waited for."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.decide.decider import Decider
from equipoise.policies.contract import Kind, Memory, Plan, Policy, Refusal, Stage
from equipoise.policies.observation import Gpus, Jobs, Nodes, Observation, Workers
from tests.live.faulty_policies import KINDS, faulty


def observation() -> Observation:
    return Observation.of(
        1.0,
        nodes=Nodes.of(gpus=[2]),
        gpus=Gpus.of(node=[0, 0], job=[0, 0]),
        jobs=Jobs.of(state=[1], global_batch=[8], sync_interval=[1]),
        workers=Workers.of(job=[0, 0], index=[0, 1], gpu=[0, 1], node=[0, 0], samples_per_step=[4, 4]),
    )


class Still:
    """A world that always looks the same and refuses everything."""

    def observe(self) -> Observation:
        return observation()

    def apply(self, plan: Plan) -> list[Refusal]:
        return [Refusal("all", "nothing moves here")]


def decided(decider: Decider) -> Any:
    world = Still()
    decider.begin(world)
    return decider.answer(world)


@dataclass(frozen=True)
class Counting(Stage):
    """Counts its decisions in memory; raises while `broken` is set."""

    name: ClassVar[str] = "counting"
    kind: ClassVar[Kind] = "tasks"
    broken: threading.Event = field(default_factory=threading.Event)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        if self.broken.is_set():
            raise RuntimeError("broken")
        return plan.because("counting", "one more"), {"count": memory.get("count", 0) + 1}


@pytest.mark.parametrize("what", KINDS)
def test_no_faulty_policy_gets_through(what: str) -> None:
    decider = Decider(faulty(what), budget_s=0.1 if what == "sleeps" else 60.0)
    answer = decided(decider)
    if what in ("interval", "unjournaled"):  # feasible by the contract; bounds and journal deal with them
        assert answer.decision is not None
        return
    assert answer.decision is None
    assert answer.problem
    assert decider.memory == {"0:faulty": {}}
    if what == "sleeps":
        decider._skip = 0
        assert "busy" in str(decided(decider).problem)  # it was not waited for


def test_memory_goes_on_after_a_failure_from_where_it_was() -> None:
    broken = threading.Event()
    decider = Decider(Policy("x", (Counting(broken),)), budget_s=60.0)
    for _ in range(3):
        decided(decider)
    broken.set()
    assert decided(decider).problem is not None
    broken.clear()
    assert decided(decider).decision is None  # one is skipped
    answer = decided(decider)
    assert answer.decision is not None
    assert decider.memory["0:counting"] == {"count": 4}
    assert decider.failures == 0


def test_a_late_answer_is_discarded_and_a_busy_policy_not_asked_again() -> None:
    release = threading.Event()

    @dataclass(frozen=True)
    class Slow(Stage):
        name: ClassVar[str] = "slow"
        kind: ClassVar[Kind] = "tasks"

        def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
            release.wait(60.0)
            return plan, {"count": memory.get("count", 0) + 1}

    decider = Decider(Policy("x", (Slow(),)), budget_s=0.02)
    assert "within" in str(decided(decider).problem)
    decider._skip = 0
    assert "busy" in str(decided(decider).problem)
    release.set()
    deadline = time.monotonic() + 60.0
    answer = decided(decider)
    while answer.decision is None and time.monotonic() < deadline:
        time.sleep(0.01)
        decider._skip = 0
        answer = decided(decider)
    assert decider.memory["0:slow"] == {"count": 1}  # the late one left no trace


def test_a_policy_whose_memory_cannot_begin_is_refused_at_once() -> None:
    class Broken(Counting):
        def initial(self) -> Any:
            raise RuntimeError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        Decider(Policy("x", (Broken(),)), budget_s=1.0)


def test_observations_are_not_shared_with_the_policy() -> None:
    """The arrays that a stage sees cannot be written."""
    with pytest.raises(ValueError, match="read-only"):
        observation().workers.samples_per_step[0] = np.int64(3)
