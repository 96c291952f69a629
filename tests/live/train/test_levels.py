"""Two levels: ranks of one host meet often, all of them rarely; against the same in one process, on 2 x 2 ranks."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from equipoise.live.train.sync import groups_by_host  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402
from tests.live.train.test_sync import BATCH, LR, make_data, make_net  # noqa: E402

RANKS, GROUPS, SAMPLES, ROUNDS = 4, ((0, 1), (2, 3)), 20 * BATCH + 5, 52
SHARES = {6: (5, 1, 4, 2), 17: (4, 5, 3, 0), 24: (7, 5, 0, 0), 33: (1, 2, 4, 5)}


def trained(policy: str) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.train.change import RoundChange

    x, y = make_data(SAMPLES)
    net = make_net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    runtime = attach(
        model,
        optimizer,
        policy,
        global_batch=BATCH,
        drift=0.01,
        decide_every=4,
        decision_budget_s=60.0,
        warm_up_budget_s=60.0,
    )
    dataset = TensorDataset(x, y)
    sampler = runtime.sampler(dataset)
    log: dict[str, Any] = {"parts": [], "last": [], "levels": [], "met": []}
    while runtime.round < ROUNDS:
        for inputs, labels in DataLoader(dataset, batch_sampler=sampler):
            current, local = sampler.current(), runtime._parts.local
            log["parts"].append(current.indices.tolist())
            log["last"].append(current.last)
            log["levels"].append((local.interval, local.far_every))
            torch.nn.functional.mse_loss(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if runtime.round in SHARES:
                sampler.schedule(RoundChange(sampler.drawn, shares=SHARES[runtime.round]))
            runtime.step()
            local = runtime._parts.local
            log["met"].append(not (local.alone and (local.done or local._turn)))
            if runtime.round == ROUNDS:
                break
    saved = runtime.state_dict()  # here all meet
    leader = runtime._parts.agreement.leader
    log["near_s"] = math.nan if leader is None else leader.world.near_exchange_s
    log["saved"] = saved["interval"], saved["far_every"]
    runtime.close()
    log["weights"] = [p.detach().clone() for p in net.parameters()]
    return log


POLICIES = ("hierarchical-local-sgd(interval=2, far_every=3)", "hierarchical-local-sgd(interval=1, far_every=4)")


def runs(rank: int) -> list[dict[str, Any]]:
    os.environ["EQUIPOISE_HOST"] = f"host-{rank // 2}"
    torch.distributed.init_process_group("gloo")
    return [trained(policy) for policy in POLICIES]


@pytest.fixture(scope="module")
def results() -> list[list[dict[str, Any]]]:
    return live_ranks.run(runs, RANKS)


class Replicas:
    """Replicas in one process: means of near ones, and of the groups' means."""

    def __init__(self, groups: tuple[tuple[int, ...], ...]) -> None:
        self.x, self.y = make_data(SAMPLES)
        self.groups, ranks = groups, sum(len(group) for group in groups)
        self.nets = [make_net() for _ in range(ranks)]
        self.optimizers = [torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9) for net in self.nets]
        self.since_near, self.since_all = np.zeros(ranks), np.zeros(ranks)
        self.steps = self.turns = 0

    def mean(self, members: tuple[int, ...], weights: Any) -> None:
        average([list(self.nets[m].parameters()) for m in members], weights)

    def near(self) -> None:
        for group in self.groups:
            weights = self.since_near[list(group)]
            self.mean(group, weights if weights.any() else [1.0] * len(group))  # momentum moves them all the same
        self.since_near[:] = self.steps = 0

    def everyone(self) -> None:
        self.near()
        # One replica of each group, which are equal now, stands for it.
        first = tuple(group[0] for group in self.groups)
        self.mean(first, [self.since_all[list(group)].sum() for group in self.groups])
        for group in self.groups:
            for member in group[1:]:
                self.nets[member].load_state_dict(self.nets[group[0]].state_dict())
        self.since_all[:] = self.turns = 0

    def round(self, parts: list[list[int]], levels: tuple[int, int], last: bool) -> bool:
        """Whether all met behind it."""
        (interval, far_every), whole = levels, [i for part in parts for i in part]
        alone = interval * far_every > 1
        for net, optimizer, part in zip(self.nets, self.optimizers, parts, strict=True):
            chosen = part if alone else whole
            loss = torch.nn.functional.mse_loss(net(self.x[chosen or [0]]), self.y[chosen or [0]])
            (loss if chosen else 0.0 * loss).backward()
            optimizer.step()
            optimizer.zero_grad()
        if not alone:
            return True
        counts = [len(part) for part in parts]
        self.since_near, self.since_all, self.steps = (
            self.since_near + counts,
            self.since_all + counts,
            self.steps + 1,
        )
        if self.steps == interval or last:
            self.turns += 1
            if self.turns == far_every or last:
                self.everyone()
                return True
            self.near()
        return False


def average(replicas: list[list[Any]], weights: Any) -> None:
    """Every replica's tensors become the weighted mean of all."""
    with torch.no_grad():
        for tensors in zip(*replicas, strict=True):
            value = sum(w / sum(weights) * t for w, t in zip(weights, tensors, strict=True))
            for tensor in tensors:
                tensor.copy_(value)


def emulated(logs: list[dict[str, Any]]) -> tuple[list[Any], list[bool]]:
    """(weights, where all met) of the same in one process."""
    replicas, met = Replicas(GROUPS), []
    for k in range(ROUNDS):
        parts = [log["parts"][k] for log in logs]
        met.append(replicas.round(parts, logs[0]["levels"][k], logs[0]["last"][k]))
    if not met[-1]:
        replicas.everyone()
    return [list(net.parameters()) for net in replicas.nets], met


@pytest.mark.parametrize("which", range(len(POLICIES)))
def test_weights_and_meetings_equal_one_process(results: Any, which: int) -> None:
    logs = [rank[which] for rank in results]
    weights, met = emulated(logs)
    assert logs[0]["levels"][0] == (1, 1)
    assert logs[0]["levels"][-1] == ((2, 3), (1, 4))[which] == logs[0]["saved"]
    assert all(log["met"] == met for log in logs)
    assert 4 < sum(met) < ROUNDS / 2
    for expected, log in zip(weights, logs, strict=True):
        for a, b in zip(expected, log["weights"], strict=True):
            assert float((a - b).detach().norm() / b.norm()) < 1e-12
    for log in logs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(log["weights"], logs[0]["weights"], strict=True))


def test_every_sample_is_trained_on_once_per_epoch(results: Any) -> None:
    logs = [rank[0] for rank in results]
    first = logs[0]["last"].index(True) + 1
    seen = [i for log in logs for k, part in enumerate(log["parts"]) if k < first for i in part]
    assert sorted(seen) == list(range(SAMPLES))


def test_near_are_the_ranks_of_one_host_where_there_are_several() -> None:
    assert groups_by_host(["a", "a", "b", "b"]) == [0, 0, 1, 1]
    assert groups_by_host(["b", "a", "b"]) == [1, 0, 1]
    assert groups_by_host(["a", "a"]) is None
    assert groups_by_host(["a", "b"]) is None
