"""Steps computed in several batches, as a plan says and as memory needs: equal to one process on whole batches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from equipoise.live.options import Bounds
from equipoise.live.train.change import RoundChange
from equipoise.live.train.sampler import ShareSampler, in_passes
from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from tests.live import ranks as live_ranks

SAMPLES, BATCH, EPOCHS = 100, 16, 3
SHARES = ((12, 4), (16, 0), (5, 11), (8, 8))


@dataclass(frozen=True)
class Passes(Stage):
    """Other shares at every decision, and as many passes as `passes` says in turn."""

    name: ClassVar[str] = "passes"
    kind: ClassVar[Kind] = "tasks"

    passes: tuple[int, ...] = ()
    batches: tuple[int, ...] = (BATCH,)

    def initial(self) -> Memory:
        return {"number": 0}

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        number = memory["number"]
        plan = plan.with_(samples_per_step=np.array(SHARES[number % len(SHARES)]))
        batch = self.batches[number % len(self.batches)]
        if observation.jobs.global_batch[0] == BATCH:
            plan = plan.with_(global_batch=np.array([batch]))
        else:
            plan = plan.with_(samples_per_step=None, global_batch=np.array([BATCH]))
        if self.passes:
            plan = plan.with_(accumulation=np.array([self.passes[number % len(self.passes)]]))
        return plan, {"number": number + 1}


def make_net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)).double()


def make_data() -> tuple[Any, Any]:
    x = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, x.sum(dim=1, keepdim=True).sin()


def on_a_rank(rank: int, stage: Passes, wrapping: str, options: dict[str, Any]) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    torch.distributed.init_process_group("gloo")
    net = make_net()
    model = fully_shard(net) if wrapping == "fully_shard" else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    runtime = attach(
        model,
        optimizer,
        Policy("p", (stage,)),
        global_batch=BATCH,
        nvml=False,
        decide_every=1,
        statistics_every=2,
        decision_budget_s=600.0,
        **{"allow": {"samples", "accumulation", "batch"}, **options},
    )
    data = TensorDataset(*make_data())
    sampler = runtime.sampler(data)
    loader, rounds = DataLoader(data, batch_sampler=sampler), []
    for _ in runtime.epochs(EPOCHS):
        for x, y in loader:
            drawn = sampler.current()
            assert drawn is not None
            rounds.append((drawn.indices.tolist(), runtime.ends_step, runtime.passes))
            quiet = wrapping == "no_sync" and not runtime.ends_step
            with model.no_sync() if quiet else contextlib.nullcontext():
                (torch.nn.functional.mse_loss(model(x), y) / runtime.passes).backward()
            if runtime.ends_step:
                optimizer.step()
                optimizer.zero_grad()
            runtime.step()
    leader = runtime._parts.agreement.leader
    noise = None if leader is None else leader.world.telemetry.noise_scale
    runtime.close()
    weights = [getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for p in net.parameters()]
    return {"rounds": rounds, "weights": weights, "noise": noise}


def steps_of(results: Sequence[dict[str, Any]]) -> list[list[int]]:
    """What all ranks trained on in each step."""
    steps: list[list[int]] = [[]]
    for rounds in zip(*(result["rounds"] for result in results), strict=True):
        assert len({(ends, passes) for _, ends, passes in rounds}) == 1
        steps[-1] += [k for indices, _, _ in rounds for k in indices]
        if rounds[0][1]:
            steps.append([])
    assert steps.pop() == []
    return steps


@pytest.mark.parametrize(
    ("stage", "wrapping", "options", "passes"),
    [
        (Passes((3, 1, 4, 2)), "no_sync", {}, {1, 2, 3, 4}),
        (Passes((3, 1, 4, 2)), "exchanged each time", {}, {1, 2, 3, 4}),
        (Passes((2, 3)), "fully_shard", {}, {2, 3}),
        (Passes((3, 5), (BATCH, 40)), "no_sync", {"batch_max": 40}, {3, 5}),
        # nobody holds more than 5 samples at once, but for the first step, on which nothing was decided yet
        (Passes(), "no_sync", {"bounds": Bounds(samples_min=0, samples_max=5)}, {1, 2, 3, 4}),
    ],
    ids=["no_sync", "exchanged each time", "fully_shard", "another batch", "memory"],
)
def test_steps_in_passes_equal_the_single_process(
    stage: Passes, wrapping: str, options: dict[str, Any], passes: set[int]
) -> None:
    results = live_ranks.Ranks(on_a_rank, 2, stage, wrapping, options).join(timeout_s=300)
    assert {made for result in results for _, _, made in result["rounds"]} >= passes
    if "bounds" in options:
        assert max(len(indices) for result in results for indices, _, _ in result["rounds"][1:]) <= 5
    steps, (x, y), net = steps_of(results), make_data(), make_net()
    assert sorted(k for step in steps for k in step) == sorted(list(range(SAMPLES)) * EPOCHS)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in steps:
        torch.nn.functional.mse_loss(net(x[step]), y[step]).backward()
        optimizer.step()
        optimizer.zero_grad()
    for exact, *found in zip(net.parameters(), *(result["weights"] for result in results), strict=True):
        assert torch.equal(found[0], found[1])
        assert torch.allclose(found[0], exact, rtol=0, atol=1e-12)


def test_a_step_is_cut_into_passes_without_an_empty_one() -> None:
    for demand, passes, unit in (([7, 3], 3, 1), ([1, 9], 4, 2), ([17, 0], 3, 4), ([0, 0], 2, 1), ([2, 1], 8, 1)):
        found = list(in_passes(np.array(demand), passes, unit))
        assert np.sum(found, axis=0).tolist() == demand
        assert len(found) == max(1, min(passes, -(-max(demand) // unit)))
        assert all(part.sum() > 0 for part in found) or not any(demand)
        most = [math.ceil(math.ceil(n / unit) / len(found)) * unit for n in demand]
        assert all((part <= most).all() for part in found)


def test_a_change_waits_for_the_next_step_and_survives_a_checkpoint() -> None:
    sampler = ShareSampler(48, rank=0, ranks=2, global_batch=12)
    sampler.takes_passes = True
    sampler.schedule(RoundChange(0, accumulation=3))
    batches = iter(sampler)
    next(batches)
    sampler.schedule(RoundChange(1, accumulation=2, shares=(8, 4)))
    drawn = [next(batches) for _ in range(4)]
    assert [len(batch) for batch in drawn] == [2, 2, 4, 4]  # thirds of 6, then halves of 8
    for _ in range(3):
        sampler.finish()
    sampler.commit()
    again = ShareSampler(48, rank=0, ranks=2, global_batch=12)
    again.takes_passes = True
    again.load(sampler.state())
    assert [len(batch) for batch in again] == [4, 4] * 3
