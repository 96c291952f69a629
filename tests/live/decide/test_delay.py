"""Deciding while rounds go on: the same plan, so many rounds later, and training does not wait for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage  # noqa: E402
from equipoise.policies.observation import Observation  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

EVERY, DELAY = 4, 2
TRAINED_ON = threading.Event()


@dataclass(frozen=True)
class Turns(Stage):
    """Deals 7 and 3 samples, the other way round at every decision; `waits`: not before training went on."""

    name: ClassVar[str] = "turns"
    kind: ClassVar[Kind] = "tasks"

    waits: bool = False

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        turn = int(memory.get("turn", 0))
        if self.waits and not TRAINED_ON.wait(60):
            raise RuntimeError("training waits for its policy")
        return plan.with_(samples_per_step=np.array([7, 3]) if turn % 2 == 0 else np.array([3, 7])), {"turn": turn + 1}


def shares_by_round(delay: int, *, waits: bool = False, save_at: int | None = None) -> list[Any]:
    """Samples of both ranks in each of 12 rounds; what a checkpoint behind a round says of them at the end."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = Policy("turns", (Turns(waits),))
    runtime = attach(
        model,
        optimizer,
        policy,
        global_batch=10,
        decide_every=EVERY,
        delay_rounds=delay,
        decision_budget_s=60.0,
        mode="act",
    )
    TRAINED_ON.set()  # for the decisions that warm the policy up
    data = TensorDataset(torch.randn(120, 2), torch.randn(120, 1))
    found: list[Any] = []
    for x, y in DataLoader(data, batch_sampler=runtime.sampler(data)):
        current = runtime._stepping.current()
        if runtime.round % EVERY == EVERY - 1:  # a decision begins behind this round
            TRAINED_ON.clear()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        runtime.step()
        found.append(current.samples)
        if runtime.round % EVERY == 1:
            TRAINED_ON.set()  # one more round than the policy was told of
        if runtime.round == save_at:
            assert runtime.state_dict()["round"] == save_at
    leader = runtime._parts.agreement.leader
    assert leader is None or leader.failures == 0
    runtime.close()
    return found


def trains(rank: int) -> list[list[Any]]:
    torch.distributed.init_process_group("gloo")
    return [
        shares_by_round(0),
        shares_by_round(DELAY),
        shares_by_round(DELAY, waits=True),
        shares_by_round(DELAY, save_at=EVERY + 1),
    ]


def test_a_plan_acts_so_many_rounds_later_and_training_goes_on_meanwhile() -> None:
    at_once, later, blocked, saved = live_ranks.run(trains, 2)[0]
    equal, first, second = (5, 5), (7, 3), (3, 7)
    assert at_once == [equal] * EVERY + [first] * EVERY + [second] * EVERY
    assert later == [equal] * (EVERY + DELAY) + [first] * EVERY + [second] * DELAY
    assert blocked == later  # it would never have decided, had training waited for it
    # A checkpoint has no half of a decision in it: it acts before.
    assert saved == [equal] * (EVERY + 1) + [first] * (EVERY + 1) + [second] * DELAY
