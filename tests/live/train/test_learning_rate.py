"""The learning rate of a changed batch, live: equal to one process with the same rule, beside a scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from equipoise.live.options import Options
from equipoise.live.train.change import RoundChange
from equipoise.live.train.optimizers import Optimizers
from equipoise.live.train.sampler import ShareSampler
from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.learning import with_rates
from equipoise.policies.observation import Observation
from tests.live import ranks as live_ranks

SAMPLES = 100


def make_net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)).double()


def around_zero() -> tuple[Any, Any]:
    x = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, x.sum(dim=1, keepdim=True).sin()


BATCH, LARGE = 16, 40


@dataclass(frozen=True)
class Batches(Stage):
    """A large batch and the first one in turn, each with its learning rate."""

    name: ClassVar[str] = "batches"
    kind: ClassVar[Kind] = "tasks"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        batch = LARGE if observation.jobs.global_batch[0] == BATCH else BATCH
        return with_rates(observation, plan.with_(global_batch=np.array([batch]))), memory


def make_data() -> tuple[Any, Any]:
    """Far from where the net begins, so that the gradient stands out of its noise for a while."""
    x, y = around_zero()
    return x, y + 10.0


def make_optimizer(kind: str, net: Any) -> tuple[Any, Any]:
    first, *others = net.parameters()
    groups = [{"params": [first], "lr": 0.002}, {"params": others}]
    if kind == "AdamW":
        optimizer: Any = torch.optim.AdamW(groups, lr=0.01)
    else:
        optimizer = torch.optim.SGD(groups, lr=0.001, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)


def on_a_rank(rank: int, kind: str, rule: str | None, restart: bool, epochs: int) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    torch.distributed.init_process_group("gloo")
    rounds: list[tuple[list[int], float, list[float]]] = []
    kept: dict[str, Any] = {}
    noise = math.nan
    for run in range(2 if restart else 1):
        net = make_net()
        optimizer, scheduler = make_optimizer(kind, net)
        if run:
            net.load_state_dict(kept["net"])
            optimizer.load_state_dict(kept["optimizer"])
            scheduler.load_state_dict(kept["scheduler"])
        runtime = attach(
            DistributedDataParallel(net),
            optimizer,
            Policy("p", (Batches(),)),
            global_batch=BATCH,
            nvml=False,
            decide_every=2,
            statistics_every=1,
            decision_budget_s=600.0,
            batch_max=LARGE,
            learning_rate=rule,
        )
        if run:
            runtime.load_state_dict(kept["runtime"])
        data = TensorDataset(*make_data())
        sampler = runtime.sampler(data)
        model = runtime._parts.wrapper.model
        left = False
        for _ in runtime.epochs(epochs):
            for x, y in DataLoader(data, batch_sampler=sampler):
                drawn = sampler.current()
                assert drawn is not None
                rates = [group["lr"] for group in optimizer.param_groups]
                rounds.append((drawn.indices.tolist(), runtime.learning_rate, rates))
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                assert [group["lr"] for group in optimizer.param_groups] == rates, "as the scheduler set it"
                scheduler.step()
                runtime.step()
                left = restart and not run and len(rounds) >= 5 and runtime.learning_rate != 1.0
                if left:
                    break
            if left:
                break
        if restart and not run:
            kept = {
                "runtime": runtime.state_dict(),
                "net": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            }
        if runtime._parts.agreement.leader is not None:
            noise = runtime._parts.agreement.leader.world.telemetry.noise_scale
        runtime.close()
        for optimizer_hooks in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks):
            assert not optimizer_hooks, "closed, it leaves the optimizer alone"
    return {"rounds": rounds, "weights": [p.detach().clone() for p in net.parameters()], "noise": noise}


def same_in_one_process(kind: str, results: Sequence[dict[str, Any]], factor: Any, epochs: int) -> None:
    """One process trains on the same rounds, its rates scaled by hand; weights agree to 1e-12."""
    (x, y), net = make_data(), make_net()
    optimizer, scheduler = make_optimizer(kind, net)
    trained: list[int] = []
    for parts in zip(*(result["rounds"] for result in results), strict=True):
        rows = [k for indices, _, _ in parts for k in indices]
        assert len({rate for _, rate, _ in parts}) == 1
        trained += rows
        torch.nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
        own = [group["lr"] for group in optimizer.param_groups]
        assert own == parts[0][2]
        by = factor(parts[0][1], len(rows))
        for group, rate in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = rate * by
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = rate
        optimizer.zero_grad()
        scheduler.step()
    assert sorted(trained) == sorted(list(range(SAMPLES)) * epochs)
    for exact, *found in zip(net.parameters(), *(result["weights"] for result in results), strict=True):
        assert torch.equal(found[0], found[1])
        assert torch.allclose(found[0], exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "rule", "restart"),
    [
        ("SGD", "linear", False),
        ("AdamW", None, False),  # the square root, by its kind
        ("SGD", "sqrt", True),
        ("SGD", None, False),
        ("SGD", "none", False),
        ("SGD", "script", False),
    ],
    ids=["linear", "AdamW", "over a restart", "AdaScale", "none", "script"],
)
def test_ranks_with_a_rule_equal_the_single_process(kind: str, rule: str | None, restart: bool) -> None:
    root = kind == "AdamW" or rule == "sqrt"
    gain = rule is None and not root  # which depends on the noise scale: it has to be measured first
    epochs = 6 if gain else 3
    results = live_ranks.Ranks(on_a_rank, 2, kind, rule, restart, epochs).join(timeout_s=300)
    larger = {"linear": LARGE / BATCH, "none": 1.0, "script": 1.0}.get(str(rule), math.sqrt(LARGE / BATCH))
    seen = {rate for result in results for _, rate, _ in result["rounds"]}

    def by_rule(rate: float, samples: int) -> float:
        assert rate == 1.0 or samples > BATCH or samples in (SAMPLES % LARGE, SAMPLES % BATCH)
        return larger if rate != 1.0 else 1.0

    if gain:
        assert max(seen) > 1.0
        assert max(seen) <= LARGE / BATCH
        same_in_one_process(kind, results, lambda rate, _: rate, epochs)
    else:
        assert seen == {1.0, larger}
        same_in_one_process(kind, results, by_rule, epochs)


def test_the_factor_goes_with_its_round_and_into_a_checkpoint() -> None:
    sampler = ShareSampler(96, rank=0, ranks=2, global_batch=12)
    sampler.schedule(RoundChange(1, shares=(12, 12), global_batch=24, learning_rate=1.5))
    batches = iter(sampler)
    next(batches), next(batches)
    assert [drawn.rate for drawn in sampler._rounds] == [1.0, 1.5]
    sampler.schedule(RoundChange(3, learning_rate=1.7))
    assert (sampler.rate, sampler.planned_rate()) == (1.5, 1.7)
    sampler.finish()
    again = ShareSampler(96, rank=0, ranks=2, global_batch=12)
    again.load(sampler.state())
    assert (again.global_batch, again.rate) == (24, 1.7)
    other = ShareSampler(96, rank=0, ranks=2, global_batch=16)
    other.load(sampler.state())
    assert (other.global_batch, other.rate) == (16, 1.0), "the script wants another batch now"


def test_rates_in_tensors_and_after_an_exception() -> None:
    weight = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    held = torch.tensor(0.25)
    optimizer = torch.optim.SGD([{"params": weight[:1]}, {"params": weight[1:]}], lr=0.1)
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = held
    hooks = Optimizers([optimizer]).scale_rates(lambda: 2.0)
    for parameter in weight:
        parameter.grad = torch.ones(1)
    optimizer.step()
    assert [float(p.detach()) for p in weight] == [0.5, 0.5]
    assert optimizer.param_groups[0]["lr"] is held
    assert float(held) == 0.25

    def fails() -> float:
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        optimizer.step(fails)
    optimizer.step()
    assert (float(weight[0].detach()), float(held)) == (0.0, 0.25)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize(
    ("kind", "rule"),
    [("SGD", "adascale"), ("Adam", "sqrt"), ("AdamW", "sqrt"), ("RMSprop", "sqrt"), ("Adagrad", "sqrt")],
)
def test_the_rule_follows_the_optimizer(kind: str, rule: str) -> None:
    made = getattr(torch.optim, kind)([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert Optimizers([made]).rate_rule == rule


def test_rules_are_named() -> None:
    with pytest.raises(ValueError, match="learning_rate: 'cube' is not allowed"):
        Options(global_batch=8, learning_rate="cube")  # type: ignore[arg-type]
